"""Programs that run another command, which is judged too."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import zip_longest

from .effects import (
    MAX_COMMANDS,
    CommandEffects,
    InnerCommand,
    InnerText,
    Inspector,
    WrittenFile,
    read_options,
    spec,
    table_rows,
    take_option,
)
from .syntax import Arg, join_words

_APPENDED = Arg("…", "the words that are added are known only when it runs")

_TABLE = """
nohup setsid unbuffer builtin command linux32 linux64 i386 x86_64 fakechroot bwrap torsocks torify | 0 |
chronic ts dbus-launch ccache distcc wine winpty busybox toybox catchsegv cpulimit trickle | 0 |
firejail | 0 | profile=R join=g shell=x private=d private-etc=v net=v netfilter=R env=c output=w
capsh | 0 | shell=x user=v uid=v gid=v groups=v keep=v inh=v caps=v addamb=v delamb=v drop=v mode=v chroot=d secbits=v
nice | 0 | n=v adjustment=v
ionice | 0 | c=v n=v p=v P=v u=v class=v classdata=v
chrt | 1 | T=v P=v D=v p=v sched-runtime=v sched-period=v sched-deadline=v pid=v
taskset | 1 | p=v
numactl | 0 |
    N=v m=v C=v c=v i=v p=v P=v w=v M=v I=v L=v f=w S=w interleave=v preferred=v cpunodebind=v physcpubind=v membind=v
stdbuf | 0 | i=v o=v e=v input=v output=v error=v
timeout gtimeout | 1 | s=v k=v signal=v kill-after=v
time | 0 | f=v o=w format=v output=w
exec | 0 | a=v
sudo | 0 |
    u=v g=v p=v C=v h=h r=v t=v T=v U=v a=v c=v D=d R=d user=v group=v prompt=v host=h chdir=d chroot=d role=v type=v
    close-from=v command-timeout=v other-user=v auth-type=v login-class=v
doas | 0 | u=v C=R a=v
pkexec | 0 | user=v
chroot | 1 | userspec=v groups=v
unshare | 0 |
    S=v G=v R=d w=d l=r wd=d root=d propagation=v setuid=v setgid=v map-user=v map-group=v map-users=v map-groups=v owner=v
    setgroups=v monotonic=v boottime=v load-interp=r
nsenter | 0 | t=v S=v G=v target=v setuid=v setgid=v
setpriv | 0 |
    reuid=v regid=v ruid=v rgid=v euid=v egid=v groups=v inh-caps=v ambient-caps=v bounding-set=v securebits=v pdeathsig=v
    selinux-label=v apparmor-profile=v landlock-access=v landlock-rule=v seccomp-filter=r ptracer=v
strace | 0 |
    e=v o=w p=v s=v u=v a=v b=v E=v I=v O=v P=v S=v U=v X=v output=w trace=v attach=v user=v env=v columns=v argv0=v
    string-limit=v trace-path=v signal=v status=v inject=v fault=v abbrev=v verbose=v raw=v read=v write=v kvm=v
    detach-on=v interruptible=v const-print-style=v summary-sort-by=v summary-columns=v summary-syscall-overhead=v
ltrace | 0 | e=v o=w p=v s=v u=v a=v n=v l=v x=v F=R A=v D=v output=w
valgrind | 0 | log-file=w
setarch | 0 |
fakeroot | 0 | l=c f=x s=w i=r b=v lib=c faked=x
proot | 0 | r=d b=v q=x w=d R=d S=d rootfs=d bind=v cwd=d
caffeinate | 0 | t=v w=v
dbus-run-session | 0 | config-file=r dbus-daemon=x
xvfb-run | 0 | e=w f=w n=v p=v s=v w=v error-file=w auth-file=w server-num=v server-args=v
systemd-run | 0 |
    p=c u=v E=c M=h H=h C=v unit=v property=c uid=v gid=v setenv=c description=v slice=v on-active=v on-boot=v nice=v
    on-startup=v on-unit-active=v on-unit-inactive=v on-calendar=v timer-property=v path-property=v socket-property=v
    working-directory=d service-type=v machine=h host=h background=v expand-environment=v
