"""Ray: nodes that do not reach the head, workers that cannot import, and the gRPC beneath it."""

from __future__ import annotations

from functools import partial

from distcheck.explain.spelling import HINT, LIKELY, SYMPTOM, told

_RAY = "https://docs.ray.io/en/latest/cluster/faq.html"
_VLLM = "https://github.com/vllm-project/vllm/blob/v0.11.0/vllm/executor/ray_utils.py"
_PLACEMENT = (
    "Ray cannot place the workers: compare `ray status` with what the job asks for; GPUs may be held by another job, and"
    " VLLM_HOST_IP must be the address that Ray knows the node by."
)
_NO_HEAD = (
    "A Ray node and the head node lost each other or never met. Check the head's address, its ports and the firewall."
)
_NODE = "https://github.com/ray-project/ray/blob/master/python/ray/_private/node.py"
_HEAD = r"(?:LEADER_IP|HEAD_IP|LEADER_ADDRESS|HEAD_NODE_IP|RAY_HEAD_IP|--address|GCS at(?: address)?|Connecting to)[= :'\"]{1,3}"
"""What stands before the address of the head node."""
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
    # Placement groups: Ray has the GPUs, but not free, not on these nodes, or not under this address.
    *(
        _start(pattern, weight=LIKELY, source=_VLLM, says=_PLACEMENT)
        for pattern in (
            r"number of available \w+ in the placement group",
            r"Ray does not allocate any \w+ on the driver node",
            r"Current node has no \w+ available",
            r"driver node id .* is not included in a placement",
            r"Cannot provide a placement group of",
            r"Placement group bundle cannot have more than 1",
            r"Every node should have a unique IP address",
            r"placement group .*(?:infeasible|cannot be (?:fulfilled|scheduled|created))",
            r"(?:actor|task|request) cannot be scheduled (?:right now|because)",
            r"Total available GPUs \d+(?:\.\d+)? is less than total desired GPUs",
        )
    ),
    _start(r"Waiting for creating a placement group of specs", weight=HINT, source=_VLLM, says=_PLACEMENT),
    *(  # ray._private.services.get_node_ip_address(): the address of the route to 8.8.8.8
        _start(
            r"node timed out during startup",
            "net-hostname-wrong-nic net-subnet-mismatch",
            about="network",
            source=_NODE,
            near=near,
        )
        for near in (
            rf"Local node IP: 10\.[\s\S]*{_HEAD}(?:172\.|192\.168)",
            rf"{_HEAD}(?:172\.|192\.168)[\s\S]*Local node IP: 10\.",
            rf"Local node IP: (?:172\.|192\.168)[\s\S]*{_HEAD}10\.",
            rf"{_HEAD}10\.[\s\S]*Local node IP: (?:172\.|192\.168)",
        )
    ),
    *(
        _start(pattern, weight=LIKELY, about="network", source=_RAY, says=_NO_HEAD)
        for pattern in (
            r"node timed out during startup",
            r"The node with node id: \S+ .*has been marked dead",
            r"Failed to register worker .*to Raylet",
        )
    ),
    _start(
        r"RuntimeEnvSetupError",
        weight=LIKELY,
        source=_RAY,
        says="Ray could not set up the runtime environment on a node: its packages or files are not available there.",
    ),
    _start(r"Version mismatch: The cluster was started with", "sw-packages-differ sw-python-differs", source=_RAY),
    _start(
        r"failed to import on the worker",
        source=_RAY,
        says="A worker of Ray cannot import a module: its node or environment lacks it. The lines below name it.",
    ),
)
