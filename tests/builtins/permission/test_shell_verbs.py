"""Verbs of known programs, in full and abbreviated, and options that name programs, files and hosts."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from moryflow_builtins.permission.policy import Policy
from moryflow_builtins.permission.shell.effects import GUARDED, spec
from moryflow_builtins.permission.shell.programs import PROGRAMS
from moryflow_builtins.permission.shell.verbs import ABBREVIATES, VERBS, verbs_of

from .judging import decide, rules

MakePolicy = Callable[..., Policy]


@pytest.mark.parametrize("name", VERBS)
def test_a_wildcard_covers_ordinary_verbs_and_no_other(name: str, make_policy: MakePolicy) -> None:
    """What runs or configures asks, so does what is not known; nothing ordinary does (R8, SECURITY §2.4)."""
    policy, table = make_policy(rules(f"+{name} *")), verbs_of(name)
    for verb in table.ordinary:
        assert decide(policy, f"{name} {verb}") == "allow", verb
    for verb in (*table.running, "frobnicate", "./x", "x.js"):
        assert decide(policy, f"{name} {verb}") == "ask", verb
        assert decide(policy, f"{name} {verb} y") == "ask", verb


@pytest.mark.parametrize("name", VERBS)
def test_no_abbreviation_of_a_verb_goes_further_than_the_verb(name: str, make_policy: MakePolicy) -> None:
    """``npm exe`` is ``npm exec``: every part of a verb that runs something asks, and is denied with it (R8, SECURITY §2.2)."""
    table = verbs_of(name)
    for verb, form in table.running.items():
        policy = make_policy(rules(f"+{name} *", f"-{name} {form}", f"-{name} {form} *"))
        for end in range(1, len(verb)):
            part = verb[:end].rstrip()
            if part in table.ordinary or part in table.running or part in table.groups:
                continue
            assert decide(policy, f"{name} {part} y") == "deny", part
        assert decide(policy, f"{name} {verb} y") == "deny", verb


@pytest.mark.parametrize("name", VERBS)
def test_a_rule_that_spells_an_unknown_verb_out_covers_it(name: str, make_policy: MakePolicy) -> None:
    """A person may know a verb that is not in the tables (R8)."""
    assert decide(make_policy(rules(f"+{name} frobnicate *")), f"{name} frobnicate y") == "allow"


def test_abbreviations_of_ordinary_verbs_only_are_ordinary_where_nobody_writes_them_in_full(make_policy: MakePolicy) -> None:
    """``ip a`` is everyday; ``ip n`` may be ``ip netns`` (R8)."""
    policy = make_policy(rules("+ip *"))
    assert frozenset({"ip"}) == ABBREVIATES
    assert [decide(policy, f"ip {verb}") for verb in ("a", "r", "l", "-br a", "ro", "n", "netn exec x y", "vr", "-n x a")] == [
        *("allow", "allow", "allow", "allow", "allow"),
        *("ask", "ask", "ask", "ask"),
    ]


_EVERY = {
    **{name: options for name, (_, options) in PROGRAMS.items()},
    **{name: options for name, (_, options) in VERBS.items()},
}


@pytest.mark.parametrize(
    "name", [name for name, options in _EVERY.items() if any(r in GUARDED for r in spec(options).long.values())]
)
def test_options_that_write_run_or_configure_ask_in_every_spelling(name: str, make_policy: MakePolicy) -> None:
    """``--out``, ``--output=x`` and ``--output x`` are one option; a wildcard covers none of them (R8)."""
    policy, table = make_policy(rules("+*")), spec(_EVERY[name])
    verb = f" {next(iter(verbs_of(name).ordinary))}" if name in VERBS else ""
    for option, role in table.long.items():
        if role not in GUARDED:
            continue
        dash = "-" if f" -{option}=" in f" {_EVERY[name]}" else "--"
        parts = [option[:end] for end in range(2, len(option) + 1) if option[:end] not in table.long or end == len(option)]
        for part in parts if dash == "--" else [option]:
            for words in (f"{dash}{part}=val", f"{dash}{part} val"):
                assert decide(policy, f"{name} {words}") == "ask", words
                assert decide(policy, f"{name}{verb} {words} x") == "ask", words


ASK = """
npm exe x
npm innit x
npm c set script-shell ./x
npm --git=./x install x
npm -git=./x i x
npm -script-shell=./x test
npm --@a:registry=http://h i x
npm --foo test
npm -C .. test
cd /tmp && npm test
npm --userconfig=x i
npm --ed=./x edit
npm i -g x
npm frob
pnpm -r exec x
pnpm --config.script-shell=./x test
pnpm --filter a dlx x
yarn plugin import x
yarn --use-yarnrc x install
bun x.ts
bun run x.ts
deno x.ts
deno test -A
pip install --ind http://h x
pip --python ./x install y
uv --directory .. sync
uv --config-f x sync
cargo nextest run
cargo +x build
cargo -Z x build
go test -exec ./x
go build -ldflags=-extld=./x
docker -H tcp://h ps
docker --conf x ps
docker builder frob
docker compose frob
kubectl --kubeconfig x get pods
kubectl frob
kubectl --server h get x
gh frob
gh repo clone x
gh api -F a=@.env x
gh api --hostname h x
gem exe x
gem ins x
bundle ex x
bundle con x y
composer exe x
composer -d .. install
hg --conf x=y st
hg comm
hg push --ssh ./x
hg push -e ./x
svn diff --diff-cmd ./x
svn pat x
systemctl -H h status
systemctl --roo=x status
ip -ba f
ip -force -b f
apt -o x=y update
dnf --setopt=x=y install z
brew tap x/y
openssl eng x
openssl x509 -in .env
openssl rsa -passin file:.env
openssl s_client -proxy h
dotnet x.dll
dotnet build -l:x.dll
conda create --rc-file x
poetry -C .. install
poetry frob
terraform apply -var=x=@.env
http POST h a@.env
x --a=b,.env
git fetch --upload-pa=./x
git for-each-ref --format='%(raw)'
git fsck --lost-f
git --literal-paths diff
cmake -DX=y -P x
rpm --mac=x -qa
"""
ALLOW = """
npm
npm -v
npm --version
npm test
npm t
npm i lodash
npm i -D x
npm install --save-dev x@^1.2
npm rm x
npm run build -- --watch
npm --silent run lint
npm ls --depth=0 --json
npm i @types/node
npm run build --workspace=a
npm ci --ignore-scripts
npm view x version
npm outdated
pnpm i
pnpm -r build
pnpm --filter a test
pnpm add -D x
yarn
yarn build
yarn add x
yarn --cwd src test
bun install
bun test
deno fmt
deno test
pip install x==1.2
pip install -r requirements.txt
pip install -e .
pip list
pip show x
uv sync
uv pip install x
uv add x
uv lock --upgrade
poetry install --no-root
poetry add x
cargo build --release
cargo test -p a -- --nocapture
cargo clippy --all-targets -- -D warnings
go build ./...
go test -run X -v ./...
go vet ./...
go mod tidy
docker ps -a
docker build -t x .
docker compose up -d
docker compose -f a.yml logs -f x
docker logs -f x
docker images
kubectl get pods -n a
kubectl -n a get pods -o yaml
kubectl apply -f a.yml
kubectl logs -f x
gh pr list
gh pr view 1
gh issue list
gh run list
gh repo view
gh api repos/x/y
gem install x
bundle install
composer install
hg st
hg ci -m x
svn st
systemctl status x
systemctl --user list-units
ip addr show
ip -4 a
apt install curl
apt-get install -y curl
brew install x
openssl version
openssl x509 -in a.crt -noout -text
dotnet build -c Release
openssl s_client -connect h:443
conda install -y x
cmake --build .
hg log -l 3
"""


@pytest.mark.parametrize("command", ASK.strip().splitlines())
def test_verbs_and_options_are_judged_as_what_they_do(command: str, make_policy: MakePolicy) -> None:
    """Under a rule for every command: what runs, configures, reads secrets or reaches another host asks (R8, R9)."""
    assert decide(make_policy(rules("+*")), command) == "ask"


@pytest.mark.parametrize("command", ALLOW.strip().splitlines())
def test_ordinary_verbs_and_options_go_unasked(command: str, make_policy: MakePolicy) -> None:
    """The tables do not make a rule for a program worthless (SECURITY §4)."""
    assert decide(make_policy(rules("+*")), command) == "allow"