systemd-inhibit | 0 | what=v who=v why=v mode=v
faketime | 1 | f=v
proxychains proxychains4 | 0 | f=R
cgexec | 0 | g=v
chpst | 0 | u=v U=v b=v e=v d=v o=v m=v
softlimit | 0 | m=v d=v s=v l=v a=v o=v p=v f=v c=v t=v
prlimit | 0 | p=v o=v pid=v output=v
rlwrap | 0 | f=r H=w b=v C=v D=v e=v g=v l=w m=v M=v O=v p=v P=v q=v s=v S=v t=v w=v z=x filter=x
start-stop-daemon | 0 | x=x exec=x startas=x p=v a=x n=v u=v g=v s=v c=v d=d pidfile=v name=v user=v chdir=d
daemonize | 0 | c=d e=w o=w p=w l=w u=v E=v
dtach | 0 | a=v A=v c=v n=v p=v e=v r=v
abduco | 1 | e=v
direnv aws-vault | 2 |
mise rtx asdf op | 1 | env-file=r
dotenv | 0 | f=r file=r
perf | 1 | e=v o=w p=v
nodemon | 0 | x=x exec=x w=v e=v watch=v ext=v
entr | 0 |
hyperfine | 0 |
    p=x prepare=x s=x setup=x c=x cleanup=x C=x conclude=x S=x shell=x reference=x w=v r=v m=v M=v L=v P=v D=v n=v u=v
    warmup=v runs=v min-runs=v max-runs=v style=v time-unit=v command-name=v input=r output=v export-json=w export-csv=w
    export-markdown=w export-asciidoc=w export-orgmode=w
parallel sem | 0 |
    j=v a=r I=v N=v n=v L=v d=v C=v E=v P=v S=h J=R s=v jobs=v arg-file=r id=v joblog=w results=w colsep=v delay=v timeout=v
    retries=v load=v memfree=v block=v tagstring=v env=v wd=v workdir=v nice=v shuf=n halt=v tmpdir=w tempdir=w basefile=r
    rsync-opts=c ssh=x pipe-part=n
    max-args=v max-procs=v max-replace-args=v sshlogin=h sshloginfile=R slf=R profile=R return=v recstart=v recend=v
xargs | 0 |
    a=r arg-file=r I=v i=a L=v l=a e=a n=v P=v s=v d=v E=v J=v R=v S=v max-args=v max-procs=v max-chars=v delimiter=v
    process-slot-var=v
coproc | 0 |
npx bunx pnpx | 0 | p=v package=v c=t call=t
uvx | 0 | from=v p=v python=v with=v
sg newgrp | 1 | c=t
flock | 1 | c=t command=t w=v timeout=v E=v conflict-exit-code=v
script | 0 | c=t command=t T=w B=w I=w O=w E=v log-in=w log-out=w log-io=w log-timing=w
watch | 0 | n=v interval=v q=v equexit=v
ssh | 1 | o=x F=R E=w i=r l=v p=v b=v c=v D=h e=v I=x J=h L=h m=v O=v Q=v R=h S=v w=h W=h B=v P=v
nix-shell | 0 | command=t run=t p=v I=v"""


_WRAPPERS = {name: (int(before), options) for name, before, options in table_rows(_TABLE)}
"""Name → how many operands come before the command, and the options."""

_APPENDS = frozenset({"xargs", "parallel", "sem", "entr", "coproc"})
_JOINS = frozenset({"watch", "ssh", "sg", "newgrp", "parallel", "sem", "nodemon", "entr", "tmux", "screen"})
"""Wrappers that pass their words to a shell as one text."""

_DOWNLOADS = frozenset({"npx", "bunx", "pnpx", "uvx"})
LOADER = re.compile(r"ld(?:-linux[\w.-]*|-musl[\w.-]*)?\.so(?:\.\d+)*")
"""Names of the dynamic loader."""


def inspect_wrapper(args: Sequence[Arg], effects: CommandEffects) -> None:
    """Fill in the effects of a wrapper whose last words are a command."""
    name = args[0].text.rpartition("/")[2]
    before, options = _WRAPPERS[name]
    start = _start_of_command(args, effects, before, options)
    if name == "script":
        _script(args, start, effects)
        return
    if name == "hyperfine":  # every operand is a separate command
        effects.texts += [*map(InnerText, args[start:]), InnerText(join_words(args[start:]))]
        return
    if name == "flock" and start > 1:  # it creates a missing file
        effects.writes += [
            WrittenFile(arg, asks=True) for arg in args[1:start] if "/" in arg.text or arg.text[:1] in (".", "~")
        ]
    inner = tuple(args[start:])
    if name == "capsh":  # the words after -- are for a shell
        inner = (Arg("bash"), *inner)
    if name == "command" and len(args) > 1 and args[1].text in ("-v", "-V"):
        return
    if not inner:
        if name == "exec":
            effects.guard(0, "exec changes the descriptors of the shell")
        elif name in ("parallel", "sem"):
            effects.guard_unseen(f"{name} runs whatever it reads")
        elif name in ("sudo", "doas", "sg", "newgrp", "chroot", "unshare", "nsenter", "ssh") and not effects.texts:
            effects.guard_unseen(f"{name} starts a shell that reads what it is given")
        return
    if name in _DOWNLOADS:
        effects.guard(start, f"{name} runs a package of that name")
    if name in _APPENDS:
        inner = (*(Arg(arg.text, arg.why or _APPENDED.why) if "{}" in arg.text else arg for arg in inner), _APPENDED)
    effects.inner.append(InnerCommand(inner, name in ("command", "builtin")))
    if name in _JOINS:
        effects.texts.append(InnerText(join_words(inner), elsewhere=name == "ssh"))


def _start_of_command(args: Sequence[Arg], effects: CommandEffects, before: int, options: str) -> int:
    """Read the options and the operands before the inner command; return the index at which that begins."""
    start = 1
    for remaining in range(before, -1, -1):
        found = list(read_options(args, spec(options), start, stop_at_operand=True))
        for item in found:
            take_option(item, effects, args)
        if not found or not found[-1].operand:
            return len(args)
        start = found[-1].place + (1 if remaining else 0)
    return start


def _script(args: Sequence[Arg], start: int, effects: CommandEffects) -> None:
    effects.writes += [WrittenFile(arg) for arg in args[start : start + 1]] or [WrittenFile(Arg("typescript"))]
    effects.guard(0, "script writes a file")
    if not effects.texts:
        effects.guard_unseen("script starts a shell that reads what it is given")


def inspect_su(args: Sequence[Arg], effects: CommandEffects) -> None:
    """``su`` passes a text, or words, to a user's shell; ``runuser -u`` runs a command."""
    table = spec("c=t command=t session-command=t s=x shell=x g=v group=v G=v w=v u=v user=v")
    found = list(read_options(args, table))
    for item in found:
        take_option(item, effects, args)
    operands = [item.place for item in found if item.operand and args[item.place].text != "-"]
    if any(item.name in ("u", "user") for item in found) and operands:
        effects.inner.append(InnerCommand(tuple(args[operands[0] :])))
    elif not effects.texts:
        effects.guard_unseen(f"{args[0].text} starts a shell that reads what it is given")
        effects.inner += [InnerCommand((Arg("sh"), *args[operands[1] :]))] if len(operands) > 1 else []
    if effects.texts and len(operands) > 1:
        effects.guard_unseen(f"{args[0].text} gives the shell more than a text")
        effects.inner.append(InnerCommand(tuple(args[operands[1] :])))


