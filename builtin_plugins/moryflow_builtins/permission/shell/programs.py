"""What ordinary programs do with their operands, and which of their options matter. See :mod:`.effects` for the letters.

A program in this table is not harmless; the table only says what its words mean. The words of a program that is neither
here nor in :data:`~.inspect.SPECIAL` are tried as paths and as commands. The kinds of operands:

========  ======================================================================
``-``     no files
``r``     files that are read
``r.``    files that are read; the current folder if there are none
``p``     a pattern, then files that are read
``p.``    a pattern, then files that are read; the current folder if there are none
``w``     files that are changed
``W``     files and folders that are changed with everything below them
``rw``    files that are read, then one that is written
``Ww``    files that are moved away, then one that is written
``r1w``   a file that is read, then one that is written
``1w``    a word, then files that are changed
``rw1``   a file that is written, then files that are read
========  ======================================================================
"""

from __future__ import annotations

from collections.abc import Sequence

from .effects import BulkChange, CommandItem, SoughtFiles, Tree, names_of, table_rows, values_of
from .syntax import Arg

_GREP = (
    "e=v regexp=v f=r file=r m=v max-count=v A=v B=v C=v after-context=v before-context=v context=v d=v D=v "
    "include=v exclude=v exclude-from=r exclude-dir=v label=v binary-files=v directories=v devices=v "
    "R=g dereference-recursive=g recursive=n color=n colour=n"
)
_COMPRESS = (
    "S=v suffix=v o=w output=w T=v threads=v b=v D=r patch-from=r filelist=R files=R files0=R output-dir-flat=w "
    "output-dir-mirror=w trace=w"
)

