"""Programs with verbs: which verbs a wildcard may cover, which run something, and what their options are.

A line of the table is ``names | verbs | options``. A verb with its other names is written ``install/i/add``. A verb after
``!`` runs or configures something that a rule does not show: only a rule for the whole command covers it. After a verb with
``*`` another command follows. A verb of a group is two words with a colon between. A verb that is not in the table is asked
about, unless a rule spells it out. The letters of options are those of :mod:`.effects`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from .effects import (
    CommandEffects,
    CommandItem,
    InnerCommand,
    Tree,
    guard_telling_name,
    note_messages,
    read_options,
    spec,
    table_rows,
    take_option,
)
from .syntax import Arg, file_pieces

_REGISTRY = "registry=h proxy=h https-proxy=h http-proxy=h noproxy=v local-address=h cafile=r ca=v key=v cert=v"
_NODE = f"""script-shell=x shell=x node-options=c {_REGISTRY} loglevel=v filter=v F=v w=n workspace=v tag=v otp=v access=v
    silent=n s=n json=n recursive=n r=n force=n f=n yes=n y=n dry-run=n quiet=n q=n verbose=n version=n help=n h=n offline=n
    prefer-offline=n production=n ignore-scripts=n no-audit=n no-fund=n if-present=n workspaces=n ws=n color=v global=g
    g=g"""
_PYTHON = """index-url=h i=g extra-index-url=h default-index=h publish-url=h check-url=h
    index=h find-links=h proxy=h trusted-host=h
    allow-insecure-host=h cert=r client-cert=r r=r requirement=r requirements=r constraint=r constraints=r build-constraint=r
    editable=r e=r target=w prefix=w root=w src=w cache-dir=w log=w report=w keyring-provider=g config-settings=c
    config-setting=c build-option=c global-option=c install-option=c quiet=n q=n verbose=n v=n help=n h=n version=n V=n
    no-cache-dir=n no-cache=n disable-pip-version-check=n offline=n no-input=n"""
_CONTAINER = """H=g host=h context=g c=g config=R tlscacert=r tlscert=r tlskey=r log-level=v l=n debug=n D=n tls=n
    tlsverify=n version=n help=n file=r f=r env-file=R project-directory=d project-name=v p=v profile=v ansi=v progress=v
    output=w o=w iidfile=w metadata-file=w cidfile=w secret=c ssh=g build-context=r input=r cache-to=g cache-from=v tag=v
    t=v build-arg=v platform=v url=g connection=g identity=r"""
_COMPOSE = (
    "up down ps logs build pull push start stop restart rm images top events port ls version kill pause unpause config "
    "convert wait watch stats create"
)
_PACKAGES = "o=x option=x c=R config-file=R config=R t=v target-release=v default-release=v y=n yes=n q=n quiet=n qq=n s=n"

_TABLE = f"""
npm |
    access audit bugs/issues cache ci/clean-install/ic/install-clean/isntall-clean completion dedupe/ddp deprecate diff
    dist-tag/dist-tags docs/home doctor explain/why find-dupes fund get help/hlep help-search
    install/i/in/ins/inst/insta/instal/isnt/isnta/isntal/isntall/add install-test/it
    install-ci-test/cit/clean-install-test/sit link/ln ls/list ll/la outdated pack ping pkg prefix prune publish query
    rebuild/rb repo restart root run-script/run/rum/urn sbom search/find/s/se shrinkwrap star stars start stop
    test/tst/t uninstall/un/unlink/remove/rm/r unpublish unstar update/up/upgrade/udpate version/verison
    view/info/show/v whoami !*exec/x !init/create/innit !config/c !set !explore !edit |
    {_NODE} -prefix=d C=d userconfig=R globalconfig=R cache=w git=x editor=x viewer=x browser=x node-gyp=x python=x
    init-module=c init.module=c onload-script=c call=c c=c reg=g replace-registry-host=h dist-url=h disturl=h nodedir=g
    pack-destination=w logs-dir=w tmp=w location=g L=g depth=v omit=v include=v before=v scope=v message=m m=m l=n long=n
    p=n parseable=n S=n save=n D=n save-dev=n O=n P=n E=n B=n a=n all=n audit-level=v d=n dd=n ddd=n progress=n
    no-progress=n no-color=n workspaces-update=n save-prefix=v
