"""Rules about what only AMD's GPUs have: the driver, device files, XGMI links, pages that RAS did not get."""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from typing import TYPE_CHECKING

from distcheck.facts.base import Missing
from distcheck.facts.gpu import Amd, Gpus
from distcheck.facts.job import Job
from distcheck.facts.pci import Pci
from distcheck.facts.quantities import count
from distcheck.rules import Answer, Outcome, rule
from distcheck.rules.finding import Fault, Fix
from distcheck.rules.gpu.nodes import Value, about_nodes, each_value, gpu_nodes, not_seen
from distcheck.rules.gpu.readings import Reading, by_node, each_gpu
from distcheck.rules.wording import brief, grouped, listed, majority, once
from distcheck.selection.gpu_variables import CUDA, HIP

if TYPE_CHECKING:
    from collections.abc import Iterator

    from distcheck.facts.node import NodeFacts

_MESH = 0.7
"""Share of a node's pairs of GPUs with an XGMI link of their own above which all pairs should have one. Eight MI300X
have it on all 28 pairs, eight dies of MI250X on 12; a GPU that is in no hive leaves 21 of 28."""
_MOST = 16
_GROUPS = Fix(
    "Add the user to the groups of the device files and log in again; a container gets them by number.",
    ("ls -ln /dev/kfd /dev/dri/renderD*; id", 'sudo usermod -aG render,video "$USER"'),
)
_CONTAINER = Fix(
    "Give the container or the job step the device files: request GPUs, or start the container with them.",
    (
        "#SBATCH --gpus-per-node={ranks}",
        "# add to docker run: --device=/dev/kfd --device=/dev/dri --group-add $(stat -c %g /dev/kfd)",
    ),
)


def amd_of(reading: Reading) -> Amd:
    """Return what only AMD's driver shows of a GPU; nothing for one of NVIDIA."""
    return reading.health.amd or Amd()


@rule("gpu", scope="node", owner="admin")
def gpu_amdgpu_failed(job: Job) -> Iterator[Outcome]:
    """The kernel driver amdgpu is not loaded or does not answer on a node with AMD GPUs.

    HIP cannot work without it. You would see ``No HIP GPUs are available``, ``ROCk module is NOT loaded``, or no
    message at all when a wedged GPU makes every read of its files hang.

    Found by reading KFD's and amdgpu's files in a child process with a deadline. A driver that is not loaded is
    confirmed and puts the node on the exclude list; a hang may pass: retry elsewhere.

    Fix: Load the driver; if that fails, or it hangs, the kernel log has the reason.

        sudo modprobe amdgpu
        sudo dmesg | grep -i amdgpu
        sudo reboot

    See: https://rocm.docs.amd.com/projects/install-on-linux/en/latest/install/prerequisites.html
    """
    failed = [(node, _refusal(node)) for node in gpu_nodes(job) if node.accelerator == "amd" and _refusal(node)]
    yield from not_seen(job, but=[node for node, _ in failed])
    for reason, pairs in grouped(failed, lambda pair: pair[1]).items():
        loaded = "not loaded" not in reason
        yield about_nodes(job, [node for node, _ in pairs], Fault(reason, confirmed=not loaded))


def _refusal(node: NodeFacts) -> str:
    """Return why amdgpu did not show a node's GPUs or their condition; '' if it did, or was not asked."""
    gpus = node.gpus
    why = gpus.reason if isinstance(gpus, Missing) else gpus.unread if gpus is not None else ""
    return why if why.startswith("amdgpu") else ""


