"""vllm serve and sglang: inference engines that start a rank for each place of their mesh.

Sources: vLLM 0.33 (engine/arg_utils.py create_engine_config, config/parallel.py, utils/argparse_utils.py,
docs/serving/data_parallel_deployment.md); SGLang 0.5.23 (srt/arg_groups/fields/parallel.py and validation_hook.py,
srt/server_args.py, srt/entrypoints/engine.py _calculate_rank_ranges, srt/utils/server_args_config_parser.py).

vLLM numbers its ranks DP x PP x PCP x TP. With --nnodes they are divided equally, and a replica may span nodes.
Without it, every node has --data-parallel-size-local replicas, or this command is the one of --data-parallel-rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from msgspec.structs import replace

from distcheck.facts.launch_command import Stated
from distcheck.selection.launch_commands import engine_needs
from distcheck.selection.launch_commands.engine_needs import port, size
from distcheck.selection.launch_commands.stated import ReadFile, RefusedError, UnreadableError, Untold, number
from distcheck.selection.launch_commands.torch import split_endpoint
from distcheck.selection.launch_commands.words import spelled, values, with_file

_VLLM = spelled("""
    --tensor-parallel-size,-tp --pipeline-parallel-size,-pp --prefill-context-parallel-size,-pcp
    --data-parallel-size,-dp --data-parallel-size-local,-dpl --data-parallel-start-rank,-dpr
    --data-parallel-rank,-dpn --data-parallel-address,-dpa --data-parallel-rpc-port,-dpp
    --data-parallel-backend,-dpb --distributed-executor-backend --nnodes,-n --node-rank,-r --master-addr
    --master-port --headless --host --port --model
""")
_SGLANG = spelled("""
    --tp-size,--tensor-parallel-size --pp-size,--pipeline-parallel-size --dp-size,--data-parallel-size
    --enable-dp-attention --dist-init-addr,--nccl-init-addr --nnodes --node-rank --use-ray --model-type --num-gpus
    --attn-dp-size,--attention-data-parallel-size --model-path,--model --host --port --disaggregation-mode
    --disaggregation-bootstrap-port --moe-a2a-backend