pnpm |
    install/i add remove/rm/uninstall/un update/up/upgrade list/ls/la/ll outdated why audit test/t/tst start run/run-script
    publish pack link/ln unlink import rebuild/rb prune fetch dedupe licenses store root bin build dev lint format typecheck
    check stop restart help version view/info/show init ci/clean-install !*exec !dlx !create !config/c !set !env !setup |
    {_NODE} C=d dir=d use-node-version=x pnpmfile=c global-pnpmfile=c store-dir=w modules-dir=w virtual-store-dir=w
    lockfile-dir=w global-dir=w cache-dir=w state-dir=w pack-destination=w workspace-root=n reporter=v workspace-concurrency=v
    frozen-lockfile=n D=n P=n
yarn |
    install add remove upgrade up list outdated why info audit test start run build dev lint format typecheck check pack
    publish version versions licenses link unlink help cache bin dedupe init import autoclean integrity
    !*exec !dlx !create !config !node !plugin !set !policies !workspace !workspaces !global |
    {_NODE} cwd=d use-yarnrc=R modules-folder=w cache-folder=w global-folder=w preferred-cache-folder=w link-folder=w
    filename=w out=w o=w mutex=v D=n dev=n
bun |
    install/i add/a remove/rm update outdated test link unlink audit why info publish build pm help
    !*run !*x !create/c !exec !repl !init !upgrade |
    {_NODE} e=c eval=c p=c print=c r=c preload=c import=c require=c config=R c=R cwd=d env-file=R define=v d=v loader=c l=c
    inspect=g outdir=w outfile=w target=v external=v
deno |
    fmt lint check test bench doc info cache types completions coverage outdated add remove compile task clean
    help !run !eval !repl !install/i !serve !x !upgrade !jupyter |
    A=g allow-all=g allow-run=g allow-ffi=g allow-read=g allow-write=g allow-net=g allow-env=g allow-import=g allow-sys=g
    unsafely-ignore-certificate-errors=g config=R c=R import-map=R import=c preload=c require=c env-file=R lock=r cert=r
    o=w output=w v8-flags=c inspect=g inspect-brk=g filter=v quiet=n q=n log-level=v L=v coverage=w junit-path=w
pip pip3 |
    install uninstall list show freeze check download wheel hash search index cache inspect debug completion help lock
    !config |
    {_PYTHON} f=g c=r C=c t=w d=w dest=w w=w wheel-dir=w python=x python-version=v platform=v abi=v implementation=v
    no-binary=v only-binary=v exists-action=v timeout=v retries=v group=v progress-bar=v format=v path=r exclude=v
pipx |
    install uninstall upgrade upgrade-all list inject uninject reinstall reinstall-all completions help
    !run !runpip !environment !ensurepath !interpreter |
    {_PYTHON} python=x pip-args=c suffix=v
uv |
    sync lock add remove tree export venv build publish cache version format audit help
    pip:install pip:uninstall pip:list pip:freeze pip:compile pip:sync pip:show pip:check pip:tree
    python:list python:find python:install python:pin python:dir python:uninstall init
    !*run !tool !x !self |
    {_PYTHON} directory=d project=d config-file=R env-file=R python=v p=v f=g output-file=w o=w extra=v group=v with=v
    package=v only-group=v no-group=v exclude-newer=v resolution=v prerelease=v color=v link-mode=v default-index=h
    python-preference=v python-version=v all-extras=n frozen=n locked=n dev=n no-dev=n
poetry |
    install add remove update lock build publish show check version init new export search help about list
    !*run !config !self !shell !env !source !cache |
    C=d directory=d project=d P=d with=v without=v only=v group=v G=v extras=v E=v output=w o=w format=v f=v source=v
    n=n no-interaction=n q=n quiet=n v=n vv=n vvv=n no-ansi=n ansi=n no-plugins=n no-root=n repository=h r=g
    username=v u=v password=v p=v cert=r client-cert=r
pipenv | install uninstall update upgrade sync lock graph check clean verify requirements audit help !*run !shell !open |
    {_PYTHON} pypi-mirror=h python=x dev=n d=n
