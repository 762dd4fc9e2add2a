"""NCCL's plugins: whether they fit, and whether all ranks have them, by the libraries or by NCCL's logs."""

from __future__ import annotations

import pytest
from made.jobs import replace

from distcheck.facts.base import Missing
from distcheck.facts.libraries import Libraries, NcclPlugin
from distcheck.facts.nccl import NcclLog
from distcheck.facts.rank import RankRun
from distcheck.rules.nccl.plugins import accepted_interfaces

WELL = Libraries(nccl="/venv/nccl/lib/libnccl.so.2", version="2.27.3", found_by="torch")
V8 = NcclPlugin("net", "libnccl-net.so", "/opt/a/libnccl-net.so", ("ncclNetPlugin_v8",))
TUNER = NcclPlugin("tuner", "libnccl-tuner.so", "/t.so", ("ncclTunerPlugin_v4",))
UNKNOWN = Missing(reason="NCCL's library did not answer within 10 s")


@pytest.fixture
def job(job_of):
    """Return four nodes of two ranks, whose libraries and collectives are looked at."""
    return job_of(4, 2, "slurm", looks=("environment", "gpu", "collectives"), gpus=2)


@pytest.fixture
def said(job, change, judge):
    """Judge the job, on some of whose ranks the libraries differ from WELL in these fields."""

    def of(ranks=(4, 5), usual=WELL, **fields):
        odd = change.process(change.process(job, None, libraries=usual), ranks, libraries=replace(usual, **fields))
        return judge(odd, "nccl_plugins")

    return of


def brought(said):
    return [(f.rule, f.severity, f.ranks, f.nodes) for f in said.findings]


@pytest.mark.parametrize(
    ("kind", "nccl", "expected"),
    [
        ("net", "2.18.3", (4, 6)),
        ("net", "2.25.1", (5, 9)),
        ("net", "2.27.3", (6, 10)),
        ("net", "2.30.7", (6, 12)),
        ("tuner", "2.20.5", (1, 1)),
        ("tuner", "2.27.3", (2, 4)),
        ("profiler", "2.29.2", (1, 6)),
        ("net", "2.9.6", None),
        ("profiler", "2.22.3", None),
        ("net", "", None),
    ],
)
def test_the_interfaces_that_a_release_of_nccl_accepts(kind, nccl, expected):
    assert accepted_interfaces(kind, nccl) == expected


def everywhere(*plugins, version="2.27.3"):
    return {"ranks": range(8), "usual": WELL, "plugins": plugins, "version": version}


def test_a_plugin_that_fits_is_silent(said):
    assert said(**everywhere(V8))[:2] == ((), ())


def test_a_plugin_for_another_nccl_is_a_warning(said):
    made = said(**everywhere(NcclPlugin("net", "libnccl-net.so", "/opt/a/libnccl-net.so", ("ncclNetPlugin_v5",))))
    assert brought(made)[0][:3] == ("sw-plugin-abi", "warning", tuple(range(8)))
    assert made.findings[0].message.endswith(
        "net plugin /opt/a/libnccl-net.so exports ncclNetPlugin_v5; NCCL 2.27.3 accepts v6 to v10"
    )


def test_a_plugin_that_does_not_load_is_named_with_the_linkers_error(said):
    error = "libfabric.so.1: cannot open shared object file: No such file or directory"
    made = said(**everywhere(NcclPlugin("net", "libnccl-net.so", error=error)))
    assert brought(made)[0][:2] == ("sw-plugin-abi", "warning")
    assert f"cannot be loaded: {error}" in made.findings[0].message


def test_a_profiler_that_does_not_fit_is_an_info_finding(said):
    made = said(**everywhere(NcclPlugin("profiler", "libnccl-profiler.so", "/p.so", ("ncclProfiler_v9",))))
    assert brought(made)[0][:2] == ("sw-plugin-abi", "info")


