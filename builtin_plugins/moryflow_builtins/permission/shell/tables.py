"""What is known of programs, as data: one line a program. A program without a line is unknown, and trusted only by its name.

A line of the table (one that begins with blanks goes on) has up to four parts, divided by ``|``: names; what it is (below);
its options that run, write, or read elsewhere, which no wildcard covers (long ones also abbreviated); its options whose value
is a text and no file.

=============  ===============================================================================================
``read``       its words are files that it reads
``write``      its words are files that it changes
``text``       its words are no files
``first``      its first operand is a pattern or a program, unless ``-e`` or ``-f`` gives one
``safe``       what it does with plain words is what its name says, so *always* may offer it with ``*``
``verb``       the same, but with its verb: ``npm test *``; :data:`SAFE_VERBS` says which
``sends``      uses the network
``builds``     its words are files that it reads, and it writes what it makes of them
``copy``       only its last operand is changed, the others are read
``code``       runs code that is in its words, in a file or in its input
``shell``      the same, and the code is a shell's
``state``      changes the shell, so that later commands mean something else
=============  ===============================================================================================
"""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_PROGRAMS = r"""
ls dir | read safe
cat tac nl tr pwd stat cmp cut comm paste fold fmt column md5sum sha1sum sha256sum sha512sum cksum b2sum sum od hexdump
  strings | read safe
realpath readlink basename dirname lsof lsblk df groups id whoami uname hostname uptime free nproc arch | read safe
rev expand unexpand tsort base64 base32 zcat bzcat xzcat zgrep zstdcat look join head tail | read safe
iconv | read safe | -o --output
nm size readelf objdump | read safe | --plugin
wc | read safe | --files0-from
du | read safe | --files0-from -X --exclude-from
file | read safe | -m --magic-file -f --files-from -C --compile -z -Z
diff | read safe | -l --paginate --to-file --from-file -X --exclude-from -S --starting-file | --label
sort | read safe | -o --output --compress-program -T --temporary-directory --files0-from --random-source | -t -k
grep egrep fgrep | read first safe | -R -f --file --exclude-from | -e --regexp --include --exclude --exclude-dir
rg | read first safe | -L --follow --pre --hostname-bin --search-zip -z -f --file --ignore-file --pre-glob | -e --regexp -g
  --glob --iglob
find | read safe | -L -follow -exec -execdir -ok -okdir -delete -fprint -fprint0 -fprintf -fls -files0-from | -name -iname
  -path -ipath -regex -iregex -wholename -printf -lname
fd fdfind | read first safe | -x -X --exec --exec-batch -L --follow --ignore-file --search-path --base-directory | -e -E
tree | read safe | -l --output -o --fromfile --fromtabfile -R --gitfile --infofile | -I -P
jq | read first safe | -f --from-file -L --slurpfile --rawfile --argfile --run-tests | --arg --argjson --indent
yq | read first safe | -i --inplace -f --from-file --rawfile --slurpfile -L -s --split-exp
sed | read first safe | -i --in-place -f --file | -e --expression
awk gawk mawk nawk | read first safe | | -F -v
bat batcat | read safe | --pager --config-file | -l --language --style --theme --color
less more most | read safe | -o -O -k --lesskey-src --lesskey-content --log-file -T --lesskey-file
man | text safe | -P --pager -H --html -C --config-file -M --manpath -X -T -Z -l --local-file -r --prompt -B -t --troff
  --troff-device --preprocessor --browser
xxd | read safe | -r -revert
test [ [[ | read safe | | -v
date | text safe | -s --set -f --file -r --reference
cal seq expr true false : sleep which type whereis tty locale getconf factor ps top pgrep | text safe
echo printf | text safe
kill pkill killall | text
cd | text safe
tee mkdir touch | write safe
cp install rsync ln | write copy | --write-batch --only-write-batch --read-batch -e --rsh --rsync-path --files-from -M
  --remote-option --config --daemon --address --strip-program --filter --delete --del --remove-source-files -T --log-file -t
  --target-directory
mv dd split csplit mkfifo mknod shred truncate | write | --filter
rm rmdir unlink | write
chmod chown chgrp setfacl chattr | write | --restore -R --recursive --reference
uniq sdiff | write
zip gzip gunzip bzip2 bunzip2 xz unxz zstd unzip | write | --files --files0 --filelist -T -TT --unzip-command -m --move -b
  --temp-path
tar gtar bsdtar | write | --one-top-level -I --use-compress-program --to-command --checkpoint-action --rsh-command -F
  --info-script --new-volume-script --rmt-command -P --absolute-names -T --files-from -C --directory -X --remove-files
7z 7za 7zr rar unrar | write
git | verb
gh glab | verb sends | --hostname
curl wget http https xh aria2c | sends | -o --output -O -T --upload-file -K --config -x --proxy --connect-to --resolve
  --next --unix-socket -J -c -D --dump-header --create-dirs --netrc --url -E --use-askpass -i --input-file -e --execute
  --post-file --body-file -U -a -P --output-document --on-download-complete -w --write-out
ping dig host nslookup traceroute | sends | -f
make gmake | verb | -f --file --makefile --include --eval -E -I -o
cmake | verb | -P -E -C --toolchain --install
npm pnpm yarn bun | verb | --script-shell --userconfig --globalconfig -e --eval --registry --node-options --git --pnpmfile
  --shell-emulator --use-node-version --preload --https-proxy --proxy --init-module --init.module --onload-script
  --pack-destination
pip pip3 uv poetry pdm | verb | --config-file --index-url --extra-index-url -i --find-links -f --target -t --python
  --proxy --trusted-host --log --config-settings --global-option -d -w -o --output-file --publish-url
cargo | verb | --config -Z --registry --target-dir
go | verb | -exec -toolexec --exec --toolexec -overlay -modfile -C -o -w -ldflags
docker podman | verb sends | -o --output --ssh -v --volume --mount --privileged --device -H --host --env-file -c --context
  --pid --network --net --security-opt --cap-add
gcc g++ cc clang clang++ | builds | -fplugin -B -wrapper -specs -T --config -Xlinker -Xclang
pytest py.test tox nox | safe | -c --config-file --rootdir -p --override-ini -o --basetemp --pdbcls --confcutdir --junitxml
  --junit-xml --log-file --import-mode | -k -m
mypy pyright flake8 pylint eslint tsc stylelint shellcheck yamllint markdownlint codespell | read safe | --config
  --config-file --rcfile --fix --write -w --resolve-plugins-relative-to --rulesdir --plugin --plugin-search-dir -c
  --load-plugins --init-hook --outFile --outDir --project -p --output-file -o --format -f --cache-dir
ruff black isort prettier | write safe | --config --plugin --plugin-search-dir --ignore-path
jest vitest mocha ava playwright cypress | safe | --config -c --require -r --globalSetup --runner --reporter --reporters
  --outputFile --setupFiles
gradle mvn ant sbt | verb | -f --file -b --build-file -I --init-script -s --settings -P -p --project-dir
python pypy perl ruby node nodejs php lua luajit tclsh wish expect guile Rscript R julia groovy scala kotlin elixir iex erl
  ghci | code
runghc sbcl emacs vi vim nvim view ex ed red nano gdb lldb sqlite3 psql mysql mariadb ts-node tsx deno ocaml swipl octave at
  batch | code
gnuplot m4 nu bc dc irb jshell osascript csh tcsh fish pwsh powershell xonsh busybox toybox source . java ipython jupyter
  ssh socat | code
npx bunx pnpx uvx pipx | code
bash sh dash zsh ksh mksh ash rbash yash | shell
env timeout gtimeout nice ionice nohup setsid stdbuf time command builtin exec sudo doas xargs chroot unbuffer chrt taskset
  | text
caffeinate nsenter unshare watch parallel entr | text
shift export unset alias unalias trap set shopt enable hash declare typeset local readonly mapfile readarray read complete |
  text state
compgen compopt bind ulimit umask pushd popd let getopts history fc disown logout return caller dirs times suspend for jobs
  | text state
exit wait fg bg break continue eval | text
moryflow | text
"""

