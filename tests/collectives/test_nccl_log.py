"""NCCL's log as recorded with nine versions, as its source writes it, and as anything else may garble it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distcheck.collectives.nccl_log import parse
from distcheck.facts.nccl import NcclGraph, NcclLog

_FOLDER = Path(__file__).parents[1] / "recorded" / "nccl"
_RECORDED = {path.stem: path.read_text() for path in sorted(_FOLDER.glob("*.txt"))}
_GONE = "cannot open shared object file: No such file or directory"
UNDERSTOOD = {
    "2.10_shared_memory": {"transports": {"SHM/direct": 5}},
    "2.18_h800_no_nvls": {
        "transports": {"P2P/direct pointer": 2},
        "nvls_channels": 0,
        "settings": {"NCCL_ALGO": "Tree,Ring,,CollnetDirect,CollnetChain,NVLS"},
    },
    "2.19.3_socket": {
        "version": "2.19.3",
        "ranks": 1,
        "network": "Socket",
        "devices": ("ens7",),
        "no_ib_device": True,
    },
    "2.21_h100_three_nodes": {
        "ranks": 24,
        "nodes": 3,
        "local_ranks": 8,
        "nvls_available": True,
        "algorithms": {"262144": "TREE/LL128"},
        "settings": {"NCCL_CROSS_NIC": "2"},
    },
    "2.21.5_docker": {
        "version": "2.21.5",
        "transports": {"P2P/CUMEM": 3},
        "plugins_missing": ("NET libnccl-net.so",),
    },
    "2.22_sharp_plugin": {
        "ranks": 16,
        "network": "IBext",
        "devices": ("mlx5_0:1/IB/SHARP", "mlx5_1:1/IB/SHARP", "mlx5_4:1/IB/SHARP", "mlx5_5:1/IB/SHARP"),
        "plugins": ("NET NCCL RDMA Plugin v6 (v6)",),
    },
    "2.24_efa": {"network": "Libfabric"},
    "2.27.5_roce": {
        "ranks": 16,
        "algorithms": {"all_reduce 4": "RING/SIMPLE"},
        "plugins_missing": ("NET libnccl-net.so", "TUNER libnccl-tuner.so"),
        "settings": {
            "NCCL_IB_DISABLE": "0",
            "NCCL_SOCKET_IFNAME": "enp25s0np0",
            "NCCL_IB_HCA": "mlx5_0,mlx5_1,mlx5_2,mlx5_5",
        },
        "warnings": (
            (
                "NET/IB: Got completion from peer 10.0.0.63<51161> with status=4 opcode=32614 len=32614 vendor err 81 "
                "(Send) localGid ::ffff:10.0.0.59 remoteGids::ffff:10.0.0.63 hca mlx5_1"
            ),
        ),
    },
    "2.28.9_h200_vm_socket": {
        "version": "2.28.9",
        "ranks": 2,
        "nodes": 2,
        "local_ranks": 1,
        "network": "Socket",
        "devices": ("lo",),
        "no_ib_device": True,
        "gdr": False,
        "gdr_devices": {"lo": False},
        "nvls_channels": 0,
        "transports": {"NET/Socket/0": 4},
        "peers": {"NET": (1,)},
        "graphs": (
            NcclGraph("ring", 1, 1.2, 1.2, "LOC"),
            NcclGraph("tree", 1, 2.4, 1.2, "LOC"),
        ),
        "algorithms": {
            "all_reduce 4194304": "RING/SIMPLE",
            "broadcast 4194304": "RING/SIMPLE",
            "all_gather 4194304": "RING/SIMPLE",
            "all_reduce 4": "RING/LL",
        },
        "plugins_missing": ("NET libnccl-net.so", "TUNER libnccl-tuner.so"),
        "settings": {
            "NCCL_SOCKET_IFNAME": "lo",
            "NCCL_HOSTID": "host0",
            "NCCL_GRAPH_DUMP_FILE": "/tmp/graph.xml",
        },
    },
    "2.30.7_h200_vm_shared": {
        "version": "2.30.7",
        "ranks": 2,
        "nodes": 1,
        "local_ranks": 2,
        "network": "Socket",
        "devices": ("lo",),
        "no_ib_device": True,
        "nvls_channels": 0,
        "transports": {"P2P/CUMEM": 2},
        "peers": {"P2P": (1,)},
        "plugins_missing": ("NET libnccl-net.so", "TUNER libnccl-tuner.so"),
        "settings": {"NCCL_SOCKET_IFNAME": "lo", "NCCL_MULTI_RANK_GPU_ENABLE": "1"},
    },
}


def said(*lines, rank=0, ranks=2):
    """Return the facts in these lines, with NCCL's prefix, after a communicator of this size was started."""
    begin = f"comm 0x1 rank {rank} nranks {ranks} cudaDev 0 nvmlDev 0 busId 30 commId 0x4 - Init START"
    return parse("".join(f"node1:100:101 [0] NCCL INFO {line}\n" for line in (begin, *lines)))


