"""What came home from the probes of a launch: facts put together, and words read for what became of the others.

The words are those of Slurm 22.05, OpenSSH 9.2, Open MPI 4.1 and MPICH 4.0, recorded on nodes with these faults.
"""

from __future__ import annotations

import random

import msgspec
import pytest
from made.jobs import healthy_job, reports_of

from distcheck import __version__
from distcheck.facts.asked import Asked
from distcheck.facts.job import Job
from distcheck.launch.remote import frames, mpi, slurm, ssh
from distcheck.launch.remote.collector import Homecoming
from distcheck.launch.remote.frames import Arrived, Collected, Concluded
from distcheck.launch.remote.spec import Outside
from distcheck.rollcall.protocol import Report

ASKED = Asked("env", ("launch", "environment", "meeting"))
HOSTS = ("node1", "node2", "node3")
WORDS = {"ssh": ssh.WORDS, "slurm": slurm.WORDS, "mpi": mpi.WORDS}
PROGRAM = {"slurm": "srun", "mpi": "mpirun"}


JOB = healthy_job(3, 2, "distcheck", looks=("environment", "meeting"))


def report_of(node: int) -> Report:
    """Return the report of a node's probe with its two ranks."""
    return reports_of(JOB)[node - 1]


def job_of(*nodes: int, met: bool = True) -> Job:
    reports = [report_of(node) for node in nodes]
    return msgspec.structs.replace(
        JOB,
        met=met,
        nodes=tuple(r.node for r in reports),
        processes=tuple(r.process for r in reports),
        ranks=tuple(rank for r in reports for rank in r.ranks),
    )


class Launch:
    """Three nodes with two ranks each, started by an engine; plays its commands' output."""

    def __init__(self, engine: str = "ssh", *, multiplies: bool = True, hosts: tuple[str, ...] = HOSTS) -> None:
        self.engine, self.said = engine, []
        launch = Outside(engine, hosts, (2,) * len(hosts), multiplies, "node1", 29500)  # type: ignore[arg-type]
        self.home = Homecoming(launch, WORDS[engine], self.said.append)

    def key(self, node: int) -> str:
        return PROGRAM.get(self.engine, f"node{node}")

    def tell(self, node: int, *messages, label: str = "") -> None:
        """Have a node's probe send messages; label is the launcher's prefix of its lines."""
        for number, message in enumerate(messages):
            for frame in frames.encode(f"{node:08x}", number, message):
                self.home.line(self.key(node), label.encode() + frame.rstrip(b"\n"), error=False)

    def error(self, text: str, node: int = 1) -> None:
        for line in text.splitlines():
            self.home.line(self.key(node), line.encode(), error=True)

    def job(self, **ended: str) -> Job:
        return self.home.job(ASKED, ("python",), 1.5, **{"ended": "", "interrupted": 0, **ended})

    def fates(self) -> dict[str, str]:
        launched = self.job().launched
        assert launched is not None
        return {node.name: node.outcome for node in launched.nodes}

    def words(self, host: str) -> str:
        launched = self.job().launched
        assert launched is not None
        return next(node.words for node in launched.nodes if node.name == host)


def ranks(job: Job) -> list[int | None]:
    return [rank.placement.rank for rank in job.ranks]


# -- facts


def test_the_leaders_job_is_the_job():
    launch = Launch()
    for node in (1, 2, 3):
        launch.tell(node, Arrived(__version__), Collected(report_of(node)))
        launch.home.ended(f"node{node}", 0)
    assert launch.home.concluded_at is None
    launch.tell(1, Concluded(job_of(1, 2, 3)))
    job = launch.job()
    assert launch.home.concluded_at is not None
    assert (ranks(job), job.met, job.run, job.asked, job.seconds) == ([0, 1, 2, 3, 4, 5], True, "run", ASKED, 1.5)
    assert set(launch.fates().values()) == {"reported"}


def test_jobs_of_parts_and_facts_of_single_probes_make_one_job_in_the_order_of_ranks():
    launch = Launch()
    launch.tell(3, Concluded(job_of(3, met=False)))
    launch.tell(1, Concluded(job_of(1, met=False)))
    launch.tell(2, Collected(report_of(2)))
    job = launch.job()
    assert (ranks(job), job.met) == ([0, 1, 2, 3, 4, 5], False)
    assert [len(job.nodes), len(job.processes)] == [3, 3]
    assert launch.home.concluded_at is None


