"""A cluster of real nodes on this machine, for tests.

A node is a network, UTS, IPC, PID and mount namespace of its own: its own name, addresses, process ids, /etc, /tmp,
/dev/shm, /run and /var, with an sshd, munged and slurmd; "head" has slurmctld in place of slurmd and takes no jobs.
Every node is on two networks: node1 is its address on eth0, node1-data the one on eth1. The bridges stand in a network
namespace of their own that has no other link, so nothing can leave the machine, and clusters do not meet.

What a node shows of the host is an overlay: it may change or remove any file, also in the virtual environment and in
the repository, and changes its own copy only. `shared` is a folder of the host that all nodes see as /shared.

    cluster.run("node1", "srun", "--ntasks-per-node=2", "hostname").out
    job = cluster.start("node1", "distcheck", "env", env={"RANK": "0"})     # job.pid, job.interrupt(SIGINT), job.wait()
    cluster.netns("node2", "nft", "-f", "-", text="table inet t { … }")     # faults: nft, tc, ip in a node's network
    cluster.switch("ip", "link", "set", "node2-eth0", "down")               # the other end of node2's cable
    cluster.cut("node3")          # power loss: nobody answers any more
    cluster.stop("node3")         # its processes end, connections are reset, then nobody is there
    cluster.freeze("node3")       # everything stands still, the kernel still accepts connections
    cluster.kill_service("node3", "sshd")
    cluster.slurm(Prolog="/shared/prolog")
    cluster.heal()

`heal` compares every node with what it was after its start (files, mounts, links, addresses, filters, queues). It
undoes what is cheap, leaving the node's processes alone, and starts a node anew when something else differs; it starts
services that died, ends Slurm's jobs, and waits until every node is idle.

Nothing is left behind. Nodes are children of this process and die with it, kill -9 included; namespaces, mounts and
links have no names outside and go with the last process in them. What has a name, a folder in /tmp and a cgroup, is
removed by `conclude`, or by the next cluster's start when its owner is gone. Signals go to a node's own cgroup or
through a process's pidfd, so never to a stranger that got a recycled pid.
"""

from __future__ import annotations

import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import psutil
from cluster import cgroup, etc, instances, scheduler
from cluster.node import ClusterError, Node, in_network, unseen
from cluster.running import Running
from real.ended import Ended

_REPOSITORY = Path(__file__).resolve().parents[2]


