"""Accelerators that are no GPUs of NVIDIA or AMD: Huawei's Ascend with HCCL, Intel's XPUs with oneCCL."""

from __future__ import annotations

from functools import partial

from distcheck.explain.spelling import CONSEQUENCE, LIKELY, SYMPTOM, told

_ASCEND = "https://github.com/Ascend/pytorch"
_HCCL = "https://www.hiascend.com/document/detail/en/canncommercial/800/maintenref/troubleshooting/troubleshooting_0001.html"
_XPU = "https://github.com/pytorch/pytorch/blob/main/c10/xpu/XPUFunctions.cpp"
_CCL = "https://github.com/uxlfoundation/oneCCL/tree/master/src"
_gpu = partial(told, about="GPU", weight=LIKELY)
_net = partial(told, about="network", weight=LIKELY)
_NPU = "A call of Ascend's runtime failed. Its own log, in ~/ascend/log, says why; npu-smi info shows the devices."
_NOT_MET = (
    "HCCL did not reach another rank: it did not start, it failed earlier, or the adapters of the NPUs cannot reach each"
    " other (hccn_tool -ip, -ping)."
)
_BUSY = "HCCL could not start on an NPU: mostly an earlier job's processes still hold it."
_ONECCL = (
    "oneCCL could not connect its ranks. Repeat with CCL_LOG_LEVEL=info, and look at FI_PROVIDER and CCL_ATL_TRANSPORT."
)

SPELLINGS = (
    # Ascend: torch_npu's and CANN's words
    _net(r"Getting socket times out", source=_HCCL, says=_NOT_MET),
    _net(r"Failed to initialize the HCCP process", about="GPU", source=_HCCL, says=_BUSY),
    _net(
        r"Notify (?:register|wait) (?:failed|times? ?out)",
        about="application",
        source=_HCCL,
        weight=CONSEQUENCE,
        says="A collective timed out: another rank failed, stopped or did something else.",
    ),
    _net(r"HCCL function error: ", source=_HCCL, weight=SYMPTOM, says=_NOT_MET),
    _gpu(r"\bNPU out of memory", about="application", source=_ASCEND, says="The NPU ran out of memory."),
    _gpu(r"\bNPU function error: ", source=_ASCEND, weight=SYMPTOM, says=_NPU),
    _gpu(r"\bnpuSynchronize\w+\b.*error code is \d", source=_ASCEND, weight=SYMPTOM, says=_NPU),
    # Intel
    _gpu(r"\bNo XPU devices? (?:is|are) available", "gpu-none-visible", source=_XPU),
    _gpu(r"\bUR_RESULT_ERROR_DEVICE_LOST", source=_XPU, says="The GPU was lost. Look at the kernel log."),
    _gpu(
        r"\bUR_RESULT_ERROR_OUT_OF_(?:DEVICE|HOST|RESOURCES)\w*",
        about="application",
        source=_XPU,
        says="The GPU or the host ran out of memory.",
    ),
    _net(r"\bCCL_ERROR\b.*(?:connect|pmi|kvs|atl|ofi)", source=_CCL, weight=SYMPTOM, says=_ONECCL),
)