_TABLE = f"""
cat rev | r |
tac | r | s=v separator=v
nl | r | b=v d=v f=v h=v i=v l=v n=v s=v v=v w=v
bat batcat | r | files0-from=R pager=x theme=v language=v l=v s=v b=v h=v f=v d=v i=v n=n w=v
head | r | n=v c=v lines=v bytes=v
tail | r | n=v c=v s=v lines=v bytes=v pid=v sleep-interval=v max-unchanged-stats=v
wc | r | files0-from=R total=v
md5sum sha1sum sha224sum sha256sum sha384sum sha512sum b2sum cksum sum shasum | r | a=v algorithm=v l=v length=v
base64 base32 basenc | r | w=v wrap=v
od | r | A=v j=v N=v t=v S=v w=n address-radix=v skip-bytes=v read-bytes=v format=v
hexdump hd | r | e=v f=r n=v s=v
strings | r | n=v t=v e=v o=n bytes=v radix=v encoding=v
cut | r | b=v c=v f=v d=v bytes=v characters=v fields=v delimiter=v output-delimiter=v
paste | r | d=v delimiters=v
join | r | 1=v 2=v j=v a=v e=v o=v t=v v=v
comm | r | output-delimiter=v
fold fmt expand unexpand pr column | r |
    w=v width=v t=v tabs=v s=v o=v c=v N=v l=v h=v g=v p=v separator=v output-separator=v
sort | r |
    k=v t=v S=v o=w T=w key=v field-separator=v buffer-size=v output=w temporary-directory=w compress-program=x
    files0-from=R parallel=v batch-size=v random-source=r sort=v
uniq | r1w | f=v s=v w=v skip-fields=v skip-chars=v check-chars=v group=n all-repeated=n
shuf | r | i=v n=v o=w input-range=v head-count=v output=w random-source=r e=n
tr | - |
grep egrep fgrep zgrep rgrep bzgrep xzgrep zstdgrep | p. | {_GREP}
ugrep ag ack rga | p. |
    {_GREP} pager=x pre=x filter=x view=x query=g Q=g config=R save-config=w ackrc=R env=g A=v B=v C=v G=v g=n path-to-ignore=r
rg | p. |
    e=v regexp=v f=r file=r g=v glob=v iglob=v t=v T=v type=v type-not=v A=v B=v C=v m=v M=v d=v j=v E=v r=v
    after-context=v before-context=v context=v max-count=v max-columns=v max-depth=v threads=v encoding=v
    replace=v sort=v sortr=v color=v colors=v max-filesize=v path-separator=v field-match-separator=v
    ignore-file=r pre=x pre-glob=v hostname-bin=x search-zip=g z=g L=g follow=g type-add=v type-clear=v engine=v
    context-separator=v unrestricted=n hidden=n
ls dir vdir exa eza lsd | r. |
    I=v w=v T=v ignore=v hide=v width=v tabsize=v block-size=v color=n sort=v time-style=v format=v
    indicator-style=v quoting-style=v level=v L=n
tree | r. |
    L=v P=v I=v o=w H=v T=v charset=v filelimit=v sort=v timefmt=v gitfile=r infofile=r fromfile=g fromtabfile=g
    output=w R=g l=g
file | r |
    f=R files-from=R m=r magic-file=r C=g compile=g z=g Z=g uncompress=g uncompress-noreport=g F=v e=v P=v
    separator=v exclude=v parameter=v
stat | r | c=v format=v printf=v t=n f=n
du | r. |
    d=v B=v t=v X=r max-depth=v block-size=v threshold=v exclude=v exclude-from=r files0-from=R time=n
    time-style=v
df | r | B=v t=v x=v block-size=v type=v exclude-type=v output=n
realpath readlink | r | relative-to=v relative-base=v
namei lsattr getfacl getfattr size nm objdump readelf ldd | r |
    j=v d=v M=v plugin=c target=v debug-file=r
diff colordiff | r |
    U=v C=v L=v W=v x=v X=r S=v F=v I=v unified=n context=n label=v width=v exclude=v exclude-from=r
    starting-file=v from-file=r to-file=r show-function-line=v ignore-matching-lines=v ifdef=v line-format=v
    tabsize=v horizon-lines=v palette=v color=n l=g paginate=g recursive=n no-dereference=n
cmp | r | i=v n=v bytes=v ignore-initial=v
diff3 | r | diff-program=x L=v label=v
sdiff | r | o=w output=w diff-program=x w=v width=v I=v
less more most pg | r |
    o=w O=w log-file=w LOG-FILE=w k=R lesskey-file=R lesskey-src=R lesskey-content=c t=v T=r tag-file=r p=v P=v
    x=v y=v z=v b=v h=v j=v D=v
zcat bzcat xzcat zstdcat zless | r |
xmllint | r | xpath=v output=w o=w encode=v
    schema=r relaxng=r schematron=r dtdvalid=r pretty=v maxmem=v catalogs=g shell=g load-trace=n
pdftotext | r1w | f=v l=v r=v x=v y=v W=v H=v fixed=v enc=v eol=v opw=v upw=v cfg=R
pdfinfo pdffonts | r | f=v l=v enc=v opw=v upw=v rawdates=n isodates=n
iconv | r | f=v t=v from-code=v to-code=v o=w output=w
csvlook csvcut csvgrep csvstat csvsort csvjson | r |
    c=v m=v r=v f=r d=v e=v k=v columns=v match=v regex=v file=r delimiter=v encoding=v
notify-send | - | i=r icon=r
gron hexyl | r | n=v s=v
xxd | r1w | c=v g=v l=v o=v s=v n=v cols=v
touch | w | r=r d=v t=v reference=r date=v time=v
mkdir | w | m=v mode=v Z=n context=n
mkfifo mknod | w | m=v mode=v
tee | w | output-error=n
truncate | w | s=v size=v r=r reference=r
fallocate | w | l=v o=v length=v offset=v
rm rmdir unlink shred srm trash | W | n=v s=v iterations=v size=v random-source=r interactive=n
cp | rw | t=w target-directory=w S=v suffix=v backup=n sparse=v reflink=n no-preserve=v context=n
    recursive=n archive=n dereference=n
install | rw | t=w target-directory=w m=v mode=v o=v owner=v g=v group=v S=v suffix=v strip-program=x
ln | rw | t=w target-directory=w S=v suffix=v
mv | Ww | t=w target-directory=w S=v suffix=v
rsync | rw |
    e=x rsh=x rsync-path=x T=w temp-dir=w f=v B=v M=c files-from=R exclude-from=r include-from=r exclude=v
    include=v filter=v log-file=w backup-dir=w partial-dir=w write-batch=w read-batch=r password-file=r
    only-write-batch=w early-input=r address=h sockopts=v daemon=g config=R remote-option=c iconv=v protect-args=n
    link-dest=r compare-dest=r copy-dest=r out-format=v log-file-format=v chmod=v chown=v max-size=v min-size=v
    timeout=v port=v bwlimit=v recursive=n archive=n copy-links=n dirs=n
scp | rw | S=x o=x F=R i=r P=v l=v c=v J=h D=x b=R s=x X=v
chmod chown chgrp chattr setfacl | 1w | reference=r from=v M=r X=r restore=R modify-file=r remove-file=r set-file=r
patch gpatch | w |
    p=v i=r d=d o=w r=w D=v F=v V=v B=w Y=w z=v g=v e=g ed=g input=r output=w directory=d reject-file=w strip=v fuzz=v
    prefix=w basename-prefix=w suffix=v get=v version-control=v ifdef=v dry-run=n
split | r1w |
    a=v b=v C=v l=v n=v t=v filter=x bytes=v lines=v number=v suffix-length=v additional-suffix=v separator=v
    numeric-suffixes=n
csplit | r | f=w prefix=w b=v n=v suffix-format=v digits=v
gzip gunzip bzip2 bunzip2 xz unxz zstd unzstd lzma compress uncompress | w | {_COMPRESS}
zip | rw1 | b=w t=v T=n -TT=x unzip-command=x i=v x=v n=v O=w out=w temp-path=w P=v logfile-path=w -lf=w
    recurse-paths=n recurse-patterns=n exclude=v
unzip | r | d=w x=v P=v O=v
cpio | - | F=r O=w I=r D=d E=R R=v file=r directory=d rsh-command=x i=g o=n p=g
7z 7za 7zr rar unrar | r | o=w p=v x=v i=v w=w
pacman dpkg rpm | - | o=x option=x c=r config-file=r t=v pipe=x
ps top htop free uptime vmstat iostat who w whoami id groups uname arch nproc lscpu lsblk lsusb lspci | - |
hostnamectl timedatectl locale tty cal ncal | - |
pwd echo true false : sleep seq yes factor expr basename dirname type which whereis printenv | - |
kill pkill killall pgrep pidof jobs | - |
ping ping6 dig host nslookup traceroute tracepath ss netstat ifconfig route arp | - | f=r
whois | - | h=h host=h p=v port=v
gpg gpg2 age | r |
    o=w output=w C=v d=n homedir=R keyring=r i=r identity=r R=r recipients-file=r r=v recipient=v options=R
    photo-viewer=x agent-program=x dirmngr-program=x pinentry-program=x exec-path=x keyserver=h default-keyserver-url=h
    load-extension=c status-file=w log-file=w logger-file=w passphrase-file=r command-file=R trustdb-name=w
    secret-keyring=r primary-keyring=r keyserver-options=c attribute-file=w edit-key=g import=g recv-keys=g delete-keys=g
    delete-secret-keys=g send-keys=h export-secret-keys=g export-secret-subkeys=g
ssh-keygen ssh-add | r | f=w C=v t=v b=v N=v P=v d=n
keytool | r | -keystore=w -file=w -infile=r -outfile=w -srckeystore=r -destkeystore=w -storepass=v -alias=v -providerpath=c
    -providerclass=c -provider=c -addprovider=c -providerarg=c -conf=R -storetype=v -J=c
pbcopy pbpaste xclip | - |"""


