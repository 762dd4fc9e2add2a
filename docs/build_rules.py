"""Write docs/rules from the rules' docstrings; with --check only list the stale pages.

Usage: python docs/build_rules.py [--check]
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import faults

from distcheck.rules import FAMILIES, Rule, all_rules, find_rule

FOLDER = Path(__file__).resolve().parent / "rules"
ORIGIN = "<!-- Written by docs/build_rules.py from the docstrings in distcheck/rules; do not edit. -->"
_CODE = re.compile(r"(``.+?``|`[^`]+`)", re.DOTALL)


def markdown(doc: str) -> str:
    """Return a docstring as Markdown: code in single backticks, HTML characters escaped."""
    pieces = _CODE.split(doc)
    for n, piece in enumerate(pieces):
        if n % 2:
            pieces[n] = "`" + piece.strip("`") + "`"
        else:
            text = piece.replace("<", "&lt;").replace("*", r"\*")
            text = re.sub(r"(?<=[^\n])\n(?=See:)", "\n\n", text)
            pieces[n] = re.sub(r"(?m)^(Fix|See):", r"**\1:**", text)
    return "".join(pieces)


def section(rule: Rule) -> str:
    """Return the section of a rule; its heading is the anchor that findings link to."""
    also = f"\n\nAlso known as {', '.join(f'`{alias}`' for alias in rule.aliases)}." if rule.aliases else ""
    return f"## {rule.name}\n\n{markdown(rule.doc)}{also}\n"


def table(rules: list[Rule]) -> str:
    """Return a table of the rules' records; links lead to the rules' sections."""
    lines = ["| rule | severity | scope | since | silent when one of these reports it |", "|---|---|---|---|---|"]
    for rule in rules:
        causes = ", ".join(link(known) for name in rule.unless if (known := find_rule(name)))
        lines.append(f"| {link(rule)} | {rule.severity} | {', '.join(rule.scope)} | {rule.since} | {causes} |")
    return "\n".join(lines)


def link(rule: Rule) -> str:
    """Return a link to a rule's section, from any page in docs/rules."""
    return f"[{rule.name}]({rule.page.removeprefix('docs/rules/')})"


def page(family: str, rules: list[Rule]) -> str:
    """Return the page of a family."""
    module = importlib.import_module(f"distcheck.rules.{family}")
    sections = "\n".join(section(rule) for rule in rules)
    return f"{ORIGIN}\n\n# {family}\n\n{markdown(inspect.getdoc(module) or '')}\n\n{table(rules)}\n\n{sections}"


def index(families: dict[str, list[Rule]]) -> str:
    """Return the list of all rules."""
    lines = [ORIGIN, "", "# Rules", ""]
    lines += ["`distcheck explain RULE` prints the same text. A rule's name is the problem that it detects.", ""]
    lines += ["Severity is the highest that the rule reports. Scope decides the [exit code](../exit-codes.md).", ""]
    for family, rules in families.items():
        module = f"`distcheck/rules/{family.replace('.', '/')}.py`"
        head = ["| rule | problem | severity | scope | since |", "|---|---|---|---|---|"]
        lines += [f"## [{family}]({family}.md)", "", module, "", *head]
        for rule in rules:
            problem = markdown(rule.summary).replace("|", "&#124;")
            scope = ", ".join(rule.scope)
            lines.append(f"| {link(rule)} | {problem} | {rule.severity} | {scope} | {rule.since} |")
        lines.append("")
    lines += ["## Catalogued faults", ""]
    lines += ["How many of the faults in these sections of the fault catalogue a rule detects, and what fired it:", ""]
    return "\n".join([*lines, faults.coverage(), ""])


def not_detectable() -> str:
    """Return the page of the faults that no rule detects."""
    origin = ORIGIN.replace("the docstrings in distcheck/rules", "the lists in tests/faults")
    intro = "Faults that no probe can see before the job, or only as root or by changing the machine, and why."
    return f"{origin}\n\n# Not detectable\n\n{intro}\n\n{faults.undetectable()}\n"


def pages() -> dict[str, str]:
    """Return the text of every page by its file name."""
    families = {family: [rule for rule in all_rules() if rule.family == family] for family in FAMILIES}
    present = {family: rules for family, rules in families.items() if rules}
    written = {f"{family}.md": page(family, rules) for family, rules in present.items()}
    return written | {"README.md": index(present), "not-detectable.md": not_detectable()}


def stale(folder: Path = FOLDER) -> list[str]:
    """Return the names of the pages that are missing, changed or without a family."""
    expected = pages()
    present = {path.name: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.md"))}
    return sorted(name for name in expected.keys() | present.keys() if expected.get(name) != present.get(name))


def write(folder: Path = FOLDER) -> None:
    """Write every page and remove pages without a family."""
    expected = pages()
    folder.mkdir(exist_ok=True)
    for path in folder.glob("*.md"):
        if path.name not in expected:
            path.unlink()
    for name, text in expected.items():
        (folder / name).write_text(text, encoding="utf-8")


def main() -> int:
    """Run as a script."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a page is stale")
    if not parser.parse_args().check:
        write()
        return 0
    old = stale()
    for name in old:
        print(f"docs/rules/{name} is stale: run python docs/build_rules.py", file=sys.stderr)
    return 1 if old else 0


if __name__ == "__main__":
    sys.exit(main())
