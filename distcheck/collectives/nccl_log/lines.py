"""The lines of NCCL's log with facts: their format by version, and what is taken."""

from __future__ import annotations

import re

from distcheck.collectives.nccl_log.reading import LONGEST, LogReading, line
from distcheck.facts.nccl import NcclGraph

_PATTERNS = {1: "tree", 2: "tree", 3: "tree", 4: "ring", 5: "nvls", 6: "collnet"}
_ALGORITHMS = ("TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT")
_PROTOCOLS = ("LL", "LL128", "SIMPLE")
_SPELT = {"NVLSTREE": "NVLS_TREE", "COLLNETDIRECT": "COLLNET_DIRECT", "COLLNETCHAIN": "COLLNET_CHAIN"}
_WORD_ENDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_NUMBER = r"\d{1,15}(?:\.\d{1,12})?"


@line(
    r"(?:Coll(?:Net)?|Channel) \d+(?:/\d+)? : ",
    r"(?:(?P<first>\d{1,9})\[[0-9a-f]+\] -> (?P<second>\d{1,9})\[[0-9a-f]+\]|\d+)(?: \[(?:send|receive)\])? via ",
    r"(?P<via>P2P/(?:IPC|CUMEM|MNNVL|direct pointer)(?:/read)?(?:/CE)?|P2P/indirect/\S+|direct shared memory",
    r"|SHM/(?:direct|CE)(?:/(?:direct|CE))?",
    r"|(?:NET|COLLNET)/[\w .+-]{1,64}/\d+(?:\(\d+\))?(?:/GDRDMA(?:\(PCI\))?)?(?:/Shared)?)",
)
def _connection(reading: LogReading, match: re.Match[str]) -> None:
    """src/transport/{p2p,shm,net,coll_net}.cc.

    "direct shared memory" until 2.12; a PXN proxy is in parentheses.
    """
    if reading.other:
        return
    via = match["via"].replace("direct shared memory", "SHM/direct")
    via = re.sub(r"/indirect/.*", "/indirect", re.sub(r"(?<=\d)\(\d+\)", "", via))
    reading.counts[via] += 1
    if match["first"] is not None:
        ends = (int(match["first"]), int(match["second"]))
        me = reading.rank
        if me in ends:
            reading.peers.setdefault(via.partition("/")[0], set()).add(ends[1] if ends[0] == me else ends[0])


@line(
    r"(?:(?P<op>[A-Z]\w{1,30}): )?(?P<bytes>\d{1,18}) Bytes -> Algo (?P<algo>\w{1,20}) proto (?P<proto>\w{1,10})",
    r"(?: time \S+| channel\{Lo\.\.Hi\}=\{\d+\.\.\d+\})",
)
def _algorithm(reading: LogReading, match: re.Match[str]) -> None:
    """src/enqueue.cc, by rank 0.

    Numbers without the operation from 2.20, the operation from 2.23, names from 2.24.
    """
    words = ((match["algo"], _ALGORITHMS), (match["proto"], _PROTOCOLS))
    used = "/".join(
        names[int(word)] if re.fullmatch(r"[0-9]", word) and int(word) < len(names) else _spelt(word)
        for word, names in words
    )
    _used(reading, match["op"], match["bytes"], used)


@line(
    r"(?P<op>[A-Z]\w{1,30}) \[(?:Symmetric|Copy Engine|Hierarchical CE)\]: (?P<bytes>\d{1,18}) Bytes -> ",
    r"(?:Kernel (?P<kernel>\w{1,60}) .*|cudaMemcpy.*|RMA proxy.*)",
)
def _kernel(reading: LogReading, match: re.Match[str]) -> None:
    """src/scheduler/symmetric_sched.cc from 2.27, src/ce_coll.cc from 2.29.

    For buffers registered as symmetric.
    """
    used = f"SYMMETRIC/{match['kernel']}" if match["kernel"] else "COPY ENGINE"
    _used(reading, match["op"], match["bytes"], used)


