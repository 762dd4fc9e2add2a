"""Every figure on a page is measured by a program, is a value of the code, or links to its source.

Rule pages are docstrings and quote many figures of others; PHRASES ties their figures about the code, too.
"""

from __future__ import annotations

import importlib
import math
import re
import sys
from pathlib import Path

import msgspec
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "docs"))
import measured

ROOT = Path(__file__).parents[1]
MODULES = [*(ROOT / "distcheck").rglob("*.py")]
PAGES = sorted({ROOT / "README.md", *(ROOT / "docs").rglob("*.md")} - {ROOT / "docs" / "changelog.md"})
"""The changelog is history: its figures may be out of date."""

_NUMBER = r"(?:\d[\d,]*(?:\.\d+)?|two|three|four|five|six|seven|eight|nine|ten|twelve|twenty|thirty|sixty|hundred)"
_UNIT = r"(?:[mµn]?s|seconds?|minutes?|hours?|%|[kKMGT]i?B(?:/s)?|bytes|[kMGT](?:b|bit)/s|(?:mega|giga|kilo)bytes?)"
FIGURE = re.compile(rf"\b{_NUMBER}[ -]?{_UNIT}(?!\w)|(?<![\d.])0\.\d+(?![\d.])")
_GENERATED = re.compile(r"<!-- (.+?): docs/build_bandwidth\.py writes this -->.*?<!-- end of \1 -->", re.DOTALL)
_QUOTED = re.compile(r'^```.*?^```|`[^`\n]*`|\]\([^)]*\)|"[^"\n]*"', re.DOTALL | re.MULTILINE)
_CITED = re.compile(r"\[[^]\n]*\]\(https://[^)]*\)")


def of(place):
    """Return a value of the code; the suffix of the module's name suffices, so that modules can move."""
    module, _, name = place.partition(":")
    ending = "/" + module.replace(".", "/") + ".py"
    paths = [path for path in MODULES if str(path).endswith(ending)]
    assert len(paths) == 1, f"{place}: {len(paths)} modules have this name"
    path = paths[0]
    return getattr(importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts)), name)


def default(options, name):
    return next(f.default for f in msgspec.structs.fields(of(options)) if f.name == name)


def tried(file, pattern):
    """Return a number that a test uses."""
    return int(re.search(pattern, (ROOT / "tests" / file).read_text(encoding="utf-8"))[1])


COMPARED = of("judge:LOW"), of("judge:TOO_LOW")
CONFIDENT = 100 * of("spread:STEADY"), 100 * of("spread:CONFIDENCE")
BURST = (of("run.context:_GPU_BURST_SECONDS"),)
PATIENT = (of("facts.storage:PATIENCE_SECONDS"),)
HUNG = (of("run.group_tests:_LEAST_SECONDS"),)
STALLED = (of("run.stall:STALL_SECONDS"),)
NODE_ENDS = (default("cli.options:NodeOptions", "timeout"),)
TRANSFER = (of("path:TRANSFER_BYTES") / (1 << 20),)
SLOW_NETWORK = (tried("cluster/test_isolate.py", r"limit\(cluster, node, (\d+)\)"),)
VOLTA, AMPERE, HOPPER, BLACKWELL = (
    of(f"expectation.links:{name}") for name in ("VOLTA", "AMPERE", "HOPPER", "BLACKWELL")
)

MI300 = of("expectation.links:MI300")

