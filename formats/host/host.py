"""What a process may use of the machine that it is on: cores, quotas, memory, clocks. Nothing is measured, and what a
system does not tell is None."""
import os
import platform
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from math import ceil
from pathlib import Path

CPUS = "sys/devices/system/cpu"
CACHES = (32 << 10, 1 << 20, 32 << 20)                       # bytes, where the system does not say
MEMORY_CACHES = 2                                           # so many last caches are surely memory


@dataclass(frozen=True)
class Host:
    """`allowed`: the processors that this process may run on; `siblings`: for each of them those that share its core;
    `quota`: processors' worth of time that its control group may take; bytes of memory, of the control group where that
    is less; `load`: how many threads want to run, over the last minute; `flags`: what the kernel says that the
    processor can do."""

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
        """The allowed processors that share no core with another of them."""
        shared = {each & self.allowed for each in self.siblings}
        return len(shared) or len(self.allowed)

    @property
    def usable(self) -> int:
        """Threads that can run at once: allowed processors, as far as the quota goes."""
        return min(len(self.allowed), max(1, ceil(self.quota)) if self.quota else len(self.allowed))

    @classmethod
    def here(cls, root: Path = Path("/")) -> "Host":
        """This process's. `root` is where proc and sys are."""
        allowed = frozenset(os.sched_getaffinity(0)) if hasattr(os,
                                                                "sched_getaffinity") else frozenset(
            range(os.cpu_count() or 1))
        total, free = memory(root)
        return cls(os.cpu_count() or 1, allowed, tuple(siblings(root, allowed)), quota(root), total, free,
                   frozenset(governors(root, allowed)), load_average(), flags(root))


def read_system_file(file: Path) -> str:
    """What a file of the system says; nothing where there is none."""
    with suppress(OSError, UnicodeDecodeError): return file.read_text().strip()
    return ""


def listed(text: str) -> frozenset[int]:
    """The numbers of a list such as 0-2,5."""
    ends = [part.split("-") for part in text.split(",") if part]
    return frozenset(number for each in ends for number in range(int(each[0]), int(each[-1]) + 1))


def siblings(root: Path, allowed: Iterable[int]) -> Iterable[frozenset[int]]:
    """For each processor those of its core, where that is told."""
    files = (root / CPUS / f"cpu{number}" / "topology" / "thread_siblings_list" for number in sorted(allowed))
    return (listed(text) for text in map(read_system_file, files) if text)


def governors(root: Path, allowed: Iterable[int]) -> Iterable[str]:
    """What decides on the clocks of these processors."""
    files = (root / CPUS / f"cpu{number}" / "cpufreq" / "scaling_governor" for number in allowed)
    return (text for text in map(read_system_file, files) if text)


def list_cgroups(root: Path, controller: str) -> Iterable[Path]:
    """The control groups of this process, from its own up, in both versions of them."""
    for line in read_system_file(root / "proc/self/cgroup").splitlines():
        number, names, path = line.split(":", 2)
        if number == "0" or controller in names.split(","):
            top = root / "sys/fs/cgroup" / ("" if number == "0" else controller)
            own = top / path.strip("/")
            yield from (own, *(parent for parent in own.parents if parent.is_relative_to(top)))


def quota(root: Path) -> float | None:
    """Processors' worth of time: the least that any of the groups allows."""
    found = []
    for group in list_cgroups(root, "cpu"):
        given = (read_system_file(group / "cpu.max").split()
                 or [read_system_file(group / "cpu.cfs_quota_us"), read_system_file(group / "cpu.cfs_period_us")])
        with suppress(ValueError, ZeroDivisionError, IndexError):
            found.append(int(given[0]) / int(given[1]))
    return min((each for each in found if each > 0), default=None)


def memory(root: Path) -> tuple[int | None, int | None]:
    """Bytes in all and free, of the machine or of a control group where that has less."""
    told = {name: int(rest.split()[0]) * 1024 for name, _, rest in (
        line.partition(":") for line in read_system_file(root / "proc/meminfo").splitlines()) if rest.split()}
    total, free = told.get("MemTotal"), told.get("MemAvailable")
    for group in list_cgroups(root, "memory"):
        for limit, used in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
            most, taken = read_system_file(group / limit), read_system_file(group / used)
            if total and most.isdecimal() and int(most) < total:
                total, free = int(most), min(free or int(most), int(most) - int(taken or 0))
    return total, free


def load_average() -> float | None:
    """Threads that ran or wanted to, over the last minute."""
    with suppress(OSError, AttributeError): return os.getloadavg()[0]
    return None


def flags(root: Path) -> frozenset[str]:
    """What the processor can do, in the kernel's names."""
    found = cpuinfo(root)
    return frozenset(found.get("flags", found.get("Features", "")).split())


def cpuinfo(root: Path = Path("/")) -> dict[str, str]:
    """What Linux says of the first processor, of which no more is read; nothing elsewhere."""
    found: dict[str, str] = {}
    with suppress(OSError, UnicodeDecodeError), open(root / "proc/cpuinfo") as lines:
        for line in lines:
            if not line.strip(): break
            key, _, value = line.partition(":")
            found[key.strip()] = value.strip()
    return found


def cpu() -> str:
    """The processor's own name."""
    return cpuinfo().get("model name") or platform.processor() or platform.machine()


@cache
def caches(root: Path = Path("/")) -> tuple[int, ...]:
    """Bytes of the caches that one core reads through, the nearest first."""
    found = {}
    for index in sorted((root / CPUS / "cpu0" / "cache").glob("index*")):
        kind, level, size = (read_system_file(index / name) for name in ("type", "level", "size"))
        with suppress(ValueError):
            if kind != "Instruction": found[int(level)] = int(size.rstrip("KM")) << (20 if size.endswith("M") else 10)
    return tuple(size for _, size in sorted(found.items())) or CACHES


def uncached() -> int:
    """Bytes that are surely read from memory: no cache holds them."""
    return MEMORY_CACHES * caches()[-1]
