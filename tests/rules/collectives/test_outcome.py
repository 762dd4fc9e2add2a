import pytest

from distcheck.facts.base import Missing
from distcheck.facts.job import Collectives, Measurement
from distcheck.facts.nccl import Ras, RasBehind
from distcheck.facts.rank import Death, RankRun

SIZES = (1 << 20, 1 << 24)
RUN = RankRun(
    pid=4711,
    step="done",
    outcome="done",
    wrong={"all_reduce": 0, "broadcast": 0},
    checked={"all_reduce": 262_147, "broadcast": 262_147},
)
WAITING = {"outcome": "stalled", "step": "all_reduce 16777216 B", "silent_seconds": 0.4}
GONE = "RuntimeError: [gloo/transport/tcp/pair.cc:537] Read error [10.0.0.{}]:5312: Connection reset by peer."


def alike(ranks, fields):
    return {rank: fields for rank in ranks}  # noqa: C420 ruff wants fromkeys, and wants it not (RUF024)


def measured(ranks, seconds=0.01, operations=("all_reduce", "broadcast"), sizes=SIZES):
    rows = tuple(
        Measurement(op=op, bytes=size, dtype="float32", iterations=3, seconds_by_rank=(seconds,) * ranks)
        for op in operations
        for size in sizes
    )
    return Collectives(backend="gloo", torch="2.13.0", measurements=rows)


@pytest.fixture
def ran(job_of, change):
    """Build a job whose collectives ran; `run` maps rank numbers to how they ended."""

    def build(nodes=2, per_node=2, collectives=None, run=None, **asked):
        asked = {"sizes_bytes": SIZES, **asked}
        job = job_of(nodes, per_node, looks=("environment", "meeting", "collectives"), **asked)
        ranks = nodes * per_node
        for rank in range(ranks):
            fields = (run or {}).get(rank, {})
            ended = None if fields is None else change_run(**fields)
            job = change.rank(job, rank, run=ended)
        return change.job(job, collectives=measured(ranks) if collectives is None else collectives)

    def change_run(**fields):
        values = {name: getattr(RUN, name) for name in RUN.__struct_fields__}
        return RankRun(**{**values, **fields})

    return build


@pytest.fixture
def only(judge):
    """Return the only finding of this family, which must be of this rule."""

    def finding(job, rule):
        result = judge(job, "collectives.outcome")
        assert [f.rule for f in result.findings] == [rule]
        return result.findings[0], result.verdict.exit_code

    return finding


@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_a_healthy_run_is_silent(ran, judge, ranks):
    result = judge(ran(1, ranks), "collectives.outcome")
    assert (result.findings, result.not_checked) == ((), ())
    assert result.verdict.exit_code == 0


def test_without_collectives_the_rules_are_silent(job_of, judge):
    result = judge(job_of(), "collectives.outcome")
    assert (result.findings, result.not_checked) == ((), ())


# --- collective-wrong-result


def test_wrong_numbers_on_one_rank_make_it_a_suspect(ran, only):
    found, code = only(ran(run={3: {"wrong": {"all_reduce": 17, "broadcast": 0}}}), "collective-wrong-result")
    assert found.ranks == (3,)
    assert found.nodes == ("node2",)
    assert found.message == "rank 3 (node2) received wrong numbers: 17 of 262147 elements of all_reduce"
    assert found.evidence == {"all_reduce": "wrong elements of 262147: 17 on rank 3"}
    assert (found.scope, found.confirmed, code) == ("node", False, 20)


def test_wrong_numbers_everywhere_blame_no_node(ran, only):
    wrong = {"wrong": {"all_reduce": 5, "broadcast": 2}}
    found, code = only(ran(run=alike(range(4), wrong)), "collective-wrong-result")
    assert (found.scope, code) == ("link", 20)
    assert "up to 5 of 262147 elements of all_reduce and 2 of 262147 elements of broadcast" in found.message


# --- which ranks are named, and what the finding says


def died(detail, **fields):
    return {"outcome": "died", "detail": detail, **fields}


def failed(detail, **fields):
    return {"outcome": "failed", "detail": detail, **fields}


def unstarted(detail):
    return {"outcome": "not started", "step": "started", "detail": detail}


