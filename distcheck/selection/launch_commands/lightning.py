"""fabric run and litgpt, which start their ranks with Lightning.

Sources: lightning 2.6.6 (fabric/cli.py; fabric/utilities/device_parser.py; fabric/connector.py, where torchrun's
variables come before Slurm's; of fabric/plugins/environments lightning.py and slurm.py), litgpt 0.5.13 (pretrain.py,
finetune, generate/tp.py, utils.py parse_devices). A script with Lightning has its numbers in its code; nothing in its
command tells them.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from distcheck.facts.launch_command import Stated
from distcheck.selection.launch_commands.stated import ReadFile, Untold, number
from distcheck.selection.launch_commands.torch import of_options
from distcheck.selection.launch_commands.words import ending, spelled, values, with_file
from distcheck.selection.nodelist import first_host

_FABRIC = spelled("""
    --accelerator --strategy --devices --num-nodes --node-rank --main-address --main-port
""")
_LITGPT = spelled("""
    --devices --num-nodes
""")
_DEVICES = {
    "pretrain": "auto", "finetune": "1", "finetune_lora": "1", "finetune_full": "1", "finetune_adapter": "1",
    "finetune_adapter_v2": "1", "generate_tp": "auto",
}  # fmt: skip
"""By litgpt's subcommand, as far as they start several ranks: its --devices without that option."""
_FIRST_SLURM_PORT = 15000
_OF_A_RANK = frozenset({"LOCAL_RANK", "JSM_NAMESPACE_LOCAL_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK"})


def fabric(words: tuple[str, ...], environ: Mapping[str, str], _: ReadFile) -> Stated | Untold | None:
    """Return the ranks that fabric run starts on this node: it calls torchrun with what it has read."""
    given = values(words, _FABRIC, abbreviated=False)
    options = {
        "nproc-per-node": _fabrics_devices(given),
        "nnodes": given.get("num-nodes", "1"),
        "node-rank": given.get("node-rank", "0"),
        "master-addr": given.get("main-address", "127.0.0.1"),
        "master-port": given.get("main-port", "29400"),
    }
    found = of_options(options, environ, "fabric run")
    return replace(found, script=ending(words, ".py")) if isinstance(found, Stated) else found


def _fabrics_devices(given: Mapping[str, str]) -> str:
    devices = given.get("devices", "1").strip()
    if given.get("strategy") == "dp" or (devices == "auto" and given.get("accelerator") != "gpu"):
        return "1"
    if devices == "-1":
        return "gpu"
    if "," in devices:  # the numbers of the GPUs
        return str(sum(bool(item) for item in devices.split(",")))
    return str(number("--devices", devices, 1))


def litgpt(words: tuple[str, ...], environ: Mapping[str, str], read: ReadFile) -> Stated | Untold | None:
    """Return the ranks that litgpt starts on this node; None if each of its processes is one rank, as under mpirun.

    Under srun, too, each is one; where they meet is known.
    """
    subcommand = "".join(words[:1])
    by = f"litgpt {subcommand}"
    batch = "SLURM_NTASKS" in environ and environ.get("SLURM_JOB_NAME") not in {"bash", "interactive"}
    if subcommand not in _DEVICES or not _OF_A_RANK.isdisjoint(environ):
        return None
    if batch:
        return _of_tasks(by, environ)
    given = values(with_file(words[1:], read, first=False), _LITGPT, abbreviated=False)
    devices = given.get("devices", _DEVICES[subcommand])
    if devices in {"auto", "-1"}:
        devices = "gpu"
    nproc = devices if devices == "gpu" else str(number("--devices", devices, 1))
    nodes = number("--num_nodes", given.get("num-nodes", "1"), 1)
    port = environ.get("MASTER_PORT") or environ.get("STANDALONE_PORT")
    if not port:
        where = "MASTER_PORT is not set: each of its nodes takes a port of its own"
        return Stated(by, nproc) if nodes == 1 else Untold(by, where)
    return Stated(
        by,
        nproc,
        nodes,
        node_rank=number("NODE_RANK", environ.get("NODE_RANK", environ.get("GROUP_RANK", "0"))),
        master_addr=environ.get("MASTER_ADDR", "127.0.0.1"),
        master_port=number("MASTER_PORT", port, 1),
        environment=True,
    )


def _of_tasks(by: str, environ: Mapping[str, str]) -> Stated | None:
    """Return where Slurm's tasks meet: at the job's first node, and a port of the last four digits of the job's id."""
    job = environ.get("SLURM_JOB_ID", "")
    host = environ.get("MASTER_ADDR") or first_host(environ.get("SLURM_NODELIST", ""))
    port = environ.get("MASTER_PORT") or (str(_FIRST_SLURM_PORT + int(job[-4:])) if job.isdecimal() else "")
    if not host or not port or "SLURM_STEP_ID" not in environ:
        return None
    return Stated(by, "task", master_addr=host, master_port=number("MASTER_PORT", port, 1), environment=True)
