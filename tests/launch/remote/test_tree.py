"""Logins through gateways: real gateways, and a script in place of ssh that works on them too."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from waiting import until

import distcheck
from distcheck.facts.errors import UsageError
from distcheck.launch.remote import engine, frames, gateway, tree
from distcheck.launch.remote.frames import Arrived
from distcheck.launch.remote.spec import Command
from distcheck.probe import open_files

SSH = """#!/bin/sh
# A probe says that it is there, waits for its assignment and then for the end of its input. VIA is the gateway.
eval "host=\\${$(($# - 1))} line=\\${$#}"
[ "$line" = probe ] && kind=probe || kind=gateway
echo "$kind $host $VIA" >> FOLDER/logins
case $kind,$host,$VIA in
    NODES
    gateway,*) export VIA=$host; exec sh -c "$line" ;;
esac
cat FOLDER/arrived
read -r assignment || exit 70
echo "$host $VIA" >> FOLDER/probes
STARTED
echo "in with $assignment"
echo warning >&2
while read -r word; do echo "heard $word"; done
echo "$host" >> FOLDER/ended
exit 3
"""
"""NODES are cases of what does not work; STARTED is what a probe with an assignment does first."""
GATEWAY = f"exec {sys.executable} -m {gateway.MODULE} -"
IGNORING = f"""import os, signal
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
os.execv("{sys.executable}", ["{sys.executable}", "-m", "{gateway.MODULE}", "-"])"""
"""Starts a gateway that ignores the end of its children."""
HOSTS = tuple(f"node{n}" for n in range(16))
GATEWAYS = ("node0", "node4", "node8", "node12")
OTHERS = tuple(host for host in HOSTS if host not in GATEWAYS)
LATEST_SECONDS = 30


class Listener:
    """Wishes one thing after the other, half a second apart, once this many hosts are in."""

    def __init__(self, number: int = len(HOSTS), *wishes: engine.Wish) -> None:
        self.said: list[tuple[str, str]] = []
        self.errors: list[tuple[str, str]] = []
        self.codes: dict[str, int] = {}
        self.in_after = self.ended_after = 0.0
        self._number, self._wishes, self._wish = number, list(wishes or ["stop"]), "go on"
        self._began = self._next_at = time.monotonic()

    def line(self, key: str, words: bytes, *, error: bool) -> None:
        if frames.ends(words) is None:
            (self.errors if error else self.said).append((key, words.decode()))

    def ended(self, key: str, code: int) -> None:
        assert key not in self.codes
        self.codes[key] = code

    def done(self) -> None:
        self.ended_after = time.monotonic() - self._began

    @property
    def here(self) -> list[str]:
        return [key for key, words in self.said if words.startswith("in with")]

    def wish(self) -> engine.Wish:
        now = time.monotonic()
        if now >= self._began + LATEST_SECONDS:
            return "end"
        if len(self.here) + sum(key not in self.here for key in self.codes) >= self._number:
            self.in_after = self.in_after or now - self._began
            if self._wishes and now >= self._next_at:
                self._wish, self._next_at = self._wishes.pop(0), now + 0.5
        return self._wish


@pytest.fixture
def cluster(monkeypatch, tmp_path):
    """Write the fake ssh; return what reads the lines of its logs."""

    def write(nodes: str = "", started: str = ""):
        ssh = tmp_path / "ssh"
        ssh.write_text(SSH.replace("NODES", nodes).replace("STARTED", started).replace("FOLDER", str(tmp_path)))
        ssh.chmod(0o755)
        (tmp_path / "arrived").write_bytes(b"".join(frames.encode("0" * 8, 0, Arrived("1", "node", 1))))
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        monkeypatch.setenv("PYTHONPATH", str(Path(distcheck.__file__).parents[1]))

        def lines(name: str) -> list[str]:
            path = tmp_path / name
            return [line.strip() for line in path.read_text().splitlines()] if path.exists() else []

        return lines

    return write


def commands(hosts=HOSTS) -> list[Command]:
    return [Command(key=host, line="probe", stdin=f"{host}'s assignment\n".encode()) for host in hosts]


def run(listener: Listener, hosts=HOSTS) -> Listener:
    all_ = commands(hosts)
    tree.run(all_, GATEWAY, listener, listener.wish, seconds=LATEST_SECONDS, connect_seconds=5, environment={})
    listener.done()
    return listener


def assert_each_has_one_probe_with_its_own_assignment(listener: Listener, probes: list[str], hosts=HOSTS) -> None:
    assert Counter(listener.said)  # nothing else is expected of a healthy probe
    assert sorted(listener.said) == sorted((host, f"in with {host}'s assignment") for host in hosts)
    assert sorted(listener.errors) == sorted((host, "warning") for host in hosts)
    assert listener.codes == dict.fromkeys(hosts, 3)
    assert sorted(line.split()[0] for line in probes) == sorted(hosts)


# -- which hosts are gateways


@pytest.mark.parametrize("number", [1, 2, 3, 16, 255, 256, 1024, 10_000])
def test_shares_are_balanced_and_contain_every_host_once(number):
    hosts = [f"node{n}" for n in range(number)]
    shares = tree.shares(hosts)
    assert [host for share in shares for host in share] == hosts
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    assert abs(len(shares) - number**0.5) <= 0.5


def test_the_leaders_host_is_a_gateway_and_so_started_directly():
    assert "node0" not in tree.Tree(commands(), Listener(), lambda: "go on").branch_of


def test_only_many_hosts_need_a_tree_and_their_probes_wait_longer_for_each_other():
    assert [tree.worth(n) for n in (1, 255, 256, 10_000)] == [False, False, True, True]
    assert tree.last_start_seconds(255) == engine.last_start_seconds(255)
    assert tree.last_start_seconds(256) == engine.last_start_seconds(256) + tree.LATEST_SECONDS


# -- the lines of a gateway


@pytest.mark.parametrize("words", [b"", b"plain", b"\x1e\x00\xff \t", "ünï".encode(), b"3 out 4"])
def test_what_a_probe_prints_arrives_as_it_was(words):
    assert gateway.answer(b"\x1eDCG1 12 out " + words) == gateway.Reply(12, "out", words)


@pytest.mark.parametrize(
    "line", [b"", b"Welcome to node3", b"3 out words", b"\x1eDCG1 3 said words", b"\x1eDCG1 x out w"]
)
def test_other_output_on_a_gateway_is_no_answer(line):
    assert gateway.answer(line) is None


# -- healthy


@pytest.mark.process
@pytest.mark.parametrize("nodes", ["", f"gateway,*) export VIA=$host; exec {sys.executable} -c '{IGNORING}' ;;"])
def test_gateways_log_in_to_the_others_and_each_probe_has_its_own_assignment_and_exit_code(cluster, nodes):
    lines = cluster(nodes)
    listener = run(Listener())
    assert_each_has_one_probe_with_its_own_assignment(listener, lines("probes"))
    logins = [line.split() for line in lines("logins")]
    assert sorted(host for kind, host, *via in logins if not via) == sorted(2 * GATEWAYS)
    assert {host: via for _, host, *via in logins if via} == {
        host: [GATEWAYS[HOSTS.index(host) // 4]] for host in OTHERS
    }


@pytest.mark.process
def test_close_reaches_every_probe_once(cluster):
    cluster()
    listener = run(Listener(len(HOSTS), "close", "stop"))
    assert sorted(key for key, words in listener.said if words == "heard close") == sorted(HOSTS)
    assert listener.codes == dict.fromkeys(HOSTS, 3)


@pytest.mark.process
def test_the_others_wait_until_one_node_could_log_in_to_another(cluster):
    lines = cluster("probe,node1,node0) sleep 1 ;; probe,node5,*|probe,node9,*|probe,node13,*) sleep 2 ;;")
    run(Listener())
    through = [host for kind, host, *via in map(str.split, lines("logins")) if via]
    assert sorted(through[:4]) == ["node1", "node13", "node5", "node9"]
    assert sorted(through) == sorted(OTHERS)


@pytest.mark.process
def test_the_starting_machine_has_open_files_for_its_own_logins_only(cluster, monkeypatch):
    cluster()
    asked = []
    monkeypatch.setattr(open_files, "raise_limit", lambda wanted: (asked.append(wanted), (3 * 8 + 64, None))[1])
    assert sorted(run(Listener()).here) == sorted(HOSTS)
    assert asked == [3 * (8 + len(OTHERS)) + 64]


@pytest.mark.process
def test_too_few_open_files_for_direct_logins_are_reported_when_they_are_needed(cluster, monkeypatch):
    cluster('*,*,?*) echo "Permission denied (publickey)." >&2; exit 255 ;;')
    monkeypatch.setattr(open_files, "raise_limit", lambda _wanted: (3 * 10 + 64, None))
    with pytest.raises(UsageError, match=r"nodes need \d+ open files on this machine, and its limit is 94"):
        run(Listener())


# -- what does not work


@pytest.mark.process
@pytest.mark.parametrize(
    ("nodes", "direct"),
    [
        ('probe,*,?*) echo "Permission denied (publickey)." >&2; exit 255 ;;', OTHERS),
        ('probe,node5,?*) echo "Host key verification failed." >&2; exit 255 ;;', ("node5",)),
        ("probe,node6,?*) echo no such module >&2; exit 1 ;;", ("node6",)),
        ("gateway,node4,*) echo No module named ClusterShell >&2; exit 1 ;;", ("node5", "node6", "node7")),
        ("gateway,node8,*) echo Connection refused >&2; exit 255 ;;", ("node9", "node10", "node11")),
        ("gateway,*) exit 127 ;;", OTHERS),
        ("gateway,node8,*) printf 'Welcome\\n\\036DCG1 here 0.0.0\\n'; cat ;;", ("node9", "node10", "node11")),
    ],
    ids=["no keys", "one host key", "one probe", "no ClusterShell", "one gateway down", "no gateway", "other version"],
)  # fmt: skip
def test_what_fails_through_a_gateway_is_started_directly_and_leaves_no_trace(cluster, monkeypatch, nodes, direct):
    monkeypatch.setattr(tree, "ANSWER_SECONDS", 8.0)  # with fewer, a busy machine answers too late
    lines = cluster(nodes)
    listener = run(Listener())
    assert_each_has_one_probe_with_its_own_assignment(listener, lines("probes"))
    assert sorted(line for line in lines("probes") if " " not in line) == sorted([*GATEWAYS, *direct])
    assert listener.in_after < tree.ANSWER_SECONDS


@pytest.mark.process
def test_nodes_that_cannot_log_in_to_each_other_are_asked_once_per_gateway(cluster):
    lines = cluster('probe,*,?*) echo "Permission denied (publickey)." >&2; exit 255 ;;')
    run(Listener())
    assert sum(len(line.split()) == 3 for line in lines("logins")) <= len(GATEWAYS)


@pytest.mark.process
@pytest.mark.parametrize(
    ("nodes", "direct"),
    [
        ("gateway,node4,*) exec sleep 600 ;;", ("node5", "node6", "node7")),
        ("probe,node6,?*) exec sleep 600 ;;", ("node6",)),
        (
            """probe,node5,?*) kill -STOP $PPID; touch FOLDER/stopped; exit ;;
            probe,node[67],?*) while [ ! -e FOLDER/stopped ]; do sleep 0.1; done ;;""",
            ("node5", "node6", "node7"),
        ),
    ],
    ids=["a gateway", "a login through a gateway", "a gateway that was there"],
)
def test_what_hangs_is_started_directly_after_a_while(cluster, monkeypatch, nodes, direct):
    monkeypatch.setattr(tree, "ANSWER_SECONDS", 8.0)  # with fewer, a busy machine answers too late
    lines = cluster(nodes)
    listener = run(Listener())
    assert_each_has_one_probe_with_its_own_assignment(listener, lines("probes"))
    assert sorted(line for line in lines("probes") if " " not in line) == sorted([*GATEWAYS, *direct])
    assert listener.ended_after < LATEST_SECONDS


@pytest.mark.process
def test_a_host_that_cannot_be_reached_at_all_has_the_direct_logins_words_and_code(cluster):
    lines = cluster("probe,node6,?*) echo from afar >&2; exit 255 ;; probe,node6,) echo refused >&2; exit 255 ;;")
    listener = run(Listener())
    assert [words for key, words in listener.errors if key == "node6"] == ["refused"]
    assert listener.codes == dict.fromkeys(HOSTS, 3) | {"node6": 255}
    assert sorted(line.split()[0] for line in lines("probes")) == sorted(set(HOSTS) - {"node6"})


@pytest.mark.process
def test_a_late_probe_gets_no_assignment_when_its_host_was_started_directly(cluster, monkeypatch):
    monkeypatch.setattr(tree, "ANSWER_SECONDS", 3.0)
    lines = cluster("probe,node6,?*) sleep 6 ;;")
    listener = run(Listener(len(HOSTS), *["go on"] * 9, "stop"))  # half a second each: the late one comes meanwhile
    assert_each_has_one_probe_with_its_own_assignment(listener, lines("probes"))
    assert "node6" in lines("probes")


@pytest.mark.process
def test_hosts_of_a_gateway_that_dies_before_their_facts_came_are_started_directly(cluster):
    died = 'if [ "$host" = node5 ] && [ "$VIA" ]; then kill -KILL $PPID; sleep 1; fi'
    lines = cluster(started=died)
    listener = run(Listener())
    assert set(listener.here) == set(HOSTS)
    assert listener.codes == dict.fromkeys(HOSTS, 3)
    probes = Counter(line.split()[0] for line in lines("probes"))
    assert probes["node5"] == 2
    # The first probes have lost their input, and so have ended.
    until(lambda: len(lines("ended")) == sum(probes.values()))


# -- endings


@pytest.mark.process
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL])
def test_every_probe_and_gateway_ends_when_the_starting_process_is_killed(cluster, signum):
    lines = cluster()
    script = (
        "import sys; sys.path.insert(0, 'tests'); "
        "from launch.remote import test_tree as t; t.run(t.Listener(len(t.HOSTS) + 1))"
    )
    starting = subprocess.Popen([sys.executable, "-c", script], cwd=Path(__file__).parents[3])
    until(lambda: len(lines("probes")) == len(HOSTS), 30)
    gateways = running(os.environ["PATH"].split(":")[0])
    assert len(gateways) == len(GATEWAYS)
    starting.send_signal(signum)
    starting.wait(10)
    until(lambda: sorted(lines("ended")) == sorted(HOSTS))
    until(lambda: not running(os.environ["PATH"].split(":")[0]))


def running(folder: str) -> list[int]:
    """Return the processes of gateways whose PATH begins with a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words, variables = (path / "cmdline").read_bytes(), (path / "environ").read_bytes()
        except OSError:
            continue
        if (
            re.search(rb"python[^\0]*\0-m\0" + gateway.MODULE.encode(), words)
            and f"PATH={folder}:".encode() in variables
        ):
            found.append(int(path.name))
    return found
