"""What must be allowed so that a job's stacks can be read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distcheck.facts.base import Missing
from distcheck.facts.quantities import count
from distcheck.rules.wording import brief, listed

if TYPE_CHECKING:
    from distcheck.facts.hang import HangNode, RunningJob


def missing_rights(hang: RunningJob) -> str:
    """Return why stacks are unknown and exactly what to allow; empty if all could be read."""
    if not hang.stacks:
        return "--no-stacks: /proc alone does not decide; drop it"
    if lacks := next((node.sampler for node in hang.nodes if node.sampler), ""):
        return f"no stacks: {lacks}"
    last = (m for rank in hang.ranks for m in rank.moments[-1:] if m.state not in "ZX")
    reasons = [m.threads.reason for m in last if isinstance(m.threads, Missing)]
    hidden = any(node.unreadable for node in hang.nodes) and not hang.ranks
    if not hang.nodes or not (reasons or hidden):
        return ""
    why = f"no stacks of {count(len(reasons), 'rank')} ({brief(reasons[0], 50)}), " if reasons else ""
    return f"{why}allow it: {listed(allow(hang.nodes[0]), 6)}"


def allow(node: HangNode) -> list[str]:
    """Return what gives the right to attach, in the order in which it is worth a try."""
    found = []
    if node.container == "kubernetes":
        found.append("kubectl debug --profile=sysadmin, or SYS_PTRACE in securityContext.capabilities.add")
    elif node.container:
        found.append("docker run --cap-add SYS_PTRACE, or distcheck hang on the host")
    if node.yama and not node.sys_ptrace:
        found.append(f"sysctl kernel.yama.ptrace_scope=0 (now {node.yama})")
    if node.user != "root":
        found.append("sudo distcheck hang, or as the job's own user")
    elif not node.container and not node.sys_ptrace:
        found.append("CAP_SYS_PTRACE for root")
    if node.yama == 1 and not node.sys_ptrace:
        found.append("at the job's next start distcheck gate --arm or preflight(arm=True)")
    return found or ["run distcheck hang as the job's own user, or as root with CAP_SYS_PTRACE"]
