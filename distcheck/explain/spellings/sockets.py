"""Errors of sockets that any software may write, in the words of errno."""

from __future__ import annotations

from functools import partial

from distcheck.explain.spelling import CONSEQUENCE, LIKELY, SYMPTOM, told
from distcheck.explain.spellings.names import WEB

_ERRNO = "https://man7.org/linux/man-pages/man3/errno.3.html"
_PAIR = "https://github.com/pytorch/gloo/blob/main/gloo/transport/tcp/pair.cc"
_PING = "https://man7.org/linux/man-pages/man8/ping.8.html"
_net = partial(told, about="network")
_TAKEN = "net-port-in-use net-port-in-use-by-peer-job"
_WORKERS = r"multiprocessing/(?:connection|managers|resource_sharer|reduction|queues)|pin_memory|rebuild_storage"
"""Python's own sockets between a rank and its data loaders, which break when the rank ends."""
SERVICES = r"zmq\.error|zmq/|attempting to bind on address|in use by another program|visdom/|redis\.exceptions|redis/connection|pymongo\.errors|psycopg2?\.|pymysql\.err|TensorBoard could not bind|dial tcp"
"""Clients and servers beside the job."""
_OTHER_SOFTWARE = rf"ssh: |failed to connect to|connect to \S+<|ibv_|NCCL WARN|{_WORKERS}|{SERVICES}|{WEB}"

_MEETING = (
    r"distributed|rendezvous|elastic|store|horovod|deepspeed|accelerate|launch|mpi|dask|ray/|gloo|byteps|paddle|mxnet"
    r"|oneflow|jax|tensorflow|init_"
)
_OWN_CODE = rf"(?=[^\0]*Traceback)(?=[^\0]*File )(?![^\0]*(?:{_MEETING}))"
"""A traceback through no code by which ranks meet."""

SPELLINGS = (
    _net(
        r"(?:port: (?P<port>\d+).*)?address already in use",
        _TAKEN,
        source=_ERRNO,
        unless=rf"ipcsocket|nccl-socket|NCCL WARN|{SERVICES}",
    ),
    _net(
        r"Only one usage of each socket address",
        _TAKEN,
        source="https://learn.microsoft.com/windows/win32/winsock/windows-sockets-error-codes-2",
    ),
    _net(
        r"port (?P<port>\d+) is (?:already )?(?:in use|occupied|not available|unavailable)(?!.*\b(?:trying|try|using) (?:port )?\d)",
        _TAKEN,
        weight=LIKELY,
        source=_ERRNO,
    ),
    _net(
        r"\bport\b.{0,40}\balready (?:in use|used|occupied|bound|allocated)(?!.*\b(?:trying|try|using) (?:port )?\d)",
        _TAKEN,
        source=_ERRNO,
        unless=SERVICES,
    ),
    _net(
        r"Cannot assign requested address",
        "net-ipv4-ipv6-mixed net-bind-failed",
        weight=SYMPTOM,
        source=_ERRNO,
        near=r"Errno -9\]|no AF_INET6? address|Address family",
        unless=_OTHER_SOFTWARE,
    ),
    _net(
        r"Cannot assign requested address",
        "env-master-addr-not-rank0-host net-bind-failed",
        weight=SYMPTOM,
        source=_ERRNO,
        unless=_OTHER_SOFTWARE,
    ),
    _net(  # torch's store is not in Python: this is a connection of the script's own
        r"ConnectionRefusedError",
        about="application",
        weight=SYMPTOM,
        source="https://docs.python.org/3/library/socket.html",
        trace=_OWN_CODE,
        unless=_OTHER_SOFTWARE,
        says="A connection of the script's own was refused: the server that it needs does not run, or its address is wrong.",
    ),
    _net(
        r"ConnectionRefusedError",
        "net-master-refused net-master-unreachable",
        weight=SYMPTOM,
        source=_ERRNO,
        unless=_OTHER_SOFTWARE,
    ),
    _net(
        r"No route to host",
        "net-master-unreachable net-firewall-ephemeral",
        weight=SYMPTOM,
        source=_ERRNO,
        unless=_OTHER_SOFTWARE,
    ),
    _net(
        r"Destination (?:Host|Net|Port) Unreachable",
        "net-master-unreachable net-subnet-mismatch",
        weight=SYMPTOM,
        source=_PING,
    ),
    _net(r" 100% packet loss", "net-master-unreachable net-firewall-ephemeral", weight=SYMPTOM, source=_PING),
    _net(
        r"Network is unreachable",
        "net-master-unreachable net-ipv4-ipv6-mixed",
        weight=SYMPTOM,
        source=_ERRNO,
        unless=_OTHER_SOFTWARE,
    ),
    _net(
        r"Connection timed out",
        "net-master-unreachable net-firewall-ephemeral",
        weight=SYMPTOM,
        source=_ERRNO,
        unless=_OTHER_SOFTWARE,
    ),
    _net(
        r"connection refused",
        "net-master-refused net-master-unreachable",
        weight=SYMPTOM,
        source=_ERRNO,
        unless=rf"{_OTHER_SOFTWARE}|Gloo|call to connect|connect \[",
    ),
    _net(
        r"Connection reset by peer",
        "k8s-istio-sidecar",
        weight=LIKELY,
        source="https://istio.io/latest/docs/ops/common-problems/network-issues/",
        near=r"istio|envoy",
    ),
    # What the survivors see.
    _net(
        r"Connection closed by peer",
        about="application",
        weight=CONSEQUENCE,
        source=_PAIR,
        says="A rank lost its connection to another rank, which ended first. The cause is in the log of the other rank.",
    ),
    _net(
        r"Connection reset by peer",
        about="application",
        weight=CONSEQUENCE,
        source=_PAIR,
        says="A rank lost its connection to another rank, which ended first. The cause is in the log of the other rank.",
    ),
    _net(
        r"ConnectionRefusedError",
        about="application",
        weight=CONSEQUENCE,
        source="https://github.com/python/cpython/blob/main/Lib/multiprocessing/connection.py",
        near=_WORKERS,
        says="A data loader's worker, or its rank, had ended. The cause is in the lines before.",
    ),
    _net(
        r"ConnectionResetError",
        about="application",
        weight=CONSEQUENCE,
        source="https://github.com/python/cpython/blob/main/Lib/multiprocessing/connection.py",
        near=_WORKERS,
        says="A data loader's worker, or its rank, had ended. The cause is in the lines before.",
    ),
    _net(
        r"^(?!.*(?:NCCL WARN|Call to (?:recv|send) )).*Broken pipe",
        about="application",
        weight=CONSEQUENCE,
        source=_ERRNO,
        says="A rank wrote to another process that had ended. The cause is in the log of that process.",
    ),
)
