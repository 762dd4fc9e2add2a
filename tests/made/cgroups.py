"""Cgroups of both versions as a process sees its own."""

from __future__ import annotations

from pathlib import Path

MIB = 1 << 20
_NO_UTF_8 = b"tmpfs /mnt/caf\xe9 tmpfs rw 0 0\n"


class Machine:
    """A /proc/self and the hierarchies of one cgroup version, in a folder."""

    def __init__(self, folder: Path, version: int) -> None:
        self.version, self.root = version, folder
        self.own = "job/step"
        proc = folder / "proc" / "self"
        proc.mkdir(parents=True)
        names = ("cpu,cpuacct", "memory", "pids")
        if version == 2:
            (proc / "cgroup").write_text(f"0::/{self.own}\n")
            (proc / "mounts").write_bytes(_NO_UTF_8 + b"cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n")
        else:
            (proc / "cgroup").write_text("".join(f"{n}:{name}:/{self.own}\n" for n, name in enumerate(names, 1)))
            lines = (f"cgroup /sys/fs/cgroup/{name} cgroup rw,{name} 0 0\n" for name in names)
            (proc / "mounts").write_bytes(_NO_UTF_8 + "".join(lines).encode())
        for name in names:
            self.folder(name).mkdir(parents=True, exist_ok=True)

    def folder(self, controller: str, group: str = "job/step") -> Path:
        return self.root / "sys/fs/cgroup" / ("" if self.version == 2 else controller) / group

    def write(self, controller: str, group: str, **files: object) -> None:
        for name, text in files.items():
            (self.folder(controller, group) / name.replace("__", ".")).write_text(f"{text}\n")

    def memory(
        self, group: str, limit: object = "max", used: int = 0, cache: int = 0, *, shortages: int = 0, kills: int = 0
    ) -> None:
        stat = f"anon 1\ninactive_file {cache}\nactive_file 0\n"
        if self.version == 2:
            events = f"low 0\nhigh 7\nmax 9\noom {shortages}\noom_kill {kills}\n"
            self.write(
                "memory", group, memory__max=limit, memory__current=used, memory__stat=stat, memory__events=events
            )
        else:
            none, total = 9223372036854771712, f"inactive_file 7\ntotal_inactive_file {cache}\ntotal_active_file 0\n"
            limit = none if limit == "max" else limit
            self.write("memory", group, **{"memory.limit_in_bytes": limit, "memory.usage_in_bytes": used})
            oom = f"oom_kill_disable 0\nunder_oom 0\noom_kill {kills}\n"
            self.write("memory", group, memory__stat=total, memory__oom_control=oom, memory__failcnt=shortages)

    def cpu(self, group: str, quota: object, periods: int, stopped: int, seconds: float) -> None:
        counted = f"nr_periods {periods}\nnr_throttled {stopped}\n"
        if self.version == 2:
            stat = f"{counted}throttled_usec {int(seconds * 1e6)}\n"
            self.write("cpu,cpuacct", group, cpu__max=f"{quota} 100000", cpu__stat=stat)
        else:
            quota = -1 if quota == "max" else quota
            stat = f"{counted}throttled_time {int(seconds * 1e9)}\n"
            self.write("cpu,cpuacct", group, **{"cpu.cfs_quota_us": quota, "cpu.cfs_period_us": 100000})
            self.write("cpu,cpuacct", group, cpu__stat=stat)