# ---------------------------------------------------------------- env


def inspect_env(args: Sequence[Arg], effects: CommandEffects) -> None:
    """``env``: an assignment needs a rule that spells it out; the text of ``-S`` is split into words and read again."""
    table = spec("u=v unset=v C=d chdir=d S=v split-string=v a=v argv0=v P=c")
    start = len(args)
    for found in read_options(args, table, stop_at_operand=True):
        if found.operand:
            start = found.place + (args[found.place].text == "-")
        elif found.name in ("S", "split-string") and found.value is not None:
            effects.guard(len(args) - 1, "env -S takes a text apart")
            split = split_string(found.value)
            inspect_env((args[0], *split, *args[found.place + 1 :]), effects)
            return
        else:
            take_option(found, effects, args)
    while start < len(args) and "=" in args[start].text:
        if not harmless_assignment(args[start]):
            effects.guard(start, f"{args[start].text.partition('=')[0]}=… changes how the program runs")
        start += 1
    if start < len(args):
        effects.inner.append(InnerCommand(tuple(args[start:])))


_SPLIT = re.compile(r"""\s+|\\_|\\([cfnrtv])|(\$\{)|\\(.)|'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)"|([^\s\\'"$]+|.)""", re.DOTALL)
_VARIABLE = "a variable in the text of env -S is known only when it runs"


def split_string(text: Arg) -> tuple[Arg, ...]:
    """Return the words that ``env -S`` splits a text into; its rules differ from a shell's."""
    words: list[str] = []
    begun, why = False, text.why
    for part in _SPLIT.finditer(text.text):
        letter, variable, escaped, single, double, plain = part.groups()
        piece = next((found for found in (escaped, single, double, plain) if found is not None), None)
        why = why or (_VARIABLE if variable or (double is not None and "${" in double) else "")
        if letter == "c" or (plain and plain.startswith("#") and not begun):
            break
        if piece is None and not variable:
            begun = False
            continue
        piece = _ESCAPED.sub(r"\1", piece or "${") if single is not None or double is not None else piece or "${"
        words[len(words) - begun :] = [(words[-1] if begun else "") + piece]
        begun = True
    return tuple(Arg(word, why) for word in words)


