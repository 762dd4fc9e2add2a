"""What is right about each job of jobs/, read from its source without importing torch."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any, NamedTuple

JOBS = Path(__file__).with_name("jobs")
PROGRAM = JOBS / "train.py"


class Case(NamedTuple):
    """A fault and what `distcheck hang` must say about it."""

    name: str
    answers: tuple[str, ...]
    odd: tuple[int, ...]
    missing: tuple[int, ...]
    needs: frozenset[str]
    here: frozenset[str]
    """Where the odd ranks are, as `file:line`; any of them is right."""
    waits: frozenset[str]
    cause: frozenset[str]
    """Where what the odd ranks wait for is."""

    def disagreements(self, hang: dict[str, Any]) -> list[str]:
        """Return what is wrong with an answer."""
        wrong = []
        if hang["answer"] not in self.answers:
            wrong.append(f"{hang['answer']}, not {' or '.join(self.answers)}")
        odd = sorted({row["rank"] for row in hang["odd"]} - set(self.missing))
        named = bool(self.odd) or hang["answer"] == "hung"
        if named and odd != list(self.odd) and not (hang["answer"] == "not hung" and not odd):
            wrong.append(f"odd ranks {odd}, not {list(self.odd)}")
        if list(hang["missing"]) != list(self.missing):
            wrong.append(f"missing ranks {hang['missing']}, not {list(self.missing)}")
        places = {row["rank"]: row["at"] for row in hang["odd"] if row["rank"] in self.odd}
        if self.here and (elsewhere := {rank: at for rank, at in places.items() if at not in self.here}):
            wrong.append(f"odd at {elsewhere}, not {sorted(self.here)}")
        return wrong


def _marked(lines: list[str], first: int, name: str, word: str) -> frozenset[str]:
    marked = re.compile(rf"# <- {word}$")
    return frozenset(f"{name}:{first + number}" for number, line in enumerate(lines) if marked.search(line))


def _cases(path: Path) -> list[Case]:
    text = path.read_text()
    found = []
    for node in ast.parse(text).body:
        for call in getattr(node, "decorator_list", ()):
            if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "case"):
                continue
            assert isinstance(node, ast.FunctionDef)
            lines = text.splitlines()[node.lineno - 1 : node.end_lineno]
            marks = {word: _marked(lines, node.lineno, path.name, word) for word in ("here", "waits")}
            given: dict[str, Any] = {k.arg: ast.literal_eval(k.value) for k in call.keywords if k.arg}
            if "at" in given:
                marks["here"] |= {given["at"]}
            marks["here"] |= _marked(text.splitlines(), 1, path.name, f"here of {node.name}")
            cause = _marked(text.splitlines(), 1, path.name, f"cause of {node.name}")
            needs = frozenset(filter(None, given.get("needs", "").split(", ")))
            answers = tuple(ast.literal_eval(answer) for answer in call.args)
            odd, missing = given.get("odd", ()), given.get("missing", ())
            found.append(Case(node.name, answers, odd, missing, needs, **marks, cause=cause))
    return found


CASES = {case.name: case for path in sorted(JOBS.glob("*.py")) for case in _cases(path)}
HUNG = {name: case for name, case in CASES.items() if "hung" in case.answers}
HEALTHY = {name: case for name, case in CASES.items() if "hung" not in case.answers}
