"""Which NCCL and which plugins a process's torch would load, and for which GPUs torch was built.

A child with the process's own variables follows the dynamic linker's rules (ld.so(8)) for the libnccl.so.2 that torch's
libtorch_cuda.so requires, or the librccl.so of a ROCm torch's libtorch_hip.so, loads that file and asks it for its
version. torch itself is not imported, which takes seconds. A library can do anything when it is loaded, so the child
has a deadline.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from distcheck.facts.base import Missing
from distcheck.facts.libraries import FoundBy, Libraries, NcclPlugin, dotted
from distcheck.facts.node import NO_TORCH
from distcheck.probe import child
from distcheck.probe.child import Question
from distcheck.probe.elf import Dynamic, dynamic
from distcheck.probe.kernel_files import mapped

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_LIBRARIES = Question(__name__, "NCCL's library", "a file system hangs, or a plugin does not return when it is loaded")
_NAMES = ("libnccl.so", "librccl.so")
"""NVIDIA's library, and AMD's, which has the same functions."""
_CALLED = re.compile(rb"(?<=\0)nccl[A-Z]\w+(?=\0)")
_ARCHITECTURE = rb"(?:sm|compute)_\d{2,3}[a-z]?"
_ARCHITECTURES = re.compile(rb"%b(?: %b)*(?=\0)" % (_ARCHITECTURE, _ARCHITECTURE))
_NEWEST_INTERFACE = 40
_MOST = 16

PLUGINS: dict[Literal["net", "tuner", "profiler"], tuple[str, str]] = {
    "net": ("NCCL_NET_PLUGIN", "ncclNetPlugin_v"),
    "tuner": ("NCCL_TUNER_PLUGIN", "ncclTunerPlugin_v"),
    "profiler": ("NCCL_PROFILER_PLUGIN", "ncclProfiler_v"),
}
"""The variable that names each kind of plugin, and its symbol (NCCL's src/plugin)."""


async def libraries(environ: Mapping[str, str], timeout: float) -> Libraries | Missing:
    """Ask in a child process with these variables, for at most `timeout` seconds."""
    return await child.ask(_LIBRARIES, Libraries, timeout, environ=environ)


def collect(environ: Mapping[str, str] = os.environ) -> Libraries | Missing:
    """Load NCCL and its plugins into this process. That can hang: callers use `libraries`."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return Missing(reason=NO_TORCH)
    torch = Path(spec.origin).parent
    # conda's torch has its libraries in the environment's lib folder.
    names = ("libtorch_cuda.so", "libtorch_hip.so")
    places = [folder / name for name in names for folder in (torch / "lib", Path(sys.prefix) / "lib")]
    linked = next((found for place in places if (found := dynamic(place)) is not None), None)
    if linked is None:
        return Missing(reason=f"{places[0]} cannot be read")
    known = _nccl(linked, environ, torch.parent)
    return msgspec.structs.replace(
        known,
        plugins=() if known.error else tuple(_plugins(environ, rccl=_is_rccl(linked))),
        architectures=_architectures(torch / "lib" / "libtorch_python.so"),
        machine=os.uname().machine,
    )


def _nccl(linked: Dynamic, environ: Mapping[str, str], site: Path) -> Libraries:
    name = next((name for name in linked.needed if name.startswith(_NAMES)), None)
    if name is None:
        return Libraries()
    wheels = tuple(sorted(_distribution(folder.name) for folder in site.glob("nvidia_nccl_cu*.dist-info")))
    # The linker does not look for a library again that it has loaded by this name, as for LD_PRELOAD.
    loaded = next(filter(_is_nccl, mapped()), "")
    ways: tuple[tuple[FoundBy, tuple[str, ...]], ...] = (
        ("torch", linked.rpath),
        ("LD_LIBRARY_PATH", tuple(filter(None, environ.get("LD_LIBRARY_PATH", "").split(":")))),
        ("torch", linked.runpath),
    )
    searched = ((how, Path(folder) / name) for how, folders in ways for folder in folders)
    how, found = next(((how, str(path)) for how, path in searched if os.path.isfile(path)), ("system", name))  # noqa: PTH113 it never raises
    if loaded:
        how, found = "LD_PRELOAD", loaded
    own = next((p for f in (*linked.rpath, *linked.runpath) if os.path.isfile(p := Path(f) / name)), None)  # noqa: PTH113
    known = Libraries(wheels=wheels, own=str(own.resolve()) if own else "")
    try:
        return _loaded(known, linked, found, how)
    except OSError as error:
        # torch then tries the wheels in the other folders of sys.path (_preload_cuda_deps in torch/__init__.py).
        elsewhere = (Path(folder) / "nvidia" / "nccl" / "lib" / name for folder in sys.path)
        if how == "system" and (path := next(filter(Path.is_file, elsewhere), None)) is not None:
            return _loaded(msgspec.structs.replace(known, own=str(path.resolve())), linked, str(path), "torch")
        return msgspec.structs.replace(
            known, nccl="" if how == "system" else str(Path(found).resolve()), error=str(error)
        )


def _loaded(known: Libraries, linked: Dynamic, found: str, how: FoundBy) -> Libraries:
    """Load an NCCL and add what it is; raise OSError if it cannot be loaded."""
    library = ctypes.CDLL(found)
    path = str(Path(found).resolve()) if "/" in found else next(filter(_is_nccl, mapped()), "")
    called = sorted({match.decode() for match in _CALLED.findall(linked.names)})
    return msgspec.structs.replace(
        known,
        nccl=path,
        version=_version(library),
        found_by=how,
        own_version=_version_of(known.own) if known.own not in {"", path} else "",
        lacks=tuple(function for function in called if not hasattr(library, function))[:_MOST],
    )


def _is_rccl(linked: Dynamic) -> bool:
    return any(name.startswith("librccl.so") for name in linked.needed)


def _is_nccl(path: str) -> bool:
    return Path(path).name.startswith(_NAMES)


def _distribution(folder: str) -> str:
    """Return a distribution as pip shows it: nvidia-nccl-cu12 2.27.3."""
    return folder.removesuffix(".dist-info").replace("-", " ").replace("_", "-")


def _version(library: ctypes.CDLL) -> str:
    """Return the version of a loaded NCCL, '' if it does not tell."""
    number = ctypes.c_int()
    try:
        return "" if library.ncclGetVersion(ctypes.byref(number)) else dotted(number.value)
    except AttributeError:
        return ""


def _version_of(path: str) -> str:
    try:
        return _version(ctypes.CDLL(path))
    except OSError:
        return ""


def _plugins(environ: Mapping[str, str], *, rccl: bool) -> Iterator[NcclPlugin]:
    """Open the plugins as NCCL's src/plugin/plugin_open.cc does; files that do not exist are left out.

    RCCL's are librccl-net.so and librccl-tuner.so (ROCm/rccl, src/net.cc and src/misc/tuner.cc).
    """
    for kind, (variable, symbol) in PLUGINS.items():
        given = environ.get(variable, "")
        if given.lower() == "none":
            continue
        for one in given.split(",") if given else [""]:
            short = one and "/" not in one and not (one.startswith("lib") and one.endswith(".so"))
            whose = "rccl" if rccl and kind != "profiler" else "nccl"
            names = [one or f"lib{whose}-{kind}.so", *([f"lib{whose}-{kind}-{one}.so"] if short else [])]
            yield from (plugin for name in names for plugin in [_plugin(kind, name, symbol)] if plugin is not None)


def _plugin(kind: Literal["net", "tuner", "profiler"], name: str, symbol: str) -> NcclPlugin | None:
    before = set(mapped())
    try:
        library = ctypes.CDLL(name)
    except OSError as error:
        absent = str(error).startswith(f"{name}: cannot open") and "No such file" in str(error)
        return None if absent else NcclPlugin(kind, name, error=str(error))
    fresh = [path for path in mapped() if path not in before]
    path = next((p for p in fresh if Path(p).name.startswith(Path(name).stem)), next(iter(fresh), ""))
    versions = range(1, _NEWEST_INTERFACE)
    return NcclPlugin(kind, name, path, tuple(f"{symbol}{n}" for n in versions if hasattr(library, f"{symbol}{n}")))


def _architectures(library: Path) -> tuple[str, ...]:
    """Return the architectures in torch's build: the text behind torch.cuda.get_arch_list().

    It is a constant of torch/csrc/cuda/Module.cpp ("sm_80 sm_86 sm_90"), found in torch 2.8's libtorch_python.so.
    """
    try:
        with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            longest = max(_ARCHITECTURES.findall(content), key=len, default=b"")
    except (OSError, ValueError):
        return ()
    return tuple(longest.decode().split())
