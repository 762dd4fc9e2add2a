"""Mounts a FUSE file system that never answers at the folder in the first argument, and says so; ends with its process.

It answers the kernel's INIT, and ACCESS so that a process can enter the folder, and reads every other request without
a reply, as a dead NFS server does: whoever looks at the folder sleeps in the kernel and cannot be killed. Source:
<linux/fuse.h>.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys
from pathlib import Path

_HEADER = struct.Struct("=IIQ")
_INIT, _ACCESS, _LARGEST = 26, 34, 1 << 17
_ANSWER = struct.Struct("=IiQ")


def main() -> None:
    if not Path("/dev/fuse").exists():
        os.mknod("/dev/fuse", 0o20600, os.makedev(10, 229))
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0".encode()
    if ctypes.CDLL(None, use_errno=True).mount(b"nas:/hung", sys.argv[1].encode(), b"fuse", 0, options):
        raise OSError(ctypes.get_errno(), "mount")
    while True:
        request = os.read(device, _LARGEST)
        _, operation, unique = _HEADER.unpack_from(request)
        if operation == _INIT:
            answer = struct.pack("=IIIIHHII8I", 7, 31, 0, 0, 12, 9, 4096, 1, *[0] * 8)
            os.write(device, _HEADER.pack(_HEADER.size + len(answer), 0, unique) + answer)
            print("mounted", flush=True)
        elif operation == _ACCESS:
            os.write(device, _ANSWER.pack(_ANSWER.size, -errno.ENOSYS, unique))


main()
