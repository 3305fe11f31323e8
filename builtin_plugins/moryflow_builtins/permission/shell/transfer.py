"""Programs that upload or download files: what they read and write, and which host they really connect to.

For ``curl`` and ``wget`` their options say so; for clients of file stores, the folders among their words.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import cast

from .effects import (
    BulkChange,
    CommandEffects,
    CommandItem,
    Follows,
    Inspector,
    Tree,
    WrittenFile,
    guard_telling_name,
    names_of,
    operands_of,
    read_options,
    spec,
    table_rows,
    take_option,
    values_of,
)
from .syntax import Arg, addressed_files, file_pieces
from .verbs import VERBS

_CURL = """
    o=w output=w O=g remote-name=g remote-name-all=g J=g remote-header-name=g output-dir=w K=R config=R T=r upload-file=r D=w
    dump-header=w c=w cookie-jar=w b=v cookie=v E=r cert=r key=r cacert=r capath=r trace=w trace-ascii=w trace-config=v
    stderr=w netrc-file=R netrc=g netrc-optional=g n=g libcurl=w etag-save=w etag-compare=r hsts=w alt-svc=w ssl-sessions=w
    crlfile=r pubkey=r pinnedpubkey=r random-file=r egd-file=r d=v data=v data-binary=v data-raw=v data-ascii=v
    data-urlencode=v json=v url-query=v F=v form=v form-string=v H=v header=v proxy-header=v X=v request=v A=v user-agent=v
    u=v user=v e=v referer=v m=v max-time=v connect-timeout=v retry=v retry-delay=v retry-max-time=v w=v write-out=v r=v
    range=v url=v engine=x z=r time-cond=r y=v Y=v limit-rate=v C=v continue-at=v U=v proxy-user=v oauth2-bearer=v
    x=h proxy=h preproxy=h proxy1.0=h socks4=h socks4a=h socks5=h socks5-hostname=h socks5-gssapi-service=v noproxy=v
    resolve=h connect-to=h doh-url=h dns-servers=h dns-interface=h dns-ipv4-addr=h dns-ipv6-addr=h interface=h
    unix-socket=r abstract-unix-socket=h ipfs-gateway=h haproxy-clientip=h location-trusted=g proto=v proto-default=h
    proto-redir=h P=h ftp-port=h Q=c quote=c prequote=c postquote=c t=c telnet-option=c variable=c next=g
    proxy-cert=r proxy-key=r proxy-cacert=r proxy-capath=r proxy-crlfile=r proxy-pinnedpubkey=r proxy-pass=v pass=v
    login-options=v sasl-authzid=v mail-from=v mail-rcpt=v mail-auth=v request-target=v aws-sigv4=v ciphers=v
    tls-max=v cert-type=v key-type=v max-filesize=v max-redirs=v keepalive-time=v local-port=v rate=v parallel-max=v
    expand-url=c expand-data=c expand-output=c expand-header=c expand-variable=c delegation=v krb=v ech=v vlan-priority=v
    speed-limit=v speed-time=v tftp-blksize=v create-file-mode=v happy-eyeballs-timeout-ms=v expect100-timeout=v
    location=n L=n silent=n s=n show-error=n S=n fail=n f=n head=n I=n include=n i=n insecure=n k=n get=n G=n verbose=n v=n
    compressed=n progress-bar=n parallel=n Z=n globoff=n g=n http1.1=n http2=n ipv4=n ipv6=n create-dirs=n no-buffer=n N=n
    data-raw=v proxytunnel=n p=n append=n a=n fail-with-body=n
"""
_WGET = """
    O=w o=w a=w P=w i=R e=x U=v t=v T=v w=v Q=v D=v A=v R=v l=v B=v b=n c=n N=n S=n q=n v=n d=n n=n k=n K=n E=n L=n np=n
    I=v X=v F=n r=g m=g p=g x=g H=g output-document=w output-file=w append-output=w directory-prefix=w input-file=R
    input-metalink=R execute=x config=R use-askpass=x post-file=r body-file=r load-cookies=r save-cookies=w user-agent=v
    tries=v timeout=v header=v method=v post-data=v body-data=v certificate=r private-key=r ca-certificate=r ca-directory=r
    crl-file=r egd-file=r random-file=r pinnedpubkey=r hsts-file=w warc-file=w warc-cdx=w warc-dedup=r warc-tempdir=w
    rejected-log=w dns-servers=h bind-address=h bind-dns-address=h recursive=g mirror=g page-requisites=g
    force-directories=g span-hosts=g content-disposition=g trust-server-names=g no-host-directories=n no-directories=n
    base=h domains=v accept=v reject=v level=v wait=v quota=v limit-rate=v user=v password=v ftp-user=v http-user=v
    http-password=v ftp-password=v proxy-user=v proxy-password=v referer=v default-page=v cut-dirs=v protocol-directories=g
    choose-config=R netrc=g spider=n no-clobber=n continue=n quiet=n no-verbose=n no-check-certificate=n no-proxy=n
    server-response=n timestamping=n inet4-only=n inet6-only=n retry-connrefused=n unlink=g preferred-location=h
    output-format=v plugin=x local-plugin=x http-proxy=h https-proxy=h