def test_a_job_with_a_roll_call_counts_before_a_larger_one_without():
    launch = Launch()
    launch.tell(2, Concluded(msgspec.structs.replace(job_of(2, 3, met=False), run="other")))
    launch.tell(1, Concluded(job_of(1)))
    job = launch.job()
    assert (job.met, job.run, ranks(job)) == (True, "run", [0, 1, 2, 3, 4, 5])


def test_facts_that_come_twice_are_there_once():
    launch = Launch()
    launch.tell(1, Collected(report_of(1)), Collected(report_of(1)), Concluded(job_of(1)))
    assert ranks(launch.job()) == [0, 1]


def test_no_process_is_awaited_if_some_ended_without_facts_and_all_others_reported():
    launch = Launch()
    launch.tell(1, Collected(report_of(1)))
    launch.home.ended("node3", 255)
    assert not launch.home.nobody_else, "node2 may come yet"
    launch.tell(2, Collected(report_of(2)))
    assert launch.home.nobody_else


@pytest.mark.parametrize("here", [(), (1, 2, 3)])
def test_processes_are_awaited_while_all_or_none_reported(here):
    launch = Launch()
    for node in (1, 2, 3):
        if node in here:
            launch.tell(node, Collected(report_of(node)))
        launch.home.ended(f"node{node}", 0 if here else 255)
    assert not launch.home.nobody_else


@pytest.mark.parametrize(
    ("engine", "label"), [("slurm", "{}: "), ("mpi", "[1,{}]<stdout>: "), ("mpi", "[1,{}]<stdout>:"), ("mpi", "[{}] ")]
)
def test_interleaved_frames_of_labelled_lines_are_separated(engine, label):
    launch = Launch(engine)
    lines = [
        [label.format(node - 1).encode() + frame for frame in frames.encode(f"{node:08x}", 0, Collected(big(node)))]
        for node in (1, 2, 3)
    ]
    assert min(map(len, lines)) > 1
    for trio in zip(*lines, strict=True):
        for line in trio:
            launch.home.line(launch.key(1), line.rstrip(b"\n"), error=False)
    assert set(launch.fates().values()) == {"reported"}


def big(node: int) -> Report:
    """Return a report that takes several frames."""
    report = report_of(node)
    noise = random.Random(node).randbytes(3000).hex()
    return msgspec.structs.replace(report, process=msgspec.structs.replace(report.process, command=(noise,)))


def test_the_node_of_a_message_that_lost_a_frame_is_not_taken_for_silent():
    launch = Launch()
    launch.tell(1, Arrived(__version__))
    lines = frames.encode("00000001", 1, Collected(big(1)))
    for line in lines[1:]:
        launch.home.line("node1", line.rstrip(b"\n"), error=False)
    launch.home.ended("node1", 0)
    job = launch.job()
    assert job.launched is not None
    assert job.launched.nodes[0].outcome == "ended"


# -- what became of the others


def test_no_output_at_all_is_silence_and_no_verdict():
    job = Launch().job(ended="the run was ended by --timeout of 8 s")
    assert job.launched is not None
    assert {node.outcome for node in job.launched.nodes} == {"silent"}
    assert (job.met, job.ranks, job.skipped) == (False, (), {"meeting": "the run was ended by --timeout of 8 s"})
    assert job.world_size == 6


@pytest.mark.parametrize(
    ("code", "words", "fate"),
    [
        (255, "ssh: connect to host node3 port 22: Connection timed out", "unreachable"),
        (255, "root@node3: Permission denied (publickey).", "unreachable"),
        (255, "Connection timed out during banner exchange\nConnection to 10.77.0.13 port 22 timed out", "unreachable"),
        (127, "bash: line 1: /tmp/venv/bin/python: No such file or directory", "no probe"),
        (1, "/usr/bin/python3: No module named distcheck", "no probe"),
        (
            1,
            ("python: Error while finding module specification for "
            "'distcheck.run.remote_probe' (No module named 'distcheck')"),
            "no probe",
        ),
        (97, "distcheck: --setup failed with exit code 1", "ended"),
        (137, "Killed", "ended"),
        (0, "", "ended"),
    ],
)  # fmt: skip
def test_ssh_and_shell_output_determine_a_nodes_outcome(code, words, fate):
    launch = Launch("ssh")
    launch.tell(1, Concluded(job_of(1, 2)))
    launch.error(words, node=3)
    launch.home.ended("node3", code)
    assert launch.fates() == {"node1": "reported", "node2": "reported", "node3": fate}
    assert launch.words("node3") == words


