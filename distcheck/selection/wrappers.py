"""Programs that people put in front of another one, which they start in its place or as their child."""

from __future__ import annotations

import re

IN_FRONT = frozenset({
    "env", "nohup", "nice", "ionice", "numactl", "taskset", "stdbuf", "setsid", "time", "timeout", "chrt", "prlimit",
    "unbuffer", "sudo", "doas", "flock", "xvfb-run", "systemd-run", "systemd-inhibit", "dbus-run-session", "tini",
    "dumb-init", "catchsegv", "cgexec", "setarch", "unshare",
    "uv", "uvx", "conda", "mamba", "micromamba", "poetry", "pixi", "pipenv", "pdm", "rye", "hatch", "direnv", "dotenv",
    "nsys", "ncu", "rocprof", "rocprofv3", "rocprof-sys-run", "perf", "strace", "ltrace", "gdb", "cuda-gdb", "valgrind",
    "compute-sanitizer", "py-spy", "viztracer", "coverage", "memray", "scalene", "pyinstrument", "kernprof", "cProfile",
    "pdb", "debugpy", "singularity", "apptainer", "enroot", "charliecloud", "ch-run",
})  # fmt: skip
"""They may have options of their own before the program."""
SHELLS = frozenset({"bash", "sh", "dash", "zsh", "ksh", "fish"})
"""What they set before the program that follows is in their script."""
SCRIPTS = (".sh", ".bash", ".sbatch", ".slurm")
"""Endings of their scripts' names."""
CONTAINERS = frozenset({"docker", "podman", "nerdctl"})
"""Their commands see another machine: other names, ports and GPUs."""
PYTHON = re.compile(r"(?:python|pypy)[\d.]*")


def base_name(word: str) -> str:
    """Return the name of a program without its folder."""
    return word.rpartition("/")[2]
