"""Commands that start probes, with local programs: read to the end, stopped, and ended."""

from __future__ import annotations

import os
import shlex
import time
from pathlib import Path

import pytest
from real.waiting import until

from distcheck.facts.errors import UsageError
from distcheck.launch.remote import engine
from distcheck.launch.remote.spec import Command

_WAIT = "while :; do sleep 0.05; done"


class Ears:
    """Hears; once a program has said `until`, its wish goes on to the next one, each after the one before.

    The first one comes after the program `after` has ended, if one is named.
    """

    def __init__(self, *wishes: engine.Wish, until: str = "ready", after: str = "") -> None:
        self.said: list[tuple[str, str]] = []
        self.errors: list[tuple[str, str]] = []
        self.codes: dict[str, int] = {}
        self._wishes, self._until, self._after = list(wishes), until, after
        self._wish: engine.Wish = "go on"
        self._next_at = 0.0

    def line(self, key: str, words: bytes, *, error: bool) -> None:
        (self.errors if error else self.said).append((key, words.decode()))

    def ended(self, key: str, code: int) -> None:
        self.codes[key] = code

    def wish(self) -> engine.Wish:
        ready = any(words == self._until for _, words in self.said) and (not self._after or self._after in self.codes)
        if ready and self._wishes and time.monotonic() >= self._next_at:
            self._wish = self._wishes.pop(0)
            self._next_at = time.monotonic() + 0.5
        return self._wish


def run(ears: Ears, *scripts: str, environment: dict[str, str] | None = None) -> Ears:
    """Run shell scripts side by side, their keys 0, 1, 2, ..."""
    commands = [Command(key=str(n), argv=("sh", "-c", script)) for n, script in enumerate(scripts)]
    engine.run(commands, ears, ears.wish, connect_seconds=2, environment=environment or {})
    return ears


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.process
def test_both_streams_and_the_exit_codes_of_all_are_heard():
    ears = run(Ears(), "echo out; echo err >&2; exit 3", "echo other; exit 0")
    assert sorted(ears.said) == [("0", "out"), ("1", "other")]
    assert ears.errors == [("0", "err")]
    assert ears.codes == {"0": 3, "1": 0}


@pytest.mark.process
def test_many_lines_come_in_order_and_the_last_one_without_its_end_too():
    ears = run(Ears(), "seq 20000; printf last")
    assert [words for _, words in ears.said] == [*map(str, range(1, 20001)), "last"]


@pytest.mark.parametrize(
    ("command", "present", "missing"),
    [
        (Command(key="node1", line="probe"), "setsid", "has no ssh:"),
        (Command(key="node1", line="probe"), "ssh", "has no setsid:"),
        (Command(key="srun", argv=("srun", "probe")), "ssh", "has no setsid and no srun:"),
    ],
)
def test_a_program_that_this_machine_lacks_is_no_fault_of_a_node(monkeypatch, tmp_path, command, present, missing):
    (tmp_path / present).touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match=missing):
        engine.run([command], Ears(), lambda: "end", connect_seconds=2, environment={})


@pytest.mark.process
def test_a_program_reads_no_input_of_ours_and_leads_a_session_of_its_own():
    ears = run(Ears(), "cat; echo $$ $(ps -o sid= -p $$)")
    pid, session = ears.said[0][1].split()
    assert pid == session != str(os.getsid(0))


@pytest.mark.process
def test_arguments_with_spaces_and_quotes_arrive_unchanged():
    ears = Ears()
    awkward = ["a b", "it's", '"$HOME"', "*", ""]
    command = Command(key="0", argv=("sh", "-c", 'for w; do echo "<$w>"; done', "sh", *awkward))
    engine.run([command], ears, ears.wish, connect_seconds=2, environment={})
    assert [words for _, words in ears.said] == [f"<{word}>" for word in awkward]


@pytest.mark.process
def test_a_program_gets_usr1_to_stop_and_is_read_to_its_end():
    ears = run(Ears("stop"), f"trap 'echo stopped; exit 5' USR1; echo ready; {_WAIT}")
    assert ears.said == [("0", "ready"), ("0", "stopped")]
    assert ears.codes == {"0": 5}


@pytest.mark.process
def test_a_local_program_goes_on_at_close():
    ears = run(Ears("close", "stop"), f"trap 'echo stopped; exit 5' USR1; echo ready; {_WAIT}")
    assert (ears.said, ears.codes) == ([("0", "ready"), ("0", "stopped")], {"0": 5})


@pytest.mark.process
def test_a_program_that_does_not_stop_is_ended_by_term(tmp_path):
    told = tmp_path / "told"
    script = f"trap '' USR1; trap 'echo ended > {shlex.quote(str(told))}; exit 6' TERM; echo ready; {_WAIT}"
    run(Ears("stop", "end"), script)
    assert told.read_text() == "ended\n"


@pytest.mark.process
def test_a_program_that_ignores_both_is_gone_nevertheless():
    ears = run(Ears("stop", "end"), f"trap '' USR1 TERM; echo $$; echo ready; {_WAIT}")
    until(lambda: gone(int(ears.said[0][1])))


@pytest.mark.process
def test_an_ended_program_gets_no_signal_when_the_others_are_stopped():
    ears = run(Ears("stop", after="0"), "exit 0", f"trap 'exit 5' USR1; echo ready; {_WAIT}")
    assert ears.codes == {"0": 0, "1": 5}


@pytest.mark.process
@pytest.mark.parametrize("there", [None, "before"])
def test_variables_are_added_for_the_programs_and_taken_back(monkeypatch, there):
    monkeypatch.delenv("DISTCHECK_TOKEN", raising=False)
    if there:
        monkeypatch.setenv("DISTCHECK_TOKEN", there)
    before = dict(os.environ)
    ears = run(Ears(), 'echo "$DISTCHECK_TOKEN $HOME"', environment={"DISTCHECK_TOKEN": "secret", "HOME": "/x"})
    assert ears.said == [("0", "secret /x")]
    assert dict(os.environ) == before
