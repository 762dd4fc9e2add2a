"""Servers and clients beside the job: an inference server's own port, experiment trackers, HTTP.

Their ports and connections are not those of the ranks, so this table comes before those of the sockets.
"""

from __future__ import annotations

from functools import partial

from distcheck.explain.spelling import CAUSE, LIKELY, told

_UVICORN = "https://github.com/python/cpython/blob/main/Lib/asyncio/base_events.py"
_GRADIO = "https://github.com/gradio-app/gradio/blob/main/gradio/http_server.py"
_ZMQ = "https://zguide.zeromq.org/"
_RAY = "https://docs.ray.io/en/latest/ray-core/configure.html#ports-configurations"
_HTTPX = "https://www.python-httpx.org/exceptions/"
_AIOHTTP = "https://docs.aiohttp.org/en/stable/client_reference.html#client-exceptions"
_WANDB = "https://docs.wandb.ai/"
_start = partial(told, about="start-up")
_app = partial(told, about="application", weight=LIKELY)
_PORT = "A server that the program starts beside the ranks wants a port that is taken: give it another one (--port)."
_CLIENT = "The program cannot reach a server of its own, such as an API or a tracker: it is not up, or has ended."

SPELLINGS = (
    *(
        _start(pattern, weight=CAUSE, source=source, says=_PORT)
        for pattern, source in (
            (r"error while attempting to bind on address", _UVICORN),
            (r"Cannot find empty port in range", _GRADIO),
            (r"ZMQError: Address already in use", _ZMQ),
            (r"zmq\.error\.\w+: Address already in use", _ZMQ),
            (r"Ray component \S+ is trying to use a port number", _RAY),
            (r"Bind for \S+:\d+ failed: port is already allocated", "https://docs.docker.com/engine/network/"),
            (r"Bind to port \d+ on \S+ failed: Address already in use", "https://man.openbsd.org/sshd"),
        )
    ),
    *(
        _app(pattern, source=source, says=_CLIENT)
        for pattern, source in (
            (r"\bhttpx\.(?:\w+Error|ConnectTimeout|ReadTimeout)", _HTTPX),
            (r"\bhttpcore\.(?:\w+Error|ConnectTimeout|ReadTimeout)", _HTTPX),
            (r"aiohttp\.client_exceptions\.\w+", _AIOHTTP),
            (r"openai\.(?:API\w+|RateLimit|Authentication)\w*Error", "https://github.com/openai/openai-python"),
            (r"wandb: (?:Network error|ERROR )", _WANDB),
            (r"grpc\._channel\._InactiveRpcError", "https://grpc.io/docs/guides/error/"),
        )
    ),
)
