"""The two tables of files that always need a question: files with secrets, and files that run later.

Rules, search, sandbox and memory bank all use these tables; there is no third list. Each line has the reason why its files
are listed, and the question shows that reason. Names are compared without case, invisible characters, trailing dots and
spaces. :func:`named_by_git` adds the files that git runs or obeys because the git configuration of the vault names them.

Files that people edit every day (``Makefile``, ``package.json``, ``pyproject.toml``, ``conftest.py``, ``Dockerfile``) are left
out on purpose, though they contain code too: it runs when somebody runs it by name.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from functools import cached_property, lru_cache
from pathlib import Path
from typing import NamedTuple

from moryflow_sdk.support.own_files import open_regular
from moryflow_sdk.support.patterns import braces


class Line(NamedTuple):
    """One line of a table.

    :param reason: what such a file is, worded as the end of a question.
    :param files: globs for file names; an entry with ``/`` is the end of a path, without wildcards.
    :param folders: folders that count with every file in them; an entry with ``/`` is the end of a path.
    """

    reason: str
    files: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()


def _line(reason: str, files: str = "", folders: str = "") -> Line:
    return Line(reason, tuple(files.split()), tuple(folders.split()))


class Table:
    """A table of protected files; it finds the line that matches a path."""

    def __init__(self, lines: Sequence[Line], *, copies: bool = False) -> None:
        """Make a table of `lines`; globs are in lower case. `copies`: a backup counts as the file itself (``.env.bak``)."""
        self.lines = tuple(lines)
        self._copies = copies

    @property
    def files(self) -> tuple[str, ...]:
        """All globs of files, in which ``{a,b}`` is not expanded."""
        return tuple(dict.fromkeys(glob for line in self.lines for glob in line.files))

    @property
    def folders(self) -> tuple[str, ...]:
        """All folders."""
        return tuple(dict.fromkeys(folder for line in self.lines for folder in line.folders))

    @property
    def literal(self) -> tuple[str, ...]:
        """All entries for files and folders that have no wildcard."""
        return tuple(name for name in (*self.files, *self.folders) if not _WILDCARDS.search(name))

    def find(self, path: str) -> Line | None:
        """Return the line that matches `path`, by its own name or by a folder above it."""
        return self.find_file(path) or self.find_folder(path)

    def find_file(self, path: str) -> Line | None:
        """Return the line that matches the name of the file `path`, whatever folder it is in."""
        names = plain_names(path)
        name = names[-1]
        found = self._suffix_match(self._paths, names) or self._glob_match(name)
        if found or not self._copies:
            return found
        bare = _BACKUP.sub("", name)
        return None if bare == name else self._suffix_match(self._paths, [*names[:-1], bare]) or self._glob_match(bare)

    def find_folder(self, path: str) -> Line | None:
        """Return the line that matches `path` as a folder, or a folder above it."""
        names = plain_names(path)
        found = (
            self._suffix_match(self._places, names[: index + 1]) for index, name in enumerate(names) if name in self._places
        )
        return next((line for line in found if line), None)

    def tells(self, name: str) -> bool:
        """Whether a path that ends in `name` may match a line by that name. A walk asks this first, because it is quick."""
        plain = plain_names(name)[-1]
        names = {plain, _BACKUP.sub("", plain)} if self._copies else {plain}
        return any(one in self._paths or one in self._places or self._glob_match(one) for one in names)

    def _glob_match(self, name: str) -> Line | None:
        wild = next((line for piece, glob, line in self._wild if piece in name and fnmatchcase(name, glob)), None)
        found = [line for line in (self._literals.get(name), wild) if line]
        return min(found, key=self.lines.index, default=None)

    @staticmethod
    def _suffix_match(places: dict[str, list[tuple[list[str], Line]]], names: list[str]) -> Line | None:
        return next((line for wanted, line in places.get(names[-1], ()) if names[-len(wanted) :] == wanted), None)

    @cached_property
    def _literals(self) -> dict[str, Line]:
        return {name: line for line in reversed(self.lines) for name in _names(line) if not _WILDCARDS.search(name)}

    @cached_property
    def _wild(self) -> list[tuple[str, str, Line]]:
        """Each glob, after a piece of text that all of its matches contain. Few names contain any of the pieces.

        This avoids compiling all globs, which would add 7 ms to the first call of a process.
        """
        return [(_piece(name), name, line) for line in self.lines for name in _names(line) if _WILDCARDS.search(name)]

    @cached_property
    def _paths(self) -> dict[str, list[tuple[list[str], Line]]]:
        return _by_last((line, path) for line in self.lines for path in line.files if "/" in path)

    @cached_property
    def _places(self) -> dict[str, list[tuple[list[str], Line]]]:
        return _by_last((line, folder) for line in self.lines for folder in line.folders)


def _names(line: Line) -> list[str]:
    return [name for glob in line.files if "/" not in glob for name in (braces(glob) if "{" in glob else (glob,))]


def _piece(glob: str) -> str:
    """Return the longest piece of text in `glob`; every name that `glob` matches contains it."""
    return max(_NO_TEXT.split(glob.lower()), key=len)


def _by_last(rows: Iterator[tuple[Line, str]]) -> dict[str, list[tuple[list[str], Line]]]:
    found: dict[str, list[tuple[list[str], Line]]] = {}
    for line, path in rows:
        names = path.lower().split("/")
        found.setdefault(names[-1], []).append((names, line))
    return found


_WILDCARDS = re.compile(r"[*?\[{]")
_NO_TEXT = re.compile(r"\[[^]]*\]|[*?/]")
_BACKUP = re.compile(r"(~|\.(bak|backup|old|orig|save|swp|tmp|copy))$")


def without_case(text: str) -> str:
    """Return `text` in lower case, without invisible characters, and with accents composed in one way."""
    if not text.isascii():
        visible = "".join(c for c in unicodedata.normalize("NFKC", text) if unicodedata.category(c) != "Cf")
        text = unicodedata.normalize("NFC", visible.casefold())
    return text.lower()


def plain_names(path: str) -> list[str]:
    """Return the names in `path`, at least one, in the form in which the most lenient file system compares them.

    Case, invisible characters, a trailing slash, spaces, dots and a stream (``:name``) make no difference, because some file
    systems, and people, take such names for the same file. The kind of a target's text (``vault:/a``) is removed.
    """
    names = without_case(path).split("/")
    while len(names) > 1 and names[-1] in ("", "."):
        names.pop()
    return [name.partition(":")[0].strip().rstrip(". ") or name for name in names]


SECRETS = Table(
    (
        _line(
            "environment variables, which hold keys and passwords",
            files="*.env *.env[!i]* *.envi[!r]* .dev.vars* .flaskenv .renviron .pam_environment local.settings.json",
            folders=".envs",
        ),
        _line(
            "a private key",
            files="""
                *.pem *.key *.p12 *.pfx *.pkcs12 *.p8 *.ppk *.jks *.jceks *.bks *.keystore *.agekey *.keytab krb5cc_*
                id_rsa* id_dsa* id_ecdsa* id_ed25519* *_rsa *_ed25519 *_ecdsa ssh_host_*_key private[-_]key privatekey
                *[-_]private[-_]key *private*.asc *deploy[-_]key *.private secring.* *.ovpn wg[0-9].conf sops/age/keys.txt
            """,
            folders=".ssh .gnupg .putty .wireguard",
        ),
        _line(
            "a store of passwords",
            files="""
                *.kdbx *.kdb *.keychain *.keychain-db *.1pux *.1pif *.psafe3 *.enpassdb .htpasswd htpasswd etc/shadow
                {recovery,backup}[-_]codes.txt *[-_]{recovery,backup}[-_]codes.txt wallet.dat *.wallet utc--* mnemonic.txt
                seed[-_]phrase.txt
            """,
            folders=".password-store .1password .config/op .local/share/keyrings .local/share/kwalletd Library/Keychains",
        ),
        _line(
            "by its name it holds credentials",
            files="""
                {credential,credentials,token,secret}.{txt,csv,json,y*ml,toml,ini,conf,properties,xml}
                {secrets,password,passwords,passwd}.{txt,csv,json,y*ml,toml,ini,conf,properties,xml}
                passphrase.{txt,csv,json,y*ml,toml,ini,conf,properties,xml}
                *[-_.]{credentials,token,secret,secrets}.{txt,csv,json,y*ml,toml,ini,conf,properties,xml}
                *[-_.]passwords.{txt,csv,json,y*ml,toml,ini,conf,properties,xml}
                {api[-_]key,api[-_]keys,apikey,apikeys}.{txt,csv,json,y*ml,toml,ini,conf,properties,xml}
                {access[-_]key,access[-_]keys,private[-_]key,privatekey}.{txt,csv,json,y*ml,toml,ini,conf,properties,xml}
                credentials .credentials* *.credentials *-credentials *_credentials auth.json auth.toml *accesskeys.csv
                tokens.txt *[-_.]tokens.txt *[-_.]password.txt .*[-_]token .token .tokens *.token .secrets *.secret
                *.secrets client_secret*.json *service[-_]account*.json serviceaccount*.json *firebase-adminsdk*.json
                gha-creds-*.json oauth[-_]creds*.json oauth[-_]token* galaxy_token .vault[-_]pass* vault[-_]pass*
                huggingface/token .huggingface/token access[-_]token refresh[-_]token .*[-_]secret .claude.json
                .supabase/access-token wp-config.php
                ngrok.yml
            """,
            folders=".env.d .secrets .ngrok2 .config/ngrok .config/configstore .config/anthropic .anthropic .openai",
        ),
        _line(
            "where a version control program keeps tokens and addresses with passwords",
            files=".git/config .git-credentials .hg/hgrc .arcrc .config/hub",
            folders=".config/gh .config/glab-cli .config/tea .subversion/auth",
        ),
        _line(
            "where a package manager keeps its tokens",
            files="""
                .npmrc .pypirc pip.conf pip.ini .condarc .cargo/credentials .gem/credentials .bundle/config nuget.config
                .m2/settings.xml settings-security.xml .gradle/gradle.properties .dockercfg .dockerconfigjson hex.config
            """,
            folders=".docker .config/pypoetry .config/helm .hex",
        ),
        _line(
            "where a cloud program keeps its keys",
            files="""
                kubeconfig kubeconfig.* *.kubeconfig *[-_]kubeconfig *[-_]kubeconfig.y*ml .s3cfg .boto .databrickscfg
                rclone.conf .modal.toml .config/linode-cli *.publishsettings .vault-token kaggle.json
            """,
            folders="""
                .aws .azure .kube .oci .aliyun .bluemix .doctl .fly .railway .pulumi .mc .dbt .snowflake .snowsql .kaggle
                .config/gcloud .config/doctl .config/hcloud .config/scw .config/flyctl .config/wrangler .config/.wrangler
                .config/netlify .config/heroku .config/stripe .config/railway .config/rclone .config/github-copilot
                .config/openai
            """,
        ),
        _line(
            "values and state of Terraform, which hold what it created with",
            files="*.tfvars *.tfvars.json *.tfstate *.tfstate.* .terraformrc terraform.rc credentials.tfrc.json",
            folders=".terraform.d",
        ),
        _line(
            "where a database or mail program keeps its password",
            files="""
                .netrc _netrc .authinfo* .pgpass pgpass.conf .pg_service.conf .my.cnf .mylogin.cnf .odbc.ini .msmtprc
                .fetchmailrc .mbsyncrc .esmtprc .purple/accounts.xml
            """,
        ),
        _line(
            "what was typed, passwords among it",
            files="""
                .*_history .bash_history .zsh_history .sh_history .history fish_history .python_history .node_repl_history
                .psql_history .mysql_history .sqlite_history .rediscli_history .lesshst .viminfo
            """,
        ),
        _line(
            "what a browser remembers, sessions and passwords among it",
            files="cookies.txt cookies.sqlite logins.json key3.db key4.db signons.sqlite",
            folders=".mozilla .thunderbird .config/google-chrome .config/chromium .config/BraveSoftware .config/microsoft-edge",
        ),
    ),
    copies=True,
)
"""Files with secrets, but not code about secrets: ``secrets.yaml``, but not ``secrets.py``.