_ESCAPED = re.compile(r"\\([\\'\"$#])")


def harmless_assignment(word: Arg) -> bool:
    """Whether an assignment only changes the language, the time zone or colours."""
    name, _, value = word.text.partition("=")
    if not word.static or not (name in ("LANG", "LANGUAGE", "TZ", "NO_COLOR") or re.fullmatch(r"LC_[A-Z]+", name)):
        return False
    allowed = r"[\w.@+:,-]*" if name != "TZ" else r"[A-Za-z0-9_+-][\w.,+/<>-]*|"
    return re.fullmatch(allowed, value, re.ASCII) is not None and ".." not in value


_FD_RUNS = re.compile(r"-[A-Za-z]*[xX]|--exec(?:-batch)?(?==|\Z)")


def inspect_fd(args: Sequence[Arg], effects: CommandEffects) -> None:
    """``fd -x COMMAND ;`` runs a command with each file that it finds. Its other options are not read."""
    for index, arg in enumerate(args[1:], 1):
        runs = _FD_RUNS.match(arg.text)
        if runs is None:
            continue
        if len(effects.inner) == MAX_COMMANDS:
            effects.guard_unseen(f"{args[0].text} runs more commands than are checked")
            return
        first = (arg.cut(runs.end() + arg.text.startswith("--")),) if len(arg.text) > runs.end() else ()
        rest = list(args[index + 1 :])
        end = next((place for place, word in enumerate(rest) if word.text == ";"), len(rest))
        effects.guard(len(args) - 1, f"{args[0].text} runs a command for each file")
        effects.inner.append(InnerCommand((*first, *rest[:end], _APPENDED)))


def inspect_loader(args: Sequence[Arg], effects: CommandEffects) -> None:
    """The dynamic loader runs the program that its words name."""
    rest = tuple(arg for arg in args[1:] if not arg.text.startswith("--"))
    if rest:
        effects.inner.append(InnerCommand(rest))
    effects.guard(len(args) - 1, "the loader runs a program")


# ---------------------------------------------------------------- mounts

_CONTAINER_MOUNTS = frozenset({"v", "volume", "mount"})
_EVERY_WORD = frozenset({""})
MOUNTS: dict[str, frozenset[str]] = {
    **dict.fromkeys(("docker", "podman", "nerdctl", "buildah", "docker-compose", "podman-compose"), _CONTAINER_MOUNTS),
    **dict.fromkeys(("singularity", "apptainer", "proot", "systemd-nspawn"), frozenset({"B", "b", "bind", "r", "R", "D"})),
    "bwrap": frozenset({"bind", "bind-try", "dev-bind", "dev-bind-try"}),
    "systemd-run": frozenset({"p", "property"}),
    **dict.fromkeys(("mount", "bindfs", "chroot"), _EVERY_WORD),
}
"""Options whose value is a folder that the inner program sees under another name; the empty name: any word may be one."""

_MOUNTED = re.compile(r"(?:\A|\b(?:source|src|Bind(?:Paths)?)=)([/~$.][^:,]*)")
_READ_ONLY = re.compile(r"[:,](?:ro|readonly)(?:=true|=1)?(?=[,\s]|\Z)")


def note_mounts(name: str, args: Sequence[Arg], effects: CommandEffects) -> None:
    """Record a folder that is mounted as changed, with everything below it."""
    options = MOUNTS[name]
    for word, following in zip_longest(args[1:], args[2:], fillvalue=Arg("")):
        option, equals, _ = word.text.partition("=")
        if not word.text.startswith("-"):
            value = word if options is _EVERY_WORD else None
        elif option.lstrip("-") in options:
            value = word.cut(len(option) + 1) if equals else following
        else:
            letters = "" if word.text.startswith("--") else word.text
            at = next((place for place, letter in enumerate(letters) if letter in options), None)
            value = None if at is None else word.cut(at + 1) if at + 1 < len(letters) else following
        if value is None or _READ_ONLY.search(value.text):
            continue
        found = _MOUNTED.search(value.text)
        if found is not None:
            source = Arg(found.group(1), value.why, tilde=found.group(1).startswith("~"))
            effects.writes.append(WrittenFile(source, whole=True, asks=True))


INSPECTORS: dict[str, Inspector] = {
    **dict.fromkeys(_WRAPPERS, inspect_wrapper),
    **dict.fromkeys(("fd", "fdfind"), inspect_fd),
    "env": inspect_env,
    "su": inspect_su,
    "runuser": inspect_su,
}
