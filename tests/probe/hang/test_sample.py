"""What /proc says of a process of this machine between two samples."""

from __future__ import annotations

import ctypes
import os
import threading

from distcheck.probe.hang.processes import ProcessTable
from distcheck.probe.hang.sample import moment


def test_what_gloo_s_threads_write_is_traffic_and_what_others_write_is_not():
    def written(name: bytes) -> int:
        reading, writing = os.pipe()
        step = threading.Barrier(2)

        def write() -> None:
            ctypes.CDLL(None).prctl(15, name)  # PR_SET_NAME
            step.wait()
            step.wait()
            os.write(writing, b"x" * 1000)
            step.wait()
            step.wait()

        thread = threading.Thread(target=write)
        thread.start()
        step.wait()
        before = moment(ProcessTable(), os.getpid(), ()).traffic_bytes
        step.wait()
        step.wait()
        after = moment(ProcessTable(), os.getpid(), ()).traffic_bytes
        step.wait()
        thread.join()
        os.close(reading)
        os.close(writing)
        return after - before

    assert [written(name) for name in (b"gloo_tcp_loop", b"pt_gloo_runloop", b"python")] == [1000, 1000, 0]
