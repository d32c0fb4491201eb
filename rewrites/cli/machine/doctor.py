"""Settings of this machine and of the environment that hurt, each with the line that mends it: one table entry for each
setting."""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from formats.disk.files import shown
from formats.disk.holdings import CacheEntry
from formats.host.quiet import SIGNS
from formats.host.switches import VARIABLE
from formats.host.threads import COUNTS, asked, parse_count
from rewrites.cli.examine import Facts

Details = Mapping[str, object]

POOLS = {"openblas": "OPENBLAS_NUM_THREADS", "mkl": "MKL_NUM_THREADS", "blis": "BLIS_NUM_THREADS"}
SPINNING = {"OMP_WAIT_POLICY": "passive", "KMP_BLOCKTIME": "0", "GOMP_SPINCOUNT": "0"}  # variable -> good value
ENDLESS = "active", "infinite", "infinity"
LONG_WAITS = {"KMP_BLOCKTIME": 1000, "GOMP_SPINCOUNT": 10**7}  # milliseconds, turns: longer than a useful wait
BINDING = {"OMP_PROC_BIND": ("", "false"), "GOMP_CPU_AFFINITY": ("",), "KMP_AFFINITY": ("", "none", "disabled")}
SLOWING = {
    "NUMBA_DISABLE_JIT": ("", "0"),
    "NUMBA_OPT": ("", "3", "max"),
    "NUMBA_CPU_NAME": ("", "host"),
    "NUMBA_CPU_FEATURES": ("",),
    "NUMBA_DEBUGINFO": ("", "0"),
    VARIABLE: ("",),
}  # harmless values


class Probe(NamedTuple):
    """A check: `says` and `remedy` are formatted with the details of each finding."""

    name: str
    finds: Callable[[Facts], Iterator[Details]]  # yields the details of each harmful setting
    says: str
    remedy: str


class Finding(NamedTuple):
    """A harmful setting, in words, and the line that mends it."""

    check: str
    says: str
    remedy: str


# ---- what each check finds


def oversubscribed(facts: Facts) -> Iterator[Details]:
    """Find more threads than processors are usable, by affinity or quota."""
    (name, count), usable = asked(facts.environment), facts.host.usable
    if facts.threads > usable:
        why = f"{name}={shown(facts.environment[name])}" if name else "nothing limits them"
        most = " (no more are made)" if count > facts.threads else ""
        quota = f", by a quota of {facts.host.quota:g}" if facts.host.quota else ""
        yield {
            "why": why,
            "threads": facts.threads,
            "most": most,
            "usable": usable,
            "quota": quota,
            "variable": name or COUNTS[1],
        }


def shared_cores(facts: Facts) -> Iterator[Details]:
    """Find more threads than cores, so that some share a core."""
    if facts.host.cores < facts.threads <= facts.host.usable:
        yield {
            "threads": facts.threads,
            "cores": facts.host.cores,
            "variable": asked(facts.environment)[0] or COUNTS[1],
        }


def idle(facts: Facts) -> Iterator[Details]:
    """Find a variable that limits threads below the usable cores."""
    name, most = asked(facts.environment)[0], min(facts.host.cores, facts.host.usable)
    if name and facts.threads < most:
        yield {"variable": name, "threads": facts.threads, "cores": most}


def other_pools(facts: Facts) -> Iterator[Details]:
    """Find libraries of linear algebra that run threads of their own."""
    counts = {POOLS[pool.library]: pool.threads for pool in facts.pools if pool.library in POOLS}
    requested = {name: parse_count(facts.environment.get(name, "")) for name in POOLS.values()}
    for name, count in (requested | counts).items():
        if count > 1:
            yield {"variable": name, "library": name.split("_")[0], "count": count}


def spinning(facts: Facts) -> Iterator[Details]:
    """Find settings by which waiting threads of OpenMP spin for long."""
    for name, better in SPINNING.items():
        value = facts.environment.get(name, "").lower()
        if value in ENDLESS or parse_count(value) > LONG_WAITS.get(name, parse_count(value)):
            yield {"variable": name, "value": shown(facts.environment[name]), "better": better}


def other(variables: Mapping[str, tuple[str, ...]], facts: Facts) -> Iterator[Details]:
    """Yield variables whose values are not among the harmless ones."""
    for name, harmless in variables.items():
        if (value := facts.environment.get(name, "")).lower() not in harmless:
            yield {"variable": name, "value": value}


def slow_clock(facts: Facts) -> Iterator[Details]:
    """Find a governor that holds the clock low."""
    if "powersave" in facts.host.governors:
        yield {}


def busy(facts: Facts) -> Iterator[Details]:
    """Find a load that is high for this number of processors."""
    if facts.host.load and facts.host.load > SIGNS["load"].most * facts.host.logical:
        yield {"load": f"{facts.host.load:.1f}", "logical": facts.host.logical}


def forbidden(facts: Facts) -> Iterator[Details]:
    """Find a processor with matrix instructions that the system forbids."""
    if "amx_tile" in facts.host.flags and not (facts.matrix or facts.environment.get(VARIABLE)):
        yield {}


def uncalibrated(facts: Facts) -> Iterator[Details]:
    """Find a machine without a calibration."""
    if not (facts.calibrated or facts.distrusted):
        yield {"cache": facts.cache}


def unwritable(facts: Facts) -> Iterator[Details]:
    """Find a cache that cannot be written."""
    if facts.unkept and not facts.distrusted:
        yield {"why": facts.unkept}