PHRASES = {
    "docs/policy.md": [("does not answer within {} s", [of("facts.touch:PATIENCE_SECONDS")])],
    "docs/rules/host.policy.md": [("within {} s", [of("facts.touch:PATIENCE_SECONDS")])],
    "docs/adapters.md": [("longer than distcheck's {} s", NODE_ENDS)],
    "docs/amd.md": [
        ("a warning from {} GiB", [of("gpu.usage:_MUCH_BYTES") >> 30]),
        ("gpu-amdgpu-error-recent, {} hours", [of("gpu.amd_log:_RECENT_SECONDS") / 3600]),
    ],
    "docs/hang.md": [
        ("for {} s while others are in a collective", [of("run.hang:LONGEST_SECONDS")]),
        ("takes at most {} % of its power", [100 * of("rules.hang.gpus:_WAITING_POWER")]),
        ("and up to {} MB\nin all", [of("flight.running:_MOST_BYTES") >> 20]),
        ("had waited for {} s when", [of("flight.running:_WAITED_SECONDS")]),
        ("the same kernel function for {} s", [of("run.hang:LONGEST_SECONDS")]),
        ("in a lock is watched for {} s", [of("run.hang:LONGEST_SECONDS")]),
        ("`--wait` seconds apart ({} s)", [default("cli.options:HangOptions", "wait")]),
    ],
    "docs/python.md": [("ends the checks {} s after `timeout`", [of("cli.preflight:_BEYOND_SECONDS")])],
    "docs/rules/fabric.access.md": [
        (
            "Less than {} MiB is an error, less than {} GiB a warning",
            [of("access:_TOO_LITTLE_BYTES") >> 20, of("access:_LITTLE_BYTES") >> 30],
        )
    ],
    "docs/rules/gpu.speed.md": [
        (
            "the model's floor: {} of the dense peak in NVIDIA's data sheet, {} for cards",
            [of("expectation.devices:MATMUL_SHARE"), of("expectation.devices:CARD_MATMUL_SHARE")],
        ),
        ("or below {} of the rate of the model's host link", [of("expectation.devices:HOST_SHARE")]),
        ("a warning below {} of the median of the job's other GPUs", [of("expectation.devices:SLOW")]),
        ("an error below {}, if all rounds agree", [of("own_work:VERY_SLOW")]),
        (
            "below {} of the median of the other ranks, in products and in copies",
            [of("own_work:SLOW_CPU")],
        ),
    ],
    "docs/rules/collectives.groups.md": [
        ("it waits {} s for the others", [of("collectives.dimensions:ENTER_SECONDS")])
    ],
    "docs/rules/fabric.counters.md": [("Fewer than {} symbol errors", [of("fabric.counters:_LINK")["symbol_error"]])],
    "docs/rules/fabric.gdr.md": [("older than {}.{}", of("fabric.gdr:_DMABUF_KERNEL"))],
    "docs/rules/host.history.md": [
        ("of the last {} runs of one command", [of("facts.history:RECENT")]),
        ("within {} days, {} or more", [of("facts.history:RECENT_DAYS"), of("rules.host.history:FAILED")]),
        ("median of the newest {} values", [of("facts.history:LATEST")]),
        (
            "at least {} and at most {} earlier ones",
            [of("facts.history:FEWEST_EARLIER"), of("probe.history:_VALUES") - of("facts.history:LATEST") + 1],
        ),
        ("by more than {} standard deviations", [of("expectation.past:DEVIATIONS")]),
        (
            "below {} of their median, with Gloo below {}",
            [of("rules.host.history:LEFT"), of("rules.host.history:LEFT_ON_CPUS")],
        ),
    ],
    "docs/history.md": [
        ("killed after {} s", [of("run.history:SECONDS")]),
        ("(8,192 nodes: {} s)", [round(of("run.history:SECONDS") + 8192 * of("run.history:_SECONDS_PER_NODE"))]),
        ("shorter than {} KiB", [4]),
        ("exceeds {} KiB", [of("probe.history_file:LARGEST_BYTES") >> 10]),
    ],
    "README.md": [("no peers, at most {} s", NODE_ENDS)],
    "docs/bandwidth.md": [
        ("a burst has at least {} s", BURST),
        ("to {} % (`±`, with a confidence of {} %)", CONFIDENT),
        ("Below {} of what is usual is a warning, below {} an error", COMPARED),
        ("| matrix speed | {} of the dense peak", [of("expectation.devices:MATMUL_SHARE")]),
        ("in the data sheet; {} for A10", [of("expectation.devices:CARD_MATMUL_SHARE")]),
        ("| memory | {} of the rate", [of("expectation.devices:MEMORY_SHARE")]),
        ("| host copies | {} of the host link", [of("expectation.devices:HOST_SHARE")]),
        ("A GPU is a warning below {} of the median", [of("expectation.devices:SLOW")]),
        ("an error below {} of it, if all rounds agree", [of("own_work:VERY_SLOW")]),
        ("how many GPUs are below {} of the median", [of("expectation.devices:SLOW")]),
        (
            "a standard deviation of {} % is assumed and weighs as much as {} GPUs",
            [100 * of("own_work:SPREAD"), of("own_work:_FEW")],
        ),
        ("the first one {} s before the others", [of("collectives.devices:_GPU").pause_seconds]),
        ("are slow below {} only", [of("own_work:SLOW_HOST_COPY")]),
        (
            "a warning below {} of the median of the other ranks, in products and in copies",
            [of("own_work:SLOW_CPU")],
        ),
        ("A burst of all groups lasts {} s", [of("distcheck.collectives.mesh_groups:_BURST_SECONDS")]),
        ("reaches {} of the plateau", [of("expectation.curve:SURE_SHARE")]),
        ("Below a share of {} latency", [of("expectation.curve:LEAST_SHARE")]),
        (
            "({:.1f} GB/s Volta and Ampere, {} Hopper, {} Blackwell) x {} Volta, {} Ampere, {} Hopper, {} Blackwell",
            [kind.rate_GBps for kind in (VOLTA, HOPPER, BLACKWELL)]
            + [kind.ring for kind in (VOLTA, AMPERE, HOPPER, BLACKWELL)],
        ),
        (
            "({:.0f} GB/s MI300X and MI325X, {} MI350X and MI355X) x {};",
            [MI300.rate_GBps, of("expectation.links:MI350").rate_GBps, MI300.ring],
        ),
        ("x the same x {} Hopper, {} Blackwell", [HOPPER.nvls, BLACKWELL.nvls]),
        (
            "a band: {} to 1 of NCCL's figure for the link (x16: {}, {}, {} GB/s for generation 3, 4, 5)",
            [of("models:PCIE_LOW"), *(of("expectation.links:pcie_rate")(n, 16) for n in (3, 4, 5))],
        ),
        ("{} of the adapters' rates together", [of("models:NETWORK_SHARE")]),
        ("about {} of min(", [of("models:TREE_USUAL")]),
        (
            "{} of the slowest node's link up to {} Gb/s",
            [of("models:TCP_SHARE"), of("models:TCP_MOST_MBPS") / 1000],
        ),
    ],
    "docs/design.md": [
        ("until the median is known to {0} %", CONFIDENT),
        ("in lines of at most {} bytes", [of("frames:LINE_BYTES")]),
    ],
    "docs/json.md": [
        ("with a confidence of {1} %", CONFIDENT),
        ("was known to {0} %", CONFIDENT),
        ("(fewer than {})", [next(n for n in range(1, 99) if of("spread:interval")([1.0] * n))]),
    ],
    "docs/quickstart.md": [("`--join-timeout` ({} s)", [of("cli.options:JOIN_SECONDS")])],
    "docs/reachability.md": [
        (
            "a loss of {} % into one of four nodes",
            [tried("cluster/test_net_paths.py", r"numgen random mod 100 < (\d+) drop")],
        ),
        ("{} MiB in full packets", TRANSFER),
        ("{} MiB between two nodes", TRANSFER),
        ("a link below {} % of the others' rate", [100 * of("rates:_SLOW")]),
        ("less than {} %", [100 * of("losses:_HEALTHY")]),
    ],
    "docs/reliability.md": [
        ("{} s at least, counts as hung", HUNG),
        ("waits {} s at least", HUNG),
        (
            "below {} % of it, on CPUs {} % (a rank's own work: {} %)",
            [
                100 * of(place)
                for place in (
                    "isolation.figures:SLOW",
                    "isolation.state:SLOW_ON_CPUS",
                    "isolation.state:SLOW_WORK_ON_CPUS",
                )
            ],
        ),
        ("excluded only below {} %", [100 * of("culprits:BEYOND_CHANCE")]),
        ("slow below {} % of the others only", [100 * of("isolation.figures:SLOW_OF_FEW")]),
        ("network at {} Mbit/s", SLOW_NETWORK),
        ("{} MB pass", [tried("cluster/test_isolate.py", r"drops\(cluster, node, (\d\d)\)")]),
        ("no progress for {} s after", STALLED),
        (
            "within `--timeout` and {} s",
            [math.ceil(of("run.watchdog:GRACE_SECONDS") + of("run.watchdog:_WITHOUT_US_SECONDS"))],
        ),
        ("memory limit of {} MiB", [tried("end_to_end/test_deaths.py", r"small_memory\((\d+) << 20\)")]),
        ("dies of SIGBUS with an {} MiB", [tried("end_to_end/test_deaths.py", r"program=small_shm\((\d+)\)")]),
        ("one node of four has an {} MiB", [tried("cluster/test_unhappy_endings.py", r"remount,size=(\d+)m")]),
    ],
    "docs/schedulers/kubernetes.md": [("at most {} bytes", [of("report.termination_log:LARGEST_BYTES")])],
    "docs/schedulers/slurm.md": [("ends within {} s whatever hangs", NODE_ENDS)],
    "docs/rules/collectives.baseline.md": [
        (
            "Less than {} of what it was is a warning, and less than {} an error",
            [of("rules.collectives.baseline:_WARNING"), of("rules.collectives.baseline:_ERROR")],
        )
    ],
    "docs/rules/host.memory.md": [
        (
            "below {} MiB for each rank, below {} GiB for each rank with a GPU",
            [of("host.memory:_RANK_BYTES") >> 20, of("host.memory:_GPU_RANK_BYTES") >> 30],
        ),
        ("below {} MiB for each rank: torch cannot", [of("host.memory:_NOTHING_BYTES") >> 20]),
        ("of a cgroup: {} or more", [of("host.memory:_SEVERAL_KILLS")]),
    ],
    "docs/rules/host.cpus.md": [
        ("at least {} CPUs for each rank", [of("host.cpus:_ENOUGH_CPUS")]),
        ("an info finding at {} times the CPUs", [of("host.cpus:_MANY")]),
        ("more than {} for each rank", [of("host.cpus:_IDLE_CPUS")]),
    ],
    "docs/rules/host.limits.md": [
        (
            "{} threads for each rank and those of OpenMP (OMP_NUM_THREADS, or one for each CPU); an error below {}",
            [of("host.limits:_TASKS"), of("host.limits:_NOTHING_TASKS")],
        ),
        ("or install NCCL {}.{} or later", of("host.limits:_SAFE_STACK")),
    ],
    "docs/rules/host.shared_memory.md": [("an age of {} minutes", [of("probe.leftovers:_FRESH_SECONDS") / 60])],
    "docs/rules/host.containers.md": [("before {}.{}, or with NCCL_CUMEM", of("host.containers:_CUMEM_SINCE"))],
    "docs/rules/host.clock.md": [("more than {} second off", [of("host.clock:_OFF_SECONDS")])],
    "docs/rules/gpu.fleet.md": [("sizes within {} %", [100 * (of("gpu.fleet:_ALIKE") - 1)])],
    "docs/rules/gpu.clocks.md": [
        ("more than {} % of the time", [100 * of("clocks:_NOTICEABLE_SHARE")]),
        ("less than {} of it", [of("clocks:_USUAL_CLOCK_SHARE")]),
    ],
    "docs/rules/gpu.links.md": [
        ("at least {:,} errors", [of("gpu.links:_MANY_LINK_ERRORS")]),
        (
            "at least {:,} and a hundred times the count of the other GPUs, or {:,} for a single GPU",
            [of("gpu.links:_MANY_REPLAYS"), of("readings:high")([1], of("gpu.links:_MANY_REPLAYS"))],
        ),
    ],
    "docs/rules/gpu.usage.md": [
        ("by more than {} GiB of memory", [of("gpu.usage:_MUCH_BYTES") >> 30]),
    ],
    "docs/rules/gpu.xids.md": [("within the last {} hours", [of("gpu.xids:_RECENT_SECONDS") / 3600])],
    "docs/rules/launchers.kubernetes.md": [("below {} seconds", [of("rules.launchers.kubernetes:_LATE_SECONDS")])],
    "docs/rules/network.latency.md": [
        ("More than {} ms and {} times the shortest", [1000 * of("latency:_NOTICED_SECONDS"), of("latency:_TIMES")]),
        ("from {} ms an error", [1000 * of("latency:_LONG_SECONDS")]),
    ],
    "docs/rules/collectives.nccl_intranode.md": [
        ("all_reduce of {} MiB and more", [of("collectives.nccl_intranode:_NVLS_BYTES") >> 20])
    ],
    "docs/rules/host.hanging.md": [
        ("which may take {} s", PATIENT),
        ("may be left behind after {} s", [of("facts.touch:PATIENCE_SECONDS")]),
    ],
    "docs/rules/host.storage.md": [
        (
            "an error below {} MiB or without an inode, a warning below {} MiB",
            [of("rules.host.storage:_NOTHING_BYTES") >> 20, of("rules.host.storage:_LITTLE_BYTES") >> 20],
        ),
        (
            "below {} MB/s, or below {} MB/s and a tenth",
            [of(f"rules.host.storage:_{name}_MBPS") for name in ("SLOW", "SLOWER")],
        ),
        ("where less than {} MiB are free", [of("disk_rates:LEAST_FREE_BYTES") >> 20]),
    ],
    "docs/rules/environment.command_files.md": [("files above {} MiB", [of("probe.command:_WHOLE_BYTES") >> 20])],
    "docs/rules/host.node.md": [
        (
            "a warning at {} MiB or less, an error at less than {} MiB",
            [of("rules.host.node:_SHM_BYTES") >> 20, of("rules.host.node:_NOTHING_BYTES") >> 20],
        ),
        (
            "a warning below {} MiB, an error below {} MiB",
            [of("rules.host.folders:_TEMPORARY_BYTES") >> 20, of("rules.host.node:_NOTHING_BYTES") >> 20],
        ),
        ("for at most {} s", [of("probe.state:_NAME_SECONDS")]),
    ],
    "docs/rules/network.peer_paths.md": [
        ("below {} % of the rate that its adapter", [100 * of("rules.network.rates:_SLOW")]),
        ("of at most {} Gbit/s", [of("rules.network.rates:_MOST_MBPS") / 1000]),
        ("and of {} Gbit/s if the adapter is wireless", [of("rules.network.rates:_WIRELESS_MBPS") / 1000]),
        ("while {} MiB went", TRANSFER),
        ("{} MiB from node to node", TRANSFER),
        ("how long {} MiB take", TRANSFER),
        ("less than {} % of the rate", [100 * of("rates:_SLOW")]),
        (
            "{} % would show so many in less than one of {:,} runs. From {} % on they are an error; from {} %",
            [
                100 * of("losses:_HEALTHY"),
                1 / of("losses:_CHANCE"),
                100 * of("rules.network.peer_paths:_LOSS"),
                100 * of("rules.network.peer_paths:_HEAVY_LOSS"),
            ],
        ),
    ],
    "docs/rules/collectives.bandwidth.md": [("Below {} of it is a warning; below {} an error", COMPARED)],
}
"""By page, the phrases with figures of the code, and the values from the code."""


