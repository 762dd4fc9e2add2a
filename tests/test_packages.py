"""distcheck.pyz, and the deb and the rpm of it: they run with a bare Python, write nothing, and can be removed."""

from __future__ import annotations

import ast
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / ".ci"))
import pyz  # noqa: E402

LOG = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
COMMANDS = [
    ("env", "--nproc", "2"),
    ("net", "--nproc", "2"),
    ("node", "--format", "html"),
    ("gpu", "--nproc", "2"),
    ("node", "--save", "{folder}/job.json"),
    ("report", "{folder}/job.json"),
    ("explain", "gpu-fell-off-bus"),
    ("explain", "--log", "{folder}/log"),
    ("policy",),
    ("-m", "distcheck", "--version"),  # as it starts its own modules
]
"""Commands that pass on a healthy machine, also without GPUs."""


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    """The archive for this Python alone, of what is installed beside the tests."""
    folder = tmp_path_factory.mktemp("archive")
    shutil.copytree(
        ROOT / "distcheck", folder / "installed" / "distcheck", ignore=shutil.ignore_patterns("__pycache__")
    )
    for need in pyz.needs():
        if need.startswith("tomli") and sys.version_info >= (3, 11):
            continue
        distribution = metadata.distribution(need.partition(">")[0])
        for file in distribution.files:
            if ".." not in file.parts:
                copy = folder / "installed" / file
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(distribution.locate_file(file), copy)
    pyz.add(folder / "tree", folder / "installed", platform.machine())
    pyz.compile_for(folder / "tree", sys.executable, "{}.{}".format(*sys.version_info))
    pyz.write(folder / "tree", folder / "distcheck.pyz")
    return folder / "distcheck.pyz"