# Programs that run the command in their words → the letters of options with a value, and how many words come before it.
WRAPPERS = {
    "env": ("uCS", 0), "timeout": ("ks", 1), "gtimeout": ("ks", 1), "nice": ("n", 0), "ionice": ("cnpP", 0), "nohup": ("", 0),
    "setsid": ("", 0), "stdbuf": ("ioe", 0), "time": ("fo", 0), "command": ("", 0), "builtin": ("", 0), "exec": ("a", 0),
    "sudo": ("ugpChrtTUD", 0), "doas": ("uC", 0), "xargs": ("aInLPsdEJR", 0), "chroot": ("", 1),
    "strace": ("eopsuabEIOPSUX", 0), "ltrace": ("eopsuanlx", 0),
    "unbuffer": ("", 0), "chrt": ("TPDp", 1), "taskset": ("p", 1), "caffeinate": ("tw", 0),
    "unshare": ("SGRwl", 0), "nsenter": ("tSG", 0), "flock": ("wE", 1), "watch": ("nq", 0), "parallel": ("jaINnLdPSJ", 0),
    "entr": ("", 0), "run0": ("", 0), "pkexec": ("", 0), "systemd-run": ("pu", 0),
}  # fmt: skip

# Wrappers that give the command words which are known only when it runs.
ADDS_WORDS = _words("xargs parallel entr")

