"""More of what MPI's launchers, their daemons and the process managers of Cray and IBM say when a start fails.

Words: help-*.txt of https://github.com/openpmix/prrte and https://github.com/open-mpi/ompi (5.0 and 4.1), src/pm/hydra
of MPICH, horovod/runner; jsrun, aprun and PALS as in the documentation of their machines.
"""

from __future__ import annotations

from functools import partial

from distcheck.explain.spelling import CONSEQUENCE, LIKELY, SYMPTOM, told

_PRRTE = "https://github.com/openpmix/prrte/tree/master/src/mca"
_ERRMGR = "https://github.com/openpmix/prrte/blob/master/src/mca/errmgr/base/help-errmgr-base.txt"
_SCHIZO = "https://github.com/openpmix/prrte/tree/master/src/mca/schizo"
_OMPI = "https://github.com/open-mpi/ompi/tree/main/ompi"
_SESSION = "https://github.com/open-mpi/ompi/blob/v4.1.x/orte/util/help-regex.txt"
_PROC = "https://github.com/open-mpi/ompi/blob/v4.1.x/orte/runtime/help-orte-runtime.txt"
_SHMEM = "https://github.com/open-mpi/ompi/tree/main/opal/mca/shmem"
_HYDRA = "https://github.com/pmodels/mpich/tree/main/src/pm/hydra"
_MPD = "https://github.com/pmodels/mpich/tree/v1.4.1p1/src/pm/mpd"
_OSC = "https://github.com/osc/mpiexec"
_CRAY = "https://cpe.ext.hpe.com/docs/latest/pals/index.html"
_JSRUN = "https://www.ibm.com/docs/en/spectrum-lsf/10.1.0?topic=jsm-jsrun"
_HOROVOD = "https://github.com/horovod/horovod/tree/master/horovod/runner"
_start = partial(told, about="start-up")
_UNREACHABLE = "launch-node-unreachable launch-failed"
_LOST_PROXY = "mpiexec lost its proxy on a node, which ended first. The lines of that node tell why."
_MPIRUN = r"\b(?:mpirun|mpiexec|orterun|prterun|prun|prte)\b"

