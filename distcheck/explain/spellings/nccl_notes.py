"""What NCCL writes and then goes on: warnings that no job fails by, and the interfaces that it takes.

Each warning is followed by another value or another way in the source, in all releases from 2.3 to 2.30.
"""

from __future__ import annotations

from functools import partial

from distcheck.explain.spelling import CAUSE, HINT, LIKELY, NOISE, SYMPTOM, Spelling, told

_SRC = "https://github.com/NVIDIA/nccl/blob/master/src"
_ADJUSTED = "NCCL uses another value than the one that was set, and goes on."
_WITHOUT = "NCCL goes on without an optional library, plugin or file."


def _note(pattern: str, file: str, says: str = _WITHOUT, *, unless: str = "") -> Spelling:
    return told(pattern, about="network", weight=NOISE, source=f"{_SRC}/{file}", says=says, unless=unless)


_LOCAL = r"(?:lo|docker\d*|virbr\d*|cni\d*|lxcbr\d*)"
_WRONG = "net-nccl-picks-loopback-or-docker net-nccl-auto-wrong-iface"
_net = partial(told, about="network", weight=HINT)

SPELLINGS = (
    # beside other interfaces, or between nodes, NCCL takes the host's own only if NCCL_SOCKET_IFNAME asks for them
    _net(rf"Using \[0\]{_LOCAL}:\S+ \[1\]", _WRONG, source=f"{_SRC}/misc/socket.cc"),
    _net(
        rf"NET : Using interface {_LOCAL}:\d",
        _WRONG,
        source=f"{_SRC}/misc/socket.cc",
        near=r"NET : Using interface (?!lo:|docker|virbr|cni|lxcbr)\w",
    ),
    _net(
        rf"(?:Bootstrap|NET/Socket) : Using (?:\[0\])?{_LOCAL}:\d",
        _WRONG,
        source=f"{_SRC}/misc/socket.cc",
        near=r"\bnNodes (?:[2-9]|[1-9]\d)",
    ),
    # what NCCL retries, or leaves out
    _net(
        r"connect to (?:127\.|172\.1[78]\.|192\.168\.122\.)\S* returned .{1,60}, retrying \(",
        _WRONG,
        source=f"{_SRC}/misc/socket.cc",
    ),
    _net(
        r"connect to (?!127\.|172\.1[78]\.|192\.168\.122\.)\S+ returned .{1,60}, retrying \(",
        "net-nccl-auto-wrong-iface net-firewall-ephemeral",
        source=f"{_SRC}/misc/socket.cc",
    ),
    _net(
        r"Multicast memory .*Proceeding without NVLS support",
        "gpu-nvls-multicast-broken gpu-fabric-manager-down",
        about="start-up",
        source=f"{_SRC}/transport/nvls.cc",
    ),
    told(
        r"Unable to create thread context due to old driver",
        "sw-driver-too-old",
        about="GPU",
        weight=HINT,
        source=f"{_SRC}/proxy.cc",
    ),
    # the causes that NCCL 2.30 itself names: printIbWcStatusHint, printIbModifyQpHint, printMissingTopoDictValueHint
    _net(
        r"error occurs when ACS is enabled which would break GPU Direct",
        "gdr-acs-slow gdr-module-missing",
        weight=CAUSE,
        source=f"{_SRC}/transport/net_ib/common.h",
    ),
    _net(
        r"incorrect GID index is forced by NCCL_IB_GID_INDEX",
        "roce-gid-index-wrong roce-gid-subnet",
        weight=LIKELY,
        source=f"{_SRC}/misc/ibvwrap.cc",
    ),
    _net(
        r"missing or faulty information in the provided topology file",
        "nccl-topo-file-stale",
        about="start-up",
        weight=SYMPTOM,
        source=f"{_SRC}/graph/xml.h",
    ),
    _net(r"socket magic mismatch .*discarding", "net-nccl-socket-port-scan", source=f"{_SRC}/misc/socket.cc"),
    _net(r"External \w+ plugin \S+ is unsupported", "sw-plugin-abi", source=f"{_SRC}/plugin/net.cc"),
    _net(
        r"Could not enable P2P between dev",
        "collective-transport-fails perf-p2p-not-nvlink",
        about="GPU",
        source=f"{_SRC}/transport/p2p.cc",
    ),
    # settings
    _note(r"User asked for a (?:maximum|minimum) of \d+ channels", "graph/connect.cc", _ADJUSTED),
    _note(r"NCCL_M(?:AX|IN)_N(?:RINGS|CHANNELS) set to a value greater", "init.cc", _ADJUSTED),
    _note(r"NCCL_WORK_FIFO_\w+=\d+'? is (?:being ignored|too small)", "init.cc", _ADJUSTED),
    _note(r"NCCL_CGA_CLUSTER_SIZE value \d+ is too big", "enqueue.cc", _ADJUSTED),
    _note(r"(?:max|min)CTAs \d+ is larger than", "init.cc", _ADJUSTED),
    _note(r"splitShare \d+ is not a valid value", "init.cc", _ADJUSTED),
    _note(r"POLICY_EFFICIENCY are set in CTAPolicy", "init.cc", _ADJUSTED),
    _note(r"falling back to graphStreamOrdering=", "init.cc", _ADJUSTED),
    _note(r"NCCL_NET_MERGE_POLICY: unknown value", "graph/topo.cc", _ADJUSTED),
    _note(r"NCCL_SOCKET_NTHREADS is greater than the maximum", "transport/net_socket.cc", _ADJUSTED),
    _note(r"setting NCCL_NSOCKS_PERTHREAD to", "transport/net_socket.cc", _ADJUSTED),
    _note(r"Ignoring SHM locality, must be", "transport/shm.cc", _ADJUSTED),
    _note(r"\bPARAM: Duplicate (?:option|registration)", "param", _ADJUSTED),
    told(
        r"no device found matching NCCL_OOB_NET_IFNAME=\S+, ignoring",
        "net-nccl-ifname-no-match",
        about="network",
        weight=HINT,
        source=f"{_SRC}/bootstrap.cc",
    ),
    # ways that this machine does not have
    _note(r"CollNet is not supported or fails to initialize, ignoring", "graph/tuning.cc"),
    _note(r"CollNet currently only supports up to \d+ GPUs per node", "init.cc"),
    _note(r"Cannot initialize CollNet, using", "transport.cc"),
    _note(r"GDR Flush only supported on x86", "transport/net.cc"),
    _note(r"No NVML device handle\. Skipping", "graph/xml.cc"),
    _note(r"No NVML, trying to use CUDA instead", "graph/xml.cc"),
    _note(r"Unable to open \S+, not dumping topology", "graph/xml.cc"),
    _note(r"Profiler init failed with error", "misc/profiler.cc"),
    _note(r"Could not find real path of /sys/class/(?:net|infiniband)", "include/topo.h"),
    # symbols of a newer library, which are optional
    _note(r"dlv?sym failed on (?:ibv_|mlx5dv_|nvml)\w+", "misc/ibvwrap.cc"),
    _note(r"Failed to open libgdrapi\.so", "misc/gdrwrap.cc"),
    _note(r"GDRCOPY lib wrapper not initialized", "misc/gdrwrap.cc"),
    # the end
    _note(r"(?:munmap of|unlink) shared memory .*failed", "misc/shmutils.cc", "NCCL could not tidy up at its end."),
    # events of adapters that NCCL itself calls harmless
    _note(r"Got non-fatal async event: ", "transport/net_ib"),
    _note(r"NET/IB : \S+ unknown event type", "transport/net_ib"),
)