def _used(reading: LogReading, op: str | None, size: str, used: str) -> None:
    """Note what an operation used; several if it varied, which the data type may cause."""
    key = f"{_snake(op)} {int(size)}" if op else str(int(size))
    before = reading.maps.get("algorithms", {}).get(key, "")
    if used not in before.split(", ") and before.count(", ") < 3:
        reading.put("algorithms", key, f"{before}, {used}" if before else used)


def _snake(name: str) -> str:
    return _WORD_ENDS.sub("_", name).lower()


def _spelt(name: str) -> str:
    upper = name.upper()
    return _SPELT.get(upper, upper)


@line(
    r"comm \S+ rank (?P<rank>\d{1,9}) nRanks (?P<ranks>\d{1,9}) nNodes (?P<nodes>\d{1,9}) ",
    r"localRanks (?P<local>\d{1,9}) localRank \d+(?: MNNVL (?P<mnnvl>\d+))?",
)
def _nodes(reading: LogReading, match: re.Match[str]) -> None:
    """src/init.cc from 2.20."""
    _begin(reading, match)
    if not reading.other:
        reading.first("nodes", int(match["nodes"]))
        reading.first("local_ranks", int(match["local"]))
        reading.first("mnnvl", match["mnnvl"] not in {None, "0"})


@line(
    r"(?:\[Rank \d+\] )?(?:\w+ )?comm \S+ rank (?P<rank>\d{1,9}) nranks (?P<ranks>\d{1,9}) ",
    r".*- Init (?:START|COMPLETE)",
)
def _begin(reading: LogReading, match: re.Match[str]) -> None:
    """src/init.cc, START from 2.18; the first communicator is the job's."""
    rank, ranks = int(match["rank"]), int(match["ranks"])
    if reading.rank is None:
        reading.rank = rank
    reading.first("ranks", ranks)
    reading.other = (rank, ranks) != (reading.rank, reading.told["ranks"])


@line(
    r"Pattern (\d{1,3}), crossNic \d+, nChannels (\d{1,4}), (?:bw|speed) ",
    rf"({_NUMBER})/({_NUMBER}), type (\w+)/\w+, sameChannels \d+",
)
def _graph(reading: LogReading, match: re.Match[str]) -> None:
    """src/graph/search.cc; "speed" until 2.12; pattern numbers are in src/include/graph.h."""
    name = _PATTERNS.get(int(match[1]))
    if name is None or reading.other or any(graph.pattern == name for graph in reading.lists.get("graphs", ())):
        return
    reading.append("graphs", NcclGraph(name, int(match[2]), float(match[3]), float(match[4]), match[5]))


@line(r"\d{1,4} coll channels,(?: \d+ collnet channels,)? (\d{1,4}) nvls channels, \d+ p2p channels, .*")
def _channels(reading: LogReading, match: re.Match[str]) -> None:
    """src/init.cc; with nvls channels from 2.17."""
    reading.first("nvls_channels", int(match[1]))


@line(r"NVLS multicast support is (not )?available on dev \d+.*")
def _multicast(reading: LogReading, match: re.Match[str]) -> None:
    """src/transport/nvls.cc from 2.17."""
    reading.first("nvls_available", match[1] is None)


@line(r"Using network (.+)")
def _network(reading: LogReading, match: re.Match[str]) -> None:
    """src/init.cc: the name of the transport that was taken, IB and Socket being NCCL's own."""
    reading.first("network", match[1].strip()[:LONGEST])


@line(r"NET/IB : Using (.+?) ?; OOB .*")
def _ib_devices(reading: LogReading, match: re.Match[str]) -> None:
    """src/transport/net_ib.cc: [0]mlx5_0:1/IB.

    HPC-X's plugin adds /SHARP, and 2.30 rail and plane.
    """
    for device in re.findall(r"\[\d+\]([^\s;]+)", match[1]):
        reading.append("ib devices", device)


@line(r"NET/Socket : Using (.+)")
def _socket_devices(reading: LogReading, match: re.Match[str]) -> None:
    """src/transport/net_socket.cc: [0]eth0:10.0.0.1<0>."""
    for device in re.findall(r"\[\d+\]([^\s:]+):", match[1]):
        reading.append("socket devices", device)


