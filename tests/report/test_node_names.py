import pytest

from distcheck.report.node_names import fold_nodes


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ((), ""),
        (("node1",), "node1"),
        (("node2", "node1"), "node[1-2]"),
        (("n09", "n10"), "n[09-10]"),
        (("a", "b[1-2]", "@group", "x,y"), "@group,a,b[1-2],x,y"),
    ],
)
def test_nodes(names, text):
    assert sorted(fold_nodes(names).split(",")) == sorted(text.split(","))
