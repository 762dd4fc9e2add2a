"""Compare the lists of docs/variables with wheels of torch and NCCL; print what the lists lack or state wrongly.

Usage: python docs/compare_variables.py [WHEEL | NAME==VERSION] ...

A wheel that is not a file is downloaded by pip to a temporary folder, one after the other; without arguments, those of
RELEASES are (17 GB). Names are whole strings among the constants of the libraries (.rodata), and quoted ones in
torch's Python; the lists name releases of torch by their first two numbers. Exits with 1 at a difference.
"""

from __future__ import annotations

import re
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from zipfile import ZipFile

from build_variables import Listed, listed

RELEASES = (
    *(f"nvidia-nccl-cu12=={v}" for v in ("2.18.3", "2.19.3", "2.20.5", "2.21.5", "2.22.3", "2.23.4", "2.24.3")),
    *(f"nvidia-nccl-cu12=={v}" for v in ("2.25.1", "2.26.2", "2.27.7", "2.28.9", "2.29.7", "2.30.7", "2.32.3")),
    *(f"nvidia-nccl-cu13=={v}" for v in ("2.27.7", "2.28.3", "2.28.9", "2.29.2", "2.29.7")),
    *(f"nvidia-nccl-cu13=={v}" for v in ("2.30.4", "2.30.7", "2.31.2", "2.32.3")),
    *(f"torch=={v}" for v in ("2.1.2", "2.2.2", "2.3.1", "2.4.1", "2.5.1", "2.6.0", "2.7.1", "2.8.0", "2.9.1")),
    *(f"torch=={v}" for v in ("2.10.0", "2.11.0", "2.12.1", "2.14.1", "2.15.0")),
)
_LIBRARY = re.compile(r"/(libnccl\.so\.2|libtorch_(cpu|cuda|python)\.so)$")
_NCCL = re.compile(rb"(?<![\w.,:=] )(?<![_(])NCCL_[A-Z0-9_]+(?=\0)")
_TORCH = (
    rb"TORCH_(?:NCCL2?|FR|DIST|DISTRIBUTED|WATCHDOG|GLOO|ELASTIC)_[A-Z0-9_]*[A-Z0-9]|TORCH(?:ELASTIC|COMM)_[A-Z0-9_]+"
)
_IN_LIBRARY = re.compile(rb"(?<![\w.,:=] )(?<![A-Z_(])(?:" + _TORCH + rb")(?=\0)")
_IN_PYTHON = re.compile(rb"""["'](""" + _TORCH + rb""")["']""")


class Wheel(NamedTuple):
    """A release, and the variables that it reads."""

    name: str
    release: tuple[int, ...]
    variables: frozenset[str]


def read(path: Path) -> Wheel:
    """Return the names in a wheel of torch or NCCL."""
    name, release = path.name.split("-")[:2]
    pattern = _NCCL if "nccl" in name else _IN_LIBRARY
    found: set[bytes] = set()
    with ZipFile(path) as wheel:
        for member in wheel.namelist():
            if _LIBRARY.search(f"/{member}"):
                found.update(pattern.findall(constants(wheel.read(member))))
            elif member.startswith("torch/distributed/") and member.endswith(".py"):
                found.update(_IN_PYTHON.findall(wheel.read(member)))
    numbers = tuple(map(int, release.split(".")))[: 3 if "nccl" in name else 2]
    return Wheel(name.replace("_", "-"), numbers, frozenset(item.decode() for item in found))


def constants(library: bytes) -> bytes:
    """Return the section .rodata of a 64-bit ELF file.

    Source: https://refspecs.linuxfoundation.org/elf/gabi4+/ch4.sheader.html
    """
    (table,) = struct.unpack_from("<Q", library, 0x28)
    size, count, names = struct.unpack_from("<HHH", library, 0x3A)
    sections = [struct.unpack_from("<IIQQQQ", library, table + n * size) for n in range(count)]
    for name, _, _, _, offset, length in sections:
        start = sections[names][4] + name
        if library[start : start + 8] == b".rodata\0":
            return library[offset : offset + length]
    return b""


def differences(wheel: Wheel, variables: dict[str, Listed | None]) -> Iterator[str]:
    """Yield what the lists state otherwise than a wheel."""
    for name in sorted(wheel.variables - set(variables)):
        yield f"not listed: {name}"
    for name, between in sorted(variables.items()):
        if between is None or (name in wheel.variables) == (between.first <= wheel.release <= between.last):
            continue
        words = "..".join(".".join(map(str, release)) for release in between).replace("..999", " and later")
        yield f"{'has' if name in wheel.variables else 'lacks'} {name}, which is listed for {words}"


def main(wanted: list[str]) -> int:
    """Run as a script."""
    wrong = 0
    for asked in wanted or RELEASES:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(asked)
            if not path.is_file():
                get = (sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-cache-dir", "-d", folder)
                subprocess.run((*get, "--only-binary", ":all:", "--python-version", "3.11", asked), check=True)
                (path,) = Path(folder).iterdir()
            wheel = read(path)
        told = list(differences(wheel, listed("torch" if wheel.name == "torch" else "nccl")))
        release = ".".join(map(str, wheel.release))
        print(f"{wheel.name} {release}: {len(wheel.variables)} names, {len(told)} differences", *told, sep="\n  ")
        wrong += len(told)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