pdm |
    install add remove update lock sync build publish list show info outdated export init search help
    !*run !config !plugin !self !shell !venv !use !cache !py !python |
    p=d project=d c=R config=R o=w output=w lockfile=w L=w dest=w d=w config-setting=c C=c repository=h q=n v=n G=v
    group=v override=r
hatch | build version test fmt clean dep status publish new project help !*run !shell !config !python !self !env |
    p=v project=v e=v env=v config=R data-dir=w cache-dir=w repo=g r=g q=n v=n t=v
rye | sync add remove lock build publish show list pin fetch init test lint fmt help !*run !tools !config !self !toolchain
    !install |
    pyproject=R repository=h repository-url=h q=n v=n out=w o=w
conda mamba micromamba |
    install create remove/uninstall update/upgrade list search info clean activate deactivate compare help
    env:list env:create env:export env:remove env:update !*run !config !init !shell !build !develop !package |
    n=v name=v p=w prefix=w c=g channel=h file=r f=r rc-file=R r=w root-prefix=w y=n yes=n q=n quiet=n json=n
    repodata-fn=g s=g cwd=d
cargo |
    build/b check/c test/t bench run/r doc/d clean update search publish package tree add remove/rm metadata fetch clippy
    fmt fix init new vendor generate-lockfile verify-project pkgid locate-project version help read-manifest info
    !install !uninstall !watch !config !rustc |
    config=c Z=c C=d manifest-path=r target-dir=w out-dir=w artifact-dir=w lockfile-path=w index=h registry=h root=w F=v
    features=v p=v package=v j=v jobs=v bin=v example=v test=v bench=v target=v profile=v exclude=v message-format=v
    color=v q=n quiet=n v=n vv=n verbose=n offline=n locked=n frozen=n V=n version=n h=n help=n list=n fix=n
go |
    build test vet fmt mod list doc version clean get install work fix help bug telemetry
    !run !generate !tool !env |
    -exec=x -toolexec=x -vettool=x -fixtool=x -overlay=R -modfile=R -C=d -o=w -p=v -mod=v -tags=v -ldflags=c -gccgoflags=c
    -asmflags=v -gcflags=v -compiler=c -coverprofile=w -cpuprofile=w -memprofile=w -blockprofile=w -mutexprofile=w -trace=w
    -outputdir=w -test.outputdir=w -run=v -bench=v -count=v -timeout=v -fuzz=v -pkgdir=w -buildmode=v -coverpkg=v
    -covermode=v -f=v -pgo=r -skip=v -parallel=v
docker podman nerdctl |
    build ps images pull push tag logs inspect info version rm rmi stop start restart kill stats top port pause unpause wait
    history search save load import rename diff events update manifest logout help
    {" ".join(f"compose:{verb}" for verb in _COMPOSE.split())} !compose:run !compose:exec !compose:cp !compose:attach
    container:ls container:list container:logs container:inspect container:stop container:start container:restart
    container:rm container:top container:stats container:kill container:pause container:unpause container:port
    container:prune container:wait container:diff container:rename
    image:ls image:list image:build image:pull image:push image:tag image:rm image:inspect image:history image:prune
    image:save image:load image:import volume:ls volume:list volume:inspect volume:rm volume:prune volume:create
    network:ls network:list network:inspect network:rm network:prune network:create network:connect network:disconnect
    system:df system:info system:prune system:events buildx:build buildx:ls buildx:inspect buildx:du builder:prune
    builder:build !run !exec !create !cp !context !plugin !config !attach !machine !unshare !container:run !container:exec
    !container:create !container:cp !container:attach |
    {_CONTAINER}
docker-compose podman-compose | {_COMPOSE} help !run !exec !cp !attach | {_CONTAINER}
kubectl oc |
    get describe logs apply delete create expose set rollout scale autoscale label annotate top cluster-info api-resources
    api-versions explain version diff wait auth patch replace drain cordon uncordon taint kustomize events completion help
    port-forward !exec !run !cp !debug !attach !edit !plugin !config !proxy |
    kubeconfig=R context=v cluster=v user=v n=v namespace=v s=g server=h token=v certificate-authority=r client-key=r
    client-certificate=r f=r filename=r k=r kustomize=r o=v output=v l=v selector=v as=v c=v container=v cache-dir=w
    log-file=w log-dir=w output-directory=w raw=r from-file=r from-env-file=r template=v patch-file=r p=v patch=v proxy-url=h
    A=n v=v request-timeout=v field-selector=v sort-by=v tail=v since=v all-namespaces=n env-file=r cert=r
