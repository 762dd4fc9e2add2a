"""How well the causes of real logs are named: lower bounds for each part."""

from __future__ import annotations

from explain import measure


def test_the_cause_of_the_logs_that_the_spellings_were_written_from_is_named_first():
    counts = measure.totals("build")
    named = sum(counts[name] for name in measure.OUTCOMES)
    assert counts["right rule first"] >= 0.95 * named
    assert counts["only wrong rules"] <= 0.03 * named


def test_the_cause_of_logs_that_were_held_out_is_named_first_in_three_of_four():
    counts = measure.totals("held out")
    named = sum(counts[name] for name in measure.OUTCOMES)
    assert counts["right rule first"] >= 0.75 * named
    assert counts["only wrong rules"] <= 0.05 * named
    assert counts["a rule blamed"] <= 0.40 * sum(counts[name] for name in measure.WITHOUT_RULE)


def test_the_cause_of_logs_of_the_newest_collection_is_named_first_in_seven_of_ten():
    counts = measure.totals("fresh")
    named = sum(counts[name] for name in measure.OUTCOMES)
    assert counts["right rule first"] >= 0.70 * named
    assert counts["only wrong rules"] <= 0.08 * named
    assert counts["a rule blamed"] <= 0.40 * sum(counts[name] for name in measure.WITHOUT_RULE)
