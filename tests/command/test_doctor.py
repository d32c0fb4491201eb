"""What a machine is found to be, and settings that hurt: each is switched on, named, and mended by the line that is
said."""

import json
from pathlib import Path

import pytest

from formats.host.host import Host
from formats.host.threads import BLAS_VARIABLES, asked, most
from rewrites.cli.examine import Facts, Library, examined
from rewrites.cli.machine.doctor import CHECKS, POOLS, facts_as_json, findings, format_facts

FOUR = Host(4, frozenset(range(4)), tuple(frozenset({cpu}) for cpu in range(4)), memory=8 * 10**9, free=10**9, load=0.5)


def facts(environment=None, host=FOUR, **given):
    """As `examined` would find them: threads are counted as formats.host.threads counts them."""
    environment = environment or {}
    threads = min(asked(environment)[1], most()) or len(host.allowed)
    return Facts(host, environment, "a processor", ("AVX2",), threads=threads, **given)


def host(**changed):
    return Host(**{**vars(FOUR), **changed})


HURTING = {
    "more threads than cores": [
        facts({"OMP_NUM_THREADS": "8"}),
        facts({"NUMBA_NUM_THREADS": "6", "OMP_NUM_THREADS": "2"}),
        facts(host=host(quota=1.5)),
        facts({"OMP_NUM_THREADS": "16,2"}),
        facts({"OMP_NUM_THREADS": "100000"}),
        facts({"NUMBA_NUM_THREADS": "9" * 30}),
    ],
    "threads that share a core": [facts(host=host(siblings=(frozenset({0, 2}), frozenset({1, 3})) * 2))],
    "cores left idle": [facts({"OMP_NUM_THREADS": "1"}), facts({"NUMBA_NUM_THREADS": "3"})],
    "a second pool": [
        facts({"OPENBLAS_NUM_THREADS": "4"}),
        facts({"MKL_NUM_THREADS": "2"}),
        facts(pools=(Library("openblas", "0.3", "Zen", 4),)),
        facts(pools=(Library("mkl", "2024", "", 2),)),
    ],
    "a pool that spins": [
        facts({"OMP_WAIT_POLICY": "ACTIVE"}),
        facts({"KMP_BLOCKTIME": "infinite"}),
        facts({"KMP_BLOCKTIME": "100000"}),
        facts({"GOMP_SPINCOUNT": "INFINITY"}),
    ],
    "threads bound to cores": [
        facts({"OMP_PROC_BIND": "close"}),
        facts({"GOMP_CPU_AFFINITY": "0-3"}),
        facts({"KMP_AFFINITY": "granularity=fine,compact"}),
    ],
    "slow kernels": [
        facts({"NUMBA_DISABLE_JIT": "1"}),
        facts({"NUMBA_OPT": "1"}),
        facts({"NUMBA_CPU_NAME": "generic"}),
        facts({"OPMATRIX_FEATURES": "-amx"}),
    ],
    "a slow clock": [facts(host=host(governors=frozenset({"powersave", "performance"})))],
    "a busy machine": [facts(host=host(load=4.7))],
    "no matrix registers": [facts(host=host(flags=frozenset({"amx_tile"})))],
    "not calibrated": [facts(calibrated=False)],
    "a cache that is not kept": [facts(unkept="DIR: No such file or directory")],
    "a cache that is not trusted": [
        facts(unkept="DIR: other users may write there", distrusted=True, calibrated=False)
    ],
}
FINE = [
    facts(),
    facts({"OMP_NUM_THREADS": "4"}),
    facts({"OMP_NUM_THREADS": "0"}),
    facts({"OMP_NUM_THREADS": "many"}),
    facts({"OMP_WAIT_POLICY": "passive", "KMP_BLOCKTIME": "0", "GOMP_SPINCOUNT": "0", "OPENBLAS_NUM_THREADS": "1"}),
    facts({"OMP_PROC_BIND": "FALSE", "KMP_AFFINITY": "disabled", "NUMBA_OPT": "3", "NUMBA_DISABLE_JIT": "0"}),
    facts({"OMP_NUM_THREADS": "2"}, host(quota=2.0)),
    facts(host=host(governors=frozenset({"schedutil"}))),
    facts({"OMP_NUM_THREADS": "2"}, host(siblings=(frozenset({0, 2}), frozenset({1, 3})) * 2)),
    facts(host=host(flags=frozenset({"amx_tile"})), matrix=True),
    facts(pools=(Library("openblas", "0.3", "Zen", 1),)),
]


def test_every_check_has_a_case():
    assert [check.name for check in CHECKS] == [*HURTING]


@pytest.mark.parametrize("given", FINE, ids=str)
def test_nothing_is_said_of_what_does_no_harm(given):
    assert not findings(given)
    assert format_facts(given).endswith("no setting hurts") and "a processor: AVX2" in format_facts(given)


@pytest.mark.parametrize("name, given", [(name, each) for name, cases in HURTING.items() for each in cases])
def test_what_hurts_is_named_alone_with_its_values(name, given):
    [found] = findings(given)
    assert found.check == name and "{" not in found.says + found.remedy
    assert found.says in format_facts(given) and found.remedy in format_facts(given)
    for variable in set(given.environment) & set(found.says.replace("=", " ").split()):
        assert given.environment[variable].split(",")[0].lower() in found.says.lower() or name in (
            "cores left idle",
            "a second pool",
        )


