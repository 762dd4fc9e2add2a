"""The rule about NCCL's own diagnostics of a node's GPUs, where `distcheck node --diagnose` has run them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from distcheck.facts.base import Missing
from distcheck.facts.nccl import NodeDiagnosis
from distcheck.rules import Outcome, rule
from distcheck.rules.finding import Fault, NotChecked
from distcheck.rules.wording import brief

if TYPE_CHECKING:
    from collections.abc import Iterator

    from distcheck.facts.job import Job

_PARTIAL = re.compile(r"\[INFO\] +p2p: only (\d{1,9})/(\d{1,9}) ")
_PAIR = re.compile(r"\[INFO\] +p2p: .*\bsrcNvmlDev=(\d{1,4}) .*\bdstNvmlDev=(\d{1,4}) ")
"""Source: the constants of libnccl.so.2 2.32.3."""


@rule("node", severity="warning", scope="node", owner="admin")
def nccl_node_diagnostics_report(job: Job) -> Iterator[Outcome]:
    """NCCL's own diagnostics report something about the node's GPUs.

    NCCL 2.31 and later write to and read from every GPU through every other one of the node. A pair whose data are not
    verified may hang jobs or give wrong results; NCCL itself goes on.

    Found with ``distcheck node --diagnose`` by the lines of NCCL with ``NCCL DIAG [INFO]``: one process makes one
    communicator of all GPUs. Not checked where a process uses a GPU, with MIG, with an older NCCL or none, and with one
    GPU. A site that drains such nodes sets the severity error in its policy.

    Fix: Check the links of the GPUs that NCCL names, and the IOMMU and ACS of the node.

        nvidia-smi topo -p2p n
        nvidia-smi nvlink --status

    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/diagnostics.html
    """
    for node in job.nodes:
        found = node.diagnosis
        if isinstance(found, Missing):
            yield NotChecked(reason=f"NCCL's diagnostics: {found.reason}", nodes=(node.name,), required=False)
        if not isinstance(found, NodeDiagnosis):
            continue
        lines = [line for line in found.lines if line.startswith("[INFO]")]
        partial = next(filter(None, map(_PARTIAL.match, lines)), None)
        pairs = [pair.groups() for pair in map(_PAIR.match, lines) if pair]
        what = [f"{partial[1]} of {partial[2]} accesses passed"] if partial else []
        what += [f"failed: {', '.join(f'GPU {a} to {b}' for a, b in pairs[:8])}"] if pairs else []
        words = f"no peer-to-peer access between all {found.gpus} GPUs; {'; '.join(what)}" if what else ""
        if lines:
            yield Fault(
                f"{node.name}: NCCL {found.version}: {words or brief(lines[0].partition(' ')[2].strip(), 160)}",
                severity=None if words else "info",
                nodes=(node.name,),
                evidence={f"line {n}": brief(line, 300) for n, line in enumerate(lines[:8], 1)},
            )
