"""Fixes whose commands fit what a log shows: by rule, a text and commands that can be pasted."""

from __future__ import annotations

_VISIBLE = 'nvidia-smi -L; echo "CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES-unset}"'
_INTERFACE = r"$(ip -o route get 1.1.1.1 | sed 's/.* dev \([^ ]*\).*/\1/')  # or another of `ip -br address`"
"""The interface of the default route."""
PARTITIONS = "sinfo -o '%P %a %l %D %c %m %G'  # partitions: state, time limit, nodes, CPUs, MB of memory, GPUs"
STACK = "for p in $(grep -lsz '^RANK={rank}$' /proc/[0-9]*/environ | cut -d/ -f3); do py-spy dump --pid $p; done{on}"
"""Prints the Python stack of a rank that still runs, found by its variable RANK."""
FIXES: dict[str, tuple[str, tuple[str, ...]]] = {
    "env-rank-unset": (
        "Start the script with a launcher that sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.",
        ("torchrun --standalone --nproc-per-node=gpu train.py",),
    ),
    "env-local-rank-unset": (
        "Start the script with a launcher that sets LOCAL_RANK.",
        ("torchrun --standalone --nproc-per-node=gpu train.py",),
    ),
    "launch-local-rank-arg": (
        "Start with torchrun, and read the local rank from the variable LOCAL_RANK instead of an argument.",
        ("torchrun --nproc-per-node=gpu train.py",),
    ),
    "net-port-in-use": (
        "See which process of the master's node listens on the port. End it if it is a leftover of yours; else use"
        " another port.",
        (
            "ss -ltnp 'sport = :{port|29500}'",
            "export MASTER_PORT=$((20000 + ${SLURM_JOB_ID:-9611} % 10000))  # the same on all nodes",
        ),
    ),
    "env-master-port-privileged": ("Use a port from 1024 on.", ("export MASTER_PORT=29500",)),
    "net-master-refused": (
        "Check that rank 0 runs on that node and listens on that port, and that it has not failed before.",
        ("ss -ltnp 'sport = :{port|29500}'  # on the master's node",),
    ),
    "net-master-unreachable": (
        "Set MASTER_ADDR to an address of rank 0's node that the others reach, and open the port in the firewall.",
        ("nc -vz {host|$MASTER_ADDR} {port|29500}  # on another node", "ip route get $(getent hosts {host|$MASTER_ADDR} | awk '{print $1}')"),
    ),
    "env-master-addr-unresolvable": (
        "Use a name that resolves on every node, or rank 0's IP address.",
        ("getent hosts {host|$MASTER_ADDR}  # on every node", "hostname -I  # on rank 0's node: its addresses"),
    ),
    "k8s-dns-not-ready": (
        "Wait for the master's name before the job starts, or publish the names of pods that are not ready"
        " (publishNotReadyAddresses: true in the headless Service).",
        ("until getent hosts {host|$MASTER_ADDR}; do sleep 1; done",),
    ),
    "net-gloo-ifname-wrong": (
        "Set GLOO_SOCKET_IFNAME to an interface that this node has, or leave it unset.",
        ("ip -br address", "unset GLOO_SOCKET_IFNAME"),
    ),
    "net-nccl-ifname-no-match": (
        "Set NCCL_SOCKET_IFNAME to an interface that every node has, or leave it unset.",
        ("ip -br address", "unset NCCL_SOCKET_IFNAME"),
    ),
    "net-hostname-loopback": (
        "Let the node's own name resolve to its network address in /etc/hosts, or name the interface.",
        ("getent hosts $(hostname)", f"export GLOO_SOCKET_IFNAME={_INTERFACE}"),
    ),
    "net-nccl-picks-loopback-or-docker": (
        "Name the interface that connects the nodes.",
        ("ip -br address", f"export NCCL_SOCKET_IFNAME={_INTERFACE}"),
    ),
    "net-firewall-ephemeral": (
        "Open all TCP ports between the nodes of the job: NCCL and Gloo connect on ephemeral ports.",
        ("sudo iptables -S; sudo nft list ruleset  # on both nodes",),
    ),
    "host-shm-too-small": (
        "Give the container more shared memory: --shm-size or --ipc=host (Docker), an emptyDir of medium Memory at"
        " /dev/shm (Kubernetes).",
        ("df -h /dev/shm", "docker run --shm-size=16g IMAGE", "sudo mount -o remount,size=16g /dev/shm  # without a container"),
    ),
    "host-nofile": ("Raise the limit of open files before the job starts.", ("ulimit -n 65536",)),
    "host-memory-low": (
        "Request more memory, or use less: fewer data loader workers, no copy of the model per rank.",
        ("sudo dmesg -T | grep -i -E 'oom|killed process'", "sacct -j $SLURM_JOB_ID --format=JobID,MaxRSS,ReqMem,State"),
    ),
    "gpu-none-visible": (
        "Check that the node has GPUs, that the job requests them and that CUDA_VISIBLE_DEVICES names existing ones.",
        (_VISIBLE,),
    ),
    "env-local-rank-out-of-range": (
        "Start at most one rank for each GPU that the job sees.",
        (_VISIBLE, "torchrun --nproc-per-node=gpu train.py"),
    ),
    "gpu-duplicate": (
        "Let each rank use its own GPU: call torch.cuda.set_device(int(os.environ['LOCAL_RANK'])) in the script before"
        " init_process_group, and start no more ranks on a node than it has GPUs.",
        (_VISIBLE, "torchrun --nproc-per-node=gpu train.py"),
    ),
    "gpu-nvml-init-failed": (
        "The driver's libraries do not fit the loaded kernel module, or it is not loaded. Reboot the node, or reload the"
        " module; restart the container if only it is affected.",
        ("cat /proc/driver/nvidia/version", "nvidia-smi", "sudo reboot  # after the node is drained"),
    ),
    "gpu-fabric-manager-down": (
        "Start the fabric manager of the driver's version.",
        ("systemctl status nvidia-fabricmanager", "sudo systemctl restart nvidia-fabricmanager"),
    ),
    "gpu-ecc-uncorrected": (
        "Drain the node and reset the GPU, or reboot. Have the GPU replaced if the errors return.",
        ("nvidia-smi -q -d ECC,ROW_REMAPPER", "sudo nvidia-smi --gpu-reset -i {gpu|GPU}  # the number of the GPU with errors"),
    ),
    "gpu-fell-off-bus": (
        "Drain the node and reboot it; power-cycle it if the GPU does not come back.",
        ("sudo dmesg -T | grep -i xid", "sudo reboot  # after the node is drained"),
    ),
    "gpu-xid-recent": ("Look up the Xid, and run the diagnostics.", ("sudo dmesg -T | grep -i xid", "dcgmi diag -r 3")),
    "gpu-cuda-init-failed": (
        "Reload the module nvidia_uvm, or reboot the node.",
        ("sudo modprobe -r nvidia_uvm; sudo modprobe nvidia_uvm", "python -c 'import torch; torch.cuda.init()'"),
    ),
    "gpu-exclusive-mode": ("Allow several processes per GPU, or start one.", ("nvidia-smi -q -d COMPUTE", "sudo nvidia-smi -c DEFAULT")),
    "gpu-nvls-multicast-broken": (
        "Check the fabric manager and that the container has /dev/nvidia-caps; until then, run without NVLS.",
        ("nvidia-smi -q | grep -A2 -i fabric", "export NCCL_NVLS_ENABLE=0"),
    ),
    "sw-nccl-shadowed": (
        "Remove the other NCCL from LD_LIBRARY_PATH and LD_PRELOAD, and keep one nvidia-nccl package, of torch's version.",
        (
            "pip list | grep -i nccl; ldconfig -p | grep nccl; echo $LD_LIBRARY_PATH $LD_PRELOAD",
            "env -u LD_LIBRARY_PATH -u LD_PRELOAD python -c 'import torch; print(torch.cuda.nccl.version())'  # torch's own",
        ),
    ),
    "sw-driver-too-old": (
        "Update the driver, or install a torch for a CUDA version that the driver supports: nvidia-smi shows the newest one.",
        (
            "nvidia-smi | grep -o 'CUDA Version: [0-9.]*'; python -c 'import torch; print(torch.version.cuda)'",
            "pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/cu118  # for CUDA 11.8",
        ),
    ),
    "sw-arch-unsupported": (
        "Install a torch that is built for the GPU's architecture.",
        ("python -c 'import torch; print(torch.__version__, torch.cuda.get_arch_list(), torch.cuda.get_device_capability())'",),
    ),
    "ib-fork-or-memlock": ("Raise the limit of locked memory, also for containers and slurmd.", ("ulimit -l unlimited", "docker run --ulimit memlock=-1 IMAGE")),
    "launch-node-unreachable": (
        "Let the launching machine reach every node without a password, by the names in the host list.",
        (
            "ssh -o BatchMode=yes {host|NODE} hostname  # must print the node's name without a question",
            "ssh -o StrictHostKeyChecking=accept-new {host|NODE} hostname  # accepts a host key that is not yet known",
            "ssh-copy-id {host|NODE}",
        ),
    ),
    "launch-failed": (
        "The launcher is not installed where the job starts, or it rejected its options: correct its first error. On a"
        " cluster with modules, load the one that has it.",
        ("command -v srun sbatch mpirun mpiexec pdsh", "module avail 2>&1 | grep -i -E 'slurm|openmpi|mpich|hpcx'"),
    ),
    "launch-probe-missing": (
        "Install the same Python environment on every node, at the same path, or put it on a file system that all nodes"
        " mount.",
        ("command -v python; python -c 'import torch; print(torch.__version__, torch.__file__)'  # on every node",),
    ),
    "host-nproc-pids": (
        "Raise the limit of processes and threads, or start fewer: OMP_NUM_THREADS, fewer data loader workers.",
        (
            "ulimit -u; cat /sys/fs/cgroup/pids.max  # the limits of the user and of the container",
            "export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1",
            "docker run --pids-limit=-1 IMAGE",
        ),
    ),
    "env-rank-duplicate": (
        "Each process needs a rank of its own. Give each node its own --node-rank (machine_rank of Accelerate), and let"
        " either srun or the program start the processes of a node, not both. End processes of an earlier start.",
        ("pgrep -af 'torchrun|train.py'  # on every node: leftovers of an earlier start", "scontrol show job $SLURM_JOB_ID | grep -E 'NumTasks|NumNodes'"),
    ),
    "env-rank-missing": (
        "Start the missing ranks, or read their logs: they ended, or never reached rank 0's node.",
        ("nc -vz $MASTER_ADDR ${MASTER_PORT:-29500}  # on the node of rank {missing|N, for each missing N}",),
    ),
    "env-master-addr-format": (
        "Set MASTER_ADDR to a host name or an IP address only: no scheme, no port, no spaces.",
        ('echo "[$MASTER_ADDR]"', "export MASTER_ADDR=HOST  # the name of rank 0's node"),
    ),
    "env-master-addr-not-rank0-host": (
        "Set MASTER_ADDR to an address of the node on which rank 0 runs.",
        ("hostname -I  # on rank 0's node", 'export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n1)  # under Slurm'),
    ),
    "env-world-size-mismatch": (
        "Give all ranks the same WORLD_SIZE: the number of nodes times the processes per node.",
        ('echo "$(hostname) RANK=$RANK WORLD_SIZE=$WORLD_SIZE"  # in the script that starts each rank',),
    ),
    "torchrun-localhost-name-ambiguous": (
        "Set the rendezvous endpoint to the first node's name or address, as the other nodes reach it.",
        ("hostname -I  # on the first node", "torchrun --rdzv-backend=c10d --rdzv-endpoint=HOST:29400 train.py  # HOST: the first node"),
    ),
    "elastic-restart-stale": (
        "End the processes of an earlier start of the job: they still hold its port or GPUs.",
        ("nvidia-smi --query-compute-apps=pid,name --format=csv", "ps -eo pid,lstart,cmd | grep -E 'torchrun|train.py'", "kill PID  # of the old ones"),
    ),
    "net-hostname-wrong-nic": (
        "Name the interface that connects the nodes, on every node.",
        ("ip -br address; getent hosts $(hostname)", f"export GLOO_SOCKET_IFNAME={_INTERFACE}"),
    ),
    "net-nccl-auto-wrong-iface": (
        "Name the interface that connects the nodes, on every node; the second equals sign makes it exact.",
        ("ip -br address", f"export NCCL_SOCKET_IFNAME=={_INTERFACE}"),
    ),
    "net-subnet-mismatch": (
        "Use interfaces that are in one network on all nodes, or correct their addresses.",
        ("ip -br address; ip route  # on both nodes", "export NCCL_SOCKET_IFNAME=INTERFACE GLOO_SOCKET_IFNAME=INTERFACE  # the one of the common network"),
    ),
    "net-file-rendezvous-nfs": (
        "Use a new file for each start, on a file system that all nodes share and that supports locks; or init_method env://"
        " with MASTER_ADDR and MASTER_PORT.",
        ("mktemp -u $HOME/rendezvous.XXXXXX  # a name for init_method=file://",),
    ),
    "nccl-net-plugin-missing": (
        "Add the plugin's folder to LD_LIBRARY_PATH in the job's environment or image, or do without a plugin.",
        ("ldconfig -p | grep nccl-net; echo $LD_LIBRARY_PATH; env | grep -E '^NCCL_NET'", "unset NCCL_NET NCCL_NET_PLUGIN  # NCCL then uses its own InfiniBand or sockets"),
    ),
    "ib-no-device-in-container": (
        "Give the container the InfiniBand devices and the right to lock memory; install libibverbs1 and"
        " ibverbs-providers in it.",
        ("ls /dev/infiniband /sys/class/infiniband  # in the container", "docker run --device=/dev/infiniband --cap-add=IPC_LOCK --ulimit memlock=-1 IMAGE"),
    ),
    "gpu-needs-reset": (
        "Drain the node, then reset the GPU that the driver names, or reboot.",
        ("nvidia-smi -q | grep -i -E 'reset|recovery|^GPU'", "sudo nvidia-smi --gpu-reset -i {gpu|GPU}  # its number", "sudo reboot  # after the node is drained"),
    ),
    "gpu-fewer-than-needed": (
        "Start no more ranks than the job has GPUs, or request more. If the node has fewer than it should, look for the"
        " lost one on the PCI bus and in the kernel log.",
        (_VISIBLE, "lspci | grep -i nvidia; sudo dmesg -T | grep -i xid"),
    ),
    "gpu-barrier-guess": (
        "Tell torch which GPU the rank uses: torch.cuda.set_device(local_rank) before init_process_group, or its argument"
        " device_id=torch.device('cuda', local_rank) (torch 2.3 and later).",
        ("grep -n -E 'set_device|device_id|init_process_group' train.py",),
    ),
    "sw-packages-differ": (
        "Install the same versions on all nodes, or use one shared environment or image.",
        ("pip freeze | grep -i -E '^(torch|nvidia|deepspeed|accelerate|transformers)' | sort | md5sum  # on every node",),
    ),
    "roce-pfc-ecn": (
        "The network dropped RDMA packets: set NCCL_IB_TC (and NCCL_IB_SL) as the network requires, and correct PFC and ECN"
        " on the switches. A port that is down or a wrong GID looks the same.",
        ("ibstat; ethtool -S INTERFACE | grep -i -E 'discard|drop|pause|ecn'  # on both nodes", "env | grep -E '^NCCL_IB_'"),
    ),
    "gpu-mnnvl-imex": (
        "Start nvidia-imex on all nodes of the NVLink domain, and give the container its channel.",
        ("systemctl status nvidia-imex; ls /dev/nvidia-caps-imex-channels  # on every node", "sudo systemctl restart nvidia-imex"),
    ),
    "gdr-module-missing": (
        "Load nvidia-peermem, at every boot. If it does not load, it was built for another network driver: install the"
        " GPU driver again after MLNX_OFED or DOCA, or use the open kernel modules.",
        ("sudo modprobe nvidia-peermem; lsmod | grep peermem; sudo dmesg | tail -5", "echo nvidia-peermem | sudo tee /etc/modules-load.d/nvidia-peermem.conf"),
    ),
    "sw-compat-libcuda": (
        "Remove the folder of compatibility libraries from LD_LIBRARY_PATH, or use an image whose CUDA the driver supports.",
        ("echo $LD_LIBRARY_PATH | tr : '\\n' | grep compat", "ldconfig -p | grep libcuda.so; nvidia-smi | head -4"),
    ),
    "sw-torch-cpu-build": (
        "Install torch's build for GPUs, from the index of a CUDA version that the driver supports.",
        (
            "python -c 'import torch; print(torch.__version__, torch.version.cuda)'; nvidia-smi | grep -o 'CUDA Version: [0-9.]*'",
            "pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/cu118  # for CUDA 11.8",
        ),
    ),
}  # fmt: skip
"""Text and commands; {port|29500} is the log's value, or else what follows the bar."""

FIXES_BY_LINE: dict[str, tuple[tuple[str, str, tuple[str, ...]], ...]] = {
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
