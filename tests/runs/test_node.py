"""`distcheck node` loads its rules while the children that look at the node start."""

import asyncio
from types import SimpleNamespace

from distcheck.facts.asked import Asked
from distcheck.run import node


def test_the_rules_are_loaded_while_the_children_look(monkeypatch):
    order = []

    async def look(*_):
        async def child():
            order.append("child started")
            await asyncio.sleep(0.01)
            order.append("child answered")

        await asyncio.gather(child())
        return "seen"

    monkeypatch.setattr(node, "_look", look)
    monkeypatch.setattr(node, "rules_for", lambda _job: order.append("rules"))
    record = SimpleNamespace(uid="0123456789abcdef", job=lambda: None)
    asked = Asked(command="node", looks=("node",))
    assert asyncio.run(node._look_and_read(asked, {}, 1.0, "", record)) == ("seen", None)
    assert order == ["child started", "rules", "child answered"]
