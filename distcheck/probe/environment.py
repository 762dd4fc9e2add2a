"""Collect a rank's variables and command lines, with likely secrets redacted first.

Variables are on an allow-list; command lines show which program was started.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache

from distcheck.facts.base import legible_text
from distcheck.selection.counted import VOLCANO
from distcheck.selection.placement import RANK_VARIABLES, TABLES

_NAMES = frozenset(
    RANK_VARIABLES
    + tuple(name for table in TABLES for name in table[1:] if name)
    + (
        "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_LAUNCH_BLOCKING", "NVIDIA_VISIBLE_DEVICES",
        "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "OMP_NUM_THREADS",
        "http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY",
        "PMI_SIZE", "PMI_LOCAL_SIZE", "PMI_LOCAL_RANK", "PMIX_RANK", "PMIX_NAMESPACE", "PMIX_HOSTNAME",
        "HOROVOD_HOSTNAME", "HOROVOD_CROSS_SIZE", "HOROVOD_CONTROLLER",
        "NNODES", "KUBERNETES_SERVICE_HOST", "JOB_COMPLETION_INDEX", "LSB_JOBID", "PBS_JOBID", "JOB_ID",
        "PBS_NUM_NODES", "NHOSTS", "LD_PRELOAD", "SLURMD_NODENAME",
        "CROSS_RANK", "CROSS_SIZE", "LOCAL_SIZE", "RAY_JOB_ID", "AZUREML_RUN_ID", "AZ_BATCH_MASTER_NODE",
        "SM_CURRENT_HOST", "SM_HOSTS",
    )
)  # fmt: skip
_PREFIXES = (
    "SLURM_", "TORCHELASTIC_", "PET_", "NCCL", "TORCH_NCCL", "TORCH_DIST", "TORCH_GLOO_", "GLOO_", "OMPI_COMM_WORLD_",
    "MV2_COMM_WORLD_", "PALS_", "FI_", "UCX_", "DISTCHECK_", "RCCL_", "OFI_NCCL_", "TORCH_FR_", "TORCH_WATCHDOG_",
    "NCLL_", "NCL_", "nccl_",
)  # fmt: skip
_SECRET_NAME = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|JWT|_KEY\b|APIKEY|AUTH", re.IGNORECASE)
_SECRET_VALUE = re.compile(r"(?<=://)[^/@\s]+(?=@)")
_SIGNS = ("token", "secret", "passw", "credential", "jwt", "key", "auth", "://")
_LONGEST = 4096


def collect(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that affect distributed start-up, sorted by name.

    Values longer than 4096 characters are cut. A variable whose name looks like a secret keeps its name and loses its
    value. Credentials inside a URL are redacted.
    """
    return {
        name: "(redacted)" if _SECRET_NAME.search(name) else _SECRET_VALUE.sub("(redacted)", _clean(environ[name]))
        for name in sorted(environ)
        if name in _NAMES or name.startswith(_PREFIXES) or VOLCANO.fullmatch(name)
    }


def hidden(line: str) -> str:
    """Return a line NAME=value without the value if the name looks secret, and without credentials in a URL."""
    name, equals, _ = line.partition("=")
    return f"{name}{equals}(redacted)" if _SECRET_NAME.search(name) else _SECRET_VALUE.sub("(redacted)", _clean(line))


def redacted(words: Sequence[str]) -> tuple[str, ...]:
    """Return a command line without the values of options and variables that look secret."""
    line = " ".join(words).lower()
    if not any(sign in line for sign in _SIGNS):  # the usual case: compile no pattern
        return tuple(words)
    option, given, assigned = _patterns()
    shown = []
    for number, word in enumerate(words):
        if number and not word.startswith("-") and option.fullmatch(words[number - 1]):
            shown.append("(redacted)")
        else:
            shown.append(
                _SECRET_VALUE.sub("(redacted)", given.sub(r"\1(redacted)", assigned.sub(r"\1(redacted)", word)))
            )
    return tuple(shown)


@cache
def _patterns() -> tuple[re.Pattern[str], re.Pattern[str], re.Pattern[str]]:
    """Return the patterns of a secret's option, of the option with value, and of a variable."""
    name = r"[\w-]*(?:token|secret|passw|credential|jwt|[_-]key\b|apikey|auth)[\w-]*"
    return (
        re.compile(rf"--?{name}", re.IGNORECASE),
        re.compile(rf"(\B--?{name}[ \t]+)(?![-\s])[^\s;&|]+", re.IGNORECASE),
        re.compile(rf"({name}=['\"]?)[^\s;&|'\"]+", re.IGNORECASE),
    )


def _clean(value: str) -> str:
    return legible_text(value)[:_LONGEST]
