"""Launchers that start ranks as torchrun does, or by it: composer, colossalai run, torchx run.

Sources: mosaicml-composer 0.32.1, composer/cli/launcher.py; colossalai 0.5.0, colossalai/cli/launcher (click reads its
options on both sides of the script); torchx 0.7.0, cli/cmd_run.py, components/dist.py and runner/config.py.
"""

from __future__ import annotations

import configparser
import re
from collections.abc import Mapping

import msgspec

from distcheck.facts.launch_command import Stated
from distcheck.selection.launch_commands import hosts as host_lists
from distcheck.selection.launch_commands import torch
from distcheck.selection.launch_commands.stated import ReadFile, RefusedError, Untold, number
from distcheck.selection.launch_commands.words import before, ending, spelled, text, values

_ALL = "--rank, --world-size and --nproc"
_PORT = "29500"
_OF_COMPOSER = spelled("""
    nproc,n world-size base-rank node-rank master-addr master-port stdout stderr
""")
_FLAGS_OF_COMPOSER = frozenset({"v", "verbose", "m", "module-mode", "c", "command-mode", "version", "h", "help"})
_OF_COLOSSALAI = spelled("""
    --host,-H,-host -m --hostfile --include --exclude --num-nodes --nproc-per-node --master-port --master-addr
    --extra-launch-args --ssh-port
""")
_OF_TORCHX_RUN = spelled("""
    scheduler,s cfg scheduler-args workspace buck-target parent-run-id
""")
_OF_COMPONENT = spelled("""
    script m image name h cpu gpu memMB j env max-retries rdzv-port rdzv-backend mounts debug tee
""")
_DEFAULT_J = {"dist.ddp": "1x2", "dist.spmd": "1x1"}
_ON_THIS_MACHINE = frozenset({"local", "local_cwd", "local_docker"})


