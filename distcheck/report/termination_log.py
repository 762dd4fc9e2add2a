"""Verdict, findings and fixes for the termination log of a Kubernetes container.

``kubectl describe pod`` prints the first 4096 bytes of the file as the message of the last state. The kubelet creates
the file. DISTCHECK_TERMINATION_LOG names a ``terminationMessagePath`` other than the default.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from distcheck.facts.errors import WriteError
from distcheck.facts.job import Job
from distcheck.report.harmless import harmless
from distcheck.report.headline import headline
from distcheck.rules.diagnose import Diagnosis

LARGEST_BYTES = 4096
_USUAL = Path("/dev/termination-log")
_CUT = "\n…\n"


def write(job: Job, diagnosis: Diagnosis, environ: Mapping[str, str] = os.environ) -> None:
    """Write the termination log if there is one; ignore write errors."""
    path = log_of(environ)
    if path is not None:
        from distcheck.facts import outputs  # outside of a pod there is no such file

        with suppress(WriteError):
            outputs.write(path, message(job, diagnosis).decode())


def log_of(environ: Mapping[str, str]) -> Path | None:
    """Return the path of the termination log, None outside a pod."""
    named = environ.get("DISTCHECK_TERMINATION_LOG")
    if named:
        return Path(named)
    return _USUAL if environ.get("KUBERNETES_SERVICE_HOST") and _USUAL.is_file() else None


def message(job: Job, diagnosis: Diagnosis) -> bytes:
    """Return verdict, findings (worst first) and gaps, in at most 4096 bytes of UTF-8."""
    lines = [headline(job, diagnosis)]
    for finding in diagnosis.findings:
        if finding.severity != "info":
            lines.append(f"{finding.severity}: {finding.rule}: {finding.message}")
            lines.append(f"  fix: {finding.fix.text}")
            lines += [f"    {command}" for command in finding.fix.commands]
    gaps = dict.fromkeys(n.reason for n in diagnosis.not_checked if n.required)
    lines += [f"not checked: {reason}" for reason in gaps]
    text = "".join(harmless(line) + "\n" for line in lines).encode()
    if len(text) <= LARGEST_BYTES:
        return text
    return text[: LARGEST_BYTES - len(_CUT.encode())].decode("utf-8", "ignore").encode() + _CUT.encode()
