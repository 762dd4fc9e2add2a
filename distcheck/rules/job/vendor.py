"""The commands of AMD's tools, where a rule writes NVIDIA's and the nodes have AMD GPUs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from distcheck.facts.job import Job
    from distcheck.rules.finding import Fix

_GPU = r"(?: -i (\S+))?"
# https://rocm.docs.amd.com/projects/amdsmi/en/latest/how-to/amdsmi-cli-tool.html
_AMD = {
    rf"sudo nvidia-smi --gpu-reset{_GPU}": "sudo amd-smi reset --gpureset",
    rf"sudo nvidia-smi{_GPU} -pl (\S+)": "sudo amd-smi set --power-cap {1}",
    rf"sudo nvidia-smi{_GPU} -rac": "sudo amd-smi reset --clocks",
    rf"nvidia-smi -q -d (?:PAGE_RETIREMENT|ROW_REMAPPER|ECC,ROW_REMAPPER){_GPU}": "amd-smi bad-pages",
    rf"nvidia-smi -q -d (?:TEMPERATURE,)?PERFORMANCE{_GPU}": "amd-smi metric --temperature --clock --power",
    rf"nvidia-smi -q -d POWER{_GPU}": "amd-smi metric --power",
    rf"nvidia-smi -q{_GPU} \| grep.*": "amd-smi metric --pcie",
    rf"nvidia-smi --query-compute-apps.*?{_GPU}": "amd-smi process",
    r"nvidia-smi --query-gpu=driver_version.*": "amd-smi static --driver",
    r"nvidia-smi (?:-L|--query-gpu=index).*": "amd-smi list; lspci -d 1002:",
    r"nvidia-smi topo -m": "amd-smi topology",
    r"sudo dmesg \| grep -iE '(?:nvrm|nvidia).*": "sudo dmesg | grep -i amdgpu",
    r"lspci -d 10de:": "lspci -d 1002:",
    r"# add to docker run: --gpus all.*": "# add to docker run: --device=/dev/kfd --device=/dev/dri --group-add render",
}
"""Patterns of NVIDIA's commands, whose first group is the GPU, and AMD's, to which ``--gpu`` is added."""
_NVIDIA_ONLY = re.compile(r"(?:sudo )?(?:nvidia-|dcgmi)")


def as_vendor(job: Job, nodes: tuple[str, ...], fix: Fix) -> Fix:
    """Return a fix with the commands of AMD's tools if the nodes it is about have AMD GPUs."""
    if not any(node.accelerator == "amd" and (not nodes or node.name in nodes) for node in job.nodes):
        return fix
    text = fix.text.replace("NVIDIA's diagnostics", "AMD's validation suite (rvs)").replace("nvidia-smi", "amd-smi")
    commands = tuple(filter(None, map(_translated, fix.commands)))
    return msgspec.structs.replace(fix, text=text, commands=commands)


def _translated(command: str) -> str:
    for pattern, words in _AMD.items():
        if match := re.fullmatch(pattern, command):
            gpu = f" --gpu {match[1]}" if match.groups() and match[1] else ""
            return words.format(*match.groups()) + gpu
    return "" if _NVIDIA_ONLY.match(command) else command