ALL = range(4)
STEP = "all_reduce 16777216 B"
MEMORY = "OutOfMemoryError: CUDA out of memory. Tried to allocate 256.00 MiB."
NO_TORCH = "torch cannot be imported: ImportError: libcudart.so.12"
HIDDEN = "torch cannot be imported: ModuleNotFoundError: No module named 'torch.distributed'; 'torch' is not a package"
LIMIT = "the limit of processes and threads (ulimit -u) is 1; raise it with: ulimit -u unlimited"
DENIED = "no process could be started: Permission denied"
LATE = "the run was ended while torch was being imported"
SHM = (
    "DistBackendError: NCCL error: Last error: Error while creating shared memory segment /dev/shm/nccl-Ab12Cd (size 9)"
)
LACK = "unavailable: this torch 2.13.0+cpu has no NCCL; it has gloo"
LOST = failed(GONE.format(1))
SIGNALS = {
    "SIGKILL": ("user", "memory"),
    "SIGBUS": ("user", "/dev/shm"),
    "SIGSEGV": ("unknown", "crashed"),
    "SIGABRT": ("unknown", "watchdog"),
    "SIGTERM": ("unknown", "scheduler"),
    "SIGILL": ("admin", "processor"),
    "signal 64": ("unknown", "log"),
}
STOPPED, DIED, FAILED = "collective-rank-stopped", "collective-rank-died", "collective-failed"
CASES = {
    "a stopped rank, not those that wait": (
        {**alike((0, 1), WAITING), 2: {"outcome": "stopped", "step": STEP}, 3: failed("Timed out waiting 60000ms")},
        STOPPED, (2,), ("node", "unknown", 20), f"rank 2 (node2) was stopped during '{STEP}'", "kill -CONT 4711",
    ),
    "a stopped rank, not those that the watchdog aborts": (
        {**alike(range(3), died("was ended by SIGABRT")), 3: {"outcome": "stopped"}},
        STOPPED, (3,), ("node", "unknown", 20), "", "",
    ),
    **{
        f"a rank that {signal} ended": (
            {0: WAITING, 1: died(f"was ended by {signal}", step="broadcast 1048576 B"), 2: LOST, 3: LOST},
            DIED, (1,), ("node", owner, 20),
            f"rank 1 (node1) died during 'broadcast 1048576 B': its process was ended by {signal}", hint,
        )
        for signal, (owner, hint) in SIGNALS.items()
    },
    "ranks that died alike": (
        {**alike((0, 1), {}), **alike((2, 3), died("exited with code 3", step="process group"))},
        DIED, (2, 3), ("node", "unknown", 20), "each process exited with code 3", "",
    ),
    "a failed rank, not one that the watchdog aborted": (
        {0: died("was ended by SIGABRT"), 1: failed("RuntimeError: CUDA error: illegal memory access"), 2: {}, 3: {}},
        FAILED, (1,), ("node", "unknown", 20), "", "",
    ),
    "a rank's own error, not lost connections": (
        {**alike(range(3), LOST), 3: failed(MEMORY, step=STEP)},
        FAILED, (3,), ("node", "unknown", 20), f"rank 3 (node2) failed in '{STEP}': {MEMORY}", "",
    ),
    "a died rank, not those that it kept from starting": (
        {**alike(range(3), unstarted(LATE)), 3: died("was ended by SIGSEGV")},
        DIED, (3,), ("node", "unknown", 20), "", "",
    ),
    "ranks that lost each other": (
        alike(ALL, failed(GONE.format(1), step="process group")), FAILED, (0, 1, 2, 3), ("link", "unknown", 20), "", "",
    ),
    "ranks that could not start, not those that wait": (
        {**alike((0, 1), {**WAITING, "step": "process group"}), **alike((2, 3), unstarted(NO_TORCH))},
        FAILED, (2, 3), ("node", "user", 20), f"ranks 2-3 (node2) could not start: {NO_TORCH}", "'import torch'",
    ),
    "a file that hides torch": (
        alike(ALL, unstarted(HIDDEN)),
        FAILED, (0, 1, 2, 3), ("node", "user", 20), "", "python -c 'import torch; print(torch.__file__)'",
    ),
    "a limit of processes": (
        alike(ALL, unstarted(LIMIT)), FAILED, (0, 1, 2, 3), ("node", "user", 20), f"start: {LIMIT}", "ulimit -u;",
    ),
    "an interpreter that cannot be run": (
        alike(ALL, unstarted(DENIED)), FAILED, (0, 1, 2, 3), ("node", "user", 20), f"start: {DENIED}", "interpreter",
    ),
    "full shared memory": (
        {**alike(range(3), {}), 3: failed(SHM)},
        FAILED, (3,), ("node", "unknown", 20), "", "# add to docker run: --shm-size=8g",
    ),
    "a backend that torch lacks": (
        {**alike((0, 1), {**WAITING, "step": "process group"}), **alike((2, 3), failed(LACK))},
        "torch-backend-missing", (2, 3), ("job", "user", 30), LACK.removeprefix("unavailable: "), "--backend gloo",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("run", "rule", "ranks", "judged", "message", "fix"), CASES.values(), ids=CASES)
def test_the_ranks_at_fault_are_named_with_what_they_show(ran, only, run, rule, ranks, judged, message, fix):
    found, code = only(ran(run=run, collectives=measured(0)), rule)
    assert (found.ranks, found.scope, found.owner, code) == (ranks, *judged)
    assert found.confirmed == (rule == "torch-backend-missing")
    assert message in found.message
    assert fix in " ".join((found.fix.text, *found.fix.commands))


def test_a_reached_memory_limit_is_the_jobs_fault(ran, only):
    death = Death(oom_kills=1, memory_limit_bytes=512 << 20, memory_cgroup="/sys/fs/cgroup/job")
    run = {**alike((0, 2, 3), WAITING), 1: {"outcome": "died", "detail": "was ended by SIGKILL", "death": death}}
    found, code = only(ran(run=run, collectives=measured(0)), "collective-rank-died")
    assert (found.ranks, found.scope, found.owner, code) == ((1,), "rank", "user", 30)
    assert found.message.endswith("SIGKILL; the kernel OOM-killed it at its cgroup's memory limit of 512 MiB")
    assert found.evidence["memory_limit_bytes"] == 512 << 20


def test_deaths_with_different_causes_are_separate_findings(ran, judge):
    causes = [Death(oom_kills=1, memory_limit_bytes=512 << 20), Death(oom_kills=0)]
    dead = [{"outcome": "died", "detail": "was ended by SIGKILL", "death": death} for death in causes]
    result = judge(ran(run={0: dead[0], 1: dead[0], 3: dead[1]}, collectives=measured(0)), "collectives.outcome")
    assert [(f.rule, f.ranks) for f in result.findings] == [
        ("collective-rank-died", (0, 1)),
        ("collective-rank-died", (3,)),
    ]


def test_a_long_error_is_one_line_in_the_message_and_complete_in_the_evidence(ran, only):
    error = f"DistBackendError: {'NCCL error in ' * 20}\nException raised from\nframe #0: c10::Error"
    found, _ = only(ran(run={3: {"outcome": "failed", "detail": error}}, collectives=measured(0)), "collective-failed")
    assert len(found.message) < 200
    assert found.evidence["rank 3"].endswith("frame #0: c10::Error")


@pytest.mark.parametrize(
    ("waited", "timeout", "use"), [("0.23 s: the import is in f (m.py:1)", 1, 60), ("0 s", 45, 90), ("57 s", 60, None)]
)
def test_a_short_time_limit_blames_no_rank_for_a_slow_import(ran, change, judge, waited, timeout, use):
    late = {"outcome": "not started", "step": "started", "detail": f"torch was not imported within {waited}"}
    job = change.asked(ran(run=alike(range(4), late), collectives=measured(0)), timeout_seconds=timeout)
    diagnosis = judge(job, "collectives.outcome")
    left = waited.partition(" ")[0]
    reason = f"--timeout {timeout} left {left} s to import torch, which took longer; use --timeout {use}"
    assert [f.rule for f in diagnosis.findings] == ([] if use else ["collective-failed"])
    assert (reason in {n.reason for n in diagnosis.not_checked}) == bool(use)
    assert diagnosis.verdict.exit_code == 20


def test_only_ranks_that_never_started_do_not_pass(ran, judge):
    late = {"outcome": "not started", "detail": "the run was ended while torch was being imported"}
    result = judge(ran(run=alike(range(4), late), collectives=measured(0, operations=())), "collectives.outcome")
    assert (result.findings, result.verdict.exit_code) == ((), 20)


@pytest.mark.parametrize(
    ("collectives", "reason"),
    [
        (Missing(reason="torch cannot be imported: no module named torch"), "no module named torch"),
        (measured(4, sizes=SIZES[:1]), "no figure for all_reduce of 16 MiB and broadcast of 16 MiB"),
        (measured(0, operations=()), "no figure for all_reduce of 1 MiB and 16 MiB"),
    ],
)
def test_missing_figures_do_not_pass(ran, judge, collectives, reason):
    result = judge(ran(collectives=collectives), "collectives.outcome")
    assert result.findings == ()
    required = [n for n in result.not_checked if n.required]
    assert [n.rule for n in required] == ["collective-failed"]
    assert reason in required[0].reason
    assert result.verdict.exit_code == 20


def test_collectives_that_never_ran_do_not_pass(ran, change, judge):
    result = judge(change.job(ran(), collectives=None), "collectives.outcome")
    assert [(n.rule, n.reason) for n in result.not_checked] == [("collective-failed", "the collectives were not run")]
    assert result.verdict.exit_code == 20


def test_a_size_rounded_to_whole_elements_is_not_missing(ran, judge):
    result = judge(
        ran(sizes_bytes=(4099,), operations=("all_reduce",), collectives=measured(4, sizes=(4096,))),
        "collectives.outcome",
    )
    assert not [n for n in result.not_checked if n.required]


@pytest.mark.parametrize(("backend", "largest"), [("gloo", 1 << 24), ("nccl", 1 << 28)])
def test_the_default_sizes_are_expected_if_none_are_given(ran, change, judge, backend, largest):
    sizes = [1 << n for n in range(20, 29, 2) if 1 << n <= largest]
    collectives = change.job(measured(4, sizes=sizes), backend=backend)
    assert not [
        n for n in judge(ran(sizes_bytes=(), collectives=collectives), "collectives.outcome").not_checked if n.required
    ]


# --- collective-stalled


def test_the_place_where_a_rank_hangs_is_evidence(ran, only):
    calls = ("all_reduce (distributed/distributed_c10d.py:3000)", "_check (collectives/worker.py:180)")
    odd = {**WAITING, "silent_seconds": 12.0, "waits_in": "nfs_wait_bit_killable", "stack": calls}
    found, _ = only(ran(run={**alike(range(4), WAITING), 2: odd}, collectives=measured(0)), "collective-stalled")
    assert found.evidence["rank 2"] == (
        "pid 4711 in 'all_reduce 16777216 B', silent for 12.0 s, in the kernel's nfs_wait_bit_killable; "
        f"calls: {' < '.join(calls)}"
    )


@pytest.mark.parametrize(
    ("odd", "sign"),
    [
        ({**WAITING, "silent_seconds": 12.0}, "stopped reporting in 'all_reduce 16777216 B'"),
        ({**WAITING, "step": "check broadcast"}, "made less progress than the others in 'check broadcast'"),
        ({**WAITING, "step": "all_reduce 1048576 B"}, "made less progress than the others"),
        ({**WAITING, "step": "started"}, "made less progress than the others in 'started'"),
        ({**WAITING, "detail": "in a call (state D)"}, "hung in an uninterruptible system call"),
        (None, "never reported progress"),
    ],
)
def test_a_rank_that_differs_from_those_that_wait_is_the_suspect(ran, only, odd, sign):
    run = {**alike(range(4), WAITING), 2: odd}
    found, code = only(ran(run=run, collectives=measured(0)), "collective-stalled")
    assert (found.ranks, found.scope, found.confirmed, code) == ((2,), "node", False, 20)
    assert found.message.startswith(f"rank 2 (node2) {sign}")
    assert found.message.endswith("the other 3 show no fault")


def test_ranks_that_did_not_finish_are_suspects_if_most_did(ran, only):
    found, _ = only(ran(run={1: WAITING}), "collective-stalled")
    assert found.ranks == (1,)


@pytest.mark.parametrize(
    "run",
    [
        alike(range(4), WAITING),
        alike(range(4), {**WAITING, "silent_seconds": 9.0}),
        {**alike(range(1, 4), WAITING), 0: {**WAITING, "step": "broadcast 1048576 B"}},
    ],
)
def test_no_rank_is_blamed_if_most_wait_in_the_same_way(ran, only, run):
    found, code = only(ran(run=run, collectives=measured(0)), "collective-stalled")
    assert (found.ranks, found.nodes, found.scope, code) == ((), (), "link", 20)
    assert found.message.startswith("4 of 4 ranks were still in ")


def test_if_all_ranks_wait_every_place_is_listed(ran, only):
    there, here = ("all_reduce (distributed/distributed_c10d.py:3000)",), ("read (os.py:1)", "load (data.py:7)")
    run = {**alike(range(3), {**WAITING, "stack": there}), 3: {**WAITING, "stack": here}}
    found, _ = only(ran(run=run, collectives=measured(0)), "collective-stalled")
    assert found.ranks == ()
    assert found.evidence == {
        "in 'all_reduce 16777216 B'": "ranks 0-3",
        f"at {there[0]}": "ranks 0-2",
        f"at {here[0]}": "rank 3",
    }


def stalled(ran, change, ras, run=None):
    """Return a job of 4 ranks that all wait, or run like this, and what RAS said about it."""
    return ran(run=run or alike(range(4), WAITING), collectives=change.job(measured(0), ras=ras))


BEHIND = RasBehind(operation="AllReduce", launched=41, most=42, number=1, ranks=(3,))
OTHER = RasBehind(operation="AllReduce", launched=6, most=7, number=1, ranks=(1,))
MANY = RasBehind(operation="Broadcast", launched=1, most=2, number=3)
THREE_LAUNCHED = "rank 3 launched 41 of 42 AllReduce operations"
MANY_LAUNCHED = "3 ranks launched 1 of 2 Broadcast operations"


@pytest.mark.parametrize(
    ("said", "named", "evidence"),
    [
        (
            Ras(rank=0, missing=(2,), missing_number=1, dead=(2,), behind=(BEHIND,), words=("TIMEOUT",)),
            f"; NCCL's RAS: rank 2 did not answer, and {THREE_LAUNCHED}",
            {
                "did not answer": "rank 2", "given up": "rank 2", "behind in AllReduce": THREE_LAUNCHED,
                "errors and warnings": "TIMEOUT",
            },
        ),
        (Ras(rank=0), "", {"names no rank": "every rank answered, and all launched the same operations"}),
        (
            Ras(rank=0, behind=(BEHIND, OTHER)), f"; NCCL's RAS: {THREE_LAUNCHED}",
            {"behind in AllReduce": f"{THREE_LAUNCHED}; rank 1 launched 6 of 7 AllReduce operations"},
        ),
        (
            Ras(rank=0, missing_number=3, behind=(MANY,)),
            f"; NCCL's RAS: 3 ranks did not answer, and {MANY_LAUNCHED}",
            {"did not answer": "3 ranks", "behind in Broadcast": MANY_LAUNCHED},
        ),
        (Missing(reason="not asked: NCCL 2.21.5 has no RAS"), "", {"": "not asked: NCCL 2.21.5 has no RAS"}),
    ],
)  # fmt: skip
def test_ranks_that_ras_names_are_in_the_message_and_blamed_by_nothing_else(ran, change, only, said, named, evidence):
    found, code = only(stalled(ran, change, said), "collective-stalled")
    assert (found.ranks, found.nodes, found.scope, code) == ((), (), "link", 20)
    assert found.message.endswith(f"; no rank shows a cause{named}")
    assert {key: text for key, text in found.evidence.items() if "RAS" in key} == {
        f"NCCL's RAS (rank 0 answered): {what}" if what else "NCCL's RAS": text for what, text in evidence.items()
    }


@pytest.mark.parametrize(
    "said",
    [
        Ras(rank=0),
        Ras(rank=0, behind=(BEHIND,)),
        Ras(rank=0, missing=(2,), missing_number=1),
        Missing(reason="rank 0's RAS: Connect call failed"),
        None,
    ],
)
def test_ras_never_acquits_a_suspect(ran, change, only, said):
    run = {**alike(range(4), WAITING), 2: {**WAITING, "silent_seconds": 12.0}}
    without, _ = only(stalled(ran, change, None, run), "collective-stalled")
    found, code = only(stalled(ran, change, said, run), "collective-stalled")
    assert (found.ranks, found.nodes, found.scope, found.owner, found.confirmed, code) == (
        *(without.ranks, without.nodes, without.scope, without.owner, without.confirmed),
        20,
    )
    assert found.ranks == (2,)
    assert without.evidence.items() <= found.evidence.items()
    assert ("show no fault" in found.message) == (not isinstance(said, Ras) or not said.behind)


def test_a_slow_torch_import_is_named_with_its_seconds_and_rank(ran, only):
    joining = {**WAITING, "step": "process group"}
    run = {**alike(range(4), {**joining, "import_seconds": 4.0}), 3: {**joining, "import_seconds": 41.0}}
    late = ran(run=run, collectives=measured(0), timeout_seconds=60.0)
    found, code = only(late, "collective-stalled")
    assert (found.ranks, found.nodes, code) == ((), (), 20)
    assert found.message == (
        "4 of 4 ranks were still in 'process group' when the run was ended: "
        "importing torch took 41 of the 60 s of --timeout on rank 3 (node2)"
    )
    assert "distcheck env --timeout 120" in found.fix.commands

    for other in (
        {"import_seconds": 29.0},
        {"import_seconds": None},
        {"import_seconds": 41.0, "step": "check broadcast"},
    ):
        ended = ran(run=alike(range(4), {**joining, **other}), collectives=measured(0), timeout_seconds=60.0)
        found, _ = only(ended, "collective-stalled")
        assert found.message.endswith("; no rank shows a cause")
