"""Collect how names resolve and ports bind, as torch's TCPStore does it."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import threading
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Literal

from distcheck.facts.base import Missing
from distcheck.facts.network import Attempt, Bind, PortConnection, PortOwner, Resolution, ReverseLookup
from distcheck.probe import ports
from distcheck.probe.process import command_or_name, container_of, parent_of, slurm_job_of
from distcheck.probe.waiting import waited_for_cpu

_MOST_LINES = 10_000
"""Most lines of /etc/hosts to read."""


def resolve(name: str) -> Resolution | Missing:
    """Resolve a name once; blocks as long as the resolver does."""
    start = time.monotonic()
    try:
        answers = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        return Missing(reason=str(error))
    addresses = tuple(dict.fromkeys(str(a[4][0]) for a in answers))
    return Resolution(name=name, addresses=addresses, seconds=time.monotonic() - start)


def resolve_within(name: str, seconds: float) -> Resolution | Missing:
    """Resolve a name once, for at most so many seconds: without a server that answers it takes half a minute."""
    found: list[Resolution | Missing] = []
    thread = threading.Thread(target=lambda: found.append(resolve(name)), daemon=True)
    try:
        thread.start()
    except RuntimeError:  # no further thread may start; what waits for this process ends a call that blocks
        return resolve(name)
    thread.join(seconds)
    return found[0] if found else unanswered(seconds)


def names_like(name: str, hosts: Path = Path("/etc/hosts")) -> tuple[str, ...]:
    """Return the names in /etc/hosts that are spelt like a name that does not resolve."""
    try:
        lines = hosts.read_text("utf-8", "replace").splitlines()[:_MOST_LINES]
    except OSError:
        return ()
    from distcheck.selection.near_names import near_names  # only needed for a name that does not resolve

    return near_names(name, (own for line in lines for own in line.partition("#")[0].split()[1:]))


def unanswered(seconds: float) -> Missing:
    """Return that the resolver gave no answer."""
    return Missing(reason=f"no answer from the resolver within {seconds:.2g} s")


def reverse(address: str) -> ReverseLookup:
    """Look up an address's name, as torch's TCPStore does for every connection.

    Blocks as long as the resolver does. The time excludes waiting for a CPU.

    Source: pytorch, torch/csrc/distributed/c10d/socket.cpp (getnameinfo in the formatting of socket addresses).
    """
    start, waited = time.monotonic(), waited_for_cpu()
    try:
        name = socket.getnameinfo((address, 0), socket.NI_NAMEREQD | socket.NI_NUMERICSERV)[0]
    except (OSError, UnicodeError):
        name = ""
    seconds = time.monotonic() - start - (waited_for_cpu() - waited)
    return ReverseLookup(address=address, name=name, seconds=max(0.0, seconds))


def listen(port: int, backlog: int = 2048) -> socket.socket:
    """Listen as torch's TCPStore does: dual-stack IPv6 on every address, else IPv4 alone.

    Source: pytorch, torch/csrc/distributed/c10d/socket.cpp (SocketListenOp) and TCPStoreLibUvBackend.cpp. Raises the
    kernel's OSError, the more specific one of the two tries.
    """
    try:
        return socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=backlog)
    except ValueError:
        pass  # the kernel has no IPv6 (ipv6.disable=1)
    except OSError as error:
        if error.errno in {errno.EADDRINUSE, errno.EACCES}:
            raise
    return socket.create_server(("0.0.0.0", port), backlog=backlog)


def bind(port: int, *, agent: bool = False) -> tuple[socket.socket | None, Bind]:
    """Listen on MASTER_PORT; `agent`: torchrun's agent should already be listening there.

    Returns the listening socket, None if it could not be bound, and what happened.
    """
    try:
        return listen(port), Bind(port=port, outcome="bound")
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            owner, connection = port_owner(port)
            outcome: Literal["agent", "in-use"] = "agent" if agent else "in-use"
            return None, Bind(port=port, outcome=outcome, error=str(error), owner=owner, connection=connection)
        denied = error.errno in {errno.EACCES, errno.EPERM}
        return None, Bind(port=port, outcome="denied" if denied else "failed", error=str(error))


def knock_at_own(listening: socket.socket, address: str, seconds: float) -> Attempt:
    """Connect to an address at our own listening port and check that we answer."""
    port = int(listening.getsockname()[1])

    def ended(outcome: Literal["met", "refused", "timeout", "unreachable"], detail: str = "") -> Attempt:
        return Attempt(address=address, port=port, door="master", outcome=outcome, detail=detail)

    try:
        with socket.create_connection((address, port), seconds) as knocking:
            own, until = knocking.getsockname()[1], time.monotonic() + seconds
            while (left := until - time.monotonic()) > 0:
                listening.settimeout(left)
                answered, who = listening.accept()
                answered.close()
                if who[1] == own:  # others may knock here too, as health checks do
                    return ended("met")
            return ended("timeout", f"no answer within {seconds:.1f} s")
    except TimeoutError:
        return ended("timeout", f"no answer within {seconds:.1f} s")
    except ConnectionRefusedError as error:
        return ended("refused", str(error))
    except OSError as error:
        return ended("unreachable", str(error))


def port_owner(port: int) -> tuple[PortOwner | Missing, PortConnection | None]:
    """Return the owner of the socket that holds a TCP port of this network namespace.

    If no socket listens, a connection may hold the port, and is returned too. SO_REUSEADDR, which torch sets, does not
    help against the sockets of outgoing connections, which do not set it; the kernel keeps them in TIME_WAIT.
    """
    import psutil

    try:
        sockets = [c for c in psutil.net_connections("tcp") if c.laddr and c.laddr.port == port]
    except (OSError, psutil.Error) as error:
        return Missing(reason=f"cannot list the sockets: {error}"), None
    listening = [c for c in sockets if c.status == psutil.CONN_LISTEN]
    candidates = listening or [c for c in sockets if c.raddr]
    if not candidates:
        return Missing(reason="no socket found; its process may have ended, or only have bound the port"), None
    holding = max(candidates, key=lambda c: (c.pid is not None, c.status != psutil.CONN_TIME_WAIT))
    connection = None
    if not listening:
        connection = PortConnection(peer=_endpoint(*holding.raddr), state=holding.status)
    if holding.pid is not None:
        return owner_of(first_holder(holding.pid, holding.fd)), connection
    if connection and connection.ended:
        return Missing(reason="the connection has ended"), connection
    user = "" if connection else ports.listening_user(port)
    whose = f"it belongs to {user}" if user else "it belongs to another user or container"
    return Missing(reason=f"{whose} and is hidden from this process"), connection


def _endpoint(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def owner_of(pid: int) -> PortOwner | Missing:
    """Return what is known of a process that holds something."""
    import psutil

    try:
        process = psutil.Process(pid)
        with process.oneshot():
            container = container_of(pid)
            return PortOwner(
                pid=pid,
                command=command_or_name(pid)[:300],
                user=process.username(),
                started=datetime.fromtimestamp(process.create_time(), tz=timezone.utc).isoformat(timespec="seconds"),
                own=process.uids().real == os.getuid(),
                slurm_job=slurm_job_of(pid),
                container=container if container != container_of(os.getpid()) else "",
            )
    except (OSError, psutil.Error) as error:
        return Missing(reason=f"cannot read process {pid}: {error}")


def first_holder(pid: int, descriptor: int) -> int:
    """Return the process from which one inherited a socket, as a server's workers do; itself if it opened it."""

    def held(pid: int) -> set[str]:
        found = set()
        with contextlib.suppress(OSError):  # it is gone or hidden
            for entry in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    found.add(str(entry.readlink()))
        return found

    try:
        opened = str(Path(f"/proc/{pid}/fd/{descriptor}").readlink())
    except OSError:
        return pid
    while (parent := parent_of(pid)) and opened in held(parent):
        pid = parent
    return pid


def free_port() -> int:
    """Return a port that is free now, outside the ephemeral range if possible.

    An outgoing connection may take an ephemeral port before the job binds it; it cannot take a port below the range.
    Falls back to an ephemeral port.
    """
    start = 20000 + os.getpid() % 9000
    for port in range(start, start + 200):
        try:
            listen(port).close()
        except OSError:
            continue
        return port
    with listen(0) as sock:
        return int(sock.getsockname()[1])