``*.env[!i]*`` and its neighbour are ``*.env*`` without ``my.environment.md``."""

RUNS_LATER = Table(
    (
        _line(
            "version control runs it or obeys it",
            files="""
                .git .gitconfig .gitmodules .gitattributes .hgrc lefthook.y*ml .lefthook.y*ml lefthook-local.y*ml
                .pre-commit-config.y*ml .pre-commit-hooks.y*ml .overcommit.yml .lintstagedrc* lint-staged.config.*
                .huskyrc .huskyrc.*
            """,
            folders=".git .hg .svn .bzr .jj .githooks .husky .config/git",
        ),
        _line("it turns the folder into a git repository, whose configuration can run programs", files="head commondir"),
        _line(
            "continuous integration runs it",
            files="""
                *.gitlab-ci.y*ml .travis.y*ml .drone.y*ml .drone.star .woodpecker.y*ml .cirrus.y*ml .cirrus.star appveyor.yml
                .appveyor.yml
                azure-pipelines*.y*ml bitbucket-pipelines.yml jenkinsfile jenkinsfile.* cloudbuild.y*ml buildspec.y*ml
                codemagic.yaml bitrise.yml .build.yml
            """,
            folders="""
                .circleci .buildkite .woodpecker .semaphore .teamcity .builds .azure-pipelines .azuredevops
                .github/workflows .github/actions .gitlab/ci .gitea/workflows .gitea/actions .forgejo/workflows
                .forgejo/actions
            """,
        ),
        _line(
            "an editor runs it when the folder is opened",
            files="""
                *.code-workspace *.sublime-project .vimrc .gvimrc .exrc .nvimrc .nvim.lua .lvimrc .local.vimrc .emacs
                .dir-locals.el .dir-locals-2.el .ideavimrc .spacemacs .gitpod.yml .gitpod.dockerfile .stackblitzrc .replit
                .devcontainer.json
            """,
            folders="""
                .vscode .vscode-server .vs .idea .fleet .zed .nova .helix .theia .vim .emacs.d .doom.d .config/nvim
                .config/helix .config/zed .config/emacs .devcontainer .idx .codesandbox
            """,
        ),
        _line(
            "an agent takes it for instructions, or starts what it names",
            files="""
                .mcp.json mcp.json .claude.json .cursorrules .windsurfrules .clinerules .roorules .roomodes .goosehints
                .aider.conf.y*ml opencode.json opencode.jsonc crush.json .crush.json .github/copilot-instructions.md
            """,
            folders="""
                .moryflow .agents .agent .claude .cursor .windsurf .codex .gemini .continue .aider .opencode .roo .cline
                .clinerules .amazonq .kiro .trae .junie .augment .qwen .goose .crush .factory .pi .copilot
                .github/instructions .github/prompts .github/chatmodes .github/agents .github/skills .config/opencode
                .config/goose
            """,
        ),
        _line(
            "a shell runs it when it starts",
            files="""
                .bashrc .bash_profile .bash_login .bash_logout .bash_aliases .bash_completion .profile .zshrc .zshenv
                .zprofile .zlogin .zlogout .kshrc .mkshrc .shrc .cshrc .tcshrc .login .logout .xonshrc .inputrc .envrc
                .autoenv .autoenv.zsh .tmux.conf .screenrc *profile.ps1
            """,
            folders="""
                .bashrc.d .bash_completion.d .profile.d .zfunc .zsh .oh-my-zsh .direnv .config/fish .config/nushell
                .config/powershell .config/xonsh .config/direnv .config/tmux .config/zsh
            """,
        ),
        _line(
            "the system runs it at login or by the clock",
            files=".xinitrc .xprofile .xsession .xsessionrc .xbindkeysrc .forward .procmailrc .rhosts .shosts crontab .crontab",
            folders="""
                .config/autostart .config/systemd .config/environment.d .config/i3 .config/sway .config/hypr .local/bin
                .local/share/applications .local/share/systemd Library/LaunchAgents cron.d
            """,
        ),
        _line(
            "a tool manager runs it on entering the folder",
            files="""
                mise.toml .mise.toml mise.*.toml .mise.*.toml mise/config.toml .rtx.toml .rtx.*.toml .asdfrc .prototools
                devbox.json devenv.nix devenv.yaml .lando.yml
            """,
            folders=".mise .config/mise .devenv .flox .ddev",
        ),
        _line(
            "a build tool takes programs and options from it unasked",
            files="""
                .bazelrc tools/bazel .buckconfig .yarnrc .yarnrc.y*ml .pnpmfile.cjs .pnpmfile.mjs pnpmfile.js pnpmfile.cjs
                .pnp.cjs .pnp.loader.mjs
                rust-toolchain rust-toolchain.toml bunfig.toml
                .bunfig.toml .npmrc pip.conf pip.ini .pydistutils.cfg .gemrc .mavenrc .jvmopts .sbtopts .sbtrc gradlew
                gradlew.bat mvnw mvnw.cmd .gradle/init.gradle .gradle/init.gradle.kts .gradle/gradle.properties .ansible.cfg
                ansible.cfg
            """,
            folders=".cargo .mvn .yarn .gradle/init.d gradle/wrapper .bundle .sbt .config/pip .pip",
        ),
        _line(
            "installed programs and libraries: it runs with whatever uses them",
            files="*.pth *.egg-link sitecustomize.py usercustomize.py pyvenv.cfg",
            folders=".venv venv/bin venv/scripts env/bin env/scripts .virtualenv site-packages dist-packages node_modules/.bin",
        ),
        _line(
            "a program runs it when it starts",
            files="""
                .gdbinit .lldbinit .pdbrc .pdbrc.py .pythonrc .pythonrc.py .irbrc .pryrc .rdebugrc .rprofile rprofile.site
                .octaverc .ghci .ocamlinit .iex.exs .erlang .sqliterc .psqlrc .mongorc.js .mongoshrc.js .curlrc .wgetrc
                .ackrc .lessfilter .mailcap .muttrc jupyter_*_config.py
            """,
            folders=".ipython .jupyter .julia/config .config/containers",
        ),
    )
)
"""Files and folders that change which code runs later."""


_CREDENTIALS = re.compile(
    r"(?<=://)(?!git@)[^/\s@]+@|^\s*(?:extraheader|\w*(?:token|password|secret)\w*)\s*=.*$", re.IGNORECASE | re.MULTILINE
)


def sensitive(path: str) -> bool:
    """Whether `path` (a name, a path or a target's text, with ``/`` between names) looks like a file with secrets."""
    return SECRETS.find(path) is not None


def without_git_credentials(text: str) -> str:
    """Return the text of a git configuration (``.git/config``) without the tokens and passwords in it."""
    return _CREDENTIALS.sub("", text)


_FILES = frozenset({"hookspath", "path"})
_COMMANDS = frozenset({
    "fsmonitor", "sshcommand", "editor", "pager", "clean", "smudge", "process", "command", "cmd", "textconv", "driver",
    "program", "askpass", "helper", "external",
})  # fmt: skip
_HOOKS = (
    "applypatch-msg", "pre-applypatch", "post-applypatch", "pre-commit", "pre-merge-commit", "prepare-commit-msg", "commit-msg",
    "post-commit", "pre-rebase", "post-checkout", "post-merge", "pre-push", "pre-auto-gc", "post-rewrite", "sendemail-validate",
    "fsmonitor-watchman", "p4-changelist", "p4-prepare-changelist", "p4-post-changelist", "p4-pre-submit", "post-index-change",
    "reference-transaction", "pre-receive", "update", "proc-receive", "post-receive", "post-update", "push-to-checkout",
)  # fmt: skip
_MAX_CONFIG = 256 * 1024
_ESCAPES = {"n": "\n", "t": "\t", "b": "\b"}


def read_start(path: Path | str, most: int) -> bytes:
    """Return the first `most` bytes of a file.

    :raises OSError: there is no such file, or it is not an ordinary file.
    """
    with open_regular(path) as stream:
        return stream.read(most)


def named_by_git(vault: Path) -> tuple[str, ...]:
    """Return the paths, relative to `vault`, that its ``.git/config`` names: the folder of hooks, included files, programs.

    The folder of hooks is returned even if it does not exist yet.
    """
    try:
        text = read_start(f"{vault}/.git/config", _MAX_CONFIG).decode("utf-8", "surrogateescape")
    except OSError:
        return ()
    found: dict[str, None] = {}
    for name, value, words in _names_in(text):
        for word in words:
            found |= dict.fromkeys(_paths_in_vault(vault, word, must_exist=name not in _FILES))
        if name == "hookspath" and value and os.path.normpath(vault / value) == str(vault):  # the hooks are in the vault itself
            found |= dict.fromkeys(_HOOKS)
    return tuple(found)


@lru_cache(maxsize=4)  # every judged call needs this, and the text is nearly always the same
def _names_in(text: str) -> tuple[tuple[str, str, tuple[str, ...]], ...]:
    """Return the settings in a git configuration that may name a file: name, value, and the words in it that may be paths."""
    found: list[tuple[str, str, tuple[str, ...]]] = []
    for line in text.replace("\r\n", "\n").replace("\\\n", "").split("\n"):
        key, _, written = line.partition("=")
        name, written = key.rpartition("]")[2].strip().lower(), written.strip()
        for value in dict.fromkeys((_value(written), written)):
            words = [value.strip('"')] if name in _FILES else value.split() if name in _COMMANDS or "!" in value[:2] else []
            if words or name == "hookspath":
                found.append((name, value, tuple(word.strip("\"'!;") for word in words)))
    return tuple(found)


def _value(written: str) -> str:
    value, end, quoted = "", 0, False
    signs = iter(written)
    for sign in signs:
        if sign == '"':
            quoted = not quoted
            end = len(value)
        elif sign in "#;" and not quoted:
            break
        else:
            escaped = next(signs, "") if sign == "\\" else ""
            value += _ESCAPES.get(escaped, escaped) if escaped else sign
            end = end if sign.isspace() and not quoted else len(value)
    return value[:end]


def _paths_in_vault(vault: Path, word: str, *, must_exist: bool) -> list[str]:
    """Return the paths below `vault` that `word` may name, from there or from ``.git``; `must_exist`: only existing files."""
    if not word or "\0" in word:
        return []
    places = (os.path.normpath(os.path.join(base, os.path.expanduser(word))) for base in (vault, vault / ".git"))  # noqa: PTH111, PTH118
    paths = [place for place in places if place.startswith(f"{vault}/") and (not must_exist or os.path.isfile(place))]  # noqa: PTH113
    return [os.path.relpath(path, vault) for path in dict.fromkeys(paths) if not path.startswith(f"{vault}/.git/")]
