"""A RAS of NCCL that speaks its protocol over real sockets, and the answers it would give, in text and JSON.

Source of both: NCCL's user guide, troubleshooting/ras, and NVIDIA/nccl, src/ras/client_support.cc (rasClientEventLoop,
rasClientRunComms, rasDumpCommsToJSON), from 2.24.3 to 2.30.7; tests/recorded/ras has what 2.28.9 really answered.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections import defaultdict

WHERE = "GPU {0} managed by process {1} on node 10.0.0.1"
HEALTHY = {"Broadcast": 3, "Reduce": 0, "AllGather": 0, "ReduceScatter": 0, "AllReduce": 42}


def text(size, *, counts=None, missing=(), later=(), version="2.28.9"):
    """Return VERBOSE STATUS as text; `counts` maps ranks to what they launched by operation, if other than HEALTHY.

    `later` has such counts for further communicators of all ranks.
    """
    communicators = [_launched(size, counts, missing), *(_launched(size, other, ()) for other in later)]
    errors = [
        (["INCOMPLETE"] if missing and not number else [])
        + (["MISMATCH"] if len({str(c) for c in ranks.values()}) > 1 else [])
        for number, ranks in enumerate(communicators)
    ]
    lines = [f"NCCL version {version} compiled with CUDA 13.0", "CUDA runtime version 13000, driver version 13000", ""]
    lines += ["Job summary", "===========", "", "  Nodes  Processes         GPUs  Processes     GPUs"]
    lines += [
        "(total)   per node  per process    (total)  (total)",
        f"      1  {size:9}            1  {size:9}  {size:7}",
    ]
    lines += ["", "Communicators... (0.000s)", "=============", ""]
    lines += ["Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors"]
    lines += ["    #  in group  per comm  per node  per comm  in group"]
    lines += [
        f"    {group}         1         1  {size:8}  {size:8}  {size:8}   RUNNING  {','.join(own) or 'OK':>6}"
        for group, own in enumerate(errors)
    ]
    lines += ["", "Errors", "======", ""]
    if missing:
        lines += ["INCOMPLETE", f"  Missing communicator data from {len(missing)} job process"]
        lines += [f"  Process {4000 + n} on node 10.0.0.1 managing GPU {n}" for n in missing]
        lines += ["", "#0-0 (cf264af53edbe986) INCOMPLETE", f"  Missing communicator data from {len(missing)} rank"]
        if version < "2.26":
            lines += [f"  The missing rank{'s' * (len(missing) > 1)}: {','.join(map(str, missing))}"]
        else:
            lines += [f"  Rank {n} -- {WHERE.format(n, 4000 + n)}" for n in missing]
        lines += [""]
    lines += ["Warnings", "========", ""]
    for group, ranks in enumerate(communicators):
        if "MISMATCH" in errors[group]:
            lines += [f"#{group}-0 ({0xCF264AF53EDBE986 + group:x}) MISMATCH", *_mismatches(size, ranks, version), ""]
    return ("\n".join(lines) + "\n").encode()


def _launched(size, counts, missing):
    return {rank: {**HEALTHY, **(counts or {}).get(rank, {})} for rank in range(size) if rank not in missing}


def _mismatches(size, counts, version):
    """Return the lines about the operations of which the ranks of one communicator launched different numbers."""
    lines = []
    for operation in HEALTHY:
        groups = defaultdict(list)
        for rank, launched in counts.items():
            groups[launched[operation]].append(rank)
        if len(groups) < 2:
            continue
        kind = "collective" if version < "2.26" else operation
        lines += [f"  Communicator ranks have different {kind} operation counts"]
        for launched, ranks in sorted(groups.items(), key=lambda group: -len(group[1])):
            did = f"launched up to operation {launched}" if launched else "not launched any operations"
            if len(ranks) == 1:
                lines += [f"  Rank {ranks[0]} has {did} -- {WHERE.format(ranks[0], 4000 + ranks[0])}"]
                continue
            lines += [f"  {len(ranks)} ranks have {did}"]
            if len(ranks) < size / 2:
                lines += [f"  Rank {n} -- {WHERE.format(n, 4000 + n)}" for n in ranks]
    return lines


def document(size, *, counts=None, missing=(), later=(), dead=(), errors=None, version="2.28.9"):
    """Return VERBOSE STATUS as JSON."""

    def place(rank):
        return {"rank": rank, "host": "10.0.0.1", "pid": 4000 + rank, "cuda_dev": rank, "nvml_dev": rank}

    def communicator(number, launched, gone, errors):
        flags = {"finalize_called": False, "destroy_flag": False, "abort_flag": False}
        ranks = [
            {
                **place(rank),
                "status": {"init_state": 0, "async_error": errors.get(rank, 0), **flags},
                "collective_counts": own,
            }
            for rank, own in launched.items()
        ]
        head = {"hash": f"0xae9{number}", "secondary_hash": "0xb7:0xb8", "size": size, "ranks_count": len(ranks)}
        return {**head, "missing_ranks_count": len(gone), "ranks": ranks, "missing_ranks": gone}

    gone = [{**place(n), "status": {"unresponsive": True, "considered_dead": n in dead}} for n in missing]
    communicators = [communicator(0, _launched(size, counts, missing), gone, errors or {})]
    communicators += [communicator(n, _launched(size, other, ()), [], {}) for n, other in enumerate(later, 1)]
    head = {"nccl_version": version, "cuda_runtime_version": 13000, "cuda_driver_version": 13000}
    head |= {"timestamp": "2025-12-19 13:06:53", "communicators_count": len(communicators)}
    ras = {"collection_time_sec": 0.0, "timeouts_count": 0}
    return json.dumps({**head, "communicators": communicators, "ras": ras}, indent=2).encode()


class FakeRas:
    """Answers on a loopback port, in a thread, until it is closed.

    `how`: "" as NCCL does; "mute" accepts and says nothing, as a frozen process; "drip" sends the status a byte at a
    time; "close" hangs up before the status; "endless" never stops; "other" speaks another protocol.
    """

    def __init__(self, answers, how="", port=0):
        self.answers, self.how, self.heard = answers, how, []
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)  # as NCCL does
        self._socket.bind(("127.0.0.1", port))
        self._socket.listen()
        self.port = self._socket.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread in accept
        self._socket.close()

    def _serve(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._socket.accept()
                threading.Thread(target=self._talk, args=(client,), daemon=True).start()

    def _talk(self, client):
        form = "text"
        with contextlib.suppress(OSError), client, client.makefile("rb") as lines:
            for line in lines:
                command = line.decode().strip().upper()
                self.heard.append(command)
                if self.how == "mute":
                    time.sleep(60)
                if self.how == "other":
                    client.sendall(b"\xff\xfeSSH-2.0\r\n")
                elif command.startswith("CLIENT PROTOCOL "):
                    client.sendall(b"SERVER PROTOCOL 2\n")
                elif command.startswith("TIMEOUT "):
                    client.sendall(b"OK\n")
                elif command.startswith("SET FORMAT ") and "json" in self.answers:
                    form = command.split()[-1].lower()
                    client.sendall(b"OK\n")
                elif command == "VERBOSE STATUS":
                    self._status(client, self.answers[form])
                    return  # NCCL closes the connection after the status
                else:
                    client.sendall(f"ERROR: Unknown command {command}\n".encode())

    def _status(self, client, answer):
        if self.how == "close":
            return
        if self.how == "drip":
            for byte in answer:
                client.sendall(bytes([byte]))
                time.sleep(0.2)
        while self.how == "endless":
            client.sendall(b" " * 65536)
        client.sendall(answer)
