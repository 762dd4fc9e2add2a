"""What NVML's errors mean for a node: is it certainly bad, who can fix it, and how."""

from __future__ import annotations

import re
from typing import NamedTuple

from distcheck.rules.finding import Fix, Owner

_CODE = re.compile(r"NVML error ([0-9]+):")

LOST = frozenset({8, 11, 15, 16})
"""No power, no interrupt, lost, needs a reset: NVML itself reports a hardware failure."""
DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND = 9, 12
NO_DRIVER = frozenset({DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND})
"""The kernel module is not loaded, the library was not found."""


class NvmlRemedy(NamedTuple):
    """How to treat an error of nvmlInit: whether it is confirmed, who fixes it, and how."""

    confirmed: bool
    owner: Owner
    fix: Fix


def without_folder(word: str) -> str:
    """Return the command that removes the folders with this word from LD_LIBRARY_PATH."""
    return f"export LD_LIBRARY_PATH=$(printf %s \"$LD_LIBRARY_PATH\" | tr : '\\n' | grep -v {word} | paste -sd :)"


_NEW_CONTAINER = ("# add to docker run: --gpus all",)
_BY_CODE = {
    4: NvmlRemedy(
        confirmed=False,
        owner="admin",
        fix=Fix(
            "Give the user access to the device files, usually through a group; start containers with GPUs.",
            ("ls -l /dev/nvidiactl /dev/nvidia0; id", *_NEW_CONTAINER),
        ),
    ),
    9: NvmlRemedy(
        confirmed=True,
        owner="admin",
        fix=Fix(
            "Load the NVIDIA kernel module; if that fails, as after a kernel upgrade, the kernel log has the reason.",
            ("sudo modprobe nvidia", "sudo dmesg | grep -iE 'nvidia|nvrm'"),
        ),
    ),
    12: NvmlRemedy(
        confirmed=False,
        owner="user",
        fix=Fix(
            "Start the container with the driver's libraries (the `utility` capability); outside containers"
            " install the NVIDIA driver.",
            (
                "# add to docker run: --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility",
                "ldconfig -p | grep nvidia-ml",
            ),
        ),
    ),
    15: NvmlRemedy(
        confirmed=True,
        owner="admin",
        fix=Fix("Drain the node and reboot it; if it recurs, have the GPU replaced.", ("sudo reboot",)),
    ),
    17: NvmlRemedy(
        confirmed=False,
        owner="admin",
        fix=Fix(
            "Give the cgroup or container the NVIDIA device files: request GPUs, or recreate the container.",
            ("#SBATCH --gpus-per-node={ranks}", *_NEW_CONTAINER),
        ),
    ),
    18: NvmlRemedy(
        confirmed=True,
        owner="admin",
        fix=Fix(
            "The driver was upgraded while the old kernel module stayed loaded: reboot the node. Restart a container"
            " that is older than the host's upgrade.",
            ("cat /proc/driver/nvidia/version", "sudo reboot"),
        ),
    ),
    999: NvmlRemedy(
        confirmed=False,
        owner="admin",
        fix=Fix(
            "Restart the container: `systemctl daemon-reload` on the host removes its GPUs. Outside"
            " containers look for NVRM and Xid lines in the kernel log, and reboot the node.",
            (*_NEW_CONTAINER, "sudo dmesg | grep -iE 'nvrm|xid'"),
        ),
    ),
}  # fmt: skip
STUB = NvmlRemedy(
    confirmed=True,
    owner="user",
    fix=Fix(
        "Remove CUDA's stubs folder from LD_LIBRARY_PATH, or from the image, so that the driver's own library is"
        " loaded.",
        (
            without_folder("stubs"),
            "ldconfig -p | grep libnvidia-ml.so.1",
        ),
    ),
)
"""For a libnvidia-ml.so.1 that only serves to link programs: every call returns that no kernel module is loaded."""
_NO_LIBRARY = NvmlRemedy(
    confirmed=True,
    owner="admin",
    fix=Fix(
        "Install NVIDIA's driver, or install it again, in the kernel module's version; give a container its libraries.",
        (
            "ldconfig -p | grep libnvidia-ml; cat /proc/driver/nvidia/version",
            "lspci -d 10de:",
            "# add to docker run: --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility",
        ),
    ),
)
"""For a node without the driver's library that is to have GPUs."""
_OTHER = NvmlRemedy(
    confirmed=False,
    owner="admin",
    fix=Fix(
        "Run nvidia-smi on the node. If it fails or hangs as well, drain the node and reboot it.",
        ("timeout -s KILL 30 nvidia-smi", "sudo dmesg | grep -iE 'nvrm|xid'"),
    ),
)


def error_code(reason: str) -> int | None:
    """Return the number of the NVML error in a reason, None if it has none."""
    match = _CODE.match(reason)
    return int(match[1]) if match else None


def remedy(reason: str, ranks: int, gpus: int | None = None) -> NvmlRemedy:
    """Return the remedy for NVML's failure on a node with so many ranks, which is to have so many GPUs.

    An error without a number is unconfirmed.
    """
    code = error_code(reason)
    known = _NO_LIBRARY if gpus and code == LIBRARY_NOT_FOUND else _BY_CODE.get(code or -1, _OTHER)
    commands = tuple(command.replace("{ranks}", str(max(1, ranks))) for command in known.fix.commands)
    return known._replace(fix=Fix(known.fix.text, commands))
