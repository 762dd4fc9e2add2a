"""The report as a web page."""

import base64
import hashlib
import re
from collections import Counter
from html.parser import HTMLParser
from importlib import resources

import msgspec
import pytest
from made import real_job, reported

from distcheck.facts.placement import Placement
from distcheck.facts.rank import RankFacts
from distcheck.report import Detail, render
from distcheck.report.document import document
from distcheck.report.html import facts, heat
from distcheck.report.html.curves import charts
from distcheck.report.html.facts import sheet
from distcheck.report.html.heat import heat_map
from distcheck.rules.finding import Finding, Fix

VOID = {"meta", "input", "br"}
MEGABYTE = 1e6


class Tags(HTMLParser):
    """Checks that tags are balanced and remembers them."""

    def __init__(self):
        super().__init__()
        self.open, self.seen, self.text = [], [], []

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def parsed(page):
    tags = Tags()
    tags.feed(page)
    assert tags.open == []
    return tags


def shortened(page):
    """Return a page without what is repeated: of lines that begin alike, only the first eight."""
    seen, kept = Counter(), []
    for line in page.splitlines():
        beginning = line[:14].rstrip("0123456789")
        seen[beginning] += 1
        if seen[beginning] <= 8 or not line.startswith("<"):
            kept.append(line)
    kept += [f"{beginning} x {number}" for beginning, number in seen.items() if number > 8]
    return "\n".join(kept) + "\n"


@pytest.mark.parametrize("name", reported.CASES)
def test_goldens_of_four_jobs(name, golden):
    page = render("html", *reported.CASES[name]())
    golden(f"{name}-job.html", shortened(page) if name == "large" else page)


def test_the_style_of_a_page(healthy, golden):
    golden("style.css", render("html", *healthy).partition("<style>\n")[2].partition("</style>")[0])


def test_html_is_balanced_and_loads_nothing(any_job):
    page = render("html", *any_job, options=Detail(verbose=True, legend=True))
    tags = parsed(page)
    assert not {"link", "img", "iframe", "object"} & {tag for tag, _ in tags.seen}
    assert not any(name == "src" or name.startswith("on") for _, attributes in tags.seen for name in attributes)
    ids = {attributes["id"] for _, attributes in tags.seen if "id" in attributes}
    links = [attributes["href"] for _, attributes in tags.seen if "href" in attributes]
    assert {link.removeprefix("#") for link in links} <= ids, "links lead to places on the page"
    assert len(ids) == sum("id" in attributes for _, attributes in tags.seen)


def test_the_policy_of_the_page_allows_its_one_script_and_nothing_else(hostile):
    page = render("html", *hostile)
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    assert script == resources.files("distcheck.report.html").joinpath("copy.js").read_text("utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = next(a["content"] for tag, a in parsed(page).seen if a.get("http-equiv") == "Content-Security-Policy")
    assert policy == f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"


@pytest.mark.long
def test_a_page_of_8192_ranks_stays_below_five_megabytes_and_names_the_bad_nodes():
    page = render("html", *reported.large())
    assert len(page.encode()) < 5 * MEGABYTE
    rows = re.findall(r'<tr><th scope="row">(.*?)</th>', page.partition('id="nodes"')[2].partition("</section>")[0])
    assert rows[:3] == ["node0017", "node0512", "node1000"]
    assert rows[3] == "node[0001-0016,0018-0511,0513-0999,1001-1024] (1021 nodes)"
    assert len(rows) == 4
    assert len(re.findall(r'<i class="ok ', page)) == 8192 - 24, "every rank has a cell in the small map"
    assert len(re.findall(r'<i class="error ', page)) == 24


@pytest.mark.slow
def test_the_size_of_a_page_is_bounded_at_65536_ranks(job_of, judge):
    page = render("html", *judge(job_of(8192, 8, measured=False)))
    assert len(page.encode()) < 5 * MEGABYTE
    assert "65536 ranks on 8192 nodes: 65536 ok" in page


def test_a_missing_rank_is_in_the_column_of_its_local_rank():
    job = reported.build(2, 4)
    job = msgspec.structs.replace(job, ranks=tuple(rank for rank in job.ranks if rank.placement.rank != 5))
    report = document(*reported.case(job))
    rows = tuple(msgspec.structs.replace(row, node="node2") if row.rank == 5 else row for row in report.ranks)
    second = heat_map(job, msgspec.structs.replace(report, ranks=rows)).rows[1]
    assert [(cell.rank, cell.status) for cell in second.cells] == [
        ("4", "ok"), ("5", "missing"), ("6", "ok"), ("7", "ok"),
    ]  # fmt: skip


def test_facts_of_many_nodes_take_as_many_rows_as_those_of_few(judge):
    rows = {}
    for nodes in (32, 128):
        page = render("html", *judge(real_job.healthy(nodes)))
        differ, _, shared = page.partition('id="facts"')[2].partition("that are the same everywhere")
        rows[nodes] = differ.count("<tr>")
        assert "veth" not in differ
        assert '<tr><th scope="row">network: veth*</th><td class="wide">up, MTU 1500</td></tr>' in shared
        assert '<tr><th scope="row">network: docker0</th>' in shared
    assert rows[32] == rows[128] < 16


def test_html_shows_hostile_strings_literally(hostile):
    page = render("html", *hostile)
    tags = Tags()
    tags.feed(page)
    text = "".join(tags.text)
    assert "<script>alert('x')</script>" in text
    assert "{{ 7*7 }}" in text


def test_html_colours_are_readable_on_light_and_dark(healthy):
    style = render("html", *healthy).partition("<style>")[2].partition("</style>")[0]
    schemes = re.findall(r":root \{(.*?)\}", style, re.DOTALL)
    assert len(schemes) == 2
    for scheme in schemes:
        named = dict(re.findall(r"--(\w+): (#[0-9a-f]{6});", scheme))
        on_page = ("ink", "quiet", "error", "warning", "good", "info", "c0", "c1", "c2", "c3", "c4", "c5")
        pairs = [(name, ground) for name in on_page for ground in ("ground", "soft")]
        pairs += [(f"t{level}", f"h{level}") for level in "01234n"]
        low = {pair for pair in pairs if contrast(named[pair[0]], named[pair[1]]) < 4.5}
        assert not low


def contrast(one, other):
    """Return the contrast of two colours, 1 to 21 (https://www.w3.org/TR/WCAG21/#dfn-contrast-ratio)."""
    darker, lighter = sorted(map(luminance, (one, other)))
    return (lighter + 0.05) / (darker + 0.05)


def luminance(colour):
    parts = (int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5))
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_a_chart_shows_measured_expected_and_earlier_bandwidth_over_sizes(single, empty):
    job, diagnosis = reported.healthy()
    drawn = charts(job, document(job, diagnosis))
    assert [chart.name for chart in drawn] == ["all_reduce", "broadcast"]
    xs = [x for x, _, _ in drawn[0].points]
    assert xs == sorted(xs)
    assert xs[1] - xs[0] == pytest.approx(xs[2] - xs[1])
    assert drawn[0].points[-1][1] < drawn[0].points[0][1], "faster is higher"
    assert [label for _, label in drawn[0].speeds] == ["0", "200", "400", "600", "800"]
    assert drawn[0].points[0][2] == "all_reduce, 1 MiB: 86.06 GB/s ± 3.1%, expected 82.75 GB/s"
    assert len(drawn[0].baseline.split()) == len(drawn[0].expected.split()) == 5
    assert len(drawn[0].noise.split()) == 10, "there and back"
    for without in (single, empty):
        assert charts(without.job, document(*without)) == []


