"""The report for wrong variables."""

from __future__ import annotations


def test_a_bare_shell_gets_the_missing_variables_and_the_fix(distcheck):
    ended = distcheck("env")
    assert ended.code == 30
    assert "env-rank-unset" in ended.out
    for word in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK", "torchrun"):
        assert word in ended.out


def test_secrets_never_leave_the_process(distcheck, tmp_path):
    job = tmp_path / "job.json"
    env = {"SLURM_JWT": "eyJhbGciOi", "NCCL_API_TOKEN": "hunter2", "https_proxy": "http://me:pass@proxy:3128"}
    distcheck("env", "--nproc", "1", "--save", str(job), env=env)
    saved = job.read_text()
    assert "SLURM_JWT" in saved
    assert not any(secret in saved for secret in ("eyJhbGciOi", "hunter2", "me:pass"))


def test_alone_waits_for_no_rank_and_misses_none(distcheck):
    env = {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29999"}
    ended = distcheck("env", "--alone", "--format", "json", env=env)
    assert (ended.code, ended.report["missing_ranks"], ended.report["findings"]) == (0, [], [])
    assert [r["status"] for r in ended.report["ranks"]] == ["ok"]
    assert ended.report["seconds"] < 5
