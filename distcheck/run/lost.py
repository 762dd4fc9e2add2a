"""Where a process looks for rank 0 if MASTER_ADDR does not lead there.

On the side ports of its own node, the first node of its Slurm step, the node of srun or mpirun, and nodes further on. A
follower that has met the leader listens as a signpost and names the leader's address, so that a MASTER_ADDR that is
wrong on one node or on all ends in one roll call and one report.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Mapping

from distcheck.facts.network import Resolution
from distcheck.rollcall import identity, resolution
from distcheck.rollcall.handshake import Door
from distcheck.rollcall.protocol import Found
from distcheck.selection.nodelist import expand
from distcheck.selection.placement import integer

_LOST_AFTER_SECONDS = 1.0
_RESOLVE_SECONDS = 1.0
_MOST = 8
"""The most hosts to try."""
_ADDRESSES = re.compile(r"tcp4?://([\d.,]+):")


def to_ask(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return hosts of the job where rank 0 may run or a process may know its address.

    In a Slurm step these are the first node, which runs task 0 unless the distribution is arbitrary, and the nodes 1,
    2, 4, … places after this one: a process there that reached rank 0 sends this one on, so a few steps lead to rank 0
    from any node. The host of srun or mpirun is usually the first node too. Its address is known as a number, so a
    wrong name entry does not matter.
    Source: https://slurm.schedmd.com/srun.html#SECTION_OUTPUT-ENVIRONMENT-VARIABLES
    """
    nodes = expand(environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST", ""))
    own = integer(environ.get("SLURM_NODEID")) or 0
    steps = (1 << n for n in range(len(nodes).bit_length()) if 1 << n < len(nodes))
    further = [nodes[(own + step) % len(nodes)] for step in steps]
    mpirun = _ADDRESSES.search(environ.get("OMPI_MCA_orte_hnp_uri", ""))
    found = [environ.get("SLURM_LAUNCH_NODE_IPADDR", ""), *(mpirun[1].split(",") if mpirun else ())]
    return tuple(dict.fromkeys(host for host in (*nodes[:1], *found, *further) if host))[:_MOST]


async def seek(leads: list[Door], environ: Mapping[str, str], job: str, known: Collection[str]) -> None:
    """After a second, add this node's endpoints and those of `to_ask` to `leads`.

    Endpoints at `known` addresses are tried anyway and are left out.
    """
    await asyncio.sleep(_LOST_AFTER_SECONDS)
    leads += side_doors(["127.0.0.1"], job, "node", set(known))
    hosts = to_ask(environ)
    answers = await asyncio.gather(*(resolution.resolve(host, _RESOLVE_SECONDS) for host in hosts))
    for answer in answers:
        if isinstance(answer, Resolution):
            leads += side_doors(answer.addresses, job, "job", {*known, *(door.address for door in leads)})


def side_doors(addresses: Collection[str], job: str, found: Found, known: Collection[str]) -> list[Door]:
    """Return the side endpoints at the addresses that are not `known`."""
    new = (address for address in dict.fromkeys(addresses) if address not in known)
    return [Door(address, port, side=True, found=found) for address in new for port in identity.side_ports(job)]
