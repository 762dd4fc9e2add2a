#!/usr/bin/env python3
"""`distcheck node` for two services that speak gRPC over a Unix socket: NVRx and NVSentinel (docs/adapters.md).

    grpc_peers.py nvrx /run/nvhcd.sock     answers NVRx's launcher until it is stopped
    grpc_peers.py nvsentinel               a preflight check: checks once and sends a health event

Needs distcheck and grpcio. What is checked is in the site's policy and in DISTCHECK_GPUS and the like.
Messages: nvhcd.proto of https://github.com/NVIDIA/nvidia-resiliency-ext, health_event.proto of
https://github.com/NVIDIA/NVSentinel.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import grpc

BAD = 40
"""distcheck's exit code for a node that is confirmed bad; all others leave the node alone."""


class Result(NamedTuple):
    """What `distcheck node` found: exit code, first line, and the rules and GPUs of errors."""

    code: int
    line: str
    rules: tuple[str, ...] = ()
    uuids: tuple[str, ...] = ()


def check() -> Result:
    """Run `distcheck node`."""
    command = ["distcheck", "node", "--format", "json", "--output", "/dev/stdout"]
    try:  # it ends within ten seconds; this is for a Python that does not start
        ended = subprocess.run(command, stdout=subprocess.PIPE, timeout=30, check=False)
        report = json.loads(ended.stdout)
    except (OSError, subprocess.TimeoutExpired, ValueError) as error:
        return Result(70, f"no result of distcheck node: {error}")
    errors = [found for found in report["findings"] if found["severity"] == "error"]
    uuids = (gpu["uuid"] for found in errors for gpu in found["gpus"] if gpu["uuid"])
    return Result(report["exit_code"], report["headline"], tuple(found["rule"] for found in errors), tuple(uuids))


def varint(number: int) -> bytes:
    """Return a number as protobuf writes it (https://protobuf.dev/programming-guides/encoding/)."""
    return bytes([number]) if number < 128 else bytes([number & 127 | 128]) + varint(number >> 7)


def field(number: int, value: int | str | bytes) -> bytes:
    """Return a field of a message: a number, a text, or a message."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def nvrx(path: str) -> None:
    """Serve nvhcd.HealthCheckService on a Unix socket. NVRx leaves out a node with a fail_count."""

    def answer(_request: bytes, _context: object) -> bytes:
        result = check()
        print(result.line, flush=True)
        failed = result.rules if result.code == BAD else ()
        output = json.dumps({"fail_count": len(failed), "failed_checks": failed})
        error = result.line if failed else ""
        return field(1, int(not failed)) + field(2, result.code) + field(3, output) + field(4, error)

    server = grpc.server(ThreadPoolExecutor(1))  # one check at a time
    method = {"RunHealthCheck": grpc.unary_unary_rpc_method_handler(answer)}
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("nvhcd.HealthCheckService", method)])
    server.add_insecure_port(f"unix:{path}")
    server.start()
    Path(path).chmod(0o666)  # the launchers of all users ask it
    server.wait_for_termination()


def nvsentinel() -> int:
    """Send the platform connector the result, and return the exit code of a preflight check: 0, 1 or 2."""
    result = check()
    print(result.line)
    store_only = os.environ.get("PROCESSING_STRATEGY") == "STORE_ONLY"
    if result.code in {0, 10, BAD}:  # an unknown result is no event
        bad = result.code == BAD
        event = field(1, 1) + field(2, "distcheck") + field(3, "Node") + field(4, "DistcheckNode")
        event += field(5, int(bad)) + field(6, int(not bad)) + field(7, result.line)
        event += field(8, 5 if bad else 0)  # CONTACT_SUPPORT, NONE
        if bad:
            event += b"".join(field(9, rule) for rule in result.rules)
            event += b"".join(field(10, field(1, "GPU_UUID") + field(2, uuid)) for uuid in result.uuids)
        event += field(12, field(1, int(time.time())))
        event += field(13, os.environ["NODE_NAME"]) + field(16, 2 if store_only else 1)
        socket = os.environ["PLATFORM_CONNECTOR_SOCKET"].removeprefix("unix://")
        with grpc.insecure_channel(f"unix://{socket}") as channel:
            send = channel.unary_unary("/datamodels.PlatformConnector/HealthEventOccurredV1")
            try:
                send(field(1, 1) + field(2, event), timeout=30, wait_for_ready=True)
            except grpc.RpcError as error:
                print(f"no health event was sent: {error.details()}", file=sys.stderr)
    return 0 if store_only else {0: 0, 10: 0, 20: 1, 30: 1, BAD: 1}.get(result.code, 2)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["nvrx", path]:
            nvrx(path)
        case ["nvsentinel"]:
            sys.exit(nvsentinel())
        case _:
            sys.exit(__doc__)
