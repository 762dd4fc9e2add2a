"""The rendezvous store of the process groups: distcheck's own, never the launcher's.

Keys left in the store of torchrun's agent break the start of the following job.
"""

from __future__ import annotations

import time
from datetime import timedelta
from typing import TYPE_CHECKING

import torch.distributed as dist

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store, TCPStore


def open_store(timeout_seconds: float) -> TCPStore:
    """Open a store on an ephemeral port; torch binds it on every address of the host."""
    return _tcp_store("127.0.0.1", 0, timeout_seconds, is_master=True)


def reach_store(address: tuple[str, int] | None, timeout_seconds: float) -> TCPStore:
    """Connect to the store that rank 0 opened."""
    if address is None:
        raise RuntimeError("torch.distributed is not in this torch: rank 0 has no store")
    return _tcp_store(*address, timeout_seconds, is_master=False)


def _tcp_store(host: str, port: int, timeout_seconds: float, *, is_master: bool) -> TCPStore:
    return dist.TCPStore(  # type: ignore[attr-defined] # exported only where torch has torch.distributed
        host, port, is_master=is_master, wait_for_workers=False, timeout=timedelta(seconds=timeout_seconds)
    )


def part_of(store: Store, name: str) -> Store:
    """Return a store whose keys cannot collide with those of other parts."""
    return dist.PrefixStore(f"distcheck {name}", store)  # type: ignore[attr-defined] # see above


def agree(store: Store, key: str, value: int | None) -> int:
    """Return the value of the one rank that has one; the others wait for it.

    The store carries the number, because the collectives are what is under test.
    """
    numbers = part_of(store, "numbers")
    if value is None:
        return int(numbers.get(key))
    numbers.set(key, str(value))
    return value


def await_all(store: Store, name: str, ranks: int) -> None:
    """Wait until all ranks reach this point, at most for the store's timeout.

    Raises:
        RuntimeError: the store is gone, or a rank did not come in time.
    """
    point = part_of(store, name)
    if point.add("ranks", 1) == ranks:
        point.set("all", "here")
    point.wait(["all"])


def alike(store: Store, name: str, text: str, rank: int, ranks: int) -> bool:
    """Return whether all ranks have the same text as rank 0; every rank learns it.

    Raises:
        RuntimeError: the store is gone, or a rank did not come in time.
    """
    point = part_of(store, f"alike {name}")
    if rank == 0:
        point.set("text", text)
    elif point.get("text") != text.encode():
        point.add("others", 1)
    await_all(store, f"alike {name}", ranks)
    return point.add("others", 0) == 0


class AbsentError(Exception):
    """Some ranks did not come to form a group."""

    def __init__(self, name: str, ranks: tuple[int, ...]) -> None:
        some = ", ".join(map(str, ranks[:8])) + (", …" if len(ranks) > 8 else "")
        super().__init__(f"rank{'s' if len(ranks) > 1 else ''} {some} did not come to form {name}")
        self.ranks = ranks


def enter(store: Store, name: str, rank: int, ranks: range, seconds: float) -> None:
    """Wait until all these ranks are here; the first of them names those that do not come within `seconds`.

    One look-up by one rank, since each rank would need as many as the group has ranks.

    Raises:
        AbsentError: some did not come.
        RuntimeError: the store is gone.
    """
    door = part_of(store, f"to {name}")
    door.add(str(rank), 1)
    come = door.add("ranks", 1)
    if come == len(ranks):
        door.set("all", "here")
    if come > 1:
        door.wait(["all"])
        return
    try:
        door.wait(["all"], timedelta(seconds=seconds))
    except RuntimeError:
        absent = tuple(rank for rank in ranks if not door.add(str(rank), 0))
        if not absent:  # the last one came at this moment
            return
        raise AbsentError(name, absent) from None


def farewell(store: Store, ranks: int, *, host: bool) -> None:
    """Announce that this rank no longer needs the store; its host waits for all announcements.

    Raises:
        RuntimeError: the store is gone.
    """
    gone = part_of(store, "farewell")
    said = gone.add("ranks", 1)
    while host and said < ranks:
        time.sleep(0.005)
        said = gone.add("ranks", 0)
