"""The sum of all_reduce.py over plain sockets: the same variables and the same port, without the import of torch."""

import os
import socket
import time

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
meeting = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
patience = time.monotonic() + 60

if rank == 0:
    with socket.create_server(("", meeting[1]), backlog=world) as server:
        server.settimeout(60)
        others = [server.accept()[0] for _ in range(world - 1)]
    numbers = [1, *(int(other.recv(16)) for other in others)]
    assert sorted(numbers) == list(range(1, world + 1)), numbers
    total = sum(numbers)
    for other in others:
        other.sendall(str(total).encode())
else:
    while True:
        try:
            first = socket.create_connection(meeting, 10)
            break
        except ConnectionRefusedError:
            assert time.monotonic() < patience, f"nobody listens at {meeting}"
            time.sleep(0.05)
    first.sendall(str(rank + 1).encode())
    total = int(first.recv(16))
print(f"rank {rank} of {world} summed up {total}", flush=True)
