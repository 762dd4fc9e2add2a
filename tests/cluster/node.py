"""One node of a cluster: its namespaces, its processes and services, and what has changed in it since it started."""

from __future__ import annotations

import hashlib
import os
import select
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import psutil
from cluster import cgroup
from cluster.etc import PATH
from cluster.running import Running
from real.ended import Ended

_SCRIPT = Path(__file__).with_name("node.sh")
_ENVIRONMENT = {
    "PATH": PATH,
    "HOME": "/root",
    "USER": "root",
    "LANG": "C.UTF-8",
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
}
_SYSTEM = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}
SERVICES = {
    "sshd": ("/run/sshd.pid", "/usr/sbin/sshd"),
    "munged": ("/run/munge/munged.pid", "setpriv --reuid=munge --regid=munge --clear-groups munged --force"),
    "slurmctld": ("/run/slurmctld.pid", "slurmctld -c"),
    "slurmd": ("/run/slurmd.pid", "slurmd -c"),
}
# Files that a healthy run changes; everything else that differs from the start is somebody's fault.
_EXPECTED = ("/upper/var/", "/upper/root/.cache/", "__pycache__/")
# IPv6 addresses are left out: they change by themselves while the kernel looks for duplicates.
_QUESTIONS = (
    "hostname",
    "ip -o link",
    "ip -4 -o address",
    "ip -6 -o address show scope global",
    "ip route",
    "ip neighbour show nud permanent",
    "tc qdisc",
    "nft list ruleset",
    "ethtool -k eth0",
    "ethtool -k eth1",
)


class ClusterError(Exception):
    """The test cluster itself did not do what it should."""


class Node:
    """Namespaces whose pid 1 runs node.sh; the kernel ends everything in them with it."""

    def __init__(self, name: str, state: Path, group: Path, options: tuple[str, ...]) -> None:
        """Start pid 1; `ready` waits for it. The process dies with the thread that calls this."""
        self.name = name
        self.state = state
        self.cgroup = group
        self.log = state / "nodes" / name / "log"
        self._untouched: dict[str, str] = {}
        group.mkdir(exist_ok=True)
        for folder in ("layers", "root"):
            (state / "nodes" / name / folder).mkdir(exist_ok=True)
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                [
                    *cgroup.joined(self.cgroup), "setpriv", "--pdeathsig", "KILL",
                    "unshare", "--net", "--uts", "--ipc", "--pid", "--mount", "--fork", "--kill-child=KILL",
                    "--propagation", "private", "bash", _SCRIPT, name, state, *options,
                ],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=_SYSTEM, cwd="/",
                start_new_session=True,
            )  # fmt: skip
        self.pid = 0

    def ready(self, timeout: float = 30) -> None:
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], timeout)[0] or not self.process.stdout.readline():
            raise ClusterError(f"{self.name} did not start: {self.log.read_text()}")
        pid = self.process.pid
        self.pid = int(Path(f"/proc/{pid}/task/{pid}/children").read_text())

    @property
    def alive(self) -> bool:
        """Whether pid 1 lives; nobody else can have its pid while its parent, unshare, has not seen it end."""
        return bool(self.pid) and self.process.poll() is None

    def command(self, *argv: str, env: Mapping[str, str] = _ENVIRONMENT, cwd: str = "/tmp") -> list[str]:
        """Return the host's command for one that runs in the node as the leader of a session of its own."""
        if not self.alive:
            raise ClusterError(f"{self.name} is down")
        into = ["nsenter", "--target", str(self.pid), "--mount", "--uts", "--ipc", "--net", "--pid"]
        # A shell that runs the tests in the background has them ignore SIGINT, and all that they start.
        environ = ["env", "-i", "--default-signal", "-C", cwd, *(f"{name}={value}" for name, value in env.items())]
        return [*cgroup.joined(self.cgroup), *into, "--", "setsid", *environ, *argv]

    def start(self, *argv: str, env: Mapping[str, str] | None, cwd: str, stdin: int | None) -> Running:
        return Running(
            subprocess.Popen(
                self.command(*argv, env=_ENVIRONMENT | dict(env or {}), cwd=cwd),
                stdin=subprocess.DEVNULL if stdin is None else stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                env=_SYSTEM,
                start_new_session=True,
            )
        )

    def network(self, *argv: str, text: str = "") -> Ended:
        """Run a program of the host's, with the host's files, in the node's network."""
        if not self.alive:
            raise ClusterError(f"{self.name} is down")
        return in_network(self.pid, *argv, text=text)

    def inside(self, *argv: str, text: str = "") -> Ended:
        """Run a program in the node with the text as its standard input."""
        return _run(self.command(*argv, cwd="/"), text)

    def _file(self, path: str) -> Path:
        """Return where the host reads a file of the node; never to write: a link in it could lead to the host's."""
        return Path(f"/proc/{self.pid}/root") / path.lstrip("/")

    def serve(self, services: list[str]) -> subprocess.Popen[bytes]:
        """Start services; each program returns when its daemon is there."""
        script = "\n".join(f"timeout 20 {SERVICES[service][1]} || exit" for service in services)
        with self.log.open("a") as log:
            return subprocess.Popen(
                self.command("sh", "-c", script, env=_SYSTEM, cwd="/"),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=_SYSTEM, start_new_session=True,
            )  # fmt: skip

    def service_pid(self, service: str) -> int | None:
        """Return the pid inside the node that the service recorded, if that process is still the service."""
        try:
            pid = int(self._file(SERVICES[service][0]).read_text())
            name = self._file(f"/proc/{pid}/comm").read_text().strip()
        except (OSError, ValueError):
            return None
        return pid if name == service else None

    def processes(self) -> list[psutil.Process]:
        """Return what runs in the node and is neither pid 1 nor a service."""
        expected = {1, None, *(self.service_pid(service) for service in SERVICES if self.alive)}
        found = []
        for pid in cgroup.members(self.cgroup):
            with suppress(psutil.Error):
                process = psutil.Process(pid)
                zombie = process.status() == psutil.STATUS_ZOMBIE
                service = _pid_inside(pid) in expected or process.name() == "slurmscriptd"  # slurmctld's child
                if not zombie and not service:
                    found.append(process)
        return found

    def kill(self) -> None:
        """End everything in the node at once."""
        cgroup.kill(self.cgroup)
        self.close()

    def close(self) -> None:
        """Wait for pid 1, which has been killed."""
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()

    def remember(self) -> None:
        """Take the present state for the one that `changes` compares with, as soon as both cables are seen."""
        until = time.monotonic() + 10
        while (prints := self._fingerprint())["network"].count(" state UP ") != 2:
            if time.monotonic() > until:
                raise ClusterError(f"{self.name} has no carrier: {prints['network']}")
            time.sleep(0.01)
        self._untouched = prints

    def changes(self) -> list[str]:
        """Return what differs from the remembered state: files, mounts, and the network's settings."""
        now = self._fingerprint()
        return sorted(key for key in now.keys() | self._untouched.keys() if now.get(key) != self._untouched.get(key))

    def _fingerprint(self) -> dict[str, str]:
        layers = self._file("/.layers")
        prints = {"mounts": self._file("/proc/1/mountinfo").read_text()}
        for folder, _, names in os.walk(layers):
            for name in names:
                path = Path(folder, name)
                shown = f"/{path.relative_to(layers)}"
                if not any(part in shown for part in _EXPECTED):
                    prints[shown] = _describe(path)
        answers = self.network("sh", "-c", "; echo; ".join(_QUESTIONS))
        prints["network"] = answers.out
        return prints


