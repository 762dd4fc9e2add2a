"""Ranks, world size and master: variables and arguments that are missing, malformed or contradictory."""

from __future__ import annotations

from functools import partial

from distcheck.explain.spelling import HINT, LIKELY, NOISE, SYMPTOM, told

_RENDEZVOUS = "https://github.com/pytorch/pytorch/blob/main/torch/distributed/rendezvous.py"
_STORE = "https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/TCPStore.cpp"
_INT = "https://docs.python.org/3/library/functions.html#int"
_ENVIRON = "https://docs.python.org/3/library/os.html#os.environ"
_SAMPLER = "https://github.com/pytorch/pytorch/blob/main/torch/utils/data/distributed.py"
_BOOTSTRAP = "https://github.com/NVIDIA/nccl/blob/master/src/bootstrap.cc"
_INIT = "https://github.com/NVIDIA/nccl/blob/master/src/init.cc"
_MPI4PY = "https://github.com/deepspeedai/DeepSpeed/blob/master/deepspeed/comm/comm.py"
_DISCOVERY = r"mpi_discovery|detect MPI environment|init_distributed"
_C10D = "https://github.com/pytorch/pytorch/blob/main/torch/distributed/distributed_c10d.py"
_DEEPSPEED = "https://github.com/deepspeedai/DeepSpeed/blob/master/deepspeed/launcher/launcher_helper.py"
_LIGHTNING = "https://github.com/Lightning-AI/pytorch-lightning/tree/master/src/lightning/fabric/plugins/environments"
_DDP2 = (
    "https://github.com/Lightning-AI/pytorch-lightning/blob/1.0.8/pytorch_lightning/accelerators/ddp2_accelerator.py"
)
_FAIRSEQ = "https://github.com/facebookresearch/fairseq/blob/main/fairseq/distributed/utils.py"
_NCCL_UTILS = "https://github.com/pytorch/pytorch/blob/v1.4.0/torch/lib/c10d/NCCLUtils.hpp"
_STARTED = r"\b(?:torchrun|torchelastic|torch\.distributed\.(?:launch|run)|srun|slurm|mpirun|mpiexec|accelerate launch|horovodrun)\b"
_COLOSSALAI = "https://github.com/hpcaitech/ColossalAI/blob/main/colossalai/legacy/initialize.py"
_DING = "https://github.com/opendilab/DI-engine/blob/main/ding/utils/pytorch_ddp_dist_helper.py"
_JAX = "https://github.com/jax-ml/jax/blob/main/jax/_src/distributed.py"
_GLOO = "https://github.com/pytorch/gloo/blob/main/gloo/context.cc"
_LAUNCH = (
    "https://docs.pytorch.org/docs/stable/elastic/run.html#transitioning-from-torch-distributed-launch-to-torchrun"
)
_start = partial(told, about="start-up")
_VARIABLES = r"(?-i:RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT)"

