"""A collective that fails on one network and works on the other is repeated, and the report says so."""

from __future__ import annotations

from cluster.inside import findings, reports


def test_the_interface_over_which_gloo_works_is_named(cluster):
    # The first figure and everything small pass: the ranks find each other, and then no tensor arrives.
    rules = "table inet f { chain in { type filter hook input priority 0; iifname eth0 tcp sport 32768-60999 "
    rules += "tcp dport 32768-60999 meta length > 600 quota over 200 kbytes drop; }; }"
    assert cluster.netns("node2", "nft", "-f", "-", text=rules).code == 0
    words = ("--hosts", "node[1-2]", "--nproc", "1", "--backend", "gloo", "--sizes", "1K:4M:x4096", "--iters", "5")
    ended = cluster.run("head", "distcheck", "bandwidth", *words, "--timeout", "90", "--format", "json", timeout=120)
    (report,) = reports(ended)
    print(ended.err[-1500:], report["not_checked"])
    assert (ended.code, findings(report)) == (20, ["collective-stalled", "collective-transport-fails"]), ended
    finding = report["findings"][-1]
    assert finding["nodes"] == ["node1", "node2"]
    assert finding["message"].endswith("hangs over the interface that Gloo selects, and passes over eth1")
    assert finding["fix"]["commands"][0] == "export GLOO_SOCKET_IFNAME=eth1"
