"""The facts of a node as a gate on real machines collects them: a DGX H100 under Slurm, and its ranks.

It has the interfaces of such a machine with containers: loopback, a management network with IPv6, a bridge of Docker
and its ends, and an address on each of eight rails. Its PCI tree is what the probe reads of such a machine. Readings
that differ between real ones differ here: temperatures, times, free space, counters.
"""

from __future__ import annotations

from made import machines
from msgspec.structs import replace

from distcheck.facts.cuda import CudaDevice, CudaView
from distcheck.facts.device import DeviceTest
from distcheck.facts.gpu import (
    Ecc,
    Fabric,
    Gpu,
    GpuClocks,
    GpuHealth,
    GpuLoad,
    NvLinks,
    PcieLink,
    PeerAccess,
    RemappedRows,
)
from distcheck.facts.host import CgroupLimit, HostFacts, Limits
from distcheck.facts.infiniband import Gid, Hca, HcaPort, Infiniband
from distcheck.facts.libraries import Libraries
from distcheck.facts.nccl import NcclLog
from distcheck.facts.network import Interface, Link, NetworkFacts, Resolution
from distcheck.facts.node import NodeFacts, TorchBuild
from distcheck.facts.pci import Pci
from distcheck.facts.rank import Installed, ProcessFacts, RankFacts, RankRun
from distcheck.facts.storage import Space

GPUS = 8
"""On every node."""
OPERATIONS = ("all_reduce", "broadcast")
SIZES = range(20, 29, 2)
"""Powers of 2, in bytes."""
GIB = 1 << 30
RAILS = ("mlx5_0", "mlx5_3", "mlx5_4", "mlx5_5", "mlx5_6", "mlx5_9", "mlx5_10", "mlx5_11")
"""The adapters of the GPUs; the other four serve storage."""
_COUNTERS = (
    "symbol_error", "link_error_recovery", "link_downed", "port_rcv_errors", "local_link_integrity_errors",
    "excessive_buffer_overrun_errors", "packet_seq_err", "local_ack_timeout_err", "rnr_nak_retry_err",
    "req_transport_retries_exceeded", "out_of_sequence", "rp_cnp_handled", "np_ecn_marked_roce_packets",
)  # fmt: skip
_NCCL = "/opt/venv/lib/python3.11/site-packages/nvidia/nccl/lib/libnccl.so.2"


def _ipv4(network: int, n: int) -> str:
    """Return the address of a node in one of 128 networks of 131,070 nodes each."""
    return f"10.{2 * network + (n + 1 >> 16)}.{n + 1 >> 8 & 255}.{n + 1 & 255}"


def _ipv6(prefix: str, n: int) -> str:
    return f"{prefix}::{n + 1 >> 16:x}:{n + 1 & 65535:x}"


def node_facts(node: NodeFacts, n: int, tree: Pci, *, sparse: bool) -> NodeFacts:
    own = _ipv4(0, n)
    mac = f"{n >> 8 & 255:02x}:{n & 255:02x}"
    bridge = ("br-5f1c2d", "172.18.0.1", 16)
    rails = [(f"ibp{bus}s0", _ipv4(8 + rail, n), 15) for rail, bus in enumerate((24, 64, 79, 94, 154, 192, 206, 220))]
    ends = [(f"veth{n:04x}{end}", f"fe80::{end}:{n:x}", 64) for end in range(3)]
    addresses = [
        ("lo", "127.0.0.1", 8), ("eno3", own, 15), *rails, ("docker0", "172.17.0.1", 16), bridge,
        ("lo", "::1", 128), ("eno3", _ipv6("fd00:7", n), 64), ("eno3", _ipv6("fe80", n), 64),
        *((name, _ipv6("fe80", n), 64) for name, _, _ in rails), *ends,
    ]  # fmt: skip
    kinds = {"lo": "loopback", "eno3": "physical"} | {name: "physical" for name, _, _ in rails}
    names = dict.fromkeys(name for name, _, _ in addresses)
    gpus = tuple(
        _gpu(gpu, i, address, n, None if sparse else _load(n + 3 * i))
        for i, (gpu, address) in enumerate(zip(node.gpus.devices, machines.gpus(machines.DGX_H100), strict=True))
    )
    access = tuple(PeerAccess((a, b), 0, 0, 0) for b in range(GPUS) for a in range(b))
    return replace(
        node,
        interfaces=tuple(
            Interface(name, address, up=True, mtu_bytes=65536 if name == "lo" else 1500, prefix_bits=bits)
            for name, address, bits in addresses
        ),
        network=NetworkFacts(
            links=tuple(
                Link(
                    name,
                    mac=f"02:{n >> 16:02x}:{i:02x}:{mac}:07" if i else "00:00:00:00:00:00",
                    kind=kinds.get(name, "virtual"),
                )
                for i, name in enumerate(names)
            ),
            own_name=Resolution(name=node.name, addresses=(own,), seconds=0.001),
            own_name_binds=own,
            open_files=(1 << 20, 1 << 20),
            listen_backlog=65535,
            connections_tracked=(2000, 262144),
            machine_id=f"machine-{n}",
        ),
        gpus=replace(node.gpus, devices=gpus, peer_access=access),
        pci=tree,
        xids=(),
        infiniband=None if sparse else _adapters(n),
        shm=Space(total_bytes=1000 * GIB, free_bytes=990 * GIB - n % 61 * 4096, free_files=None, writable=True),
        tmp=Space(total_bytes=880 * GIB, free_bytes=700 * GIB - n % 97 * 4096, free_files=1 << 24, writable=True),
        cpus=224,
        host=HostFacts(
            memory_bytes=2015 * GIB, available_bytes=1990 * GIB, load=1.5 + n % 7 / 10, uptime_seconds=1e6 + n,
            tasks=2900 + n % 50, most_tasks=4 << 20, zombies=0, oom_kills=n % 3,
            settings={"scaling_governor": "performance", "numa_balancing": "0"}, throttled_seconds=0.0, running=3,
        ),
    )  # fmt: skip


