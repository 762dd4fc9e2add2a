"""The results of NCCL's own diagnostics: those that need a look, by process."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from distcheck.collectives.nccl_log import parse
from distcheck.collectives.nccl_log.diagnostics import diagnostics

# As in NCCL's user guide, troubleshooting/diagnostics, and DIAG_PRINT, whose lines begin with the host and the pid.
PARTIAL = "p2p: only 52/56 GPU-to-GPU peer accesses passed verification"
PAIR = (
    "p2p: write mismatch srcRank=3 srcCudaDev=3 srcNvmlDev=3 dstRank=5 dstCudaDev=5 dstNvmlDev=5 path=NVL "
    "handle=CUMEM_POSIX_FD expected=0x1 got=0x0 verify=0x0; check the single-node NVLink topology"
)
HEALTHY = """\
node1:4711 NCCL DIAG === NCCL Diagnostics ===
node1:4711 NCCL DIAG [OK]   p2p: verified P2P access in both directions between every GPU pair (56 peer accesses)
node1:4711 NCCL DIAG NCCL diagnostics completed in 245.3 ms across 8 ranks
"""
FAULTY = f"""\
node1:4711 NCCL DIAG === NCCL Diagnostics ===
node1:4711 NCCL DIAG [INFO] {PAIR}
node1:4711 NCCL DIAG [INFO] {PARTIAL}
node1:4712 NCCL DIAG [INFO] net bw: cannot determine local hostname in comm 0x1
"""


def test_results_that_need_a_look_are_kept_by_process():
    assert diagnostics(HEALTHY) == {}
    found = diagnostics(f"something else\n{FAULTY}")
    assert found == {4711: (PAIR, PARTIAL), 4712: ("net bw: cannot determine local hostname in comm 0x1",)}


def test_a_log_on_standard_output_has_those_of_its_process():
    log = "node1:4711:4711 [0] NCCL INFO NCCL version 2.31.2+cuda13.0\n" + FAULTY
    assert parse(log, 4711).diagnostics == (PAIR, PARTIAL)
    assert parse(log, 4713).diagnostics == ()


@given(st.text(max_size=60), st.integers(0, 40))
def test_any_text_is_bounded_and_printable(noise, times):
    found = diagnostics(
        f"node1:1 NCCL DIAG [INFO] {noise}\n"
        + "".join(f"node1:1 NCCL DIAG [INFO] {n}{noise}{'x' * 999}\n" for n in range(times))
    )
    for lines in found.values():
        assert len(lines) <= 16
        assert all(line.isprintable() and len(line) <= 300 for line in lines)
