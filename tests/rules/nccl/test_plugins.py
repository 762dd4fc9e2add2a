"""NCCL's plugins: whether they fit, and whether all ranks have them, by the libraries or by NCCL's logs."""

from __future__ import annotations

import pytest
from made.jobs import replace

from distcheck.facts.base import Missing
from distcheck.facts.libraries import Libraries, NcclPlugin
from distcheck.facts.nccl import NcclLog
from distcheck.facts.rank import RankRun

OURS = ("nccl.plugins",)
WELL = Libraries(nccl="/venv/nccl/lib/libnccl.so.2", version="2.27.3", found_by="torch")
V8 = NcclPlugin("net", "libnccl-net.so", "/opt/a/libnccl-net.so", ("ncclNetPlugin_v8",))
TUNER = NcclPlugin("tuner", "libnccl-tuner.so", "/t.so", ("ncclTunerPlugin_v4",))
UNKNOWN = Missing(reason="NCCL's library did not answer within 10 s")
EVERYWHERE = tuple(range(8))


@pytest.fixture
def job(job_of):
    """Return four nodes of two ranks, whose libraries and collectives are looked at."""
    return job_of(4, 2, "slurm", looks=("environment", "gpu", "collectives"), gpus=2)


@pytest.fixture
def with_libraries(job, change):
    """Return the job with these libraries on all ranks, and others on ranks 4 and 5."""

    def made(usual, odd):
        return change.process(change.process(job, None, libraries=usual), (4, 5), libraries=odd)

    return made


@pytest.fixture
def with_logs(change):
    """Return a job with these plugins in the logs of all ranks, and others in those of ranks 4 and 5."""

    def made(job, usual, odd):
        for where, plugins in ((None, usual), ((4, 5), odd)):
            log = NcclLog(version="2.27.3", ranks=8, nodes=4, plugins=plugins)
            job = change.rank(job, where, run=RankRun(pid=1, step="done", outcome="done", nccl=log))
        return job

    return made


def having(*plugins, version="2.27.3"):
    return replace(WELL, plugins=plugins, version=version)


def fitting(kind, number):
    symbol = {"net": "ncclNetPlugin", "tuner": "ncclTunerPlugin", "profiler": "ncclProfiler"}[kind]
    return NcclPlugin(kind, f"/{kind}.so", "", (f"{symbol}_v{number}",))


@pytest.mark.parametrize(
    ("version", "plugin", "severity", "message"),
    [
        ("2.18.3", fitting("net", 8), "warning", "exports ncclNetPlugin_v8; NCCL 2.18.3 accepts v4 to v6"),
        ("2.27.3", fitting("net", 5), "warning", "exports ncclNetPlugin_v5; NCCL 2.27.3 accepts v6 to v10"),
        ("2.30.7", fitting("net", 13), "warning", "exports ncclNetPlugin_v13; NCCL 2.30.7 accepts v6 to v12"),
        ("2.20.5", fitting("tuner", 2), "warning", "exports ncclTunerPlugin_v2; NCCL 2.20.5 accepts v1"),
        ("2.27.3", fitting("profiler", 9), "info", "exports ncclProfiler_v9; NCCL 2.27.3 accepts v1 to v4"),
        ("2.27.3", NcclPlugin("net", "libnccl-net.so", error="libfabric.so.1: cannot open"), "warning",
         "net plugin libnccl-net.so cannot be loaded: libfabric.so.1: cannot open"),
        *((version, fitting(kind, 3), "", "") for version, kind in (("2.9.6", "net"), ("2.22.3", "profiler"))),
    ],
)  # fmt: skip
def test_sw_plugin_abi_for_a_plugin_that_does_not_fit_or_load(
    with_libraries, judge, version, plugin, severity, message
):
    found = judge(with_libraries(*[having(plugin, version=version)] * 2), *OURS).findings
    assert [(f.rule, f.severity, f.ranks) for f in found] == [("sw-plugin-abi", severity, EVERYWHERE)] * bool(severity)
    assert all(f.message.endswith(message) for f in found)


@pytest.mark.parametrize(
    ("usual", "odd"),
    [(having(V8), having(V8)), (having(V8), having(replace(V8, path="/elsewhere/libnccl-net.so")))],
    ids=["that fits", "in another folder"],
)
def test_a_plugin_is_silent(with_libraries, silent, usual, odd):
    assert silent(with_libraries(usual, odd))


@pytest.mark.parametrize(
    ("usual", "odd", "ranks"),
    [(having(V8, version="2.31.2"), having(V8, version="2.31.2"), EVERYWHERE), (WELL, UNKNOWN, (4, 5))],
    ids=["what a newer NCCL accepts", "libraries that could not be read"],
)
def test_what_is_not_known_is_not_checked_and_not_required(with_libraries, judge, usual, odd, ranks):
    made = judge(with_libraries(usual, odd), *OURS)
    assert made.findings == ()
    assert [(n.rule, n.ranks, n.required) for n in made.not_checked] == [("sw-plugin-abi", ranks, False)]


@pytest.mark.parametrize(
    ("plugin", "severity", "words"),
    [
        (V8, "error", "load libnccl-net.so (ncclNetPlugin_v8); the other 6 load no net plugin"),
        (TUNER, "warning", "load libnccl-tuner.so (ncclTunerPlugin_v4); the other 6 load no tuner plugin"),
    ],
)
def test_a_plugin_on_some_ranks_only_is_reported_at_them(with_libraries, only, plugin, severity, words):
    found, _ = only(with_libraries(WELL, having(plugin)))
    assert (found.rule, found.severity) == ("nccl-net-plugin-on-some-ranks", severity)
    assert (found.ranks, found.nodes) == ((4, 5), ("node3",))
    assert words in found.message


def test_a_plugin_that_a_variable_selects_on_some_ranks_is_reported_as_the_variable(with_libraries, change, only):
    job = change.environment(with_libraries(WELL, having(V8)), (4, 5), NCCL_NET_PLUGIN="/opt/a/libnccl-net.so")
    found, _ = only(job, "nccl.differences")
    assert (found.rule, found.severity, found.ranks) == ("nccl-env-differs", "error", (4, 5))


@pytest.mark.parametrize("libraries", [None, UNKNOWN, WELL])
@pytest.mark.parametrize(
    ("odd", "severity", "words"),
    [
        (("NET AWS Libfabric (v8)",), "", ""),
        (("NET AWS Libfabric (v8)", "PROFILER x"), "", ""),
        (("NET AWS Libfabric (v8)", "TUNER x"), "warning", "load x; the other 6 load no tuner plugin"),
        ((), "error", "load no net plugin; the other 6 load AWS Libfabric (v8)"),
    ],
)
def test_the_logs_show_plugins_that_the_libraries_do_not(
    with_libraries, with_logs, judge, libraries, odd, severity, words
):
    found = judge(with_logs(with_libraries(libraries, libraries), ("NET AWS Libfabric (v8)",), odd), *OURS).findings
    expected = [("nccl-net-plugin-on-some-ranks", severity, (4, 5), ("node3",))] if severity else []
    assert [(f.rule, f.severity, f.ranks, f.nodes) for f in found] == expected
    assert words in "".join(f.message for f in found)


def test_libraries_and_logs_that_differ_are_one_finding(with_libraries, with_logs, only):
    found, _ = only(with_logs(with_libraries(WELL, having(V8)), (), ("NET ours (v8)",)))
    assert (found.rule, found.ranks) == ("nccl-net-plugin-on-some-ranks", (4, 5))