gh |
    pr:list pr:ls pr:view pr:status pr:diff pr:checks pr:create pr:new pr:comment pr:edit pr:close pr:reopen pr:merge pr:ready
    pr:review pr:lock pr:unlock !pr:checkout !co issue workflow label search status api cache ruleset org project version help
    completion
    repo:view repo:list repo:create repo:fork repo:sync repo:rename repo:archive repo:set-default run:list run:view run:watch
    run:rerun run:cancel release:list release:view release:create release:edit release:upload gist:list gist:view gist:create
    !alias !extension/extensions/ext !codespace/cs !config !auth !secret !variable !ssh-key !gpg-key |
    R=v repo=v hostname=h body-file=r input=r notes-file=r T=v template=v q=v jq=v json=v t=m title=m b=m body=m B=v base=v
    H=v header=v F=v field=v f=v raw-field=v X=v method=v l=v label=v a=v assignee=v m=v milestone=v L=v limit=v s=v
    state=v S=v search=v web=g w=n p=v preview=v cache=v dir=w D=w output=w O=w recover=r editor=g e=n
gem |
    install uninstall list search info update outdated environment build contents dependency fetch specification stale
    cleanup check pristine which help !exec !open !sources !cert !server |
    config-file=R source=h s=g http-proxy=h p=g bindir=w n=w install-dir=w i=w v=v version=v trust-policy=v P=v
    file=r g=r clear-sources=g key=v k=v host=h output=w o=w build-root=w q=n V=n
bundle bundler |
    install/i update add remove check list/ls show outdated info lock clean platform help init package/pack cache version
    !*exec/e !config !open !console/c !plugin !binstubs !gem !doctor !inject !viz |
    gemfile=R path=w retry=v r=v jobs=v j=v without=v with=v group=v source=h binstubs=w standalone=w trust-policy=v
    P=v cache-path=w lockfile=w q=n V=n no-color=n verbose=n
composer |
    install/i update/u/upgrade require/r remove/rm/uninstall show/info outdated validate dump-autoload/dumpautoload status
    depends/why prohibits/why-not licenses search diagnose audit about check-platform-reqs fund suggests bump
    clear-cache/clearcache reinstall help list !*exec !run-script/run !global !config !create-project !archive
    !self-update/selfupdate !home/browse !repository/repo !init |
    d=d working-dir=d q=n quiet=n v=n vv=n vvv=n n=n no-interaction=n no-plugins=n no-scripts=n no-cache=n ansi=n no-ansi=n
    repository=h repository-url=h file=w f=v dir=w add-repository=g
systemctl |
    status list-units list-unit-files list-timers list-sockets list-jobs list-dependencies list-machines is-active is-enabled
    is-failed is-system-running show cat start stop restart reload enable disable reenable daemon-reload daemon-reexec
    try-restart reload-or-restart try-reload-or-restart mask unmask reset-failed get-default show-environment kill help
    !edit !link !set-environment !import-environment !set-property !revert !bind !mount-image |
    H=g host=h M=g machine=g root=g image=g t=v type=v p=v property=v n=v lines=v o=v output=v state=v s=v signal=v
    drop-in=g stdin=g user=n system=n no-pager=n all=n a=n l=n full=n q=n now=n plain=n no-legend=n
adb | devices version help start-server kill-server logcat get-state wait-for-device install uninstall push reconnect
    !shell !exec-out !exec-in !sideload !pull !forward !reverse !tcpip !connect | s=v t=v H=g P=g L=g d=n e=n a=g
hg |
    status/st diff log/history commit/ci add remove/rm !update/up/checkout/co !pull push branch branches tag tags summary/sum
    heads parents paths identify/id annotate/blame cat rename/mv/move copy/cp !revert !merge resolve incoming/in outgoing/out
    tip root manifest locate grep bookmarks/bookmark files forget phase verify version help !graft !backout !unshelve addremove
    !config/showconfig/debugconfig !bisect !serve !import/patch !export !archive !unbundle !bundle !extdiff !clone !init
    !rebase !histedit |
    config=c config-file=R cwd=d R=d repository=d repo=d e=x ssh=x remotecmd=x encoding=v I=v X=v include=v exclude=v m=m
    message=m l=v logfile=r r=v rev=v T=v template=v style=r o=w output=w tool=x t=v debugger=g pager=v profile=g u=v user=v
    d=v date=v q=n v=n y=n noninteractive=n branch=v b=v k=v keyword=v color=v
