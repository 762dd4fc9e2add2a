"""horovodrun.

Source: horovod 0.28.1, runner/launch.py, common/util/hosts.py, gloo_run.py and mpi_run.py. It starts the ranks by ssh,
or by mpirun if Horovod was built with MPI. Gloo's starter fills every slot of the hosts, whatever -np says; MPI's
leaves the last ones empty.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from distcheck.facts.launch_command import Stated
from distcheck.selection.launch_commands import hosts as host_lists
from distcheck.selection.launch_commands.stated import ReadFile, RefusedError, Untold, number
from distcheck.selection.launch_commands.words import before, spelled, text

_REMEDY = "--hosts and --nproc"
_VALUES = spelled("""
    np,num-proc hosts,H hostfile ssh-port,p elastic,min-np,min-num-proc,host-discovery-script
""")
_OTHERS = spelled("""
    start-timeout network-interfaces network-interface output-filename config-file i ssh-identity-file
    fusion-threshold-mb cycle-time-ms cache-capacity autotune-log-file autotune-warmup-samples
    autotune-steps-per-sample autotune-bayes-opt-max-samples autotune-gaussian-process-noise max-np max-num-proc
    slots-per-host elastic-timeout reset-limit timeline-filename stall-check-warning-time-seconds
    stall-check-shutdown-time-seconds mpi-args binding-args num-nccl-streams thread-affinity gloo-timeout-seconds
    log-level
""")
_FLAGS = spelled("""
    v version cb check-build disable-cache verbose hierarchical-allreduce no-hierarchical-allreduce
    hierarchical-allgather no-hierarchical-allgather torus-allreduce no-torus-allreduce autotune no-autotune
    timeline-mark-cycles no-timeline-mark-cycles no-stall-check stall-check mpi-threads-disable
    no-mpi-threads-disable tcp log-with-timestamp log-without-timestamp prefix-timestamp
    prefix-output-with-timestamp log-hide-timestamp no-log-hide-timestamp gloo mpi jsrun h help
""")


def horovodrun(words: tuple[str, ...], environ: Mapping[str, str], read: ReadFile) -> Stated | Untold | None:
    """Return the ranks that horovodrun starts by ssh, or by mpirun, on its hosts."""
    by = "horovodrun"
    options, program = before(words, _VALUES | _OTHERS, _FLAGS)
    if not program or (environ.get("LSB_JOBID") and not {"hosts", "hostfile"} & options.keys()):
        return None
    if "elastic" in options:
        return Untold(by, "its number of ranks changes (elastic)", _REMEDY)
    ranks = number("-np", options.get("np", ""), 1)
    if "ssh-port" in options:
        reason = f"its ssh uses port {options['ssh-port']}"
        return Untold(by, reason, f"{_REMEDY}, and the port in ssh_config")
    path = "" if "hosts" in options else options.get("hostfile", "")
    named = host_lists.in_list(options.get("hosts") or f"localhost:{ranks}", "-H")
    named = host_lists.in_file(text(read, path, "--hostfile"), f"--hostfile {path}") if path else named
    if host := next((host for host, slots in named if not slots), ""):
        raise RefusedError(f"host {host} has no slots")
    slots = host_lists.slots_in_all(named)
    hosts = host_lists.filled(slots, ranks, "-np")
    if hosts != tuple(slots.items()) and "mpi" not in options:
        if "gloo" not in options:
            return Untold(by, "its hosts have more slots than -np, and only with --mpi some stay empty", _REMEDY)
        hosts = tuple(slots.items())  # Gloo's starter fills every slot, whatever -np says
    found = host_lists.on_hosts(by, hosts, "mpi" if "mpi" in options else "ssh")
    return msgspec.structs.replace(found, file=path)