@rule("gpu", scope=("rank", "node"), owner="admin")
def gpu_kfd_denied(job: Job) -> Iterator[Outcome]:
    """A process may not open the device files of AMD's GPUs, so HIP shows it no GPU.

    HIP opens /dev/kfd and the GPU's /dev/dri/renderD*. You would see ``No HIP GPUs are available``, ``Unable to open
    /dev/kfd read-write: Permission denied``, or a program that runs on the CPU without a word. The user is not in the
    group render, or a container was started without the devices or without that group, whose number in the container
    may be another one.

    Found by opening the files; a container's device cgroup denies that although the permissions allow it. Where only
    some GPUs are denied by a cgroup or lack their file, the job was given the others, and nothing is reported.

    Fix: ``sudo usermod -aG render,video "$USER"`` and log in again; ``docker run --device=/dev/kfd --device=/dev/dri
    --group-add render``.

    See: https://rocm.docs.amd.com/projects/install-on-linux/en/latest/install/prerequisites.html
    """
    yield from not_seen(job)
    nodes = [node for node in gpu_nodes(job) if isinstance(node.gpus, Gpus) and node.gpus.unopened]
    for said, alike in grouped(nodes, lambda n: isinstance(n.gpus, Gpus) and tuple(n.gpus.unopened.items())).items():
        files = dict(said or ())
        first, why = next(iter(files.items()))
        more = f", and {count(len(files) - 1, 'more device file')}" if len(files) > 1 else ""
        everywhere, ranks = len(nodes) == len(job.nodes), str(max(len(job.ranks_on(node)) for node in alike))
        yield about_nodes(
            job,
            alike,
            Fault(
                f"cannot open {first}{more}: {brief(why)}; HIP needs it",
                _GROUPS if why.startswith("Permission") else _CONTAINER,
                dict(list(files.items())[:_MOST]),
                scope="rank" if everywhere else "node",
                confirmed=everywhere,
                values={"ranks": (ranks,)},
            ),
        )


@rule("gpu", scope="gpu", owner="admin", of=each_gpu)
def gpu_xgmi_link_down(job: Job, reading: Reading) -> Answer:
    """Two AMD GPUs of a node have no XGMI link, or a slower one than other pairs, or one has left the hive.

    Their traffic then goes through another GPU or over PCIe, and every collective of the node at that pace: RCCL finds
    no ring over all links. You would see a fraction of the usual bandwidth and no error.

    Found in KFD's topology. Where most pairs of a node's GPUs are linked (MI300X: all), the others are compared with
    them; where only some are by design (MI250X), with most other nodes of the same GPUs. Partitioned cards are left
    out. The finding names the GPU with more missing links than its peers, else both.

    Fix: Drain the node and reboot it; have the board replaced if the link stays down.

        amd-smi topology
        amd-smi xgmi
        sudo reboot

    See: https://rocm.blogs.amd.com/software-tools-optimization/mi300x-rccl-xgmi/README.html
    """
    lacking = _lacking(job).get((reading.node.key, reading.gpu.index))
    if not lacking:
        return None
    slower = {rate for rate, _ in lacking.values()}
    names = [f"GPU {n}" for n in sorted(lacking)]
    if slower == {0}:
        return Fault(f"no XGMI link to {listed(names, most=4)}", confirmed=False)
    rate, usual = next((rate, usual) for rate, usual in lacking.values() if rate)
    return Fault(f"XGMI link to {listed(names, most=4)} of {rate} MB/s; {usual} MB/s expected", confirmed=False)


@once
def _lacking(job: Job) -> dict[tuple[str, int], dict[int, tuple[int, int]]]:
    """Return by node and GPU the GPUs to which its link is slower than usual, and both rates in MB/s."""
    rates = {key: _pairs(here) for key, here in by_node(job).items()}
    alike = grouped(rates, lambda key: (len(rates[key]), *sorted({str(r.gpu.name) for r in by_node(job)[key]})))
    found: dict[tuple[str, int], dict[int, tuple[int, int]]] = {}
    for keys in alike.values():
        known = grouped(keys, lambda key: tuple(sorted(rates[key].items())))
        most = dict(majority(known, of=len(keys)) or ())
        for key in keys:
            usual = _meshed(rates[key]) or most
            below = [pair for pair, rate in rates[key].items() if rate < usual.get(pair, 0)]
            ends = Counter(gpu for pair in below for gpu in pair)
            worst = [gpu for gpu, times in ends.items() if times > 1 and times >= len(below)]
            for pair in below:
                for one, other in (pair, pair[::-1]):
                    if not worst or one in worst:
                        found.setdefault((key, one), {})[other] = rates[key][pair], usual[pair]
    return found


