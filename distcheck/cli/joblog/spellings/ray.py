"""Ray: nodes that do not reach the head, workers that cannot import, and the gRPC beneath it."""

from __future__ import annotations

from functools import partial

from distcheck.cli.joblog.spelling import LIKELY, SYMPTOM, told

_RAY = "https://docs.ray.io/en/latest/cluster/faq.html"
_start = partial(told, about="start-up")

SPELLINGS = (
    _start(
        r"[Uu]nable to connect to GCS",
        about="network",
        source=_RAY,
        says="A Ray node cannot reach the head node. Check its address, port 6379 and the firewall.",
    ),
    _start(
        r"Failed to connect to GCS(?! at address :\d)",
        about="network",
        source=_RAY,
        says="A Ray node cannot reach the head node. Check its address, port 6379 and the firewall.",
    ),
    _start(
        r"Unable to connect to Redis at",
        about="network",
        source=_RAY,
        says="A Ray node cannot reach the head node. Check its address, port 6379 and the firewall.",
    ),
    _start(  # gRPC sends connections within a machine to the proxy
        r"local raylet.*failed to connect to all addresses", "env-proxy-vars", about="network", source=_RAY
    ),
    _start(
        r"failed to connect to all addresses",
        "env-proxy-vars",
        about="network",
        weight=LIKELY,
        source="https://github.com/grpc/grpc/blob/master/doc/environment_variables.md",
        near=r"https?_proxy",
    ),
    _start(
        r"failed to connect to all addresses",
        about="network",
        weight=SYMPTOM,
        source="https://github.com/grpc/grpc/blob/master/doc/environment_variables.md",
        unless=r"https?_proxy|local raylet",
        says="A gRPC server cannot be reached: it has ended, its port is closed, or a proxy (http_proxy) is in the way.",
    ),
    _start(r"connect to GCS at address :\d", "env-rank-unset env-empty-string", source=_RAY),
    _start(
        r"Could not find any running Ray instance",
        source=_RAY,
        says="No Ray cluster runs here: start one with `ray start --head`.",
    ),
    _start(
        r"No available node types can fulfill resource request",
        source=_RAY,
        says="The job asks Ray for more GPUs or CPUs than its cluster has.",
    ),
    _start(r"Version mismatch: The cluster was started with", "sw-packages-differ sw-python-differs", source=_RAY),
    _start(
        r"failed to import on the worker",
        source=_RAY,
        says="A worker of Ray cannot import a module: its node or environment lacks it. The lines below name it.",
    ),
)
