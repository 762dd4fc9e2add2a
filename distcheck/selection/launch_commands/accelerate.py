"""accelerate launch.

Source: accelerate 1.15, commands/launch.py (_validate_launch_command, launch_command), utils/launch.py (prepare_…) and
commands/config/config_args.py. What decides, in this order: options; the configuration file (--config_file, else
accelerate's default one unless --cpu is given), where same_network and rdzv_backend have no effect; defaults. A kind of
training (--multi_gpu, --use_fsdp, …) is started by torch.distributed.run, DeepSpeed on several machines by deepspeed, a
job without a kind as one process. Without a file more than one rank and more than one GPU are --multi_gpu; on a node
with fewer GPUs several machines then get one process each, which has no rank. A port that is taken on a single machine
is replaced by a free one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from distcheck.facts.launch_command import NO_RANK, Stated
from distcheck.selection.command import split
from distcheck.selection.launch_commands import deepspeed, mpi, torch
from distcheck.selection.launch_commands.stated import ReadFile, UnreadableError, Untold, number
from distcheck.selection.launch_commands.words import text

_BY = "accelerate launch"
_ALL = "--rank, --world-size and --nproc"
_KINDS = ("multi-gpu", "tpu", "use-deepspeed", "use-fsdp", "use-megatron-lm")
_KIND_OF_TYPE = {"DEEPSPEED": "use-deepspeed", "FSDP": "use-fsdp", "MEGATRON_LM": "use-megatron-lm", "XLA": "tpu"}
_KEY = re.compile(r"\s*([A-Za-z_]\w*)\s*:(?:\s+(.*))?")
_NOTHING = frozenset({"", "~", "null", "Null", "NULL", "{}"})
_WITHOUT_EFFECT = frozenset({"same_network", "rdzv_backend"})
"""Keys that never reach the options, whose defaults are not None."""
_DIMENSIONS = ("dp_replicate", "dp_shard", "cp", "sp", "tp")
"""Outermost first (accelerate/parallelism_config.py, _get_mesh)."""
_DEEPSPEED = {"exclude": "exclusion_filter", "include": "inclusion_filter"}


def launch(words: tuple[str, ...], environ: Mapping[str, str], read: ReadFile) -> Stated | Untold | None:
    """Return the ranks that accelerate-launch starts on this machine, or by DeepSpeed or MPI on all."""
    options = split(words).options
    path, config = _config(options, environ, read)
    given = {name.replace("-", "_"): value for name, value in options.items()}
    kind = next((kind for kind in _KINDS if kind in options), "" if path else None)
    of_type = config.get("distributed_type", "NO")
    if path:
        config = {"machine_rank": "0", **({"num_processes": "1"} if of_type == "NO" else {}), **config}
    if path and not kind:
        kind = _KIND_OF_TYPE.get(of_type, "multi-gpu" if re.match("MULTI_(?!CPU)", of_type) else "")
    if path and not kind and config.get("compute_environment") == "AMAZON_SAGEMAKER":
        return Untold(_BY, "Amazon SageMaker starts its ranks")
    if kind == "tpu":
        return Untold(_BY, "it starts TPU processes")
    found = _started("" if "cpu" in options else kind, config | given, environ, read, default=not path)
    if not isinstance(found, Stated):
        return found
    parallel = "use-parallelism-config" in options or (path and not set(_KINDS) & options.keys())
    mesh = _mesh(config | given, parallel=bool(parallel), megatron=kind == "use-megatron-lm")
    return msgspec.structs.replace(found, by=_BY, mesh=mesh, file=path or found.file)


def _started(
    kind: str | None, value: Mapping[str, str], environ: Mapping[str, str], read: ReadFile, *, default: bool
) -> Stated | Untold | None:
    """Return the ranks of a kind of training, None: the number of GPUs decides it; '': one process."""
    machines = number("--num_machines", value.get("num_machines", "1"), 1)
    total = number("--num_processes", value["num_processes"], 1) if "num_processes" in value else 0
    if not total and not default:
        raise UnreadableError("configuration file has no num_processes")
    if kind == "":
        if "mpirun_hostfile" in value:
            words = ("--hostfile", value["mpirun_hostfile"], "-npernode", str(total // machines or 1))
            return mpi.mpirun((*words, *(("-n", str(total)) if total else ()), "python"), environ, read, _BY)
        one = Stated(_BY)
        return one if machines == 1 else Untold(_BY, "its script finds its rank by itself", _ALL)
    if machines == 1:
        options = {"nproc-per-node": str(total or "gpu")} | _rendezvous(value)
        found = torch.of_options(options, environ, _BY)
        if total > 1 and kind is None and isinstance(found, Stated):  # one process with less than two GPUs
            return msgspec.structs.replace(found, few_gpus=("1", "1"))
        return found
    if not total:
        raise UnreadableError("--num_processes is not given for several machines")
    missing = next((name for name in ("main_process_ip", "machine_rank") if name not in value), "")
    if kind == "use-deepspeed" and value.get("deepspeed_multinode_launcher", "pdsh") != "standard":
        return deepspeed.deepspeed(_for_deepspeed(value, total // machines), environ, read, _BY)
    if missing:
        raise UnreadableError(f"--{missing} is not given for several machines")
    ip, port = value["main_process_ip"], value.get("main_process_port", "29500")
    number("--main_process_port", port, 1)
    meet = {"master-addr": ip, "master-port": port} if value.get("same_network") == "" else {}
    each = {"nnodes": str(machines), "node-rank": value["machine_rank"], "nproc-per-node": str(total // machines)}
    found = torch.of_options(each | _rendezvous(value) | (meet or {"rdzv-endpoint": f"{ip}:{port}"}), environ, _BY)
    if kind is None and isinstance(found, Stated):
        return msgspec.structs.replace(found, few_gpus=(NO_RANK, NO_RANK))
    return found


def _rendezvous(value: Mapping[str, str]) -> dict[str, str]:
    return {"rdzv-backend": value.get("rdzv_backend", "static"), "rdzv-conf": value.get("rdzv_conf", "")}


def _for_deepspeed(value: Mapping[str, str], each: int) -> tuple[str, ...]:
    launcher = value.get("deepspeed_multinode_launcher", "pdsh")
    words = ["--hostfile", value.get("deepspeed_hostfile", "None")]
    words += ["--node_rank", value.get("machine_rank", ""), "--no_ssh"] if launcher == "nossh" else []
    words += ["--launcher", launcher] if launcher != "nossh" else []
    name = next((name for name in _DEEPSPEED if f"deepspeed_{_DEEPSPEED[name]}" in value), "")
    words += [f"--{name}", value[f"deepspeed_{_DEEPSPEED[name]}"]] if name else ["--num_gpus", str(each)]
    words += ["--master_addr", value["main_process_ip"]] if value.get("main_process_ip") else []
    return (*words, "--master_port", value.get("main_process_port", "29500"), "x.py")


def _mesh(value: Mapping[str, str], *, parallel: bool, megatron: bool) -> str:
    """Return the sizes of the parallelism configuration, or Megatron's."""
    sizes = {name: value.get(f"parallelism_config_{name}_size", "1") for name in _DIMENSIONS if parallel}
    if megatron:
        pp, tp = (value.get(f"megatron_lm_{name}_degree", "1") for name in ("pp", "tp"))
        sizes = {"pp": pp, "dp": "-1", "tp": tp} if (pp, tp) != ("1", "1") else {}
    return ",".join(f"{name}={size}" for name, size in sizes.items() if size != "1")


