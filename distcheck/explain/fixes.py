"""What fits a log better than the fix in a rule's docstring: commands that can be pasted, with the log's values."""

from __future__ import annotations

_VISIBLE = 'nvidia-smi -L; echo "CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES-unset}"'
_INTERFACE = r"$(ip -o route get 1.1.1.1 | sed 's/.* dev \([^ ]*\).*/\1/')  # or another of `ip -br address`"
"""The interface of the default route."""
PARTITIONS = "sinfo -o '%P %a %l %D %c %m %G'  # partitions: state, time limit, nodes, CPUs, MB of memory, GPUs"
STACK = "for p in $(grep -lsz '^RANK={rank}$' /proc/[0-9]*/environ | cut -d/ -f3); do py-spy dump --pid $p; done{on}"
"""Prints the Python stack of a rank that still runs, found by its variable RANK."""
COMMANDS: dict[str, tuple[str, ...]] = {
    "env-rank-unset": ("torchrun --standalone --nproc-per-node=gpu train.py",),
    "env-local-rank-unset": ("torchrun --standalone --nproc-per-node=gpu train.py",),
    "launch-local-rank-arg": ("torchrun --nproc-per-node=gpu train.py",),
    "net-port-in-use": (
        "ss -ltnp 'sport = :{port|29500}'",
        "export MASTER_PORT=$((20000 + ${SLURM_JOB_ID:-9611} % 10000))  # the same on all nodes",
    ),
    "net-master-refused": ("ss -ltnp 'sport = :{port|29500}'  # on the master's node",),
    "net-master-unreachable": (
        "nc -vz {host|$MASTER_ADDR} {port|29500}  # on another node",
        "ip route get $(getent hosts {host|$MASTER_ADDR} | awk '{print $1}')",
    ),
    "env-master-addr-unresolvable": (
        "getent hosts {host|$MASTER_ADDR}  # on every node",
        "hostname -I  # on rank 0's node: its addresses",
    ),
    "net-hostname-loopback": ("getent hosts $(hostname)", f"export GLOO_SOCKET_IFNAME={_INTERFACE}"),
    "net-nccl-picks-loopback-or-docker": ("ip -br address", f"export NCCL_SOCKET_IFNAME={_INTERFACE}"),
    "net-firewall-ephemeral": ("sudo iptables -S; sudo nft list ruleset  # on both nodes",),
    "host-shm-too-small": (
        "df -h /dev/shm",
        "docker run --shm-size=8g IMAGE",
        "sudo mount -o remount,size=8g /dev/shm  # without a container",
    ),
    "host-nofile": ("ulimit -n 65536",),
    "host-memory-low": (
        "sudo dmesg -T | grep -i -E 'oom|killed process'",
        "sacct -j $SLURM_JOB_ID --format=JobID,MaxRSS,ReqMem,State",
    ),
    "gpu-none-visible": (_VISIBLE,),
    "env-local-rank-out-of-range": (_VISIBLE, "torchrun --nproc-per-node=gpu train.py"),
    "gpu-duplicate": (_VISIBLE, "torchrun --nproc-per-node=gpu train.py"),
    "gpu-nvml-init-failed": (
        "cat /proc/driver/nvidia/version",
        "nvidia-smi",
        "sudo reboot  # after the node is drained",
    ),
    "gpu-xid-recent": ("sudo dmesg -T | grep -i xid", "dcgmi diag -r 3"),
    "gpu-cuda-init-failed": (
        "sudo modprobe -r nvidia_uvm; sudo modprobe nvidia_uvm",
        "python -c 'import torch; torch.cuda.init()'",
    ),
    "sw-nccl-shadowed": (
        "pip list | grep -i nccl; ldconfig -p | grep nccl; echo $LD_LIBRARY_PATH $LD_PRELOAD",
        "env -u LD_LIBRARY_PATH -u LD_PRELOAD python -c 'import torch; print(torch.cuda.nccl.version())'  # torch's own",
    ),
    "sw-driver-too-old": (
        "nvidia-smi | grep -o 'CUDA Version: [0-9.]*'; python -c 'import torch; print(torch.version.cuda)'",
        "pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/cu118  # for CUDA 11.8",
    ),
    "launch-node-unreachable": (
        "ssh -o BatchMode=yes {host|NODE} hostname  # must print the node's name without a question",
        "ssh -o StrictHostKeyChecking=accept-new {host|NODE} hostname  # accepts a host key that is not yet known",
        "ssh-copy-id {host|NODE}",
    ),
    "launch-failed": (
        "command -v srun sbatch mpirun mpiexec pdsh",
        "module avail 2>&1 | grep -i -E 'slurm|openmpi|mpich|hpcx'",
    ),
    "launch-probe-missing": (
        "command -v python; python -c 'import torch; print(torch.__version__, torch.__file__)'  # on every node",
    ),
    "host-nproc-pids": (
        "ulimit -u; cat /sys/fs/cgroup/pids.max  # the limits of the user and of the container",
        "export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1",
        "docker run --pids-limit=-1 IMAGE",
    ),
    "env-rank-duplicate": (
        "pgrep -af 'torchrun|train.py'  # on every node: leftovers of an earlier start",
        "scontrol show job $SLURM_JOB_ID | grep -E 'NumTasks|NumNodes'",
    ),
    "env-rank-missing": (
        "nc -vz $MASTER_ADDR ${MASTER_PORT:-29500}  # on the node of rank {missing|N, for each missing N}",
    ),
    "env-master-addr-not-rank0-host": (
        "hostname -I  # on rank 0's node",
        'export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n1)  # under Slurm',
    ),
    "torchrun-localhost-name-ambiguous": (
        "hostname -I  # on the first node",
        "torchrun --rdzv-backend=c10d --rdzv-endpoint=HOST:29400 train.py  # HOST: the first node",
    ),
    "net-hostname-wrong-nic": ("ip -br address; getent hosts $(hostname)", f"export GLOO_SOCKET_IFNAME={_INTERFACE}"),
    "net-nccl-auto-wrong-iface": ("ip -br address", f"export NCCL_SOCKET_IFNAME=={_INTERFACE}"),
    "net-subnet-mismatch": (
        "ip -br address; ip route  # on both nodes",
        "export NCCL_SOCKET_IFNAME=INTERFACE GLOO_SOCKET_IFNAME=INTERFACE  # the one of the common network",
    ),
    "ib-no-device-in-container": (
        "ls /dev/infiniband /sys/class/infiniband  # in the container",
        "docker run --device=/dev/infiniband --cap-add=IPC_LOCK --ulimit memlock=-1 IMAGE",
    ),
    "gpu-fewer-than-needed": (_VISIBLE, "lspci | grep -i nvidia; sudo dmesg -T | grep -i xid"),
    "sw-compat-libcuda": (
        "echo $LD_LIBRARY_PATH | tr : '\\n' | grep compat",
        "ldconfig -p | grep libcuda.so; nvidia-smi | head -4",
    ),
}  # fmt: skip
"""By rule; {port|29500} is the log's value, or else what follows the bar."""
TEXTS: dict[str, str] = {
    "net-firewall-ephemeral": (
        "Open all TCP ports between the nodes of the job: NCCL and Gloo connect on ephemeral ports."
    ),
    "gpu-nvml-init-failed": (
        "The driver's libraries do not fit the loaded kernel module, or it is not loaded. Reboot the node, or reload "
        "the module; restart the container if only it is affected."
    ),
    "gpu-xid-recent": "Look up the Xid, and run the diagnostics.",
    "gpu-cuda-init-failed": "Reload the module nvidia_uvm, or reboot the node.",
    "launch-node-unreachable": (
        "Let the launching machine reach every node without a password, by the names in the host list."
    ),
    "launch-failed": (
        "The launcher is not installed where the job starts, or it rejected its options: correct its first error. On a "
        "cluster with modules, load the one that has it."
    ),
    "launch-probe-missing": (
        "Install the same Python environment on every node, at the same path, or put it on a file system that all "
        "nodes mount."
    ),
    "env-rank-duplicate": (
        "Each process needs a rank of its own. Give each node its own --node-rank (machine_rank of Accelerate), and "
        "let either srun or the program start the processes of a node, not both. End processes of an earlier start."
    ),
    "gpu-fewer-than-needed": (
        "Start no more ranks than the job has GPUs, or request more. If the node has fewer than it should, look for "
        "the lost one on the PCI bus and in the kernel log."
    ),
}  # fmt: skip
"""Where the docstring's words are about what distcheck itself has seen."""