SRUN_NO_PYTHON = """\
2: slurmstepd-node3: error: execve(): /tmp/venv/bin/python: No such file or directory
srun: error: node3: task 2: Exited with exit code 2
srun: cluster configuration lacks support for cpu binding"""
SRUN_NO_NODE = """\
srun: error: Task launch for StepId=2.0 failed on node node3: Communication connection failure
srun: error: Application launch failed: Communication connection failure
srun: Job step aborted: Waiting up to 7 seconds for job step to finish."""
OPENMPI_NO_PYTHON = """\
[head:00257] plm:rsh: Warning: setpgid(262,262) failed in parent with errno=Permission denied(13)
--------------------------------------------------------------------------
mpirun was unable to launch the specified application as it could not access
or execute an executable:

Executable: /tmp/venv/bin/python
Node: node3

while attempting to start process rank 2.
--------------------------------------------------------------------------"""
OPENMPI_NO_NODE = """\
ssh: connect to host node3 port 22: No route to host
--------------------------------------------------------------------------
ORTE was unable to reliably start one or more daemons.
This usually is caused by:

* not finding the required libraries and/or binaries on
  one or more nodes. Please check your PATH and LD_LIBRARY_PATH
  settings, or configure OMPI with --enable-orterun-prefix-by-default

* lack of authority to execute on one or more specified nodes.
  Please verify your allocation and authorities.

* the inability to write startup files into /tmp (--tmpdir/orte_tmpdir_base).
  Please check with your sys admin to determine the correct location to use.

*  compilation of the orted with dynamic libraries when static are required
  (e.g., on Cray). Please check your configure cmd line and consider using
  one of the contrib/platform definitions for your system type.

* an inability to create a connection back to mpirun due to a
  lack of common network interfaces and/or no route found between
  them. Please check network connectivity (including firewalls
  and network routing requirements).
--------------------------------------------------------------------------"""
HYDRA_NO_PYTHON = (
    "[proxy:0:2@node3] HYDU_create_process (utils/launch/launch.c:73): execvp error on file /tmp/venv/bin/python "
    "(No such file or directory)"
)
HYDRA_NO_NODE = """\
ssh: connect to host node3 port 22: No route to host
[mpiexec@head] HYDU_sock_write (utils/sock/sock.c:254): write error (Bad file descriptor)
[mpiexec@head] main (ui/mpich/mpiexec.c:325): process manager error waiting for completion"""


@pytest.mark.parametrize(
    ("engine", "words", "code", "fate", "telling"),
    [
        ("slurm", SRUN_NO_PYTHON, 2, "no probe", "execve(): /tmp/venv/bin/python: No such file or directory"),
        ("slurm", SRUN_NO_NODE, 233, "unreachable", "failed on node node3: Communication connection failure"),
        ("mpi", OPENMPI_NO_PYTHON, 132, "no probe", "Executable: /tmp/venv/bin/python"),
        ("mpi", OPENMPI_NO_NODE, 255, "unreachable", "ssh: connect to host node3 port 22: No route to host"),
        ("mpi", HYDRA_NO_PYTHON, 255, "no probe", "execvp error on file /tmp/venv/bin/python"),
        ("mpi", HYDRA_NO_NODE, 255, "unreachable", "ssh: connect to host node3 port 22: No route to host"),
        ("mpi", "root@node3: Permission denied (publickey).", 255, "unreachable", "Permission denied (publickey)"),
        ("mpi", "ssh: Could not resolve hostname node3: Name or service not known", 255, "unreachable", "resolve"),
    ],
)
def test_srun_and_mpirun_output_determine_the_named_nodes_outcome(engine, words, code, fate, telling):
    launch = Launch(engine)
    launch.tell(1, Concluded(job_of(1, 2)), label="0: " if engine == "slurm" else "[1,0]<stdout>: ")
    launch.error(words)
    launch.home.ended(PROGRAM[engine], code)
    assert launch.fates() == {"node1": "reported", "node2": "reported", "node3": fate}
    assert telling in launch.words("node3")
    assert "node3" not in launch.words("node1") + launch.words("node2")
    launched = launch.job().launched
    assert launched is not None
    assert launched.exit_code == code


