"""The folders and files that a job uses, as one node finds them."""

from __future__ import annotations

from typing import Literal

from distcheck.facts.base import Amount, Count, Facts

STARTS_OTHERS = (
    "spawn", "multiprocess", "Process(", "subprocess", "os.fork", "Popen", "launch(", "launcher(", "lightning",
    "Fabric(", "import ray", "from ray", "submitit", "horovod", "joblib", "dask", "spark",
)  # fmt: skip
"""Words of programs that may start the other ranks themselves."""
MAPS_LAUNCHER = (
    "SLURM_", "OMPI_COMM_WORLD_", "PMI_RANK", "PMIX_RANK", "MV2_COMM_WORLD_", "PALS_", "JSM_NAMESPACE_",
    "mpi4py", "idr_torch", "hostlist", "lightning", "Fabric(", "submitit", "deepspeed", "horovod",
)  # fmt: skip
"""Words of programs that may take their ranks from srun's or mpirun's own variables."""
READS_RANK = ("'RANK'", '"RANK"', "'WORLD_SIZE'", '"WORLD_SIZE"')
ASKED, WORKING_DIRECTORY, SCRIPT = "--path", "working directory", "script"
"""What names a folder, apart from variables."""
PATIENCE_SECONDS = 5.0
"""How long a folder or a file may take to answer."""
_NETWORK_TYPES = frozenset(
    {"9p", "afs", "beegfs", "ceph", "cifs", "dfuse", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "ocfs2",
     "orangefs", "panfs", "pvfs2", "quobyte", "smb3", "virtiofs", "weka", "wekafs"}
)  # fmt: skip
_LOCAL_FUSE_TYPES = frozenset(
    {"fuse.fuse-overlayfs", "fuse.gvfsd-fuse", "fuse.lxcfs", "fuse.portal", "fuse.snapfuse", "fuse.squashfuse",
     "fuse.squashfuse_ll"}
)  # fmt: skip
"""File systems in user space that containers and desktops mount on one host."""


def is_network(file_system: str) -> bool:
    """Whether file systems of this type (/proc/filesystems) are usually shared by nodes."""
    return file_system in _NETWORK_TYPES or (file_system.startswith("fuse.") and file_system not in _LOCAL_FUSE_TYPES)


def is_text(name: str) -> bool:
    """Whether a file name is valid UTF-8, so that facts can hold it."""
    return name.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in name)


class Space(Facts, frozen=True):
    """A file system as a job finds it."""

    total_bytes: Count
    free_bytes: Count
    """Free space for users, without root's reserve."""
    free_files: Count | None
    """How many more files it can hold; None if the file system has no such limit."""
    writable: bool


class Folder(Facts, frozen=True):
    """A folder that the job uses."""

    path: str
    named_by: tuple[str, ...]
    """What names it: --path, "working directory", "script", or a variable such as HOME."""
    state: Literal["folder", "absent", "other", "unreadable", "silent"]
    """other: not a folder; unreadable: the kernel reports an error; silent: no answer in time."""
    error: str = ""
    """The kernel's error, empty if there was none."""
    file_system: str = ""
    """The type of its file system: nfs4; empty if unknown."""
    source: str = ""
    """What is mounted: nas:/export."""
    mount: str = ""
    """Where it is mounted."""
    remounted: bool = False
    """Whether the kernel made it read-only after it was mounted writable, as ext4 does after an error."""
    device: Count | None = None
    """st_dev: folders of one node with the same number share a file system."""
    space: Space | None = None
    write_error: str = ""
    """Why no file could be created; empty if one was."""
    write_MBps: Amount | None = None  # noqa: N815 the unit's own spelling
    """The best rate of a few chunks, each written to the disk, in 1e6 bytes; None if not measured here."""
    read_MBps: Amount | None = None  # noqa: N815 as above
    """The same for reading; the kernel may have kept what was written."""
    holds_sentinel: bool = False
    """Whether the leader keeps a file there for the other nodes to see."""
    sees_sentinel: bool | None = None
    """Whether the leader's file is here too, with its content; None: not checked."""


class CommandFile(Facts, frozen=True):
    """A file or folder that COMMAND names."""

    word: str
    """As COMMAND names it; for the interpreter of a program's first line, as that line does."""
    role: Literal["program", "interpreter", "script", "module", "argument"]
    path: str
    """Where it was looked for; empty if the program is not on PATH, and of a module that no file has."""
    state: Literal["file", "folder", "absent", "other", "unreadable", "silent"]
    error: str = ""
    size_bytes: Count | None = None
    sha256: str = ""
    """Of the content; of a large file, of three samples of it."""
    near: str = ""
    """Of a script that is absent: the name in its folder that is most like it; empty if none is."""
    mentions: tuple[str, ...] | None = None
    """Of a script or module: those of the words in its text that tell where its ranks come from; None: not read."""
    debug_port: Count | None = None
    """Of a script or module: the port of torch's debug server, if its text starts one."""


class Packages(Facts, frozen=True):
    """The distributions installed for distcheck's Python."""

    sha256: str
    """Of their names and versions, sorted."""
    names: tuple[str, ...] = ()
    """As name==version; only where they differ from the leader's, and on the leader."""


class Silent(Facts, frozen=True):
    """A file system that did not answer, and the path for which it was asked."""

    path: str
    named_by: tuple[str, ...]
    """What names the path: an option, or a variable such as HOME."""
    file_system: str = ""
    """As `Folder.file_system`; so are the next two."""
    source: str = ""
    mount: str = ""
    seconds: Amount = 0.0
    """How long it was waited for."""


class Storage(Facts, frozen=True):
    """What one node finds; its process of local rank 0 looks."""

    folders: tuple[Folder, ...] = ()
    files: tuple[CommandFile, ...] = ()
    packages: Packages | None = None
