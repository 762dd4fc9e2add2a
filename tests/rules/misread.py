"""What no text and no command of a report may have, whoever wrote it."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from distcheck.facts.job import Job
    from distcheck.rules.finding import Finding

_THINGS = (
    "ranks|nodes|processes|GPUs|tasks|hosts|pods|agents|adapters|CPUs|groups|pairs|errors|warnings|findings|rules|lines|"
    "machines|operations|figures|devices|links|threads|cores|interfaces|domains|islands|files|models|versions|elements|"
    "attempts|packets|bytes|ports|packages|times|seconds"
)
_PROSE = {
    "a plural of one": rf"(?<![\d.,/:=-])\b1 (?:more |other )?(?:{_THINGS})\b",
    "a plural before one number": r"\b(?:ranks|GPUs|nodes|CPUs) \d+(?! (?:and|or|to)\b|[\d,.-])(?=[ ;:)]|$)",
    "a range of one": r"(?<![\w.:/-])(\d+)(?: to |-)\1(?![\w.:/-])",
    "a process named by pid twice": r"\bprocess(?:es)? \S+ pid \d",
    "a tautology": r"(?<![\w./=-])([\w.:/-]+) is \1(?![\w./:-])",
    "two marks at the end of a sentence": r"\?\.",
}
_COMMAND = {
    "another value on every node": r"\bRANDOM\b|MASTER_(?:ADDR|PORT)=\S*(?:\$\(hostname|\$\$)",
    "a formula of one": r"% 1\b",
    "a formula that takes what is not set for 0": r"\$\(\([^)]*(?<!\{)\b(?:\w+_)?(?:RANK|WORLD_SIZE)\b",
    "a host that nobody knows": r"HOST_OF|<\w+>",
}
_PROGRAM = re.compile(r"(?:\w+=\S* )*(?:sudo )?([\w./~-]+)(?:[ ;]|$)")


def misread(text: str) -> str:
    """Return what is wrong with a text, '' for nothing."""
    return next((f"{what}: {got[0]!r}" for what, pattern in _PROSE.items() if (got := re.search(pattern, text))), "")


def misleading(command: str) -> str:
    """Return what is wrong with a command, '' for nothing: each line is one for a shell, or a comment."""
    if got := next((what for what, pattern in _COMMAND.items() if re.search(pattern, command)), ""):
        return got
    if command.startswith("#"):
        return ""
    program = _PROGRAM.match(command)
    if program is None or (re.match(r"[\w.]+ ?(?:\(|= )", command)):
        return "no command of a shell"
    try:
        shlex.split(command, comments=True)
    except ValueError as error:
        return str(error)
    return ""


_SETTINGS = {
    "Slurm": (r"#SBATCH|\bsrun\b|\bsbatch\b|\bscontrol\b|\bsacct\b|\bsinfo\b|\bSLURM_", "SLURM_"),
    "PBS": (r"#PBS|\bPBS_", "PBS_"),
    "LSF": (r"#BSUB|\bLSB_", "LSB_"),
    "Kubernetes": (r"\bkubectl\b", "KUBERNETES_"),
}


def elsewhere(text: str, job: Job) -> str:
    """Return the scheduler that a fix or a message is for, although nothing of the job shows it; '' for none."""
    variables = {name for rank in job.ranks for name in rank.environment}
    engine = job.launched.engine if job.launched else ""
    for scheduler, (pattern, prefix) in _SETTINGS.items():
        known = any(name.startswith(prefix) for name in variables) or (scheduler == "Slurm" and engine == "slurm")
        if not known and job.ranks and job.asked.command != "node" and (got := re.search(pattern, text)):
            return f"{got[0]} without {scheduler}"
    return ""


_VARIABLES = re.compile(
    r"\b(?:RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|GROUP_RANK|MASTER_ADDR|MASTER_PORT|SLURM_\w+)\b"
)


def misquoted(why: str, finding: Finding) -> str:
    """Return the variables that a finding's explanation names although another one is at fault."""
    own = finding.evidence.get("variable")
    others = set(_VARIABLES.findall(why)) - set(_VARIABLES.findall(f"{finding.message} {own}"))
    return f"the fault is {own}, the explanation names {others}" if own and others else ""