def distrusted(facts: Facts) -> Iterator[Details]:
    """Find a cache that is not trusted."""
    if facts.distrusted:
        yield {"why": facts.unkept}


CHECKS = (
    Probe(
        "more threads than cores",
        oversubscribed,
        "{why}: {threads} threads{most} where {usable} can run at once{quota}, so they wait for each other",
        "export {variable}={usable}",
    ),
    Probe(
        "threads that share a core",
        shared_cores,
        "{threads} threads on {cores} cores: two of a core share its vector units, and gain little",
        "export {variable}={cores}",
    ),
    Probe("cores left idle", idle, "{variable} lets {threads} of {cores} cores work", "unset {variable}"),
    Probe(
        "a second pool",
        other_pools,
        "{library} has {count} threads of its own, which spin beside those of programs after every call",
        "export {variable}=1",
    ),
    Probe(
        "a pool that spins",
        spinning,
        "{variable}={value}: idle threads of other libraries keep the cores",
        "export {variable}={better}",
    ),
    Probe(
        "threads bound to cores",
        lambda facts: other(BINDING, facts),
        "{variable}={value}: a process that loads OpenMP is bound to one core, with all its later threads",
        "unset {variable}",
    ),
    Probe(
        "slow kernels",
        lambda facts: other(SLOWING, facts),
        "{variable}={value}: kernels are not compiled for all that the processor can do",
        "unset {variable}",
    ),
    Probe(
        "a slow clock",
        slow_clock,
        "the governor powersave may keep the clock low",
        "sudo cpupower frequency-set -g performance",
    ),
    Probe(
        "a busy machine",
        busy,
        "{load} threads want to run on {logical} processors: times measured now are too long",
        "opmatrix calibrate    # again, once other programs are done",
    ),
    Probe(
        "no matrix registers",
        forbidden,
        "the processor has AMX, but this process may not use it",
        "uname -r    # Linux 5.16 or later; a container must allow arch_prctl",
    ),
    Probe(
        "not calibrated",
        uncalibrated,
        "{cache} holds no calibration of this processor, these kernels and versions",
        "opmatrix calibrate",
    ),
    Probe(
        "a cache that is not kept",
        unwritable,
        "{why}: kernels are compiled again by every process",
        "export OPMATRIX_CACHE=DIR    # one that can be written",
    ),
    Probe("a cache that is not trusted", distrusted, "{why}", "export OPMATRIX_CACHE=DIR    # one of your own"),
)


def findings(facts: Facts) -> list[Finding]:
    """Return all findings."""
    return [
        Finding(check.name, check.says.format(**words), check.remedy.format(**words))
        for check in CHECKS
        for words in check.finds(facts)
    ]


# ---- what is said


def format_facts(facts: Facts) -> str:
    """Return the facts, a line each, and the findings."""
    host = facts.host
    blas = [
        f"{p.library} {p.version} ({p.architecture}), {p.threads} thread{'s' * (p.threads > 1)}" for p in facts.pools
    ]
    lines = {
        "processor": f"{facts.processor}: {', '.join(facts.features) or 'no vector instructions that kernels know'}",
        "cores": f"{facts.threads} threads; {len(host.allowed)} of {host.logical} logical processors allowed, on "
        f"{host.cores} cores, " + (f"a quota of {host.quota:g}" if host.quota else "no quota"),
        "memory": f"{host.memory / 1e9:.1f} GB, {host.free / 1e9:.1f} free"
        if host.memory and host.free
        else "not told",
        "load": "not told" if host.load is None else f"{host.load:.1f}",
        "versions": ", ".join(f"{name} {version}" for name, version in facts.versions.items()),
        "BLAS": "; ".join(blas) or "none that is known",
        "providers": ", ".join(f"{name} {version}" for name, version in facts.providers.items()),
        "cache": f"{facts.cache}: {'calibrated' if facts.calibrated else 'not calibrated'}, {facts.kernels} kernels of "
        "these sources",
        "holds": ", ".join(f"{name} {count} ({size / 1e6:.1f} MB)" for name, (count, size) in facts.holds.items())
        or "nothing",
    }
    width = max(map(len, lines))
    problems = findings(facts)
    hurting = [f"{problem.check}: {problem.says}\n    {problem.remedy}" for problem in problems]
    return "\n".join(
        [*(f"{name.ljust(width)}  {line}" for name, line in lines.items()), "", *(hurting or ["no setting hurts"])]
    )


def went(gone: list[CacheEntry]) -> str:
    """List the removed cache entries, a line each, and their total size."""
    total = f"{len(gone)} removed, {sum(entry.bytes for entry in gone) / 1e6:.1f} MB"
    return "\n".join([*(f"{entry.bytes / 1e6:8.1f} MB  {entry.path}" for entry in gone), total])


def facts_as_json(facts: Facts) -> dict[str, object]:
    """Return the facts and findings as JSON."""
    host = {name: sorted(value) if isinstance(value, frozenset) else value for name, value in vars(facts.host).items()}
    host["siblings"] = [sorted(cores) for cores in facts.host.siblings]
    rest = {name: value for name, value in vars(facts).items() if name not in ("host", "environment")}
    return {
        **rest,
        "host": host,
        "cache": str(facts.cache),
        "pools": [pool._asdict() for pool in facts.pools],
        "hurts": [finding._asdict() for finding in findings(facts)],
    }
