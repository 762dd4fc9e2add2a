"""MPI's launchers, and Horovod's on top of them.

Words: help-*.txt of https://github.com/openpmix/prrte (Open MPI 5) and of Open MPI 4's orte; horovod/runner.
"""

from __future__ import annotations

from functools import partial

from distcheck.explain.spelling import CONSEQUENCE, LIKELY, SYMPTOM, told

_MPI = "https://docs.open-mpi.org/en/v5.0.x/launching-apps/index.html"
_MAPPING = "https://github.com/openpmix/prrte/blob/master/src/mca/rmaps/base/help-prte-rmaps-base.txt"
_DAEMONS = "https://github.com/openpmix/prrte/blob/master/src/mca/errmgr/base/help-errmgr-base.txt"
_HYDRA = "https://github.com/pmodels/mpich/tree/main/src/pm/hydra"
_HOROVOD = "https://github.com/horovod/horovod/blob/master/horovod/runner/driver/driver_service.py"
_INIT = "MPI could not start: a component of it, of PMIx or of UCX is missing, or belongs to another release."
_RANK_FAILED = "A rank failed. The cause is in the lines of that rank before this report."
_CRAY = "https://cpe.ext.hpe.com/docs/latest/mpt/mpich/intro_mpi.html"
_ORTERUN = "https://github.com/open-mpi/ompi/blob/v4.1.x/orte/tools/orterun/help-orterun.txt"
_PLM = "https://github.com/open-mpi/ompi/tree/v4.1.x/orte/mca/plm"
_OF_PYTHON = r"(?:python|torchrun|accelerate|deepspeed)"
_TCP = "https://github.com/open-mpi/ompi/blob/main/opal/mca/btl/tcp/help-mpi-btl-tcp.txt"
_start = partial(told, about="start-up")
_UNREACHABLE = "launch-node-unreachable launch-failed"
_ONE_ADDRESS = (
    "Two nodes announce the same address to MPI, often that of docker0. Name the network with -mca btl_tcp_if_include."
)

