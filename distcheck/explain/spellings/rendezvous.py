"""torchrun's agents: how the nodes find each other, and what an agent says when another one is gone."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from distcheck.explain.spelling import CONSEQUENCE, HINT, LIKELY, SYMPTOM, told

_API = "https://github.com/pytorch/pytorch/blob/main/torch/distributed/elastic/rendezvous/api.py"
_DYNAMIC = "https://github.com/pytorch/pytorch/blob/main/torch/distributed/elastic/rendezvous/dynamic_rendezvous.py"
_STATIC = "https://github.com/pytorch/pytorch/blob/main/torch/distributed/elastic/rendezvous/static_tcp_rendezvous.py"
_UTILS = "https://github.com/pytorch/pytorch/blob/main/torch/distributed/elastic/rendezvous/utils.py"
_RUN = "https://github.com/pytorch/pytorch/blob/main/torch/distributed/run.py"
_STORE = "https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/TCPStore.cpp"
_ELASTIC_STORE = "https://github.com/pytorch/pytorch/blob/main/torch/distributed/elastic/utils/store.py"
_C10D = "https://github.com/pytorch/pytorch/blob/v1.10.0/torch/distributed/distributed_c10d.py"
_JAX = "https://github.com/openxla/xla/tree/main/xla/tsl/distributed_runtime/coordination"
_ETCD = "https://docs.pytorch.org/docs/stable/elastic/rendezvous.html"
_start = partial(told, about="start-up")
_SEVERAL_NODES = r"nnodes[= ]+['\"]?(?:[2-9]|[1-9]\d|\d+:(?:[2-9]|\d\d))|(?:max|min)_nodes\s+: (?:[2-9]|\d\d)"
_PORT_OF = r"port number of the (?:rendezvous endpoint|C10d store) '"
_JOINING = r"Rendezvous'ing worker group|Attempting to join next rendezvous|next_rendezvous"
_JOINED = r"Rendezvous complete|Starting worker group|Joined rendezvous|death signal|worker group (?:finished|failed)|_keep_alive"
_ENDPOINT = r"rdzv[-_]endpoint[= ]+['\"]?(?!localhost|127\.|is )[\w.\[]|rdzv_endpoint\s+: (?!localhost|127\.)\S"
_NO_ENDPOINT = r"rdzv_endpoint\s+: (?:localhost|127\.|$)|rdzv[-_]endpoint[= ]+['\"]?(?:localhost|127\.)"
_UNUSED_ADDRESS = r"master_addr is only used for static rdzv_backend"
_MISSING = "env-rank-missing torchrun-nnodes-mismatch net-master-unreachable"
_LATER_ROUND = r"/torch\.rendezvous\.\S+\.[1-9]\d*/"

_BARRIER = (
    r"in store[ -]based barrier .*\(world_size=(?P<world>\d+), (?:worker_count|num_workers_joined)=(?P<joined>\d+)"
)
_RESTARTS = r"torch\.distributed\.elastic|torch\.distributed\.launch|torchelastic|torchrun"
"""torch before 1.11 counts the ranks of all attempts."""


def _too_many(values: Mapping[str, str]) -> bool:
    return int(values["joined"]) > int(values["world"])


def _too_few(values: Mapping[str, str]) -> bool:
    return int(values["joined"]) < int(values["world"])


SPELLINGS = (
    _start(
        r"seconds waiting for clients\. (?P<joined>\d+)/(?P<world>\d+) clients joined",
        _MISSING,
        weight=LIKELY,
        source=_STORE,
    ),
    _start(
        _BARRIER,
        "env-rank-duplicate env-world-size-mismatch slurm-ntasks-vs-devices",
        weight=LIKELY,
        source=_C10D,
        only=_too_many,
        unless=_RESTARTS,
    ),
    _start(
        _BARRIER,
        "elastic-restart-stale env-rank-duplicate",
        weight=LIKELY,
        source=_C10D,
        only=_too_many,
        near=_RESTARTS,
    ),
    _start(
        rf"Timed out .*{_BARRIER}",
        "env-rank-missing env-world-size-mismatch",
        weight=LIKELY,
        source=_C10D,
        only=_too_few,
    ),
    _start(  # also in healthy jobs, while the last ranks join
        _BARRIER, "env-rank-missing env-world-size-mismatch", weight=HINT, source=_C10D, only=_too_few
    ),
    _start(
        r"Rendezvous ?Timeout ?Error",
        "torchrun-localhost-name-ambiguous torchrun-ignores-master-env env-rank-missing",
        weight=LIKELY,
        source=_API,
        near=rf"{_UNUSED_ADDRESS}|{_NO_ENDPOINT}|--standalone",
        unless=_ENDPOINT,
    ),
    _start(
        r"Rendezvous ?Timeout ?Error",
        "torchrun-rdzv-id-mismatch env-rank-missing torchrun-nnodes-mismatch",
        weight=LIKELY,
        source=_RUN,
        near=r"generated a random run_id",
        unless=rf"{_UNUSED_ADDRESS}|{_NO_ENDPOINT}",
    ),
    _start(
        r"Rendezvous ?Timeout ?Error",
        "env-rank-missing torchrun-nnodes-mismatch torchrun-localhost-name-ambiguous",
        weight=SYMPTOM,
        source=_API,
    ),
    _start(
        _UNUSED_ADDRESS,
        "torchrun-localhost-name-ambiguous torchrun-ignores-master-env",
        weight=HINT,
        source=_RUN,
        near=_SEVERAL_NODES,
        unless=_ENDPOINT,
    ),
    _start(  # the rendezvous has the number 1 or more: it is not the first of these agents
        rf"wait timeout after \d+ms, keys: {_LATER_ROUND}torchelastic/role_info",
        f"elastic-join-blocked {_MISSING}",
        weight=LIKELY,
        source=_DYNAMIC,
    ),
    _start(
        rf"wait timeout after \d+ms, keys: (?!{_LATER_ROUND})\S*torchelastic/(?:role_info|assigned_ranks|rank_info)",
        _MISSING,
        weight=LIKELY,
        source=_ELASTIC_STORE,
    ),
    _start(
        r"Barrier timed out\. .*(?:PjRT_Client_Connect|Wait_for_all_tasks_to_register)",
        "env-rank-missing env-world-size-not-product",
        weight=LIKELY,
        source=_JAX,
    ),
    _start(
        r"coordination service as cluster registration failed",
        "env-rank-missing env-world-size-not-product",
        weight=LIKELY,
        source=_JAX,
    ),
    _start(
        r"\bDEADLINE_EXCEEDED\b", _MISSING, weight=SYMPTOM, source=_JAX, trace=r"jax/_src/distributed\.py|RegisterTask"
    ),
    _start(rf"{_PORT_OF}(?!(?:None|null)?:|\S*:(?:None|null)?')(?=\S+:-?\d+')", "env-master-port-range", source=_UTILS),
    _start(
        rf"{_PORT_OF}(?!(?:None|null)?:|\S*:(?:None|null)?')(?!\S+:-?\d+')",
        "env-master-port-range env-not-integer",
        source=_UTILS,
    ),
    _start(
        rf"{_PORT_OF}(?!None|null)[^':]+:'", "env-empty-string env-not-integer env-master-port-range", source=_UTILS
    ),
    _start(
        rf"{_PORT_OF}(?:(?:None|null)?:|[^']*:(?:None|null)')",
        source=_UTILS,
        says="The launcher passed no address or no port to torch: look at the options of the command, and their order.",
    ),
    _start(
        r"(?:rank|endpoint|Port) is absent in ",
        source=_STATIC,
        says="torchrun's static rendezvous lacks --node-rank, --master-addr or --master-port.",
    ),
    _start(
        r"not in \"MIN:MAX\" format",
        source=_RUN,
        says="--nnodes is not a number or a range: often the variable that should hold it is empty.",
    ),
    _start(
        r"Unsupported nproc_per_node value",
        source=_RUN,
        says="--nproc-per-node is not a number: often the variable that should hold it is empty.",
    ),
    _start(r"ValueError: Cuda is not available", "gpu-none-visible", source=_RUN),
    _start(
        r"rendezvous backend '\S*' is not registered",
        source=_API,
        says="torchrun does not know this --rdzv-backend: use c10d or static.",
    ),
    _start(
        r"connection to etcd has failed",
        about="network",
        source=_ETCD,
        says="The agents cannot reach the etcd server of --rdzv-endpoint.",
    ),
    _start(
        r"EtcdKeyNotFound",
        weight=LIKELY,
        source=_ETCD,
        says="The etcd backend of torchrun lacks a key: a known fault of some versions. Use --rdzv-backend=c10d.",
    ),
    _start(r"No module named '?etcd", "sw-etcd-missing", source=_ETCD),
    _start(r"The 'etcd' module is required", "sw-etcd-missing", source=_ETCD),
    _start(  # at the agent's first rendezvous: it was closed before, and etcd keeps that for two hours
        r"RendezvousClosedError",
        "torchrun-rdzv-id-shared elastic-nodes-changed",
        weight=SYMPTOM,
        source=_ETCD,
        near=_JOINING,
        unless=_JOINED,
    ),
    _start(
        r"Rendezvous for run_id=\S+ was observed to be closed",
        "torchrun-rdzv-id-shared elastic-nodes-changed",
        weight=SYMPTOM,
        source=_ETCD,
        unless=_JOINED,
    ),
    _start(
        r"RendezvousClosedError",
        about="network",
        weight=CONSEQUENCE,
        source=_DYNAMIC,
        says="The agents' rendezvous was closed because another agent ended. The cause is in the log of that agent.",
    ),
    _start(
        r"has failed to (?:shutdown|send a keep-alive heartbeat to) the rendezvous",
        about="network",
        weight=CONSEQUENCE,
        source=_DYNAMIC,
        says="The agent lost the store of the rendezvous: the agent that hosts it ended first.",
    ),
    _start(
        r"torchelastic/agent/terminal_state",
        weight=CONSEQUENCE,
        source=_ELASTIC_STORE,
        says="An agent waited at the end of the job for another one, which had ended or not yet finished.",
    ),
)
