"""mpirun and mpiexec of Open MPI and of the Hydras (MPICH, Intel MPI).

Sources: Open MPI 4.1 and 5.0 (orte/mca/schizo/ompi, prrte's schizo_ompi.c, docs/man-openmpi/man1/mpirun.1.rst), MPICH 4
and 5 (src/pm/hydra/ui/mpich/utils.c).

| | Open MPI | Hydra |
|---|---|---|
| ranks | -np, -n, -c; without: all slots | -np, -n; without: all slots |
| hosts | -H, --host a:4,b:4 | -hosts, -host |
| file | --hostfile, --machinefile; no slots=: the cores | -f, -hostfile, -machinefile; no :n means 1 |
| each host | --map-by ppr:N:node, -N, --npernode | -ppn, -perhost |
| variables of all ranks | -x NAME=VALUE | -genv NAME VALUE, -env NAME VALUE |

Hosts are filled in order. Where the two differ the placement is not told. In an allocation a launcher without hosts
takes the allocation's, which distcheck reads itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial

import msgspec

from distcheck.facts.launch_command import Stated
from distcheck.selection.launch_commands import hosts as host_lists
from distcheck.selection.launch_commands.inner import Sought, inner
from distcheck.selection.launch_commands.stated import ReadFile, Untold, number
from distcheck.selection.launch_commands.words import before, spelled, text

_REMEDY = "--hosts and --nproc"
_ALLOCATIONS = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "COBALT_JOBID", "PE_HOSTFILE")
_FILE_VARIABLES = ("HYDRA_HOST_FILE", "I_MPI_HYDRA_HOST_FILE")
_NAMES = spelled("""
    np,n,c host,H,hosts,hostlist hostfile,machinefile,f,default-hostfile npernode,N,ppn,perhost map-by rank-by
""")
_UNTOLD = ("rankfile", "rf", "rankmap", "app", "configfile", "npersocket", "ppr", "machine", "machines", "machinelist")
_VALUES = spelled("""
    rankfile rf rankmap app configfile npersocket ppr machine machines machinelist x bind-to binding wdir wd path
    prefix output-filename output output-directory stdin timeout max-restarts cpu-set cpu-list cpus-per-proc
    cpus-per-rank am amca tune xterm personality display rtos runtime-options preload-files pset launch-agent
    report-pid report-uri stream-buffering initial-errhandler with-ft dvm-uri show-progress genvlist envlist
    launcher launcher-exec bootstrap bootstrap-exec bootstrap-exec-args rmk iface demux membind topolib localhost
    usize nameserver outfile-pattern errfile-pattern prepend-pattern pmi-port order-nodes gpus-per-proc
    memory-alloc-kinds hosts-group arch
""")
_FLAGS = spelled("""
    pernode bynode nolocal skip-launch-node oversubscribe nooversubscribe byslot bycore bind-to-core bind-to-socket
    bind-to-none allow-run-as-root tag-output timestamp-output report-bindings display-map display-devel-map
    display-allocation display-topo v verbose q quiet V version h help debug debug-devel d do-not-launch
    merge-stderr-to-stdout xml preload-binary s noprefix use-hwthread-cpus enable-recovery disable-recovery
    continuous forward-signals do-not-resolve keep-fqdn-hostnames p l genvall genvnone envall envnone prepend-rank
    profile enable-x disable-x info print-all-exitcodes disable-auto-cleanup disable-hostname-propagation
    hybrid-hosts get-stack-traces report-state-on-timeout leave-session-attached debug-daemons
