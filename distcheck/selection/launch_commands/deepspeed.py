"""deepspeed.

Source: deepspeed 0.19.8, launcher/runner.py, launcher/multinode_runner.py and accelerator/cpu_accelerator.py. Without a
hostfile (/job/hostfile; one that is missing counts as none) it starts this machine's ranks at 127.0.0.1; with one host
left, or with --no_ssh, it starts ranks here too. Without GPUs it counts the NUMA nodes, as numactl lists them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from distcheck.facts.launch_command import Stated
from distcheck.selection.command import split
from distcheck.selection.launch_commands.hosts import on_hosts
from distcheck.selection.launch_commands.stated import ReadFile, RefusedError, Untold, number
from distcheck.selection.launch_commands.words import text

_HOSTFILE, _PORT = "/job/hostfile", "29500"
_LINE = re.compile(r"(\S+)\s+slots=(\d+)")
_NUMA_NODES = "/sys/devices/system/node/has_cpu"


def deepspeed(
    words: tuple[str, ...], environ: Mapping[str, str], read: ReadFile, by: str = "deepspeed"
) -> Stated | Untold:
    """Return the ranks that deepspeed starts on this machine, or on the hosts of its hostfile."""
    options = split(words).options
    include = options.get("i") or options.get("include", "")
    exclude = options.get("e") or options.get("exclude", "")
    path = options.get("H") or options.get("hostfile") or _HOSTFILE
    nodes = number("--num_nodes", options.get("num-nodes", "-1"), -1)
    each = number("--num_gpus", options.get("num-gpus") or options.get("num-accelerators", "-1"), -1)
    port = number("--master_port", options.get("master-port", _PORT), 1)
    if include and exclude:
        raise RefusedError("--include and --exclude exclude each other")
    if max(nodes, each) >= 0 and (include or exclude):
        raise RefusedError("--num_nodes and --num_gpus exclude --include and --exclude")
    pool = _pool(path, read)
    if not pool:
        if nodes > 1:
            raise RefusedError(f"--num_nodes is {nodes}, and it has no hostfile")
        return _here(by, port, (each, include, exclude), environ, read)
    slots = dict(list(_filtered(pool, include, exclude).items())[: nodes if nodes > 0 else None])
    hosts = tuple((host, each if each > 0 else len(ids)) for host, ids in slots.items())
    place = options.get("master-addr") or hosts[0][0], port
    if "no-ssh" in options:
        return _this_node(by, hosts, number("--node_rank", options.get("node-rank", "-1")), place, path)
    if len(hosts) == 1 and "force-multi" not in options:
        at = options.get("master-addr", "127.0.0.1")
        return Stated(by, str(hosts[0][1]), master_addr=at, master_port=port, file=path)
    launcher = options.get("launcher", "pdsh").lower()
    if launcher == "slurm":
        return Untold(by, "Slurm places its ranks")
    if "ssh-port" in options:
        return Untold(by, f"its ssh uses port {options['ssh-port']}", "--hosts and --nproc, and the port in ssh_config")
    starter: Literal["ssh", "mpi"] = "ssh" if launcher == "pdsh" else "mpi"
    return msgspec.structs.replace(on_hosts(by, hosts, starter, place), file=path)


def _this_node(
    by: str, hosts: tuple[tuple[str, int], ...], rank: int, place: tuple[str, int], path: str
) -> Stated | Untold:
    if rank >= len(hosts):
        raise RefusedError(f"--node_rank is {rank}; its hostfile has {len(hosts)} hosts")
    if len({ranks for _, ranks in hosts}) > 1:
        return Untold(by, "its hosts have different numbers of ranks")
    return Stated(by, str(hosts[0][1]), len(hosts), 0, rank, *place, file=path)


def _pool(path: str, read: ReadFile) -> dict[str, int]:
    """Return the slots of the hosts in a hostfile, empty if there is no such file."""
    try:
        content = text(read, path, "--hostfile")
    except RefusedError:
        return {}
    lines = [line for each in content.splitlines() if (line := each.strip()) and not line.startswith("#")]
    found = [match for line in lines if (match := _LINE.match(line))]
    pool = {match[1]: int(match[2]) for match in found}
    if not pool or len(pool) < len(lines):
        raise RefusedError(f"--hostfile {path} has a line other than HOST slots=N, or a host twice, or none")
    return pool


def _specs(text: str) -> Iterable[tuple[str, tuple[int, ...]]]:
    """Yield hosts and slots of a@b:0,2; no slots: all."""
    for item in text.split("@") if text else ():
        host, colon, ids = item.partition(":")
        yield host, tuple(sorted({number(f"slot of {host}", one) for one in ids.split(",")})) if colon else ()


def _filtered(pool: Mapping[str, int], include: str, exclude: str) -> dict[str, tuple[int, ...]]:
    slots = {host: tuple(range(most)) for host, most in pool.items()}
    picked = dict(_specs(include or exclude))
    if unknown := next((h for h, ids in picked.items() if h not in slots or not set(ids) <= set(slots[h])), ""):
        raise RefusedError(f"--include or --exclude names {unknown} or slots that its hostfile does not have")
    if include:
        slots = {host: picked[host] or ids for host, ids in slots.items() if host in picked}
    elif exclude:
        gone = {host: set(ids or slots[host]) for host, ids in picked.items()}
        slots = {host: tuple(n for n in ids if n not in gone.get(host, ())) for host, ids in slots.items()}
    if not (slots := {host: ids for host, ids in slots.items() if ids}):
        raise RefusedError("--include or --exclude leaves no host")
    return slots


def _here(
    by: str, port: int, asked: tuple[int, str, str], environ: Mapping[str, str], read: ReadFile
) -> Stated | Untold:
    """Return the ranks of this machine: --num_gpus, those of --include, else its GPUs."""
    each, include, exclude = asked
    picked = dict(_specs(include))
    here = Stated(by, "gpu", master_addr="127.0.0.1", master_port=port)
    if (asked_for := max(each, len(picked.get("localhost", ())))) > 0:
        return msgspec.structs.replace(here, nproc=str(asked_for))
    if exclude:
        return Untold(by, "the number of GPUs that --exclude leaves is not known", "--nproc")
    try:
        ranges = [part.split("-") for part in read(_NUMA_NODES).strip().split(",")]
        numa = sum(int(ends[-1]) - int(ends[0]) + 1 for ends in ranges)
    except (OSError, ValueError):
        numa = 1
    size = environ.get("LOCAL_SIZE", "")
    without = size if size.isdecimal() and int(size) else str(numa)
    if environ.get("DS_ACCELERATOR") == "cpu":
        return msgspec.structs.replace(here, nproc=without, environment=True)
    return msgspec.structs.replace(here, few_gpus=(without,))
