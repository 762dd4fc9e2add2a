"""Starts distcheck from distcheck.pyz: its modules come from the archive, the compiled ones through memory.

Nothing is unpacked: there is no folder that another user could have prepared for root, or that must be writable, and
HOME is not looked at. .ci/pyz.py says what the archive holds. A Python that is too old reads this file too, so it has
no newer syntax than Python 2.7.
"""

import os
import sys

FAILED = 70  # distcheck's own failure: no prolog may drain a node for it
OLDEST, NEWEST = 10, 14


def start(archive):
    """Run distcheck, or, after -m, one of its modules (distcheck/probe/working_directory.py)."""
    import fcntl
    import marshal
    import platform
    from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader
    from importlib.util import MAGIC_NUMBER, spec_from_file_location
    from zipimport import zipimporter

    bytecode = "bytecode/" + sys.implementation.cache_tag + "/"
    compiled = platform.machine() + "/"

    class Archive(zipimporter):
        """Also finds this Python's bytecode, and compiled modules for it and for this processor."""

        def data(self, name):
            try:
                return self.get_data(name)
            except OSError:
                return None

        def name(self, fullname):
            return self.prefix + fullname.rpartition(".")[2] + ("/__init__" if self.is_package(fullname) else "")

        def get_filename(self, fullname):  # zipimport's compiles the module for it
            return self.archive + "/" + self.name(fullname) + ".py"

        def get_code(self, fullname):
            found = self.data(bytecode + self.name(fullname) + ".pyc")
            if found is None or found[:4] != MAGIC_NUMBER:
                return super().get_code(fullname)
            return marshal.loads(found[16:])

        def find_spec(self, fullname, target=None):
            found = super().find_spec(fullname, target)
            suffixes = [] if found else EXTENSION_SUFFIXES
            for suffix in suffixes:
                content = self.data(compiled + self.prefix + fullname.rpartition(".")[2] + suffix)
                if content is not None:
                    path = in_memory(fullname, content)
                    return spec_from_file_location(fullname, path, loader=ExtensionFileLoader(fullname, path))
            return found

    def in_memory(name, content):
        # It stays open: the loader of shared libraries takes equal paths for equal files. It is no standard stream.
        lowest = os.memfd_create(name)
        descriptor = fcntl.fcntl(lowest, fcntl.F_DUPFD_CLOEXEC, 3)
        os.close(lowest)
        with open(descriptor, "wb", closefd=False) as file:
            file.write(content)
        return "/proc/self/fd/" + str(descriptor)

    sys.path_hooks.insert(0, Archive)
    sys.path_importer_cache.clear()
    sys.path[0] = archive
    try:
        import msgspec  # noqa: F401 the first of the compiled modules
    except (ImportError, OSError) as error:
        fail("it has no module for Python %d.%d on " % sys.version_info[:2] + platform.machine() + ", or cannot load it"
             " (" + str(error) + "); install the wheel in a virtual environment")  # fmt: skip
    if sys.argv[1:2] == ["-m"]:
        import runpy

        del sys.argv[1]
        runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
    else:
        from distcheck.__main__ import main

        main()


def newer(archive):
    """Become a newer Python of the system: /usr/bin/python3 of RHEL 9 is 3.9, and 3.12 may be installed beside it."""
    for minor in range(NEWEST, OLDEST - 1, -1):
        for folder in ("/usr/bin", "/usr/local/bin"):
            python = folder + "/python3." + str(minor)
            if os.access(python, os.X_OK):
                os.execv(python, [python, "-Es", archive] + sys.argv[1:])
    found = "this is Python %d.%d (" % sys.version_info[:2] + sys.executable + ")"
    fail("it needs Python 3.%d or later, and " % OLDEST + found + "; run it with another: python3.12 " + archive)


def fail(reason):
    sys.stderr.write("distcheck.pyz: " + reason + "\n")
    sys.exit(FAILED)


if __name__ == "__main__":
    try:
        (newer if sys.version_info < (3, OLDEST) else start)(os.path.abspath(sys.path[0]))
    except KeyboardInterrupt:
        sys.exit(130)