PROGRAMS: dict[str, tuple[str, str]] = {name: (operands, options) for name, operands, options in table_rows(_TABLE)}
"""Name → the kind of its operands, and its options."""

OPTIONS_THAT_RUN: dict[str, frozenset[str]] = {
    name: frozenset(options.split())
    for names, options in {
        "code codium cursor subl": "--install-extension --command --extensions-dir --user-data-dir",
        "gcc g++ cc c++ clang clang++": "-wrapper -B -specs --specs -fplugin",
        "ffmpeg": "-f",
        "ss": "-D --diag",
        "jobs": "-x",
        "rpm": "--eval -E --pipe --define -D --load --macros --rcfile --root --dbpath",
        "dpkg": "--pre-invoke --post-invoke --status-logger --root --admindir --instdir",
        "pacman": "--config --hookdir --root --dbpath --cachedir --gpgdir --sysroot -r -b",
        "ssh-keygen": "-D -w",
        "ssh-add": "-s",
        "tcc": "-run",
        "java": "-jar -cp -classpath --class-path -javaagent -agentlib -agentpath -m --module --module-path -p",
        "cmake ctest": "-P -E -S -C --build-and-test --toolchain --script",
    }.items()
    for name in names.split()
}
"""Options that run code from elsewhere, or change what runs later; a wildcard over the program does not cover them."""