BY_LINE: dict[str, tuple[tuple[str, str, tuple[str, ...]], ...]] = {
    "launch-failed": (
        (
            r"node configuration|invalid (?:partition|account|qos|reservation|gres|feature|constraint)|not enough slots"
            r"|more processors requested|(?:unable|failed) to (?:allocate|create step|confirm allocation)|job/step already",
            "The launcher refused what the job asks for: compare it with what the partition or the host list has, and"
            " correct the request.",
            (PARTITIONS, 'scontrol show job "$SLURM_JOB_ID"', "cat HOSTFILE  # slots per host"),
        ),
        (
            r"unable to find the specified executable|execv\w*|could not (?:access|execute)|executable file not found"
            r"|failed to (?:launch|exec)",
            "The launcher runs, but does not find the program that it is to start: give its whole path, and put it on a"
            " file system that all nodes mount.",
            ("command -v python torchrun", "ls -l PROGRAM  # on every node"),
        ),
    ),
    "storage-path-missing": (
        (
            r"couldn't chdir to",
            "Slurm started the job in /tmp, because the node does not have its working directory: start the job in a folder that"
            " every node mounts.",
            ("ls -ld {folder|FOLDER}  # on every node", "sbatch --chdir=FOLDER job.sh  # FOLDER: one that every node mounts; or srun --chdir"),
        ),
        (
            r"getcwd|current (?:working )?directory|get the cwd|libtorch_cpu|change working directory|\[Errno 2\] No such file or directory$",
            "The working directory was deleted after the shell or the job had entered it, perhaps to create it again: enter"
            " it again, or another one, then start the job again.",
            ('cd "$PWD" || cd "$HOME"  # in the shell that starts the job',),
        ),
    ),
}  # fmt: skip
"""Where the line that names the rule decides the fix: a pattern, and the text and commands if it is found in the line."""
