"""What launchers say themselves: torchrun, DeepSpeed, Accelerate, Lightning, fairseq.

Shells, ssh, Slurm, MPI, Ray and Kubernetes have tables of their own. DeepSpeed's words: deepspeed/launcher/runner.py.
"""

from __future__ import annotations

from functools import partial

from distcheck.cli.joblog.spelling import CONSEQUENCE, HINT, LIKELY, SYMPTOM, told
from distcheck.cli.joblog.spellings.packages import NO_MODULE

_DEEPSPEED = "https://github.com/deepspeedai/DeepSpeed/blob/master/deepspeed/launcher/runner.py"
_DETECTION = "https://github.com/deepspeedai/DeepSpeed/blob/master/deepspeed/comm/comm.py"
_ACCELERATE = "https://github.com/huggingface/accelerate/blob/main/src/accelerate/commands/launch.py"
_HOROVOD = "https://github.com/horovod/horovod/blob/master/horovod/runner"
_WINDOWS = "A script has line ends of Windows, or names an interpreter that this node lacks: run dos2unix on it."
_COLOSSALAI = "https://github.com/hpcaitech/ColossalAI/blob/main/colossalai/cli/launcher/multinode_runner.py"
_SHELL = "https://www.gnu.org/software/bash/manual/html_node/Exit-Status.html"
_PYTHON = "https://docs.python.org/3/library/exceptions.html"
_LIGHTNING = "https://lightning.ai/docs/pytorch/stable/"
_start = partial(told, about="start-up")
_MAIN = "https://github.com/python/cpython/blob/main/Modules/main.c"
_SEVERAL_NODES = r"nnodes[= ]+['\"]?[2-9]|--hostfile|pdsh|mpirun|srun: error"
_VERSIONS = "Packages of versions that do not fit each other are installed."

