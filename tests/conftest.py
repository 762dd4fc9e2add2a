"""The three forms of a test run, and fixtures that tests of several families share.

| form | runs |
|---|---|
| `bash tests/run --quick` | tests that start no process and take less than a second |
| `bash tests/run` | what a change must pass |
| `bash tests/run --slow` | everything: also the tests marked `slow`, and each property with many more examples |

A test that starts a process is marked `process`, by hand or by the two tables below. With --quick a test without the
mark fails if it starts one. Tests marked `long` wait for a deadline, or simulate thousands of searches. Those marked
`without_gpus` are about a machine that has none; where there are some, tests/end_to_end runs on the CPUs.
"""

from __future__ import annotations

import ctypes
import gc
import inspect
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import msgspec
import pynvml
import pytest
from forms.coroutines import run_live
from hypothesis import HealthCheck, settings

from distcheck.facts.gpu import Gpus
from distcheck.probe import gpu

_HERE = Path(__file__).parent
_FAKES = _HERE / "nvml"
_TORCH = _HERE / "torch"

_PROCESS_FOLDERS = ("cluster", "end_to_end", "gpu")
"""Folders whose every test starts processes; with --quick their modules are not even imported."""
_PROCESS_FIXTURES = frozenset({"fake_nvml", "fake_torch"})
"""Fixtures that start a process, or that tests use to start one."""
_STARTS = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec", "os.system"})
"""The audit events of a process that is started (https://docs.python.org/3/library/audit_events.html)."""


class _Watch:
    """Which processes a test started that must start none."""

    on = False
    started: tuple[str, ...] = ()


def _audit(event: str, arguments: tuple[object, ...]) -> None:
    if _Watch.on and event in _STARTS:
        _Watch.started += (f"{event}{arguments[:2] if arguments else ()}",)


sys.addaudithook(_audit)


def pytest_addoption(parser):
    group = parser.getgroup("forms of a test run")
    group.addoption("--quick", action="store_true", help="run only tests that start no process and are not long")
    group.addoption("--slow", action="store_true", help="run also tests marked slow, and more examples per property")


def pytest_configure(config):
    # A shell starts what it runs in the background with SIGINT ignored, and so would be what tests interrupt.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.addinivalue_line("markers", "process: starts processes; left out by --quick")
    config.addinivalue_line("markers", "long: takes a second or more without a process; left out by --quick")
    config.addinivalue_line("markers", "slow: takes long and guards what rarely changes; runs with --slow")
    config.addinivalue_line("markers", "without_gpus: about a machine without GPUs; skipped on one that has some")
    # A deadline per example, or per set of examples, would measure the machine's load.
    common = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
    settings.register_profile("change", max_examples=40, derandomize=True, **common)
    settings.register_profile("slow", max_examples=2000, **common)
    settings.load_profile("slow" if config.getoption("slow") else "change")


def pytest_ignore_collect(collection_path, config):
    if config.getoption("quick") and collection_path.parent == _HERE and collection_path.name in _PROCESS_FOLDERS:
        return True
    return None


def pytest_collection_modifyitems(config, items):
    for item in items:
        if _folder(item.path) in _PROCESS_FOLDERS or not _PROCESS_FIXTURES.isdisjoint(item.fixturenames):
            item.add_marker(pytest.mark.process)
        if item.get_closest_marker("slow") and not config.getoption("slow"):
            item.add_marker(pytest.mark.skip(reason="slow; runs with --slow"))
        if item.get_closest_marker("without_gpus") and gpu.accelerator() != "none":
            item.add_marker(pytest.mark.skip(reason="this machine has GPUs"))
    if config.getoption("quick"):
        left_out = [item for item in items if any(item.iter_markers("process")) or any(item.iter_markers("long"))]
        config.hook.pytest_deselected(items=left_out)
        dropped = set(left_out)
        items[:] = [item for item in items if item not in dropped]


def pytest_collection_finish():
    gc.freeze()  # thousands of tests that every search for garbage would look at


