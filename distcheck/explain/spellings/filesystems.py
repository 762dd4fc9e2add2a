"""File systems that do not answer or have failed, as the kernel and the clients of NFS and Lustre log it."""

from __future__ import annotations

from functools import partial

from distcheck.explain.spelling import LIKELY, SYMPTOM, told

_NFS = "https://github.com/torvalds/linux/blob/master/net/sunrpc/clnt.c"
_LUSTRE = "https://doc.lustre.org/lustre_manual.xhtml#troubleshooting"
_EXT4 = "https://github.com/torvalds/linux/blob/master/fs/ext4/super.c"
_XFS = "https://github.com/torvalds/linux/blob/master/fs/xfs/xfs_message.c"
_BLOCK = "https://github.com/torvalds/linux/blob/master/block/blk-core.c"
_SQLITE = "https://www.sqlite.org/rescode.html"
_host = partial(told, about="start-up", weight=LIKELY)
_HANGS = "storage-hangs storage-slow"
_BROKEN = "storage-read-only storage-hangs"

SPELLINGS = (
    _host(r"\bnfs: server \S+ not responding", _HANGS, source=_NFS),
    _host(r"\bLustre(?:Error)?: .*\bConnection to \S+ .*was lost", _HANGS, source=_LUSTRE),
    _host(r"\bLustreError: .*(?:failed: rc = -(?:5|107|108|110)|timed out|was evicted)", _HANGS, source=_LUSTRE),
    _host(r"\bLustre: .*Request sent has timed out", _HANGS, weight=SYMPTOM, source=_LUSTRE),
    _host(r"\bEXT4-fs error \(device ", _BROKEN, source=_EXT4),
    _host(r"Remounting filesystem read-only", _BROKEN, source=_EXT4),
    _host(r"\bXFS \(\S+\): .*(?:metadata I/O error|shut(?:ting)? down)", _BROKEN, source=_XFS),
    _host(r"\bI/O error, dev \w+, sector ", _BROKEN, weight=SYMPTOM, source=_BLOCK),
    _host(r"\bBuffer I/O error on dev", _BROKEN, weight=SYMPTOM, source=_BLOCK),
    _host(r"attempt to write a readonly database", "storage-read-only", source=_SQLITE),
    _host(r"database or disk is full", "storage-full host-disk-full", source=_SQLITE),
)