def test_output_without_a_node_name_is_the_launchers_and_blames_no_node():
    launch = Launch("slurm")
    launch.error("srun: error: Unable to create step for job 7: Invalid partition name specified")
    launch.home.ended("srun", 1)
    launched = launch.job().launched
    assert launched is not None
    assert launched.words == "srun: error: Unable to create step for job 7: Invalid partition name specified"
    assert {(n.outcome, n.exit_code, n.words) for n in launched.nodes} == {("ended", None, "")}


def test_a_labelled_line_belongs_to_the_host_of_its_task():
    launch = Launch("slurm", multiplies=False)
    launch.error("3: Traceback\n4: Killed")
    assert (launch.words("node1"), launch.words("node2"), launch.words("node3")) == ("", "Traceback", "Killed")


@pytest.mark.parametrize("label", ["99: ", "[1,99]<stderr>: ", "x: ", ""])
def test_an_unknown_label_is_harmless(label):
    for engine in ("slurm", "mpi"):
        launch = Launch(engine)
        launch.error(f"{label}some words")
        assert set(launch.fates().values()) == {"silent"}


def test_a_probe_of_another_version_is_unreadable_unless_its_facts_came():
    launch = Launch()
    launch.tell(2, Arrived("0.0.9"))
    launch.tell(3, Arrived("0.0.9"), Collected(report_of(3)))
    launched = launch.job().launched
    assert launched is not None
    assert [(n.outcome, n.distcheck) for n in launched.nodes[1:]] == [("unreadable", "0.0.9"), ("reported", "0.0.9")]


def test_only_the_last_lines_are_kept():
    launch = Launch()
    launch.error("\n".join(f"line {n}" for n in range(500)), node=2)
    assert launch.words("node2").splitlines()[-1] == "line 499"
    assert len(launch.words("node2").splitlines()) < 50


def test_undecodable_output_is_kept_too():
    launch = Launch()
    launch.home.line("node1", b"\xff\xfe oh\x1b[0m", error=True)
    assert "oh" in launch.words("node1")


# -- progress

STAGE = "roll call: 2 of 6 ranks joined, waiting 20 s at most for the others"


@pytest.mark.parametrize(("engine", "label"), [("ssh", ""), ("slurm", "0: ")])
def test_the_leaders_line_about_a_stage_is_passed_on_and_explains_no_silent_node(engine, label):
    launch = Launch(engine)
    launch.error(f"{label}distcheck: {STAGE}\n{label}distcheck: a warning")
    assert launch.said == [STAGE, "a warning"]
    assert launch.home.stage == STAGE
    assert launch.words("node1") == "distcheck: a warning"


def test_a_live_line_shows_the_stage_and_the_nodes_without_facts():
    launch = Launch()
    launch.home = Homecoming(launch.home.launch, WORDS["ssh"], launch.said.append, live=True)
    launch.error(f"distcheck: {STAGE}\ndistcheck: a warning")
    assert (launch.said, launch.home.stage) == (["a warning"], STAGE)
    assert launch.home.silent == ["node1", "node2", "node3"]
    launch.tell(2, Arrived(__version__))
    assert "node2" in launch.home.silent, "it came, and knows nothing yet"
    launch.tell(2, Collected(report_of(2)))
    assert launch.home.silent == ["node1", "node3"]


@pytest.mark.parametrize(("engine", "label"), [("ssh", ""), ("slurm", "1: ")])
def test_a_probe_that_was_stopped_with_all_others_did_not_fail(engine, label):
    launch = Launch(engine)
    launch.tell(2, Arrived(__version__), label=label)
    launch.home.note_stopped()
    launch.home.ended(launch.key(2), 143)
    assert launch.fates()["node2"] == "silent"


def test_a_probe_that_failed_before_all_were_stopped_failed():
    launch = Launch()
    launch.tell(2, Arrived(__version__))
    launch.home.ended("node2", 1)
    launch.home.note_stopped()
    assert launch.fates()["node2"] == "ended"
