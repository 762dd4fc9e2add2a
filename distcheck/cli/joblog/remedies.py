"""How to fix what a rule names, and how to prove it, with the values that a log shows."""

from __future__ import annotations

import re
from collections.abc import Mapping

from distcheck.cli.joblog.subject import command
from distcheck.rules import find_rule
from distcheck.rules.finding import Fix

_FIXES: dict[str, tuple[str, tuple[str, ...]]] = {
    "env-rank-unset": (
        "Start the script with a launcher that sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.",
        ("torchrun --standalone --nproc-per-node=gpu train.py",),
    ),
    "env-local-rank-unset": (
        "Start the script with a launcher that sets LOCAL_RANK.",
        ("torchrun --standalone --nproc-per-node=gpu train.py",),
    ),
    "launch-local-rank-arg": (
        "Start with torchrun, and read the local rank from the variable LOCAL_RANK instead of an argument.",
        ("torchrun --nproc-per-node=gpu train.py",),
    ),
    "net-port-in-use": (
        "See which process of the master's node listens on the port. End it if it is a leftover of yours; else use"
        " another port.",
        ("ss -ltnp 'sport = :{port|29500}'", "export MASTER_PORT=$((20000 + RANDOM % 10000))  # the same on all nodes"),
    ),
    "env-master-port-privileged": ("Use a port from 1024 on.", ("export MASTER_PORT=29500",)),
    "net-master-refused": (
        "Check that rank 0 runs on that node and listens on that port, and that it has not failed before.",
        ("ss -ltnp 'sport = :{port|29500}'  # on the master's node",),
    ),
    "net-master-unreachable": (
        "Set MASTER_ADDR to an address of rank 0's node that the others reach, and open the port in the firewall.",
        ("nc -vz {host|$MASTER_ADDR} {port|29500}  # on another node", "ip route get $(getent hosts {host|$MASTER_ADDR} | awk '{print $1}')"),
    ),
    "env-master-addr-unresolvable": (
        "Use a name that resolves on every node, or rank 0's IP address.",
        ("getent hosts {host|$MASTER_ADDR}  # on every node", "hostname -I  # on rank 0's node: its addresses"),
    ),
    "k8s-dns-not-ready": (
        "Wait for the master's name before the job starts, or publish the names of pods that are not ready"
        " (publishNotReadyAddresses: true in the headless Service).",
        ("until getent hosts {host|$MASTER_ADDR}; do sleep 1; done",),
    ),
    "net-gloo-ifname-wrong": (
        "Set GLOO_SOCKET_IFNAME to an interface that this node has, or leave it unset.",
        ("ip -br address", "unset GLOO_SOCKET_IFNAME"),
    ),
    "net-nccl-ifname-no-match": (
        "Set NCCL_SOCKET_IFNAME to an interface that every node has, or leave it unset.",
        ("ip -br address", "unset NCCL_SOCKET_IFNAME"),
    ),
    "net-hostname-loopback": (
        "Let the node's own name resolve to its network address in /etc/hosts, or name the interface.",
        ("getent hosts $(hostname)", "export GLOO_SOCKET_IFNAME=$(ip -o route get 1.1.1.1 | awk '{print $5}')"),
    ),
    "net-nccl-picks-loopback-or-docker": (
        "Name the interface that connects the nodes.",
        ("ip -br address", "export NCCL_SOCKET_IFNAME=$(ip -o route get 1.1.1.1 | awk '{print $5}')"),
    ),
    "net-firewall-ephemeral": (
        "Open all TCP ports between the nodes of the job: NCCL and Gloo connect on ephemeral ports.",
        ("sudo iptables -S; sudo nft list ruleset  # on both nodes",),
    ),
    "host-shm-too-small": (
        "Give the container more shared memory: --shm-size or --ipc=host (Docker), an emptyDir of medium Memory at"
        " /dev/shm (Kubernetes).",
        ("df -h /dev/shm", "docker run --shm-size=16g IMAGE"),
    ),
    "host-nofile": ("Raise the limit of open files before the job starts.", ("ulimit -n 65536",)),
    "host-disk-full": ("Free space on the full file system, or set TMPDIR to another.", ("df -h / /tmp $TMPDIR",)),
    "host-memory-low": (
        "Request more memory, or use less: fewer data loader workers, no copy of the model per rank.",
        ("sudo dmesg -T | grep -i -E 'oom|killed process'", "sacct -j $SLURM_JOB_ID --format=JobID,MaxRSS,ReqMem,State"),
    ),
    "gpu-none-visible": (
        "Check that the node has GPUs, that the job requests them and that CUDA_VISIBLE_DEVICES names existing ones.",
        ("nvidia-smi -L", 'echo "CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES-unset}"'),
    ),
    "env-local-rank-out-of-range": (
        "Start at most one rank for each GPU that the job sees.",
        ('nvidia-smi -L; echo "CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES-unset}"', "torchrun --nproc-per-node=gpu train.py"),
    ),
    "gpu-duplicate": (
        "Let each rank use its own GPU.",
        ("torch.cuda.set_device(int(os.environ['LOCAL_RANK']))  # in the script, before init_process_group",),
    ),
    "gpu-nvml-init-failed": (
        "The driver's libraries do not fit the loaded kernel module, or it is not loaded. Reboot the node, or reload the"
        " module; restart the container if only it is affected.",
        ("cat /proc/driver/nvidia/version", "nvidia-smi", "sudo reboot"),
    ),
    "gpu-fabric-manager-down": (
        "Start the fabric manager of the driver's version.",
        ("systemctl status nvidia-fabricmanager", "sudo systemctl restart nvidia-fabricmanager"),
    ),
    "gpu-ecc-uncorrected": (
        "Drain the node and reset the GPU, or reboot. Have the GPU replaced if the errors return.",
        ("nvidia-smi -q -d ECC,ROW_REMAPPER", "sudo nvidia-smi --gpu-reset -i {gpu|0}"),
    ),
    "gpu-fell-off-bus": (
        "Drain the node and reboot it; power-cycle it if the GPU does not come back.",
        ("sudo dmesg -T | grep -i xid", "sudo reboot"),
    ),
    "gpu-xid-recent": ("Look up the Xid, and run the diagnostics.", ("sudo dmesg -T | grep -i xid", "dcgmi diag -r 3")),
    "gpu-cuda-init-failed": (
        "Reload the module nvidia_uvm, or reboot the node.",
        ("sudo modprobe -r nvidia_uvm; sudo modprobe nvidia_uvm", "python -c 'import torch; torch.cuda.init()'"),
    ),
    "gpu-exclusive-mode": ("Allow several processes per GPU, or start one.", ("nvidia-smi -q -d COMPUTE", "sudo nvidia-smi -c DEFAULT")),
    "gpu-nvls-multicast-broken": (
        "Check the fabric manager and that the container has /dev/nvidia-caps; until then, run without NVLS.",
        ("nvidia-smi -q | grep -A2 -i fabric", "export NCCL_NVLS_ENABLE=0"),
    ),
    "sw-nccl-shadowed": (
        "Remove the other NCCL from LD_LIBRARY_PATH and LD_PRELOAD, and keep one nvidia-nccl package, of torch's version.",
        ("pip list | grep -i nccl", "echo $LD_LIBRARY_PATH; ldconfig -p | grep nccl", "pip install --force-reinstall torch"),
    ),
    "sw-driver-too-old": ("Update the driver, or install a torch for its CUDA version.", ("nvidia-smi", "python -m torch.utils.collect_env")),
    "sw-arch-unsupported": (
        "Install a torch that is built for the GPU's architecture.",
        ("python -c 'import torch; print(torch.__version__, torch.cuda.get_arch_list(), torch.cuda.get_device_capability())'",),
    ),
    "ib-fork-or-memlock": ("Raise the limit of locked memory, also for containers and slurmd.", ("ulimit -l unlimited", "docker run --ulimit memlock=-1 IMAGE")),
    "launch-node-unreachable": (
        "Let the launching machine reach every node without a password, by the names in the host list.",
        ("ssh -o BatchMode=yes {host|NODE} hostname",),
    ),
}  # fmt: skip
"""Text and commands; {port|29500} is the log's value, or else what follows the bar."""
_VALUE = re.compile(r"\{(\w+)\|([^}]*)\}")
_SAFE = re.compile(r"[\w.:-]{1,253}")
"""What a value of a log may be to stand in a command."""
_COMMAND = re.compile(
    r"(?:sudo|export|unset|ulimit|nvidia-smi|docker|torchrun|srun|sbatch|ip|ss|pip|systemctl|sysctl|modprobe|df|scontrol"
    r"|ibstat|ethtool|dcgmi|chmod|mount|kubectl|getent|ldconfig)\b[^…]*"
)
_MOST_HOSTS = 64


