"""What scripts and frameworks check themselves, each in its own words: a missing launcher, hosts, interfaces, ranks that do not come.

Most count only on lines that no table knows, and less than a known message.
"""

from __future__ import annotations

from functools import partial

from distcheck.explain.spelling import CAUSE, LIKELY, SHAPE, SYMPTOM, told
from distcheck.explain.spellings.names import WEB
from distcheck.explain.spellings.sockets import SERVICES

_RENDEZVOUS = "https://docs.pytorch.org/docs/stable/distributed.html#initialization"
_C10D = "https://github.com/pytorch/pytorch/blob/main/torch/distributed/distributed_c10d.py"
_ERRNO = "https://man7.org/linux/man-pages/man3/errno.3.html"
_ENVIRON = "https://docs.python.org/3/library/os.html#os.environ"
_IDNA = "https://docs.python.org/3/library/codecs.html#module-encodings.idna"
_INT = "https://docs.python.org/3/library/functions.html#int"
_INTERFACE = "https://man7.org/linux/man-pages/man7/netdevice.7.html"
_SHELL = "https://www.gnu.org/software/bash/manual/html_node/Shell-Parameter-Expansion.html"
_NCCL = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"
_SRUN = "https://slurm.schedmd.com/srun.html#SECTION_OUTPUT-ENVIRONMENT-VARIABLES"
_TORCHRUN = "https://docs.pytorch.org/docs/stable/elastic/run.html"
_start = partial(told, about="start-up", weight=LIKELY)
_shape = partial(told, about="start-up", weight=SHAPE, fallback=True)
_UNSET = "env-rank-unset env-mpi-horovod-vars-only"
_LAUNCHED = r"\b(?:launch(?:ed|er|ing)?|torchrun|torch\.distributed\.(?:launch|run)|mpirun|srun)\b"
_NAMES = r"(?-i:(?:LOCAL_|GLOBAL_|NODE_|GROUP_)?RANK|(?:LOCAL_)?WORLD_SIZE|MASTER_(?:ADDR|PORT)|NNODES)"
_TAKEN = "net-port-in-use net-port-in-use-by-peer-job"
_NO_SRUN = "slurm-no-srun env-rank-unset"
_NO_RANKS = "env-world-size-zero-neg"
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
            _TAKEN,
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
    # Slurm's variables, outside a task of srun; a program that goes on with a default needs none.
    *(
        _shape(
            rf"\bSLURM_(?:PROCID|LOCALID|NTASKS|NODEID|N?NODES|NODELIST|JOB_NODELIST|STEP_\w+)\b.{{0,40}}\b{words}\b(?!.*\bdefault)",
            _NO_SRUN,
            source=_SRUN,
        )
        for words in (
            "not set",
            "not found",
            "missing",
            "undefined",
            "not defined",
            "is None",
            "unset",
            "not available",
        )
    ),
    *(
        _shape(
            rf"\b{words}\b.{{0,40}}\bSLURM_(?:PROCID|LOCALID|NTASKS|NODEID|N?NODES|NODELIST|JOB_NODELIST|STEP_\w+)\b",
            _NO_SRUN,
            source=_SRUN,
        )
        for words in ("missing", "not find", "cannot find", "please set")
    ),
    # Worlds of no rank, ports that cannot be, empty values.
    _shape(r"\bworld[_ ]?size\b.{0,40}\bpositive\b", _NO_RANKS, source=_C10D),
    _shape(
        r"\bworld[_ ]?size\b.{0,16}\bmust be (?:> ?0|>= ?1|greater than (?:0|zero)|at least (?:1|one)|non-?zero)",
        _NO_RANKS,
        source=_C10D,
    ),
    _shape(r"\bInvalid world[_ ]?size\W{0,3}(?:0\b|-\d)", _NO_RANKS, source=_C10D),
    _shape(r"\bInvalid (?:world_size|rank)\W{0,3}None\b", _UNSET, source=_C10D),
    _shape(r"\bport\b.{0,24}\bout of (?:range|bounds)\b", "env-master-port-range", source=_RENDEZVOUS),
    _shape(
        r"\binvalid port\b.{0,12}\b(?:\d{6,}|6[6-9]\d{3}|[7-9]\d{4})\b", "env-master-port-range", source=_RENDEZVOUS
    ),
    _start(
        r"too large to convert to C unsigned short",
        "env-master-port-range",
        source=_RENDEZVOUS,
        near=r"port|socket|TCPStore",
    ),
    _start(r"cannot be converted to type uint16_t without overflow", "env-master-port-range", source=_RENDEZVOUS),
    *(
        _shape(rf"{_NAMES}['\"`\]]*.{{0,30}}\b{words}\b", "env-empty-string env-rank-unset", source=_ENVIRON)
        for words in ("is empty", "has no value", "empty string", "is blank")
    ),
    # The values of NCCL's and Gloo's own variables.
    *(
        told(rf"\b{variable}\b.{{0,60}}\b{words}\b", rules, about="network", weight=SHAPE, fallback=True, source=_NCCL)
        for variable, rules in (
            (r"(?:N|R)CCL_SOCKET_IFNAME", "net-nccl-ifname-no-match net-nccl-ifname-syntax"),
            (r"(?:GLOO|TP)_SOCKET_IFNAME", "net-gloo-ifname-wrong"),
            (r"(?:NCCL_IB_HCA|UCX_NET_DEVICES|NVSHMEM_HCA_LIST|NVSHMEM_ENABLE_NIC_PE_MAPPING)", "ib-hca-no-match"),
        )
        for words in ("not found", "not exist", "not a valid", "invalid", "no such", "not match")
    ),
    told(
        r"\bmlx\d_\w+\b.{0,24}\b(?:was |is |could )?not (?:be )?found\b",
        "ib-hca-no-match ib-no-device-in-container",
        about="network",
        weight=SHAPE,
        fallback=True,
        source=_NCCL,
    ),
    # A server that cannot listen, by number or in words; a host name that means its own machine.
    told(
        r"OSError: \[Errno (?:98|48)\]",
        _TAKEN,
        about="network",
        weight=SHAPE,
        fallback=True,
        source=_ERRNO,
        unless=SERVICES,
    ),
    told(
        r"\b(?:unable to|failed to|cannot|could not|couldn't|can't) listen on\b(?! any local network)",
        "net-port-in-use net-bind-failed",
        about="network",
        weight=SHAPE,
        fallback=True,
        source=_ERRNO,
        unless=SERVICES,
    ),
    told(
        r"^(?!.*client socket).*\b127\.0\.1\.1\b.{0,60}Connection refused",
        "net-hostname-loopback host-own-name-unresolvable",
        about="network",
        weight=LIKELY,
        source=_INTERFACE,
        unless=SERVICES,
    ),
    # A variable that is None, in the code of a traceback's last line.
    _start(
        r"AttributeError: 'NoneType' object has no attribute",
        "env-rank-unset slurm-no-srun",
        source=_ENVIRON,
        trace=rf"(?:environ\.get|getenv)\(['\"](?:{_NAMES}|SLURM_\w+)['\"]\)\.[^\n]*\n(?:[ ~^]*\n)?[^\n]*$",
    ),
    _start(r"scontrol show hostnames? (?:None\b|['\"]?['\"]? ?\|)", _NO_SRUN, source=_SRUN),
    # Connections, with the words of errno after an address.
    *(
        told(
            rf"\bconnect(?:ing|ion)? to \S+.{{0,16}}[:(] ?{words}",
            rules,
            about="network",
            weight=SHAPE,
            fallback=True,
            source=_ERRNO,
            unless=rf"{WEB}|{SERVICES}|ssh: |curl: |https?://|NCCL WARN",
        )
        for words, rules in (
            ("Connection refused", "net-master-refused net-master-unreachable"),
            ("Connection timed out", "net-master-unreachable net-firewall-ephemeral"),
            ("No route to host", "net-master-unreachable net-firewall-ephemeral"),
            ("Network is unreachable", "net-master-unreachable net-ipv4-ipv6-mixed"),
        )
    ),
)