"""
_SCHEME = re.compile(r"\s*([A-Za-z][A-Za-z0-9+.-]*)://")
_PLAIN = frozenset({"http", "https", "ftp", "ftps", "file"})
_SEVERAL = re.compile(r"[{}]|\[(?!\]|[0-9a-fA-F:.%]*:[0-9a-zA-Z:.%]*\])")
_OUTPUT = re.compile(r"%output\{(?:>>)?([^}]*)", re.IGNORECASE)
_HEADERS = re.compile(r"headers=[@<]\"?([^;,\"]*)")

_AT_SIGN = frozenset(
    {"d", "data", "data-binary", "data-ascii", "json", "H", "header", "proxy-header", "b", "cookie", "w", "write-out"}
)  # fmt: skip
"""Options of curl whose value names a file after ``@``."""


def inspect_curl(args: Sequence[Arg], effects: CommandEffects) -> None:
    """``curl``: the files that it sends and writes, and options that make it connect to a host not in the address."""
    addresses: list[tuple[int, Arg]] = []
    every = _options(args, _CURL, effects)
    for found in every:
        value = found.value
        if value is None:
            continue
        if found.operand or found.name == "url":
            addresses.append((found.place, value))
        elif found.name in _AT_SIGN:
            effects.reads += [value.cut(1)] if value.text.startswith("@") else []
            if found.name in ("b", "cookie") and "=" not in value.text:
                effects.reads.append(value)
            for written in _OUTPUT.finditer(value.text if found.name in ("w", "write-out") else ""):
                effects.writes.append(WrittenFile(Arg(written.group(1), value.why)))
                effects.guard(found.place, "%output in what is printed writes a file")
        elif found.name in ("data-urlencode", "url-query"):
            name, at, _ = value.text.partition("@")
            effects.reads += [value.cut(len(name) + 1)] if at and "=" not in name else []
        elif found.name in ("F", "form"):
            effects.reads += _parts(value)
        elif found.name in ("E", "cert", "proxy-cert") and ":" in value.text:
            effects.reads.append(Arg(value.text.partition(":")[0], value.why))
        elif found.name in ("T", "upload-file") and _SEVERAL.search(value.text):
            effects.guard(found.place, f"{value.text} stands for several files")
        elif found.name == "proto" and "file" in value.text.lower():
            effects.guard(found.place, f"--proto {value.text} makes files of addresses")
    if names_of(every) & {"T", "upload-file"}:
        effects.writes += [WrittenFile(Arg(path, value.why)) for _, value in addresses for path in addressed_files(value.text)]
    default_is_file = any(value.text.lower() not in ("http", "https") for value in values_of(every, "proto-default"))
    _addresses(addresses, effects, default_is_file=default_is_file)


def _options(args: Sequence[Arg], table: str, effects: CommandEffects) -> list[CommandItem]:
    found = list(read_options(args, spec(table)))
    for option in found:
        take_option(option, effects, args)
        guard_telling_name(option, effects, args)
        if not option.operand and not option.role and option.value is not None:
            effects.possible_files.append(option.value)
    return found


def _addresses(found: Sequence[tuple[int, Arg]], effects: CommandEffects, *, default_is_file: bool) -> None:
    for count, (index, address) in enumerate(found):
        scheme = _SCHEME.match(address.text)
        if count:
            effects.guard(index, f"{address.text} is one more address than the first")
        if _SEVERAL.search(address.text):
            effects.guard(index, f"{address.text} stands for several addresses")
        if scheme and scheme.group(1).lower() not in _PLAIN:
            effects.guard(index, f"{scheme.group(1)} is neither HTTP nor FTP")
        if address.text.startswith("@"):
            effects.reads.append(address.cut(1))
            effects.guard(index, f"{address.text} is a file of addresses")
        if default_is_file and not scheme:
            path = address.text.partition("/")
            effects.reads += [address, Arg(f"/{path[2]}", address.why)]


def _parts(value: Arg) -> list[Arg]:
    """Return the files in one field of a form: ``a=@x,y;type=z``, ``a=<x``, ``a=b;headers=@x``."""
    content = value.text.partition("=")[2]
    found = [place.group(1) for place in _HEADERS.finditer(content)]
    if content[:1] in ("@", "<"):
        found += [content[1:], *re.split(r"[,;]", content[1:])]
    elif content[:1] == "(":
        return []
    cleaned = (text.strip().strip('"').replace("\\", "") for text in found)
    return [Arg(text, value.why) for text in dict.fromkeys((*found, *cleaned)) if text and text != "-"]


def inspect_wget(args: Sequence[Arg], effects: CommandEffects) -> None:
    """``wget`` writes a file with the last name in the address."""
    found = _options(args, _WGET, effects)
    letters = names_of(found)
    if letters & {"O", "output-document", "spider"}:
        return
    folders = [value.text for value in values_of(found, "P", "directory-prefix")]
    prefix = f"{folders[-1].rstrip('/')}/" if folders else ""
    for address in operands_of(found):
        name = address.text.partition("#")[0].rstrip("/").rpartition("/")[2]
        names = dict.fromkeys((name, name.partition("?")[0])) if "/" in address.text.partition("://")[2] else ("index.html",)
        effects.writes += [WrittenFile(Arg(f"{prefix}{one}", address.why)) for one in names if one]


# ---------------------------------------------------------------- stores of files

STORES: dict[str, frozenset[str]] = {
    name: frozenset(words.split())
    for names, words in {
        "aws": "s3",
        "gcloud": "storage scp submit deploy rsync",
        "gsutil s3cmd s5cmd s4cmd mc b2 azcopy rclone ossutil obsutil doctl": "",
        "az": "storage upload upload-batch deploy up webapp functionapp",
        "wrangler netlify vercel now firebase surge fly flyctl heroku railway": "",
        "croc wormhole ffsend transfer magic-wormhole ipfs dropbox gdrive": "",
    }.items()
    for name in names.split()
}
"""Programs that upload whole folders; if words are listed, only a command with one of them does."""

_STORE_OPTIONS = """
    region=v profile=v output=v endpoint-url=h exclude=v include=v acl=v sse=v sse-c=v sse-kms-key-id=v storage-class=v grants=v
    cache-control=v content-type=v content-encoding=v content-language=v metadata=v metadata-directive=v expires=v page-size=v
    cli-read-timeout=v cli-connect-timeout=v query=v project=v project-name=v account=v zone=v branch=v transfers=v checkers=v
    bwlimit=v log-level=v retries=v max-age=v min-age=v max-size=v min-size=v config=R log-file=w exclude-from=r include-from=r
    files-from=R filter-from=r filter=v message=v site=v auth=v token=v account-name=v account-key=v container-name=v a=v