@pytest.mark.parametrize("name", _RECORDED)
def test_recorded_logs_are_understood(name):
    assert parse(_RECORDED[name]) == NcclLog(**UNDERSTOOD[name])


def test_every_recorded_log_is_looked_at():
    assert set(_RECORDED) == set(UNDERSTOOD)


@pytest.mark.parametrize(
    ("line", "used"),
    [
        ("1048576 Bytes -> Algo 1 proto 2 time 34.693867", {"1048576": "RING/SIMPLE"}),
        ("AllReduce: 1048576 Bytes -> Algo 4 proto 2 time 34.6", {"all_reduce 1048576": "NVLS/SIMPLE"}),
        ("AllGather: 4096 Bytes -> Algo PAT proto LL128 channel{Lo..Hi}={0..7}", {"all_gather 4096": "PAT/LL128"}),
        ("ReduceScatter: 8 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..0}", {"reduce_scatter 8": "RING/LL"}),
        (
            "AllReduce [Symmetric]: 64 Bytes -> Kernel AllReduce_RSxLDMC_AGxSTMC nchannels 8 nthreads 512 nWorks 1",
            {"all_reduce 64": "SYMMETRIC/AllReduce_RSxLDMC_AGxSTMC"},
        ),
        (
            "AllGather [Copy Engine]: 64 Bytes -> cudaMemcpy; CE synchronization with NVLS",
            {"all_gather 64": "COPY ENGINE"},
        ),
        ("AllReduce: 4 Bytes -> Algo 9 proto 2 time 3", {"all_reduce 4": "9/SIMPLE"}),
    ],
)
def test_the_algorithm_of_an_operation_is_read_as_each_version_writes_it(line, used):
    assert said(line).algorithms == used


def test_an_operation_that_used_several_algorithms_shows_them_all():
    line = "AllReduce: 4194304 Bytes -> Algo {} proto SIMPLE channel{{Lo..Hi}}={{0..15}}"
    log = said(*(line.format(name) for name in ("RING", "NVLS", "RING")))
    assert log.algorithms == {"all_reduce 4194304": "RING/SIMPLE, NVLS/SIMPLE"}


def test_nvls_buffers_are_read():
    log = said(
        "NVLS multicast support is available on dev 0 (NVLS_NCHANNELS 16)",
        "NVLS comm 0x1 headRank 0 nHeads 4 nvlsRanks 4 buffSize 1048576 nvlsPerRankSize 1 nvlsTotalSize 4",
        "24 coll channels, 24 collnet channels, 16 nvls channels, 32 p2p channels, 32 p2p channels per peer",
    )
    assert (log.nvls_available, log.nvls_channels) == (True, 16)
    assert said("NVLS multicast support is not available on dev 0").nvls_available is False