def fix(rule: str, values: Mapping[str, str]) -> Fix:
    """Return the fix of a rule, with a log's values in its commands; from its docstring if the table has none.

    A rule that the table lacks has the commands that its docstring quotes without an ellipsis.
    """
    if rule in _FIXES:
        text, commands = _FIXES[rule]
        return Fix(text, tuple(_VALUE.sub(lambda m: _value(values, m[1], m[2]), c) for c in commands))
    known = find_rule(rule)
    passage = known.doc.partition("\n\nFix:")[2].partition("\n\n")[0] if known else ""
    text = " ".join(passage.split())
    quoted = [c for c in re.findall(r"``(.+?)``", text) if _COMMAND.fullmatch(c) and " " in c and "..." not in c]
    plain = text.replace("``", "`")
    return Fix(plain[:1].upper() + plain[1:], tuple(dict.fromkeys(quoted)))


def proof(rule: str, values: Mapping[str, str], nodes: tuple[str, ...]) -> str:
    """Return the command of distcheck that shows whether a rule applies, with the job's nodes and port."""
    name = command(rule)
    if name == "node":
        return "distcheck node" + (f"  # on {nodes[0]}" if len(nodes) == 1 else "  # on every node")
    words = ["distcheck", name]
    words += ["--hosts", ",".join(nodes)] if 1 < len(nodes) <= _MOST_HOSTS else []
    words += ["--nproc", "auto"] if len(nodes) <= 1 else []
    port = _value(values, "port", "")
    if port.isdigit() and name in {"net", "gate"} and int(port) < 65536 and ("master" in rule or "port" in rule):
        words += ["--master-port", port]
    return " ".join(words)


def _value(values: Mapping[str, str], name: str, default: str) -> str:
    value = values.get(name, "").strip("[]()'\",")
    return value if _SAFE.fullmatch(value) and not value.startswith("-") else default
