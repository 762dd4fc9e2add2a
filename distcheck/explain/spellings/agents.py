"""Elastic agents and their scripts: nodes that come and go, restarts, arguments that a launcher adds, tasks that do not fit.

Words: torch/distributed/elastic of torch 1.9 to 2.13, horovod/common/elastic.py, argparse and other parsers of arguments.
"""

from __future__ import annotations

from functools import partial

from distcheck.explain.spelling import HINT, LIKELY, SYMPTOM, told

_AGENT = "https://github.com/pytorch/pytorch/blob/main/torch/distributed/elastic/agent/server/api.py"
_DYNAMIC = "https://github.com/pytorch/pytorch/blob/main/torch/distributed/elastic/rendezvous/dynamic_rendezvous.py"
_HOROVOD = "https://github.com/horovod/horovod/blob/master/horovod/common/exceptions.py"
_DRIVER = "https://github.com/horovod/horovod/blob/master/horovod/runner/elastic/driver.py"
_LAUNCH = (
    "https://docs.pytorch.org/docs/stable/elastic/run.html#transitioning-from-torch-distributed-launch-to-torchrun"
)
_LIGHTNING = (
    "https://github.com/Lightning-AI/pytorch-lightning/blob/master/src/lightning/fabric/plugins/environments/slurm.py"
)
_LOADER = "https://github.com/pytorch/pytorch/blob/main/torch/utils/data/dataloader.py"
_SLURM = "https://slurm.schedmd.com/srun.html#OPT_cpus-per-task"
_ENVIRON = "https://docs.python.org/3/library/os.html#os.environ"
_COMM = "https://github.com/deepspeedai/DeepSpeed/blob/master/deepspeed/comm/comm.py"
_HELPER = "https://github.com/deepspeedai/DeepSpeed/blob/master/deepspeed/launcher/launcher_helper.py"
_NOTEBOOK = "https://github.com/huggingface/accelerate/blob/main/src/accelerate/launchers.py"
_start = partial(told, about="start-up")
_ARGUMENT = "launch-local-rank-arg"
_OPTION = r"['\"\u2018]?--local[-_]rank\b"