"""
_DEEP = frozenset(
    {"sync", "rsync", "mirror", "copy", "move", "bisync", "download-batch", "-r", "-R", "--recursive", "--recurse"}
)
_VERBS = _DEEP | {"cp", "mv", "get", "cat", "copyto", "moveto", "compute", "storage"}
_BRINGS = frozenset({"download", "download-batch", "receive", "recv", "mount", "pull", "clone"})
_ELSEWHERE = re.compile(r"[\w.+-]+:|:\w")
_SUFFIX = re.compile(r"\*[^*?\[/\\]+")
"""Globs that all of these programs match against the end of a name, at any depth."""


def inspect_store(name: str, args: Sequence[Arg], effects: CommandEffects) -> None:
    """Record the folders that a program uploads, and the places that it downloads to.

    The words of the program are also tried as paths.
    """
    wanted = STORES[name]
    texts = {arg.text for arg in args}
    if wanted and not wanted & texts:
        return
    found = list(read_options(args, spec(_STORE_OPTIONS)))
    for option in found:
        if option.role in ("h", "R"):
            take_option(option, effects, args)
    chosen = values_of(found, "exclude", "include")
    effects.possible_files = [word for word in effects.possible_files if not any(word is glob for glob in chosen)]
    words = [piece for item in found if item.role != "v" and item.value is not None for piece in file_pieces(item.value)]
    remote = next((place for place, word in enumerate(words) if _ELSEWHERE.match(word.text)), len(words))
    if {word.text for word in words[:remote]} <= wanted | _VERBS:
        for goal in words[remote + 1 :]:
            effects.bulk_changes += [BulkChange(name, (words[remote],), goal)] if texts & _DEEP else []
            effects.writes.append(WrittenFile(path_in_folder(goal, words[remote])))
    else:
        without = [glob.text for glob in values_of(found, "exclude")]
        only = tuple(glob.text for glob in values_of(found, "include") if "*" in without)
        local = tuple(word for word in words if not _ELSEWHERE.match(word.text))
        effects.trees.append(Tree(name, local, only, without=tuple(filter(_SUFFIX.fullmatch, without)), links=True))
    if texts & _BRINGS:
        effects.guard(len(args) - 1, f"what {name} brings is not known before it runs")


def path_in_folder(folder: Arg, source: Arg) -> Arg:
    """Return the path at which a copy of the remote file `source` appears in `folder`."""
    name = re.split(r"[/:]", source.text)[-1]
    return Arg(f"{folder.text}/{name}", folder.why or source.why, tilde=folder.tilde)


def inspect_conversation(args: Sequence[Arg], effects: CommandEffects) -> None:
    """``sftp`` and similar programs read commands at run time, so the files that they transfer are unknown."""
    effects.guard_unseen(f"{args[0].text} reads its commands when it runs")
    effects.possible_files += [piece for arg in args[1:] for piece in file_pieces(arg)]


INSPECTORS: dict[str, Inspector] = {
    "curl": inspect_curl,
    **dict.fromkeys(("wget", "wget2"), inspect_wget),
    **dict.fromkeys(("sftp", "ftp", "lftp", "tftp", "ncftp", "smbclient", "telnet"), inspect_conversation),
}


_TABLE = """
docker podman nerdctl | build buildx:build image:build builder:build compose:build | docker build-context
docker-compose podman-compose | build | docker
buildah | bud build | docker build-context
fly flyctl | deploy | docker
npm pnpm | publish pack | npm
yarn | publish pack npm:publish | npm
bun | publish pm:pack | npm
cargo poetry pdm hatch flit vsce ovsx | publish | git
"""
"""``names | verbs | how and options``. How: which ignore files count. Operands and values of the options name the folders."""


_SENDERS = {name: (verbs.split(), *rest.split()) for name, verbs, rest in table_rows(_TABLE)}


def inspect_upload(name: str, args: Sequence[Arg], effects: CommandEffects) -> None:
    """Record the folders that a command of the table reads, to build from them or to publish them."""
    if name not in _SENDERS:
        return
    verbs, how, *options = _SENDERS[name]
    table = VERBS[name][1] if name in VERBS else " ".join(f"{one}=v" for one in options)
    found = list(read_options(args, spec(table)))
    verb, rest = _verb(verbs, operands_of(found))
    given = names_of(found)
    if not verb or given & {"help", "version"} or (how == "npm" and "dry-run" in given):
        return
    if "compose" in (name.rpartition("-")[2], verb.partition(" ")[0]):
        files = values_of(found, "f", "file")[:1]
        above = (Arg(file.text.rpartition("/")[0] or ".", file.why, tilde=file.tilde) for file in files)
        effects.trees.append(Tree(f"{name} {verb}", tuple(above)))
    else:
        named = [piece for arg in (*values_of(found, *options), *rest) for piece in file_pieces(arg)]
        effects.trees.append(_tree(f"{name} {verb}", cast("Follows", how), named, found))


def _verb(verbs: Sequence[str], words: Sequence[Arg]) -> tuple[str, list[Arg]]:
    """Return the verb of a command and the operands after it; an empty verb if it is not in the table."""
    for place in range(len(words)):
        for count in (2, 1):
            text = ":".join(one.text for one in words[place : place + count])
            if text in verbs:
                return text.replace(":", " "), list(words[place + count :])
    return "", []


def _tree(why: str, follows: Follows, roots: list[Arg], found: Sequence[CommandItem]) -> Tree:
    unsure = any(not item.operand and not item.role and item.value is None for item in found)
    if not roots or follows == "git" or (unsure and follows != "docker"):
        roots.append(Arg("."))
    if follows == "docker" and any(item.name in ("f", "file") for item in found):
        follows = "nothing"  # the ignore file beside that Dockerfile may count instead
    if follows == "npm":
        return Tree(why, tuple(roots), without=(".npmrc",), without_folders=("node_modules",), follows="npm", repository=True)
    return Tree(why, tuple(roots), follows=follows, repository=follows == "git")
