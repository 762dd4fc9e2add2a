"""Run programs of the benchmarks, each as if no launcher had started it."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


class NotMeasuredError(Exception):
    """A side of a row did not run as it should."""


def install(folder: str) -> None:
    """Install this checkout as users do, compiled and without its dependencies, which are here, for all that follows.

    The checkout itself starts more slowly: nobody has compiled all of it.
    """
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", folder, str(ROOT)]
    subprocess.run([*command, "--disable-pip-version-check"], check=True)
    os.environ["PYTHONPATH"] = folder
    os.chdir(folder)  # `python -m` looks in the current folder first: at the top of a checkout it would run that
    check_installed(Path(folder))


def check_installed(folder: Path) -> None:
    """Check that programs run the compiled package in a folder, not the checkout or one that Python compiles first."""
    where = output_of([sys.executable, "-c", "import distcheck; print(distcheck.__file__)"], PYTHONPATH=str(folder))
    if not Path(where.strip()).is_relative_to(folder):
        raise NotMeasuredError(f"not the installed package but {where.strip()} would be measured")
    modules = list((folder / "distcheck").rglob("*.py"))
    if bare := [path for path in modules if not Path(importlib.util.cache_from_source(path)).exists()]:
        raise NotMeasuredError(f"{len(bare)} of {len(modules)} modules are not compiled, {bare[0].name} for one")


def output_of(command: Sequence[str], **variables: str) -> str:
    launcher = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    environ = {name: value for name, value in os.environ.items() if name not in launcher}
    run = subprocess.run(
        command, env={**environ, **variables}, capture_output=True, text=True, timeout=3600, check=False
    )
    if run.returncode != 0:
        raise NotMeasuredError(
            f"{' '.join(command[1:4])} ended with {run.returncode}: {_end(run.stderr or run.stdout)}"
        )
    return run.stdout


def output_of_script(name: str, *arguments: str, undisturbed: bool = False) -> str:
    """Return what a program of this folder prints."""
    command = names_from_files([sys.executable, str(HERE / name), *arguments])
    return output_of(at_real_time_priority(command) if undisturbed else command)


def seconds_of(command: Sequence[str], **variables: str) -> float:
    start = time.perf_counter()
    output_of(command, **variables)
    return time.perf_counter() - start


def names_from_files(command: Sequence[str]) -> list[str]:
    """Let a command resolve names from /etc/hosts only, where the kernel lets us.

    Torch's store asks for the name of every address it connects to, and a name server that is slow to say that it
    knows none would be measured instead of torch.
    """
    private = ["unshare", "--user", "--map-root-user", "--mount"]
    if shutil.which("unshare") is None or subprocess.run([*private, "true"], check=False).returncode != 0:
        return list(command)
    mount = 'mount --bind $0 /etc/nsswitch.conf && exec "$@"'
    return [*private, "sh", "-c", mount, str(HERE / "nsswitch.conf"), *command]


def at_real_time_priority(command: Sequence[str]) -> list[str]:
    """Let no other program of the machine interrupt a command, where the kernel lets us.

    What does so now and then is a tenth of a burst of collectives.
    """
    priority = ["chrt", "--rr", "1"]
    if shutil.which("chrt") is None or subprocess.run([*priority, "true"], check=False).returncode != 0:
        return list(command)
    return [*priority, *command]


@contextlib.contextmanager
def four_nodes() -> Iterator[Callable[[str], list[float]]]:
    """Yield what asks four_nodes.py, whose cluster is there until the end."""
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            [sys.executable, str(HERE / "four_nodes.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as running,
    ):
        assert running.stdin is not None
        assert running.stdout is not None
        stdin, stdout = running.stdin, running.stdout

        def ask(what: str) -> list[float]:
            with contextlib.suppress(BrokenPipeError):
                print(what, file=stdin, flush=True)
            line = stdout.readline()
            if not line:
                errors.seek(0)
                raise NotMeasuredError(f"four_nodes.py did not answer {what}: {_end(errors.read())}")
            return [float(word) for word in line.split()]

        yield ask


def one_rank() -> dict[str, str]:
    """Return the variables of a world of one rank."""
    ranks = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    return {**ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def _end(text: str) -> str:
    return " ".join(text.strip().splitlines()[-3:])