svn |
    status/st/stat diff/di log ls/list info add commit/ci !update/up !checkout/co !revert cat blame/praise/annotate/ann mkdir
    move/mv/rename/ren copy/cp delete/del/remove/rm resolve resolved !switch/sw cleanup !merge propget/pget/pg
    proplist/plist/pl help/h unlock lock mergeinfo changelist/cl
    !propset/pset/ps !propedit/pedit/pe !propdel/pdel/pd !patch !export !import !relocate !x-shelve !upgrade |
    diff-cmd=x diff3-cmd=x editor-cmd=x config-dir=R config-option=c F=r file=r targets=r encoding=v r=v revision=v m=m
    message=m c=v change=v l=v limit=v depth=v username=v password=v x=c extensions=c accept=v q=n v=n non-interactive=n
    trust-server-cert=g trust-server-cert-failures=g native-eol=v
ip |
    address addrlabel link neighbour/neighbor ntable route rule tunnel tuntap maddress mroute monitor token tcp_metrics stats
    xfrm help !netns !vrf |
    -batch=R b=R force=n -netns=g n=g -family=v f=v -stats=n -statistics=n s=n -brief=n -details=n d=n -oneline=n o=n -json=n
    j=n -pretty=n p=n -color=n c=n -resolve=n r=n -timestamp=n t=n -tshort=n -all=g a=g -rcvbuf=v -loops=v l=v -human=n
    h=n -iec=n -Version=n V=n 4=n 6=n 0=n M=n B=n -echo=n N=n -Numeric=n
brew |
    install uninstall/remove/rm reinstall list/ls search info/abv update upgrade outdated deps doctor cleanup leaves uses
    desc config pin unpin link unlink autoremove help !sh !ruby !irb !edit !tap !exec !bundle !create !extract |
    appdir=w fontdir=w q=n v=n
apt apt-get aptitude |
    install remove purge update upgrade full-upgrade dist-upgrade safe-upgrade autoremove autoclean clean list search show
    policy depends rdepends download check satisfy reinstall help why markauto hold unhold versions |
    {_PACKAGES} with-source=r a=v u=n V=n
apt-cache | policy show search depends rdepends madison pkgnames showpkg stats dump unmet showsrc help | {_PACKAGES}
dnf yum microdnf |
    install remove/erase update upgrade search info list check-update/check-upgrade clean autoremove repolist
    provides/whatprovides group deplist makecache reinstall downgrade repoquery history help |
    {_PACKAGES} setopt=c enablerepo=v disablerepo=v repo=v repofrompath=g installroot=w nogpgcheck=g releasever=v x=v
    exclude=v downloaddir=w destdir=w forcearch=v plugin=g setvar=c
apk | add del update upgrade search info list fix cache policy version stats verify audit dot |
    X=g repository=h root=w p=w allow-untrusted=g keys-dir=R repositories-file=R t=v virtual=v cache-dir=w force=g arch=v
    no-cache=n q=n U=n v=n
snap | install remove list find info refresh services start stop restart logs version changes tasks known warnings help
    !run !try !alias !set !connect !download !ack |
    dangerous=g devmode=g classic=g shell=g gdb=g
flatpak | install uninstall update list search info remotes history ps help !run !override !build !enter !config !remote-add |
    command=x from=r cwd=d env-fd=v installation=v filesystem=g
zypper | install/in remove/rm update/up search/se info/if refresh/ref list-updates/lu repos/lr patches/pch patch
    dist-upgrade/dup verify/ve clean/cc what-provides/wp ps help !shell/sh !addrepo/ar !source-install/si |
    c=R config=R R=w root=w installroot=w plus-repo=g p=g plus-content=v pkg-cache-dir=w cache-dir=w reposd-dir=R
    no-gpg-checks=g gpg-auto-import-keys=g D=w n=n non-interactive=n q=n v=n t=v type=v