# Programs with verbs → the verbs that *always* may offer with `*`; all others it offers exactly.
SAFE_VERBS = {
    "git": "status diff log show add commit branch rev-parse rev-list describe shortlog blame ls-files ls-tree grep stash "
    "fetch merge-base show-ref for-each-ref reflog cat-file check-ignore count-objects whatchanged name-rev",
    "npm": "test t run ls list outdated view info why explain audit pack --version", "pnpm": "test run ls list outdated why",
    "yarn": "test run list why info", "bun": "test run", "make": "*", "gmake": "*",
    "cargo": "test build check clippy fmt doc tree metadata bench", "go": "test build vet fmt list doc version env mod",
    "docker": "ps images logs inspect version info stats top port", "podman": "ps images logs inspect version info",
    "gh": "pr issue repo run status", "uv": "tree version lock", "pip": "list show freeze check",
    "pip3": "list show freeze check",
    "poetry": "show check env version", "kubectl": "get describe logs top version explain", "cmake": "--build",
    "gradle": "test build check tasks", "mvn": "test compile verify package", "terraform": "plan validate fmt show output",
}  # fmt: skip

# Verbs of git that run nothing by themselves; what hooks and filters of the vault's own repository run is its person's.
GIT_VERBS = _words(
    "status diff log show add stage commit branch checkout switch restore reset merge rebase cherry-pick revert stash tag "
    "fetch pull push rev-parse rev-list describe shortlog blame annotate ls-files ls-tree ls-remote grep mv rm clean reflog "
    "name-rev merge-base show-ref show-branch symbolic-ref for-each-ref diff-tree diff-index diff-files whatchanged "
    "count-objects fsck gc prune repack check-ignore check-attr version range-diff cherry archive format-patch notes "
    "worktree remote bundle sparse-checkout stripspace column pack-refs rerere cat-file update-index update-ref"
)

GIT_OPTIONS = _words(
    "-c --exec-path --config-env --ext-diff --textconv --output --upload-pack --receive-pack --exec --no-index "
    "--open-files-in-pager --orderfile --git-dir --work-tree --template --separate-git-dir --paginate --help "
    "--show-signature --editor --extcmd --tool --recurse-submodules --repo --output-directory --interactive --namespace "
    "--unsafe-paths --pathspec-from-file --config --reference --remote --bundle-uri --server-option --gpg-sign "
    "--signed --sign --verify-signatures --edit-todo --in-place "
    "--strategy --file --filters --contents --ignore-revs-file --exclude-from"
)

# Verbs of git → letters of options that run, write or read elsewhere.
GIT_LETTERS = {
    "add": "ie", "cherry-pick": "xS", "revert": "S", "grep": "Of", "rebase": "xisS", "fetch": "u", "pull": "s",
    "archive": "o", "format-patch": "o", "commit": "tS", "tag": "Fusv", "merge": "FS", "notes": "F", "log": "O",
    "diff": "O", "show": "O", "blame": "S", "clean": "xXi", "ls-files": "X",
}  # fmt: skip

# Two words of git that write configuration, a file elsewhere, or open an editor.
GIT_PAIRS = (
    "worktree add", "worktree move", "remote add", "remote set-url", "stash branch", "notes edit", "bundle create",
    "sparse-checkout set", "rerere forget", "merge -s", "commit -t",
)  # fmt: skip

GIT_SENDS = _words("push fetch pull clone ls-remote remote archive submodule")
GIT_TEXTS = _words("-m --message --author --grep -S -G")
# Verbs of git whose words are files that they change.
GIT_CHANGES = _words("rm mv clean checkout restore")

# Assignments that change no more than how text looks.
HARMLESS = re.compile(r"(?:LANG|LANGUAGE|NO_COLOR|LC_[A-Z]+)=[\w.@+:,-]*|TZ=(?:[A-Za-z0-9_+-][\w.,+/<>-]*)?", re.ASCII)

NEUTRAL = _words("/dev/null /dev/stdout /dev/stderr /dev/stdin /dev/tty /dev/zero /dev/fd/0 /dev/fd/1 /dev/fd/2")
INFORMS = _words("--version --help -V -version -v -h")

# Programs → files that they run without being told.
SOUGHT = {
    "make": "Makefile makefile GNUmakefile", "npm": "package.json", "pnpm": "package.json", "yarn": "package.json",
    "cargo": "build.rs Cargo.toml", "pytest": "conftest.py", "just": "justfile", "docker": "Dockerfile", "tox": "tox.ini",
}  # fmt: skip