def composer(words: tuple[str, ...], environ: Mapping[str, str], _: ReadFile) -> Stated | Untold | None:
    """Return the ranks that composer starts on this node."""
    used: set[str] = set()
    by = "composer"
    given, program = before(words, _OF_COMPOSER, _FLAGS_OF_COMPOSER)
    if not program or not (program[0].endswith(".py") or {"m", "module-mode", "c", "command-mode"} & given.keys()):
        return None  # another program of this name: PHP's

    def value(name: str) -> str:
        variable = name.upper().replace("-", "_")
        if name not in given and environ.get(variable):
            used.add(variable)
        return given.get(name) or environ.get(variable, "")

    size = value("local-world-size") if "nproc" not in given else ""
    own = given.get("nproc") or ("1" if size == "0" else size)
    nproc = number("--nproc", own, 1) if own else 0
    total = given.get("world-size", "")
    if not total and environ.get("WORLD_SIZE") != environ.get("LOCAL_WORLD_SIZE"):
        total = value("world-size")
    world = number("--world_size", total, nproc or 1) if total else nproc
    if world and not nproc:
        return Untold(by, "its number of ranks per node is not given", _ALL)
    several, ranks = world > nproc, (value("node-rank"), value("base-rank"))
    node = number("--node_rank", ranks[0]) if ranks[0] else None
    first = number("--base_rank", ranks[1]) if ranks[1] else None
    address, port = value("master-addr"), value("master-port")
    if not several and (node or first):
        raise RefusedError("--node_rank or --base_rank is not 0, and it has one node only")
    if several and not (address and port and any(ranks)):
        raise RefusedError("--master_addr, --master_port or --node_rank is not given for several nodes")
    node = (first or 0) // max(nproc, 1) if node is None else node
    if several and (world % nproc or first not in {None, node * nproc}):
        return Untold(by, "its nodes have different numbers of ranks")
    place = (address or "127.0.0.1", number("--master_port", port, 1)) if port else ("", 0)
    script = ending(program[:1], ".py")
    found = Stated(by, "gpu", 1, 0, 0, *place, environment=bool(used), script=script)
    if not nproc:
        return found
    return msgspec.structs.replace(found, nproc=str(nproc), nodes=world // nproc, node_rank=node)


def colossalai(words: tuple[str, ...], environ: Mapping[str, str], read: ReadFile) -> Stated | Untold | None:
    """Return the ranks that colossalai run starts by torchrun, on this node or on its hosts by ssh."""
    by = "colossalai run"
    given = values(words, _OF_COLOSSALAI, abbreviated=False)
    extra = dict(part.partition("=")[::2] for part in given.get("extra-launch-args", "").split(",") if part)
    number("--nproc_per_node", given.get("nproc-per-node", ""), 1)
    hosts, path = _hosts_of_colossalai(given, read)
    address = given.get("master-addr", "127.0.0.1")
    address = hosts[0] if len(hosts) > 1 and address == "127.0.0.1" else address
    own = {"nproc-per-node": given["nproc-per-node"], "nnodes": str(len(hosts) or 1), "node-rank": "0"}
    own |= {"master-addr": address, "master-port": given.get("master-port", _PORT)}
    found = torch.of_options(own | {name.replace("_", "-"): value for name, value in extra.items()}, environ, by)
    if isinstance(found, Untold):
        return found
    each = number("number of ranks per node", found.nproc, 1) if hosts else 0
    there = host_lists.on_hosts(
        by, tuple((host, each) for host in hosts), "ssh", (found.master_addr, found.master_port)
    )
    if not there.hosts:
        return msgspec.structs.replace(found, script=ending(words, ".py"))
    if "ssh-port" in given:
        return Untold(by, f"its ssh uses port {given['ssh-port']}", "--hosts and --nproc, and the port in ssh_config")
    return msgspec.structs.replace(there, file=path, environment=found.environment)


def _hosts_of_colossalai(given: Mapping[str, str], read: ReadFile) -> tuple[list[str], str]:
    path = given.get("hostfile", "")
    if not path:
        return [host.strip() for host in given.get("host", "").split(",") if host.strip()], ""
    hosts = [host for line in text(read, path, "--hostfile").splitlines() if (host := line.strip())]
    include, exclude = given.get("include", ""), given.get("exclude", "")
    if include and exclude:
        raise RefusedError("--include and --exclude exclude each other")
    picked = (include or exclude).split(",") if include or exclude else []
    if unknown := next((host for host in picked if host not in hosts), ""):
        raise RefusedError(f"--include or --exclude names {unknown}, which is not in its hostfile")
    hosts = picked if include else [host for host in hosts if host not in picked]
    nodes = number("--num_nodes", given.get("num-nodes", "-1"), -1)
    return hosts[: nodes if nodes > 0 else None], path


def torchx(words: tuple[str, ...], environ: Mapping[str, str], read: ReadFile) -> Stated | Untold | None:
    """Return the ranks of a dist.ddp or dist.spmd that torchx run starts on this machine."""
    by = "torchx run"
    given, component = before(words, _OF_TORCHX_RUN, ("dryrun", "wait", "log", "h", "help"))
    name, config = "".join(component[:1]), _torchx_config(environ, read)
    if name not in _DEFAULT_J or "dryrun" in given:
        return None
    scheduler = given.get("scheduler") or config.get(("cli:run", "scheduler"), "local_docker")
    if scheduler not in _ON_THIS_MACHINE:
        return Untold(by, f"{scheduler} starts its ranks elsewhere")
    given = before(component[1:], _OF_COMPONENT)[0]
    j = given.get("j") or config.get((f"component:{name}", "j"), _DEFAULT_J[name])
    match = re.fullmatch(r"(?:(?:\d+:)?(\d+)x)?(\d+)", j)
    if match is None:
        raise RefusedError(f"-j is {j!r}; expected, for example, 1x8")
    if match[1] is None and name == "dist.spmd":
        return Untold(by, "the number of GPUs of its -h is not known", "--nproc")
    if int(match[1] or 1) > 1:
        return Untold(by, f"its {match[1]} nodes are processes of this machine", "--nproc")
    here = scheduler == "local_cwd"
    return Stated(by, str(number("-j", match[2], 1)), script=given.get("script", "") if here else "")


def _torchx_config(environ: Mapping[str, str], read: ReadFile) -> dict[tuple[str, str], str]:
    """Return the values of .torchxconfig by section and key: that of the home folder before that of this one."""
    found: dict[tuple[str, str], str] = {}
    for path in [environ.get("TORCHXCONFIG", "")] if "TORCHXCONFIG" in environ else [
        f"{environ.get('HOME', '')}/.torchxconfig", ".torchxconfig",
    ]:  # fmt: skip
        config = configparser.ConfigParser(interpolation=None)
        try:
            config.read_string(read(path))
        except (OSError, ValueError, configparser.Error):
            continue
        found = {(section, key): value for section in config for key, value in config[section].items()} | found
    return found
