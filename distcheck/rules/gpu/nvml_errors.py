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


class Remedy(NamedTuple):
    """What an error means with which NVML or CUDA does not start."""

    fix: Fix
    owner: Owner
    confirmed: bool
    """Whether the node is certainly bad."""


def remedied(text: str, *commands: str, owner: Owner = "admin", confirmed: bool = False) -> Remedy:
    """Return how to fix an error, who can, and whether the node is certainly bad."""
    return Remedy(Fix(text, commands), owner, confirmed)


def without_folder(word: str) -> str:
    """Return the command that removes the folders with this word from LD_LIBRARY_PATH."""
    return f"export LD_LIBRARY_PATH=$(printf %s \"$LD_LIBRARY_PATH\" | tr : '\\n' | grep -v {word} | paste -sd :)"


NEW_CONTAINER = "# add to docker run: --gpus all"
WITH_LIBRARIES = f"{NEW_CONTAINER} -e NVIDIA_DRIVER_CAPABILITIES=compute,utility"
KERNEL_LOG = "sudo dmesg | grep -iE 'nvrm|xid'"
_BY_CODE = {
    4: remedied(
        "Give the user access to the device files, usually through a group; start containers with GPUs.",
        "ls -l /dev/nvidiactl /dev/nvidia0; id",
        NEW_CONTAINER,
    ),
    DRIVER_NOT_LOADED: remedied(
        "Load the NVIDIA kernel module; if that fails, as after a kernel upgrade, the kernel log has the reason.",
        "sudo modprobe nvidia",
        "sudo dmesg | grep -iE 'nvidia|nvrm'",
        confirmed=True,
    ),
    LIBRARY_NOT_FOUND: remedied(
        "Start the container with the driver's libraries (the `utility` capability); outside containers install the"
        " NVIDIA driver.",
        WITH_LIBRARIES,
        "ldconfig -p | grep nvidia-ml",
        owner="user",
    ),
    15: remedied("Drain the node and reboot it; if it recurs, have the GPU replaced.", "sudo reboot", confirmed=True),
    17: remedied(
        "Give the cgroup or container the NVIDIA device files: request GPUs, or recreate the container.",
        "#SBATCH --gpus-per-node={ranks}",
        NEW_CONTAINER,
    ),
    18: remedied(
        "The driver was upgraded while the old kernel module stayed loaded: reboot the node. Restart a container that"
        " is older than the host's upgrade.",
        "cat /proc/driver/nvidia/version",
        "sudo reboot",
        confirmed=True,
    ),
    999: remedied(
        "Restart the container: `systemctl daemon-reload` on the host removes its GPUs. Outside containers look for"
        " NVRM and Xid lines in the kernel log, and reboot the node.",
        NEW_CONTAINER,
        KERNEL_LOG,
    ),
}
STUB = remedied(
    "Remove CUDA's stubs folder from LD_LIBRARY_PATH, or from the image, so that the driver's own library is loaded.",
    without_folder("stubs"),
    "ldconfig -p | grep libnvidia-ml.so.1",
    owner="user",
    confirmed=True,
)
"""For a libnvidia-ml.so.1 that only serves to link programs: every call returns that no kernel module is loaded."""
_NO_LIBRARY = remedied(
    "Install NVIDIA's driver, or install it again, in the kernel module's version; give a container its libraries.",
    "ldconfig -p | grep libnvidia-ml; cat /proc/driver/nvidia/version",
    "lspci -d 10de:",
    WITH_LIBRARIES,
    confirmed=True,
)
"""For a node without the driver's library that is to have GPUs."""
_OTHER = remedied(
    "Run nvidia-smi on the node. If it fails or hangs as well, drain the node and reboot it.",
    "timeout -s KILL 30 nvidia-smi",
    KERNEL_LOG,
)


def error_code(reason: str) -> int | None:
    """Return the number of the NVML error in a reason, None if it has none."""
    match = _CODE.match(reason)
    return int(match[1]) if match else None


def remedy(reason: str, gpus: int | None = None) -> Remedy:
    """Return the remedy for NVML's failure on a node that is to have so many GPUs; {ranks} are those of the node."""
    code = error_code(reason)
    return _NO_LIBRARY if gpus and code == LIBRARY_NOT_FOUND else _BY_CODE.get(code or -1, _OTHER)
