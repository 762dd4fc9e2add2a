"""Which lines of the kernel log are errors of AMD's driver."""

from __future__ import annotations

import time

import pytest

from distcheck.facts.base import Missing
from distcheck.probe import amdgpu_log

GPU = "amdgpu 0000:69:00.0: "


@pytest.fixture
def errors(tmp_path):
    """Return the errors in a log with these lines."""

    def errors(*lines, ago=60.0):
        now = int((time.clock_gettime(time.CLOCK_MONOTONIC) - ago) * 1e6)
        path = tmp_path / "kmsg"
        path.write_text("".join(f"3,{n},{now},-;{line}\n" for n, line in enumerate(lines)))
        return amdgpu_log.recent(path)

    return errors


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        (f"{GPU}amdgpu: ring gfx_0.0.0 timeout, signaled seq=1, emitted seq=3", "hang"),
        (f"{GPU}ring sdma0 timeout, but soft recovered", None),
        ("[drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring gfx timeout, signaled seq=8, emitted seq=9", "hang"),
        (f"{GPU}amdgpu: qcm fence wait loop timeout expired", "hang"),
        (f"{GPU}amdgpu: GPU reset begin!", "reset"),
        (f"{GPU}amdgpu: GPU reset begin!. Source:  4", "reset"),
        (f"{GPU}amdgpu: GPU reset(1) succeeded!", None),
        (f"{GPU}amdgpu: GPU Recovery Failed: -110", "reset failed"),
        (f"{GPU}amdgpu: VRAM is lost due to GPU reset!", "reset failed"),
        (f"{GPU}amdgpu: 2 uncorrectable hardware errors detected in umc block", "uncorrectable"),
        (
            f"{GPU}amdgpu: {{1}}socket: 3, die: 0, 1 new uncorrectable hardware errors detected in umc block",
            "uncorrectable",
        ),
        (f"{GPU}amdgpu: {{4}}uncorrectable hardware error(ERREVENT_ATHUB_INTERRUPT) detected!", "uncorrectable"),
        (f"{GPU}amdgpu: 0 uncorrectable hardware errors detected in umc block", None),
        (f"{GPU}amdgpu: no uncorrectable hardware errors detected in umc block", None),
        (f"{GPU}amdgpu: 7 correctable hardware errors detected in umc block", None),
        (f"{GPU}amdgpu: 1048560 uncorrectable hardware errors detected in umc block", None),
        (f"{GPU}amdgpu: XGMI: Failed to initialize xgmi session", "xgmi"),
        (f"{GPU}amdgpu: Fatal error during GPU init", "start"),
        (f"{GPU}amdgpu: [gfxhub] no-retry page fault (src_id:0 ring:153 vmid:8 pasid:32770)", None),
        (f"{GPU}amdgpu: MEM ECC is active.", None),
    ],
)
def test_each_line_is_of_its_kind_or_no_error(errors, line, kind):
    found = errors(line)
    assert [error.kind for error in found] == ([kind] if kind else [])
    if kind:
        assert found[0].pci == ("0000:69:00.0" if line.startswith(GPU) else "")
        assert 59 <= found[0].seconds_ago <= 90
        assert not found[0].text.startswith("amdgpu: ")


def test_the_newest_of_each_kind_and_gpu_is_kept(errors):
    line = f"{GPU}amdgpu: GPU reset begin!"
    found = errors(line, line.replace("69", "0c"), f"{GPU}amdgpu: GPU reset begin!. Source:  4")
    assert [(error.pci, error.text) for error in found] == [
        ("0000:0c:00.0", "GPU reset begin!"),
        ("0000:69:00.0", "GPU reset begin!. Source:  4"),
    ]


def test_other_drivers_lines_do_not_count(errors, tmp_path):
    assert errors("NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus") == ()
    assert isinstance(amdgpu_log.recent(tmp_path / "none"), Missing)