# Programs with verbs → what else a wildcard may cover, beside `SAFE_VERBS`; all other verbs are not covered.
PLAIN_VERBS = {
    "npm": "install i ci add uninstall remove update start stop dedupe prune root prefix bin help",
    "pnpm": "install i add remove update start",
    "yarn": "install add remove start", "bun": "install add remove test", "pip": "install uninstall",
    "pip3": "install uninstall",
    "uv": "sync add remove pip", "poetry": "install add remove update lock", "pdm": "install add remove update lock sync",
    "cargo": "run update add remove clean fetch", "go": "clean", "docker": "build compose up", "podman": "build", "gh": "",
}  # fmt: skip

# Programs → the verb behind which the command stands that they run.
RUNNERS = {
    "uv": "run", "poetry": "run", "pdm": "run", "pipx": "run", "bundle": "exec", "npm": "exec", "pnpm": "exec", "yarn": "exec",
    "npx": "", "go": "run", "dotenv": "run", "conda": "run", "rye": "run", "hatch": "run",
}  # fmt: skip

# Whole options that only look like abbreviations of guarded ones.
ABBREVIATIONS_NOT = _words("--arg --args --argjson --text --info -Is -Iseconds -Iminutes -Idate")

# Commands of `moryflow` that change what is allowed, loaded or configured, or open a way to do so.
OWN_CHANGES = frozenset(
    {
        "permission allow", "permission ask", "permission deny", "permission preset", "permission remove", "permission rm",
        "permission undo", "plugin install", "plugin uninstall", "plugin rm", "plugin update", "plugin sync", "plugin enable",
        "plugin disable", "plugin key set", "plugin marketplace add", "config set", "config unset",
        "config prompt edit", "config prompt reset", "approval reply", "model use", "model install",
        "tool allow", "new tool", "new agent", "mcp add", "mcp remove", "mcp rm", "mcp review", "mcp login",
        "session worktree merge", "session worktree drop", "serve", "serve tokens add", "serve tokens revoke", "acp",
        "worker", "worker drain", "worker limit", "schedule add", "schedule remove", "schedule rm", "import", "eval",
    }
)  # fmt: skip

# Commands of `moryflow` that only read; a wildcard may cover them.
OWN_READS = frozenset(
    {
        "worker status", "schedule list", "schedule ls", "serve tokens list", "serve tokens ls",
        "permission explain", "permission lint", "permission rules", "permission test", "plugin list",
        "plugin ls", "plugin info", "plugin marketplace list", "plugin marketplace ls",
        "plugin marketplace search", "config show", "config path", "config get",
        "config explain", "config schema", "config check", "config prompt show", "approval list", "approval ls",
        "approval show", "agent list", "agent ls", "agent show", "agent check", "model list", "model ls",
        "tool list", "tool ls", "tool show", "hook list", "hook ls",
        "session list", "session ls", "session show", "session records", "session tree",
        "session search", "session context", "session worktree list", "session worktree ls",
        "skill list", "skill ls", "skill show", "output list", "output ls", "output show",
        "memory-bank check", "memory-bank doctor", "mcp list", "mcp ls", "mcp show", "audit", "audit tail", "trace", "doctor",
        "instructions", "completion", "help", "",
    }
)  # fmt: skip

# Commands of `moryflow` that run turns; they must not set a freer mode or other rules. `trace export` runs none: it is asked
# about like these, because it can send a session to any address, while `trace` only reads.
OWN_TURNS = frozenset(["run", "chat", "dev", "tool run", "hook fire", "replay", "trace export"])


class KnownProgram(NamedTuple):
    """One line of the table."""

    kinds: frozenset[str] = frozenset()
    guarded: tuple[str, ...] = ()
    texts: frozenset[str] = frozenset()


UNKNOWN = KnownProgram()
_VERSIONED = re.compile(r"(?:python|pypy|perl|ruby|node|php|lua|tclsh|emacs|vim|pip|gcc|g\+\+|clang)[\d.]*(?:-\d+)?")


@cache
def _table() -> dict[str, KnownProgram]:
    found: dict[str, KnownProgram] = {}
    for line in filter(None, re.sub(r"\n  ", " ", _PROGRAMS).split("\n")):
        names, *rest = line.split("|")
        kinds, guarded, texts = (part.split() for part in (*rest, "", "")[:3])
        one = KnownProgram(frozenset(kinds), tuple(guarded), frozenset(texts))
        found.update(dict.fromkeys(names.split(), one))
    return found


def program(name: str) -> KnownProgram:
    """Return what is known of the program `name`; :data:`UNKNOWN` if it has no line."""
    table = _table()
    if name in table:
        return table[name]
    return table[re.sub(r"[\d.]+(?:-\d+)?\Z", "", name)] if _VERSIONED.fullmatch(name) else UNKNOWN