@line(r"NET/IB : No device found\.")
def _no_ib(reading: LogReading, _match: re.Match[str]) -> None:
    """src/transport/net_ib.cc."""
    reading.first("no_ib_device", value=True)


@line(r"NET/[^:]+: GPU Direct RDMA (Enabled|Disabled) for HCA \d+ '([^']{1,64})'.*")
def _gdr_device(reading: LogReading, match: re.Match[str]) -> None:
    """src/transport/net_ib.cc until 2.12, and only where it is not; src/graph/topo.cc since."""
    reading.put("gdr_devices", match[2], match[1] == "Enabled")


@line(r"GPU Direct RDMA Disabled for GPU.*")
def _gdr_refused(reading: LogReading, match: re.Match[str]) -> None:
    """src/graph/paths.cc; a TRACE since 2.30."""
    reading.first("gdr_refused", match[0][:LONGEST])


@line(
    r"(?P<kind>NET|TUNER)/Plugin ?: (?:Loaded (?P<what>net|collnet|coll) plugin|Using tuner plugin|Using) ",
    r"(?P<name>(?!internal ).+)",
)
def _loaded(reading: LogReading, match: re.Match[str]) -> None:
    """src/misc/socket.cc, src/net.cc, src/plugin/{net,tuner}."""
    if match["what"] in {None, "net"}:
        reading.append("plugins", f"{match['kind']} {match['name'][:LONGEST]}")


@line(r"Successfully loaded external (network|tuner) plugin (.+)")
def _loaded_from(reading: LogReading, match: re.Match[str]) -> None:
    """src/plugin/{net,tuner}.cc from 2.28."""
    reading.append("plugins", f"{'NET' if match[1] == 'network' else 'TUNER'} {match[2][:LONGEST]}")


@line(r"(?P<kind>NET|TUNER)/Plugin ?: (?:No plugin found \(|Could not find: )(?P<names>[^,()]+).*")
def _missing(reading: LogReading, match: re.Match[str]) -> None:
    """src/net.cc: "No plugin found (…)" until 2.21, then "Could not find: …".

    The latter may have several names.
    """
    for name in match["names"].partition(". ")[0].split():
        reading.append("plugins_missing", f"{match['kind']} {name.rstrip('.')[:LONGEST]}")


@line(
    r"(?P<kind>NET|TUNER)/Plugin ?: (?:Plugin load (?:\((?P<a>\S+)\) )?returned -?\d+ : (?P<why_a>.+?)",
    r"(?: : when loading (?P<b>\S+))?|dlerror=(?P<why_c>.*) No plugin found \((?P<c>\S+)\), .*|",
    r"(?P<d>lib\S+): (?P<why_d>.+))",
)
def _not_opened(reading: LogReading, match: re.Match[str]) -> None:
    """src/net.cc: a plugin file that is missing, or that exists but cannot be loaded."""
    library = match["a"] or match["b"] or match["c"] or match["d"] or "libnccl-net.so"
    why = match["why_a"] or match["why_c"] or match["why_d"]
    if why.startswith(
        (f"{library}: cannot open shared object file: No such", "cannot open shared object file: No such")
    ):
        reading.append("plugins_missing", f"{match['kind']} {library[:LONGEST]}")
    else:
        reading.append("plugins_failed", f"{match['kind']} {library}: {why}"[:LONGEST])


@line(r"(?:Failed to initialize NET plugin \S|External (?:network|tuner) plugin \S+ is unsupported).*")
def _failed(reading: LogReading, match: re.Match[str]) -> None:
    """src/plugin/{net,tuner}.cc from 2.27.

    NCCL's own IB without an adapter is not a plugin failure.
    """
    if match[0] not in {"Failed to initialize NET plugin IB", "Failed to initialize NET plugin Socket"}:
        reading.append("plugins_failed", match[0][:LONGEST])


@line(r"(NCCL_[A-Z0-9_]{1,60}) (?:set by environment to|set to) (.*)")
def _setting(reading: LogReading, match: re.Match[str]) -> None:
    """src/misc/param.cc and where a variable is read; numbers have a full stop after them."""
    reading.put("settings", match[1], match[2].removesuffix(".")[:LONGEST])
