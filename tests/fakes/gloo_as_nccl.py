"""Gloo stands for NCCL, since there is no GPU: variables with which distcheck's ranks take one for the other."""

from __future__ import annotations

from pathlib import Path

from real.spoiling import hooked, planted

TESTS = Path(__file__).parents[1]
SMALL = ["--sizes", "1M:1M", "--op", "all_reduce", "--backend", "nccl", "--ignore", "gpu-none-visible"]
PARTIAL = "p2p: only 5/6 GPU-to-GPU peer accesses passed verification"

BODY = """
    sys.path.append({tests!r})
    import torch
    import torch.distributed as dist
    from distcheck.collectives.plan import Software
    from fakes.ras import FakeRas, document
    join, reduce = dist.init_process_group, dist.all_reduce
    there.lack_of = lambda backend, name="": ""
    there._take_device = lambda task: torch.device("cpu")
    there.software = lambda device: Software(torch=str(torch.__version__), nccl={nccl!r}, device="cpu")
    def init_process_group(backend, *, rank, world_size, **more):
        answers = {{"json": document(world_size, counts={{2: {{"AllReduce": 41}}}}), "text": b""}}
        port = int(os.environ["NCCL_RAS_ADDR"].removeprefix("127.0.0.1:"))
        _done.append(FakeRas(answers, port=port))
        me = f"node1:{{os.getpid()}}"
        with open(os.environ["NCCL_DEBUG_FILE"], "a") as log:
            log.write(f"{{me}}:1 [0] NCCL INFO NCCL version 2.31.2+cuda13.0\\n")
        runs = not {asked} or os.environ.get("NCCL_RUN_DIAGNOSTICS") == "1"
        if rank == 0 and {said!r} and runs:  # as NCCL prints it: through C's stdout, without a flush
            ctypes.CDLL(None).puts(f"{{me}} NCCL DIAG [INFO] {said}".encode())
        join("gloo", rank=rank, world_size=world_size, **more)
    def all_reduce(tensor, *args, **more):
        {fault}
        return reduce(tensor, *args, **more)
    dist.init_process_group, dist.all_reduce = init_process_group, all_reduce
"""


def as_nccl(folder, fault="pass", said="", nccl="2.28.9", *, asked=False):
    """Return the variables with which Gloo stands for NCCL; `fault` is a line of Python before each all_reduce.

    `said` is a line of NCCL's own diagnostics on rank 0, with `asked` only if NCCL_RUN_DIAGNOSTICS is 1.
    """
    body = BODY.format(tests=str(TESTS), fault=fault, said=said, nccl=nccl, asked=asked)
    found = planted(folder, hooked("distcheck.collectives.worker", "one_line", body))
    return {**found, "PYTHONUNBUFFERED": ""}  # with it, C's stdout would have no buffer either
