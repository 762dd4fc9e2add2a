"""llamafactory-cli train, tune run and axolotl train, which call torchrun or accelerate.

Sources: LLaMA-Factory 0.9.5 (launcher.py, v1/launcher.py, extras/misc.py), torchtune 0.6.1 (_cli/run.py), axolotl 0.19
(cli/main.py train, cli/utils/train.py, utils/distributed.py _get_parallel_config_kwargs) and for the order of its mesh
accelerate (parallelism_config.py).
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from distcheck.facts.launch_command import Stated
from distcheck.selection.command import split
from distcheck.selection.launch_commands import stated
from distcheck.selection.launch_commands.stated import ReadFile, RefusedError, UnreadableError, Untold
from distcheck.selection.launch_commands.torch import of_options, torchrun
from distcheck.selection.launch_commands.words import ending, keys, values

_SIZES = ("dp_replicate_size", "dp_shard_size", "context_parallel_size", "tensor_parallel_size")
"""Axolotl's keys, outermost first."""
_PASSED_ON = (
    "num-processes", "num-machines", "machine-rank", "main-process-ip", "main-process-port", "nproc-per-node", "nnodes",
    "node-rank", "master-addr", "master-port", "rdzv-endpoint", "rdzv-backend", "rdzv-id",
)  # fmt: skip
"""What it does not know itself goes to the launcher too: some of it, where it stands before --."""
_YAML = (".yml", ".yaml")
_OWN = ("launcher", "cloud", "use-ray", *(key.replace("_", "-") for key in _SIZES))
_AXOLOTL = {f"--{name}": name for name in (*_OWN, *_PASSED_ON)}


def llamafactory(words: tuple[str, ...], environ: Mapping[str, str], _: ReadFile) -> Stated | Untold | None:
    """Return the ranks that llamafactory-cli starts on this node: all that it passes to torchrun is in variables."""

    def on(*names: str) -> bool:
        return any(environ.get(name, "").lower() in {"true", "y", "1"} for name in names)

    by = f"llamafactory-cli {''.join(words[:1])}"
    if words[:1] != ("train",) and not (on("USE_V1") and words[:1] in {("sft",), ("dpo",), ("rm",)}):
        return None
    if not on("FORCE_TORCHRUN", "USE_MCA") and on("USE_RAY"):
        return Untold(by, "Ray places its ranks", "--hosts and --nproc")
    if not on("FORCE_TORCHRUN", "USE_MCA") and on("USE_KT"):
        return Stated(by, environment=True)
    nodes, port = environ.get("NNODES", "1"), environ.get("MASTER_PORT")
    options = {"nproc-per-node": environ.get("NPROC_PER_NODE", "gpu"), "nnodes": nodes}
    addr = environ.get("MASTER_ADDR", "127.0.0.1")
    if "RDZV_ID" in environ:
        if {"MIN_NNODES", "MAX_NNODES"} <= environ.keys():
            options["nnodes"] = nodes = f"{environ['MIN_NNODES']}:{environ['MAX_NNODES']}"
        options |= {"rdzv-id": environ["RDZV_ID"], "rdzv-backend": "c10d", "rdzv-endpoint": f"{addr}:{port}"}
    elif port:
        options |= {"node-rank": environ.get("NODE_RANK", "0"), "master-addr": addr, "master-port": port}
    if not port:
        if nodes != "1":
            return Untold(by, "MASTER_PORT is not set: each of its nodes takes a port of its own")
        options |= {"standalone": ""}
    found = of_options(options, environ, by)
    script = ending(words[1:2], ".yaml", ".yml", ".json")
    return replace(found, environment=True, script=script) if isinstance(found, Stated) else found


def torchtune(words: tuple[str, ...], environ: Mapping[str, str], read: ReadFile) -> Stated | Untold | None:
    """Return the ranks that tune run starts on this node: torchrun's options stand before the recipe."""
    options = split(words).options
    if not options:
        return None if "RANK" in environ else Stated("tune run")  # it does not call torchrun
    if not options.get("rdzv-endpoint", environ.get("PET_RDZV_ENDPOINT")):
        words = ("--standalone", *words)  # whatever --nnodes says
    found = torchrun(words, environ, read, "tune run")
    config = values(words, {"--config": "config"}, abbreviated=False).get("config", "")
    return replace(found, script=ending([config], ".yaml")) if isinstance(found, Stated) else found


def axolotl(words: tuple[str, ...], environ: Mapping[str, str], read: ReadFile) -> Stated | Untold | None:
    """Return the ranks that axolotl train starts on this node: its launcher's options stand behind --."""
    by, at = "axolotl train", words.index("--") if "--" in words else len(words)
    given = values(words[:at], _AXOLOTL, frozenset({"use-ray"}), abbreviated=False)
    if "cloud" in given:
        return None
    try:
        config = _config(words[:at], read)
    except (RefusedError, UnreadableError):
        config = {}  # placement is not in it
    if "use-ray" in given or config.get("use_ray", "").lower() == "true":
        return Untold(by, "Ray places its ranks", "--hosts and --nproc")
    launcher = given.get("launcher", "accelerate")
    passed = [f"--{name.replace('-', '_')}={given[name]}" for name in _PASSED_ON if name in given] + [*words[at + 1 :]]
    config_file = ending(words[:at], *_YAML)
    if launcher == "python":
        return None if "RANK" in environ else Stated(by, script=config_file)
    if launcher == "torchrun" and any("--rdzv_endpoint" in word for word in passed):
        passed += ["--rdzv_backend=c10d"] * (not any("--rdzv_backend" in word for word in passed))
    line = ("torchrun", *passed) if launcher == "torchrun" else ("accelerate", "launch", *passed)
    found = stated((*line, "-m", "axolotl.cli.train"), environ, read)
    if found is None:
        return Untold(by, f"what {launcher} starts is not known", "--nproc")
    mesh = _mesh({key: given.get(key.replace("_", "-"), config.get(key, "")) for key in _SIZES})
    mesh = "" if config.get("expert_parallel_size", "1") != "1" else mesh
    return replace(found, mesh=mesh, script=config_file) if isinstance(found, Stated) else found


def _config(words: tuple[str, ...], read: ReadFile) -> dict[str, str]:
    """Return the keys of the configuration: its first word that is no option, as in all its examples."""
    path = ending(words, *_YAML)
    return keys(path, read) if path else {}


def _mesh(texts: Mapping[str, str]) -> str:
    """Return the sizes as --mesh takes them; what they leave is dp_shard, or dp_replicate if dp_shard is given."""
    replicate, shard, cp, tp = (int(text) if text.isdecimal() and int(text) else 1 for text in texts.values())
    if max(replicate, shard, cp, tp) == 1:
        return ""
    if shard == 1:
        shard = -1
    elif replicate == 1:
        replicate = -1
    sizes = {"dp_replicate": replicate, "dp_shard": shard, "cp": cp, "tp": tp}
    return ",".join(f"{name}={size}" for name, size in sizes.items() if size != 1)
