"""Rules about NCCL's plugins: whether NCCL can use those that are installed, and whether all ranks have them."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING

from distcheck.rules import Outcome, rule
from distcheck.rules.collectives.nccl_logs import logged, setting
from distcheck.rules.environment.nccl_library import loaded, unseen
from distcheck.rules.job.versions import version_of
from distcheck.rules.wording import brief, found, grouped, listed, majority, named, once, unread
from distcheck.selection.nccl_settings import value_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from distcheck.facts.job import Job
    from distcheck.facts.libraries import Libraries, NcclPlugin
    from distcheck.facts.rank import RankFacts
    from distcheck.rules.finding import Fault

Version = tuple[int, ...]

_ACCEPTED: Mapping[str, tuple[tuple[Version, int, int], ...]] = {
    "net": (
        *(((2, 13), 4, 6), ((2, 19), 5, 7), ((2, 20), 5, 8), ((2, 24), 5, 9), ((2, 26), 6, 10), ((2, 28), 6, 11)),
        ((2, 30), 6, 12),
    ),
    "tuner": (((2, 19), 1, 1), ((2, 21), 2, 2), ((2, 22), 2, 3), ((2, 24), 2, 4), ((2, 28), 2, 5), ((2, 30), 2, 6)),
    "profiler": (((2, 23), 1, 1), ((2, 24), 1, 2), ((2, 26), 1, 3), ((2, 27), 1, 4), ((2, 28), 1, 5), ((2, 29), 1, 6)),
}
"""From which release on NCCL looks up which versions of a plugin's symbol.

From the dlsym calls in src/net.cc, src/plugin and src/misc of github.com/NVIDIA/nccl, tags v2.13.4-1 to v2.30.7-1."""
_NEWEST_READ = (2, 30)
_VARIABLES = {"net": "NCCL_NET_PLUGIN", "tuner": "NCCL_TUNER_PLUGIN", "profiler": "NCCL_PROFILER_PLUGIN"}


@rule("gpu", severity="warning", scope="rank", unless=("nccl-net-plugin-missing",))
def sw_plugin_abi(job: Job) -> Iterator[Outcome]:
    """NCCL cannot use a plugin that is installed: it does not load, or its interface does not fit.

    NCCL continues without the plugin. Its log says ``NET/Plugin: Failed to find ncclNetPlugin_v10 symbol`` for a plugin
    built for another NCCL, and on AWS and Google Cloud the job then runs over TCP, or at a tenth of the usual speed.

    Found by opening the plugin as NCCL does, in a child process with the rank's variables: libnccl-net.so,
    libnccl-tuner.so and libnccl-profiler.so, or the names in NCCL_NET_PLUGIN, NCCL_TUNER_PLUGIN and
    NCCL_PROFILER_PLUGIN. Its versioned symbols are compared with those that the loaded NCCL looks up: 2.26 and 2.27
    accept ncclNetPlugin_v6 to v10, 2.28 and 2.29 up to v11, 2.30 up to v12. A profiler that does not fit is an info
    finding. Silent if no plugin is installed.

    Fix: Install the plugin's release for this NCCL, or do without it.

        ldd {plugin|libnccl-net.so}
        export {variable|NCCL_NET_PLUGIN}=none

    See: https://github.com/NVIDIA/nccl/tree/master/plugins/net
    """
    yield from unseen(job)
    installed = [(item, plugin) for item in loaded(job) for plugin in item.libraries.plugins]
    for (plugin, version), items in grouped(installed, lambda i: (i[1], i[0].libraries.version)).items():
        ranks = [item.rank for item, _ in items]
        accepted = accepted_interfaces(plugin.kind, version)
        if plugin.error:
            yield _unfit(job, ranks, plugin, version, f"cannot be loaded: {brief(plugin.error, 120)}")
        elif version_of(version)[:2] > _NEWEST_READ:
            why = f"which {plugin.kind} plugins NCCL {version} accepts is not known to this distcheck"
            yield from unread(job, ((rank, why) for rank in ranks))
        elif accepted and not any(accepted[0] <= _number(symbol) <= accepted[1] for symbol in plugin.interfaces):
            has = listed(plugin.interfaces) or "no versioned plugin symbol"
            wants = " to ".join(f"v{number}" for number in sorted({*accepted}))
            yield _unfit(job, ranks, plugin, version, f"exports {has}; NCCL {version} accepts {wants}")


def accepted_interfaces(kind: str, version: str) -> tuple[int, int] | None:
    """Return the lowest and highest version of a plugin's symbol that an NCCL looks up, None if unknown."""
    number = version_of(version)
    fitting = [(low, high) for since, low, high in _ACCEPTED[kind] if number and since <= number]
    return fitting[-1] if fitting else None


def _number(symbol: str) -> int:
    text = symbol.rpartition("_v")[2]
    return int(text) if text.isdecimal() else 0