@pytest.mark.parametrize(
    ("via", "transport", "how"),
    [
        ("0[1000] -> 1[2000] via P2P/IPC/read", "P2P/IPC/read", "P2P"),
        ("0[0] -> 1[1] via P2P/direct pointer", "P2P/direct pointer", "P2P"),
        ("0[0] -> 1[1] via P2P/indirect/3[3]/read", "P2P/indirect", "P2P"),
        ("0[0] -> 1[1] via P2P/MNNVL", "P2P/MNNVL", "P2P"),
        ("0[1000] -> 1[2000] via direct shared memory", "SHM/direct", "SHM"),
        ("0[0] -> 1[1] via SHM/CE/direct", "SHM/CE/direct", "SHM"),
        ("0[0] -> 1[1] [send] via NET/IB/0/GDRDMA", "NET/IB/0/GDRDMA", "NET"),
        (
            "1[1] -> 0[0] [receive] via NET/AWS Libfabric/3(5)/GDRDMA(PCI)/Shared",
            "NET/AWS Libfabric/3/GDRDMA(PCI)/Shared",
            "NET",
        ),
        ("0[0] -> 1[1] [send] via NET/Socket/0", "NET/Socket/0", "NET"),
    ],
)
def test_transports_are_counted_and_the_rank_at_the_other_end_is_kept(via, transport, how):
    log = said(f"Channel 00/0 : {via}", f"Channel 01/0 : {via}")
    assert log.transports == {transport: 2}
    assert log.peers == {how: (1,)}


def test_gpudirect_is_what_the_channels_show_and_known_only_where_one_leaves_the_node():
    send = "Channel 00/0 : 0[0] -> 1[1] [send] via NET/IB/0"
    assert said(send).gdr is False
    assert said(send, send + "/GDRDMA").gdr is True
    assert said("Channel 00/0 : 0[0] -> 1[1] via P2P/IPC").gdr is None


@pytest.mark.parametrize(
    ("line", "devices"),
    [
        ("NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0' (no module)", {"mlx5_0": False}),
        ("NET/IB : GPU Direct RDMA Enabled for HCA 1 'mlx5_1'", {"mlx5_1": True}),
        ("NET/AWS Libfabric : GPU Direct RDMA Enabled for HCA 0 'rdmap16s27'", {"rdmap16s27": True}),
    ],
)
def test_what_the_driver_allows_an_adapter_is_kept(line, devices):
    assert said(line).gdr_devices == devices


@pytest.mark.parametrize(
    ("line", "missing", "failed"),
    [
        ("NET/Plugin : No plugin found (libnccl-net.so), using internal implementation", ("NET libnccl-net.so",), ()),
        (
            f"NET/Plugin : Plugin load (libnccl-net-x.so) returned 2 : libnccl-net-x.so: {_GONE}",
            ("NET libnccl-net-x.so",),
            (),
        ),
        (
            f"NET/Plugin : dlerror=libnccl-net.so: {_GONE} No plugin found (libnccl-net.so), using internal",
            ("NET libnccl-net.so",),
            (),
        ),
        ("NET/Plugin: Could not find: ofi libnccl-net-ofi.so", ("NET ofi", "NET libnccl-net-ofi.so"), ()),
        ("NET/Plugin: Could not find: libnccl-net.so. Using internal net plugin.", ("NET libnccl-net.so",), ()),
        (
            f"NET/Plugin: libnccl-net.so: libfabric.so.1: {_GONE}",
            (),
            (f"NET libnccl-net.so: libfabric.so.1: {_GONE}",),
        ),
        ("Failed to initialize NET plugin IB", (), ()),
        ("Failed to initialize NET plugin FasTrak", (), ("Failed to initialize NET plugin FasTrak",)),
        ("PROFILER/Plugin: Could not find: libnccl-profiler.so", (), ()),
    ],
)
def test_a_plugin_that_is_not_there_differs_from_one_that_cannot_be_loaded(line, missing, failed):
    log = said(line)
    assert (log.plugins_missing, log.plugins_failed, log.plugins) == (missing, failed, ())


@pytest.mark.parametrize(
    ("line", "plugins"),
    [
        ("NET/Plugin: Loaded net plugin AWS Libfabric (v8)", ("NET AWS Libfabric (v8)",)),
        ("NET/Plugin: Loaded collnet plugin SHARP (v8)", ()),
        ("TUNER/Plugin: Using tuner plugin nccl_ofi_tuner", ("TUNER nccl_ofi_tuner",)),
        ("TUNER/Plugin: Using nccl_ofi_tuner (v3)", ("TUNER nccl_ofi_tuner (v3)",)),
        ("TUNER/Plugin: Using internal tuner plugin.", ()),
        ("Successfully loaded external network plugin /opt/lib/libnccl-net.so", ("NET /opt/lib/libnccl-net.so",)),
    ],
)
def test_plugins_that_were_loaded_are_named(line, plugins):
    assert said(line).plugins == plugins


