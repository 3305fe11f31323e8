"""What ``agents.runtime.memoryBank`` may say."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

Count = Annotated[int, Field(gt=0, le=1_000_000, strict=True)]

SENSITIVE_PATHS: tuple[str, ...] = (
    "src/{auth,security}/**", "**/{auth,authn,authz,authentication,authorization,security,oauth,crypto}/**",
    "**/*{package,tsconfig}.json", "**/jsconfig.json", "**/{docker,infra,infrastructure,terraform,k8s,helm,deploy,ansible}/**",
    "**/{package-lock.json,npm-shrinkwrap.json,yarn.lock,pnpm-lock.yaml,pnpm-workspace.yaml,bun.lock,bun.lockb,deno.lock}",
    "**/{pyproject.toml,setup.py,setup.cfg,poetry.lock,uv.lock,pdm.lock,pipfile,pipfile.lock,environment.y*ml}",
    "**/{requirements*,constraints*}.{txt,in}", "**/{cargo.toml,cargo.lock,go.mod,go.sum,go.work}",
    "**/{gemfile,gemfile.lock,*.gemspec,composer.json,composer.lock,mix.exs,mix.lock,pubspec.yaml,pubspec.lock}",
    "**/{pom.xml,build.gradle,build.gradle.kts,settings.gradle,settings.gradle.kts,gradle.lockfile,*.csproj,packages.lock.json}",
    "**/{package.swift,package.resolved,podfile,podfile.lock,deno.json,flake.nix,flake.lock}",
    "**/{.github,.gitlab}/**",
    "**/{dockerfile,dockerfile.*,*.dockerfile,docker-compose*.y*ml,compose*.y*ml}", "**/*.{tf,bicep}",
    "**/{migrations,migration,alembic}/**",
)  # fmt: skip
"""Globs of paths whose change is high risk: keys, dependencies, migrations, infrastructure. Matched without regard to case.

Files of secrets and what runs later belong to them and stand in tables of their own, which permissions read too."""


class MemoryBankSettings(BaseModel):
    """How the memory bank is used.

    :ivar guard_mode: ``off`` injects and protects only; ``warn`` reminds; ``block`` refuses high-risk writes.
        ``MEMORY_BANK_GUARD_MODE`` in the environment stands above the user's file.
    :ivar sensitive_paths: globs, relative to the working folder, whose change is high risk, in place of the built-in ones.
    :ivar more_sensitive_paths: globs beside those.
    :ivar high_risk_tools: tools whose every call is high risk, whatever it touches.
    :ivar inject_characters: at most so much of MEMORY.md goes into the system prompt.
    :ivar reader_files: more files than this in one turn, or more than `reader_lines` lines, are the reader's work.
    :ivar max_memory_lines: a longer MEMORY.md is a finding of ``check``; `max_file_lines` for the files in ``details/``.
    :ivar max_draft_characters: a longer proposal is refused.
    :ivar remind: remind the model to read ``patterns.md`` first, or to propose, where a message or what was done speaks for it.
    :ivar propose_files: so many files changed in one turn speak for a proposal.
    """

    model_config = ConfigDict(frozen=True, alias_generator=to_camel, populate_by_name=True, extra="ignore", defer_build=True)

    guard_mode: Literal["off", "warn", "block"] = "warn"
    sensitive_paths: tuple[str, ...] = SENSITIVE_PATHS
    more_sensitive_paths: tuple[str, ...] = ()
    high_risk_tools: tuple[str, ...] = ("multiedit",)
    inject_characters: Count = 8000
    reader_files: Count = 3
    reader_lines: Count = 300
    propose_files: Count = 5
    max_memory_lines: Count = 200
    max_file_lines: Count = 300
    max_draft_characters: Count = 6000
    remind: bool = True

    @property
    def hints(self) -> bool:
        """Whether the model gets hints to read and to propose; with the guard off the bank is only shown and protected."""
        return self.remind and self.guard_mode != "off"
