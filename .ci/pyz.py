"""Builds distcheck.pyz from the wheel beside it: one file that runs with the Python of any node, 3.10 or later.

``python .ci/pyz.py dist``, with uv on the PATH. The archive holds

- distcheck and the packages that it imports, as their wheels have them, without what typer, ClusterShell and others
  only need for functions that distcheck does not call (rich, pydantic, PyYAML);
- ``x86_64/`` and ``aarch64/``: their compiled modules for each Python, which have different names;
- ``bytecode/cpython-312/`` and so on: without it each start would compile distcheck, for about a second;
- ``__main__.py``: .ci/pyz_start.py.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zipapp
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "docs")]

from versions.run import find_python  # noqa: E402

PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
MACHINES = ("x86_64", "aarch64")
ALSO = ("annotated-doc", "shellingham", "markupsafe", "typing-extensions")
"""What distcheck's dependencies import."""
_INTERPRETER = "/usr/bin/python3 -Es"
"""Not what a user's variables and HOME add: HOME may lie on a file server that does not answer."""


def needs() -> list[str]:
    """Return what is in the archive beside distcheck, as requirements."""
    return [*(need for need in metadata.requires("distcheck") or () if "extra ==" not in need), *ALSO]


def main() -> None:
    """Run as a script."""
    (wheel,) = Path(sys.argv[1]).glob("*.whl")
    target = wheel.with_name("distcheck.pyz")
    with tempfile.TemporaryDirectory(prefix="distcheck-pyz-") as temporary:
        tree, pins = Path(temporary, "tree"), Path(temporary, "pins")
        pins.touch()
        for version in PYTHONS:
            for machine in MACHINES:
                installed = Path(temporary, f"{version}-{machine}")
                install(installed, version, machine, (str(wheel), *needs()), pins)
                add(tree, installed, machine)
                if not pins.stat().st_size:  # the oldest Python decides which versions all of them get
                    infos = installed.glob("*.dist-info")
                    pins.write_text("".join(f"{info.stem.replace('-', '==', 1)}\n" for info in infos))
        for version in PYTHONS:
            if python := find_python(version):
                compile_for(tree, python, version)
            else:
                print(f"{target.name} has no bytecode of Python {version}, which this machine lacks: its start is slow")
        write(tree, target)


def install(folder: Path, version: str, machine: str, wanted: tuple[str, ...], pins: Path) -> None:
    """Install wheels for a Python and a processor, which need not be those of this machine."""
    where = ("--target", folder, "--python-version", version, "--python-platform", f"{machine}-manylinux2014")
    which = ("--no-deps", "--only-binary", ":all:", "--constraint", pins)
    subprocess.run(["uv", "pip", "install", "--quiet", *where, *which, *wanted], check=True)


def add(tree: Path, installed: Path, machine: str) -> None:
    """Add installed packages to the archive's tree; compiled modules belong to a kind of processor."""
    for path in installed.rglob("*"):
        inside = path.relative_to(installed)
        if path.is_file() and inside.parts[0] != "bin" and "__pycache__" not in inside.parts:
            copy = tree / (machine if path.suffix == ".so" else "") / inside
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copy)


def compile_for(tree: Path, python: str, version: str) -> None:
    """Add the bytecode of a Python."""
    how = ("-q", "-b", "--invalidation-mode", "unchecked-hash", "-s", tree, "-p", "distcheck.pyz")
    subprocess.run([python, "-m", "compileall", *how, tree], check=True)
    folder = tree / "bytecode" / f"cpython-{version.replace('.', '')}"
    for path in [path for path in tree.rglob("*.pyc") if (tree / "bytecode") not in path.parents]:
        copy = folder / path.relative_to(tree)
        copy.parent.mkdir(parents=True, exist_ok=True)
        path.rename(copy)


def write(tree: Path, target: Path) -> None:
    """Write the archive."""
    shutil.copy(ROOT / ".ci" / "pyz_start.py", tree / "__main__.py")
    zipapp.create_archive(tree, target, _INTERPRETER, compressed=True)
    target.chmod(0o755)


if __name__ == "__main__":
    main()
