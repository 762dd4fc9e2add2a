import pytest
from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet
from hypothesis import given
from hypothesis import strategies as st

from distcheck.report.node_names import fold_nodes

_NUMBERED = st.builds(
    lambda number, width: str(number).zfill(width), st.integers(0, 20) | st.integers(0, 10**10), st.integers(1, 4)
)


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ((), ""),
        (("node1",), "node1"),
        (("node2", "node1"), "node[1-2]"),
        (("n09", "n10"), "n[09-10]"),
        (("n9", "n10", "n12"), "n[9-10,12]"),
        (("n9", "n010"), "n[9,010]"),
        (("r1-n1", "r1-n2", "login"), "login,r1-n[1-2]"),
        (("a", "b[1-2]", "@group", "x,y"), "@group,a,b[1-2],x,y"),
    ],
)
def test_nodes(names, text):
    assert sorted(fold_nodes(names).split(",")) == sorted(text.split(","))


@given(word=st.text("ab.-_", min_size=1, max_size=3), numbers=st.sets(_NUMBERED, min_size=2))
def test_numbered_nodes_are_folded_as_clustershell_does(word, numbers):
    names = sorted(word + number for number in numbers)
    assert fold_nodes(names) == str(NodeSet.fromlist(names, resolver=RESOLVER_NOGROUP))