def test_a_chart_without_expectation_and_baseline_has_only_what_was_measured(healthy):
    (chart, _) = charts(healthy.job, document(*healthy))
    assert (chart.expected, chart.baseline) == ("", "")
    assert len(chart.measured.split()) == 5


def test_nodes_without_ranks_have_facts_too(healthy):
    job, diagnosis = reported.build(3, 8), healthy.diagnosis
    nodes = (*job.nodes[:2], msgspec.structs.replace(job.nodes[2], kernel="6.9"))
    ranks = tuple(
        RankFacts(process=p.uid, placement=Placement(), environment={}) for p in job.processes
    )  # as distcheck node has them
    page = render("html", msgspec.structs.replace(job, nodes=nodes, ranks=ranks, collectives=None), diagnosis)
    part = page.partition('id="facts"')[2]
    assert '<td class="wide">6.8.0-45-generic</td><td class="wide">node[1-2]</td>' in part
    assert '<td class="wide">6.9</td><td class="wide">node3</td>' in part
    assert '<tr><th scope="row">hardware: GPUs</th><td class="wide">8 x NVIDIA H200</td></tr>' in part


def test_facts_that_would_make_the_page_too_large_are_left_out_healthy_nodes_first(monkeypatch):
    job = reported.build(20, 8, measured=False)
    bad = Finding(rule="r", ranks=(80,), message="m", fix=Fix("f"))
    judged = reported.case(job, bad)
    found = sheet(job, document(*judged))
    assert ([node.name for node in found.shown], len(found.others), found.left_out) == (["node11"], 19, 0)
    monkeypatch.setattr(facts, "BUDGET", 2000)
    found = sheet(job, document(*judged))
    assert found.nodes[0].name == "node11"
    assert (len(found.nodes) + found.left_out, found.left_out > 10) == (20, True)
    assert f'<p class="quiet">{found.left_out} nodes are left out' in render("html", *judged)


def test_findings_of_one_rule_with_one_fix_are_one_finding():
    page = render("html", *reported.large())
    part = page.partition('id="findings"')[2].partition("<h2")[0]
    assert part.count("<section class") == part.count("<b>Fix:</b>") == part.count("<ul>") == 1
    assert part.count("<li>") == 3
    assert part.partition("<details>")[0].count("<pre tabindex") == 1, "the evidence of the others is folded"
    assert "1 error, 0 warnings" in page


def test_each_line_of_the_small_map_begins_with_the_name_of_its_first_node():
    found = heat_map(job := reported.build(64, 8, measured=False), document(*reported.case(job)))
    page = render("html", *reported.case(job))
    assert found.per_line == 20
    assert re.findall(r"<p><b>(node\d+)</b>", page) == ["node01", "node21", "node41", "node61"]


@pytest.mark.parametrize(("widest", "nodes"), [(1, 80), (2, 50), (4, 30), (8, 20), (16, 10), (64, 2), (400, 1)])
def test_a_line_of_the_small_map_fits_the_page(widest, nodes):
    assert heat.HeatMap((), (), (), widest, "", ()).per_line == nodes
