"""Measure each RDMA port in loopback with perftest's ib_write_bw, where it is installed.

A server and a client on the same port write through the adapter and back. This module runs as a program in a child
that is killed, with ib_write_bw, at the deadline; it reports after each port, and the ports measured until then count.

Sources: https://github.com/linux-rdma/perftest: README (server and client get the same options, the client the
server's address too), run_perftest_loopback, src/perftest_parameters.h (RESULT_FMT_G, REPORT_FMT).
"""

from __future__ import annotations

import re
import subprocess
import sys
import time

from msgspec.structs import replace

from distcheck.facts.base import Amount, Facts, Missing
from distcheck.facts.infiniband import OWN_LINKS, Hca, HcaPort, Infiniband
from distcheck.facts.touch import which
from distcheck.probe.child import Question, ask, exit_after_lifetime, say
from distcheck.probe.network import free_port

PROGRAM = "ib_write_bw"
_OPTIONS = ("-F", "--report_gbits", "-s", str(1 << 20), "-n", "1000")
"""Whatever the CPU's clocks; 1 GiB in messages of 1 MiB, which takes 0.02 s at 400 Gb/s and 0.9 s at 10 Gb/s."""
_PORT_SECONDS = 5.0
"""For one port; devices are opened within a second."""
_RETRY_SECONDS = 0.1
"""Between attempts to reach the server, which accepts one connection only."""
_UNITS = "BW average[Gb/sec]"
_ROW = re.compile(r"^\s*\d+\s+\d+\s+[\d.]+\s+([\d.]+)\s+[\d.]+\s*$", re.MULTILINE)
"""Bytes, iterations, peak and average bandwidth, messages per second."""
_NOT_YET = "Couldn't connect"
_REASON = 200


class LoopbackRates(Facts, frozen=True):
    """The child's answer."""

    ports: dict[str, Amount | Missing]
    """The rate in Gb/s by adapter and port: mlx5_0:1."""
    ended: str = ""
    """Why there are no more; empty if all ports were measured."""


async def loopback(found: Infiniband, timeout: float) -> Infiniband:
    """Return the adapters with the loopback rate of each port; unchanged where perftest is not installed."""
    names = [f"{hca.name}:{port.number}" for hca in found.hcas if _usable(hca) for port in hca.ports if _up(port)]
    if not names or not which(PROGRAM):
        return found
    question = Question(__name__, PROGRAM, "an adapter or its driver hangs", tuple(names))
    answer = await ask(question, LoopbackRates, timeout, in_part=lambda rates, reason: replace(rates, ended=reason))
    rates = LoopbackRates({}, answer.reason) if isinstance(answer, Missing) else answer

    def measured(hca: Hca, port: HcaPort) -> HcaPort:
        name = f"{hca.name}:{port.number}"
        if name not in names:
            return port
        return replace(port, loopback_Gbps=rates.ports.get(name, Missing(reason=rates.ended)))

    return replace(
        found, hcas=tuple(replace(hca, ports=tuple(measured(hca, port) for port in hca.ports)) for hca in found.hcas)
    )


def _usable(hca: Hca) -> bool:
    """Return whether this process may use an adapter; software devices have no driver of their own, and no rate."""
    return bool(hca.driver) and hca.device_file in {"usable", "unknown"}


def _up(port: HcaPort) -> bool:
    return port.state == "ACTIVE" and port.link_layer in OWN_LINKS


def measure(device: str, port: str, seconds: float = _PORT_SECONDS) -> float | Missing:
    """Return the rate in Gb/s that a port reaches to itself, or why it is not known."""
    command = [PROGRAM, "-d", device, "-i", port, "-p", str(free_port()), *_OPTIONS]
    deadline = time.monotonic() + seconds
    try:
        server = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
    except OSError as error:
        return Missing(reason=f"{PROGRAM} could not be started: {error}")
    try:
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                return Missing(reason=f"{PROGRAM} did not end within {seconds:g} s")
            try:
                ended = subprocess.run(
                    [*command, "127.0.0.1"], capture_output=True, text=True, timeout=left, check=False
                )
            except subprocess.TimeoutExpired:
                return Missing(reason=f"{PROGRAM} did not end within {seconds:g} s")
            said = ended.stdout + ended.stderr
            if _NOT_YET not in said or ended.returncode == 0:
                return _rate(ended.returncode, said)
            if server.poll() is not None:
                return _rate(server.returncode or 1, server.stdout.read() if server.stdout else "")
            time.sleep(_RETRY_SECONDS)
    finally:
        server.kill()
        server.communicate()


def _rate(code: int, said: str) -> float | Missing:
    """Return the average bandwidth in ib_write_bw's output."""
    row = _ROW.search(said.partition(_UNITS)[2])
    if code == 0 and row is not None:
        return float(row[1])
    lines = [line.strip() for line in said.splitlines() if line.strip(" -")]
    why = f": {lines[-1][:_REASON]}" if lines else ""
    return Missing(reason=f"{PROGRAM} ended with exit code {code}{why}")


def main() -> None:
    """Print the rate of the ports in the arguments, after each port, as lines of JSON."""
    exit_after_lifetime()
    rates: dict[str, float | Missing] = {}
    for name in sys.argv[2:]:
        device, _, port = name.rpartition(":")
        rates[name] = measure(device, port)
        say(LoopbackRates(rates))


if __name__ == "__main__":
    main()
