"""Rules about a case that failed or was slow and was repeated with one setting changed at a time."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING, NamedTuple

from distcheck.facts.job import Job
from distcheck.facts.repeated import Repeat
from distcheck.rules import Outcome, rule
from distcheck.rules.finding import Fault, NotChecked
from distcheck.rules.wording import brief, listed, numbers_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from distcheck.facts.repeated import Repeated

_BAD = frozenset({"failed", "wrong", "hung", "slow"})


class Avoided(NamedTuple):
    """What a setting avoids, and the command that shows its state."""

    name: str
    command: str


_AVOIDED = {
    "NCCL_CUMEM_ENABLE": Avoided("NCCL's cuMem allocation of buffers", "nvidia-smi -q | grep -i -A2 'driver version'"),
    "NCCL_NVLS_ENABLE": Avoided("NVLink SHARP (NVLS)", "systemctl status nvidia-fabricmanager"),
    "NCCL_P2P_DISABLE": Avoided("direct access between GPUs (P2P)", "nvidia-smi topo -p2p r"),
    "NCCL_SHM_DISABLE": Avoided("NCCL's shared memory transport (SHM)", "df -h /dev/shm"),
    "NCCL_ALGO": Avoided("an NCCL algorithm other than Ring", "env | grep ^NCCL_"),
    "NCCL_IB_DISABLE": Avoided("InfiniBand or RoCE", "ibv_devinfo"),
    "NCCL_NET": Avoided("NCCL's network plugin or InfiniBand", "ibv_devinfo"),
    "GLOO_SOCKET_IFNAME": Avoided("the interface that Gloo selects", "ip -br address"),
}


@rule("collectives", severity="warning", scope="job", owner="admin")
def collective_transport_fails(job: Job) -> Iterator[Outcome]:
    """A collective that fails or is slow works without one transport or on another interface.

    A job on these nodes fails or is slow like distcheck's collective until the transport is repaired, or is avoided
    with the setting that is named. Avoiding a healthy transport usually costs speed: NCCL_P2P_DISABLE=1 takes NVLink
    away, NCCL_IB_DISABLE=1 the fast network.

    Found by repeating the smallest case that failed, in new processes, with one setting changed at a time, as long as
    --timeout leaves time. The case must fail without any change and pass with the setting, twice each and in turn; else
    it fails only sometimes, and no transport is named. An operation that fails the run because it is slow, or is far
    below the usual figure, is repeated in the same way, and must become 1.5 times as fast.

    Fix: Repair what the setting avoids; to start the job now, use the setting on every rank.

        export {setting|NCCL_P2P_DISABLE=1}
        {look|nvidia-smi topo -p2p r}

    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
    """
    case = job.repeated
    unchanged = [r.outcome for r in case.repeats if not r.variable] if case is not None else []
    if case is None or not unchanged:
        return
    passed = [r for r in case.repeats if r.variable and r.outcome == "passed"]
    twice = len(passed) > 1 and (passed[0].variable, passed[0].value) == (passed[1].variable, passed[1].value)
    what = f"{case.operation} on {listed(case.nodes)}"
    tried = [_setting(r) for r in case.repeats if r.variable and r.outcome in _BAD]
    unknown = ""
    if "passed" in unchanged:
        did = "was not slow" if "slow" in unchanged or case.repeats[0].busbw_GBps else "passed"
        unknown = f"{did} when it was repeated without a change, so no transport is named"
    elif twice and len(unchanged) > 1 and set(unchanged) <= _BAD:
        first = passed[0]
        avoided = _AVOIDED.get(first.variable, Avoided("what this setting avoids", "env | grep ^NCCL_"))
        over, chosen = ("over", first.value) if first.variable == "GLOO_SOCKET_IFNAME" else ("with", _setting(first))
        message = f"{what} {_ended(case.repeats[0])} {over} {avoided.name}, and {_ended(first)} {over} {chosen}"
        nodes = [node for node in job.nodes if job.node_names[node.key] in case.nodes]
        yield Fault(
            brief(message, 300),
            evidence=_evidence(case),
            ranks=numbers_of(job.ranks_on(*nodes)),
            nodes=case.nodes,
            values={"setting": (f"{first.variable}={quote(first.value)}",), "look": (avoided.command,)},
        )
    elif passed:
        unknown = f"passed with {_setting(passed[0])}, which was not confirmed"
    elif unchanged[0] in _BAD and tried:
        also = "is as slow" if unchanged[0] == "slow" else "also fails"
        unknown = f"{also} with {listed(tried, most=8)}, one at a time: no transport alone is at fault"
    if unknown:
        yield NotChecked(reason=f"{what} {unknown}", required=False)


def _ended(repeat: Repeat) -> str:
    if repeat.busbw_GBps is not None:
        return f"reaches {repeat.busbw_GBps:.3g} GB/s"
    return {"hung": "hangs", "wrong": "returns wrong numbers", "passed": "passes"}.get(repeat.outcome, "fails")


def _setting(repeat: Repeat) -> str:
    return f"{repeat.variable}={repeat.value}" if repeat.variable else "no change"


def _evidence(case: Repeated) -> dict[str, str]:
    lines: dict[str, str] = {}
    for r in case.repeats:
        words = f" ({brief(r.words[0], 100)})" if r.words and r.outcome != "passed" else ""
        words += f", {r.busbw_GBps:.3g} GB/s" if r.busbw_GBps is not None else ""
        again = " again" if _setting(r) in lines else ""
        lines[_setting(r) + again] = r.outcome + words
    if case.untried:
        lines["not tried"] = listed(case.untried, most=8)
    return lines
