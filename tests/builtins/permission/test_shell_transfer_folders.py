"""Programs that build from a folder or publish it whole, and what an ignore file leaves out of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from moryflow_builtins.permission.policy import Policy

from .judging import decide, git, rules

MakePolicy = Callable[..., Policy]
SECRET = """
docker build app
docker build .
docker build -t x -f src/Dockerfile app
docker build --build-context x=app src
docker buildx build app
docker image build app
podman build app
docker compose build
docker compose -f app/compose.yml build
docker-compose build
buildah bud app
cd app && docker build .
npm publish pkg
npm publish ./pkg
npm publi pkg
npm pack pkg
npm publish
cd pkg && npm publish
cd pkg && npm pack
cd pkg && pnpm publish
cd pkg && yarn pack
cd pkg && bun publish
npm --workspace=pkg publish
cargo publish
poetry publish --build
fly deploy
vsce publish
""".strip().splitlines()
RUNS = """
git submodule update --init
git submodule foreach 'ls'
git submodule add ./x
git clone --recurse-submodules ./x
git pull --recurse-submodules
git checkout --recurse-submodules HEAD
git switch --recurse-sub main
git fetch --recurse-submodules
git push --recurse-submodules=on-demand
git update-ref --stdin
""".strip().splitlines()
HARMLESS = """
docker build src
docker build -t x src
docker build -f src/Dockerfile src
docker ps
docker compose ps
docker compose logs -f
docker compose up -d
npm pack --dry-run
npm publish --dry-run pkg
npm test
npm ls
cd clean && npm publish
cd clean && npm pack
npm publish ./clean
vercel ls
vercel whoami
netlify status
wrangler whoami
surge list
firebase login
kubectl apply -f src
kubectl get pods
helm list
gcloud config list
cargo build
git fetch --no-recurse-submodules
npm i lodash
npm i @types/node
pip install x==1.2
pip install -r requirements.txt
pandoc src/a.md
pytest -q tests
pytest -k x
eslint src
prettier --check src
mypy src
jest
pylint src
pdflatex x
""".strip().splitlines()


@pytest.fixture
def vault(tmp_path: Path) -> Path:
    """A vault in which ``src`` and ``clean`` are harmless; ``app``, ``pkg`` and ``conf`` hold secrets."""
    vault = tmp_path / "vault"
    for name in ("src/a.py", "src/Dockerfile", "src/x.yaml", "clean/index.js", "app/.env", "app/conf/credentials.json",
                 "pkg/.env", "conf/credentials.json"):  # fmt: skip
        (vault / name).parent.mkdir(parents=True, exist_ok=True)
        (vault / name).write_text("x\n")
    for name in ("clean", "pkg"):
        (vault / name / "package.json").write_text('{"name": "x"}')
    git(vault, "init", "-q")
    return vault


@pytest.fixture
def judge(vault: Path, make_policy: MakePolicy) -> Callable[[str], str]:
    """Judge a command under a rule that allows everything."""
    policy = make_policy(rules("+*"), vault=vault)
    return lambda command: decide(policy, command)


@pytest.mark.parametrize("command", SECRET)
def test_a_folder_with_secrets_is_asked_about_before_it_is_sent(command: str, judge: Callable[[str], str]) -> None:
    """However the folder is named: as an operand, by an option, or as the current one (R36)."""
    assert judge(command) == "ask"


@pytest.mark.parametrize("command", RUNS)
def test_what_submodules_bring_is_not_covered_by_a_wildcard(command: str, judge: Callable[[str], str]) -> None:
    """They are repositories of others, with hooks and configuration of their own (R8)."""
    assert judge(command) == "ask"


@pytest.mark.parametrize("command", HARMLESS)
def test_what_sends_nothing_secret_goes_unasked(command: str, judge: Callable[[str], str]) -> None:
    """Folders without secrets, and verbs that only look (SECURITY §4)."""
    assert judge(command) == "allow"


@pytest.mark.parametrize(
    ("line", "decision"),
    [
        (".env\nconf", "allow"),
        ("**/.env\n**/*.json", "allow"),
        ("*", "allow"),
        (".env\nconf/**", "allow"),
        (".env*\nconf/credentials.json", "allow"),
        (".env", "ask"),
        ("*.json\n.env", "ask"),
        (".env\nconf\n!conf/credentials.json", "ask"),
        ("# .env\nconf", "ask"),
        ("[.]env\nconf", "ask"),
    ],
)
def test_what_dockerignore_surely_leaves_out_is_not_read(
    line: str, decision: str, judge: Callable[[str], str], vault: Path
) -> None:
    """Its patterns begin at the context; what is not plain leaves nothing out (R36)."""
    (vault / "app" / ".dockerignore").write_text(f"{line}\n")
    assert judge("docker build app") == decision
    (vault / "app" / "Dockerfile.dockerignore").touch()
    assert judge("docker build app") == "ask"


def test_npm_follows_gitignore_unless_the_package_chooses(judge: Callable[[str], str], vault: Path) -> None:
    """``files`` and ``.npmignore`` take its place (R36)."""
    assert judge("npm publish ./pkg") == "ask"
    (vault / "pkg" / ".gitignore").write_text(".env\n")
    assert judge("npm publish ./pkg") == "allow"
    (vault / "pkg" / ".npmignore").write_text("x\n")
    assert judge("npm publish ./pkg") == "ask"
    (vault / "pkg" / ".npmignore").unlink()
    (vault / "pkg" / "package.json").write_text('{"files": [".env"]}')
    assert judge("npm pack ./pkg") == "ask"
