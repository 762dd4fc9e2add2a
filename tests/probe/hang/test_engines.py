"""Titles in, ranks out: the workers of vLLM and SGLang, as their sources name them."""

from __future__ import annotations

import pytest

from distcheck.probe.hang.ranks import jobs

SERVE = (1, "/venv/bin/python /venv/bin/vllm serve model", {}, True)


def engine(parent, *titles, torch=True):
    """Return workers of a parent, which started in this order."""
    return {parent + 1 + n: (parent, title, {}, torch, title.partition("_")[0]) for n, title in enumerate(titles)}


VLLM = {
    "one group": (["Worker_TP0", "Worker_TP1"], [0, 1]),
    "started in another order": (["Worker_TP1", "Worker_TP0"], [1, 0]),
    "pipeline and tensor parallel": (
        ["Worker_PP0_TP0", "Worker_PP0_TP1", "Worker_PP1_TP0", "Worker_PP1_TP1"],
        [0, 1, 2, 3],
    ),
    "experts": (["Worker_TP0_EP0", "Worker_TP1_EP1"], [0, 1]),
    "decode context parallel is part of TP": (["Worker_TP0_DCP0", "Worker_TP1_DCP1"], [0, 1]),
    "data parallel": (["Worker_DP0_TP0", "Worker_DP0_TP1", "Worker_DP1_TP0", "Worker_DP1_TP1"], [0, 1, 2, 3]),
    "data parallel only": (["Worker_DP0_EP0", "Worker_DP1_EP1"], [0, 1]),
    "before there are groups, by their start": (["Worker", "Worker", "Worker"], [0, 1, 2]),
}


@pytest.mark.parametrize("name", VLLM)
def test_the_workers_of_vllm_are_numbered_by_their_titles(name, table):
    titles, ranks = VLLM[name]
    core = {20: (10, "VLLM::EngineCore", {}, True, "VLLM::EngineCor")}
    (job,) = jobs(table({10: SERVE, **core, **engine(20, *(f"VLLM::{title}" for title in titles))}))
    assert [member.rank for member in sorted(job.ranks, key=lambda m: m.pid)] == ranks
    assert (job.name, job.world_size, job.launcher, job.local) == ("vllm of process 10", len(titles), "vllm", True)


def test_engines_of_one_server_with_data_parallel_are_one_job(table):
    cores = {20 + 10 * n: (10, f"VLLM::EngineCore_DP{n}", {}, True, "VLLM::EngineCor") for n in range(2)}
    workers = engine(20, "VLLM::Worker_DP0_TP0", "VLLM::Worker_DP0_TP1")
    workers |= engine(30, "VLLM::Worker_DP1_TP0", "VLLM::Worker_DP1_TP1")
    (job,) = jobs(table({10: SERVE, **cores, **workers}))
    assert {member.pid: member.rank for member in job.ranks} == {21: 0, 22: 1, 31: 2, 32: 3}


def test_engines_of_two_servers_are_two_jobs(table):
    workers = [engine(parent, "VLLM::Worker_TP0", "VLLM::Worker_TP1") for parent in (10, 20)]
    found = jobs(table({10: SERVE, 20: SERVE, **workers[0], **workers[1]}))
    assert [(job.name, job.world_size) for job in found] == [("vllm of process 10", 2), ("vllm of process 20", 2)]


def test_an_engine_without_workers_computes_itself(table):
    alone = table({10: SERVE, 20: (10, "VLLM::EngineCore", {}, True, "VLLM::EngineCor")})
    assert jobs(alone) == []  # it has no process group yet
    folder = alone.root / "20/task/21"
    folder.mkdir()
    (folder / "comm").write_text("pt_tcpstore_uv")
    assert [member.rank for job in jobs(alone) for member in job.ranks] == [0]


def test_workers_of_which_some_are_elsewhere_do_not_make_ranks_missing(table):
    (job,) = jobs(table({10: SERVE, **engine(10, "VLLM::Worker_TP2", "VLLM::Worker_TP3")}))
    assert (job.world_size, job.local, [member.rank for member in job.ranks]) == (4, False, [2, 3])


SGLANG = {
    "attention with DP, which is part of TP": (["_DP0_TP0_EP0", "_DP1_TP1_EP1"], [[0, 1]]),
    "pipeline": (["_PP0_TP0", "_PP0_TP1", "_PP1_TP0", "_PP1_TP1"], [[0, 1, 2, 3]]),
    "each DP a world": (["_DP0_TP0", "_DP0_TP1", "_DP1_TP0", "_DP1_TP1"], [[0, 1], [0, 1]]),
    "one GPU": ([""], [[0]]),
}


@pytest.mark.parametrize("name", SGLANG)
def test_the_schedulers_of_sglang_are_numbered_by_their_titles(name, table):
    titles, ranks = SGLANG[name]
    server = (1, "/venv/bin/python -m sglang.launch_server", {}, True)
    more = {90: (10, "sglang::detokenizer", {}, True, "sglang::detoken")}
    found = jobs(table({10: server, **engine(10, *(f"sglang::scheduler{title}" for title in titles)), **more}))
    assert [[member.rank for member in job.ranks] for job in found] == ranks
    assert len({job.name for job in found}) == len(found)