def test_what_a_newer_nccl_accepts_is_not_checked(said):
    made = said(**everywhere(V8, version="2.31.2"))
    assert made.findings == ()
    assert [(n.rule, n.required) for n in made.not_checked] == [("sw-plugin-abi", False)]


def test_a_network_plugin_on_one_node_only_is_an_error_at_its_ranks(said):
    made = said(plugins=(V8,))
    assert brought(made) == [("nccl-net-plugin-on-some-ranks", "error", (4, 5), ("node3",))]
    assert "load libnccl-net.so (ncclNetPlugin_v8); the other 6 load no net plugin" in made.findings[0].message


def test_the_same_plugin_in_another_folder_is_the_same(said):
    made = said(usual=replace(WELL, plugins=(V8,)), plugins=(replace(V8, path="/elsewhere/libnccl-net.so"),))
    assert made[:2] == ((), ())


def test_another_tuner_on_some_ranks_is_a_warning(said):
    assert brought(said(plugins=(TUNER,))) == [("nccl-net-plugin-on-some-ranks", "warning", (4, 5), ("node3",))]


def test_libraries_that_could_not_be_read_are_not_checked_and_not_required(job, change, judge):
    made = judge(change.process(change.process(job, None, libraries=WELL), (4, 5), libraries=UNKNOWN), "nccl_plugins")
    assert made.findings == ()
    assert [(n.rule, n.ranks, n.required) for n in made.not_checked] == [("sw-plugin-abi", (4, 5), False)]


def test_a_plugin_that_a_variable_selects_on_some_ranks_is_reported_as_the_variable(job, change, judge):
    odd = change.process(change.process(job, None, libraries=WELL), (4, 5), libraries=replace(WELL, plugins=(V8,)))
    odd = change.environment(odd, (4, 5), NCCL_NET_PLUGIN="/opt/a/libnccl-net.so")
    assert brought(judge(odd, "nccl_plugins", "nccl_differences")) == [
        ("nccl-env-differs", "error", (4, 5), ("node3",))
    ]


# -- by NCCL's logs


@pytest.fixture
def logged(job, change, judge):
    """Judge the job with these plugins in the logs of all ranks, and others in those of ranks 4 and 5."""

    def of(usual, odd, libraries=None):
        made = change.process(job, None, libraries=libraries)
        for where, plugins in ((None, usual), ((4, 5), odd)):
            log = NcclLog(version="2.27.3", ranks=8, nodes=4, plugins=plugins)
            made = change.rank(made, where, run=RankRun(pid=1, step="done", outcome="done", nccl=log))
        return judge(made, "nccl_plugins")

    return of


@pytest.mark.parametrize("libraries", [None, UNKNOWN, WELL])
def test_the_logs_show_plugins_that_the_libraries_do_not(logged, libraries):
    usual = ("NET AWS Libfabric (v8)",)
    assert logged(usual, usual, libraries).findings == ()
    made = logged(usual, (), libraries)
    assert brought(made) == [("nccl-net-plugin-on-some-ranks", "error", (4, 5), ("node3",))]
    assert "load no net plugin; the other 6 load AWS Libfabric (v8)" in made.findings[0].message
    assert brought(logged(usual, (*usual, "TUNER x"), libraries))[0][1:3] == ("warning", (4, 5))
    assert logged(usual, (*usual, "PROFILER x"), libraries).findings == ()


def test_libraries_and_logs_that_differ_are_one_finding(job, change, judge):
    made = change.process(change.process(job, None, libraries=WELL), (4, 5), libraries=replace(WELL, plugins=(V8,)))
    for where, plugins in ((None, ()), ((4, 5), ("NET ours (v8)",))):
        log = NcclLog(version="2.27.3", ranks=8, nodes=4, plugins=plugins)
        made = change.rank(made, where, run=RankRun(pid=1, step="done", outcome="done", nccl=log))
    assert brought(judge(made, "nccl_plugins")) == [("nccl-net-plugin-on-some-ranks", "error", (4, 5), ("node3",))]
