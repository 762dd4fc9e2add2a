"""A cluster for every test here: its worker's own, healed after each test, with nothing of the test left on it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster import cgroup
from cluster.cluster import Cluster
from forms import tested

_HERE = Path(__file__).parent
_INSTALL = "sudo bash tests/cluster/install"


def pytest_configure(config):
    config.addinivalue_line("markers", "without_slurm: needs a cluster, and no Slurm on it")


@pytest.hookimpl(tryfirst=True)  # tests/conftest.py skips what is slow
def pytest_collection_modifyitems(items):
    known = tested.unchanged("cluster")
    for item in items:
        if item.path.parent == _HERE:
            item.add_marker(pytest.mark.cluster)
            if known and item.path.name == "test_cluster.py":
                item.add_marker(pytest.mark.slow)


def _lacking() -> str | None:
    """Return in one line what a cluster needs and this machine lacks."""
    if os.getuid() != 0:
        return f"the cluster needs root; run: {_INSTALL} and the tests as root"
    if not shutil.which("dpkg-query"):
        return "the cluster needs Debian or Ubuntu"
    missing = subprocess.run(["bash", _HERE / "install", "--missing"], capture_output=True, text=True, check=True)
    if packages := missing.stdout.split():
        return f"the cluster needs {', '.join(packages)}; run: {_INSTALL}"
    spaces = ["unshare", "--net", "--uts", "--ipc", "--pid", "--mount", "--fork", "true"]
    if subprocess.run(spaces, capture_output=True, check=False).returncode:
        return "the cluster needs network, UTS, IPC, PID and mount namespaces; run the tests in a privileged container"
    try:
        writable = os.access(cgroup.hierarchy(), os.W_OK)
    except LookupError:
        writable = False
    if not writable:
        return "the cluster needs a cgroup v2 hierarchy that can be written; run the tests in a privileged container"
    return None


@pytest.fixture(scope="session")
def _able():
    if lacking := _lacking():
        if os.environ.get("CI"):
            pytest.fail(lacking, pytrace=False)
        pytest.skip(lacking)


@pytest.fixture(scope="session")
def _cluster(_able) -> Iterator[Cluster]:
    cluster = Cluster()
    try:
        yield cluster
    finally:
        cluster.conclude()


@pytest.fixture
def _with_slurm(_cluster) -> Iterator[Cluster]:
    yield _cluster
    left = _cluster.end_processes()
    _cluster.heal()
    _cluster.tidy()
    assert not left, f"left behind: {left}"


@pytest.fixture
def cluster(request) -> Cluster:
    """Four nodes with Slurm, as they were at their start, and an empty shared folder.

    Without Slurm in a module marked so. A node that a test has spoiled is started again; Slurm takes seconds for that.
    """
    without = request.node.get_closest_marker("without_slurm")
    return request.getfixturevalue("bare" if without else "_with_slurm")


@pytest.fixture(scope="session")
def _clusters_without_slurm(_able) -> Iterator[dict[tuple[str, str], Cluster]]:
    clusters: dict[tuple[str, str], Cluster] = {}
    yield clusters
    for cluster in clusters.values():
        cluster.conclude()


@pytest.fixture
def bare_on(_clusters_without_slurm):
    """Return four nodes without Slurm on these networks, as they were at their start; they are made once."""
    used: list[Cluster] = []

    def on(networks: tuple[str, str]) -> Cluster:
        if networks not in _clusters_without_slurm:
            _clusters_without_slurm[networks] = Cluster(networks=networks, slurm=False)
        used.append(_clusters_without_slurm[networks])
        return used[-1]

    yield on
    left = []
    for cluster in used:
        left += cluster.end_processes()
        cluster.heal()
        cluster.tidy()
    assert not left, f"left behind: {left}"


@pytest.fixture
def bare(bare_on) -> Cluster:
    """Four nodes without Slurm."""
    return bare_on(("10.77.0", "10.78.0"))


@pytest.fixture
def make_cluster(_able):
    """Make a cluster of another shape; it is gone after the test."""
    made: list[Cluster] = []

    def make(nodes: int = 4, **more: Any) -> Cluster:
        made.append(Cluster(nodes, **more))
        return made[-1]

    yield make
    left = []
    for cluster in made:
        left += cluster.end_processes()
        cluster.conclude()
    assert not left, f"left behind: {left}"


@pytest.fixture
def tell_nvml(cluster, fake_nvml):
    """Put NVML's and CUDA's libraries into /shared; return what writes a node's answers."""
    for library in fake_nvml.folder.glob("*.so.1"):
        shutil.copy(library, cluster.shared)
    return lambda node, text, path="/etc/distcheck-fake-nvml": cluster.write(node, path, text)
