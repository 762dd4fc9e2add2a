"""Derive where ranks can meet if MASTER_ADDR or MASTER_PORT is unset.

srun, mpirun and horovodrun number their processes but do not say where rank 0 listens. Each leaves a trace of the host
on which it placed rank 0, or on which it runs itself; that is the same host unless it was started elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from distcheck.facts.placement import Launcher
from distcheck.selection.nodelist import first_host

_FIRST_PORT, _PORTS = 20000, 10000
"""A job's default port, by its id, below the ephemeral range."""
_PRTE = re.compile(r"prterun-(.+)-\d+@\d+")
# Bridges of Docker and libvirt have the same addresses on every host.
_BRIDGES = ("172.17.", "192.168.122.")


def derived(launcher: Launcher, environ: Mapping[str, str], mpiexec: str = "") -> tuple[str, int | None]:
    """Return the host and port at which ranks can meet; '' and None if unknown.

    Slurm gives task 0 to the first host of the step. Open MPI 4 has its daemon's addresses in OMPI_MCA_orte_hnp_uri
    (``1260060672.0;tcp://10.77.0.11,10.78.0.11:34979``), Open MPI 5 mpirun's host in PMIX_NAMESPACE
    (``prterun-node1-4711@1``), horovodrun its own address in HOROVOD_GLOO_RENDEZVOUS_ADDR; all observed or in their
    source. Inside a Slurm allocation mpirun starts at its first node wherever it runs itself.

    Args:
        launcher: what started the ranks.
        environ: a rank's variables.
        mpiexec: ``HOST:PORT`` of Hydra's mpiexec, which only its proxy's command line has.
    """
    if launcher == "slurm":
        return first_host(environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_NODELIST", "")), _port(environ)
    if launcher == "openmpi":
        uri = environ.get("OMPI_MCA_orte_hnp_uri", "")
        namespace = environ.get("PMIX_NAMESPACE", "")
        prte = _PRTE.fullmatch(namespace)
        host, job = (prte[1] if prte else _address_in(uri)), uri or namespace
    elif launcher == "hydra":
        host, job = mpiexec.rpartition(":")[0], mpiexec
    elif launcher == "horovod":
        host = environ.get("HOROVOD_GLOO_RENDEZVOUS_ADDR", "")
        return host, _port({}, f"{host}:{environ.get('HOROVOD_GLOO_RENDEZVOUS_PORT', '')}") if host else None
    else:
        return "", None
    host = first_host(environ.get("SLURM_JOB_NODELIST", "")) or host
    return host, _port(environ, job) if host else None


def control_port(ancestors: Sequence[str]) -> str:
    """Return ``HOST:PORT`` of mpiexec from a Hydra proxy's command line, '' without one."""
    words = (re.search(r"hydra_pmi_proxy .*--control-port ([\w.-]+:\d+)", line) for line in ancestors)
    return next((match[1] for match in words if match), "")


def _address_in(uri: str) -> str:
    """Return the first address of a daemon's URI that other hosts can use."""
    listed = re.search(r"tcp://([\d.,]+):\d+", uri)
    addresses = listed[1].split(",") if listed else []
    return next((a for a in addresses if not a.startswith(_BRIDGES)), "")


def _port(environ: Mapping[str, str], job: str = "") -> int | None:
    """Return the job's port, from its Slurm id or else from its launcher's name for it."""
    number = environ.get("SLURM_JOB_ID", "")
    if number.isdecimal():
        return _FIRST_PORT + int(number) % _PORTS
    if not job:
        return None
    import zlib

    return _FIRST_PORT + zlib.crc32(job.encode()) % _PORTS
