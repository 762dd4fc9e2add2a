"""Rules about COMMAND's files and packages: on every node, and the same."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING, NamedTuple

from distcheck.facts.base import Missing
from distcheck.facts.job import Job
from distcheck.facts.rank import Role
from distcheck.facts.storage import CommandFile, Storage
from distcheck.rules import Outcome, rule
from distcheck.rules.finding import Fix
from distcheck.rules.job.engines import engines
from distcheck.rules.job.kinds import ranks_by
from distcheck.rules.job.versions import installed_of, torch_of
from distcheck.rules.wording import brief, found, grouped, listed, majority, named, nodes_of, once
from distcheck.selection.command import ON_NODES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from distcheck.facts.rank import RankFacts

_THERE, _LACKING = frozenset({"file", "folder"}), frozenset({"absent", "unreadable"})
_MOST_SHOWN = 10


class _Seen(NamedTuple):
    """A file of COMMAND as a node finds it, and the ranks there."""

    file: CommandFile
    ranks: tuple[RankFacts, ...]


@rule("storage", severity="error", scope=("job", "rank"))
def command_file_missing(job: Job) -> Iterator[Outcome]:
    """A file or module that COMMAND names does not exist, on all nodes or on some.

    Python ends at once with ``can't open file 'train.py': [Errno 2] No such file or directory`` or ``No module named``.
    Where only some nodes lack it, the others wait for their ranks until the timeout.

    Found with ``distcheck gate -- COMMAND``, on every node, for the program (on PATH), the interpreter that its first
    line names, the script of python and of the launchers that distcheck reads, the configuration of axolotl,
    llamafactory-cli and tune, the module of ``-m`` as COMMAND's interpreter finds it (no package is imported), and
    every other word that is a path on the leader's node, except values of options whose name contains out, log or save.
    What another program or a shell runs is not known. A warning for other files and folders, which may be used by rank
    0 only, and where distcheck starts the probes itself, because COMMAND then runs on one machine, unless it is srun or
    mpirun.

    Fix: correct the path; copy the file to all nodes, or use a shared folder or one image.
    """
    leaders = [p.node for p in job.processes if p.role is not Role.FOLLOWER]
    here = {file.word: file for node in job.nodes if node.key in leaders[:1] for file in _files(node.storage)}
    models = {each.engine.model for each in engines(job)}  # engine-model-missing reports them
    elsewhere, outside = job.asked.program in ON_NODES, bool(job.launched or job.asked.folder)
    for word, seen in _by_word(job).items():
        lacking = [s for s in seen if s.file.state in _LACKING]
        # A word that the leader's COMMAND lacks is one of a node where another line was typed.
        own = here.get(word) or next((each.file for each in seen if each.file.role != "argument"), None)
        may_lack = own is not None and own.role != "argument" and elsewhere is outside
        if own is None or not lacking or word in models or own.state not in (_THERE | _LACKING if may_lack else _THERE):
            continue
        there = [s for s in seen if s.file.state in _THERE]
        ranks = [rank for s in lacking for rank in s.ranks]
        file = lacking[0].file
        role = "file" if own.role == "script" and not word.endswith(".py") else own.role
        what = "is not found" if own.role == "module" else "does not exist"
        if file.state == "unreadable":
            what = f"cannot be started: {file.error}" if own.role == "program" else "cannot be read"
        where = f"; it exists on {listed(nodes_of(job, there[0].ranks))}" if there else ""
        yield found(
            job,
            ranks,
            f"{named(job, ranks)}: COMMAND's {role} {brief(word, 100)} {what}{where}",
            _fix(own, file, everywhere=not there),
            severity="warning" if own.role == "argument" or (outside and not elsewhere) else "error",
            scope="rank" if there else "job",
            evidence={"path": file.path or own.path, "error": file.error},
        )


def _fix(own: CommandFile, lacking: CommandFile, *, everywhere: bool) -> Fix:
    """Return how a file is made to exist, `everywhere` or where others have it; `own`: as the leader finds it."""
    if own.role == "module":
        return Fix("Correct the module's name, start COMMAND in the folder that has it, or install it.")
    if not everywhere:
        look = f"command -v {quote(own.word)}" if own.role == "program" else f"ls -ld {quote(own.path)}"
        return Fix("Copy it to all nodes, or use a shared folder or one image.", (look,))
    if lacking.state == "unreadable":
        text = "Give the user access to it, and to the interpreter that the first line of a program names."
        return Fix(text, (f"ls -ld {quote(lacking.path)}", f"head -n1 {quote(lacking.path)}"))
    near = f" Its folder has {brief(lacking.near, 100)}." if lacking.near else ""
    text = f"Correct the path in COMMAND, or in the first line of its program.{near}"
    return Fix(text, (f"ls {quote(lacking.path.rpartition('/')[0] or '/')}",))


@rule("storage", "sw-script-differs", severity="warning", scope="rank", also=("peers",))
def command_file_differs(job: Job) -> Iterator[Outcome]:
    """A file that COMMAND names is not the same on all nodes.

    Ranks that run different code call different collectives: a hang, ``Detected mismatch between collectives on
    ranks`` with TORCH_DISTRIBUTED_DEBUG=DETAIL, or results that no one can explain. The usual cause is a copy on a
    local disk that was not synchronised.

    Found with ``distcheck gate -- COMMAND``, by the size and the SHA-256 of the program, its interpreter, the script,
    and every other file that COMMAND names; of files above 8 MiB, three samples are compared. Modules that the script
    imports are not compared.

    Fix: Copy the file to all nodes again, or use a shared folder or image.

        sha256sum {path|train.py}
    """
    for word, seen in _by_word(job).items():
        files = grouped((s for s in seen if s.file.sha256), lambda s: (s.file.sha256, s.file.size_bytes))
        if len(files) < 2:
            continue
        groups = {key: [rank for s in several for rank in s.ranks] for key, several in files.items()}
        usual = majority(groups)
        ranks = [rank for key, several in groups.items() if key != usual for rank in several]
        odd = next(several[0].file for key, several in files.items() if key != usual)
        if odd.role in {"program", "interpreter"} and _pythons(job) > 1:
            continue  # sw-python-differs reports it
        rest = f"from that of the other {len(groups[usual])}" if usual is not None else "between them"
        yield found(
            job,
            ranks,
            f"{named(job, ranks)}: the content of COMMAND's {odd.role} {brief(word, 100)} differs {rest}",
            evidence={
                f"{digest[:12]}, {size} B" if size is not None else digest[:12]: named(job, several)
                for (digest, size), several in groups.items()
            },
            values={"path": [quote(odd.path)]},
        )


@rule("storage", severity="warning", scope="rank")
def sw_packages_differ(job: Job) -> Iterator[Outcome]:
    """The packages installed for Python are not the same on all nodes.

    Another version of a package changes the data, the model or the collectives on some ranks: ``ImportError`` there,
    objects that cannot be unpickled, or results that no one can explain. The usual cause is an environment per node of
    which one was not updated.

    Found by ``distcheck gate``, by a hash over names and versions of the distributions (NAME-VERSION.dist-info) that
    distcheck's Python finds. If the hashes differ, at most ten differences are listed. Where the versions
    of torch or Python differ, sw-torch-version-differs and sw-python-differs report the environment instead.

    Fix: Install the same versions on all nodes, or use one shared environment or image.

        python3 -m pip list --format=freeze
    """
    seen = [(node, node.storage.packages) for node in job.nodes if isinstance(node.storage, Storage)]
    known = [(node, packages) for node, packages in seen if packages is not None]
    groups = grouped(known, lambda item: item[1].sha256)
    if len(groups) < 2 or _pythons(job) > 1 or len(ranks_by(job, lambda r: torch_of(job, r) or None)) > 1:
        return
    ranks_of = {key: job.ranks_on(*(node for node, _ in group)) for key, group in groups.items()}
    names_of = {key: next((p.names for _, p in group if p.names), ()) for key, group in groups.items()}
    usual = majority(ranks_of)
    base = usual if usual is not None else next(iter(groups))
    for key, ranks in ranks_of.items():
        if key == base:
            continue
        differences = _differences(names_of[key], names_of[base]) if names_of[key] and names_of[base] else []
        yield found(
            job,
            ranks,
            f"{named(job, ranks)}: the installed packages differ from those of {named(job, ranks_of[base])}: "
            f"{listed(differences, most=3) or 'the list is not known'}",
            evidence={"differences": listed(differences, most=_MOST_SHOWN), "number": len(differences)},
        )


def _pythons(job: Job) -> int:
    """Return how many minor versions of Python the ranks use."""
    return len(ranks_by(job, lambda rank: installed_of(job, rank).python.rpartition(".")[0]))


def _files(storage: Storage | Missing | None) -> tuple[CommandFile, ...]:
    return storage.files if isinstance(storage, Storage) else ()


@once
def _by_word(job: Job) -> dict[str, list[_Seen]]:
    """Return every file of COMMAND as the nodes find it, by the word that names it."""
    seen = [_Seen(file, job.ranks_on(node)) for node in job.nodes for file in _files(node.storage)]
    return grouped((s for s in seen if s.ranks), lambda s: s.file.word)


def _differences(own: Sequence[str], base: Sequence[str]) -> list[str]:
    """Return the packages in which two lists differ: numpy 1.26.4 instead of 2.2.6."""
    mine, theirs = (dict(name.partition("==")[::2] for name in names) for names in (own, base))
    shown = []
    for name in sorted(set(mine) | set(theirs)):
        here, there = mine.get(name), theirs.get(name)
        if here is None or there is None:
            shown.append(f"{name} {here or there} only {'there' if here is None else 'here'}")
        elif here != there:
            shown.append(f"{name} {here} instead of {there}")
    return shown