SPELLINGS = (
    # Open MPI's and PRRTE's daemons
    *(
        _start(pattern, _UNREACHABLE, weight=LIKELY, source=source)
        for pattern, source in (
            (r"does not know how to route a message to the", _ERRMGR),
            (r"(?:ORTE|PRTE|PRRTE) was unable to (?:launch|start) one or more", _ERRMGR),
            (r"daemon could not establish its identity", _PRRTE),
            (r"The LSF process starter \(lsb_launch\) failed to start", _PRRTE),
            (r"process starter for (?:PRTE|Open ?MPI|ORTE) didn't find any hosts", _PRRTE),
            (r"from launching\s+the per-node daemon", _PRRTE),
            (r"\bsrun returned non-zero exit status", _PRRTE),
            (r"number of concurrent daemons to\s+launch", _PRRTE),
        )
    ),
    _start(r"plm_base_launch_support\.c", _UNREACHABLE, weight=SYMPTOM, source=_ERRMGR),
    _start(r"FORCE-TERMINATE AT ", "launch-failed launch-node-unreachable", weight=SYMPTOM, source=_ERRMGR),
    _start(r"An internal error has occurred in (?:ORTE|PRTE|PRRTE)", "launch-failed", weight=SYMPTOM, source=_ERRMGR),
    # the folder in which the ranks are to run
    _start(
        r"was unable to launch the specified application",
        "storage-path-missing launch-failed",
        source=_PRRTE,
        near=r"could not (?:change to|access) the specified\s+(?:working\s+)?directory",
    ),
    _start(r"could not change to the specified", "storage-path-missing launch-failed", weight=LIKELY, source=_PRRTE),
    _start(r"unable to change wdir to \S+ \(", "storage-path-missing launch-failed", source=_HYDRA),
    # its options and files
    *(
        _start(pattern, "launch-failed", weight=LIKELY, source=source)
        for pattern, source in (
            (r"The \S+ directive contains an unrecognized qualifier", _PRRTE),
            (r"binding request contains an unrecognized", _PRRTE),
            (r"The specified \S+ directive is not recognized", _PRRTE),
            (r"(?:was unable to open|Error, invalid syntax in) the rankfile", _PRRTE),
            (r"rankfile that was used claimed that a host was", _PRRTE),
            (r"not enough CPUs in the specified PE-LIST", _PRRTE),
            (r"More processes were requested than there are devices", _PRRTE),
            (r"we are unable to launch\s+it at this time due to required resources", _PRRTE),
            (r"We were unable to find an allocation for this job", _PRRTE),
            (r"Flux broker was found", _PRRTE),
            (r"Unable to locate the variable file", _SCHIZO),
            (r"was unable to identify the proxy for your command", _SCHIZO),
            (r"command line option was listed more than once on", _SCHIZO),
            (r"environmental variable was requested to be forwarded, but was not", _SCHIZO),
            (r"mpirun command (?:was unable to find|could not execute)", _OMPI),
            (r"PMIx_Init failed for the following reason", _OMPI),
            (r"requires a minimum Slurm version level", _PRRTE),
            (r"installed in the same location on", _PRRTE),
            (r"Hwloc was unable to find any", _PRRTE),
            (r"orte_ess_base_select failed", _PROC),
            (r"getting local rank failed", _PROC),
            (r"(?:orte|prte|opal|pmix)_\w+(?:_init|_select|_open)? failed\s*$", _PROC),
            (r"--> Returned (?:value|\") ?.*instead of (?:ORTE|PRTE|OPAL|PMIX)_SUCCESS", _PROC),
            (rf"{_MPIRUN}[^:\n]*: ERROR:? unknown option", _SCHIZO),
            (rf"{_MPIRUN} was unable to (?:read|open) the", _SCHIZO),
            (r"Open MPI failed to launch", _OMPI),
            (r"application is attempting\s+to spawn too many daemons", _PRRTE),
            (r"application was launched using \"?srun\"?,? but OMPI was not built", _PRRTE),
        )
    ),
    # the folder of a session, which mpirun and its daemons make below TMPDIR
    *(
        _start(pattern, "host-disk-full storage-read-only launch-failed", weight=LIKELY, source=_SESSION)
        for pattern in (
            r"call to mkdir was unable to create the desired directory",
            r"orte_session_dir failed",
            r"(?:session|top session) director(?:y|ies) .*(?:could not|failed|unable)",
            r"unable to create a (?:jobfam|session|top) session dir",
        )
    ),
    # shared memory between the ranks of a node
    *(
        _start(pattern, "host-shm-too-small host-disk-full", weight=LIKELY, source=_SHMEM)
        for pattern in (
            r"not enough space for \S+ \(?(?:the shared|\s*$)",
            r"not enough space for \S+(?:shared_mem|shmem|vader|sm_segment|ompi\.)",
            r"system call failed during shared memory initialization",
            r"system call failed during \S*sm BTL initialization",
        )
    ),
    _start(r"system limit exceeded on number of network connections", "host-nofile net-open-files", source=_PRRTE),
    _start(r"system limit on number of (?:pipes|network connections) a process can", "host-nofile", source=_PRRTE),
    _start(r"system limit on (?:the )?number of children", "host-nproc-pids", source=_PRRTE),
    # MPICH, Intel MPI, and the older mpd
    *(
        _start(pattern, "launch-failed", weight=LIKELY, source=_HYDRA)
        for pattern in (
            r"mfile_fn \(.*error parsing hostfile",
            r"HYD_uii_mpx_get_parameters[ :]",
            r"HYDT_bsc[a-z]*_\w+ ?(?:\(.*\))?: launch error",
            r"more processes requested than available slots",
            r"HYDU_\w*bstrap\w* .*(?:error|failed)",
            r"bootstrap (?:fabric|server) (?:initialization timeout|error)",
        )
    ),
    *(
        _start(pattern, weight=CONSEQUENCE, source=_HYDRA, says=_LOST_PROXY)
        for pattern in (
            r"HYDU_sock_write \(.*write error",
            r"HYD_pmcd_pmiserv_send_signal \(.*assert",
            r"HYD_dmx_poll_wait_for_proxy_event",
        )
    ),
    _start(r"mpirun or mpiexec were not found", "launch-failed", source=_HYDRA),
    _start(r"check exit codes error", _UNREACHABLE, weight=SYMPTOM, source=_HYDRA),
    *(
        _start(pattern, _UNREACHABLE, weight=LIKELY, source=_MPD)
        for pattern in (
            r"cannot connect to local mpd",
            r"mpdboot_\S+ \((?:handle_mpd_output|err_exit)",
            r"mpdroot: cannot connect to local mpd",
            r"no mpd is running on this host",
        )
    ),
    # PBS's mpiexec and pbsdsh
    *(
        _start(pattern, "launch-failed launch-node-unreachable", weight=LIKELY, source=_OSC)
        for pattern in (
            r"mpiexec: Error: .*(?:pbs_|get_hosts|PBS)",
            r"mpiexec: Warning: .*(?:tm_|PBS)",
            r"\bpbsdsh\S*: (?:error|task|spawn)",
            r"mpiexec: .*\bnot in (?:PBS_NODEFILE|the nodefile)",
        )
    ),
    # Cray's ALPS and PALS, Summit's jsrun
    *(
        _start(pattern, "launch-failed launch-node-unreachable", weight=LIKELY, source=_CRAY)
        for pattern in (
            r"aprun: .*(?:cannot|invalid|exceed|not found|illegal)",
            r"apsched: .*(?:no nodes|exceeds|not|invalid)",
            r"launch failed: RPC timeout",
            r"mpiexec: .*\bshepherd\b",
            r"unable to launch the application with errno",
        )
    ),
    *(
        _start(pattern, "launch-failed", weight=LIKELY, source=_JSRUN)
        for pattern in (
            r"jsrun: .*(?:Resource set|Could not find sufficient|insufficient resources)",
            r"Error: Resource set(?:s)? .*(?:cannot|exceed|not)",
            r"Resource sets? (?:cannot be|exceed)",
        )
    ),
    # Horovod
    *(
        _start(pattern, "launch-failed", weight=LIKELY, source=_HOROVOD)
        for pattern in (
            r"horovodrun: error: ",
            r"Please specify --np",
            r"Neither MPI nor Gloo support has been built",
            r"Unknown MPI implementation given in the output",
            r"Not enough slots on the hosts to fulfill",
            r"Argument (?:hosts and hostfile|use_gloo and use_mpi) only allow",
            r"One of --host-discovery-script, --hosts",
            r"Cannot run in fault tolerance mode with",
            r"Intel MPI and MPICH do not support multiple interfaces",
        )
    ),
    *(
        _start(pattern, _UNREACHABLE, source=_HOROVOD)
        for pattern in (
            r"could not connect to some hosts via ssh",
            r"Timed out waiting for (?:\w+ )*tasks to (?:start|register)",
            r"unreachable hosts?: ",
        )
    ),
    _start(
        r"You may need to increase the --start-timeout",
        "launch-node-unreachable net-firewall-ephemeral launch-failed",
        weight=LIKELY,
        source=_HOROVOD,
    ),
    _start(
        r"aborted, but has no info as to the process that caused",
        about="application",
        weight=CONSEQUENCE,
        source=_OMPI,
        says="A rank failed. The cause is in the lines of that rank before this report.",
    ),
)
