"""Rules about the variables of torch's NCCL backend, and of torch.distributed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from distcheck.rules import Outcome, rule
from distcheck.rules.finding import Fix
from distcheck.rules.job.kinds import ranks_by
from distcheck.rules.job.nccl_remedies import redo
from distcheck.rules.nccl.settings import Alike, each, weigh
from distcheck.rules.nccl.tables import tables
from distcheck.rules.wording import found, listed, named, odd_ones, spread
from distcheck.selection.nccl_settings import ENVIRONMENT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from distcheck.facts.job import Job

_TRUE = frozenset({"y", "yes", "1", "t", "true"})
_FALSE = frozenset({"n", "no", "0", "f", "false"})
_STOI = re.compile(r"\s*[+-]?\d+")
_LEVELS = ("OFF", "INFO", "DETAIL")


@rule("environment", severity="info", scope="rank")
def torch_nccl_var_deprecated(job: Job) -> Iterator[Outcome]:
    """A variable of torch's NCCL backend has its old name, without the prefix TORCH.

    torch still reads it and prints ``Environment variable NCCL_BLOCKING_WAIT is deprecated; use
    TORCH_NCCL_BLOCKING_WAIT instead``. Found by the five names that torch renamed in 2.2.

    Fix: rename the variable.
    See: https://docs.pytorch.org/docs/stable/torch_nccl_environment_variables.html
    """

    def old(group: Alike, name: str, _: str) -> str | None:
        return tables().deprecated.get(name) if group.settings[name].origin == ENVIRONMENT else None

    for (name, setting, new), ranks in each(job, old).items():
        yield found(
            job,
            ranks,
            f"{named(job, ranks)}: {name} is the old name of {new}",
            Fix(f"Rename it to {new}.", (redo(new, setting, setting.value, old=name),)),
            evidence={name: setting.value},
        )


@rule("environment", scope="rank")
def torch_nccl_var_invalid(job: Job) -> Iterator[Outcome]:
    """A variable of torch's NCCL backend holds a value that torch rejects.

    ``init_process_group`` fails with ``Invalid value for environment variable: TORCH_NCCL_BLOCKING_WAIT``. torch
    accepts 1, true, yes and 0, false, no for switches; numbers must begin with digits, so that ``true`` is invalid for
    TORCH_NCCL_ASYNC_ERROR_HANDLING. Found by parsing as torch does.

    Fix: write a number, 0 or 1 for a switch.
    See: https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/Utils.hpp (getCvarBool)
    """

    def invalid(group: Alike, name: str, value: str) -> str | None:
        variable = tables().torch.get(tables().deprecated.get(name, name))
        if variable is None or group.settings[name].origin != ENVIRONMENT:
            return None
        if variable.kind == "bool":
            return None if value.lower() in _TRUE | _FALSE else "0 or 1"
        return "a number" if variable.kind == "int" and not _STOI.match(value) else None

    for (name, setting, expected), ranks in each(job, invalid).items():
        yield found(
            job,
            ranks,
            f"{named(job, ranks)}: {name} is {setting.value!r}; expected {expected}; torch's NCCL backend would fail",
            Fix(f"Write {expected}, or remove the variable.", (f"unset {name}",)),
            severity=weigh(job, "error"),
            evidence={name: setting.value},
        )


@rule("environment", severity="warning", scope="rank")
def torch_nccl_blocking_wait(job: Job) -> Iterator[Outcome]:
    """The watchdog of torch is off, so a hanging NCCL collective is not reported or never ends.

    TORCH_NCCL_BLOCKING_WAIT=1 makes each wait block the program until the timeout and turns the handling of
    asynchronous errors off; TORCH_NCCL_ASYNC_ERROR_HANDLING=0 lets a rank wait forever after a timeout. Both are left
    from debugging. Found by the values, also under their old names.

    Fix: unset the variable.
    See: https://docs.pytorch.org/docs/stable/torch_nccl_environment_variables.html
    """

    def off(group: Alike, name: str, value: str) -> bool | None:
        if group.settings[name].origin != ENVIRONMENT:
            return None
        new = tables().deprecated.get(name, name)
        waits = new == "TORCH_NCCL_BLOCKING_WAIT" and value.lower() in _TRUE
        return True if waits or (new == "TORCH_NCCL_ASYNC_ERROR_HANDLING" and value.strip() == "0") else None

    for (name, setting, _), ranks in each(job, off).items():
        yield found(
            job,
            ranks,
            f"{named(job, ranks)}: {name}={setting.value} turns torch's handling of hanging collectives off",
            Fix("Remove it.", (f"unset {name}",)),
            severity=weigh(job, "warning"),
            evidence={name: setting.value},
        )


@rule("environment", scope="rank")
def torch_distributed_debug_detail(job: Job) -> Iterator[Outcome]:
    """TORCH_DISTRIBUTED_DEBUG is DETAIL, which is slow, or has a value that torch rejects.

    DETAIL checks every collective with others over Gloo before it runs. If only some ranks do so, they wait for the
    others: the job hangs at the first collective. Any value but OFF, INFO and DETAIL fails with ``The value of
    TORCH_DISTRIBUTED_DEBUG must be OFF, INFO, or DETAIL.`` Found by the value on each rank, whatever the backend.
    DETAIL on all ranks is a warning, on some ranks an error, and so is an invalid value.

    Fix: ``export TORCH_DISTRIBUTED_DEBUG=OFF`` on all ranks.
    See: https://docs.pytorch.org/docs/stable/distributed.html#torch-distributed-debug
    """
    name = "TORCH_DISTRIBUTED_DEBUG"
    values = ranks_by(job, lambda r: r.environment.get(name, "OFF").upper())
    invalid = [value for value in values if value not in _LEVELS]
    if invalid:
        ranks = [r for value in invalid for r in values[value]]
        message = f"{named(job, ranks)}: {name} is {listed([repr(v) for v in invalid])}; expected OFF, INFO or DETAIL"
    elif "DETAIL" not in values:
        return
    elif len(values) > 1:
        detail = ranks_by(job, lambda r: r.environment.get(name, "OFF").upper() == "DETAIL")
        ranks = odd_ones(detail)
        message = spread(job, name, values) + "; collectives hang if only some ranks check them"
    else:
        ranks = values["DETAIL"]
        message = f"{named(job, ranks)}: {name}=DETAIL checks every collective over Gloo, which is slow"
    yield found(
        job,
        ranks,
        message,
        Fix("Give all ranks the same value, OFF in production.", (f"export {name}=OFF",)),
        severity="error" if invalid or len(values) > 1 else "warning",
        evidence={value or "empty": named(job, group) for value, group in values.items()},
    )