def _adapters(n: int) -> Infiniband:
    """Return twelve adapters: one for each GPU, and the ports of two cards for storage, of which one is down."""
    hcas = []
    for place in range(12):
        name, own = f"mlx5_{place}", f"mlx5_{place}" in RAILS
        guid = f"a088:c203:{n >> 8:04x}:{(n & 255) * 16 + place:04x}"
        gid = f"fe80:0000:0000:0000:{guid}"
        port = HcaPort(
            number=1,
            link_layer="InfiniBand" if own else "Ethernet",
            state="ACTIVE" if own or place in {1, 7} else "DOWN",
            physical_state="LinkUp" if own or place in {1, 7} else "Disabled",
            rate_Gbps=400.0 if own else 200.0,
            lanes=4,
            speed="NDR" if own else "HDR",
            gids={0: Gid(gid, "IB/RoCE v1")}
            | ({} if own else {1: Gid(gid, "RoCE v2", f"enp{place}s0np0"), 2: Gid(gid, "RoCE v2", f"enp{place}s0np0")}),
            gid_slots=256,
            partition_keys={0: 65535},
            pkey_slots=128,
            counters=dict.fromkeys(_COUNTERS, 0) | {"out_of_sequence": n % 41},
        )
        hcas.append(
            Hca(
                name, (port,), driver="mlx5_core", board="MT_0000000838" if own else "MT_0000000437",
                node_guid=guid, device_file="usable", file_name=f"uverbs{place}", abi=1,
            )
        )  # fmt: skip
    return Infiniband(
        hcas=tuple(hcas),
        libibverbs="",
        offered=tuple(hca.name for hca in hcas),
        peer_memory=("nvidia_peermem",),
        open_driver=True,
        virtual=False,
    )


def process_facts(process: ProcessFacts, n: int, *, sparse: bool) -> ProcessFacts:
    """Return a process of Slurm's, with its torch and NCCL."""
    process = replace(
        process,
        arrived_seconds=0.5 + n % 97 / 1000,
        bind=process.bind if n == 0 else None,
        limits=_limits(),
        clock_offset_seconds=0.002 + n % 89 / 1e5 if n else None,
        clock_error_seconds=0.01 + n % 83 / 1e5 if n else None,
    )
    if sparse:
        return process
    began = 0.1 + n % 97 / 1000
    return replace(
        process,
        ancestors=("/bin/bash /var/spool/slurmd/job00077/slurm_script", "slurmstepd: [77.0]"),
        installed=Installed("3.11.7", "/opt/venv", TorchBuild("2.13.0+cu130", "13.0", None), "2.28.9"),
        libraries=Libraries(
            nccl=_NCCL,
            version="2.28.9",
            found_by="torch",
            own=_NCCL,
            wheels=("nvidia-nccl-cu13 2.28.9",),
            architectures=("sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120"),
            machine="x86_64",
        ),
        locked_memory_bytes=-1,
        shm_device=24,
        memory_policy_error="",
        began_seconds={"started": began, "meeting": began + 0.1, "peers": 0.9, "collectives": 1.3, "done": 6.2},
    )


