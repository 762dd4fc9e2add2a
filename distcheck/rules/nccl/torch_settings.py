"""Rules about the variables of torch's NCCL backend, and of torch.distributed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from distcheck.rules import Outcome, rule
from distcheck.rules.finding import Fault
from distcheck.rules.job.kinds import ranks_by
from distcheck.rules.job.versions import torch_of
from distcheck.rules.nccl.settings import NcclSetting, each_setting
from distcheck.rules.nccl.tables import tables
from distcheck.rules.wording import found, listed, named, odd_ones, spread
from distcheck.selection.nccl_settings import ENVIRONMENT, version

if TYPE_CHECKING:
    from collections.abc import Iterator

    from distcheck.facts.job import Job

_TRUE = frozenset({"y", "yes", "1", "t", "true"})
_FALSE = frozenset({"n", "no", "0", "f", "false"})
_NUMBERS = {
    "int": re.compile(r"\s*[+-]?\d+"),  # std::stoi
    "float": re.compile(r"\s*\+?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?\s*$", re.IGNORECASE),  # float() of an interval
}
_LEVELS = ("OFF", "INFO", "DETAIL")


@rule("environment", severity="info", scope="rank", of=each_setting)
def torch_nccl_var_deprecated(job: Job, setting: NcclSetting) -> Fault | None:
    """A variable of torch's NCCL backend has its old name, without the prefix TORCH.

    torch still reads it and prints ``Environment variable NCCL_BLOCKING_WAIT is deprecated; use
    TORCH_NCCL_BLOCKING_WAIT instead``. Found by the five names that torch renamed in 2.2. An older torch knows only the
    old names, and torchrun of 2.1 sets NCCL_ASYNC_ERROR_HANDLING itself.

    Fix: rename the variable.
    See: https://docs.pytorch.org/docs/stable/torch_nccl_environment_variables.html
    """
    new = tables().deprecated.get(setting.name)
    if new is None or setting.origin != ENVIRONMENT:
        return None
    torch = version(torch_of(job, setting.ranks.ranks[0]))
    if torch and torch < tables().torch[new].first:
        return None
    return Fault(f"{setting.name} is the old name of {new}", setting.renamed(new))


@rule("environment", scope="rank", of=each_setting)
def torch_nccl_var_invalid(_: Job, setting: NcclSetting) -> Fault | None:
    """A variable of torch's NCCL backend, or of its Python watchdog, holds a value that torch rejects.

    ``init_process_group`` fails with ``Invalid value for environment variable: TORCH_NCCL_BLOCKING_WAIT``. torch
    accepts 1, true, yes and 0, false, no for switches; numbers must begin with digits, so that ``true`` is invalid for
    TORCH_NCCL_ASYNC_ERROR_HANDLING. Found by parsing as torch does.

    Fix: write a number, 0 or 1 for a switch.
    See: https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/Utils.hpp (getCvarBool)
    """
    variable = tables().torch.get(_new_name(setting))
    if variable is None or setting.origin != ENVIRONMENT:
        return None
    if variable.kind == "bool" and setting.value.lower() not in _TRUE | _FALSE:
        expected = "0 or 1"
    elif variable.kind in {"int", "float"} and not _NUMBERS[variable.kind].match(setting.value):
        expected = "a number"
    else:
        return None
    return Fault(
        f"{setting.name} is {setting.value!r}; expected {expected}; torch would fail",
        setting.fix(f"Write {expected}, or remove the variable."),
    )


@rule("environment", severity="warning", scope="rank", of=each_setting)
def torch_nccl_blocking_wait(_: Job, setting: NcclSetting) -> str | None:
    """The watchdog of torch is off, so a hanging NCCL collective is not reported or never ends.

    TORCH_NCCL_BLOCKING_WAIT=1 makes each wait block the program until the timeout and turns the handling of
    asynchronous errors off; TORCH_NCCL_ASYNC_ERROR_HANDLING=0 lets a rank wait forever after a timeout. Both are left
    from debugging. Found by the values, also under their old names.

    Fix: Remove the variable.

        {remove|unset TORCH_NCCL_BLOCKING_WAIT TORCH_NCCL_ASYNC_ERROR_HANDLING}

    See: https://docs.pytorch.org/docs/stable/torch_nccl_environment_variables.html
    """
    new, value = _new_name(setting), setting.value
    waits = new == "TORCH_NCCL_BLOCKING_WAIT" and value.lower() in _TRUE
    ignores = new == "TORCH_NCCL_ASYNC_ERROR_HANDLING" and value.strip() == "0"
    off = setting.origin == ENVIRONMENT and (waits or ignores)
    return f"{setting} turns torch's handling of hanging collectives off" if off else None


def _new_name(setting: NcclSetting) -> str:
    return tables().deprecated.get(setting.name, setting.name)


@rule("environment", scope="rank")
def torch_distributed_debug_detail(job: Job) -> Iterator[Outcome]:
    """TORCH_DISTRIBUTED_DEBUG is DETAIL, which is slow, or has a value that torch rejects.

    DETAIL checks every collective with others over Gloo before it runs. If only some ranks do so, they wait for the
    others: the job hangs at the first collective. Any value but OFF, INFO and DETAIL fails with ``The value of
    TORCH_DISTRIBUTED_DEBUG must be OFF, INFO, or DETAIL.`` Found by the value on each rank, whatever the backend.
    DETAIL on all ranks is a warning, on some ranks an error, and so is an invalid value.

    Fix: Give all ranks the same value, OFF in production.

        export TORCH_DISTRIBUTED_DEBUG=OFF

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
        severity="error" if invalid or len(values) > 1 else "warning",
        evidence={value or "empty": named(job, group) for value, group in values.items()},
    )