def _config(options: Mapping[str, str], environ: Mapping[str, str], read: ReadFile) -> tuple[str, dict[str, str]]:
    """Return the path of the configuration file, '' without one, and its values by key, whatever their nesting."""
    path = options.get("config-file", "")
    if not path:
        cache = environ.get("XDG_CACHE_HOME", "~/.cache") + "/huggingface"
        path = re.sub("^~", environ.get("HOME", "~"), environ.get("HF_HOME", cache)) + "/accelerate/default_config.yaml"
        try:
            content = "" if "cpu" in options else read(path)
        except (OSError, ValueError):
            content = ""
        path = path if content else ""
    else:
        content = text(read, path, "--config_file")
    if path.endswith(".json"):
        return path, _flat(msgspec.json.decode(content))
    found: dict[str, str] = {}
    for line in content.splitlines():
        match = _KEY.fullmatch(re.sub(r"(^|\s)#.*", "", line))
        value = (match[2] or "").strip().strip("'\"") if match else ""
        if value[:1] in {"&", "*"} or (value.startswith("{") and value != "{}"):
            raise UnreadableError(f"configuration file's {line.strip()!r} is not a plain value")
        if match and value not in _NOTHING:
            found[match[1]] = value
    return path, {key: value for key, value in found.items() if key not in _WITHOUT_EFFECT}


def _flat(config: Any) -> dict[str, str]:
    found: dict[str, str] = {}
    for key, value in config.items() if isinstance(config, dict) else ():
        found |= _flat(value) if isinstance(value, dict) else {} if value is None else {key: str(value)}
    return found
