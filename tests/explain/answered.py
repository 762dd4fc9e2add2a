"""The answer to a text as the only log of a job, and the log of a healthy job to put around it."""

from __future__ import annotations

import io
from collections.abc import Iterable

from explain.measure import matcher

from distcheck.explain.answer import Answer, answer
from distcheck.explain.reading import whole_lines
from distcheck.explain.sighting import Sighting

HEALTHY = """
node1: NCCL INFO Bootstrap: Using eth0:10.0.0.1<0>
[rank0]:[W1120 10:00:00 ProcessGroupNCCL.cpp:4115] step 100 loss 2.31 lr 0.0003
epoch 3/10: 100%|##########| 1200/1200 [10:00<00:00, 2.00it/s]
saving checkpoint to /mnt/ckpt/step_1200 ... done in 12.3 s
Timed out? no. CUDA error rate 0; waiting for clients: none. 0 Killed by hand
"""


def found(text: str) -> Answer:
    """Return the answer to a text."""
    return found_in([("job.log", text)])


def found_in(logs: Iterable[tuple[str, str]]) -> Answer:
    """Return the answer to logs: the name and text of each."""
    seen: list[Sighting] = []
    for name, text in logs:
        own = matcher().search(whole_lines(io.BytesIO(text.encode())), name)
        seen += sorted(own, key=lambda sighting: sighting.line)
    return answer(seen)


def rules(text: str) -> list[str]:
    """Return the rules that the answer to a text names, the most likely first."""
    return rules_of(found(text))


def rules_of(answer: Answer) -> list[str]:
    """Return the rules that an answer names, the most likely first."""
    return [cause.rule for cause in answer.causes if cause.rule]
