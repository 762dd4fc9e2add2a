"""Shapes of errors that every program words in its own way: a missing variable, a taken port, a name, a full disk.

They count only on lines that no table knows, and less than a known message.
"""

from __future__ import annotations

from functools import partial

from distcheck.explain.spelling import SHAPE, told
from distcheck.explain.spellings.names import WEB
from distcheck.explain.spellings.sockets import SERVICES

_ERRNO = "https://man7.org/linux/man-pages/man3/errno.3.html"
_RENDEZVOUS = "https://docs.pytorch.org/docs/stable/distributed.html#initialization"
_GETADDRINFO = "https://man7.org/linux/man-pages/man3/gai_strerror.3.html"
_WINSOCK = "https://learn.microsoft.com/windows/win32/winsock/windows-sockets-error-codes-2"
_SHELL = "https://www.gnu.org/software/bash/manual/html_node/Exit-Status.html"
_SSH = "https://man.openbsd.org/ssh"
_SIGNAL = "https://man7.org/linux/man-pages/man7/signal.7.html"
_ERRORS = "https://github.com/pytorch/pytorch/blob/main/torch/distributed/elastic/rendezvous/api.py"
_start = partial(told, about="start-up", weight=SHAPE, fallback=True)
_net = partial(told, about="network", weight=SHAPE, fallback=True)
_killed = partial(told, about="process killed", weight=SHAPE, fallback=True)

_NO_WARNING = r"^(?!.*\b(?:warn(?:ing)?|debug|retry(?:ing)?)\b).*"
_SERVER = r"(?:database|debugger|registry|dashboard|docker daemon|tracking server)"
_GOES_ON = r"(?!.*\b(?:using|trying|try) (?:port )?\d)"
_VARIABLE = r"\b(?-i:(?:LOCAL_|GLOBAL_|NODE_|GROUP_)?RANK|(?:LOCAL_)?WORLD_SIZE|MASTER_(?:ADDR|PORT)|NNODES)\b"
_HAS_DEFAULT = r"(?!.*(?:default|using|assum|fall))"
_MEMBERS = (
    r"\b(?:workers?|ranks?|nodes?|clients?|tasks?|process(?:es)?|peers?|members?|hosts?|agents?|participants?|pods?)\b"
)
_FAILED = r"\b(?:could ?n[o']t|can ?n[o']t|can't|fail(?:ed|s|ure)?(?: to| in)?|unable to|error(?: while)?|not)\b"
_MEETING = r"rendezvous|TCPStore|init_process_group|init_distributed|distributed[/.](?:init|launch)"
_MASTER = r"\b(?:master|(?:tcp)?store|rank ?0|coordinator|rendezvous|leader|scheduler|peer|remote|host|node)\b"
_ELSEWHERE = rf"{WEB}|{SERVICES}|https?://|ssh: "
_TOOL = r"(?:srun|sbatch|mpirun|mpiexec|torchrun|horovodrun|orted|prted|pdsh|ssh|kubectl|deepspeed|accelerate)"
_NO_TOOL = "launch-failed launch-probe-missing"
_NO_NODE = "launch-node-unreachable launch-failed"
_MISSING = "env-rank-missing net-master-unreachable torchrun-nnodes-mismatch"
_UNREACHABLE = "net-master-unreachable net-master-refused"
_UNRESOLVED = "env-master-addr-unresolvable host-own-name-unresolvable"
_TAKEN = "net-port-in-use net-port-in-use-by-peer-job"

