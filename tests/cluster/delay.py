"""Delay what a node sends: `python delay.py MILLISECONDS`, for kernels without tc's netem; it runs until it is killed.

iptables hands packets over to this program (NFQUEUE), which lets each of them go when its time has come. Only their
numbers are copied, so that a transfer goes on at full speed, merely later.
Source of the messages: linux/netfilter/nfnetlink.h and nfnetlink_queue.h.
"""

from __future__ import annotations

import collections
import select
import socket
import struct
import subprocess
import sys
import time

QUEUE = 7
_NETLINK_NETFILTER, _REQUEST, _ACCEPT = 12, 1, 1
_PACKET, _CONFIG, _VERDICT_BATCH = 0x300, 0x302, 0x303
_SO_RCVBUFFORCE = 33
_BIND, _COPY_META, _UNSEGMENTED = 1, 1, 1 << 2


def message(kind: int, *attributes: tuple[int, bytes]) -> bytes:
    """Return a netlink message to the queue; attributes are given with their numbers."""
    body = struct.pack("!BBH", socket.AF_UNSPEC, 0, QUEUE)
    for number, value in attributes:
        body += struct.pack("=HH", 4 + len(value), number) + value + bytes(-len(value) % 4)
    return struct.pack("=IHHII", 16 + len(body), kind, _REQUEST, 0, 0) + body


def packets(data: bytes) -> list[int]:
    """Return the numbers of the packets that came; the header is always their first attribute."""
    found = []
    while len(data) >= 16:
        length, kind = struct.unpack_from("=IH", data)
        if kind == _PACKET:
            found.append(struct.unpack_from("!I", data, 24)[0])
        data = data[(length + 3) & ~3 :]
    return found


def main(seconds: float) -> None:
    """Take the node's packets and let them go later, in their order."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_NETFILTER) as queue:
        queue.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, 1 << 24)
        queue.bind((0, 0))
        queue.send(message(_CONFIG, (1, struct.pack("!BxH", _BIND, 0))))
        queue.send(message(_CONFIG, (2, struct.pack("!IB", 0, _COPY_META))))
        queue.send(message(_CONFIG, (3, struct.pack("!I", 1 << 16))))
        queue.send(message(_CONFIG, (5, struct.pack("!I", _UNSEGMENTED)), (4, struct.pack("!I", _UNSEGMENTED))))
        target = ("-j", "NFQUEUE", "--queue-num", str(QUEUE), "--queue-bypass")
        subprocess.run(["iptables", "-A", "OUTPUT", "-o", "eth0", *target], check=True)
        print("ready", flush=True)
        waiting: collections.deque[tuple[float, int]] = collections.deque()
        while True:
            left = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
            if select.select([queue], [], [], left)[0]:
                due = time.monotonic() + seconds
                waiting.extend((due, number) for number in packets(queue.recv(1 << 16)))
            last = None
            while waiting and waiting[0][0] <= time.monotonic():
                last = waiting.popleft()[1]
            if last is not None:
                queue.send(message(_VERDICT_BATCH, (2, struct.pack("!II", _ACCEPT, last))))


if __name__ == "__main__":
    main(float(sys.argv[1]) / 1000)
