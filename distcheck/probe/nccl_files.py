"""Collect the configuration files of NCCL and RCCL, and what is at the paths that variables name."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from distcheck.facts.base import Missing
from distcheck.facts.mounts import mount_at
from distcheck.facts.nccl import NamedPath, NcclFile
from distcheck.facts.storage import is_network
from distcheck.facts.touch import ask, touch
from distcheck.probe.environment import hidden
from distcheck.selection.nccl_settings import in_use, settings

if TYPE_CHECKING:
    from typing import Literal

_ROOT = Path("/")
_LARGEST_BYTES, _MOST_LINES, _LONGEST = 256 << 10, 200, 2048
_MENTIONS = re.compile(r"\b[A-Za-z_]{0,8}CCL_\w|^\W*(?:export\s+)?(?:FI|UCX)_\w", re.IGNORECASE)
_NAMED = ("NCCL_CONF_FILE", "NCCL_TOPO_FILE", "NCCL_GRAPH_FILE", "NCCL_DEBUG_FILE", "NCCL_TOPO_DUMP_FILE")
_TOPOLOGY = "/var/run/nvidia-topologyd/virtualTopology.xml"
"""The topology file that NCCL reads if NCCL_TOPO_FILE is unset (NVIDIA/nccl, src/graph/topo.cc)."""
_GPU = re.compile(r'<pci busid="([0-9a-fA-F:.]{7,16})" class="0x0?30[02]')


def read(environ: Mapping[str, str], root: Path = _ROOT) -> tuple[NcclFile, ...]:
    """Return the configuration files that exist for a process with this environment.

    The variables' own file and a home's file are both returned: which of them counts depends on NCCL's version.
    Source: NVIDIA/nccl and ROCm/rccl, src/misc/param.cc.
    """
    homes: dict[str, Literal["HOME", "passwd", "HOME+passwd"]] = {}
    if home := environ.get("HOME"):
        homes[home] = "HOME"
    if listed := _listed_home():
        homes[listed] = "HOME+passwd" if listed in homes else "passwd"
    for home in homes:
        ask(os.path.join(root, home), "HOME")  # noqa: PTH118 the folder is named, and not a file that may not be there
    found = [_file(environ.get("NCCL_CONF_FILE", ""), "NCCL_CONF_FILE", "nccl", root)]
    for library in ("nccl", "rccl"):
        found += [_file(f"{home}/.{library}.conf", origin, library, root) for home, origin in homes.items()]
        found.append(_file(f"/etc/{library}.conf", "system", library, root))
    return tuple(file for file in found if file is not None)


def _listed_home() -> str:
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except (KeyError, OSError):
        return ""


def _file(
    path: str,
    origin: Literal["NCCL_CONF_FILE", "HOME", "passwd", "HOME+passwd", "system"],
    library: Literal["nccl", "rccl"],
    root: Path,
) -> NcclFile | None:
    """Return a file that exists, else None; an empty one for the file that a variable names and that does not."""
    if not path:
        return None
    try:
        place = _under(root, path)
        text = touch(place, "HOME" if origin.startswith("HOME") else origin, lambda: _text(place))
    except FileNotFoundError:
        # A file that NCCL_CONF_FILE names replaces the home's even if it does not exist.
        return NcclFile(path=path, origin=origin, library=library, lines=()) if origin == "NCCL_CONF_FILE" else None
    except OSError as error:
        return NcclFile(path=path, origin=origin, library=library, lines=Missing(reason=f"{path}: {error.strerror}"))
    lines = (line.removesuffix("\r")[:_LONGEST] for line in text.split("\n"))
    wanted = [hidden(line) for line in lines if not line.startswith("#") and _MENTIONS.search(line)]
    return NcclFile(path=path, origin=origin, library=library, lines=tuple(wanted[:_MOST_LINES]))


def _under(root: Path, path: str) -> Path:
    """Return a path below another root; a relative one is relative to the working folder, as for NCCL."""
    return root / path.lstrip("/") if path.startswith("/") else Path(path)


def _text(path: Path) -> str:
    """Return the beginning of a file; never wait for the writer of a pipe."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return ""
        return os.read(fd, _LARGEST_BYTES).decode("utf-8", "replace")
    finally:
        os.close(fd)


def named_paths(environ: Mapping[str, str], files: Iterable[NcclFile], root: Path = _ROOT) -> dict[str, NamedPath]:
    """Return what is at the files that NCCL's variables name, and at the topology file that it reads unasked."""
    known = settings(environ, in_use(files, ()))
    paths = {name: known[name].value for name in _NAMED if name in known and known[name].value}
    if "NCCL_TOPO_FILE" not in paths and os.access(root / _TOPOLOGY.lstrip("/"), os.F_OK):
        paths["NCCL_TOPO_FILE"] = _TOPOLOGY
    found = {}
    for name, path in paths.items():
        look = partial(_named, path[:_LONGEST], place := _under(root, path[:_LONGEST]), root)
        with suppress(TimeoutError):  # what does not answer is reported for itself
            found[name] = touch(place, name, partial(look, topology=name == "NCCL_TOPO_FILE"), kind=NamedPath)
    return found


def _named(path: str, place: Path, root: Path, *, topology: bool) -> NamedPath:
    state: Literal["readable", "missing", "denied", "other"] = "readable"
    try:
        if not stat.S_ISREG(place.stat().st_mode):
            state = "other"
        elif not os.access(place, os.R_OK):
            state = "denied"
    except PermissionError:
        state = "denied"
    except OSError:
        state = "missing"
    above = place.parent
    folder: Literal["writable", "missing", "denied"] = (
        "missing" if not os.path.isdir(above) else "writable" if os.access(above, os.W_OK | os.X_OK) else "denied"  # noqa: PTH112 it never raises
    )
    return NamedPath(
        path=path,
        state=state,
        folder=folder,
        file_system=_network_file_system(above) if folder == "writable" else "",
        absent_devices=_absent(place, root) if topology and state == "readable" else (),
    )


def _network_file_system(folder: Path) -> str:
    """Return the type of a folder's file system if it is a network file system, else ''."""
    try:
        mount = mount_at(os.path.realpath(folder))
    except OSError:
        return ""
    return mount.file_system if mount is not None and is_network(mount.file_system) else ""


def _absent(place: Path, root: Path) -> tuple[str, ...]:
    """Return the GPUs of a topology file that are not on this node's PCI bus."""
    try:
        listed = _GPU.findall(_text(place))
        here = {entry.name for entry in (root / "sys/bus/pci/devices").iterdir()}
    except OSError:
        return ()
    full = {bus if bus.count(":") == 2 else f"0000:{bus}" for bus in (one.lower() for one in listed)}
    return tuple(sorted(full - here))[:16]
