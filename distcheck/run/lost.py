"""Where a process looks for rank 0 when MASTER_ADDR did not lead to it: at hosts that its launcher names."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Mapping

from distcheck.facts import Resolution
from distcheck.rollcall import client, identity
from distcheck.rollcall.client import Door
from distcheck.rollcall.protocol import Found
from distcheck.selection.nodelist import expand
from distcheck.selection.placement import integer

_LOST_AFTER_SECONDS = 1.0
_RESOLVE_SECONDS = 1.0
_MOST = 8
"""Hosts that are asked."""
_ADDRESSES = re.compile(r"tcp4?://([\d.,]+):")


def to_ask(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return hosts of this process's job, by name or address, at which rank 0 may be or is known.

    Of a Slurm step that is its first node, which runs task 0 unless the distribution is arbitrary, and those that lie
    1, 2, 4, … nodes further on than this one: whoever has met rank 0 there tells where, so that a few steps lead to it
    from everywhere. Where srun or mpirun itself runs is most often the first node as well, and is known as an address,
    which no wrong entry for a name spoils.
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
    """After a second add further doors to `leads`: this node's own, and those of hosts to ask.

    Those at the addresses that are `known` are knocked at anyway.
    """
    await asyncio.sleep(_LOST_AFTER_SECONDS)
    leads += side_doors(["127.0.0.1"], job, "node", set(known))
    hosts = to_ask(environ)
    told = await asyncio.gather(*(client.resolve(host, _RESOLVE_SECONDS) for host in hosts))
    for answer in told:
        if isinstance(answer, Resolution):
            leads += side_doors(answer.addresses, job, "job", {*known, *(door.address for door in leads)})


def side_doors(addresses: Collection[str], job: str, found: Found, known: Collection[str]) -> list[Door]:
    """Return the side doors at those of the addresses that are not known yet."""
    new = (address for address in dict.fromkeys(addresses) if address not in known)
    return [Door(address, port, side=True, found=found) for address in new for port in identity.side_ports(job)]
