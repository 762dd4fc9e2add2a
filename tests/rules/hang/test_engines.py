"""Workers of vLLM and Ray: where they are in a program that is a package, and when they are idle."""

from __future__ import annotations

import pytest
from made.running import C10D, PACKAGES, collective, rank, running, sleeper, thread, waiter

from distcheck.facts.hang import SystemCall
from distcheck.rules.hang.judging import answer
from distcheck.rules.hang.sentences import doing

LIBRARY = PACKAGES.rpartition("/")[0]
FORKED = (
    f"{LIBRARY}/multiprocessing/process.py:108 BaseProcess.run",
    f"{LIBRARY}/multiprocessing/process.py:314 BaseProcess._bootstrap",
    f"{PACKAGES}/vllm/v1/engine/core.py:700 EngineCoreProc.run_engine_core",
    "/opt/venv/bin/vllm:8 <module>",
)
LOOP = f"{PACKAGES}/vllm/v1/executor/multiproc_executor.py:1033 WorkerProc.worker_busy_loop"
QUEUE = f"{PACKAGES}/vllm/distributed/device_communicators/shm_broadcast.py"
IDLE = (f"{QUEUE}:560 MessageQueue.acquire_read", f"{QUEUE}:620 MessageQueue.dequeue", LOOP, *FORKED)
LAYER = f"{PACKAGES}/vllm/model_executor/layers/linear.py:1200 RowParallelLinear.forward"
RAY = f"{PACKAGES}/ray/_private"
ACTOR = (f"{RAY}/worker.py:1069 Worker.main_loop", f"{RAY}/workers/default_worker.py:323 <module>")
CORE = (
    f"{LIBRARY}/threading.py:327 Condition.wait",
    f"{LIBRARY}/queue.py:171 Queue.get",
    f"{PACKAGES}/vllm/v1/engine/core.py:1180 EngineCoreProc._process_input_queue",
    *FORKED,
)
POLL = SystemCall("epoll_wait", libraries=("_raylet.so",))


def calling(number, *inner, **more):
    """Return a worker of vLLM in a call of its engine."""
    return rank(number, *inner, LAYER, LOOP, *FORKED, call=SystemCall("futex", libraries=("libtorch_cpu.so",)), **more)


def reducing(number):
    return calling(number, f"{C10D}:3252 all_reduce")


def seen(*ranks):
    found = answer(running(*ranks))
    return found.word, {s.process.rank: s.place.at for s in found.odd}


@pytest.mark.parametrize("stack", [IDLE, ACTOR, CORE], ids=["a worker of vLLM", "an actor", "an engine with one GPU"])
@pytest.mark.parametrize("spins", [False, True])
def test_an_engine_without_a_request_is_not_hung(stack, spins):
    after = {"run_seconds": 2.0, "switches": 9} if spins and stack is IDLE else {}
    assert seen(*(rank(n, *stack, call=POLL, waits_in="ep_poll", after=after) for n in range(2))) == ("not hung", {})


def test_a_worker_of_vllm_that_waits_for_a_call_while_others_are_in_one_holds_them_up():
    idle = rank(2, *IDLE, call=POLL, waits_in="ep_poll")
    assert seen(*map(reducing, (0, 1, 3)), idle) == ("hung", {2: "shm_broadcast.py:560"})
    (odd,) = answer(running(*map(reducing, (0, 1, 3)), idle)).odd
    assert doing(odd) == "waits for its next call at shm_broadcast.py:560 in acquire_read"


def test_an_actor_without_a_task_gets_a_longer_look_because_it_may_get_one():
    found = answer(running(*(waiter(n) for n in (0, 1)), rank(2, *ACTOR, call=POLL, waits_in="ep_poll")))
    assert (found.word, [s.process.rank for s in found.odd], found.longer) == ("hung", [2], True)


def test_the_line_is_the_innermost_one_of_the_package_that_is_the_program():
    word, odd = seen(*map(reducing, (0, 1, 3)), calling(2, f"{C10D}:1 barrier"))
    assert (word, odd) == ("hung", {2: "linear.py:1200"})
    stuck = rank(2, f"{PACKAGES}/numpy/f.py:1 f", LAYER, LOOP, *FORKED, waits_in="hrtimer_nanosleep")
    assert seen(*map(reducing, (0, 1, 3)), stuck) == ("hung", {2: "linear.py:1200"})


def test_in_an_actor_the_line_is_the_user_s_or_that_of_its_package():
    assert seen(waiter(0), rank(1, "/home/me/job.py:15 step", *ACTOR, waits_in="hrtimer_nanosleep"))[1] == {
        1: "job.py:15"
    }
    assert seen(waiter(0), rank(1, LAYER, *ACTOR, waits_in="hrtimer_nanosleep"))[1] == {1: "linear.py:1200"}


def test_an_actor_s_thread_counts_where_its_main_thread_only_waits_for_tasks():
    asynchronous = rank(0, *ACTOR, call=POLL, others=(thread(*collective(), main=False, name="AsyncIO Thread"),))
    found = answer(running(asynchronous, sleeper(1)))
    assert [(s.process.rank, s.operation) for s in found.waiting] == [(0, "all_reduce")]


def test_another_line_of_the_package_is_progress():
    moved = thread(f"{PACKAGES}/vllm/model_executor/models/llama.py:300 LlamaModel.forward", LOOP)
    works = rank(2, LAYER, LOOP, waits_in="hrtimer_nanosleep", after={"threads": (moved,)})
    assert seen(reducing(0), reducing(1), works) == ("slow", {2: "llama.py:300"})