ALSO_RUN: dict[str, frozenset[str]] = {
    name: frozenset(options.split())
    for names, options in {
        "javac": "-processorpath --processor-path -processor -J",
        "gradle gradlew": "-I --init-script",
        "mvn mvnw": "-s --settings -gs --global-settings",
        "eslint": "--rulesdir --resolve-plugins-relative-to",
        "mocha": "-r --require",
        "pandoc": "-F --filter -L --lua-filter",
        "tex latex pdftex pdflatex xelatex lualatex": "-shell-escape --shell-escape -enable-write18 --enable-write18",
        "latexmk": "-e -r -latex -pdflatex -xelatex -lualatex -usepretex",
        "gs ghostscript": "-dNOSAFER -dDELAYSAFER",
        "exiftool": "-config",
        "nmap": "--script --datadir",
        "tcpdump": "-z",
        "tshark wireshark": "-X",
        "mosh": "--server --client",
        "duckdb": "-c -cmd -init -s",
        "kotlinc": "-script",
        "ghc": "-e",
        "fzf": "--preview --bind --with-shell",
        "ctags cscope": "--options -P",
        "ld gold lld": "-plugin --plugin",
        "rustc": "linker -Clinker --codegen=linker",
    }.items()
    for name in names.split()
}
"""The same for programs whose other words are not understood."""

COMPILERS = frozenset({"gcc", "g++", "cc", "c++", "clang", "clang++", "tcc", "ld", "as", "rustc", "gfortran"})
"""Programs that write what ``-o`` names, whatever else they do."""

ABBREVIATED = frozenset({"ss", "rpm", "pacman", "ssh-keygen", "ssh-add"})
"""Programs of :data:`OPTIONS_THAT_RUN` that accept abbreviated long options, and several letters in one word."""

CLUSTERED = frozenset({"-J", "-F", "-X", "-B", "-D", "-E", "-P", "-S", "-C", "-w", "-s", "-r", "-b"})
"""Letters among these options whose value may follow directly (``-Ddir``)."""

LOOKS_FOR: dict[str, SoughtFiles] = {
    program: SoughtFiles(tuple(files.split()), upward=above == "above")
    for programs, files, above in (
        ("make gmake", "GNUmakefile makefile Makefile", ""),
        ("just", "justfile Justfile .justfile JUSTFILE", "above"),
        ("npm pnpm yarn bun corepack", "package.json", "above"),
        ("rake", "rakefile Rakefile rakefile.rb Rakefile.rb", "above"),
        ("task go-task", "Taskfile.yml taskfile.yml Taskfile.yaml taskfile.yaml", "above"),
        ("deno", "deno.json deno.jsonc package.json", "above"),
        ("composer", "composer.json", "above"),
        ("nox", "noxfile.py", ""),
        ("invoke inv", "tasks.py tasks/__init__.py", "above"),
        ("ant", "build.xml", ""),
        ("mvn", "pom.xml", ""),
        ("gradle", "build.gradle build.gradle.kts", ""),
        ("gulp", "gulpfile.js gulpfile.mjs gulpfile.ts", "above"),
        ("grunt", "Gruntfile.js Gruntfile.coffee", "above"),
        ("rails", "bin/rails", "above"),
    )
    for program in programs.split()
}
"""Files that a program looks for by itself and runs, in its order, and whether it also looks in the folders above."""


# ---------------------------------------------------------------- folders that a program reads with everything below them

