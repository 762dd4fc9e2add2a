"""The checks as a function: `distcheck.preflight()` in a training script, before `init_process_group()`.

The checks run in a child process, because they fork ranks, handle signals and import torch. The calling process may
have threads and CUDA; nothing of it changes.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Literal, NamedTuple

from distcheck.probe.memory_file import memory_file
from distcheck.report.harmless import harmless
from distcheck.report.schema.document import Document
from distcheck.rules.finding import Verdict, VerdictName, outcome

Command = Literal["env", "net", "gpu", "bandwidth", "isolate", "gate"]

_VERDICTS: dict[int, VerdictName] = {0: "pass", 10: "warn", 30: "job", 40: "node"}
"""The verdict of an exit code; of any other code: unknown."""
_USAGE = 2
_TIMEOUT = 60.0
_BEYOND_SECONDS = 10.0
"""What the child may take beyond its time limit: 5 s by its promise, and its start on a busy machine."""
_LOOK_SECONDS = 0.5
_END_SECONDS = 5.0
"""From SIGTERM to SIGKILL."""
_TAIL_BYTES = 1 << 14
_OWN = ("--format", "--output", "--timeout")
_COMPLAINT = "distcheck: error: "
_BROKEN, _UNKNOWN = 70, 20
_PR_SET_PDEATHSIG = 1
_ENDED = re.compile(rb"^exit code (\d+)$", re.MULTILINE)
"""The child's last line: waiting for it tells nothing if this process ignores SIGCHLD or another thread reaps it."""


class PreflightResult(NamedTuple):
    """How the checks ended; true if they passed."""

    command: Command
    exit_code: int
    """The exit code of `distcheck`, the same on every rank that met rank 0; negative if a signal ended it."""
    report: Document | None
    """The report, as in `--format json`; None on ranks that follow rank 0."""
    log: str
    """The end of what the checks wrote to stderr."""
    armed: str = ""
    """What `arm` reaches; empty without it."""

    @property
    def verdict(self) -> VerdictName:
        """The exit code as a word: pass (warnings included), warn (only with strict), unknown, job, node."""
        return _VERDICTS.get(self.exit_code, "unknown")

    @property
    def passed(self) -> bool:
        """Whether the job can start."""
        return self.exit_code == 0

    def __bool__(self) -> bool:
        return self.passed

    def __str__(self) -> str:
        return "\n".join(filter(None, (self._outcome(), self.armed)))

    def _outcome(self) -> str:
        report = self.report
        if report is None:
            word = outcome(Verdict(self.verdict, self.exit_code))
            last = _last_line(self.log)
            if last.startswith(f"{word}: "):  # it says where the report is
                return last
            lines = [f"{word}: distcheck {self.command}, exit code {self.exit_code}"]
            return "\n".join(lines if self.passed else [*lines, last or "rank 0 has the report"])
        lines = [harmless(report.headline)]
        for finding in report.findings:
            if finding.severity != "info":
                lines.append(f"{finding.severity}: {finding.rule}: {harmless(finding.message)}")
                lines += [f"  fix: {harmless(finding.fix.text)}", *(f"    {harmless(c)}" for c in finding.fix.commands)]
        if self.verdict == "unknown":
            lines += dict.fromkeys(f"not checked: {harmless(each.reason)}" for each in report.not_checked)
        return "\n".join(lines)


class PreflightError(RuntimeError):
    """The checks did not pass; `result` has the report."""

    def __init__(self, result: PreflightResult) -> None:
        super().__init__(str(result))
        self.result = result

    def __reduce__(self) -> tuple[type[PreflightError], tuple[PreflightResult]]:
        return type(self), (self.result,)


def preflight(
    command: Command = "gate",
    *options: str,
    rank: int | None = None,
    world_size: int | None = None,
    local_rank: int | None = None,
    master_addr: str | None = None,
    master_port: int | None = None,
    backend: str | None = None,
    timeout: float | None = None,
    strict: bool = False,
    check: bool = False,
    quiet: bool = False,
    arm: bool = False,
) -> PreflightResult:
    """Check that `torch.distributed` will start with exactly these ranks, and how fast they communicate.

    Call it on every rank, before `init_process_group()` and before the first use of CUDA. It takes a few seconds and
    returns on all ranks with the same exit code. Rank 0 has the report, and so has a rank that did not reach rank 0
    (its own partial one); the others have `report=None`.

    The checks run in a child process with the environment and the working directory of this one. They use MASTER_PORT
    and free it before they end. The calling process keeps its signal handlers, threads, environment, random state and
    CUDA context; only `arm` sets something in it. What the checks write to stderr goes to `sys.stderr`. The child ends
    if this process ends.

    Without a launcher's variables and without `rank`, as in a notebook, this process is the only rank.

    Args:
        command: what to check, as on the command line.
        options: further options of that command, as on the command line: `"--ignore", "perf-below-expectation"`.
        rank: rank of this process, if the environment does not define it, as in `init_process_group(rank=...)`.
        world_size: number of ranks; with `rank`.
        local_rank: rank of this process on its node.
        master_addr: address on which rank 0 listens.
        master_port: port on which rank 0 listens.
        backend: the job's backend; by default nccl with GPUs, else gloo.
        timeout: time limit for the whole run in seconds, by default 60.
        strict: warnings fail, with exit code 10.
        check: raise `PreflightError` if the verdict is not a pass.
        quiet: write nothing to `sys.stderr`.
        arm: let `distcheck hang` attach to this process later without root, where kernel.yama.ptrace_scope is 1.

    Raises:
        PreflightError: with `check`, on every rank, if the exit code is not 0.
        ValueError: an argument or a DISTCHECK_ variable is invalid.
    """
    words = _words(command, options, os.environ, lone=rank is None)
    given = {"rank": rank, "world-size": world_size, "local-rank": local_rank, "master-addr": master_addr,
             "master-port": master_port, "backend": backend, "timeout": timeout}  # fmt: skip
    words += [f"--{name}={value}" for name, value in given.items() if value is not None]
    words += ["--strict"] * strict + ["--quiet"] * quiet + ["--format=json"]
    # A container's termination log belongs to the job.
    environ = {"DISTCHECK_TERMINATION_LOG": os.devnull, **os.environ}
    environ.pop("DISTCHECK_OUTPUT", None)
    limit = _number(environ.get("DISTCHECK_TIMEOUT")) if timeout is None else timeout
    code, written, log = _run(words, environ, limit + _BEYOND_SECONDS, quiet=quiet)
    if code == _USAGE:
        raise ValueError(_last_line(log))
    result = PreflightResult(command, code, _report(written), log, _armed() if arm else "")
    if check and not result.passed:
        raise PreflightError(result)
    return result


