"""A process's part in the check of the job's folders and files.

The process of local rank 0 looks for its node, through a child that stays until the run ends. The child of rank 0's
process keeps a file in every folder. A follower learns its name from the leader's Welcome and looks for it before it
reports, so that the leader compares nothing and no message is added to the roll call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.json import encode
from msgspec.structs import replace

from distcheck.facts.base import Missing
from distcheck.facts.storage import ASKED, PATIENCE_SECONDS, CommandFile, Packages, Silent, Storage, is_text
from distcheck.facts.touch import note
from distcheck.probe.working_directory import working_directory

if TYPE_CHECKING:
    from collections.abc import Mapping

    from distcheck.facts.asked import Asked
    from distcheck.probe.child import Conversation
    from distcheck.probe.storage import StorageTask
    from distcheck.rollcall.protocol import Welcome
    from distcheck.run.context import Session

TOO_LATE = "too little time was left"
_START_SECONDS = 3.0
"""How long the child may take to start and to answer, beside the time that it gives its folders."""
_SEE_SECONDS = 3.0
_MANY_RANKS = 256
"""In larger jobs each node writes less, because all of them may write to one file server."""


async def look(run: Session) -> Storage | Missing | None:
    """Look at this node's folders and files; None if another process does."""
    ranks = run.request.placements
    if "storage" not in run.asked.looks or ranks[0].local_rank:
        return None
    seconds = run.remaining(3.0)
    keeps = 0 in run.request.own_ranks and run.request.meets and not run.request.speaks_for_all
    world = ranks[0].world_size or 1
    task = task_of(run.asked, run.request.environ, run.uid, seconds - _START_SECONDS, world, keeps=keeps)
    if task is None:
        return Missing(reason=TOO_LATE)
    run.storage = start(task, run.remaining(), run.request.environ)
    return await heard(run.storage, min(seconds, task.seconds + _START_SECONDS))


def task_of(
    asked: Asked, environ: Mapping[str, str], name: str, seconds: float, ranks: int = 1, *, keeps: bool = False
) -> StorageTask | None:
    """Return what the child of a process with this environment looks at; None if `seconds` are too few."""
    from distcheck.probe.disk_rates import MOST_BYTES
    from distcheck.probe.storage import StorageTask, by_path, folders_of

    if seconds < PATIENCE_SECONDS:
        return None
    here = asked.folder or folder()
    folders = by_path((path, ASKED) for path in asked.paths)
    if asked.command in {"gate", "node"}:
        # A daemon that runs distcheck node has no working directory that matters.
        for path, named_by in folders_of(environ, "" if asked.command == "node" else here, asked.script).items():
            folders[path] = (*folders.get(path, ()), *named_by)
    return StorageTask(
        name=name,
        folders=folders,
        words=asked.words,
        script=asked.script,
        module=asked.module,
        safe_path=bool(environ.get("PYTHONSAFEPATH")),
        here=here,
        packages=asked.command == "gate",
        keeps=keeps,
        rate_bytes=MOST_BYTES * _MANY_RANKS // max(_MANY_RANKS, ranks),
    )


def start(task: StorageTask, lifetime: float, environ: Mapping[str, str]) -> Conversation:
    """Start the child."""
    from distcheck.probe.child import Conversation
    from distcheck.probe.storage import question

    return Conversation(question(task), lifetime, environ)


async def heard(child: Conversation, seconds: float) -> Storage | Missing:
    """Return the child's first answer, within `seconds`."""
    found: Storage | Missing = await child.hear(Storage, seconds)
    if isinstance(found, Storage):
        silent = [folder for folder in found.folders if folder.state == "silent" and folder.mount]
        note(Silent(f.path, f.named_by, f.file_system, f.source, f.mount, PATIENCE_SECONDS) for f in silent)
    return found


def lacking_here(script: str, module: tuple[str, ...], environ: Mapping[str, str]) -> CommandFile | None:
    """Return COMMAND's script or module if this machine lacks it, where a run from outside will start it."""
    import asyncio

    from distcheck.probe.storage import StorageTask

    words, safe = (("", script) if script else ()), bool(environ.get("PYTHONSAFEPATH"))
    task = StorageTask("", {}, words, script, module, safe_path=safe, here=folder())

    async def look() -> Storage | Missing:
        child = start(task, _START_SECONDS + task.seconds, environ)
        try:
            return await heard(child, _START_SECONDS + task.seconds)
        finally:
            await child.close(_START_SECONDS)

    found = asyncio.run(look()) if script or module else None
    files = found.files if isinstance(found, Storage) else ()
    return next((file for file in files if file.state in {"absent", "unreadable"}), None)


async def compare(run: Session, welcome: Welcome) -> None:
    """Look for the leader's file, and drop the names of packages that are the leader's own."""
    found = run.record.node.storage if run.record.node is not None else None
    if run.storage is None or run.record.node is None or not isinstance(found, Storage):
        return
    from distcheck.probe.storage import Order, SentinelSeen

    run.storage.say(encode(Order(see=welcome.uid)).decode())
    answer: SentinelSeen | Missing = await run.storage.hear(SentinelSeen, min(_SEE_SECONDS, run.remaining(3.0)))
    seen = {} if isinstance(answer, Missing) else answer.folders
    folders = tuple(replace(f, sees_sentinel=seen.get(f.path)) for f in found.folders)
    packages = found.packages
    if packages is not None and packages.sha256 == welcome.packages:
        packages = replace(packages, names=())
    run.record.node = replace(run.record.node, storage=replace(found, folders=folders, packages=packages))


def packages_of(run: Session) -> str:
    """Return the hash of the distributions installed here, '' if unknown."""
    found = run.record.node.storage if run.record.node is not None else None
    packages = found.packages if isinstance(found, Storage) else None
    return packages.sha256 if isinstance(packages, Packages) else ""


def clean_up_after(run: Session, welcome: Welcome) -> None:
    """Remove the file of a leader that was lost, which may have died before it could."""
    if run.storage is not None:
        from distcheck.probe.storage import Order

        run.storage.say(encode(Order(erase=welcome.uid)).decode())


def folder() -> str:
    """Return the working directory, '' if there is none that facts can hold."""
    here = working_directory()
    return here if is_text(here) else ""