SPELLINGS = (
    _start(r"There are not enough slots available", "launch-failed", source=_MAPPING),
    _start(r"All nodes which are allocated for this job are already filled", "launch-failed", source=_MAPPING),
    _start(r"not enough node entries", "launch-failed", source=_MAPPING),
    _start(r"Your job failed to map", "launch-failed", source=_MAPPING),
    _start(r"The requested mapping policy cannot be performed", "launch-failed", source=_MAPPING),
    _start(r"A request was made to (?:bind|map) (?:to|by|that|a process)", "launch-failed", source=_MAPPING),
    _start(r"found no available cpus on", "launch-failed", source=_MAPPING),
    _start(r"There are no allocated resources for the application", "launch-failed", source=_MAPPING),
    _start(r"No nodes are available for this job", "launch-failed", source=_MAPPING),
    _start(
        r"was unable to (?:launch the specified application|find the specified executable)",
        "launch-failed launch-probe-missing",
        source=_MPI,
    ),
    _start(
        r"could not (?:find|access) (?:the|or execute an) executable", "launch-probe-missing launch-failed", source=_MPI
    ),
    _start(rf"execvp error on file (?:\S*/)?{_OF_PYTHON}", "launch-probe-missing launch-failed", source=_HYDRA),
    _start(rf"execvp error on file (?!(?:\S*/)?{_OF_PYTHON})", "launch-failed launch-probe-missing", source=_HYDRA),
    _start(r"detected an attempt to run as root", "launch-failed", source=_MPI),
    _start(r"binding more processes than cpus on a resource", "launch-failed", source=_MPI),
    _start(r"OMPI was not built with SLURM's PMI support", "launch-failed", source=_MPI),
    _start(r"launch agent .*could not be found", "launch-failed", source=_MPI),
    # The program is no program, or none is named: help-orterun.txt, help-prun.txt, help-orte-odls-default.txt.
    *(
        _start(pattern, "launch-failed launch-probe-missing", weight=LIKELY, source=_ORTERUN)
        for pattern in (
            r"Open MPI tried to fork a new process via the",
            r"was unable to start the specified application",
            r"No executable was specified on the",
            r"unrecognized command line token as the executable",
            r"specified fork agent was not found",
            r"Unable to open the appfile",
            r"(?:mpirun|mpiexec|prterun) could not find anything to do",
        )
    ),
    # The options do not fit the nodes: help-*rmaps-base.txt, help-hostfile.txt, help-dash-host.txt.
    *(
        _start(pattern, "launch-failed", weight=LIKELY, source=_MAPPING)
        for pattern in (
            r"was unable to determine how many processes to launch",
            r"was unable to allocate enough resources to start your",
            r"requested hosts (?:are|is) not included in the current",
            r"A hostfile was provided that contains (?:at least one node|multiple)",
            r"was unable to open the hostfile",
            r"detected a (?:parse error|bad parameter) in the hostfile",
            r"relative host was (?:specified, but|improperly specified)",
            r"Your job has requested (?:a conflicting number of processes|more (?:processes|cpus) )",
            r"No objects of the specified type were found",
            r"mapping request contains (?:an unrecognized|a pattern)",
            r"The specified \S+ policy is not recognized",
            r"Conflicting directives for \S+ policy are causing",
            r"A mapping directive was given that requires",
            r"A request for multiple cpus-per-proc was given, but",
            r"Open MPI tried to bind a new process",
            r"node was detected to be missing a daemon",
            r"(?:mpirun|mpiexec|orterun|prterun)[^:]*: (?:Error: )?(?:unknown|unrecognized|invalid) option",
        )
    ),
    # The daemons do not start: help-plm-*.txt.
    _start(r"A daemon \(pid .* died unexpectedly", _UNREACHABLE, weight=LIKELY, source=_PLM),
    _start(r"No available launching agents were found", _UNREACHABLE, weight=LIKELY, source=_PLM),
    _start(r"The SLURM process starter for Open ?MPI", "launch-failed", weight=LIKELY, source=_PLM),
    _start(r"MCA parameter \"plm_(?:rsh|ssh)_agent\" was set to", "launch-failed", source=_PLM),
    _start(r"not able to find the executable \"orted\"", "launch-failed launch-probe-missing", source=_PLM),
    _start(r"application appears to have been direct launched using \"srun\"", "launch-failed", source=_MPI),
    # MPICH's and Intel's Hydra.
    *(
        _start(pattern, "launch-failed", weight=LIKELY, source=_HYDRA)
        for pattern in (
            r"node list format not recognized",
            r"match_arg \(.*(?:unrecognized argument|unrecognized option)",
            r"HYDU?_?\w* \(.*unable to open host ?file",
            r"HYDU_process_mfile_token \(.*token \S+ not supported",
            r"unrecognized (?:launcher|RMK|bootstrap)\b",
            r"no executable (?:provided|specified)",
            r"HYDU_parse_array \(",
            r"HYD_uii_mpx_get_parameters \(",
            r"argument matching returned error",
            r"Unable to bind socket; port range",
        )
    ),
    *(
        _start(pattern, _UNREACHABLE, weight=LIKELY, source=_HYDRA)
        for pattern in (
            r"unable to run (?:bstrap_)?proxy\b",
            r"Cannot launch hydra_bstrap_proxy",
            r"error setting up the (?:boostrap|bootstrap) proxies",
            r"HYDT_bsc[a-z]_\w+ \(.*(?:launcher|bootstrap) (?:returned error|cannot launch)",
        )
    ),
    _start(
        r"control_cb \(.*assert \(!closed\) failed",
        source=_HYDRA,
        weight=CONSEQUENCE,
        says="MPICH lost a node's process manager, which ended first. The cause is in the lines before.",
    ),
    _start(r"It looks like (?:orte|opal|prte|pmix)_\w+ failed", "launch-failed", weight=SYMPTOM, source=_MPI),
    *(
        _start(pattern, weight=SYMPTOM, source=_MPI, says=_INIT)
        for pattern in (
            r"A requested component was not found, or was unable",
            r"No components were able to be opened in the",
            r"An error occurred in MPI_Init",
            r"Fatal error in (?:P?MPI|internal)_Init",
            r"supposed to get help about:",
        )
    ),
    # Cray's MPICH and its launchers.
    _start(
        r"MPIDI_CRAY_init: ",
        weight=LIKELY,
        source=_CRAY,
        says="Cray's MPICH could not start: link the GTL library (module load craype-accel-...), or unset MPICH_GPU_SUPPORT_ENABLED.",
    ),
    *(
        _start(pattern, "launch-failed", weight=LIKELY, source=_CRAY)
        for pattern in (
            r"apsched: claim exceeds reservation",
            r"aprun: (?:file|error|\[NID|Error)",
            r"apinit: .*(?:failed|error)",
        )
    ),
    _start(
        r"Attempting to use an MPI routine (?:before initializing|after finalizing)",
        weight=LIKELY,
        about="application",
        source=_HYDRA,
        says="The program calls MPI before MPI_Init() or after MPI_Finalize().",
    ),
    _start(r"system limit exceeded on number of pipes", "host-nofile", weight=LIKELY, source=_MPI),
    _start(
        r"(?:mpirun|mpiexec|horovodrun) failed with exit code",
        weight=CONSEQUENCE,
        about="application",
        source=_HOROVOD,
        says="A rank failed. The cause is in the lines of that rank before this report.",
    ),
    _start(r"PMI2?_Init failed", "launch-failed", weight=SYMPTOM, source=_MPI),
    _start(r"ompi_mpi_init: (?:ompi_rte_init|orte_init) failed", "launch-failed", weight=SYMPTOM, source=_MPI),
    _start(r"unable to reliably start one or more daemons", _UNREACHABLE, weight=LIKELY, source=_DAEMONS),
    _start(r"daemon has unexpectedly failed after launch", _UNREACHABLE, weight=LIKELY, source=_DAEMONS),
    _start(r"lost communication with a remote daemon", _UNREACHABLE, weight=LIKELY, source=_DAEMONS),
    _start(r"PMIX ERROR", "launch-failed", weight=SYMPTOM, source=_MPI),
    _start(r"PMIX_ERROR", "launch-failed", weight=SYMPTOM, source=_MPI),
    *(
        _start(
            rf"\b(?:orted|prted|mpirun|mpiexec|orterun): {words}", "launch-failed mpi-env-not-forwarded", source=_MPI
        )
        for words in ("error while loading shared", "symbol lookup error")
    ),
    _start(r"OPAL ERROR", "launch-failed", weight=SYMPTOM, source=_MPI),
    _start(r"ORTE_ERROR_LOG", "launch-failed", weight=SYMPTOM, source=_MPI),
    _start(
        r"It looks like MPI_INIT failed",
        source=_MPI,
        weight=SYMPTOM,
        says="MPI could not start. The lines around this one say why.",
    ),
    *(
        _start(pattern, source=_MPI, weight=CONSEQUENCE, about="application", says=_RANK_FAILED)
        for pattern in (
            r"process rank \d+ .*exited on signal (?![976]\b)",
            r"one or more processes exited with non-zero status",
            r"Primary job\s+terminated normally, but",
        )
    ),
    _start(
        r"MPI_ABORT was invoked",
        source=_MPI,
        weight=CONSEQUENCE,
        about="application",
        says="A rank failed. The cause is in the lines of that rank before this report.",
    ),
    _start(
        r"Unable to find a set of common task-to-task communication interfaces",
        "net-subnet-mismatch net-firewall-ephemeral",
        about="network",
        source=_HOROVOD,
    ),
    _start(
        r"Horovod was unable to connect to .* on any",
        "net-firewall-ephemeral net-subnet-mismatch",
        about="network",
        source=_HOROVOD,
    ),
    _start(
        r"Launching horovod task function was not successful",
        "launch-failed launch-node-unreachable",
        weight=LIKELY,
        source=_HOROVOD,
    ),
    _start(
        r"Error while finding module specification for 'horovod",
        "sw-packages-differ sw-python-differs",
        source=_HOROVOD,
    ),
    # Connections between MPI's processes.
    _start(
        r"mca_btl_tcp_\w+\] connect\(\) to .* failed",
        about="network",
        weight=LIKELY,
        source=_TCP,
        says="MPI took an address, often of docker0 or a virtual bridge, at which another process is not reached. Name the"
        " network with -mca btl_tcp_if_include.",
    ),
    _start(
        r"appears to be (?:a )?another Open MPI process",
        about="network",
        source=_TCP,
        says=_ONE_ADDRESS,
    ),
    _start(r"received unexpected process identifier", about="network", source=_TCP, says=_ONE_ADDRESS),
    _start(
        r"processes are unable to reach each other for",
        about="network",
        source="https://github.com/open-mpi/ompi/blob/main/ompi/mca/bml/r2/help-mca-bml-r2.txt",
        says="MPI has no transport between two processes. Name the network with -mca btl_tcp_if_include.",
    ),
    _start(
        r"failed to TCP connect to a peer MPI process",
        about="network",
        source=_TCP,
        says="MPI could not reach a process on another node: its port or network is closed. Name the network with -mca btl_tcp_if_include.",
    ),
    _start(r"SSH was not successful", _UNREACHABLE, source=_HOROVOD),
    _start(r"ssh not successful for hosts", _UNREACHABLE, source=_HOROVOD),
)