_GREPS = frozenset({"grep", "egrep", "fgrep", "zgrep", "rgrep", "bzgrep", "xzgrep", "zstdgrep"})
_RECURSIVE = frozenset({"r", "R", "recursive", "dereference-recursive"})
_DEEP_LETTERS: dict[str, frozenset[str]] = {
    **dict.fromkeys(("cp", "gcp"), frozenset({"r", "R", "a", "recursive", "archive"})),
    **dict.fromkeys(("scp", "sftp"), frozenset({"r"})),
    "rsync": frozenset({"r", "a", "recursive", "archive", "d", "dirs", "files-from"}),
    "zip": frozenset({"r", "R", "recurse-paths", "recurse-patterns"}),
    **dict.fromkeys(("gzip", "bzip2", "xz", "zstd", "lzma", "compress"), frozenset({"r", "recursive"})),
}
_ALWAYS = frozenset({"ack", "ag", "ugrep", "rga", "7z", "7za", "7zr", "rar"})
_FOLLOW_LINKS = frozenset({"R", "dereference-recursive", "L", "H", "h", "dereference", "copy-links", "follow"})
_TYPES: dict[str, tuple[str, ...]] = {
    "py": ("*.py", "*.pyi"), "python": ("*.py", "*.pyi"), "js": ("*.js", "*.jsx", "*.mjs", "*.cjs", "*.vue"), "rust": ("*.rs",),
    "ts": ("*.ts", "*.tsx", "*.mts", "*.cts"), "go": ("*.go",), "java": ("*.java", "*.jsp"), "c": ("*.c", "*.h"),
    "cpp": ("*.cpp", "*.cc", "*.hpp", "*.h", "*.cxx"), "md": ("*.md", "*.markdown", "*.mdx"), "html": ("*.html", "*.htm"),
    "css": ("*.css", "*.scss"), "ruby": ("*.rb", "*.erb", "Gemfile", "Rakefile"), "rb": ("*.rb",), "php": ("*.php",),
    "markdown": ("*.md", "*.markdown", "*.mdx"),
}  # fmt: skip
"""Types that ``rg -t`` knows and that include no files of secrets; any other type counts as all files."""


def is_exclusion(name: str, option: CommandItem) -> bool:
    """Whether the value of `option` is a glob of files that are not read, in every version of the program."""
    if name in ("diff", "zip", "rsync") and option.name in ("x", "exclude"):
        return True
    left_out = option.value is not None and option.value.text.startswith("!")
    return option.name in ("exclude", "exclude-dir") or (name == "rg" and option.name in ("g", "glob", "iglob") and left_out)


def trees_of(name: str, found: Sequence[CommandItem], files: Sequence[Arg], *, pattern: bool = False) -> list[Tree]:
    """Return the folders that a program of the table reads with everything below them.

    :param files: the operands.
    :param pattern: an option holds the pattern, so the first operand is not one.
    """
    operands = tuple(files if pattern else files[1:])
    letters = names_of(found)
    if name in _GREPS:
        return _grep(name, found, letters, operands)
    if name in ("rg", "ripgrep"):
        return [] if letters & {"files", "type-list"} else [_rg(found, letters, operands)]
    if name in ("diff", "colordiff", "gdiff"):
        depth = None if letters & {"r", "recursive"} else 1
        without = _values(found, "x", "exclude")
        links = "no-dereference" not in letters
        return [Tree("diff -r" if depth is None else "diff", tuple(files), without=without, depth=depth, links=links)]
    if name in _ALWAYS:
        return [
            Tree(name, tuple(files[1:]) if name in ("7z", "7za", "7zr", "rar") else operands, repository=name in ("ag", "ack"))
        ]
    deep = letters & _DEEP_LETTERS.get(name, frozenset())
    return [_copy_tree(name, found, letters, files, min(deep))] if deep else []


def _grep(name: str, found: Sequence[CommandItem], letters: set[str], operands: tuple[Arg, ...]) -> list[Tree]:
    values = _values(found, "d", "directories")
    deep = letters & _RECURSIVE or name == "rgrep" or any("recurse".startswith(value) and value != "r" for value in values)
    if not deep:
        return []
    choices = [option.name for option in found if option.name in ("include", "exclude")]
    tree = Tree(
        f"{name} -r",
        operands,
        only=_values(found, "include"),
        others=choices[:1] == ["exclude"],
        without=_values(found, "exclude"),
        without_folders=_values(found, "exclude-dir"),
        links=bool(letters & {"R", "dereference-recursive"}),
    )
    return [tree]


