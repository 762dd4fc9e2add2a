"""Look at what an inference engine will need on this node, in a child process that may hang."""

from __future__ import annotations

import socket
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from distcheck.facts.base import Missing
from distcheck.facts.engine import Engine, FixedPort
from distcheck.facts.touch import touch, which
from distcheck.probe import network, ports
from distcheck.probe.child import Question
from distcheck.probe.command import answer_of, packages

_OUTSIDE = ((socket.AF_INET, "8.8.8.8"), (socket.AF_INET6, "2001:4860:4860::8888"))
"""Towards these the engines choose their address; nothing is sent.

Sources: vLLM 0.33, utils/network_utils.py get_ip; SGLang 0.5.23, srt/utils/network.py get_local_ip_by_remote.
"""
_SHARED = ("vllm", "sglang", "flashinfer-python", "nixl", "ray")
"""Packages whose processes on several nodes exchange data of their own format."""
_UNKNOWN = Missing(reason="not read")
_ABSENT = (FileNotFoundError, NotADirectoryError)


def question(engine: Engine) -> Question:
    """Return what to start for this engine, as COMMAND states it."""
    line = msgspec.json.encode(engine).decode()
    return Question(__name__, "what the engine needs", "a file system hangs", (line,), "answers")


def answers(line: str) -> Iterator[Engine]:
    """Yield the engine with what is here, first without what may take long."""
    stated = msgspec.json.decode(line, type=Engine)
    found = replace(stated, ports=tuple(_port(port) for port in stated.ports), **_address(stated))
    yield replace(found, model_state="silent" if found.model else "")
    found = replace(found, **_model(found.model))
    yield found
    yield replace(found, versions=_versions(found.program))


def _port(port: FixedPort) -> FixedPort:
    if port.meets or not ports.listens_at(port.number, port.host):
        return port
    free = next(iter(ports.free_near(port.number, _UNKNOWN, _UNKNOWN, 1)), None)
    return replace(port, owner=network.port_owner(port.number)[0], free=free)


def _address(engine: Engine) -> Mapping[str, Any]:
    """Return the address that an engine takes where no variable names one."""
    adapter = engine.address_by.partition("=")[2]
    if not engine.announces or engine.address:
        return {}
    if adapter:
        import psutil

        known = psutil.net_if_addrs().get(adapter, [])
        at = [i.address for i in known if i.family == socket.AF_INET and i.address != "127.0.0.1"]
        if at:
            return {"address": at[0]}
    for family, outside in _OUTSIDE:
        with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.connect((outside, 80))
            return {"address": sock.getsockname()[0], "address_by": f"the route to {outside}"}
    with suppress(OSError):
        own = socket.getaddrinfo(socket.gethostname(), None)[0][4][0] if engine.name == "SGLang" else ""
        return {"address": own, "address_by": "its host name" if own else "the route to 8.8.8.8"}
    return {"address_by": "the route to 8.8.8.8"}


def _model(path: str) -> Mapping[str, Any]:
    """Return whether a model's path exists."""
    if not path:
        return {}
    try:
        folder = touch(path, "COMMAND's model", lambda: stat.S_ISDIR(Path(path).stat().st_mode))
    except TimeoutError:
        return {"model_state": "silent"}
    except OSError as error:
        return {"model_state": "absent" if isinstance(error, _ABSENT) else "unreadable"}
    return {"model_state": "folder" if folder else "file"}


def _versions(program: str) -> dict[str, str]:
    """Return the versions installed for the engine's Python, by the names of their metadata; no package is imported."""
    found = which(program) if program else None
    folders = answer_of([found], "-c", "import sys; print('\\n'.join(sys.path[1:]))").splitlines() if found else []
    names = dict(name.split("==", 1) for name in packages(folders).names) if folders else {}
    return {name: names[name] for name in _SHARED if name in names}
