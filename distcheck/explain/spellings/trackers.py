"""Software beside torch's store that connects its own processes: Rabit, LightGBM, Dask, TensorPipe, gRPC and ZeroMQ."""

from __future__ import annotations

from functools import partial

from distcheck.explain.spelling import CONSEQUENCE, HINT, LIKELY, SYMPTOM, told

_RABIT = "https://github.com/dmlc/rabit/blob/master/src/allreduce_base.cc"
_TRACKER = "https://github.com/dmlc/xgboost/blob/master/python-package/xgboost/tracker.py"
_LIGHTGBM = "https://github.com/microsoft/LightGBM/blob/master/src/network/linkers_socket.cpp"
_DASK = "https://github.com/dask/distributed/blob/main/distributed/comm/core.py"
_NANNY = "https://github.com/dask/distributed/blob/main/distributed/nanny.py"
_LISTENER = "https://github.com/pytorch/tensorpipe/blob/main/tensorpipe/transport/uv/listener_impl.cc"
_AGENT = "https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/rpc/tensorpipe_agent.cpp"
_CHTTP2 = "https://github.com/grpc/grpc/blob/master/src/core/ext/transport/chttp2/transport/chttp2_transport.cc"
_CONNECT = "https://github.com/grpc/grpc/blob/master/src/core/handshaker/http_connect/http_connect_handshaker.cc"
_ZMQ = "https://libzmq.readthedocs.io/en/latest/zmq_bind.html"
_REDIS = "https://github.com/redis/redis-py/blob/master/redis/connection.py"
_ASYNCIO = "https://github.com/python/cpython/blob/main/Lib/asyncio/base_events.py"
_GRADIO = "https://github.com/gradio-app/gradio/blob/main/gradio/http_server.py"
_WERKZEUG = "https://github.com/pallets/werkzeug/blob/main/src/werkzeug/serving.py"
_net = partial(told, about="network")
_start = partial(told, about="start-up")
_OWN_NAME = "host-own-name-unresolvable net-hostname-loopback"
_LINK_LOCAL = "net-ipv6-link-local host-own-name-unresolvable"
_NO_TRACKER = (
    "A worker cannot reach the tracker, which coordinates all workers: its address is wrong, or its port closed."
)
_FAILED_TRACKER = r"Traceback|start_rabit_tracker|gaierror"
_LOST_MACHINE = "A machine lost its connection to another one, which ended first. The cause is in the log of the other."
_NO_DASK = (
    "A process of Dask cannot reach its scheduler or a worker: it has ended, or its address or port cannot be reached."
)
_NO_REDIS = "A Redis server cannot be reached, as that of Ray's head node: check its address, port and firewall."
_TAKEN = (
    "A port of the program's own ZeroMQ sockets is taken: by a process of an earlier run, or by another one of this run."
    " End what is left of earlier runs, and start it again or with other ports."
)
_WEB_PORT = "The port of the program's web server is taken. Give it another one, or end the process that has it."
_NOT_OWN = "The program's ZeroMQ socket is to listen at an address that this machine does not have."