def written(phrase, values):
    """Return a pattern of a phrase with its values; lines may break anywhere."""
    rounded = [round(value, 9) for value in values]
    words = phrase.format(*(int(value) if value == int(value) else value for value in rounded)).split()
    return re.compile(r"\s+".join(map(re.escape, words)))


def by_hand(text):
    """Return the prose of a page without generated tables, code, quotations and links to sources."""
    for pattern in (_GENERATED, _CITED, _QUOTED):
        text = pattern.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)
    return text


def unaccounted(page, text):
    """Return the figures of a page's prose that are not tied to the code or a source, with their lines."""
    text = measured.outside(text)
    for phrase, values in PHRASES.get(page, []):
        text = written(phrase, values).sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)
    return [
        f"{page}:{number}: {found[0]}"
        for number, line in enumerate(by_hand(text).splitlines(), start=1)
        for found in FIGURE.finditer(line)
    ]


@pytest.mark.parametrize("page", PHRASES)
def test_the_figures_of_a_page_match_the_code(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    missing = [(phrase, values) for phrase, values in PHRASES[page] if not written(phrase, values).search(text)]
    assert not missing, f"{page} differs from the code, or a sentence of PHRASES has changed: {missing}"


def test_the_readme_has_the_oldest_supported_versions():
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for name, pattern in (("Python", r'requires-python = ">=([\d.]+)"'), ("torch", r'"torch>=([\d.]+)"')):
        assert re.findall(rf"{name} ([\d.]+) or later", readme) == re.findall(pattern, project)


def test_no_figure_is_written_by_hand():
    figures = [
        figure
        for path in PAGES
        if path.parent.name != "rules"
        for figure in unaccounted(str(path.relative_to(ROOT)), path.read_text(encoding="utf-8"))
    ]
    assert not figures, (
        "untied figures. Put a measured figure into a table that a program writes (docs/measured.py), a constant of "
        "the code into PHRASES of tests/test_figures.py; make a figure of others a link to its source: "
        "[60 seconds](https://...). Or remove the figure.\n" + "\n".join(figures)
    )


@pytest.mark.parametrize(
    "prose",
    ["It takes 3 s.", "in ten seconds", "0.97 of the time", "reaches 1.5 GB/s", "loses 2 % of them", "needs 64 KB."],
)
def test_a_figure_by_hand_is_detected(prose):
    assert len(unaccounted("docs/page.md", f"# Page\n\n{prose}\n")) == 1


@pytest.mark.parametrize(
    "prose",
    [
        "`--timeout 60 s`",
        'torch says "timed out after 600 s"',
        "after [60 seconds](https://slurm.schedmd.com/slurm.conf.html)",
        "```\n3 s\n```",
        "with torch 2.13.0 and NCCL 2.30",
        "<!-- measured: x\ndigest: 1 -->\n3 s\n<!-- end of x -->",
        "at 127.0.0.1",
    ],
)
def test_commands_quotations_sources_and_measured_blocks_are_exempt(prose):
    assert unaccounted("docs/page.md", f"# Page\n\n{prose}\n") == []


def test_a_figure_of_the_code_is_exempt_only_with_its_value_and_its_phrase():
    assert unaccounted("docs/quickstart.md", "`--join-timeout` (20 s)") == []
    assert unaccounted("docs/quickstart.md", "`--join-timeout` (21 s)") != []
    assert unaccounted("docs/quickstart.md", "it takes 20 s") != []
