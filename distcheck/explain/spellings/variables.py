"""Variables and arguments of ranks in the words of trainers: missing ones, values that are no number or no host, GPUs beyond the last.

The traceback's line of the script itself is a spelling too, since an assertion without a message has no other words.
"""

from __future__ import annotations

from functools import partial

from distcheck.explain.spelling import CAUSE, HINT, LIKELY, SHAPE, SYMPTOM, told

_ENGINE = "https://github.com/deepspeedai/DeepSpeed/blob/master/deepspeed/runtime/engine.py"
_IGNITE = "https://github.com/pytorch/ignite/blob/master/ignite/distributed/comp_models/native.py"
_TORCHTUNE = "https://github.com/meta-pytorch/torchtune/blob/main/recipes/full_finetune_distributed.py"
_COLOSSALAI = "https://github.com/hpcaitech/ColossalAI/blob/main/colossalai/initialize.py"
_FAIRSEQ = "https://github.com/facebookresearch/fairseq/blob/v0.6.0/train.py"
_RENDEZVOUS = "https://github.com/pytorch/pytorch/blob/main/torch/distributed/rendezvous.py"
_SOCKET = "https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/socket.cpp"
_FILE_STORE = "https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/FileStore.cpp"
_GLOO = "https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/ProcessGroupGloo.cpp"
_C10D = "https://github.com/pytorch/pytorch/blob/main/torch/distributed/distributed_c10d.py"
_DEVICE = "https://github.com/pytorch/pytorch/blob/main/c10/core/Device.cpp"
_CUDA = "https://docs.pytorch.org/docs/stable/generated/torch.cuda.set_device.html"
_VLLM = "https://github.com/vllm-project/vllm/blob/main/vllm/v1/worker/gpu_worker.py"
_XPU = "https://github.com/pytorch/pytorch/blob/main/c10/xpu/XPUFunctions.cpp"
_ASCEND = "https://www.hiascend.com/document/detail/en/canncommercial/800/troubleshooting"
_LSF = "https://github.com/Lightning-AI/pytorch-lightning/blob/master/src/lightning/fabric/plugins/environments/lsf.py"
_RUNNER = "https://github.com/deepspeedai/DeepSpeed/blob/master/deepspeed/launcher/runner.py"
_SCONTROL = "https://slurm.schedmd.com/scontrol.html"
_SHELL = "https://www.gnu.org/software/bash/manual/html_node/Shell-Parameter-Expansion.html"
_ENVIRON = "https://docs.python.org/3/library/os.html#os.environ"
_INT = "https://docs.python.org/3/library/functions.html#int"
_TORCHRUN = "https://docs.pytorch.org/docs/stable/elastic/run.html"
_start = partial(told, about="start-up", weight=LIKELY)
_gpu = partial(told, about="GPU", weight=LIKELY)
_BEYOND = "env-local-rank-out-of-range gpu-fewer-than-needed slurm-gpus-per-task-hides-gpus"
_UNSET = "env-rank-unset env-mpi-horovod-vars-only"
_NO_LOCAL_RANK = "env-local-rank-unset env-rank-unset"
_LAUNCHED = r"\b(?:launch(?:ed|er|ing)?|torchrun|torch\.distributed\.(?:launch|run)|mpirun|srun)\b"
_NAMES = r"(?-i:(?:LOCAL_|GLOBAL_|NODE_|GROUP_)?RANK|(?:LOCAL_)?WORLD_SIZE|MASTER_(?:ADDR|PORT)|NNODES)"
_LOCAL_RANK = r"\blocal[_ -]?rank\b"
_GPUS = r"(?:GPUs?|devices?|device_count|CUDA|cards?)"
_LIST = r"\(\S*\w\[[\d,-]+\]\S*, "
"""A list of hosts as Slurm abbreviates them: node[01-04]."""
_WITH_PORT = r"\([\w.-]+:\d+, "
_NO_HOST = r"\(\S*[/\\$\"'<>{}@;|=*?]\S*, "
"""A path, a URL, or what a shell did not expand."""
_PLACES = ("network addresses of ", "to connect to ", "any network address of ")