SPELLINGS = (
    # --local-rank, in the words of further parsers
    *(
        _start(pattern, _ARGUMENT, weight=weight, source=_LAUNCH)
        for pattern, weight in (
            (rf"no such option:? {_OPTION}", LIKELY),
            (rf"ambiguous option: {_OPTION}", LIKELY),
            (rf"unexpected (?:argument|option) {_OPTION}", LIKELY),
            (rf"unknown (?:argument|option|flag|parameter)s?:? {_OPTION}", LIKELY),
            (rf"(?:unrecognized|unsupported|invalid) (?:argument|option|flag)s?:? {_OPTION}", LIKELY),
            (r"option --local[-_]rank not recognized", LIKELY),
            (r"argument --local[-_]rank: (?:expected|invalid|not allowed)", LIKELY),
            (
                r"(?:GetoptError|ParserError|ParseError|ConfigKeyError|LexerNoViableAlt\w*|OverrideParseException|ConfigCompositionException).*local[-_]rank",
                LIKELY,
            ),
            (r"Could not override '-*local[-_]rank", LIKELY),
            (r"Key ['\"]-*local[-_]rank['\"] (?:is not|not) ", LIKELY),
            (r"KeyError: ['\"]--local[-_]rank", LIKELY),
            (r"mismatched input '=' .*--local[-_]rank", LIKELY),
            (r"'Namespace' object has no attribute 'local_?rank'", SYMPTOM),
            (r"--local[-_]rank.{0,60}\b(?:must|should|need|has to|required)\b", HINT),
        )
    ),
    # nodes that come and go
    *(
        _start(pattern, "elastic-nodes-changed", weight=HINT, source=source)
        for pattern, source in (
            (r"Detected \d+ new nodes from group_rank", _AGENT),
            (r"Membership changed, restarting", _AGENT),
            (r"HostsUpdatedInterrupt", _HOROVOD),
            (r"participants? .{0,60}\bleft the rendezvous\b", _DYNAMIC),
            (r"\bworkers? (?:joined|left).{0,40}\brestart", _DRIVER),
        )
    ),
    _start(
        r"blacklist(?:ed)? (?:failing host|host|slots count)",
        "elastic-nodes-changed launch-node-unreachable",
        weight=SYMPTOM,
        source=_DRIVER,
    ),
    _start(r"attempts left; will restart worker group", "elastic-restart-stale", weight=HINT, source=_AGENT),
    _start(
        r"number of nodes .{0,40}\b(?:is |was )?less than .{0,20}\bmin",
        "torchrun-nnodes-mismatch env-rank-missing",
        weight=LIKELY,
        source=_DYNAMIC,
    ),
    *(
        _start(
            rf"{words}\b.{{0,60}}\b(?:do(?:es)? not match|doesn't match|mismatch|not equal|must (?:be the same|match))",
            rules,
            weight=SYMPTOM,
            source=_AGENT,
        )
        for words, rules in (
            (r"\bnnodes", "torchrun-nnodes-mismatch"),
            (r"\bnum_nodes", "torchrun-nnodes-mismatch"),
            (r"\bnumber of nodes", "torchrun-nnodes-mismatch"),
            (r"\bnproc_per_node", "torchrun-nproc-mismatch"),
            (r"\blocal[ _]world[ _]size", "torchrun-nproc-mismatch env-local-world-size-inconsistent"),
        )
    ),
    _start(
        r"Timed out waiting for (?:all |the )?(?:\d+ )?(?:other )?(?:nodes|ranks|workers|processes|peers|agents)\b",
        "env-rank-missing torchrun-nnodes-mismatch",
        weight=SYMPTOM,
        source=_DYNAMIC,
    ),
    _start(r"\bduplicated? node[-_ ]rank", "torchrun-node-rank-duplicated", weight=LIKELY, source=_AGENT),
    # variables of MPI that contradict torch's, and options of accelerate and DeepSpeed
    _start(
        r"MPI rank \d+ does not match torch rank", "env-scheduler-disagrees env-mpi-horovod-vars-only", source=_COMM
    ),
    _start(
        r"MPI world size \d+ does not match torch world size",
        "env-world-size-mismatch env-mpi-horovod-vars-only",
        source=_COMM,
    ),
    _start(r"\brank number doesn't match!", "env-scheduler-disagrees", weight=LIKELY, source=_HELPER),
    _start(r"node_rank must be less than the number of nodes", "torchrun-nnodes-mismatch", source=_NOTEBOOK),
    _start(
        r"need to specify the main process (?:IP|port)",
        weight=LIKELY,
        source=_NOTEBOOK,
        says="accelerate launch needs --main_process_ip and --main_process_port for several machines.",
    ),
    _start(
        r"Specified distributed type .* but only using 1 GPU",
        weight=LIKELY,
        source=_NOTEBOOK,
        says="accelerate's configuration names a distributed type for one GPU.",
    ),
    # Slurm's tasks
    *(
        _start(pattern, "slurm-ntasks-vs-devices", weight=LIKELY, source=_LIGHTNING)
        for pattern in (
            r"tasks[- _]per[- _]node\b.{0,80}\b(?:must|should|does not|doesn't|!=|not equal|mismatch)",
            r"\b(?:must|should|does not|doesn't|not) (?:be |equal |match ).{0,60}tasks[- _]per[- _]node\b",
            r"SLURM_NTASKS(?:_PER_NODE)?\b.{0,60}(?:!=|does not match|mismatch|must (?:be|match|equal))",
        )
    ),
    *(
        _start(
            rf"SLURM_(?-i:[A-Z_]+)\b.{{0,40}}\b{words}", "slurm-no-srun env-rank-unset", weight=LIKELY, source=_ENVIRON
        )
        for words in (
            r"(?:is |was )?(?:not set|unset|missing|undefined)\b(?!.*default)",
            r"(?:not found|must be set|unbound variable|not defined)",
        )
    ),
    *(
        _start(pattern, "slurm-no-srun env-rank-unset", weight=LIKELY, source=_ENVIRON)
        for pattern in (
            r"did you (?:launch|start|run)\w* .{0,40}\bsrun\b",
            r"please (?:launch|start|run|use)\w* .{0,40}\bsrun\b",
            r"must be (?:launched|started|run|submitted) .{0,40}\bsrun\b",
            r"should be (?:launched|started|run|submitted) .{0,40}\bsrun\b",
            r"environ\[['\"]SLURM_\w+['\"]\] .*KeyError",
        )
    ),
    _start(
        r"suggested max number of worker in current system is [12],",
        "slurm-cpus-per-task-not-inherited",
        weight=HINT,
        source=_LOADER,
        near=r"slurm|srun",
    ),
    _start(
        r"cpus-per-task\b.{0,60}\b(?:no longer|not) (?:inherited|read|respected)",
        "slurm-cpus-per-task-not-inherited",
        weight=LIKELY,
        source=_SLURM,
    ),
)
