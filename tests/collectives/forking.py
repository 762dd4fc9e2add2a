"""Fork ranks and read what they write: for programs, because a pytest process may have threads."""

import json
import os
import sys


def forked(count, stderr, be_rank):
    """Yield what each rank wrote, as a stream.

    ``be_rank(rank, store, said, port)`` writes it to the descriptor `said`; rank 0 writes its store's port in two
    bytes to `port` at first, and the others get the store's address.
    """
    port_read, port_write = os.pipe()
    pipes, store = [], None
    for rank in range(count):
        read, write = os.pipe()
        if os.fork() == 0:
            try:
                # Torch 2.8 to 2.10 print their connections to standard output.
                for descriptor, path in ((1, os.devnull), (2, stderr)):
                    os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), descriptor)
                be_rank(rank, store, write, port_write)
            finally:
                os._exit(0)
        os.close(write)
        pipes.append(read)
        store = store or ("127.0.0.1", int.from_bytes(os.read(port_read, 2), "big"))
    os.close(port_read)
    os.close(port_write)
    for read in pipes:
        with os.fdopen(read) as stream:
            yield stream
    for _ in pipes:
        os.wait()


def answer(run):
    """Answer every line of standard input."""
    for line in sys.stdin:
        print(json.dumps(run(json.loads(line))), flush=True)