def _pairs(here: list[Reading]) -> dict[tuple[int, int], int]:
    """Return the rates of the direct links between a node's GPUs, 0 where there is none; empty if none has any."""
    if len({r.gpu.pci for r in here}) < len(here) or not any(amd_of(r).xgmi for r in here):
        return {}
    rates = {(str(r.gpu.pci), peer.pci): peer.MBps for r in here for peer in amd_of(r).xgmi if peer.hops == 1}
    ends = [(r.gpu.index, str(r.gpu.pci)) for r in here]
    return {(i, j): min(rates.get((a, b), 0), rates.get((b, a), 0)) for (i, a), (j, b) in combinations(ends, 2)}


def _meshed(rates: dict[tuple[int, int], int]) -> dict[tuple[int, int], int]:
    """Return what each pair of a node should reach where most pairs have a link, else nothing."""
    direct = Counter(rate for rate in rates.values() if rate)
    if not direct or sum(direct.values()) < _MESH * len(rates):
        return {}
    return dict.fromkeys(rates, direct.most_common(1)[0][0])


@rule("gpu", scope="gpu", owner="admin", of=each_gpu)
def gpu_bad_pages_in_use(_: Job, reading: Reading) -> Answer:
    """Bad pages of an AMD GPU's memory could not be reserved, so that programs may get them.

    You would see wrong results, uncorrectable errors of the block umc in the kernel log, or a GPU that resets.

    Found in ras/gpu_vram_bad_pages, where the driver marks such pages with F. Pages that wait (P) are
    gpu-retired-pages.

    Fix: Drain the node and reboot it; have the GPU replaced if pages stay so.

        amd-smi bad-pages --gpu {gpu}
        sudo reboot

    See: https://docs.kernel.org/gpu/amdgpu/ras.html
    """
    pages = amd_of(reading).failed_pages
    return f"{count(pages, 'bad page')} of memory could not be reserved and may be used" if pages else None


@rule("gpu", severity="warning", scope="node", owner="admin", of=each_gpu)
def gpu_iommu_translates(_: Job, reading: Reading) -> Answer:
    """The IOMMU of a node translates the addresses of an AMD GPU's transfers.

    Transfers between GPU and adapter are slower, or hang. RCCL warns at its start: ``Missing "iommu=pt" from kernel
    command line which can lead to system instablity or hang!``

    Found by the type of the GPU's IOMMU group, on machines that are not virtual: DMA where addresses are translated,
    identity with ``iommu=pt``.

    Fix: Add ``iommu=pt`` to the kernel's command line and reboot.

        cat /proc/cmdline
        sudo grubby --update-kernel=ALL --args=iommu=pt  # Debian: in /etc/default/grub, then update-grub

    See: https://instinct.docs.amd.com/projects/amdgpu-docs/en/latest/system-optimization/mi300x.html
    """
    pci, kind = reading.node.pci, amd_of(reading).iommu
    translates = kind.startswith("DMA") and isinstance(pci, Pci) and not pci.virtual
    return f"its IOMMU group is of type {kind}; identity expected (iommu=pt)" if translates else None


@rule("gpu", severity="warning", scope="rank", of=each_value)
def gpu_visible_devices_conflict(job: Job, value: Value) -> Answer:
    """HIP_VISIBLE_DEVICES and CUDA_VISIBLE_DEVICES differ; HIP reads the first alone.

    A script that sets one of them believes that it decides. vLLM and Ray stop with an assertion: ``Inconsistant values
    found``.

    Found by the ranks' own variables, on nodes with AMD GPUs.

    Fix: Set HIP_VISIBLE_DEVICES alone, or both to the same value.

        unset CUDA_VISIBLE_DEVICES

    See: https://rocm.docs.amd.com/en/latest/conceptual/gpu-isolation.html
    """
    first, second = map(value.ranks[0].environment.get, (HIP, CUDA))
    if job.node_of(value.ranks[0]).accelerator != "amd" or None in {first, second} or first == second:
        return None
    return Fault(f"{HIP}={brief(repr(first), 60)} counts, not {CUDA}={brief(repr(second), 60)}")
