"""Rules about pods: late DNS names, sidecar proxies, and containers that share a host."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distcheck.facts.base import Missing
from distcheck.facts.network import Resolution
from distcheck.rules import Outcome, rule
from distcheck.rules.job.claims import uses_gpus
from distcheck.rules.network.attempts import master_attempts, ranks_of
from distcheck.rules.wording import found, grouped, listed, named, nodes_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from distcheck.facts.job import Job
    from distcheck.facts.rank import RankFacts

_MESH = {15001: "Istio", 15006: "Istio", 4140: "Linkerd", 4143: "Linkerd"}
_LATE_SECONDS = 5.0


def _in_pods(job: Job) -> list[RankFacts]:
    return [r for r in job.ranks if "KUBERNETES_SERVICE_HOST" in r.environment]


@rule("meeting", severity="warning")
def k8s_dns_not_ready(job: Job) -> Iterator[Outcome]:
    """The name in MASTER_ADDR did not resolve when the pod started, and resolved later.

    A headless service appears in DNS only when its pods are ready, and resolvers cache a failed lookup for seconds.
    torch retries until its timeout; other programs stop with ``gai error: -2``. Found by retrying for half of
    ``--join-timeout`` in a pod; below 5 seconds it is only an info. env-master-addr-unresolvable reports a name that
    never resolved.

    Fix: Publish the service's addresses before its pods are ready (``publishNotReadyAddresses: true`` in the headless
    service); wait for the name in an init container.

        until getent hosts {host|$MASTER_ADDR}; do sleep 1; done

    See: https://github.com/pytorch/pytorch/issues/80772
    """
    late: dict[str, list[tuple[Resolution, RankFacts]]] = {}
    for rank in _in_pods(job):
        answer = job.process_of(rank).master_resolution
        if isinstance(answer, Resolution) and answer.tries > 1:
            late.setdefault(answer.name, []).append((answer, rank))
    for name, several in late.items():
        ranks, slowest = [r for _, r in several], max(answer.seconds for answer, _ in several)
        yield found(
            job,
            ranks,
            f"{named(job, ranks)}: MASTER_ADDR {name} did not resolve at first; it resolved after {slowest:.1f} s",
            severity="warning" if slowest >= _LATE_SECONDS else "info",
            evidence={"tries": max(answer.tries for answer, _ in several)},
            values={"host": [name]},
        )


@rule("meeting")
def k8s_istio_sidecar(job: Job) -> Iterator[Outcome]:
    """A service mesh's proxy intercepts the raw TCP connections between the pods.

    Istio's and Linkerd's sidecars accept a connection before the other pod does, and then wait for TLS or HTTP: torch
    reports ``Ping failed``, NCCL ``Connection closed by remote peer``, or both wait. Found by a process that listens on
    the sidecar's ports in the pod, together with connections to rank 0 or between peers that opened and then stayed
    silent, broke, or were answered by another program. If all connections succeeded, the sidecar is only an info.

    Fix: Exclude the job's pods from the mesh in their template, and create the job again.

        # in the pod template: metadata: {exclude|labels: sidecar.istio.io/inject: "false"}

    See: https://istio.io/latest/docs/setup/additional-setup/sidecar-injection/
    """
    beside = [r for r in _in_pods(job) if job.node_of(r).proxy_ports]
    if not beside:
        return
    tried = {p.uid: {a.outcome for a in master_attempts(p)} for p in job.processes}
    broken = {uid for uid, outcomes in tried.items() if outcomes and outcomes <= {"silent", "closed", "foreign"}}
    broken |= {uid for t in job.peers if t.outcome in {"silent", "foreign", "failed"} for uid in (t.source, t.target)}
    through = [r for r in ranks_of(job, broken) if r in beside]
    ranks = through or beside
    known = job.node_of(ranks[0]).proxy_ports
    mesh, ports = _MESH[known[0]], listed([str(port) for port in known])
    exclude = '{labels: {sidecar.istio.io/inject: "false"}}'
    if mesh == "Linkerd":
        exclude = "{annotations: {linkerd.io/inject: disabled}}"
    yield found(
        job,
        ranks,
        f"{named(job, ranks)}: {mesh}'s proxy listens in the pod (port {ports}), and connections "
        + ("that opened were not answered by the other rank" if through else "succeeded through it"),
        severity="error" if through else "info",
        values={"exclude": [exclude]},
    )


@rule("environment", "nccl-shm-disabled-or-isolated", severity="info")
def k8s_pod_host_confusion(job: Job) -> Iterator[Outcome]:
    """NCCL takes pods of one machine for several machines, or isolated containers for one.

    NCCL treats ranks with the same host name and boot id as one machine. Pods have their own host names, so ranks of
    one machine communicate over the network and NVLink is unused. Pods with ``hostNetwork`` have the machine's name; if
    each has its own /dev/shm, NCCL cannot share memory through it. Found by comparing host name, boot id and
    the device of /dev/shm of all processes; only for jobs that use GPUs.

    Fix: Run one pod per machine with all its GPUs, or share the machine's IPC and network with the pods (``hostIPC:
    true`` with ``hostNetwork: true``).

        kubectl explain pod.spec.hostIPC
        kubectl explain pod.spec.hostNetwork

    See: https://github.com/NVIDIA/nccl/issues/1781
    """
    pods = [r for r in _in_pods(job) if uses_gpus(job, r) and not isinstance(job.node_of(r).boot_id, Missing)]
    for ranks in grouped(pods, lambda r: job.node_of(r).boot_id).values():
        names = sorted({job.node_of(r).hostname for r in ranks})
        devices = {d for r in ranks if isinstance(d := job.process_of(r).shm_device, int)}
        if len(names) > 1:
            what = f"{len(names)} pods of one machine have different host names; NCCL takes them for several machines"
        elif len(devices) > 1:
            what = f"containers of {names[0]} have {len(devices)} separate /dev/shm; NCCL takes them for one machine"
        else:
            continue
        nodes = listed(nodes_of(job, ranks))
        evidence = {"host names": listed(names), "devices of /dev/shm": len(devices), "nodes": nodes}
        yield found(job, ranks, f"{named(job, ranks)}: {what}", evidence=evidence)