port | install uninstall list search info outdated upgrade selfupdate sync installed contents deps variants version help
    !edit !shell !exec !cat !gohome !dir | D=d F=R
openssl |
    version x509 req rsa genrsa dgst enc rand pkey genpkey pkcs12 pkcs7 pkcs8 verify s_client ciphers ecparam ec asn1parse crl
    speed help list passwd prime base64 md5 sha1 sha256 sha384 sha512 dhparam dsa gendsa pkeyutl pkeyparam sess_id smime cms
    nseq rsautl spkac errstr kdf mac ocsp ts storeutl fipsinstall info !engine !s_server !ca |
    -in=r -out=w -keyout=w -writerand=w -rand=r -inkey=r -CA=r -config=R -pass=v -passin=v -passout=v -subj=v -days=v
    -kfile=r -engine=x -provider=c -provider-path=c -provider_path=c -key=r -cert=r -certfile=r -CAfile=r -CApath=r -CAkey=r
    -CAserial=w -CAcreateserial=g -sess_out=w -sess_in=r -keylogfile=w -connect=v -proxy=h -proxy_user=v -servername=v
    -name=v -addext=v -newkey=v -md=v -inform=v -outform=v -signature=r -sign=r -verify=r -prverify=r -data=r -untrusted=r
    -unix=r -host=v -port=v -signer=r -recip=r -content=r -extfile=R -extensions=v -force_pubkey=r -pubin=n -K=v -iv=v -S=v
    -macopt=v -sigopt=v -pkeyopt=v -certsout=w -certsin=r -peerkey=r -algorithm=v -paramfile=r -file=r -noout=n -text=n
dotnet | build restore clean publish pack list add remove format new sln workload help nuget
    !exec !run !test !msbuild !tool !script !fsi !vstest !watch !store !user-secrets !dev-certs |
    o=w output=w configfile=R s=g source=h logger=c l=c bl=w c=v configuration=v f=v framework=v r=v runtime=v v=v
    verbosity=v additionalprobingpath=c additional-deps=c depsfile=R runtimeconfig=R packages=w artifacts-path=w
    roll-forward=v fx-version=v info=n version=n
