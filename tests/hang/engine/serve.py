"""An engine with four workers, started and named as vLLM does it: ``serve.py FOLDER PORT``. Standard input: calls."""

from __future__ import annotations

import multiprocessing
import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "site-packages"), str(HERE.parents[1])]
SIZE = 4


def engine_core(calls: int, folder: Path, port: int) -> None:
    """Be the engine: send what comes to all workers."""
    import torch.distributed  # noqa: F401 once for all of them
    from vllm.distributed.device_communicators.shm_broadcast import MessageQueue
    from vllm.utils import set_process_title
    from vllm.v1.executor.multiproc_executor import WorkerProc

    set_process_title("EngineCore")
    queues = [MessageQueue() for _ in range(SIZE)]
    for rank, queue in enumerate(queues):
        multiprocessing.Process(target=WorkerProc.worker_main, args=(queue, rank, SIZE, port, folder)).start()
    with open(calls) as lines:
        for line in lines:
            for queue in queues:
                queue.enqueue(line.strip())


if __name__ == "__main__":
    multiprocessing.set_start_method("fork")
    core = multiprocessing.Process(target=engine_core, args=(os.dup(0), Path(sys.argv[1]), int(sys.argv[2])))
    core.start()
    core.join()
