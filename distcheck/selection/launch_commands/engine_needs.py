"""What vLLM and SGLang need on their node: ports, an address of their own, their model.

Read in vLLM 0.33: entrypoints/cli/serve.py; engine/arg_utils.py; distributed/parallel_state.py
(init_distributed_environment: --master-port with several nodes); v1/engine/utils.py (the handshake on
--data-parallel-rpc-port, where other nodes have replicas); v1/executor/multiproc_executor.py and
distributed/device_communicators/shm_broadcast.py (a node of a replica that spans nodes listens at get_ip());
distributed/kv_transfer/kv_connector/v1/nixl/base_scheduler.py; utils/network_utils.py.

In SGLang 0.5.23: srt/server_args.py (PortArgs.init_new, which waits for its ports on every node);
srt/managers/data_parallel_controller.py (the handshake 13 above); srt/managers/disagg_service.py;
srt/distributed/parallel_state.py (the store of NIXL); srt/distributed/device_communicators/shm_broadcast.py;
srt/disaggregation/common/conn.py; srt/utils/network.py (get_local_ip_auto).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from distcheck.facts.engine import Engine, FixedPort
from distcheck.facts.launch_command import Stated
from distcheck.selection.launch_commands.stated import number
from distcheck.selection.launch_commands.torch import split_endpoint

USUAL_PORTS = {
    "vLLM": {
        "--port": 8000, "--master-port": 29501, "--data-parallel-rpc-port": 29550,
        "VLLM_NIXL_SIDE_CHANNEL_PORT": 5600,
    },
    "SGLang": {
        "--port": 30000, "--dist-init-addr": 20000, "--disaggregation-bootstrap-port": 8998,
        "SGLANG_TCP_STORE_PORT": 29600,
    },
}  # fmt: skip
"""Without an option or variable; --dist-init-addr has none, and 20000 is that of the examples."""
_LOCAL_PATHS = ("/", "./", "../")
"""How a word begins that no name of Hugging Face or of a store can be."""
_APART, _HANDSHAKE, _LAST = 233, 13, 65535
"""SGLang's distances between ports: without --dist-init-addr from --port, and of the handshake."""
_ATTENTION_PORTS = 6


def vllm(stated: Stated, given: Mapping[str, str], environ: Mapping[str, str], *, nixl: bool) -> Engine:
    """Return what a vllm serve with these options needs on the node that it stated."""
    rank, each = stated.node_rank or 0, int(stated.nproc)
    replicas = size(given, "data-parallel-size")
    whole = each * stated.nodes // replicas
    spans, (first, within) = each < whole, divmod(rank * each, whole)

    def ports() -> Iterator[FixedPort]:
        if "headless" not in given:
            yield FixedPort(port("--port", given), "--port", _host(given.get("host", "")))
        if not rank and stated.nodes > 1:
            by_nodes = stated.by == "vllm"
            name = "--master-port" if by_nodes else "--data-parallel-rpc-port"
            yield FixedPort(stated.master_port, name, meets=True)
            if by_nodes and replicas > 1:
                yield FixedPort(port("--data-parallel-rpc-port", given), "--data-parallel-rpc-port")
        if nixl and not within:
            start = port(name := "VLLM_NIXL_SIDE_CHANNEL_PORT", environ)
            for replica in range(first, first + max(1, each // whole)):
                yield FixedPort(start + replica, name, _host(channel), replica)

    channel = environ.get("VLLM_NIXL_SIDE_CHANNEL_HOST", "localhost")
    return Engine(
        "vLLM",
        ports=tuple(ports()),
        port_variable=environ.get("VLLM_PORT"),
        announces=spans,
        address=environ.get("VLLM_HOST_IP", "") if spans else "",
        address_by="VLLM_HOST_IP" if spans and environ.get("VLLM_HOST_IP") else "",
        side_channel=channel if nixl else None,
        model=_local(given.get("model", "")),
    )


def sglang(stated: Stated, given: Mapping[str, str], environ: Mapping[str, str]) -> Engine:
    """Return what a sglang.launch_server with these options needs on the node that it stated."""
    rank, each, tp = stated.node_rank or 0, int(stated.nproc), size(given, "tp-size")
    several, serves = stated.nodes > 1, port("--port", given, "SGLang")
    host, mode = _host(given.get("host", "127.0.0.1")), given.get("disaggregation-mode", "null")
    meets = split_endpoint(given.get("dist-init-addr", ""), 0)[1]

    def ports() -> Iterator[FixedPort]:
        yield FixedPort(serves, "--port", host)
        if meets and not rank:
            yield FixedPort(meets, "--dist-init-addr", meets=several)
        if size(given, "attn-dp-size") > 1 or ("enable-dp-attention" in given and size(given, "dp-size") > 1):
            yield from attention()
        if mode == "prefill" and not rank:
            yield FixedPort(port(name := "--disaggregation-bootstrap-port", given, "SGLang"), name, host)
        if given.get("moe-a2a-backend") == "nixl" and not rank:
            yield FixedPort(port(name := "SGLANG_TCP_STORE_PORT", environ, "SGLang"), name)

    def attention() -> Iterator[FixedPort]:
        name, base = ("--dist-init-addr", meets) if meets else ("--port", serves)
        start = meets or serves + (_APART if serves + _APART <= _LAST else -_APART)
        lowest = start + 1 if start + _ATTENTION_PORTS <= _LAST else start - _ATTENTION_PORTS - 1
        numbers = [*range(lowest, lowest + _ATTENTION_PORTS - (not several))]
        numbers += [start] if rank or not meets else []  # all nodes look whether it is free
        numbers += [] if rank else [base + _HANDSHAKE]
        for each in numbers:
            yield FixedPort(each, name, distance=each - base)

    announces = mode in {"prefill", "decode"} or (each < tp and rank * each % tp == 0)
    name = next((name for name in ("SGLANG_HOST_IP", "HOST_IP") if environ.get(name)), "") if announces else ""
    by_adapter = announces and not name and environ.get("SGLANG_LOCAL_IP_NIC")
    return Engine(
        "SGLang",
        ports=tuple(ports()),
        port_variable=environ.get("SGLANG_PORT"),
        announces=announces,
        address=environ.get(name, ""),
        address_by=name or (f"SGLANG_LOCAL_IP_NIC={by_adapter}" if by_adapter else ""),
        model=_local(given.get("model-path", "")),
    )


def size(given: Mapping[str, str], name: str) -> int:
    """Return the value of an option that counts; 1 if it is not given."""
    return number(f"--{name}", given.get(name, "1"), 1)


def port(name: str, given: Mapping[str, str], engine: str = "vLLM") -> int:
    """Return the port of an option or a variable, the usual one if it is not given."""
    return number(name, given.get(name.removeprefix("--")) or str(USUAL_PORTS[engine][name]))


def _host(text: str) -> str:
    """Return the address at which a server of this host listens; '' at all."""
    return {"0.0.0.0": "", "::": "", "localhost": "127.0.0.1"}.get(text, text)


def _local(model: str) -> str:
    return model if model.startswith(_LOCAL_PATHS) else ""