SPELLINGS = (
    _start(
        rf"environment variable {_VARIABLES} expected, but not set",
        "env-rank-unset env-mpi-horovod-vars-only",
        source=_RENDEZVOUS,
    ),
    _start(
        rf"KeyError: (?:KeyError)?\(?['\"]{_VARIABLES}['\"]",
        "env-rank-unset env-mpi-horovod-vars-only",
        source=_ENVIRON,
    ),
    _start(
        r"KeyError: ['\"](?-i:LOCAL_RANK|LOCAL_WORLD_SIZE)['\"]", "env-local-rank-unset env-rank-unset", source=_ENVIRON
    ),
    _start(r"(?:KeyError: )?'LOCAL_RANK'$", "env-local-rank-unset env-rank-unset", source=_ENVIRON, near=r"environ"),
    _start(
        r"KeyError: (?:KeyError)?\(?['\"]?SLURM_(?:PROCID|LOCALID|NTASKS|NODEID|JOB_NODELIST|NODELIST)\b",
        "slurm-no-srun env-rank-unset",
        source=_ENVIRON,
    ),
    _start(r"KeyError: ['\"]?SLURM_\w+['\"]", "slurm-no-srun env-rank-unset", weight=LIKELY, source=_ENVIRON),
    _start(  # torch 0.4 to 1.0
        r"is not set but it is required for env:// init",
        "env-rank-unset env-mpi-horovod-vars-only",
        source="https://github.com/pytorch/pytorch/blob/v1.0.1/torch/lib/THD/base/init_methods/InitMethodEnv.cpp",
    ),
    _start(r"KeyError: (?:KeyError)?\(?['\"]OMPI_COMM_WORLD_", "env-rank-unset", source=_ENVIRON),
    # colossalai/legacy/initialize.py
    _start(
        r"Could not find ['\"]SLURM_\w+['\"] in the \w+ environment", "slurm-no-srun env-rank-unset", source=_COLOSSALAI
    ),
    _start(
        r"Could not find ['\"](?!SLURM_)(?-i:[A-Z_]+)['\"] in the \w+ environment",
        "env-rank-unset env-mpi-horovod-vars-only",
        source=_COLOSSALAI,
    ),
    # dist_init() of SenseTime's frameworks and what is derived from them: DI-engine, LightZero, PySOT
    _start(r"please indicate (?:rank|world_size) explicitly", "env-rank-unset slurm-no-srun", source=_DING),
    _start(
        r"KeyError: ['\"](?-i:(?:MASTER|NODE|GROUP|GLOBAL|LOCAL|WORLD|PMI)_\w+|NNODES)['\"]",
        "env-rank-unset env-local-rank-unset",
        weight=LIKELY,
        source=_ENVIRON,
        near=r"environ|os\.py|dist|_RANK|launch",
    ),
    _start(r"raise _env_error\(['\"](?P<variable>\w+)", "env-rank-unset env-mpi-horovod-vars-only", source=_RENDEZVOUS),
    _start(r"raise _env_error\(", "env-rank-unset env-mpi-horovod-vars-only", weight=SYMPTOM, source=_RENDEZVOUS),
    _start(r"No module named '?mpi4py", "env-rank-unset env-mpi-horovod-vars-only", source=_MPI4PY, near=_DISCOVERY),
    _start(
        r"(?:Error|Exception|assert\w*)\b.{0,160}(?:must|should|please|need to|have to|only)\b.{0,60}\b(?:launch|run|start|call|invok)\w*\b.{0,40}\b"
        r"(?:with|using|via|by|through|from)\b.{0,12}torch(?:run\b|\.distributed\.(?:launch|run))",
        "env-rank-unset",
        weight=LIKELY,
        source=_LAUNCH,
    ),
    *(
        _start(
            rf"(?:Error|Exception)\b.{{0,160}}{words}\b.{{0,60}}\b(?:us|start|launch|run|execut)\w*\b.{{0,20}}{_STARTED}",
            "env-rank-unset",
            weight=LIKELY,
            source=_LAUNCH,
        )
        for words in ("please", "need to", "needs to", "should", "must be", "requires", "have to")
    ),
    _start(
        r"Error\b.{0,60}\bonly works? in distributed training",
        "env-rank-unset",
        weight=LIKELY,
        source="https://github.com/huggingface/transformers/blob/main/src/transformers/training_args.py",
    ),
    *(
        _start(
            rf"(?:Error|Exception)\b.{{0,80}}\bonly {words}\b.{{0,60}}{_STARTED}",
            "env-rank-unset slurm-no-srun",
            weight=LIKELY,
            source=_DDP2,
        )
        for words in ("works", "supported", "available", "usable", "runs", "possible")
    ),
    _start(r"world size is \d+ but have \d+ available devices", "gpu-fewer-than-needed", about="GPU", source=_FAIRSEQ),
    _start(
        r"Cannot initialize distributed with distributed_world_size=1",
        weight=LIKELY,
        source=_FAIRSEQ,
        says="fairseq took its ranks from the scheduler's variables, and there is one: unset them, or start more ranks.",
    ),
    _start(
        r"--ntasks-per-node must match number of",
        "slurm-ntasks-vs-devices",
        weight=LIKELY,
        source=_FAIRSEQ,
    ),
    _start(r"(?:`rank`|`world_size`) must be an integer\. None", "env-rank-unset", source=_RENDEZVOUS),
    _start(r"(?:local_rank|rank) number is not in current env", "env-rank-unset", source=_DEEPSPEED),
    _start(r"JSM_NAMESPACE_\w+` not found", "env-rank-unset", source=_LIGHTNING),
    _start(
        r"int\(\) argument must be a string.* not '?NoneType",
        "env-rank-unset env-local-rank-unset",
        source=_INT,
        near=rf"{_VARIABLES}|LOCAL_RANK|environ|getenv",
    ),
    _start(
        r"invalid literal for int\(\) with base 10: ['\"]['\"]",
        "env-empty-string",
        source=_INT,
        near=rf"{_VARIABLES}|LOCAL_RANK|environ|getenv|rendezvous",
    ),
    _start(
        r"invalid literal for int\(\) with base 10: ['\"][^'\"]+['\"]",
        "env-not-integer env-empty-string",
        source=_INT,
        near=rf"{_VARIABLES}|LOCAL_RANK|environ|getenv|rendezvous",
        unless=r"nproc_per_node|determine_local_world_size",
    ),
    _start(r"(?:rank|world_size|world size) parameter (?:missing|required)", "env-rank-unset", source=_RENDEZVOUS),
    _start(r"rendezvous: (?:rank|world[_ ]size) .*missing", "env-rank-unset", source=_RENDEZVOUS),
    _start(r"unrecognized arguments:.*\blocal[-_]rank\b", "launch-local-rank-arg", source=_LAUNCH),
    _start(r"no such option:? --local[-_]rank", "launch-local-rank-arg", source=_LAUNCH),
    _start(r"unknown command line flag 'local[-_]rank'", "launch-local-rank-arg", source=_LAUNCH),
    _start(r"Could not consume arg: --local[-_]rank", "launch-local-rank-arg", source=_LAUNCH),
    _start(r"hydra: error: .*--local[-_]rank", "launch-local-rank-arg", source=_LAUNCH),
    _start(r"not used by the HfArgumentParser: .*--local[-_]rank", "launch-local-rank-arg", source=_LAUNCH),
    _start(r"arguments are required: --local[-_]rank", "launch-local-rank-arg env-local-rank-unset", source=_LAUNCH),
    _start(
        r"IndexError: (?:list|tuple) index out of range",
        "env-local-rank-out-of-range gpu-fewer-than-needed",
        weight=LIKELY,
        source=_ENVIRON,
        trace=r"\[[^\]\n]*local_?rank[^\]\n]*\]+[^\n]*\n(?:[ ~^]*\n){0,2}[^\n]*$",
    ),
    _start(
        r"found at least two devices, cuda:0 and cuda:[1-9]",
        "env-local-rank-unset env-mpi-horovod-vars-only",
        source=_ENVIRON,
        near=r"mpirun|mpiexec|--launcher[= ]mpi|OMPI_COMM",
    ),
    _start(r"Invalid rank \d+, rank should be in the interval", "env-rank-out-of-range", source=_SAMPLER),
    _start(r"rank should be within the world_size", "env-rank-out-of-range env-world-size-mismatch", source=_C10D),
    _start(r"world size should be less or equal to the world size", "env-world-size-mismatch", source=_C10D),
    _start(r"Invalid rank requested :", "env-rank-out-of-range", source=_INIT),
    _start(  # only ncclCommInitRank is called there, whose arguments are the rank and the number of ranks
        r"NCCLUtils\.hpp:\d+, invalid argument",
        "env-rank-out-of-range env-world-size-mismatch slurm-ntasks-vs-devices",
        weight=LIKELY,
        source=_NCCL_UTILS,
        unless=r"NCCL WARN",
    ),
    _start(r"rank < size\. ?\d+ vs -", "env-world-size-zero-neg", source=_GLOO),
    _start(r"rank < size\. ?\d+ vs \d", "env-rank-out-of-range", source=_GLOO),
    _start(r"TCPStore world size cannot be 0", "env-world-size-zero-neg", source=_STORE),
    _start(r"Bootstrap Root : rank \d+ of \d+ ranks has already checked in", "env-rank-duplicate", source=_BOOTSTRAP),
    _start(
        r"Bootstrap Root : mismatch in (?:rank count|info) from procs", "env-world-size-mismatch", source=_BOOTSTRAP
    ),
    _start(
        r"port must (?:be|have value from) 0(?:-| to )65535",
        "env-master-port-range",
        source="https://docs.python.org/3/library/socket.html",
    ),
    _start(r"port number .*out of range", "env-master-port-range", source=_RENDEZVOUS),
    _start(  # Slurm's plugin of Lightning: the only rank that says that it starts is the one of the batch shell
        r"GLOBAL_RANK: 0, MEMBER: 1/(?!1\b)\d+",
        "slurm-no-srun env-rank-missing",
        weight=HINT,
        source=_LIGHTNING,
        near=r"handled by Slurm|srun. command is available|SLURM auto-requeueing",
        unless=r"GLOBAL_RANK: [1-9]|All distributed processes registered|Starting with \d+ processes",
    ),
    _start(
        r"GLOBAL_RANK: \d+, MEMBER: \d+/\d+",
        "env-rank-duplicate slurm-ntasks-vs-devices",
        weight=SYMPTOM,
        twice=True,
        source="https://github.com/Lightning-AI/pytorch-lightning/blob/master/src/lightning/fabric/utilities/distributed.py",
    ),
    _start(
        r"The `srun` command is available on your system but is not used",
        "slurm-no-srun",
        weight=HINT,
        source="https://github.com/Lightning-AI/pytorch-lightning/blob/master/src/lightning/fabric/plugins/environments/slurm.py",
    ),
    _start(r"Multiple Ranks are using the same GPU", "gpu-duplicate env-local-rank-unset", source=_INIT),
    _start(
        rf"\b{_VARIABLES}\b.{{0,40}} not set\b(?!.*(?:default|using|assum))",
        "env-rank-unset",
        weight=LIKELY,
        source=_RENDEZVOUS,
    ),
    _start(rf"\b{_VARIABLES}\b.{{0,40}} must be set\b", "env-rank-unset", weight=LIKELY, source=_RENDEZVOUS),
    _start(rf"\b{_VARIABLES}: unbound variable", "env-rank-unset", source=_RENDEZVOUS),
    _start(
        r"TypeError: .*NoneType",
        "env-rank-unset env-local-rank-unset",
        weight=LIKELY,
        source=_ENVIRON,
        trace=rf"(?:environ\.get|getenv)\(['\"]{_VARIABLES}['\"]\)[^\n]*\n(?:[ ~^]*\n){{0,2}}[^\n]*$",
    ),
    _start(  # the line of the script in a traceback whose end is missing
        rf"^\s.*int\(os\.environ\[['\"]{_VARIABLES}['\"]\]\)", "env-rank-unset", weight=HINT, source=_ENVIRON
    ),
    *(
        _start(pattern, "env-rank-unset slurm-no-srun", weight=LIKELY, source=_JAX)
        for pattern in (
            r"coordinator_address should be defined",
            r"Number of processes must be defined",
            r"process id of the current process must be defined",
        )
    ),
    _start(r"str expected, not NoneType", "env-rank-unset", weight=LIKELY, source=_ENVIRON, near=_VARIABLES),
    _start(r"Setting OMP_NUM_THREADS environment variable", "perf-omp-1", weight=NOISE, source=_LAUNCH),
)