def _rg(found: Sequence[CommandItem], letters: set[str], operands: tuple[Arg, ...]) -> Tree:
    from moryflow_sdk.support.processes import turn_environment

    unrestricted = sum(option.name in ("u", "unrestricted") for option in found)
    configured = "RIPGREP_CONFIG_PATH" in turn_environment()
    hidden = bool(letters & {"hidden", "."}) or unrestricted > 1 or configured
    all_ignored = unrestricted or configured or any(letter.startswith("no-ignore") for letter in letters)
    globs = _values(found, "g", "glob", "iglob")
    types = _values(found, "t", "type")
    known = () if "type-add" in letters else tuple(glob for kind in types for glob in _TYPES.get(kind, ("*",)))
    return Tree(
        "rg",
        operands,
        only=tuple(glob for glob in globs if not glob.startswith("!")) or known,
        without=tuple(glob[1:] for glob in globs if glob.startswith("!")),
        hidden=hidden or any(not glob.startswith("!") for glob in globs),
        links=bool(letters & {"L", "follow"}),
        follows="nothing" if all_ignored or any(not glob.startswith("!") for glob in globs) else "rg",
    )


def _copy_tree(name: str, found: Sequence[CommandItem], letters: set[str], files: Sequence[Arg], deep: str) -> Tree:
    into = letters & {"t", "target-directory"} or name not in ("cp", "gcp", "scp", "sftp", "rsync")
    sources = files[1:] if name == "zip" else files if into else files[:-1]
    left_out = _values(found, "exclude", "x") if name in ("rsync", "zip") else ()
    why = f"{name} -{deep}" if len(deep) == 1 else f"{name} --{deep}"
    links = bool(letters & _FOLLOW_LINKS)
    return Tree(why, tuple(sources), without=left_out, whole_path=name == "zip", links=links)


def _values(found: Sequence[CommandItem], *names: str) -> tuple[str, ...]:
    return tuple(value.text for value in values_of(found, *names) if value.static)


# ---------------------------------------------------------------- files that a program copies, moves, links or unpacks

_UNPACKERS = frozenset({"7z", "7za", "7zr", "rar", "unrar"})
_CHANGE = frozenset({"chmod", "chown", "chgrp", "chattr", "setfacl", "rm"})
"""Programs that change a folder in place, with everything below it."""

REPLACING = frozenset({"mv", "gmv", "ln", "gln", "install", "ginstall"})
"""Programs that put another file at the path that they write, where others write into the file that is there."""


def is_folder_maker(name: str, found: Sequence[CommandItem]) -> bool:
    """Whether every operand is a folder that the command creates: ``install -d a b``."""
    return name in ("install", "ginstall") and bool(names_of(found) & {"d", "directory"})


def bulk_changes_of(name: str, found: Sequence[CommandItem], files: Sequence[Arg], trees: Sequence[Tree]) -> list[BulkChange]:
    """Return the folders and archives that a program of the table copies, moves, links, changes or unpacks.

    :param files: the operands.
    """
    into = values_of(found, "t", "target-directory")
    sources, goal = (tuple(files), into[-1]) if into else (tuple(files[:-1]), files[-1] if files else Arg("."))
    letters = names_of(found)
    if name == "ln" or (name in ("cp", "gcp") and letters & {"l", "link", "s", "symbolic-link"}):
        return [BulkChange(name, sources or tuple(files), goal if sources else Arg("."), "linked")]
    if name in _CHANGE and letters & {"r", "R", "recursive"}:
        return [BulkChange(name, tuple(files), how="changed")]
    if name in ("mv", "gmv") and sources:
        return [BulkChange(name, sources, goal, "moved")]
    if name in ("cp", "gcp", "rsync", "scp") and sources and trees:
        return [BulkChange(name, sources, goal, tree=trees[0] if name == "rsync" else None)]
    if name in _UNPACKERS and files[:1] and files[0].text in ("x", "e"):
        goals = values_of(found, "o")
        goals += [file for file in files[2:] if file.text.endswith("/") and name.endswith("rar")]
        return [BulkChange(name, tuple(files[1:2]), goals[-1] if goals else Arg("."), "unpacked")]
    if name == "unzip" and files and not letters & {"l", "t", "p", "v", "z", "Z"}:
        goals = values_of(found, "d")
        return [BulkChange(name, tuple(files[:1]), goals[-1] if goals else Arg("."), "unpacked")]
    return []
