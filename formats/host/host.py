"""The resources that a process may use of its machine: cores, quotas, memory, clocks. They are read, not measured; a
value that the system does not report is None."""

import os
import platform
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from math import ceil
from pathlib import Path

CPUS = "sys/devices/system/cpu"
CACHES = (32 << 10, 1 << 20, 32 << 20)  # bytes of caches, where the system does not report them
MEMORY_CACHES = 2  # this many times the last cache surely reaches memory


@dataclass(frozen=True)
class Host:
    """`allowed`: the processors that this process may run on; `siblings`: for each of them the processors that share
    its core; `quota`: processors' worth of time that its control group may take; `memory` and `free`: bytes, of the
    control group where that has less; `load`: mean number of threads that ran or wanted to, over the last minute;
    `flags`: features of the processor, as the kernel lists them."""

    logical: int = 1
    allowed: frozenset[int] = frozenset({0})
    siblings: tuple[frozenset[int], ...] = ()
    quota: float | None = None
    memory: int | None = None
    free: int | None = None
    governors: frozenset[str] = frozenset()
    load: float | None = None
    flags: frozenset[str] = frozenset()

    @property
    def cores(self) -> int:
        """The number of cores among the allowed processors."""
        shared = {core & self.allowed for core in self.siblings}
        return len(shared) or len(self.allowed)

    @property
    def usable(self) -> int:
        """The number of threads that can run at once: allowed processors, as far as the quota goes."""
        return min(len(self.allowed), max(1, ceil(self.quota)) if self.quota else len(self.allowed))

    @classmethod
    def here(cls, root: Path = Path("/")) -> "Host":
        """Read the host of this process. `root` is where proc and sys are."""
        allowed = (
            frozenset(os.sched_getaffinity(0))
            if hasattr(os, "sched_getaffinity")
            else frozenset(range(os.cpu_count() or 1))
        )
        total, free = memory(root)
        return cls(
            os.cpu_count() or 1,
            allowed,
            tuple(siblings(root, allowed)),
            quota(root),
            total,
            free,
            frozenset(governors(root, allowed)),
            load_average(),
            flags(root),
        )


def read_system_file(file: Path) -> str:
    """Return the text of a file of the system; empty where there is none."""
    with suppress(OSError, UnicodeDecodeError):
        return file.read_text().strip()
    return ""


def listed(text: str) -> frozenset[int]:
    """Parse the numbers of a list such as 0-2,5."""
    ends = [part.split("-") for part in text.split(",") if part]
    return frozenset(number for bounds in ends for number in range(int(bounds[0]), int(bounds[-1]) + 1))


def siblings(root: Path, allowed: Iterable[int]) -> Iterable[frozenset[int]]:
    """Return the processors of the same core for each processor, where the system reports them."""
    files = (root / CPUS / f"cpu{number}" / "topology" / "thread_siblings_list" for number in sorted(allowed))
    return (listed(text) for text in map(read_system_file, files) if text)


def governors(root: Path, allowed: Iterable[int]) -> Iterable[str]:
    """Return the governors of the clocks of these processors."""
    files = (root / CPUS / f"cpu{number}" / "cpufreq" / "scaling_governor" for number in allowed)
    return (text for text in map(read_system_file, files) if text)


def list_cgroups(root: Path, controller: str) -> Iterable[Path]:
    """Yield the control groups of this process, from its own up, in both versions of them."""
    for line in read_system_file(root / "proc/self/cgroup").splitlines():
        number, names, path = line.split(":", 2)
        if number == "0" or controller in names.split(","):
            top = root / "sys/fs/cgroup" / ("" if number == "0" else controller)
            group = top / path.strip("/")
            yield from (group, *(parent for parent in group.parents if parent.is_relative_to(top)))


def quota(root: Path) -> float | None:
    """Return processors' worth of time: the least that any of the groups allows."""
    shares = []
    for group in list_cgroups(root, "cpu"):
        limits = read_system_file(group / "cpu.max").split() or [
            read_system_file(group / "cpu.cfs_quota_us"),
            read_system_file(group / "cpu.cfs_period_us"),
        ]
        with suppress(ValueError, ZeroDivisionError, IndexError):
            shares.append(int(limits[0]) / int(limits[1]))
    return min((share for share in shares if share > 0), default=None)


def memory(root: Path) -> tuple[int | None, int | None]:
    """Return bytes in all and free, of the machine or of a control group where that has less."""
    fields = {
        name: int(rest.split()[0]) * 1024
        for name, _, rest in (line.partition(":") for line in read_system_file(root / "proc/meminfo").splitlines())
        if rest.split()
    }
    total, free = fields.get("MemTotal"), fields.get("MemAvailable")
    for group in list_cgroups(root, "memory"):
        for limit, used in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
            most, taken = read_system_file(group / limit), read_system_file(group / used)
            if total and most.isdecimal() and int(most) < total:
                total, free = int(most), min(free or int(most), int(most) - int(taken or 0))
    return total, free


def load_average() -> float | None:
    """Return the mean number of threads that ran or wanted to, over the last minute."""
    with suppress(OSError, AttributeError):
        return os.getloadavg()[0]
    return None


def flags(root: Path) -> frozenset[str]:
    """Return the features of the processor, in the kernel's names."""
    fields = cpuinfo(root)
    return frozenset(fields.get("flags", fields.get("Features", "")).split())


def cpuinfo(root: Path = Path("/")) -> dict[str, str]:
    """Read Linux's description of the first processor, and no others; empty on other systems."""
    fields: dict[str, str] = {}
    with suppress(OSError, UnicodeDecodeError), open(root / "proc/cpuinfo") as lines:
        for line in lines:
            if not line.strip():
                break
            key, _, value = line.partition(":")
            fields[key.strip()] = value.strip()
    return fields


def cpu() -> str:
    """Return the processor's own name."""
    return cpuinfo().get("model name") or platform.processor() or platform.machine()


@cache
def caches(root: Path = Path("/")) -> tuple[int, ...]:
    """Return bytes of the caches that one core reads through, the nearest first."""
    by_level = {}
    for index in sorted((root / CPUS / "cpu0" / "cache").glob("index*")):
        kind, level, size = (read_system_file(index / name) for name in ("type", "level", "size"))
        with suppress(ValueError):
            if kind != "Instruction":
                by_level[int(level)] = int(size.rstrip("KM")) << (20 if size.endswith("M") else 10)
    return tuple(size for _, size in sorted(by_level.items())) or CACHES


def uncached() -> int:
    """Return a number of bytes too large for any cache, so that they are surely read from memory."""
    return MEMORY_CACHES * caches()[-1]
