"""A run with --step in real ranks: a rank whose gradients are doubled is named, with the exit code of a bad node."""

import pytest
from real.spoiling import hooked, planted

RUN = ("bandwidth", "--nproc", "2", "--sizes", "1M:1M", "--op", "all_reduce", "--iters", "2", "--step")
BUILDS = """
    build = there.build
    def broken(me):
        model = build(me)
        if os.environ["RANK"] == "1":
            {fault}
        return model
    there.build = broken
"""
DOUBLES = "for parameter in model.parameters(): parameter.register_hook(lambda gradient: 2 * gradient)"


def broken(folder, fault):
    body = BUILDS.replace("{fault}", fault)
    return planted(folder, hooked("distcheck.collectives.training.steps", "train", body))


@pytest.mark.process
def test_a_rank_whose_gradients_are_doubled_is_named(start, tmp_path):
    ended = start(*RUN, "--format", "json", env=broken(tmp_path, DOUBLES)).wait()
    found = [(f["rule"], f["ranks"], f["confirmed"]) for f in ended.report["findings"]]
    assert (ended.code, found) == (40, [("step-gradient-wrong", [1], True)]), ended
    assert "its gradient has the factor 2 in the average" in ended.report["findings"][0]["message"]