def _folder(path: Path) -> str:
    return path.relative_to(_HERE).parts[0]


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """Run a test that is a coroutine function."""
    test = pyfuncitem.function
    if not inspect.iscoroutinefunction(test):
        return None
    run_live(test(**{name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}), 120)
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """Fail a test that starts a process and is not marked so, even if it catches what goes wrong."""
    _Watch.on, _Watch.started = item.config.getoption("quick"), ()
    try:
        result = yield
    finally:
        _Watch.on = False
    if _Watch.started:
        pytest.fail(f"starts a process and is not marked `process`: {', '.join(_Watch.started)}", pytrace=False)
    return result


@pytest.fixture(scope="session")
def trials(request):
    """Return the seeds of that many trials with --slow, and of a tenth of them otherwise."""
    slow = request.config.getoption("slow")
    return lambda number: range(number if slow else -(-number // 10))


class FakeNvml(NamedTuple):
    """A loadable libnvidia-ml.so.1, and a libcuda.so.1 beside it, whose answers a test writes down.

    What can be written is said in tests/nvml/fake_nvml.c and tests/nvml/fake_cuda.c.
    """

    folder: Path
    facts: Path

    def write(self, text: str) -> None:
        """Write down the answers in a new file, which the libraries take for another one whatever its size and time."""
        new = self.facts.with_suffix(".new")
        new.write_text(text)
        new.replace(self.facts)

    def environ(self, text: str) -> dict[str, str]:
        """Write down the answers and return this process's environment with the libraries found first."""
        self.write(text)
        folders = [str(self.folder), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
        return {**os.environ, "LD_LIBRARY_PATH": ":".join(folders), "DISTCHECK_FAKE_NVML": str(self.facts)}

    def variables(self, text: str) -> dict[str, str]:
        """Write down the answers and return only the variables with which the libraries are found."""
        told = self.environ(text)
        return {name: told[name] for name in ("LD_LIBRARY_PATH", "DISTCHECK_FAKE_NVML")}

    def read(self, text: str) -> Gpus:
        """Return what nvidia-ml-py reads, as the child that asks NVML does it, but in this process."""
        self.write(text)
        with pytest.MonkeyPatch.context() as patched:
            # On a machine with GPUs another test may have loaded the driver's own, which has the same name.
            patched.setattr(pynvml, "nvmlLib", ctypes.CDLL(str(self.folder / "libnvidia-ml.so.1")))
            patched.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
            patched.setenv("DISTCHECK_FAKE_NVML", str(self.facts))
            found = gpu.collect()
            assert isinstance(found, Gpus), found
            return msgspec.json.decode(msgspec.json.encode(gpu.examine(found)), type=Gpus)


@pytest.fixture(scope="session")
def _fake_nvml_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("nvml")
    for source, library in (("fake_nvml.c", "libnvidia-ml.so.1"), ("fake_cuda.c", "libcuda.so.1")):
        command = ["cc", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", f"-Wl,-soname,{library}"]
        subprocess.run([*command, "-o", folder / library, _FAKES / source], check=True)
    return folder


@pytest.fixture
def fake_nvml(_fake_nvml_folder, tmp_path):
    return FakeNvml(_fake_nvml_folder, tmp_path / "nvml.txt")


@pytest.fixture
def other_python(tmp_path, monkeypatch):
    """Let a shell script be the Python of the child processes; it is returned."""

    def instead(script):
        path = tmp_path / "python"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(path))
        return path

    return instead


class FakeTorch(NamedTuple):
    """A torch with CUDA as pip installs it, as far as it can be seen without importing it; its NCCL can be loaded."""

    site: Path
    """Its folder: torch, nvidia/nccl/lib/libnccl.so.2 and the NCCL wheel's folder."""
    libraries: Path
    """Further libraries, each in a folder of its own: old/libnccl.so.2, v5/libnccl-net.so."""

    def environ(self, **variables: str) -> dict[str, str]:
        """Return variables with which a process finds this torch first."""
        return {"PYTHONPATH": str(self.site), **variables}

    def version(self, version: str, cuda: str | None) -> None:
        text = f"__version__ = '{version}'\ncuda: Optional[str] = {cuda!r}\nhip: Optional[str] = None\n"
        (self.site / "torch" / "version.py").write_text(text)


def _compile(source: str, target: Path, *options: str) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    command = ["cc", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", f"-Wl,-soname,{target.name}"]
    subprocess.run([*command, *options[:-1], "-o", target, _TORCH / source, *options[-1:]], check=True)


@pytest.fixture(scope="session")
def _fake_torch_libraries(tmp_path_factory):
    """Compile every library once: NCCL 2.27.3 and others, the libtorch_cuda.so files that load it, and plugins."""
    made = tmp_path_factory.mktemp("torch")
    for folder, options in {
        "new": ("-DVERSION=22703",),
        "newer": ("-DVERSION=22809",),
        "older": ("-DVERSION=22602",),
        "old": ("-DVERSION=21801", "-DOLD"),
        "launch": ("-DVERSION=21403",),
        "diagnoses": ("-DVERSION=23203", "-DDIAGNOSES", "-lc"),
    }.items():
        _compile("fake_nccl.c", made / folder / "libnccl.so.2", *options)
    origin = "-Wl,-rpath,$ORIGIN/../../nvidia/nccl/lib"
    nccl = str(made / "new" / "libnccl.so.2")
    _compile("fake_torch_cuda.c", made / "rpath" / "libtorch_cuda.so", origin, "-Wl,--disable-new-dtags", nccl)
    _compile("fake_torch_cuda.c", made / "runpath" / "libtorch_cuda.so", origin, "-Wl,--enable-new-dtags", nccl)
    _compile("fake_torch_cuda.c", made / "static" / "libtorch_cuda.so", "-DALONE", "-lc")
    rccl = made / "rccl" / "librccl.so.1"
    _compile("fake_nccl.c", rccl, "-DVERSION=22206")
    rpath = "-Wl,-rpath,$ORIGIN"
    _compile("fake_torch_cuda.c", made / "hip" / "libtorch_hip.so", rpath, "-Wl,--disable-new-dtags", str(rccl))
    _compile("fake_plugin.c", made / "rccl" / "librccl-net.so", "-DSYMBOL=ncclNetPlugin_v8")
    for folder, symbol in {"v5": "ncclNetPlugin_v5", "v8": "ncclNetPlugin_v8"}.items():
        _compile("fake_plugin.c", made / folder / "libnccl-net.so", f"-DSYMBOL={symbol}")
    _compile("fake_plugin.c", made / "hang" / "libnccl-net.so", "-DSYMBOL=ncclNetPlugin_v8", "-DHANG", "-lc")
    _compile("fake_plugin.c", made / "tuner" / "libnccl-tuner-ours.so", "-DSYMBOL=ncclTunerPlugin_v4")
    _compile("fake_plugin.c", made / "gone" / "libabsent.so.1", "-DSYMBOL=absent")
    absent = str(made / "gone" / "libabsent.so.1")
    _compile(
        "fake_plugin.c", made / "broken" / "libnccl-net.so", "-DSYMBOL=ncclNetPlugin_v8", "-Wl,--no-as-needed", absent
    )
    (made / "gone" / "libabsent.so.1").unlink()
    return made


@pytest.fixture
def fake_torch(_fake_torch_libraries, tmp_path):
    """Lay out a torch 2.8.0+cu128 with its NCCL 2.27.3."""
    site, made = tmp_path / "site-packages", _fake_torch_libraries
    fake = FakeTorch(site, made)
    for source, target in {
        made / "rpath" / "libtorch_cuda.so": site / "torch" / "lib" / "libtorch_cuda.so",
        made / "new" / "libnccl.so.2": site / "nvidia" / "nccl" / "lib" / "libnccl.so.2",
    }.items():
        target.parent.mkdir(parents=True)
        shutil.copy(source, target)
    (site / "torch" / "lib" / "libtorch_python.so").write_bytes(b"\0std::string ipc_hsm_70 sm_80 sm_90\0sm_80\0")
    (site / "torch" / "__init__.py").touch()
    (site / "nvidia_nccl_cu12-2.27.3.dist-info").mkdir()
    fake.version("2.8.0+cu128", "12.8")
    return fake
