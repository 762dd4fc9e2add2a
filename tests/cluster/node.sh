#!/bin/bash
# Pid 1 of a node: gives itself a root of its own, says "ready", and lives until its owner closes standard input.
# Arguments: the node's name, the cluster's folder, the number of GPUs, then host folders to show at the same path.
set -eu
name=$1 state=$2 gpus=$3
shift 3
here=$state/nodes/$name root=$state/nodes/$name/root layers=$state/nodes/$name/layers
hostname "$name"

# The host's files below, what the node changes above in memory: nothing that happens here reaches the host.
mount -t tmpfs -o size=2g,mode=755 layers "$layers"
overlay() {   # overlay LOWER LAYER TARGET
    mkdir -p "$layers/$2/upper" "$layers/$2/work"
    mount -t overlay -o "lowerdir=$1,upperdir=$layers/$2/upper,workdir=$layers/$2/work" overlay "$3"
}
overlay / root "$root"

mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
mount -t tmpfs -o mode=755 dev "$root/dev"
device() { mknod -m 666 "$root/dev/$1" c "$2" "$3"; }
device null 1 3
device zero 1 5
device full 1 7
device random 1 8
device urandom 1 9
device tty 5 0
ln -s /proc/self/fd "$root/dev/fd"
ln -s fd/0 "$root/dev/stdin"
ln -s fd/1 "$root/dev/stdout"
ln -s fd/2 "$root/dev/stderr"
ln -s pts/ptmx "$root/dev/ptmx"
mkdir "$root/dev/pts" "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666,mode=620,gid=5 devpts "$root/dev/pts"
mount -t tmpfs -o size=1g,mode=1777 shm "$root/dev/shm"
for ((gpu = 0; gpu < gpus; gpu++)); do device "nvidia$gpu" 1 3; done   # null devices: enough for Slurm's GRES
mount -t tmpfs -o mode=755 run "$root/run"
mount -t tmpfs -o mode=1777 tmp "$root/tmp"
mkdir -p "$root/shared" "$root/.layers"
mount --bind "$state/shared" "$root/shared"
mount --bind "$layers" "$root/.layers"
chmod 700 "$root/.layers"
layer=0
for folder; do   # a folder on another file system, or under /tmp, is not seen through the overlay of /
    mkdir -p "$root$folder"
    overlay "$folder" "folder$((++layer))" "$root$folder"
done

# /etc as the cluster wrote it, without what the host's own ssh, slurm and login shells would add.
rm -rf "$root/root/.ssh" "$root/root/.bashrc" "$root/root/.profile" "$root/etc/ssh" "$root/etc/slurm" "$root/etc/munge"
cp -r "$state/etc/." "$here/etc/." "$root/etc/"
sed -i 's/^hosts:.*/hosts: files/' "$root/etc/nsswitch.conf"   # no resolver can be reached from here
mkdir -m 700 "$root/root/.ssh"
install -m 600 "$state/key" "$root/root/.ssh/id_ed25519"
install -m 600 "$state/key.pub" "$root/root/.ssh/authorized_keys"
chmod 600 "$root/etc/ssh/ssh_host_ed25519_key" "$root/etc/munge/munge.key"
mkdir -p "$root/run/sshd" "$root/run/munge" "$root/var/log/munge" "$root/var/lib/munge" \
    "$root/var/spool/slurmd" "$root/var/spool/slurmctld" "$root/var/log/slurm"
chown -R munge:munge "$root/etc/munge" "$root/run/munge" "$root/var/log/munge" "$root/var/lib/munge"

mkdir "$root/.host"
cd "$root"
pivot_root . .host
cd /
umount --lazy /.host
rmdir /.host
ip link set lo up
echo ready
read -r _ || true   # bash reaps the node's orphans meanwhile; its end is the end of everything in the node