"""

VERBS: dict[str, tuple[str, str]] = {name: (words, options) for name, words, options in table_rows(_TABLE)}
"""Name → its verbs and its options, as written in the table."""


class Verbs(NamedTuple):
    """The verbs of a program, by each of their names.

    :ivar ordinary: name → canonical name, which is two words for a verb of a group.
    :ivar running: the same, for verbs that run or configure something that a rule does not show.
    :ivar runners: the canonical names of verbs after which another command follows.
    """

    options: str
    ordinary: dict[str, str]
    running: dict[str, str]
    runners: frozenset[str] = frozenset()

    @property
    def groups(self) -> frozenset[str]:
        """The first words of verbs that are two words."""
        return frozenset(name.partition(" ")[0] for name in (*self.ordinary, *self.running) if " " in name)


@cache
def verbs_of(name: str) -> Verbs:
    """Return the verbs of the program `name`. Reading the whole table would take 2 ms, and most commands need none of it."""
    words, options = VERBS[name]
    ordinary: dict[str, str] = {}
    running: dict[str, str] = {}
    runners: set[str] = set()
    for word in words.split():
        names = word.lstrip("!*").replace(":", " ").split("/")
        (running if word.startswith("!") else ordinary).update(dict.fromkeys(names, names[0]))
        if "*" in word:
            runners.add(names[0])
    return Verbs(options, ordinary, running, frozenset(runners))


ABBREVIATES = frozenset({"ip"})
"""Programs whose verbs people abbreviate: an abbreviation that only ordinary verbs have is ordinary."""

SYSTEM = frozenset(
    {
        "systemctl", "adb", "ip", "brew", "apt", "apt-get", "aptitude", "apt-cache", "dnf", "yum", "microdnf", "apk", "snap",
        "flatpak", "zypper", "port", "openssl", "kubectl", "oc", "pip", "pip3", "pipx", "gem", "gh",
    }
)  # fmt: skip
"""Programs that read nothing from the folder they run in."""


_CODE = re.compile(r"\A[^-].*\.(?:py|[cm]?[jt]sx?|go|rb|sh|pl|lua|php|rs|kts?)\Z", re.DOTALL)
"""Names of files of code."""


class VerbMeaning(NamedTuple):
    """The verb of a command, and what it may mean.

    :param places: the indexes of its words; empty when there is no verb.
    :param known: it is written in full, as in the table.
    :param forms: the canonical names of the verbs that it is or abbreviates.
    """

    places: tuple[int, ...]
    known: bool
    forms: tuple[str, ...]


def inspect_verbs(name: str, args: Sequence[Arg], effects: CommandEffects) -> None:
    """Fill in the effects of a command of a program that has verbs."""
    table = verbs_of(name)
    effects.known = True
    effects.reads_here = name not in SYSTEM
    found = list(read_options(args, spec(table.options)))
    meant = _find_verb(table, args, found)
    running = [form for form in meant.forms if form in table.running.values()]
    _options(args, effects, found, meant, runs=any(form in table.runners for form in running))
    if meant.known and not running:
        note_messages(found, args, effects)
    if not meant.places:
        return
    shown = " ".join(args[place].text for place in meant.places)
    if running:
        effects.runs += [arg for arg in args[meant.places[-1] + 1 :] if arg.static and _CODE.search(arg.text)][:1]
        runners = [form for form in running if form in table.runners]
        start = _run(name, args, meant.places[-1], found, effects) if runners else 0
        end = start - 1 if start and runners == running else len(args) - 1  # the inner command is judged separately
        effects.guard(end, f"{name} {shown} runs or configures what the rule does not show")
    elif not meant.known and not (meant.forms and name in ABBREVIATES):
        effects.guard(meant.places[-1], f"{shown!r} is not a verb of {name} that is known here")
    last = meant.places[-1]
    for form in meant.forms:
        words = (args[0], *map(Arg, form.split()), *args[last + 1 :])
        if [word.text for word in words] != [arg.text for arg in args]:
            effects.views.append(words)


def _find_verb(table: Verbs, args: Sequence[Arg], found: Sequence[CommandItem]) -> VerbMeaning:
    """Return the verb of a command: its first operand, or its first two in a group."""
    places = [item.place for item in found if item.operand][:1]
    if places and args[places[0]].text in table.groups:
        places += [item.place for item in found if item.operand][1:2]
    text = " ".join(args[place].text for place in places)
    every = {**table.ordinary, **table.running}
    if text in every:
        return VerbMeaning(tuple(places), True, (every[text],))
    forms = dict.fromkeys(form for verb, form in every.items() if text and verb.startswith(text))
    group_alone = text in table.groups
    return VerbMeaning(tuple(places), group_alone, () if group_alone else tuple(forms))


def _options(
    args: Sequence[Arg], effects: CommandEffects, found: Sequence[CommandItem], meant: VerbMeaning, *, runs: bool
) -> None:
    """Record the effects of the options, up to an inner command after the verb."""
    verb = meant.places[-1] if meant.places else len(args)
    for item in found:
        if item.operand:
            if runs and item.place > verb:
                return
            continue
        take_option(item, effects, args)
        guard_telling_name(item, effects, args)
        if item.name == "from-file" and item.value is not None:
            effects.trees.append(Tree(f"{args[0].text} --from-file", tuple(file_pieces(item.value)), depth=1))
        if not item.role and item.place < verb and meant.places:
            shown = args[item.place].text
            effects.guard(item.place, f"{args[0].text} {shown} is not known here, nor whether the next word is its value")


def _run(name: str, args: Sequence[Arg], verb: int, found: Sequence[CommandItem], effects: CommandEffects) -> int:
    """Record the words after ``exec`` or ``run`` as a command; return the index at which it begins at the latest.

    It is not known which options in between take a value, so each possible beginning is judged.
    """
    plain = next((index for index in range(verb + 1, len(args)) if not args[index].text.startswith("-")), None)
    after = next((item.place for item in found if item.operand and item.place > verb), None)
    starts = [index for index in dict.fromkeys((plain, after)) if index is not None]
    effects.inner += [InnerCommand(tuple(args[index:])) for index in starts]
    if plain is not None and args[plain].text.endswith(".py"):
        effects.guard(plain, f"{name} runs the code in {args[plain].text}")
    return max(starts, default=0)