def _limits() -> Limits:
    """Return what Slurm lets a rank use: memory of the whole node, and no other limit of a cgroup."""
    step = "/sys/fs/cgroup/system.slice/slurmstepd.scope/job_77/step_0"
    return Limits(
        memory=CgroupLimit(limit=2000 * GIB, used=4 * GIB, cgroup=step),
        tasks=CgroupLimit(limit=1 << 22, used=90, cgroup="/sys/fs/cgroup/system.slice"),
        user_tasks=(1 << 20, 120),
        stack_bytes=8 << 20,
        namespaces={"ipc": "ipc:[4026531839]", "pid": "pid:[4026531836]"},
    )


def _gpu(gpu: Gpu, place: int, address: str, n: int, load: GpuLoad | None) -> Gpu:
    health = GpuHealth(
        recovery_action=0,
        ecc=ecc(uncorrected=0),
        remapped_rows=RemappedRows(0, 0, pending=False, failure=False),
        retired_pages_pending=False,
        clocks=GpuClocks(1, 1980, 1980),
        pcie=PcieLink(16, 5, 16, 0),
        nvlinks=NvLinks(active=(True,) * 18, remote=("switch",) * 18, version=6, speed_MBps=26562),
        fabric=Fabric(3, 0, "", 0, 0, 1),
        power_limit_watts=700.0,
        power_limit_default_watts=700.0,
        temperature_celsius=29 + (n + 3 * place) % 7,
        slowdown_celsius=87,
        compute_mode=0,
        processes=(),
        mps_processes=(),
        display=False,
        vbios="96.00.61.00.01",
        cpus=machines.DGX_H100.cpus[place // 4],
        numa_node=place // 4,
    )
    return replace(gpu, pci=address, name="NVIDIA H100 80GB HBM3", health=health, load=load, memory_used_bytes=5 << 27)


def ecc(uncorrected: int) -> Ecc:
    return Ecc(enabled=True, enabled_after_reset=True, uncorrected_volatile=uncorrected)


def _load(number: int) -> GpuLoad:
    """Return what NVML saw of a GPU while the collectives ran."""
    return GpuLoad(
        seconds=5.0 + number % 50 / 100,
        busy=20 + number % 3,
        event_reasons={4: 2 + number % 4},
        software_thermal_seconds=0.0,
        hardware_thermal_seconds=0.0,
        power_brake_seconds=0.0,
        sm_MHz=1980,
        pcie_generation=5,
        temperature_celsius=50 + number % 9,
        replays=0,
        uncorrected_ecc=0,
    )


def rank_facts(rank: RankFacts, number: int, nodes: int, per_node: int, *, sparse: bool) -> RankFacts:
    """Return a rank that took part in the collectives over NVLink and InfiniBand."""
    local = number % per_node
    first = number - local
    beside = tuple(sorted({first + (local + step) % per_node for step in (1, -1)} - {number}))
    out = nodes > 1
    log = NcclLog(
        version="2.28.9", ranks=nodes * per_node, nodes=nodes, local_ranks=per_node,
        nvls_channels=16, nvls_available=True,
        algorithms={f"{op} {1 << n}": "NVLS/SIMPLE" for op in OPERATIONS for n in SIZES} if number == 0 else {},
        transports={"P2P/CUMEM": 48} | ({f"NET/IB/{local}/GDRDMA": 2} if out else {}),
        peers={"P2P": beside} | ({"NET": ((number + per_node) % (nodes * per_node),)} if out else {}),
        network="IB", devices=tuple(f"{name}:1/IB" for name in RAILS),
        gdr=True if out else None, gdr_devices=dict.fromkeys(RAILS, True),
        plugins_missing=("NET libnccl-net.so", "TUNER libnccl-tuner.so"),
    )  # fmt: skip
    run = RankRun(
        pid=4711 + local, step="done", outcome="done", joined_seconds=0.4 + number % 73 / 1000,
        first_call_seconds=dict.fromkeys(OPERATIONS, 0.5 + number % 71 / 1000), wrong=dict.fromkeys(OPERATIONS, 0),
        checked=dict.fromkeys(OPERATIONS, 262_147), device="NVIDIA H100 80GB HBM3", gpu=rank.gpu, nccl=log,
        device_test=None
        if sparse
        else DeviceTest("bfloat16", 8192, 690.0 + number % 31, 3000.0 + number % 13, products=50, checksum=123_456_789),
    )  # fmt: skip
    return replace(
        rank,
        environment=rank.environment
        | {"NCCL_IB_HCA": "=" + ",".join(RAILS), "NCCL_SOCKET_IFNAME": "eno3", "OMP_NUM_THREADS": "14"},
        cuda=CudaView(
            devices=tuple(CudaDevice(uuid=uuid, capability=(9, 0)) for uuid in rank.visible_gpus),
            version=13000,
            library="/usr/lib/x86_64-linux-gnu/libcuda.so.580.95",
        ),
        cpu_list="0-223",
        cpus=224,
        run=run,
    )