""")
_VLLM_FLAGS, _FLAGS = frozenset({"headless"}), frozenset({"enable-dp-attention", "use-ray"})
_PCP, _LOCAL = "prefill-context-parallel-size", "data-parallel-size-local"
_BY_HAND = "--rank, --world-size and --nproc"


def vllm(words: tuple[str, ...], environ: Mapping[str, str], read: ReadFile) -> Stated | Untold | None:
    """Return the ranks that vllm serve or python -m vllm.entrypoints.openai.api_server starts on this node."""
    said, model = with_file(words, read, first=True), "".join(words[:1])
    given = values(said, _VLLM, _VLLM_FLAGS)
    found = _vllm(given, environ, "vllm")
    if not isinstance(found, Stated):
        return found
    given |= {"model": model} if model[:1] not in {"", "-"} else {}
    nixl = any("Nixl" in word for word in said)  # in the JSON of --kv-transfer-config, or behind a part of its name
    return replace(found, engine=engine_needs.vllm(found, given, environ, nixl=nixl))


def _vllm(given: Mapping[str, str], environ: Mapping[str, str], by: str) -> Stated | Untold | None:
    backend = given.get("distributed-executor-backend", "")
    if "ray" in {backend, given.get("data-parallel-backend")}:
        return Untold(by, "Ray places its ranks", "--hosts and --nproc")
    if backend == "external_launcher":
        return None  # each process is one rank
    pp, pcp, tp = (size(given, name) for name in ("pipeline-parallel-size", _PCP, "tensor-parallel-size"))
    dp, engine = size(given, "data-parallel-size"), pp * pcp * tp
    if dp == 1 and environ.get("VLLM_DP_SIZE", "1") != "1":
        return Untold(by, "VLLM_DP_SIZE makes it one of several replicas", _BY_HAND)
    here = Stated(by, str(dp * engine), mesh=_mesh(dp=dp, pp=pp, cp=pcp, tp=tp))
    addr = given.get("master-addr", "127.0.0.1")
    if size(given, "nnodes") > 1:
        if "data-parallel-rank" in given and dp > size(given, "nnodes"):
            return Untold(by, "several such commands share a node", _BY_HAND)
        return _divided(here, given, dp * engine, addr, port("--master-port", given))
    local, start = number(f"--{_LOCAL}", given.get(_LOCAL, str(dp))), 0
    addr, by_rank = given.get("data-parallel-address", addr), "data-parallel-rank" in given
    if by_rank and dp > 1 and addr in {"127.0.0.1", "localhost"}:
        return Untold(by, "its replicas are commands of their own on this node", _BY_HAND)
    if by_rank:
        local, start = 1, number("--data-parallel-rank", given["data-parallel-rank"])
    elif _LOCAL in given:
        start = number("--data-parallel-start-rank", given.get("data-parallel-start-rank", "0"))
    if not local:
        return Untold(by, "it starts no ranks on this node")
    if start >= dp or local > dp:
        raise UnreadableError(f"replicas {start} to {start + local - 1} are not all of its {dp}")
    if dp % local or start % local:
        return Untold(by, "its nodes have different numbers of ranks", "--hostfile")
    if local == dp:
        return here
    return replace(
        here,
        by=f"{by} {'-dpn' if by_rank else '-dpl'}",
        nproc=str(local * engine),
        nodes=dp // local,
        node_rank=start // local,
        master_addr=addr,
        master_port=port("--data-parallel-rpc-port", given),
    )


def sglang(words: tuple[str, ...], environ: Mapping[str, str], read: ReadFile) -> Stated | Untold:
    """Return the ranks that sglang serve or python -m sglang.launch_server starts on this node."""
    given = values(with_file(words, read, first=True), _SGLANG, _FLAGS)
    found = _sglang(given, "sglang")
    return replace(found, engine=engine_needs.sglang(found, given, environ)) if isinstance(found, Stated) else found


def _sglang(given: Mapping[str, str], by: str) -> Stated | Untold:
    if "use-ray" in given:
        return Untold(by, "Ray places its ranks", "--hosts and --nproc")
    if "num-gpus" in given or given.get("model-type", "auto") not in {"auto", "llm"}:
        return Untold(by, "its model is no language model", "--nproc")
    pp, tp, dp = (size(given, name) for name in ("pp-size", "tp-size", "dp-size"))
    if "enable-dp-attention" in given:
        dp = 1  # its groups are within tp
    here = Stated(by, str(dp * pp * tp), mesh=_mesh(dp=dp, pp=pp, tp=tp))
    nodes = size(given, "nnodes")
    if nodes == 1:
        return here
    if dp > 1:
        raise RefusedError(f"--dp-size {dp} is refused with --nnodes {nodes}, except for attention only")
    host, at = split_endpoint(given.get("dist-init-addr", ""), 0)
    if not at:
        return Untold(by, "--dist-init-addr has no address and port", "--master-addr and --master-port")
    return _divided(here, given, pp * tp, host, at)


def _mesh(**sizes: int) -> str:
    """Return the sizes, outermost first, as --mesh takes them; '' for one rank."""
    return ",".join(f"{name}={size}" for name, size in sizes.items() if size > 1) if prod(sizes.values()) > 1 else ""


def _divided(here: Stated, given: Mapping[str, str], ranks: int, addr: str, at: int) -> Stated:
    """Return its ranks divided by its nodes; raises RefusedError if they are not equally many."""
    nodes, rank = size(given, "nnodes"), number("--node-rank", given.get("node-rank", "0"))
    if ranks % nodes:
        fits = next(number for number in range(min(nodes, ranks), 0, -1) if ranks % number == 0)
        raise RefusedError(f"--nnodes {nodes}, by which its {ranks} ranks cannot be divided", f"--nnodes {fits}")
    each = str(ranks // nodes)
    return replace(here, nproc=each, nodes=nodes, node_rank=rank, master_addr=addr, master_port=at)
