"""Programs that pack, build from or send a folder whole, and what an ignore file leaves out of it."""

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
docker compose up --build
docker compose config
docker compose -f app/compose.yml build
docker-compose build
buildah bud app
cd app && docker build .
npm publish pkg
npm publish ./pkg
npm publi pkg
npm pack pkg
npm diff --diff=./pkg
npm publish
cd pkg && npm publish
cd pkg && npm pack
cd pkg && pnpm publish
cd pkg && yarn pack
cd pkg && bun publish
npm --workspace=pkg publish
cargo publish
cargo package --allow-dirty
poetry publish --build
uv build
hatch build
gcloud builds submit
gcloud run deploy --source app
az acr build app
aws deploy push --source app
helm package app
kubectl apply -f conf
kubectl apply -R -f app
kubectl apply -k app
kustomize build app
pack build x --path app
gh-pages -d app
surge app
fly deploy
heroku container:push web --context-path app
""".strip().splitlines()
RUNS = """
wrangler deploy
wrangler pages deploy src
wrangler dev
vercel
vercel --prod
vercel deploy src
vercel build
now
netlify deploy --dir=src
netlify build
firebase deploy
serverless deploy
sls deploy
cdk synth
sam build
amplify push
eas build
pulumi up
vsce publish
mkdocs gh-deploy
docker build https://github.com/a/b.git
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
npm install git+ssh://h/x
npm i x@https://h/x.tgz
npm i github:a/b
pnpm add https://h/x.tgz
pip install git+https://h/x
pip install x@git+https://h/x
pip install -r https://h/x
uv pip install git+https://h/x
gem install http://h/x.gem
pandoc --filter=./x src/a.md
pandoc -L ./x src/a.md
pytest -p ./x
pytest -c app/x.ini
eslint --rulesdir x src
prettier --plugin=./x src
pylint --init-hook=x src
jest --config=./x
mocha -r ./x
pdflatex -shell-escape x
ld -plugin ./x a.o
exiftool -config x y
helm upgrade x ./c --post-renderer ./x
aria2c --on-download-complete=./x https://h/x
""".strip().splitlines()
HARMLESS = """
docker build src
docker build -t x src
docker build -f src/Dockerfile src
docker ps
docker compose ps
docker compose logs -f
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
def test_what_runs_code_of_the_folder_is_not_covered_by_a_wildcard(command: str, judge: Callable[[str], str]) -> None:
    """Build scripts and hooks of a deployment, and what submodules bring (R8)."""
    assert judge(command) == "ask"


@pytest.mark.parametrize("command", HARMLESS)
def test_what_sends_nothing_secret_goes_unasked(command: str, judge: Callable[[str], str]) -> None:
    """Folders without secrets, and verbs that only look (SECURITY §4)."""
    assert judge(command) == "allow"


def test_a_rule_that_names_the_deployment_covers_it(vault: Path, make_policy: MakePolicy) -> None:
    """But not for a folder with a secret (R8, R36)."""
    policy = make_policy(rules("+wrangler deploy*", "+wrangler pages deploy *", "+vercel"), vault=vault / "src")
    assert decide(policy, "wrangler deploy --minify") == decide(policy, "wrangler pages deploy .") == "allow"
    policy = make_policy(rules("+wrangler pages deploy *"), vault=vault)
    assert decide(policy, "wrangler pages deploy app") == "ask"


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