SPELLINGS = (
    # Variables.
    *(
        _start(
            rf"{_VARIABLE}.{{0,60}}\b{words}\b{_HAS_DEFAULT}", "env-rank-unset env-local-rank-unset", source=_RENDEZVOUS
        )
        for words in (
            "not set",
            "not been set",
            "not defined",
            "undefined",
            "missing",
            "unset",
            "not found",
            "be set",
            "required",
            "not provided",
            "not specified",
            "not exist",
            "not available",
            "not initialized",
            "be specified",
            "be provided",
            "be defined",
        )
    ),
    *(
        _start(
            rf"\b{words}\b.{{0,60}}{_VARIABLE}{_HAS_DEFAULT}", "env-rank-unset env-local-rank-unset", source=_RENDEZVOUS
        )
        for words in (
            "missing",
            "not find",
            "please set",
            "not found",
            "must set",
            "cannot find",
            "need to set",
            "not read",
            "required",
        )
    ),
    # Ranks that do not come.
    *(
        _start(
            rf"{_NO_WARNING}\b{words}\b.{{0,80}}{_MEMBERS}.{{0,60}}\b(?:join|regist|connect|arriv|start|ready|come|up\b)",
            _MISSING,
            source=_RENDEZVOUS,
            unless=_ELSEWHERE,
        )
        for words in ("timed out", "timeout", "time out", "time-out")
    ),
    *(
        _start(
            rf"{_MEMBERS}.{{0,40}}\b(?:did|do|has|have|does|were|was)(?: not|n't)(?: been)? {verb}",
            _MISSING,
            source=_RENDEZVOUS,
            unless=_ELSEWHERE,
        )
        for verb in ("join", "register", "connect", "arrive", "report", "respond", "check", "start")
    ),
    _start(rf"\bonly \d+(?: ?(?:out )?of |/)\d+ {_MEMBERS}(?! (?:finish|complet|done))", _MISSING, source=_RENDEZVOUS),
    *(
        _net(
            rf"\b{name}\b",
            _MISSING,
            source=_ERRORS,
            unless=r"RendezvousClosed|RendezvousGracefulExit|Broken pipe|reset by peer",
        )
        for name in ("DistNetworkError", "DistStoreError", "RendezvousConnectionError", "RendezvousStateError")
    ),
    *(
        _net(rf"(?:Error|Exception)\b.*\b{words}\b", _MISSING, source=_RENDEZVOUS, trace=_MEETING, unless=_ELSEWHERE)
        for words in ("timed out", "timeout", "time out")
    ),
    # Ports.
    *(
        _net(rf"{_GOES_ON}{_NO_WARNING}\bport\b.{{0,60}}\b{words}\b", _TAKEN, source=_ERRNO, unless=SERVICES)
        for words in (
            "in use",
            "being used",
            "occupied",
            "is taken",
            "unavailable",
            "not available",
            "not free",
            "conflict",
            "is busy",
        )
    ),
    _net(rf"{_GOES_ON}\b(?:address|socket|endpoint|port)\b.{{0,40}}\bin use\b", _TAKEN, source=_ERRNO, unless=SERVICES),
    # Names.
    _net(
        rf"{_NO_WARNING}{_FAILED}.{{0,40}}\bresolv(?:e|ing)\b.{{0,60}}\b(?:host|name|address|dns|node|master)",
        _UNRESOLVED,
        source=_GETADDRINFO,
        unless=_ELSEWHERE,
    ),
    _net(
        r"\b(?:host|hostname|domain|node|server)(?: name)?\b.{0,60}\b(?:can ?not|could not|can't) be resolved",
        _UNRESOLVED,
        source=_GETADDRINFO,
        unless=_ELSEWHERE,
    ),
    _net(r"\bunknown host\b", _UNRESOLVED, source=_GETADDRINFO, unless=_ELSEWHERE),
    _net(r"\bgetaddrinfo\b.{0,60}(?:fail|error|:)", _UNRESOLVED, source=_GETADDRINFO, unless=_ELSEWHERE),
    _net(
        r"\bgethostby(?:name|addr)\b.{0,60}(?:fail|error)",
        "host-own-name-unresolvable net-hostname-loopback",
        source=_GETADDRINFO,
    ),
    *(
        _net(rf"\b{name}\b", _UNRESOLVED, source=_GETADDRINFO, unless=_ELSEWHERE)
        for name in ("EAI_NONAME", "EAI_AGAIN", "EAI_NODATA")
    ),
    _net(r"\bNXDOMAIN\b", _UNRESOLVED, source=_GETADDRINFO, unless=_ELSEWHERE),
    *(
        _net(rf"\bDNS {words}.{{0,40}}(?:fail|error|timed out)", _UNRESOLVED, source=_GETADDRINFO, unless=_ELSEWHERE)
        for words in ("resolution", "lookup", "query")
    ),
    # Connections.
    _net(
        rf"{_NO_WARNING}{_FAILED}.{{0,30}}\bconnect(?:ing)?\b.{{0,10}}\b(?:to|with)\b(?!.*\b{_SERVER}\b).{{0,60}}{_MASTER}",
        _UNREACHABLE,
        source=_ERRNO,
        unless=_ELSEWHERE,
    ),
    _net(r"\bECONNREFUSED\b", "net-master-refused net-master-unreachable", source=_ERRNO, unless=_ELSEWHERE),
    _net(r"actively refused", "net-master-refused net-master-unreachable", source=_WINSOCK, unless=_ELSEWHERE),
    _net(r"\bE(?:HOST|NET)UNREACH\b", _UNREACHABLE, source=_ERRNO, unless=_ELSEWHERE),
    _net(r"\bETIMEDOUT\b", _UNREACHABLE, source=_ERRNO, unless=_ELSEWHERE),
    _net(
        r"connected (?:party|host).{0,60}(?:did not properly respond|failed to respond)",
        _UNREACHABLE,
        source=_WINSOCK,
        unless=_ELSEWHERE,
    ),
    _net(r"\bconnect.{0,60}\bOperation timed out\b", _UNREACHABLE, source=_ERRNO, unless=_ELSEWHERE),
    _net(r"\bCan't assign requested address\b", "env-master-addr-not-rank0-host net-bind-failed", source=_ERRNO),
    _net(  # torch warns of a family that it tries first
        r"^(?!.*socket\.cpp:\d+\]).*Address family (?:for hostname )?not supported",
        "net-ipv4-ipv6-mixed",
        source=_ERRNO,
    ),
    # The launcher's tools, and other nodes.
    *(
        _start(rf"{_FAILED}.{{0,20}}\b{verb} ['\"`]?{_TOOL}(?![\w/.-])", _NO_TOOL, source=_SHELL)
        for verb in ("detect", "find", "locate", "execute", "launch", "invoke")
    ),
    *(
        _start(
            rf"(?<![\w/.-]){_TOOL}['\"`]? (?:command |executable |binary )?(?:is |was |does |could )?{words}",
            _NO_TOOL,
            source=_SHELL,
        )
        for words in ("not found", "not installed", "not available", "not exist", "not be found", "missing")
    ),
    *(
        _start(rf"(?<![\w.-])ssh\b.{{0,80}}\b{words}\b", _NO_NODE, source=_SSH)
        for words in ("denied", "refused", "unreachable", "timed out", "failed", "not reachable", "unable")
    ),
    *(
        _start(
            rf"\b(?:host|node|machine)s?\b.{{0,40}}\b(?:is|are|was|were) {words}\b",
            _NO_NODE,
            source=_SSH,
            unless=_ELSEWHERE,
        )
        for words in ("unreachable", "not reachable")
    ),
    # Files.
    _start(
        r"PermissionError: \[Errno 13\]",
        "storage-path-missing storage-read-only",
        source=_ERRNO,
        trace=r"os\.(?:chdir|listdir|scandir|getcwd)\(",
    ),
    _start(
        r"PermissionError: \[Errno 13\]",
        "storage-read-only storage-path-missing",
        source=_ERRNO,
        trace=r"\bmakedirs|mkdir\(|\bopen\(|save|write|os\.(?:rename|replace|remove)",
    ),
    *(
        _start(rf"Error: \[Errno \d+\] {words}", "storage-hangs storage-path-missing", source=_ERRNO)
        for words in (
            "Input/output error",
            "Remote I/O error",
            "Host is down",
            "Cannot send after transport endpoint",
            "Communication error on send",
            "Stale NFS",
        )
    ),
    # Signals.
    _killed(
        r"\bSIGKILL\b",
        source=_SIGNAL,
        unless=r"forcefully|SIGTERM|potential root causes",
        says="A process was ended by SIGKILL. Most often the host or its cgroup ran out of memory: look for OOM kills in the kernel log.",
    ),
)
