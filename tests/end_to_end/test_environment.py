"""The report for wrong variables."""

from __future__ import annotations


def test_empty_and_malformed_variables_are_named_and_only_they(distcheck):
    env = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "", "MASTER_PORT": "x"}
    ended = distcheck("env", "--format", "json", env=env)
    assert ended.code == 30
    assert sorted(ended.rules) == ["env-empty-string", "env-not-integer"]
    by_rule = {f["rule"]: f for f in ended.report["findings"]}
    assert "MASTER_ADDR" in by_rule["env-empty-string"]["message"]
    assert "MASTER_PORT" in by_rule["env-not-integer"]["message"]
    assert all(f["fix"]["commands"] for f in by_rule.values())


def test_a_bare_shell_gets_the_missing_variables_and_the_fix(distcheck):
    ended = distcheck("env")
    assert ended.code == 30
    assert "env-rank-unset" in ended.out
    for word in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK", "torchrun"):
        assert word in ended.out


def test_a_healthy_single_rank_passes(distcheck, port):
    env = {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    ended = distcheck("env", "--format", "json", env=env)
    assert (ended.code, ended.report["findings"]) == (0, [])


def test_an_address_with_a_port_in_it_is_named(distcheck, port):
    env = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": f"127.0.0.1:{port}", "MASTER_PORT": str(port)}
    ended = distcheck("env", "--format", "json", env=env)
    assert ended.code == 30
    assert ended.rules == ["env-master-addr-format"]


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