def test_graphs_are_read_with_their_bandwidths_and_paths():
    log = said(
        "Pattern 4, crossNic 0, nChannels 12, speed 20.000000/20.000000, type NVL/PIX, sameChannels 1",
        "Pattern 1, crossNic 0, nChannels 12, bw 20.0/20.0, type NVL/PIX, sameChannels 1",
        "Pattern 3, crossNic 0, nChannels 1, bw 1.0/1.0, type NVL/PIX, sameChannels 1",
        "Pattern 9, crossNic 0, nChannels 1, bw 1.0/1.0, type NVL/PIX, sameChannels 1",
    )
    assert log.graphs == (
        NcclGraph("ring", 12, 20.0, 20.0, "NVL"),
        NcclGraph("tree", 12, 20.0, 20.0, "NVL"),
    )


def test_a_second_communicator_does_not_mix_with_the_first():
    log = said(
        "Channel 00/0 : 3[3] -> 4[4] via P2P/IPC",
        "ncclCommSplit comm 0x2 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 30 parent 0x1 color 0 key 1 - Init START",
        "comm 0x2 rank 0 nRanks 2 nNodes 2 localRanks 1 localRank 0 MNNVL 0",
        "Channel 00/0 : 0[3] -> 1[0] [send] via NET/Socket/0",
        rank=3,
        ranks=8,
    )
    assert (log.ranks, log.nodes, log.transports, log.peers) == (8, None, {"P2P/IPC": 1}, {"P2P": (4,)})


def test_only_one_process_of_a_shared_file_is_listened_to():
    text = "".join(f"h:{pid}:9 [0] NCCL INFO Using network {name}\n" for pid, name in ((1, "IB"), (2, "Socket")))
    assert parse(text, 2).network == "Socket"
    assert parse(text).network == "IB"


@pytest.mark.parametrize(
    "line",
    [
        "h:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/I",
        "h:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> h:1:2 [1] NCCL INFO Channel 00/0 : 1[1] -> 0[0] via P2P/IPC",
        "el 00/0 : 0[0] -> 1[1] via P2P/IPC",
        "h:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/IPCChannel 00/0 : 0[0] -> 1[1] via SHM/direct",
    ],
)
def test_torn_and_mixed_lines_are_left_out(line):
    assert parse(line + "\n") == NcclLog()


def test_a_line_that_is_still_being_written_is_left_out():
    assert parse("h:1:1 [0] NCCL INFO Using network IB\nh:1:1 [0] NCCL INFO 4 coll cha").network == "IB"
    assert parse("h:1:1 [0] NCCL INFO Using network IB").network == ""


@pytest.mark.long
def test_a_log_of_many_operations_gives_a_small_summary():
    sizes = "".join(
        f"h:1:1 [0] NCCL INFO AllReduce: {n} Bytes -> Algo RING proto LL channel{{Lo..Hi}}={{0..0}}\n"
        f"h:1:1 [0] src/a.cc:1 NCCL WARN trouble {n} {'x' * 900}\n"
        f"h:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> {n}[1] [send] via NET/IB/{n}\n"
        for n in range(400)
    )
    assert len(msgspec.msgpack.encode(parse(sizes))) < 10_000


_words = st.one_of(st.text(max_size=60), st.integers().map(str), st.sampled_from(["nan", "1e999", "-", "٣", "\x00"]))


@given(st.text())
def test_arbitrary_text_does_not_make_it_fail(text):
    assert isinstance(parse(text + "\n"), NcclLog)


@given(
    st.sampled_from("\n".join(_RECORDED.values()).splitlines()),
    st.lists(st.tuples(st.integers(0, 250), _words), max_size=4),
)
def test_a_damaged_real_line_does_not_make_it_fail(line, damage):
    for at, words in damage:
        line = line[:at] + words + line[at + len(words) // 2 :]
    log = parse(line + "\n")
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(log), type=NcclLog) == log
