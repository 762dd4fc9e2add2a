"""What NVML's errors mean for a node: whether it is surely bad, who can mend it, and how."""

from __future__ import annotations

import re
from typing import NamedTuple

from distcheck.rules.finding import Fix, Owner

_CODE = re.compile(r"NVML error ([0-9]+):")

LOST = frozenset({8, 11, 15, 16})
"""No power, no interrupt, lost, needs a reset: with these NVML says itself that the hardware has failed."""
NO_DRIVER = frozenset({9, 12})
"""The kernel module is not loaded, the library was not found."""


class Remedy(NamedTuple):
    """What to make of an error of nvmlInit."""

    confirmed: bool
    owner: Owner
    fix: Fix


_NEW_CONTAINER = ("# add to docker run: --gpus all",)
_BY_CODE = {
    4: Remedy(
        confirmed=False,
        owner="admin",
        fix=Fix(
            "Let the user open the device files, mostly by a group; start a container with GPUs.",
            ("ls -l /dev/nvidiactl /dev/nvidia0; id", *_NEW_CONTAINER),
        ),
    ),
    9: Remedy(
        confirmed=True,
        owner="admin",
        fix=Fix(
            "Load the NVIDIA kernel module; if that fails, as under a new kernel, the kernel's log says why.",
            ("sudo modprobe nvidia", "sudo dmesg | grep -iE 'nvidia|nvrm'"),
        ),
    ),
    12: Remedy(
        confirmed=False,
        owner="user",
        fix=Fix(
            "Start the container with the driver's libraries (its `utility` capability); elsewhere"
            " install the NVIDIA driver.",
            (
                "# add to docker run: --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility",
                "ldconfig -p | grep nvidia-ml",
            ),
        ),
    ),
    15: Remedy(
        confirmed=True,
        owner="admin",
        fix=Fix("Drain the node and reboot it; if it comes again, have the GPU replaced.", ("sudo reboot",)),
    ),
    17: Remedy(
        confirmed=False,
        owner="admin",
        fix=Fix(
            "Give the cgroup or container the NVIDIA device files: ask Slurm for GPUs, start Docker anew.",
            ("#SBATCH --gpus-per-node=8", *_NEW_CONTAINER),
        ),
    ),
    18: Remedy(
        confirmed=True,
        owner="admin",
        fix=Fix(
            "The driver was upgraded while the old kernel module stayed loaded: reboot the node. A container"
            " that is older than the host's upgrade must be started anew.",
            ("cat /proc/driver/nvidia/version", "sudo reboot"),
        ),
    ),
    999: Remedy(
        confirmed=False,
        owner="admin",
        fix=Fix(
            "Start the container anew: `systemctl daemon-reload` on the host takes its GPUs away. Outside of"
            " containers look in the kernel's log for NVRM and Xid lines, and reboot the node.",
            (*_NEW_CONTAINER, "sudo dmesg | grep -iE 'nvrm|xid'"),
        ),
    ),
}  # fmt: skip
_OTHER = Remedy(
    confirmed=False,
    owner="admin",
    fix=Fix(
        "Run nvidia-smi on the node. If it fails or hangs as well, drain the node and reboot it.",
        ("timeout -s KILL 30 nvidia-smi", "sudo dmesg | grep -iE 'nvrm|xid'"),
    ),
)


def error_code(reason: str) -> int | None:
    """Return the number of the NVML error that a reason states, None when it states none."""
    match = _CODE.match(reason)
    return int(match[1]) if match else None


def remedy(reason: str) -> Remedy:
    """Return what to make of NVML's failure to start; without a number (a hang, a crash) nothing is sure."""
    return _BY_CODE.get(error_code(reason) or -1, _OTHER)
