"""Rules about single values that NCCL reads otherwise than intended, or rejects."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distcheck.facts.base import Missing
from distcheck.facts.quantities import count
from distcheck.rules import rule
from distcheck.rules.finding import Fault
from distcheck.rules.nccl.grammar import problem_of, without_algorithm
from distcheck.rules.nccl.settings import NcclSetting, alike, each_setting
from distcheck.rules.wording import once
from distcheck.selection.nccl_settings import strtoll

if TYPE_CHECKING:
    from distcheck.facts.job import Job

_TRUE = frozenset({"true", "yes", "on", "y", "t", "enable", "enabled"})
_FALSE = frozenset({"false", "no", "off", "n", "f", "disable", "disabled"})
_UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_LEVELS = ("LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS")
"""Path types that NCCL_P2P_LEVEL and NCCL_NET_GDR_LEVEL accept (src/graph/topo.cc, src/graph/paths.cc)."""
_BUFFERS = frozenset({"NCCL_BUFFSIZE", "NCCL_LL_BUFFSIZE", "NCCL_LL128_BUFFSIZE"})
_LEAST_BUFFER = 1024
_NO_NETWORKS = frozenset(
    {"tcp", "efa", "roce", "rdma", "infiniband", "ibverbs", "verbs", "ethernet", "eth", "sockets",
     "none", "0", "1", "true", "false"}
)  # fmt: skip
"""Values of NCCL_NET that people write and that are the name of no network."""
_INFINIBAND = frozenset({"roce", "rdma", "infiniband", "verbs"})
_SOCKETS = frozenset({"tcp", "sockets", "socket", "ethernet", "eth"})


@rule("environment", severity="warning", scope="rank", of=each_setting)
def nccl_bool_text(_: Job, setting: NcclSetting) -> Fault | None:
    """A switch of NCCL holds a word such as true or yes, which NCCL reads as 0.

    NCCL_IB_DISABLE=true leaves InfiniBand on, and NCCL_P2P_DISABLE=yes changes nothing. NCCL parses its numbers with
    ``strtoll``, which returns 0 for text, and prints no message. Found by parsing the value as NCCL does. Words that
    mean 0 (false, off) are silent, because NCCL reads them as meant.

    Fix: write 1 or 0.
    See: https://github.com/NVIDIA/nccl/blob/master/src/misc/param.cc (ncclLoadParam)
    """
    if not setting.is_int or setting.bare not in _TRUE:
        return None
    fix = setting.fix("Write 1, or remove the variable.", "1")
    return Fault(f"NCCL reads {setting} as 0; expected 1 or 0", fix, {"read as": 0})


@rule("environment", scope="rank", of=each_setting)
def nccl_int_suffix(_: Job, setting: NcclSetting) -> Fault | None:
    """NCCL reads only the beginning of a number, or reads it as octal.

    NCCL_BUFFSIZE=4M is 4 bytes, ``"1"`` with its quotation marks is 0, and 010 is 8. NCCL parses numbers with
    ``strtoll`` in base 0, which stops at the first character that does not fit, and prints no message. Found by parsing
    the value as NCCL does. It is an error for NCCL_BUFFSIZE and the buffers of the LL protocols if fewer than 1024
    bytes remain, because NCCL divides the buffer into steps; otherwise a warning.

    Fix: write the plain decimal number, sizes in bytes.
    See: https://github.com/NVIDIA/nccl/blob/master/src/misc/param.cc (ncclLoadParam)
    """
    if not setting.is_int or not setting.value.strip() or setting.bare in _TRUE | _FALSE:
        return None
    number, rest = strtoll(setting.value)
    plain = setting.value.strip()
    if not rest.strip() and not (plain.isdecimal() and int(plain) != number):
        return None
    small = setting.name in _BUFFERS and 0 <= number < _LEAST_BUFFER
    meant = _number_meant(setting.bare)
    return Fault(
        f"NCCL reads {setting} as {count(number, 'byte') if small else number}; expected {meant or 'a plain number'}",
        setting.fix(f"Write a plain decimal number{'' if meant else ', or remove the variable'}.", meant),
        {"read as": number},
        "error" if small else "warning",
    )


def _number_meant(text: str) -> str:
    """Return the plain number that a value such as 4m or 010 means, '' if that is unclear."""
    if text.isdecimal():
        return str(int(text))
    for ending in ("ib", "b", ""):
        digits, unit = text.removesuffix(ending)[:-1].strip(), text.removesuffix(ending)[-1:]
        if text.endswith(ending) and digits.isdecimal() and unit in _UNITS:
            return str(int(digits) * _UNITS[unit])
    return ""


@rule("environment", severity="warning", scope="rank", of=each_setting)
def nccl_level_text(_: Job, setting: NcclSetting) -> Fault | None:
    """NCCL_P2P_LEVEL or NCCL_NET_GDR_LEVEL holds a word that NCCL ignores.

    NCCL compares the value with LOC, NVL, PIX, PXB, PHB and SYS, in capitals only, and ignores anything else without a
    message: ``nvl`` and ``NVLINK`` leave its own choice in place. Found by comparing as NCCL does. Numbers are accepted
    for old scripts.

    Fix: write one of these words in capitals.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-p2p-level
    """
    level, value = setting.name in {"NCCL_P2P_LEVEL", "NCCL_NET_GDR_LEVEL"}, setting.value
    if not level or not value or value in _LEVELS or value[0].isdecimal():
        return None
    upper = setting.bare.upper()
    meant = "NVL" if upper == "NVLINK" else upper if upper in _LEVELS else ""
    text = "Write the level in capitals." if meant else "Write one of these levels, or remove the variable."
    return Fault(f"NCCL ignores {setting}; expected LOC, NVL, PIX, PXB, PHB or SYS", setting.fix(text, meant))


@rule("environment", scope="rank", of=each_setting)
def nccl_algo_proto_invalid(job: Job, setting: NcclSetting) -> Fault | None:
    """NCCL_ALGO or NCCL_PROTO has a syntax error, or leaves a collective without an algorithm.

    Since 2.24 NCCL fails at the first communicator, ``Unrecognized element token "Foo" when parsing "Foo"`` and
    ncclInvalidUsage; older releases ignore the word. The value is a list ``function:word,word;function:word``, where
    the function is optional for the first part, and a ^ before the words excludes them. Also since 2.24, a collective
    for which nothing remains fails: ``No algorithm/protocol available for function Broadcast``. NCCL_ALGO=Tree leaves
    none for broadcast, which DDP and FSDP call at their start, because only the ring implements it.

    Found by parsing the value as the NCCL in use does, or a recent one if the version is unknown. A word that NCCL does
    not know is an error since 2.24 and a warning before. A missing algorithm for broadcast is a warning.

    Fix: unset the variable: NCCL's own choice is nearly always the best. Otherwise add ring to the list.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-algo
    """
    name, value, nccl = setting.name, setting.value, setting.ranks.nccl
    if problem := problem_of(name, value, nccl):
        fails = not nccl or nccl >= (2, 24)
        return Fault(
            f"{setting} has {problem}; "
            + ("NCCL 2.24 and later fail with ncclInvalidUsage" if fails else "this NCCL ignores it"),
            setting.fix("Remove it; NCCL then chooses."),
            severity="error" if fails else "warning",
        )
    if name != "NCCL_ALGO" or not _lacks_broadcast(job):
        return None
    return Fault(
        f"{setting} leaves no algorithm for broadcast; NCCL 2.24 and later fail at the first broadcast",
        setting.fix("Remove it, or limit it to other functions: allreduce:tree."),
        severity="warning",
    )


@once
def _lacks_broadcast(job: Job) -> bool:
    """Return whether NCCL_ALGO leaves no algorithm for broadcast on all ranks; else nccl-env-differs reports it."""
    return all(without_algorithm(ranks.value("NCCL_ALGO"), ranks.nccl) for ranks in alike(job))


@rule("environment", scope="rank", of=each_setting)
def nccl_net_name_invalid(job: Job, setting: NcclSetting) -> Fault | None:
    """NCCL_NET is not the name of a network.

    NCCL_NET takes the exact name of a network: IB, Socket, or the name that a plugin gives itself; case does not
    matter. aws-ofi-nccl takes ``AWS Libfabric``, and since 1.13 also ``Libfabric`` and ``OFI``. With any other value
    NCCL fails at the first communicator: ``Failed to initialize any NET plugin``, in older releases ``Error: network
    ib0 not found.`` Found by values that no network is named: an interface of the node (ib0, eth0), or a word such as
    TCP, EFA or RoCE. Other unknown values are not judged, because a plugin may have that name.

    Fix: ``export NCCL_NET=IB`` or ``export NCCL_NET=Socket``, or unset it.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-net
    See: https://github.com/aws/aws-ofi-nccl/blob/master/src/nccl_ofi_interface_nvidia.cpp (nvidia_plugin_name_fixup)
    """
    value, bare = setting.value, setting.bare
    if setting.name != "NCCL_NET" or not value:
        return None
    there = job.node_of(setting.ranks.ranks[0]).interfaces
    own = not isinstance(there, Missing) and value in {interface.name for interface in there}
    if not own and value.strip() == value and value[0] not in "\"'" and bare not in _NO_NETWORKS:
        return None
    meant = "IB" if bare in _INFINIBAND or bare[:2] == "ib" else "Socket" if bare in _SOCKETS else ""
    what = "an interface of the node" if own else "the name of no network"
    return Fault(
        f"{setting} is {what}; expected IB, Socket or the name of a plugin",
        setting.fix("Name the network, or let NCCL choose.", meant),
    )


@rule("environment", scope="rank", of=each_setting)
def nccl_comm_id_set(_: Job, setting: NcclSetting) -> str | None:
    """NCCL_COMM_ID is set, which torch does not support.

    With it NCCL meets at a fixed address instead of the one that torch exchanges through its store. torch then fails
    with ``ncclCommGetUniqueId should not be called when NCCL_COMM_ID is set`` or ``Invalid NCCL_COMM_ID, please use
    format``, or its second communicator takes the port of the first. It is left from a program that uses NCCL without
    torch. Found by the variable.

    Fix: Remove it.

        {remove|unset NCCL_COMM_ID}

    See: https://github.com/NVIDIA/nccl/blob/master/src/bootstrap.cc (bootstrapGetUniqueId)
    """
    return f"{setting}; expected unset under torch" if setting.name == "NCCL_COMM_ID" else None