SPELLINGS = (
    # A script is missing.
    _start(
        r"bash: \S+\.sh: No such file or directory",
        "command-file-missing launch-failed",
        weight=LIKELY,
        source=_SHELL,
        near=r"pdsh@\S+: \S+: ssh exited|mpirun|srun: error",
    ),
    _start(
        r"Python in worker has different version",
        "sw-python-differs sw-packages-differ",
        source="https://github.com/apache/spark/blob/master/python/pyspark/worker.py",
    ),
    _start(
        r"can't open file '[^']*/distcheck': \[Errno 2\]",
        source=_MAIN,
        says="torchrun takes distcheck for a Python file: write --no-python before distcheck, or -m distcheck.",
    ),
    _start(
        r"can't open file '[^']+': \[Errno 2\]",
        "command-file-missing",
        weight=LIKELY,
        source=_MAIN,
        near=_SEVERAL_NODES,
    ),
    _start(
        r"can't open file '[^']+': \[Errno 2\]",
        about="application",
        weight=LIKELY,
        source=_MAIN,
        unless=_SEVERAL_NODES,
        says="The script that the command names does not exist.",
    ),
    _start(r"launcher '\w+' not installed", "launch-failed", source=_DEEPSPEED),
    # torchrun, DeepSpeed, Accelerate, Lightning.
    _start(
        r"(?:torchrun|launch\.py|accelerate|deepspeed|run\.py): error: ",
        source=_SHELL,
        unless=r"local[-_]rank",
        says="The launcher was started with wrong arguments.",
    ),
    _start(
        r"detect MPI environment\.\.\.",
        "env-rank-unset env-mpi-horovod-vars-only",
        weight=LIKELY,
        source=_DETECTION,
        near=r"named '?mpi4py|MPI_Init|MPI_ERRORS|libmpi|ORTE_ERROR|PMIX ERROR",
        unless=r"Discovered MPI settings",
    ),
    _start(
        r"No slot '\d+' specified on host",
        source=_DEEPSPEED,
        says="DeepSpeed counts fewer slots on the host than are asked for: check the hostfile and --include; it ignores CUDA_VISIBLE_DEVICES.",
    ),
    _start(
        r"Hostname '\S+' not found in hostfile",
        source=_DEEPSPEED,
        says="--include names a host that the hostfile lacks.",
    ),
    _start(
        r"Hostfile (?:.*(?:bad entry|multiple entries|not formatted)|is empty)",
        source=_DEEPSPEED,
        says="A line of the hostfile is not of the form `name slots=8`, or a name is in it twice.",
    ),
    _start(
        r"no extra nodes available via hostfile",
        source=_DEEPSPEED,
        says="--num_nodes is more than the hostfile has, or DeepSpeed found no hostfile.",
    ),
    _start(r"Unable to proceed, no GPU resources available", "gpu-none-visible", source=_DEEPSPEED),
    _start(
        r"hostname: invalid option",
        source=_DEEPSPEED,
        says="This machine's `hostname` has no option -I: give --master_addr.",
    ),
    _start(
        r"Unable to detect suitable master address via",
        source=_DEEPSPEED,
        says="DeepSpeed could not ask the first node for its address: set --master_addr.",
        unless=r"ssh: |exit status 255",
    ),
    _start(
        r"hostname -I'\]' returned non-zero",
        source=_DEEPSPEED,
        unless=r"\bssh\b",
        says="DeepSpeed could not run `hostname -I`: set MASTER_ADDR.",
    ),
    _start(
        r"deepspeed\.launcher\.launch (?:-\S+ )+(?!-)\S*host\S* \S+\.py\b",
        source=_DEEPSPEED,
        weight=SYMPTOM,
        says="DeepSpeed takes the hostfile for the script: give it with --hostfile=FILE, before the script.",
    ),
    _start(
        r"Unable to find hostfile, will proceed with training with local resources only",
        source=_DEEPSPEED,
        weight=HINT,
        says="DeepSpeed found no hostfile and starts ranks on this node only.",
    ),
    _start(r"MPI environment variables are not set", "env-rank-unset", weight=LIKELY, source=_DEEPSPEED),
    *(
        _start(
            pattern, weight=LIKELY, source=_DEEPSPEED, says="The options of DeepSpeed's launcher contradict each other."
        )
        for pattern in (
            r"backend does not support (?:worker include|limiting num nodes)",
            r"include_str and exclude_str are mutually exclusive",
            r"Cannot specify num_nodes/gpus with include/exclude",
            r"requires same number of devices per node",
            r"MIN:MAX format",
            r"Unknown launcher \S+$",
            r"without ssh, but --node_rank is not set correctly",
        )
    ),
    # Horovod's launcher.
    *(
        _start(pattern, "launch-failed", weight=LIKELY, source=_HOROVOD)
        for pattern in (
            r"horovod does not find an installed MPI",
            r"Requested more processes \(\d+\) than there are available slots",
            r"Invalid host input, please make sure it has",
            r"Different slots in -hosts parameter are not supported",
            r"Was unable to run mpirun",
        )
    ),
    *(
        _start(pattern, weight=LIKELY, source=_HOROVOD, says="Horovod was built without what the job asks of it.")
        for pattern in (
            r"(?:Gloo|MPI) support has not been built",
            r"Gloo support is required to use elastic training",
            r"Extension horovod\.\w+ has not been built",
            r"Horovod \S+ (?:op|extension) .*(?:not been built|not built)",
        )
    ),
    # Accelerate's launcher and notebooks.
    *(
        _start(
            pattern,
            weight=LIKELY,
            source=_ACCELERATE,
            says="The options or the configuration of accelerate do not fit.",
        )
        for pattern in (
            r"You can only use one of `--cpu`, `--multi_gpu`",
            r"The passed configuration file `.*` does not exist",
            r"need to manually pass in `--gpu_ids`",
            r"When using `deepspeed_config`, the following accelerate config variables",
            r"`Accelerator` should only be initialized inside your training function",
            r"when launching the training: CUDA has been initialized before",
            r"need to avoid running any instruction using `torch\.cuda`",
        )
    ),
    _start(
        r"can't create new processes if CUDA is already initialized",
        weight=LIKELY,
        source=_LIGHTNING,
        says="The script used CUDA before Lightning started its processes: move that into the training function.",
    ),
    _start(
        r"\b(?:Invalid|Unknown|Unsupported) launcher(?: type)?: ",
        weight=LIKELY,
        source="https://github.com/open-mmlab/mmengine/blob/main/mmengine/dist/utils.py",
        says="The script does not know this --launcher.",
    ),
    # torch.multiprocessing and Windows.
    _start(
        r"attempt has been made to start a new process before the",
        about="application",
        source="https://docs.python.org/3/library/multiprocessing.html#the-spawn-and-forkserver-start-methods",
        says="The script starts processes outside of `if __name__ == '__main__':`.",
    ),
    _start(
        r"KeyError: ['\"]PDSH_",
        source=_DEEPSPEED,
        says="DeepSpeed's launcher reads a variable that is not set: use another release of DeepSpeed.",
    ),
    _start(
        r"CUDAMismatchException",
        source=_DEEPSPEED,
        says="DeepSpeed compiles with another CUDA than torch's: install the CUDA toolkit of torch's version.",
    ),
    _start(
        r"You need to use at least 2 processes to use `--multi_gpu`",
        source=_ACCELERATE,
        says="accelerate's --num_processes does not fit --multi_gpu.",
    ),
    _start(
        r"Less than two GPU ids were configured",
        source=_ACCELERATE,
        says="accelerate's --gpu_ids names fewer than two GPUs.",
    ),
    _start(
        r"But your machine only has: ",
        "gpu-fewer-than-needed slurm-gpus-per-task-hides-gpus",
        about="GPU",
        source="https://github.com/Lightning-AI/pytorch-lightning/blob/master/src/lightning/fabric/utilities/device_parser.py",
    ),
    _start(
        r"MisconfigurationException",
        source=_LIGHTNING,
        weight=SYMPTOM,
        says="Lightning rejects the configuration of the job.",
    ),
    _start(
        r"Error: failed to run (?P<what>\S+)[^\0]* on \S+",
        "launch-failed launch-node-unreachable",
        weight=LIKELY,
        source=_COLOSSALAI,
    ),
    # Files of Windows.
    _start(r"^: No such file or directory", source=_SHELL, says=_WINDOWS),
    _start(r"\$'\\r': command not found", source=_SHELL, says=_WINDOWS),
    _start(r"bad interpreter: No such file", source=_SHELL, says=_WINDOWS),
    # Packages.
    _start(
        NO_MODULE,
        "sw-packages-differ launch-probe-missing sw-python-differs",
        weight=LIKELY,
        source=_PYTHON,
        near=r"Primary job\s+terminated|(?:mpirun|mpiexec)(?:\.real)? detected|pdsh@\S+: \S+: ssh exited|Command '+\[?'?ssh |task function was not",
        unless=r"'?etcd|mpi4py",
    ),
    _start(
        r"libnccl\.so\S* cannot open shared object file",
        source=_SHELL,
        says="The folder of libnccl.so is not in LD_LIBRARY_PATH.",
    ),
    _start(r"module '[\w.]+' has no attribute", source=_PYTHON, weight=LIKELY, says=_VERSIONS),
    _start(r"cannot import name", source=_PYTHON, weight=LIKELY, says=_VERSIONS),
    _start(
        r"returned a non-zero exit code",
        source=_SHELL,
        weight=CONSEQUENCE,
        about="application",
        says="A rank failed. The cause is in the lines of that rank before this report.",
    ),
)