def unseen(*folders: Path) -> list[Path]:
    """Return the folders that an overlay of / does not show: those on other mounts, or where a node has its own."""
    private = [Path(path) for path in ("/tmp", "/run", "/dev", "/shared")]
    missed: list[Path] = []
    for folder in dict.fromkeys(folder.absolute() for folder in folders):
        mount = next(path for path in (folder, *folder.parents) if path.is_mount())
        own = mount != Path("/") or any(folder.is_relative_to(path) for path in private)
        if own and not any(folder.is_relative_to(other) for other in missed):
            missed.append(folder)
    return missed


def _pid_inside(pid: int) -> int | None:
    """Return a process's pid in the node; None for one that runs outside, as nsenter does."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return None
    pids = next(line for line in status.splitlines() if line.startswith("NSpid:")).split()[1:]
    return int(pids[-1]) if len(pids) > 1 else None


def _describe(path: Path) -> str:
    stat = path.lstat()
    content = ""
    if path.is_symlink():
        content = str(path.readlink())
    elif path.is_file():
        content = hashlib.sha256(path.read_bytes()).hexdigest()
    return f"{stat.st_mode:o} {stat.st_uid} {stat.st_rdev} {content}"


def in_network(pid: int, *argv: str, text: str = "") -> Ended:
    """Run a program of the host's in a process's network, and under its host name."""
    return _run(["nsenter", "--target", str(pid), "--net", "--uts", "--", *argv], text)


def _run(command: list[str], text: str) -> Ended:
    started = time.monotonic()
    done = subprocess.run(
        command,
        input=text,
        text=True,
        capture_output=True,
        check=False,
        timeout=60,
        env=_SYSTEM,
        start_new_session=True,
    )
    return Ended(done.returncode, done.stdout, done.stderr, time.monotonic() - started)