def _unfit(job: Job, ranks: list[RankFacts], plugin: NcclPlugin, version: str, why: str) -> Fault:
    path = plugin.path or plugin.name
    evidence = {"plugin": path, "interfaces": list(plugin.interfaces), "NCCL": version}
    return found(
        job,
        ranks,
        f"{named(job, ranks)}: {plugin.kind} plugin {brief(path, 80)} {why}",
        severity="info" if plugin.kind == "profiler" else "warning",
        evidence=evidence | ({"error": plugin.error} if plugin.error else {}),
        values={"plugin": [quote(path)], "variable": [_VARIABLES[plugin.kind]]},
    )


@rule("gpu", "nccl-tuner-plugin-mismatch", "nccl-collnet-mismatch", scope="rank")
def nccl_net_plugin_on_some_ranks(job: Job) -> Iterator[Outcome]:
    """Only some of the ranks load an NCCL plugin, or they load different ones.

    A network plugin such as HPC-X's or aws-ofi-nccl's speaks its own protocol: ranks with it and ranks without it hang
    in the first collective without an error, and SHARP on some nodes only gives ``Detected mixed local CollNet device
    counts across ranks``. With different tuners the ranks may choose different algorithms, which hangs too. The usual
    cause is an image or a module on a part of the nodes.

    Found by comparing the file names and versioned symbols of the plugins that each rank can load; if they are equal or
    not known, by the plugins in NCCL's log. Profilers are not compared: every rank may have its own. Only ranks with
    the same NCCL_NET_PLUGIN or NCCL_TUNER_PLUGIN are compared: nccl-env-differs reports the others. It is an error for
    network plugins and a warning for tuners, and names the ranks that differ from the majority.

    Fix: Use the same plugin on all ranks: one image on all nodes, or none.

        find / -name 'libnccl-{kind|net}*.so' 2>/dev/null
        export {variable|NCCL_NET_PLUGIN}=none

    See: https://github.com/NVIDIA/nccl/issues/1634
    """
    for kind in ("net", "tuner"):
        variable = _VARIABLES[kind]
        by_files = [
            (item.rank, value_of(job, item.rank, variable), _kind_of_plugin(item.libraries, kind))
            for item in (loaded(job) if len({item.libraries.plugins for item in loaded(job)}) > 1 else ())
        ]
        by_logs = (
            (t.rank, setting(t, variable), _kind_in_log(t.log.plugins, kind))
            for t in (logged(job) if len(_in_logs(job)) > 1 else ())
            if t.log.version
        )
        yield from [*_apart(job, kind, by_files)] or _apart(job, kind, by_logs)


@once
def _in_logs(job: Job) -> set[tuple[str, ...]]:
    """Return the different lists of plugins in the ranks' logs."""
    return {t.log.plugins for t in logged(job) if t.log.version}


def _apart(job: Job, kind: str, seen: Iterable[tuple[RankFacts, str, str]]) -> Iterator[Fault]:
    """Yield what is wrong with ranks, each with the value of the plugin's variable and the plugins that it loads."""
    for value, alike in grouped(seen, lambda one: one[1]).items():
        groups = {name: [rank for rank, *_ in some] for name, some in grouped(alike, lambda one: one[2]).items()}
        if len(groups) < 2:
            continue
        usual = majority(groups)
        others = {name: ranks for name, ranks in groups.items() if name != usual}
        parts = [f"{named(job, r)} {'loads' if len(r) == 1 else 'load'} {name}" for name, r in [*others.items()][:3]]
        rest = f"; the other {len(groups[usual])} load {usual}" if usual is not None else ""
        yield found(
            job,
            [rank for ranks in others.values() for rank in ranks],
            brief("; ".join(parts) + rest, 300),
            severity="error" if kind == "net" else "warning",
            evidence={name: named(job, ranks) for name, ranks in groups.items()}
            | ({_VARIABLES[kind]: value} if value else {}),
            values={"kind": [kind], "variable": [_VARIABLES[kind]]},
        )


def _kind_of_plugin(libraries: Libraries, kind: str) -> str:
    """Return a rank's plugins of a kind in a form that can be compared over nodes."""
    usable = [plugin for plugin in libraries.plugins if plugin.kind == kind and not plugin.error]
    shown = [f"{plugin.name.rpartition('/')[2]} ({', '.join(plugin.interfaces) or 'no symbol'})" for plugin in usable]
    return listed(shown) or f"no {kind} plugin"


def _kind_in_log(plugins: tuple[str, ...], kind: str) -> str:
    """Return the plugins of a kind that a log names, in a form that can be compared."""
    prefix = f"{kind.upper()} "
    shown = sorted(name.removeprefix(prefix) for name in plugins if name.startswith(prefix))
    return listed(shown) or f"no {kind} plugin"