def run(folder, python, archive, *words, **environ):
    """Run the archive with a Python that sees no packages, in an empty HOME that nobody may write to."""
    for name in ("home", "tmp"):
        (folder / name).mkdir(exist_ok=True, mode=0o500)
    (folder / "log").write_text(LOG)
    environ = {"HOME": str(folder / "home"), "TMPDIR": str(folder / "tmp"), "DISTCHECK_TIMEOUT": "100", **environ}
    ended = subprocess.run(
        [python, "-IS", archive, *(word.format(folder=folder) for word in words)],
        cwd="/", env=environ, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert not [*(folder / "home").iterdir(), *(folder / "tmp").iterdir()], "nothing is unpacked"
    return ended


def test_a_python_that_is_too_old_can_read_the_start():
    ast.parse((ROOT / ".ci" / "pyz_start.py").read_text(), feature_version=(3, 4))


@pytest.fixture
def start():
    spec = importlib.util.spec_from_file_location("pyz_start", ROOT / ".ci" / "pyz_start.py")
    spec.loader.exec_module(module := importlib.util.module_from_spec(spec))
    return module


def test_an_old_python_becomes_the_newest_of_the_system_or_says_what_it_needs(start, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["distcheck.pyz", "node"])
    monkeypatch.setattr(os, "execv", lambda *words: (_ for _ in ()).throw(InterruptedError(*words)))
    monkeypatch.setattr(os, "access", lambda path, _: path in {"/usr/bin/python3.11", "/usr/local/bin/python3.12"})
    with pytest.raises(InterruptedError) as became:
        start.newer("/opt/distcheck.pyz")
    python = "/usr/local/bin/python3.12"
    assert became.value.args == (python, [python, "-Es", "/opt/distcheck.pyz", "node"])
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(SystemExit) as ended:
        start.newer("/opt/distcheck.pyz")
    said = capsys.readouterr().err
    assert ended.value.code == 70
    assert said.startswith("distcheck.pyz: it needs Python 3.10 or later, and this is Python 3.")
    assert said.count("\n") == 1


@pytest.mark.process
def test_a_python_without_its_modules_says_so(tmp_path):
    (tmp_path / "tree").mkdir()
    pyz.write(tmp_path / "tree", tmp_path / "distcheck.pyz")
    ended = run(tmp_path, sys.executable, tmp_path / "distcheck.pyz", "node")
    version = "{}.{}".format(*sys.version_info)
    assert ended.returncode == 70
    assert f"no module for Python {version} on {platform.machine()}" in ended.stderr
    assert ended.stderr.count("\n") == 1


@pytest.mark.process
def test_the_archive_runs_each_command_without_any_package_and_writes_nothing(archive, tmp_path):
    for words in COMMANDS:
        ended = run(tmp_path, sys.executable, archive, *words)
        assert (ended.returncode, ended.stderr) == (0, ""), words
    assert "ran out of memory" in run(tmp_path, sys.executable, archive, "explain", "--log", "{folder}/log").stdout
    bad = run(tmp_path, sys.executable, archive, "node", DISTCHECK_GPUS="1023")
    assert bad.returncode == 40, "an option of the environment"


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    """The archive, the deb and the rpm of a release."""
    folder = tmp_path_factory.mktemp("release")
    environ = {**os.environ, "PATH": f"{sys.prefix}/bin:{os.environ['PATH']}", "UV_PYTHON_DOWNLOADS": "never"}
    for command in (
        [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", folder, ROOT],
        [sys.executable, ROOT / ".ci" / "pyz.py", folder],
        [ROOT / ".ci" / "packages", folder],
    ):
        subprocess.run(command, env=environ, capture_output=True, check=True)
    return folder


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize("version", pyz.PYTHONS)
def test_one_archive_runs_with_every_python(release, tmp_path, version):
    python = pyz.find_python(version)
    if python is None:
        pytest.skip(f"this machine has no Python {version}")
    for words in COMMANDS:
        ended = run(tmp_path, python, release / "distcheck.pyz", *words)
        assert (ended.returncode, ended.stderr) == (0, ""), words


INSTALLED = """
set -eu
gpus=
cd {folder}
mount -t tmpfs none {folder}/root
mkdir root/upper root/work root/merged
mount -t overlay none -o lowerdir=/,upperdir=root/upper,workdir=root/work root/merged
mount --rbind /proc root/merged/proc
mount --rbind /dev root/merged/dev
cp {package} root/merged/
settings="PATH=/usr/sbin:/usr/bin:/sbin:/bin DISTCHECK_TIMEOUT=100"
inside() {{ env -i $settings ${{gpus:+DISTCHECK_GPUS=$gpus}} chroot root/merged "$@"; }}
files() {{ (cd root/upper && find . -not -path './var/*' | sort); }}
files > before
inside {install}
inside systemctl enable distcheck-node.timer
inside sed -i 's/KILL 15 /KILL 150 /' /usr/share/distcheck/slurm/prolog.sh   # where the tests keep the machine busy
inside distcheck node
gpus=1023
inside sh -c 'distcheck node > /dev/null'
inside /usr/share/distcheck/slurm/prolog.sh
inside sed -i 's/"observe"/"enforce"/' /etc/distcheck/policy.toml
code=0; inside sh -c 'distcheck node > /dev/null' || code=$?
[ $code = 40 ]
code=0; inside /usr/share/distcheck/slurm/prolog.sh || code=$?
[ $code = 1 ]
files > installed
inside {remove}
files > after
"""


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.without_gpus
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
@pytest.mark.parametrize(
    ("kind", "tool", "install", "remove", "left"),
    [
        ("deb", "dpkg-deb", "dpkg --install", "dpkg --purge distcheck", []),
        (  # rpm keeps what the site has changed
            "rpm", "rpmbuild", "rpm --install --nodeps", "rpm --erase distcheck",
            ["./etc/distcheck", "./etc/distcheck/policy.toml.rpmsave"],
        ),
    ],
)  # fmt: skip
def test_a_package_observes_then_enforces_and_leaves_nothing(release, tmp_path, kind, tool, install, remove, left):
    if shutil.which(tool) is None:
        pytest.skip(f"needs {tool}")
    (package,) = release.glob(f"*.{kind}")
    (tmp_path / "root").mkdir()
    script = INSTALLED.format(folder=tmp_path, package=package, install=f"{install} /{package.name}", remove=remove)
    ended = subprocess.run(["unshare", "--mount", "bash", "-c", script], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    before, installed, after = ((tmp_path / name).read_text().splitlines() for name in ("before", "installed", "after"))
    assert "./etc/systemd/system/timers.target.wants/distcheck-node.timer" in installed
    assert {"./usr/bin/distcheck", "./run/distcheck/prolog.json"} <= set(installed)
    assert [path for path in after if path not in before and "distcheck" in path] == left
