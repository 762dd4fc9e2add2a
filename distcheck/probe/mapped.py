"""The libraries that are loaded in this process, by the files that the kernel has mapped."""

from __future__ import annotations

from pathlib import Path


def mapped(maps: Path = Path("/proc/self/maps")) -> list[str]:
    """Return the paths of the files that are mapped, links resolved; none if that cannot be read."""
    try:
        lines = maps.read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return []
    return [fields[5] for line in lines if len(fields := line.split(maxsplit=5)) > 5 and fields[5].startswith("/")]