@pytest.mark.parametrize("given", [each for cases in HURTING.values() for each in cases])
def test_the_line_that_is_said_mends_it(given):
    """Where it sets or unsets a variable: what that gives is looked at again."""
    [found], environment = findings(given), dict(given.environment)
    match found.remedy.split():
        case ["export", setting] if "=" in setting:
            environment |= [setting.split("=")]
        case ["unset", variable]:
            environment.pop(variable)
        case _:
            return
    pools = tuple(
        pool._replace(threads=int(environment.get(POOLS[pool.library], pool.threads))) for pool in given.pools
    )
    assert not findings(facts(environment, given.host, pools=pools))


def test_the_variables_of_other_pools_are_those_that_formats_limits():
    assert set(POOLS.values()) <= set(BLAS_VARIABLES)


def test_the_same_as_json():
    given = facts({"OMP_NUM_THREADS": "9"}, pools=(Library("openblas", "0.3", "Zen", 1),), cache=Path("somewhere"))
    found = json.loads(json.dumps(facts_as_json(given)))
    assert found["host"]["allowed"] == [0, 1, 2, 3] and found["threads"] == 9 and found["cache"] == "somewhere"
    assert [each["check"] for each in found["hurts"]] == ["more threads than cores"] and found["pools"][0][
        "library"
    ] == "openblas"
    assert "environment" not in found  # it may hold what is nobody's business


# ---- what is looked at


def tree(root, **files):
    """A root directory with files; __ stands for / in their names."""
    for name, text in files.items():
        file = root / name.replace("__", "/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


def test_a_host_without_proc_and_sys_still_has_cores(tmp_path):
    found = Host.here(tmp_path)
    assert found.usable == found.cores == len(found.allowed) >= 1
    assert found.quota is found.memory is found.free is None and not found.governors and not found.flags


@pytest.mark.parametrize(
    "files, quota",
    [
        (
            {
                "proc__self__cgroup": "0::/a/b\n",
                "sys__fs__cgroup__a__b__cpu.max": "max 100000",
                "sys__fs__cgroup__a__cpu.max": "150000 100000",
            },
            1.5,
        ),
        ({"proc__self__cgroup": "0::/\n", "sys__fs__cgroup__cpu.max": "400000 100000\n"}, 4.0),
        ({"proc__self__cgroup": "0::/\n", "sys__fs__cgroup__cpu.max": "max 100000\n"}, None),
        (
            {
                "proc__self__cgroup": "4:memory:/m\n1:cpu:/c\n",
                "sys__fs__cgroup__cpu__c__cpu.cfs_quota_us": "50000",
                "sys__fs__cgroup__cpu__c__cpu.cfs_period_us": "100000",
            },
            0.5,
        ),
        (
            {
                "proc__self__cgroup": "1:cpu:/c\n",
                "sys__fs__cgroup__cpu__c__cpu.cfs_quota_us": "-1",
                "sys__fs__cgroup__cpu__c__cpu.cfs_period_us": "100000",
            },
            None,
        ),
    ],
)
def test_quotas_of_both_kinds_of_control_groups(tmp_path, files, quota):
    assert Host.here(tree(tmp_path, **files)).quota == quota


def test_memory_is_that_of_the_group_where_it_has_less(tmp_path):
    tree(tmp_path, proc__meminfo="MemTotal: 4000 kB\nMemAvailable: 3000 kB\n", proc__self__cgroup="0::/a\n")
    assert Host.here(tmp_path).memory == 4000 * 1024 and Host.here(tmp_path).free == 3000 * 1024
    tree(tmp_path, **{"sys__fs__cgroup__a__memory.max": str(2**20), "sys__fs__cgroup__a__memory.current": str(2**19)})
    assert (Host.here(tmp_path).memory, Host.here(tmp_path).free) == (2**20, 2**19)


def test_siblings_governors_and_flags_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 5}, raising=False)
    cpu = "sys__devices__system__cpu__cpu{}__{}"
    tree(
        tmp_path,
        proc__cpuinfo="processor : 0\nflags : avx2 amx_tile\n",
        **{
            cpu.format(number, "topology__thread_siblings_list"): text
            for number, text in ((0, "0-1\n"), (1, "0-1\n"), (5, "4,5\n"))
        },
    )
    tree(tmp_path, **{cpu.format(number, "cpufreq__scaling_governor"): "powersave\n" for number in (0, 1, 2)})
    found = Host.here(tmp_path)
    assert (
        found.cores == 2
        and found.usable == 3
        and found.governors == {"powersave"}
        and found.flags == {"avx2", "amx_tile"}
    )


def test_this_machine_can_be_looked_at(tmp_path, monkeypatch):
    monkeypatch.setenv("OPMATRIX_CACHE", str(tmp_path))
    found = examined({"KMP_BLOCKTIME": "infinite"})
    assert (
        found.processor
        and found.threads >= 1
        and found.cache == tmp_path
        and not found.calibrated
        and not found.kernels
    )
    assert {"python", "numpy", "numba"} <= found.versions.keys() and {"torch", "CUDA"} <= found.providers.keys()
    assert {"not calibrated", "a pool that spins"} <= {each.check for each in findings(found)}
    assert str(tmp_path) in format_facts(found) and json.dumps(facts_as_json(found))
