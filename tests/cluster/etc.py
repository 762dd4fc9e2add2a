"""Writes what stands in /etc of a cluster's nodes: names, ssh with keys and no prompts, munge and Slurm."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from string import Template

# The venv's programs first, then what a test puts in the shared folder, then the system's.
PATH = f"{sys.prefix}/bin:/shared/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_SSHD = Template("""\
Port $port
HostKey /etc/ssh/ssh_host_ed25519_key
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
UseDNS no
MaxStartups 100
PidFile /run/sshd.pid
SetEnv PATH=$path LANG=C.UTF-8
Subsystem sftp internal-sftp
""")

_SSH = Template("""\
Host *
    Port $port
    BatchMode yes
    StrictHostKeyChecking yes
    ConnectTimeout 5
    # The default, sntrup761x25519, takes ten times as much work at either end.
    KexAlgorithms curve25519-sha256
""")


def address(network: str, node: str) -> str:
    """Return the node's address: 10 is the head's last number, 11 is node1's."""
    return f"{network}{_number(node)}" if _is_ipv6(network) else f"{network}.{_number(node)}"


def with_subnet(network: str, node: str) -> str:
    """Return the node's address as `ip address add` takes it; of an IPv6 one nobody waits whether others have it."""
    here = address(network, node)
    return f"{here}/64 nodad" if _is_ipv6(network) else f"{here}/24 broadcast +"


def _is_ipv6(network: str) -> bool:
    return ":" in network


def mac(port: str, node: str) -> str:
    """Return the node's hardware address, which it keeps over a restart: its peers remember it."""
    return f"02:00:00:00:{port.removeprefix('eth').zfill(2)}:{_number(node):02x}"


def _number(node: str) -> int:
    return 10 + (0 if node == "head" else int(node.removeprefix("node")))


def hosts(nodes: tuple[str, ...], networks: tuple[str, str]) -> str:
    lines = ["127.0.0.1 localhost"]
    if any(_is_ipv6(network) for network in networks):
        lines.append("::1 localhost")
    for node in nodes:
        lines += [f"{address(networks[0], node)} {node}", f"{address(networks[1], node)} {node}-data"]
    return "\n".join(lines) + "\n"


def slurm_conf(count: int, gpus: int, lines: dict[str, str]) -> str:
    """Return the template with the lines added; one that the template has is replaced, as Slurm wants each once."""
    text = Template((Path(__file__).parent / "slurm.conf").read_text()).substitute(count=count, gpus=gpus)
    kept = [line for line in text.splitlines() if line.partition("=")[0] not in lines]
    return "\n".join([*kept, *(f"{name}={value}" for name, value in lines.items())]) + "\n"


def write(
    state: Path, nodes: tuple[str, ...], networks: tuple[str, str], *, gpus: int, ssh_port: int, lines: dict[str, str]
) -> None:
    """Write etc (what all nodes share), nodes/*/etc (what each has of its own) and the ssh key into the folder."""
    count = len(nodes) - 1  # the head takes no jobs
    etc = state / "etc"
    for folder in ("ssh", "slurm", "munge"):
        (etc / folder).mkdir(parents=True)
    (etc / "hosts").write_text(hosts(nodes, networks))
    (etc / "resolv.conf").write_text("options timeout:1 attempts:1\n")
    (etc / "munge" / "munge.key").write_bytes(os.urandom(1024))
    (etc / "slurm" / "slurm.conf").write_text(slurm_conf(count, gpus, lines))
    (etc / "slurm" / "gres.conf").write_text(
        f"NodeName=node[1-{count}] Name=gpu File=/dev/nvidia[0-{gpus - 1}]\n" if gpus else ""
    )
    # Keeps slurmd from looking for a cgroup hierarchy at start; tasks are followed without one.
    (etc / "slurm" / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
    (etc / "ssh" / "sshd_config").write_text(_SSHD.substitute(port=ssh_port, path=PATH))
    (etc / "ssh" / "ssh_config").write_text(_SSH.substitute(port=ssh_port))
    known = []
    _key(state / "key", "cluster")
    for node in nodes:
        own = state / "nodes" / node / "etc"
        (own / "ssh").mkdir(parents=True)
        (own / "hostname").write_text(f"{node}\n")
        _key(own / "ssh" / "ssh_host_ed25519_key", node)
        public = own / "ssh" / "ssh_host_ed25519_key.pub"
        for name in (node, f"{node}-data", *(address(network, node) for network in networks)):
            where = name if ssh_port == 22 else f"[{name}]:{ssh_port}"
            known.append(f"{where} {' '.join(public.read_text().split()[:2])}\n")
        public.unlink()
    (etc / "ssh" / "ssh_known_hosts").write_text("".join(known))


def _key(path: Path, comment: str) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", path], check=True)
