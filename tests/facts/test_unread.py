"""Facts cost time on every node, so something reads each of them: a rule, the report, a metric or a later stage."""

import ast
import re
from pathlib import Path

import distcheck

PACKAGE = Path(distcheck.__file__).parent
COLLECTORS = ("facts", "probe")


def structs(tree: ast.Module) -> list[ast.ClassDef]:
    """Return the classes of facts: those that derive from Facts."""
    return [n for n in tree.body if isinstance(n, ast.ClassDef) and "Facts" in map(ast.unparse, n.bases)]


def names_read(path: Path) -> set[str]:
    """Return the names of attributes that a module or template reads; a rule may name one in a text."""
    if path.suffix != ".py":
        return set(re.findall(r"\.(\w+)", path.read_text()))
    read = set[str]()
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Attribute(attr=name, ctx=ast.Load()):
                read.add(name)
            case ast.Constant(value=str(name)) if "rules" in path.parts:
                read.add(name)
            case ast.MatchClass(kwd_attrs=names):
                read.update(names)
    return read


def test_every_fact_is_read_outside_of_what_collects_it():
    outside = [p for p in PACKAGE.rglob("*.[pj]*") if p.relative_to(PACKAGE).parts[0] not in COLLECTORS]
    read = set[str]().union(*(names_read(path) for path in outside if path.suffix in {".py", ".j2"}))
    fields = [
        f"{path.stem}.{struct.name}.{line.target.id}"
        for path in sorted((PACKAGE / "facts").glob("*.py"))
        for struct in structs(ast.parse(path.read_text()))
        for line in struct.body
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
    ]
    assert len(fields) > 300
    assert [field for field in fields if field.rpartition(".")[2] not in read] == []
