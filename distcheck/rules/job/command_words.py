"""COMMAND as a report can name it and start it another way."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from distcheck.facts.storage import Storage
from distcheck.rules.wording import brief

if TYPE_CHECKING:
    from collections.abc import Collection

    from distcheck.facts.job import Job

_MOST_WORDS, _LONGEST = 40, 300
"""A command line of so many words, or with a word of so many characters, may be cut (`probe.process`)."""
SETS_VARIABLES = frozenset({"torchrun", "accelerate", "deepspeed"})
"""Programs that set RANK and so on for the processes that they start."""


def words_of(job: Job) -> tuple[str, ...]:
    """Return COMMAND's words from distcheck's own command line; empty if they are not all known."""
    words = job.processes[0].command if job.processes and not job.launched else ()
    own = words[words.index("--") + 1 :] if "--" in words else ()
    cut = len(words) >= _MOST_WORDS or any(len(word) >= _LONGEST or "(redacted)" in word for word in own)
    return () if cut else own


def shown(job: Job) -> str:
    """Return COMMAND for a message: python train.py."""
    asked = job.asked
    module = ("-m", asked.module[-1]) if asked.module else ()
    return brief(shlex.join((asked.program, *module, *([asked.script] if asked.script else []))), 100)


def mentioned(job: Job, words: Collection[str]) -> bool | None:
    """Return whether COMMAND's script or module mentions one of these words on any node; None if it was not read."""
    found = {
        None if file.mentions is None else not set(words).isdisjoint(file.mentions)
        for node in job.nodes
        for file in (node.storage.files if isinstance(node.storage, Storage) else ())
        if file.role in {"script", "module"}
    }
    return None if not found or None in found else True in found


def for_torchrun(job: Job) -> str:
    """Return what follows torchrun's options if it starts COMMAND's script or module: train.py --lr 1."""
    asked, words = job.asked, words_of(job)
    name = asked.module[-1] if asked.module else asked.script
    rest = words[words.index(name) + 1 :] if name in words else ()
    return shlex.join((*(["-m"] if asked.module else []), name, *rest))
