"""A real roll call notes when each process began each stage."""

import json


def test_the_saved_job_has_the_stages_of_every_process_on_the_leaders_clock(start, port, tmp_path):
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    ranks = [
        start("env", "--save", f"{rank}.json", env=place | {"RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in (0, 1)
    ]
    assert [running.wait().code for running in ranks] == [0, 0]
    job = json.loads((tmp_path / "0.json").read_text())
    leader, follower = (process["began_seconds"] for process in job["processes"])
    for began in (leader, follower):
        assert list(began) == ["started", "meeting", "done"]
        assert sorted(began.values()) == list(began.values())
        assert began["done"] <= job["seconds"]
    assert leader["started"] == 0.0
    arrived = [process["arrived_seconds"] for process in job["processes"]]
    assert abs((follower["meeting"] - leader["meeting"]) - (arrived[1] - arrived[0])) < 1