SPELLINGS = (
    # Rabit: XGBoost's tracker tells every worker where the others are.
    _net(
        r"gethostbyname\(socket\.getfqdn\(\)\) failed",
        _OWN_NAME,
        weight=SYMPTOM,
        source=_TRACKER,
        near=_FAILED_TRACKER,
    ),
    _net(  # the name without its domain may resolve
        r"gethostbyname\(socket\.getfqdn\(\)\) failed",
        _OWN_NAME,
        weight=HINT,
        source=_TRACKER,
        unless=_FAILED_TRACKER,
    ),
    _net(
        r"connect to \(failed\): \[(?:localhost|127\.)",
        weight=LIKELY,
        source=_RABIT,
        says="Rabit was given the loopback address for its tracker. Give it the address of the tracker's host.",
    ),
    _net(r"connect to \(failed\): \[(?!localhost|127\.)", weight=CONSEQUENCE, source=_RABIT, says=_NO_TRACKER),
    _net(r"Failed to connect to (?:the |rabit )tracker", weight=LIKELY, source=_RABIT, says=_NO_TRACKER),
    _net(r"ReConnectLinks? failure", weight=CONSEQUENCE, source=_RABIT, says=_NO_TRACKER),
    # LightGBM.
    _start(
        r"Machine list file doesn't contain the local machine",
        source=_LIGHTGBM,
        says="No line of LightGBM's list of machines has an address of this machine and its local_listen_port.",
    ),
    _start(
        r"Please check machine_list_filename or machines parameter",
        source=_LIGHTGBM,
        says="LightGBM's list of machines has no line with an address and a port.",
    ),
    _net(r"Binding port \d+ failed", "net-port-in-use", weight=LIKELY, source=_LIGHTGBM, near="LightGBM"),
    _net(
        r"Connecting to rank \d+ failed, waiting for \d+ milliseconds",
        weight=SYMPTOM,
        source=_LIGHTGBM,
        says="A machine of LightGBM does not listen yet, or its port is closed: the same ports must be open on all.",
    ),
    _net(
        r"Socket (?:recv|send) error, ",
        weight=CONSEQUENCE,
        source=_LIGHTGBM,
        near="LightGBM",
        says=_LOST_MACHINE,
    ),
    # Dask.
    _net(r"Timed out trying to connect to ['\"]?(?:tcp|tls|ucx|ws)://", weight=SYMPTOM, source=_DASK, says=_NO_DASK),
    _net(r"Timed out during handshake while connecting to", weight=SYMPTOM, source=_DASK, says=_NO_DASK),
    _net(r"CommClosedError", about="application", weight=CONSEQUENCE, source=_DASK, says=_LOST_MACHINE),
    _net(
        r"exceeded \d+% memory budget",
        "host-memory-low",
        about="process killed",
        weight=LIKELY,
        source=_NANNY,
    ),
    # TensorPipe: the machine's own name gives the address at which it listens.
    _net(r"uv/(?:listener|uv)\S+ \"rv < 0: invalid argument", _LINK_LOCAL, source=_LISTENER),
    _net(
        r"uv/(?:listener|uv)\S+ \"rv < 0: address not available",
        "host-own-name-unresolvable net-hostname-wrong-nic",
        source=_LISTENER,
    ),
    _net(  # it then listens at 127.0.0.1, which is enough on one machine
        r"Failed to look up the IP address for interface",
        weight=HINT,
        source=_AGENT,
        says="TP_SOCKET_IFNAME names an interface that does not exist or has no address, so TensorPipe listens on loopback.",
    ),
    # gRPC takes http_proxy for addresses within the cluster too.
    _net(r"HTTP proxy returned response code", "env-proxy-vars", source=_CONNECT),
    _net(r"Trying to connect an http1\.x server", "env-proxy-vars", weight=LIKELY, source=_CHTTP2),
    # ZeroMQ, between the processes of vLLM, SGLang, verl and others.
    _start(r"zmq\.error\.ZMQError: Address already in use", source=_ZMQ, says=_TAKEN),
    _start(r"ZMQBindError", source=_ZMQ, says=_TAKEN),
    _start(r"zmq\.error\.ZMQError: (?:Cannot assign|Can't assign) requested address", source=_ZMQ, says=_NOT_OWN),
    _start(r"zmq\.error\.ZMQError: No such device", source=_ZMQ, says=_NOT_OWN),
    # A web server's port, which no rank uses.
    _start(r"error while attempting to bind on address", source=_ASYNCIO, says=_WEB_PORT),
    _start(r"Cannot find empty port in range", source=_GRADIO, says=_WEB_PORT),
    _start(r"Port \d+ is in use by another program", source=_WERKZEUG, says=_WEB_PORT),
    # Redis.
    _net(r"redis\.exceptions\.(?:Connection|Timeout)Error", weight=SYMPTOM, source=_REDIS, says=_NO_REDIS),
    _net(r"Error \d+ connecting to \S+:\d+\. ", weight=SYMPTOM, source=_REDIS, near="redis", says=_NO_REDIS),
    _net(
        r"TimeoutError: \[Errno (?:60|110)\]",
        weight=SYMPTOM,
        source=_REDIS,
        trace=r"redis/connection",
        says=_NO_REDIS,
    ),
)