""")
_PAIRS = frozenset({"mca", "gmca", "omca", "prtemca", "pmixmca", "genv", "env"})


def mpirun(
    words: tuple[str, ...], environ: Mapping[str, str], read: ReadFile, by: str = "mpirun"
) -> Stated | Untold | None:
    """Return the ranks that mpirun starts on its hosts, None if the allocation decides, or no program is given."""
    options, program = before(words, _NAMES | _VALUES, _FLAGS, _PAIRS)
    variable = next((name for name in _FILE_VARIABLES if environ.get(name)), "")
    path = options.get("hostfile") or (environ[variable] if variable and "host" not in options else "")
    if not program or not (path or "host" in options or not any(environ.get(name) for name in _ALLOCATIONS)):
        return None
    if reason := _untold(options, program, read):
        return Untold(by, reason, _REMEDY)
    own = words[: len(words) - len(program)]
    ranks = number("-np", options["np"], 1) if "np" in options else 0
    each = number("number of ranks per node", _each(options), 1) if _each(options) else 0
    if not (path or "host" in options):
        if not ranks and not each:
            return Untold(by, "its -np is not given", "--nproc")
        return _meeting(Stated(by, str(ranks or each)), own, environ)
    named = host_lists.in_list(options["host"], "-H") if "host" in options else ()
    named = named or host_lists.in_file(text(read, path, "--hostfile"), f"--hostfile {path}")
    slots = host_lists.slots_in_all(named)
    if not each and path and len(slots) == len(named) and not all(given for _, given in named):
        return Untold(by, "its hostfile gives no slots for a host", _REMEDY)
    slots = dict.fromkeys(slots, each) if each else slots
    if len(slots) == 1 and ranks:
        slots = dict.fromkeys(slots, ranks)
    if ranks > (total := sum(slots.values())):  # Open MPI refuses that, a Hydra begins again at the first host
        return Untold(by, f"its -np {ranks} is more than the {total} slots of its hosts", _REMEDY)
    hosts = host_lists.filled(slots, ranks or total, "-np")
    found = _meeting(host_lists.on_hosts(by, hosts, "mpi"), own, environ)
    return msgspec.structs.replace(found, file=path, environment=bool(variable and path))


def _meeting(found: Stated, words: tuple[str, ...], environ: Mapping[str, str]) -> Stated:
    """Return what is stated, with the MASTER_ADDR and MASTER_PORT that these options give to all ranks."""
    given: dict[str, str] = {}
    by = found.by
    for option, word, behind in zip(words, words[1:], (*words[2:], ""), strict=False):
        name, equals, value = word.partition("=")
        if option in {"-x", "-genv", "-env"} and name in {"MASTER_ADDR", "MASTER_PORT"}:
            given[name] = value if equals else environ.get(name, "") if option == "-x" else behind
            by = f"{found.by} {'-x' if option == '-x' else '-genv'}"
    if not given.get("MASTER_PORT"):
        return found
    host = given.get("MASTER_ADDR") or environ.get("MASTER_ADDR") or (found.hosts[0][0] if found.hosts else "127.0.0.1")
    port = number("MASTER_PORT", given["MASTER_PORT"], 1)
    return msgspec.structs.replace(found, by=by, master_addr=host, master_port=port)


mpiexec = partial(mpirun, by="mpiexec")


def _each(options: Mapping[str, str]) -> str:
    """Return the number of ranks on each host, '' if it is not given."""
    ppr = re.match(r"ppr:(\d+):node", options.get("map-by", ""))
    return ppr[1] if ppr else "1" if "pernode" in options else options.get("npernode", "")


def _untold(options: Mapping[str, str], program: tuple[str, ...], read: ReadFile) -> str:
    """Return why these options do not tell how many ranks each host gets, and which; '' if they do."""
    from distcheck.selection.launch_commands import PROGRAMS

    kind, *modifiers = re.split(r"[:,]", options.get("map-by", "slot").lower())
    if launcher := next(inner(program, {}, Sought(PROGRAMS.keys(), read, depth=1)), None):
        return f"it starts {launcher.program}, which starts the ranks"
    if ":" in program:
        return "it starts several programs"
    if option := next((name for name in (*_UNTOLD, "nolocal", "skip-launch-node") if name in options), ""):
        return f"its --{option} decides which ranks each host gets"
    cyclic = kind in {"node", "seq", "rankfile", "dist"} or options.get("rank-by", "slot") not in {"slot", "fill"}
    if cyclic or "bynode" in options or "span" in modifiers or "nolocal" in modifiers:
        return "it deals its ranks out over the hosts"
    if kind == "ppr" and not re.match(r"ppr:\d+:node", options["map-by"].lower()):
        return "its number of ranks depends on the hosts' processors"
    return ""