def _armed() -> str:
    from distcheck.launch.arm import arm

    return arm("this process", "rank")


def _words(command: str, options: tuple[str, ...], environ: Mapping[str, str], *, lone: bool) -> list[str]:
    """Return the command and its options; `lone`: no rank was given.

    Raises:
        ValueError: the result is returned and not written, and there is no COMMAND.
    """
    for word in options:
        if word == "--" or word.partition("=")[0] in _OWN:
            raise ValueError(f"preflight() does not take {word}: the report is returned; timeout= limits the run")
    from distcheck.selection.node_environment import node_level
    from distcheck.selection.placement import find_table

    named = any(environ.get(name) for name in ("RANK", "WORLD_SIZE", "DISTCHECK_RANK", "DISTCHECK_NPROC"))
    if lone and not named and find_table(environ) is None and node_level(environ) is None:
        return [command, "--nproc=1", "--launcher=local", *options]
    return [command, *options]


def _number(text: str | None) -> float:
    try:
        return float(text or _TIMEOUT)
    except ValueError:  # the child reports it
        return _TIMEOUT


def _run(words: list[str], environ: Mapping[str, str], seconds: float, *, quiet: bool) -> tuple[int, bytes, str]:
    """Run distcheck as a child; return its exit code, its stdout and the end of its stderr.

    stdout is a file in memory, so that nothing has to be read while the child runs.
    """
    program = [sys.executable or "python3", "-m", "distcheck.cli.preflight", str(os.getpid()), *words]
    try:
        output = memory_file("distcheck-report")
    except OSError as error:
        return _BROKEN, b"", f"{_COMPLAINT}cannot create a file for the report: {error}"
    try:
        try:
            child = subprocess.Popen(
                program, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.PIPE, env=environ
            )
        except OSError as error:
            return _BROKEN, b"", f"{_COMPLAINT}could not start {program[0]}: {error}"
        try:
            log = _follow(child, time.monotonic() + seconds, quiet=quiet)
            late = child.returncode is None
        finally:
            _end(child)
        written = os.pread(output, os.fstat(output).st_size, 0)
    finally:
        os.close(output)
    if late:
        return _UNKNOWN, written, f"{_COMPLAINT}distcheck did not end within {seconds:g} s"
    ended = _ENDED.search(written)
    return int(ended[1]) if ended else child.returncode or _BROKEN, written, log


def _follow(child: subprocess.Popen[bytes], deadline: float, *, quiet: bool) -> str:
    """Forward the child's stderr until the child ends, or until the deadline; return the end of it."""
    if child.stderr is None:
        raise RuntimeError("the child's stderr must be a pipe")
    descriptor, tail = child.stderr.fileno(), b""
    poller = select.poll()  # select() takes no descriptor above 1023
    poller.register(descriptor, select.POLLIN)
    while (left := deadline - time.monotonic()) > 0:
        if not poller.poll(min(left, _LOOK_SECONDS) * 1000):
            if child.poll() is not None:  # a process that it left behind holds the pipe open
                break
            continue
        chunk = os.read(descriptor, 1 << 16)
        if not chunk:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(left)
            break
        tail = (tail + chunk)[-_TAIL_BYTES:]
        if not quiet and sys.stderr is not None:
            with contextlib.suppress(OSError, ValueError):  # closed
                sys.stderr.write(chunk.decode("utf-8", "replace"))
    return tail.decode("utf-8", "replace")


def _end(child: subprocess.Popen[bytes]) -> None:
    """End the child if it still runs; leave behind what SIGKILL does not end."""
    for end, seconds in ((child.terminate, _END_SECONDS), (child.kill, 1.0)):
        if child.poll() is None:
            end()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(seconds)
    if child.stderr is not None:
        child.stderr.close()


def _report(written: bytes) -> Document | None:
    from distcheck.probe.child import last_answer

    report: Document | None = last_answer(Document, written)
    return report


def _last_line(log: str) -> str:
    """Return the last complaint of distcheck, else the last line, without the prefix."""
    lines = [line for line in log.splitlines() if line.strip()]
    last = next((line for line in reversed(lines) if line.startswith(_COMPLAINT)), lines[-1] if lines else "")
    return harmless(last.removeprefix(_COMPLAINT).removeprefix("distcheck: "))


def _main() -> None:
    """In the child: run the command line, and write its exit code last."""
    import ctypes
    import runpy

    parent = int(sys.argv.pop(1))
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        sys.exit(_BROKEN)
    try:
        runpy.run_module("distcheck", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        print(f"exit code {end.code}", flush=True)  # noqa: T201 for `_run`
        raise


if __name__ == "__main__":
    _main()