class Cluster:
    """N nodes and a head; `Cluster(…)` returns when all of it works."""

    def __init__(
        self,
        nodes: int = 4,
        *,
        networks: tuple[str, str] = ("10.77.0", "10.78.0"),
        slurm: bool = True,
        ssh_port: int = 22,
        gpus: int = 2,
        lines: Mapping[str, str] | None = None,
    ) -> None:
        """Bring it up.

        networks are what the addresses begin with: the first three numbers, or of IPv6 all but the last ("fd00:77::"),
        lines are added to slurm.conf. Must be called by a thread that lives as long as the cluster.
        """
        instances.sweep()
        self.prefix = f"{instances.NAME}{secrets.token_hex(4)}"
        self.nodes = tuple(f"node{number + 1}" for number in range(nodes))
        self.networks = networks
        self._everyone = ("head", *self.nodes)
        self._slurm = slurm
        self._gpus = gpus
        self._lines = dict(lines or {})
        self._added: dict[str, str] = {}
        self._state = instances.FOLDERS / self.prefix
        self.shared = self._state / "shared"
        self._cgroup = cgroup.hierarchy() / self.prefix
        self._own_script = not Path(sys.prefix, "bin", "distcheck").exists()
        self._node: dict[str, Node] = {}
        self._started: list[Running] = []
        self._bridges: subprocess.Popen[str] | None = None
        try:
            instances.claim(self._state)
            self.shared.mkdir()
            self._console_script()
            etc.write(self._state, self._everyone, networks, gpus=gpus, ssh_port=ssh_port, lines=self._lines)
            self._cgroup.mkdir()
            self._start_bridges()
            self._start_nodes(self._everyone)
            if slurm:
                scheduler.expect_idle(self)
        except BaseException:
            self.conclude()
            raise

    def _console_script(self) -> None:
        """Have every node find `distcheck`, also where the virtual environment lacks it."""
        if self._own_script:
            script = self.shared / "bin" / "distcheck"
            script.parent.mkdir()
            script.write_text(f"#!{sys.prefix}/bin/python\nfrom distcheck.__main__ import main\nmain()\n")
            script.chmod(0o755)

    def _start_bridges(self) -> None:
        script = "ip link set lo up && ip link add eth0 type bridge && ip link add eth1 type bridge && "
        script += "ip link set eth0 up && ip link set eth1 up && echo ready && read -r _"
        self._bridges = subprocess.Popen(
            [*cgroup.joined(self._cgroup), "setpriv", "--pdeathsig", "KILL", "unshare", "--net", "sh", "-c", script],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        assert self._bridges.stdout is not None
        if not self._bridges.stdout.readline():
            raise ClusterError("no network namespace with two bridges could be made")

    def _start_nodes(self, names: tuple[str, ...]) -> None:
        folders = unseen(Path(sys.prefix), Path(sys.base_prefix), _REPOSITORY)
        for name in names:
            options = (str(self._gpus), *map(str, folders))
            self._node[name] = Node(name, self._state, self._cgroup / name, options)
        for name in names:
            self._node[name].ready()
        self._cable(names)
        self.serve()
        for name in names:
            self._node[name].remember()

    def _cable(self, names: tuple[str, ...]) -> None:
        assert self._bridges is not None
        for name in names:
            lines = []
            # The numbers of the links leave room for others that stand before them.
            for number, (port, network) in enumerate(zip(("eth0", "eth1"), self.networks, strict=True), start=10):
                link, peer = f"{port} index {number} address {etc.mac(port, name)}", f"{name}-{port}"
                lines.append(f"link add {link} type veth peer name {peer} netns {self._bridges.pid}")
                lines.append(f"address add {etc.with_subnet(network, name)} dev {port}")
                lines.append(f"link set {port} up")
            _expect(self._node[name].network("ip", "-batch", "-", text="\n".join(lines)))
        ports = [f"link set {name}-{port} master {port} up" for name in names for port in ("eth0", "eth1")]
        _expect(self.switch("ip", "-batch", "-", text="\n".join(ports)))

    def start(
        self, node: str, *argv: str, env: Mapping[str, str] | None = None, cwd: str = "/tmp", stdin: int | None = None
    ) -> Running:
        """Start a program in a node; env is added to a minimal environment, in which nothing of this process is."""
        self._started.append(self._node[node].start(*argv, env=env, cwd=cwd, stdin=stdin))
        return self._started[-1]

    def run(
        self, node: str, *argv: str, env: Mapping[str, str] | None = None, cwd: str = "/tmp", timeout: float = 90
    ) -> Ended:
        """Run a program in a node to its end, or fail the test when it is not over in time."""
        running = self._node[node].start(*argv, env=env, cwd=cwd, stdin=None)
        try:
            return running.wait(timeout)
        finally:
            running.close()

    def netns(self, node: str, *argv: str, text: str = "") -> Ended:
        """Run a program of the host (nft, tc, ip) in the node's network; text is its standard input."""
        return self._node[node].network(*argv, text=text)

    def switch(self, *argv: str, text: str = "") -> Ended:
        """Run a program of the host where the bridges are; node1-eth0 is the port at which node1's eth0 ends."""
        assert self._bridges is not None
        return in_network(self._bridges.pid, *argv, text=text)

    def write(self, node: str, path: str, text: str) -> None:
        """Write a file in a node, as it is seen there; one that starts with #! becomes executable."""
        script = 'mkdir -p "${1%/*}/" && cat > "$1" && if [ -n "$2" ]; then chmod 755 "$1"; fi'
        _expect(self._node[node].inside("sh", "-c", script, "sh", path, "x" * text.startswith("#!"), text=text))

    def read(self, node: str, path: str) -> str:
        ended = self._node[node].inside("cat", path)
        _expect(ended)
        return ended.out

    def stop(self, node: str) -> None:
        """End every process of a node at once; its kernel still resets the connections."""
        self._node[node].kill()

    def cut(self, node: str) -> None:
        """Take the node's power: its cables are dead before its processes are, so nobody is told."""
        for port in ("eth0", "eth1"):
            _expect(self.switch("ip", "link", "set", f"{node}-{port}", "down"))
        self._node[node].kill()

    def freeze(self, node: str) -> None:
        cgroup.freeze(self._node[node].cgroup, frozen=True)

    def thaw(self, node: str) -> None:
        cgroup.freeze(self._node[node].cgroup, frozen=False)

    def kill_service(self, node: str, service: str) -> None:
        """Kill sshd, munged, slurmd or slurmctld, if it is there."""
        if pid := self._node[node].service_pid(service):
            _expect(self.run(node, "kill", "-KILL", str(pid)))

    def slurm(self, **lines: str) -> None:
        """Add or replace lines of slurm.conf on every node and have Slurm read it; `heal` puts it back."""
        self._added |= lines
        self._write_slurm_conf()
        _expect(self.run("head", "scontrol", "reconfigure"))

    def _write_slurm_conf(self) -> None:
        text = etc.slurm_conf(len(self.nodes), self._gpus, self._lines | self._added)
        for name, node in self._node.items():
            if node.alive:
                self.write(name, "/etc/slurm/slurm.conf", text)

    def processes(self) -> dict[str, list[psutil.Process]]:
        """Return by node what runs there besides the services; nodes where nothing does are left out."""
        found = {name: node.processes() for name, node in self._node.items() if node.alive}
        return {name: processes for name, processes in found.items() if processes}

    def end_processes(self, patience: float = 5) -> list[str]:
        """Give what tests started a moment to end, end the rest, and return the command lines of that rest."""
        self._thaw()
        until = time.monotonic() + patience
        while (left := self.processes()) and time.monotonic() < until:
            time.sleep(0.05)
        shown = []
        for node, processes in left.items():
            for process in processes:
                with suppress(psutil.NoSuchProcess):
                    shown.append(f"{node}: {' '.join(process.cmdline())}")
                    process.send_signal(signal.SIGKILL)  # psutil compares the start time first
        while self._started:
            self._started.pop().close()
        return shown

    def _thaw(self) -> None:
        for node in self._node.values():
            cgroup.freeze(node.cgroup, frozen=False)

    def tidy(self) -> None:
        """Empty the folders that tests write to: /shared, and each node's /tmp and /dev/shm."""
        for inner in self.shared.iterdir():
            if inner == self.shared / "bin" and self._own_script:
                continue
            if inner.is_dir() and not inner.is_symlink():
                shutil.rmtree(inner)
            else:
                inner.unlink()
        for name in self._everyone:  # what is mounted there, as a virtual environment may be, stays
            self.run(name, "find", "/tmp", "/dev/shm", "-xdev", "-mindepth", "1", "-delete", cwd="/")

    def heal(self) -> None:
        """Give every node back what it had when it started."""
        self._thaw()
        added, self._added = self._added, {}
        if added:
            self._write_slurm_conf()
        for name in self._everyone:
            for port in ("eth0", "eth1"):  # a dead node's port is gone
                self.switch("ip", "link", "set", f"{name}-{port}", "mtu", "1500", "up")
        lost = tuple(name for name, node in self._node.items() if not (node.alive and self._mend(node)))
        for name in lost:
            self._node[name].kill()
            for port in ("eth0", "eth1"):
                self.switch("ip", "link", "delete", f"{name}-{port}")
        if lost:
            self._start_nodes(lost)
        if self._slurm and not self._node["head"].service_pid("slurmctld"):
            scheduler.forget_head(self)
        self.serve()
        if added:
            _expect(self.run("head", "scontrol", "reconfigure"))
        if self._slurm:
            scheduler.settle(self)

    def serve(self) -> None:
        """Start every service that is not there."""
        starts = {}
        for name, node in self._node.items():
            if dead := [service for service in self._services(name) if not node.service_pid(service)]:
                starts[name] = node.serve(dead)
        failed = [name for name, start in starts.items() if start.wait(60)]
        for name in failed:
            raise ClusterError(f"a service of {name} did not start: {self._node[name].log.read_text()}")

    def _mend(self, node: Node) -> bool:
        """Undo what can be undone while the node runs, and say whether it is as it was at its start."""
        if not node.changes():
            return True
        self.write(node.name, "/etc/hosts", (self._state / "etc" / "hosts").read_text())
        node.network("nft", "flush", "ruleset")
        for port in ("eth0", "eth1"):
            node.network("tc", "qdisc", "delete", "dev", port, "root")
            node.network("ip", "link", "set", port, "mtu", "1500", "up")
        until = time.monotonic() + 2  # the kernel takes a moment to notice a carrier
        while changed := node.changes():
            if changed != ["network"] or time.monotonic() > until:
                return False
            time.sleep(0.05)
        return True

    def _services(self, name: str) -> list[str]:
        if not self._slurm:
            return ["sshd"]
        return ["sshd", "munged", "slurmctld" if name == "head" else "slurmd"]

    def conclude(self) -> None:
        """Take all of it down."""
        cgroup.remove(self._cgroup)
        while self._node:
            self._node.popitem()[1].close()
        if self._bridges is not None:
            self._bridges.communicate()
        while self._started:
            self._started.pop().close()
        instances.release(self._state)


def _expect(ended: Ended) -> None:
    if ended.code:
        raise ClusterError(f"{ended.err}{ended.out}".strip())
