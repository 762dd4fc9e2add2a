"""Print the peak memory in GiB that judging and rendering a healthy job takes: ``judging_memory.py RANKS``.

Memory that the process freed while it built the job is used again, so the growth of the process would show far less.
What Python allocates is therefore counted; it counts what is kept until the report, too.
"""

from __future__ import annotations

import sys
import tracemalloc
from pathlib import Path

from distcheck import report
from distcheck.rules.diagnose import diagnose

sys.path.insert(0, str(Path(__file__).parents[1]))
from made import real_job


def main() -> None:
    report.render("text", small := real_job.healthy(2), diagnose(small))  # imports the rules
    job = real_job.healthy(int(sys.argv[1]) // real_job.GPUS)
    tracemalloc.start()
    report.render("text", job, diagnose(job))
    print(tracemalloc.get_traced_memory()[1] / (1 << 30))


main()
