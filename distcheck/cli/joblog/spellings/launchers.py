"""What launchers say themselves: srun, sbatch, mpirun, ssh, torchrun, DeepSpeed, kubectl."""

from __future__ import annotations

from functools import partial

from distcheck.cli.joblog.spelling import CONSEQUENCE, LIKELY, SYMPTOM, told

_SLURM = "https://slurm.schedmd.com/srun.html"
_SBATCH = "https://slurm.schedmd.com/sbatch.html"
_MPI = "https://docs.open-mpi.org/en/v5.0.x/launching-apps/index.html"
_SSH = "https://man.openbsd.org/ssh"
_DEEPSPEED = "https://www.deepspeed.ai/getting-started/#resource-configuration-multi-node"
_KUBERNETES = "https://kubernetes.io/docs/tasks/debug/debug-application/debug-pods/"
_SHELL = "https://www.gnu.org/software/bash/manual/html_node/Exit-Status.html"
_start = partial(told, about="start-up")
_UNREACHABLE = "launch-node-unreachable launch-failed"

SPELLINGS = (
    _start(
        r"\b(?:srun|mpirun|mpiexec|torchrun|horovodrun|orted|prted|pdsh|deepspeed|accelerate): (?:command )?not found",
        "launch-failed launch-probe-missing",
        source=_SHELL,
    ),
    _start(r"launcher '\w+' not installed", "launch-failed", source=_DEEPSPEED),
    _start(r"Unable to create step for job", "launch-failed", source=_SLURM),
    _start(
        r"srun: error: (?:Unable to allocate resources|Invalid|Job \S+ .*(?:expired|invalid))",
        "launch-failed",
        source=_SLURM,
    ),
    _start(
        r"srun: (?:error|fatal): (?!.*(?:tasks? [\d,-]+:|timeout waiting|Job step aborted|Task launch|Unable))",
        "launch-failed",
        weight=LIKELY,
        source=_SLURM,
    ),
    _start(r"Task launch for .*failed on node (?P<host>\S+):", _UNREACHABLE, source=_SLURM),
    _start(r"Communication connection failure", _UNREACHABLE, source=_SLURM),
    _start(r"execve\(\): .*No such file", "launch-probe-missing launch-failed", source=_SLURM),
    _start(
        r"sbatch: error: ",
        source=_SBATCH,
        says="Slurm refused the job: change the request, or choose a partition that can serve it.",
    ),
    _start(r"There are not enough slots available", "launch-failed", source=_MPI),
    _start(r"All nodes which are allocated for this job are already filled", "launch-failed", source=_MPI),
    _start(
        r"was unable to (?:launch the specified application|find the specified executable)",
        "launch-failed launch-probe-missing",
        source=_MPI,
    ),
    _start(r"detected an attempt to run as root", "launch-failed", source=_MPI),
    _start(r"binding more processes than cpus on a resource", "launch-failed", source=_MPI),
    _start(r"OMPI was not built with SLURM's PMI support", "launch-failed", source=_MPI),
    _start(r"unable to reliably start one or more daemons", _UNREACHABLE, weight=LIKELY, source=_MPI),
    _start(r"daemon has unexpectedly failed after launch", _UNREACHABLE, weight=LIKELY, source=_MPI),
    _start(
        r"ssh: Could not resolve hostname (?P<host>[^:\s]+)", "launch-node-unreachable k8s-dns-not-ready", source=_SSH
    ),
    _start(r"ssh: connect to host (?P<host>\S+) port \d+: ", _UNREACHABLE, source=_SSH),
    _start(r"Permission denied \((?:publickey|password|keyboard|gssapi|hostbased)", _UNREACHABLE, source=_SSH),
    _start(r"Host key verification failed", _UNREACHABLE, source=_SSH),
    _start(r"(?:kex|ssh)_exchange_identification", _UNREACHABLE, source=_SSH),
    _start(r"ssh exited with exit code 255", _UNREACHABLE, source=_SSH),
    _start(r"returned non-zero exit status 255", _UNREACHABLE, source=_SSH, near=r"\bssh\b"),
    _start(
        r"No module named '?etcd",
        "sw-etcd-missing",
        source="https://docs.pytorch.org/docs/stable/elastic/rendezvous.html",
    ),
    _start(
        r"The 'etcd' module is required",
        "sw-etcd-missing",
        source="https://docs.pytorch.org/docs/stable/elastic/rendezvous.html",
    ),
    _start(
        r"No slot '\d+' specified on host",
        source=_DEEPSPEED,
        says="DeepSpeed counts fewer slots on the host than are asked for: check the hostfile and --include; it ignores CUDA_VISIBLE_DEVICES.",
    ),
    _start(r"ImagePullBackOff", source=_KUBERNETES, says="Kubernetes could not load the container's image."),
    _start(r"Insufficient nvidia\.com/gpu", "gpu-fewer-than-needed", weight=LIKELY, source=_KUBERNETES),
    _start(
        r"KeyError: ['\"]PDSH_",
        source=_DEEPSPEED,
        says="DeepSpeed's launcher reads a variable that is not set: use another release of DeepSpeed.",
    ),
    _start(
        r"srun: Job step aborted",
        about="process killed",
        weight=CONSEQUENCE,
        source=_SLURM,
        says="Slurm ended the step because a task failed, or on request.",
    ),
    _start(r"slurmstepd: error: pyxis: ", "launch-failed", source="https://github.com/NVIDIA/pyxis"),
    _start(
        r"Failed to invoke spank plugin stack", "launch-failed", weight=LIKELY, source="https://github.com/NVIDIA/pyxis"
    ),
    _start(r"PMIX ERROR", "launch-failed", weight=LIKELY, source=_MPI),
    _start(r"OPAL ERROR", "launch-failed", weight=LIKELY, source=_MPI),
    _start(r"ORTE_ERROR_LOG", "launch-failed", weight=SYMPTOM, source=_MPI),
    _start(
        r"It looks like MPI_INIT failed",
        source=_MPI,
        weight=SYMPTOM,
        says="MPI could not start. The lines around this one say why.",
    ),
    _start(r"There are no allocated resources for the application", "launch-failed", source=_MPI),
    _start(r"Connection closed by \S+ port 22\b", _UNREACHABLE, source=_SSH),
    _start(
        r"Hostfile .*(?:bad entry|not formatted)",
        source=_DEEPSPEED,
        says="A line of the hostfile is not of the form `name slots=8`.",
    ),
    _start(
        r"Hostfile is not formatted correctly",
        source=_DEEPSPEED,
        says="A line of the hostfile is not of the form `name slots=8`.",
    ),
    _start(
        r"hostname: invalid option",
        source=_DEEPSPEED,
        says="This machine's `hostname` has no option -I: give --master_addr.",
    ),
    _start(
        r"hostname -I'\]' returned non-zero",
        source=_DEEPSPEED,
        unless=r"\bssh\b",
        says="DeepSpeed could not run `hostname -I`: set MASTER_ADDR.",
    ),
    _start(
        r"CUDAMismatchException",
        source=_DEEPSPEED,
        says="DeepSpeed compiles with another CUDA than torch's: install the CUDA toolkit of torch's version.",
    ),
    _start(r"FailedScheduling", source=_KUBERNETES, says="Kubernetes has no node with what the pod requests."),
    _start(r"Unable to contact slurm controller", "launch-failed", source=_SLURM),
    _start(
        r"(?:torchrun|launch\.py|accelerate|deepspeed): error: ",
        source=_SHELL,
        weight=LIKELY,
        unless=r"local[-_]rank",
        says="The launcher was started with wrong arguments.",
    ),
    _start(
        r"libnccl\.so\S* cannot open shared object file",
        source=_SHELL,
        says="The folder of libnccl.so is not in LD_LIBRARY_PATH.",
    ),
    _start(r"SSH was not successful", _UNREACHABLE, source=_SSH),
    _start(r"ssh not successful for hosts", _UNREACHABLE, source=_SSH),
    _start(
        r"Launching horovod task function was not successful",
        "launch-failed launch-node-unreachable",
        weight=LIKELY,
        source=_SSH,
    ),
    _start(
        r"[Uu]nable to connect to GCS",
        about="network",
        source="https://docs.ray.io/en/latest/cluster/faq.html",
        says="A Ray node cannot reach the head node. Check its address, port 6379 and the firewall.",
    ),
    _start(
        r"module '[\w.]+' has no attribute",
        source="https://docs.python.org/3/library/exceptions.html#AttributeError",
        weight=LIKELY,
        says="Packages of versions that do not fit each other are installed.",
    ),
    _start(
        r"cannot import name",
        source="https://docs.python.org/3/library/exceptions.html#ImportError",
        weight=LIKELY,
        says="Packages of versions that do not fit each other are installed.",
    ),
    _start(
        r"MisconfigurationException",
        source="https://lightning.ai/docs/pytorch/stable/",
        weight=SYMPTOM,
        says="Lightning rejects the configuration of the job.",
    ),
)
