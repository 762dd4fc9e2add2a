"""What scripts and frameworks check themselves, each in its own words: a missing launcher, hosts, interfaces, ranks that do not come.

Most count only on lines that no table knows, and less than a known message.
"""

from __future__ import annotations

from functools import partial

from distcheck.cli.joblog.spelling import CAUSE, LIKELY, SHAPE, SYMPTOM, told
from distcheck.cli.joblog.spellings.names import WEB
from distcheck.cli.joblog.spellings.sockets import SERVICES

_RENDEZVOUS = "https://docs.pytorch.org/docs/stable/distributed.html#initialization"
_C10D = "https://github.com/pytorch/pytorch/blob/main/torch/distributed/distributed_c10d.py"
_ERRNO = "https://man7.org/linux/man-pages/man3/errno.3.html"
_ENVIRON = "https://docs.python.org/3/library/os.html#os.environ"
_IDNA = "https://docs.python.org/3/library/codecs.html#module-encodings.idna"
_INT = "https://docs.python.org/3/library/functions.html#int"
_INTERFACE = "https://man7.org/linux/man-pages/man7/netdevice.7.html"
_SHELL = "https://www.gnu.org/software/bash/manual/html_node/Shell-Parameter-Expansion.html"
_TORCHRUN = "https://docs.pytorch.org/docs/stable/elastic/run.html"
_start = partial(told, about="start-up", weight=LIKELY)
_shape = partial(told, about="start-up", weight=SHAPE, fallback=True)
_UNSET = "env-rank-unset env-mpi-horovod-vars-only"
_LAUNCHED = r"\b(?:launch(?:ed|er|ing)?|torchrun|torch\.distributed\.(?:launch|run)|mpirun|srun)\b"
_NAMES = r"(?-i:(?:LOCAL_|GLOBAL_|NODE_|GROUP_)?RANK|(?:LOCAL_)?WORLD_SIZE|MASTER_(?:ADDR|PORT)|NNODES)"
_MASTER = r"(?:MASTER_ADDR|master|coordinator|endpoint|init_method)"

SPELLINGS = (
    # No launcher.
    _start(rf"(?:Error|Exception)\b.{{0,80}}\brequires? (?:a |an |the )?{_LAUNCHED}", _UNSET, source=_TORCHRUN),
    *(
        _shape(words, _UNSET, source=_ENVIRON)
        for words in (
            rf"\bCould ?n[o']t find ['\"`]?{_NAMES}",
            rf"Error\b.*{_NAMES}['\"`\]]* is None\b",
            r"Error\b.*\b(?:rank|world_size)\b.{0,30}\bmust be (?:set|specified|provided|given)\b",
            r"Error\b.*\b(?:rank|world_size)\b.{0,30}\bshould be (?:set|specified|provided|given)\b",
            r"Error: .{0,60}\b(?:indicate|specify|provide|pass) (?:the |a |your )?(?:global )?rank\b.{0,20}explicitly",
            r"\b(?:determine|infer|detect|find) (?:the |a )?(?:global |process |world )?rank\b.{0,40}environment",
        )
    ),
    *(
        told(
            words,
            "env-master-addr-localhost-multinode",
            about="network",
            weight=SHAPE,
            fallback=True,
            source=_RENDEZVOUS,
        )
        for words in (
            rf"{_MASTER}\b.{{0,60}}\blocalhost\b.{{0,60}}\b(?:multi|n?nodes|machines)",
            rf"{_MASTER}\b.{{0,60}}\bloopback\b.{{0,60}}\b(?:multi|n?nodes|machines)",
            r"(?:use|using|with) localhost\b.{0,60}\b(?:multi-?node|multiple (?:nodes|machines|hosts))",
        )
    ),
    _shape(
        r"\bMASTER_ADDR\b.{0,40}\b(?:invalid|not a valid|must not|malformed|should not contain)",
        "env-master-addr-format",
        source=_RENDEZVOUS,
    ),
    _start(r"UnicodeError: label (?:empty or )?too long", "env-master-addr-format", source=_IDNA, unless=WEB),
    _start(  # torchrun's options, which come from variables of the start script
        r"argument \S*--?(?:node[-_]rank|master[-_](?:addr|port)|machine_rank|rdzv[-_]endpoint)\b\S*: (?:expected one argument|invalid int value: ['\"]{2})",
        "env-empty-string env-rank-unset",
        weight=CAUSE,
        source=_TORCHRUN,
    ),
    _start(r"\d\(x\d+\).{0,40}\bsyntax error", "env-not-integer", source=_SHELL),
    _start(r"could not convert string to float: '\d+\(x\d", "env-not-integer", source=_INT),
    # Interfaces.
    *(
        told(
            words,
            "net-gloo-ifname-wrong net-nccl-ifname-no-match",
            about="network",
            weight=weight,
            source=_INTERFACE,
            trace=trace,
        )
        for words, weight, trace in (
            (
                r"Error: \[Errno 19\] No such device",
                LIKELY,
                r"0x8915|SIOCGIFADDR|if_nametoindex|ifname|interface|[Gg]loo",
            ),
            (r"Error: \[Errno 99\] Cannot assign requested", CAUSE, r"0x8915|SIOCGIFADDR"),
            (r"^Device \"[\w.-]+\" does not exist", SYMPTOM, ""),
            (r"error fetching interface information", SYMPTOM, ""),
            (
                r"\binterface ['\"`]?(?!was|is\b|could|does|not\b)\w[\w.-]*['\"`]? (?:is |was |could )?not (?:be )?found",
                SHAPE,
                "",
            ),
            (r"\binterface ['\"`]?(?!was|is\b|could|does|not\b)\w[\w.-]*['\"`]? (?:does|do|did) not exist", SHAPE, ""),
            (
                r"(?:could not|unable to|failed to|cannot) find (?:a |the |any )?(?:network |valid |suitable )*interface\b(?! found)",
                SHAPE,
                "",
            ),
        )
    ),
    # Ranks that do not come.
    _shape(
        r"\btimed out waiting for (?:all |the |other )*(?:workers|ranks|nodes|peers|processes|tasks|clients|hosts|agents)\b",
        "env-rank-missing net-master-unreachable torchrun-nnodes-mismatch",
        source=_C10D,
        unless=r"DataLoader|dataloader|multiprocessing/",
    ),
    # A server that cannot listen.
    told(
        r"\b(?:unable to|failed to|cannot|could not|couldn't|can't) bind (?:to |on )?(?:the |a )?(?:server |listen\w* )?(?:port|address|socket)\b",
        "net-port-in-use net-bind-failed",
        about="network",
        weight=SHAPE,
        fallback=True,
        source=_ERRNO,
        unless=SERVICES,
    ),
    # In Chinese.
    *(
        told(
            words,
            "net-port-in-use net-port-in-use-by-peer-job",
            about="network",
            weight=SHAPE,
            fallback=True,
            source=_ERRNO,
        )
        for words in ("端口已被占用", "端口被占用", "端口已经被占用", "端口已被使用")
    ),
    *(
        _shape(rf"{words}.{{0,12}}{_NAMES}", _UNSET, source=_ENVIRON)
        for words in ("未设置环境变量", "没有设置环境变量", "缺少环境变量", "请设置环境变量")
    ),
)