SPELLINGS = (
    # The script was started without a launcher, or for another one.
    _start(r"requires the LOCAL_RANK environment variable", _NO_LOCAL_RANK, source=_ENGINE),
    _start(r"should be run via a distributed launcher", _UNSET, source=_TORCHTUNE),
    _start(r"distributed configuration should define env variables", _UNSET, source=_IGNITE),
    _start(
        r"Could not find '?SLURM_\w+'? in the SLURM environment", "slurm-no-srun env-rank-unset", source=_COLOSSALAI
    ),
    _start(r"Could not find '?OMPI_\w+'? in the OpenMPI environment", "env-rank-unset", source=_COLOSSALAI),
    _start(r"--distributed-init-method or --distributed-port must be specified", "env-rank-unset", source=_FAIRSEQ),
    *(
        _start(rf"(?:Error|Exception)\b.{{0,120}}\b{words}\b.{{0,40}}{_LAUNCHED}", _UNSET, source=_TORCHRUN)
        for words in (
            "not launched (?:with|via|using|by|through|from)",
            "must be launched (?:with|via|using|by|through|from|under)",
            "must be started (?:with|via|using|by|through|from|under)",
            "must be run (?:with|via|using|by|through|from|under)",
            "not running (?:with|via|using|by|through|from|under)",
            "not started (?:with|via|using|by|through|from|under)",
            "did you (?:forget to )?(?:launch|start|run|use)",
            "expected to be (?:launched|started|run)",
        )
    ),
    *(
        _start(
            rf"\b(?:master[_ ](?:addr(?:ess)?|port|ip)|main_process_(?:ip|port))\b.{{0,60}}\b{words}",
            "env-rank-unset env-empty-string",
            weight=SHAPE,
            fallback=True,
            source=_IGNITE,
        )
        for words in (
            "be specified",
            "be provided",
            "not specified",
            "not provided",
            "be given",
            "is required",
            "is missing",
        )
    ),
    _start(
        rf"\b{_NAMES}: parameter (?:null or )?not set", "env-rank-unset env-empty-string", weight=CAUSE, source=_SHELL
    ),
    *(
        _start(rf"KeyError: ['\"]{name}", _UNSET, source=_ENVIRON)
        for name in (
            "PMIX_RANK",
            "MV2_COMM_WORLD_",
            "MPI_LOCAL(?:RANKID|NRANKS)",
            "PALS_(?:LOCAL_)?RANK",
            "FLUX_TASK_",
            "JSM_NAMESPACE_",
            "HOROVOD_(?:LOCAL_|CROSS_)?(?:RANK|SIZE)",
            "LSB_(?:MCPU_HOSTS|DJOB_HOSTFILE)",
            "PBS_NODEFILE",
            "(?:COBALT|PBS_O)_\\w*NODE\\w*",
            "AZ_BATCH(?:AI)?_\\w*MASTER\\w*",
            "VC_WORKER_",
            "MLP_WORKER_",
            "JOB_COMPLETION_INDEX",
        )
    ),
    _start(r"Did not find the environment variable", "env-rank-unset", source=_LSF),
    _start(r"Using IP address of\s+for node", "env-empty-string host-own-name-unresolvable", source=_RUNNER),
    told(
        r"client socket has timed out after ",
        "env-torchelastic-leak",
        about="network",
        weight=CAUSE,
        source=_SOCKET,
        near=r"TORCHELASTIC_USE_AGENT_STORE\W{1,4}True",
    ),
    _start(
        r"Rendezvous ?Timeout ?Error",
        "env-pet-leak torchrun-nnodes-mismatch",
        source=_TORCHRUN,
        near=r"\bPET_(?:NNODES|NPROC_PER_NODE|RDZV_\w+|MIN_SIZE|MAX_SIZE)=",
        unless=r"kubernetes|\bpod\b|pytorchjob",
    ),
    _start(r"tcp:// rendezvous: port number missing", "env-rank-unset env-master-addr-format", source=_RENDEZVOUS),
    # Values: a host with a port, a list of hosts, a URL without its scheme, words instead of numbers.
    _start(
        r"No rendezvous handler for ://",
        source=_RENDEZVOUS,
        says="The script has no URL for the rendezvous, or one without tcp:// or env:// before the host: look at its --dist-url.",
    ),
    _start(
        r"No rendezvous handler for (?!tcp|file|env|etcd|c10d|static)[\w.-]+://",
        "env-master-addr-format",
        source=_RENDEZVOUS,
    ),
    *(
        told(
            place + value,
            "env-master-addr-format env-master-addr-unresolvable",
            about="network",
            weight=CAUSE,
            source=_SOCKET,
        )
        for place in _PLACES
        for value in (_LIST, _WITH_PORT, _NO_HOST)
    ),
    _start(
        r"ValueError: Invalid IPv6 URL",
        "env-master-addr-format",
        source="https://github.com/python/cpython/blob/main/Lib/urllib/parse.py",
        near=r"rendezvous|init_process_group|TCPStore|tcp://",
    ),
    _start(
        r"invalid (?:literal for int\(\) with base 10|int value): ['\"](?:\d+\(x\d+\)|\$\{?\w+)",
        "env-not-integer env-empty-string",
        weight=CAUSE,
        source=_INT,
    ),
    _start(
        r"--?(?:master|main_process)[_-]port\S*: invalid int value: ['\"][^'\"]+",
        "env-not-integer env-master-port-range",
        weight=CAUSE,
        source=_TORCHRUN,
    ),
    _start(  # so that MASTER_ADDR stays empty
        r"scontrol: error: host list is empty", "env-empty-string slurm-no-srun", weight=SYMPTOM, source=_SCONTROL
    ),
    # A local rank that is missing, or beyond the last GPU.
    _gpu(r"Invalid device string: '(?:cuda|xpu|npu):(?:None|-1|)'", _NO_LOCAL_RANK, about="start-up", source=_DEVICE),
    _gpu(
        r"Expected a torch\.device with a specified index or an integer, but got: ?(?:None|cuda$)",
        _NO_LOCAL_RANK,
        about="start-up",
        source=_CUDA,
    ),
    _gpu(
        r"Device index must (?:not be negative|be -1 or non-negative)", _NO_LOCAL_RANK, about="start-up", source=_DEVICE
    ),
    _gpu(
        r"'Namespace' object has no attribute 'local_?rank'",
        "env-local-rank-unset launch-local-rank-arg",
        about="start-up",
        weight=SYMPTOM,
        source=_CUDA,
    ),
    _gpu(r"DP adjusted local rank \d+ is out of bounds(?! for 0)(?!.*count: 0)", _BEYOND, source=_VLLM),
    _gpu(r"DP adjusted local rank \d+ is out of bounds.*(?:for 0|count: 0)", "gpu-none-visible", source=_VLLM),
    _gpu(rf"\bassert\b.*{_LOCAL_RANK} ?< ?\S*(?:device_count|num_gpus|n_gpus?|ngpus)\b", _BEYOND, source=_CUDA),
    *(
        _gpu(
            rf"(?:Error|Exception|assert)\w*\b.{{0,60}}{_LOCAL_RANK}.{{0,40}}\b{words}\b.{{0,60}}\b{_GPUS}",
            _BEYOND,
            source=_CUDA,
        )
        for words in (
            "exceeds?",
            "out of (?:range|bounds)",
            "but (?:only|this)",
            "cannot (?:map|use)",
            "less than",
            "smaller than",
            "greater than",
            "larger than",
            "invalid",
            "not available",
            "does not exist",
        )
    ),
    _gpu(
        rf"{_LOCAL_RANK}\W{{0,4}}\d+\)? ?>=? ?.{{0,30}}(?:device_count|num_gpus|GPUs?|devices)", _BEYOND, source=_CUDA
    ),
    _gpu(rf"\bInvalid {_LOCAL_RANK}\W{{0,3}}[1-9]", _BEYOND, source=_CUDA),
    _gpu(r"device index is out of range.{0,60}but got", _BEYOND, source=_XPU),
    _gpu(r"\bDevice ordinal \d+ (?:does not exist|is out of range|is invalid)", _BEYOND, source=_CUDA),
    _gpu(r"\bdevice[_ ]?(?:id|index|ordinal)\b.{0,16}\bout of range\b.{0,30}\b\d+ devices?", _BEYOND, source=_CUDA),
    _gpu(r"\bInvalid CUDA device\W{0,3}\d+.{0,30}\bonly \d", _BEYOND, source=_CUDA),
    _gpu(
        r"\bInvalid device ID\b(?!entit)", _BEYOND, weight=SYMPTOM, source=_ASCEND, near=r"SetDevice|\bRTS\b|107001|npu"
    ),
    # Worlds.
    _start(
        r"world[_ ]?size\b.{0,40}(?:divisible by|multiple of).{0,16}local[_ ]world[_ ]?size",
        "env-local-world-size-inconsistent env-world-size-mismatch",
        weight=CAUSE,
        source=_C10D,
    ),
    _start(
        r"LOCAL_WORLD_SIZE\b.{0,40}(?:(?:does not|doesn't|must|should) (?:be )?(?:equal|match)|!=|mismatch|differs)",
        "env-local-world-size-inconsistent env-world-size-mismatch",
        source=_C10D,
        weight=SYMPTOM,
        unless=r"device_count",
    ),
    # A key of the store that another rank writes while the default group starts: Gloo's mesh, and the barrier after it.
    _start(
        r"wait timeout after \d+ms, keys: \S*default_pg/0//cpu//0/(?P<missing>\d{1,6})",
        "env-rank-missing env-rank-duplicate env-world-size-mismatch",
        weight=SYMPTOM,
        source=_GLOO,
    ),
    _start(
        r"wait timeout after \d+ms, keys: \S*default_pg/0//store_based_barrier_key",
        "env-rank-missing env-world-size-mismatch",
        weight=SYMPTOM,
        source=_C10D,
    ),
    # A file instead of a store.
    _start(
        r"file:// rendezvous: (?:path|rank|world size)\b.*missing",
        "net-file-rendezvous-nfs env-rank-unset",
        source=_RENDEZVOUS,
    ),
    _start(
        r"Timeout waiting for key: \S+ after \d+ ms",
        "net-file-rendezvous-nfs env-rank-missing",
        weight=SYMPTOM,
        source=_FILE_STORE,
    ),
    _start(
        r"RuntimeError: Wait timeout$", "net-file-rendezvous-nfs env-rank-missing", weight=SYMPTOM, source=_FILE_STORE
    ),
    _start(
        r"\bstale file handle\b",
        "net-file-rendezvous-nfs storage-hangs",
        weight=SYMPTOM,
        source=_FILE_STORE,
        near=r"FileStore|file:///",
    ),
    _start(
        r"RuntimeError: open\(\S+\): (?:No such|Permission)",
        "net-file-rendezvous-nfs storage-path-missing",
        source=_FILE_STORE,
    ),
    _start(
        r"Not using distributed mode$", "env-rank-unset", weight=HINT, source=_C10D, near=r"\bLOCAL_RANK\b|torchrun"
    ),
)
