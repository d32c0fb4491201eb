"""Machines from data sheets: a roofline of what their kernels do, with whole tiles; a bound, and never less for
more."""

import json
from dataclasses import replace
from math import ceil, inf

import pytest

from formats import FORMATS
from formats.core.errors import InputError
from formats.machine.datasheets import BYTES, FILE, Datasheet, datasheets, load_bundled, work
from formats.machine.prices import EPILOGUE
from opmatrix.algebra.batch.extents import WHOLE, Extents
from opmatrix.runtime.pricing import catalogue, datasheet

SIZES = {
    "T": 128,
    "n": 1024,
    "p": 768,
    "nnz": 90000,
    "blocks": 60,
    "r": 16,
    "c": 16,
    "kept": 2,
    "group": 4,
    "S2": 128 * 128,
    "h": 12,
    "d": 64,
    "k": 2,
    "S": 5,
    "E": 8,
    "g": 3,
    "moved": 96,
    "simple": 200,
    "slow": 7,
    "deep": 40,
    "merged": 9,
    "loops": 5,
}
PRICES = catalogue()
MACHINES = [datasheet(name) for name in load_bundled()]
PLAIN = Datasheet(
    "plain",
    "made up",
    {"bf16": 64e12, "int8": 128e12},
    {"float32": 1e12},
    (16, 16, 8),
    (("near", 1e6, 1e13), ("far", 1e11, 1e12)),
    catalogue=PRICES,
)


def at(**sizes):
    return SIZES | sizes


@pytest.mark.deep(every=4)
@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
def test_every_kernel_has_a_price_that_no_size_lowers(machine):
    for kernel in PRICES.prices:
        prices = [machine.seconds(kernel, **at(T=rows, S2=rows * rows)) for rows in (1, 2, 7, 16, 17, 100, 1000, 5000)]
        assert prices == sorted(prices) and 0 < prices[0] < prices[-1] < inf, kernel
        for size in ("n", "p", "nnz", "blocks", "h", "d", "moved", "simple", "slow", "deep", "merged", "loops"):
            steps = [machine.seconds(kernel, **at(**{size: SIZES[size] * factor})) for factor in (1, 2, 3, 8, 64)]
            assert steps == sorted(steps), (kernel, size)


@pytest.mark.deep(every=4)
@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
def test_a_price_is_the_slowest_unit_and_its_expression(machine):
    """Expressions, which take sympy long, of each kernel on one machine, of each machine for some kernels."""
    for kernel in PRICES.prices:
        parts = machine.roofline(kernel, **SIZES)
        assert machine.seconds(kernel, **SIZES) == max(parts.values()) and min(parts.values()) >= 0
        assert machine.between(kernel, **SIZES) == (machine.seconds(kernel, **SIZES), inf)
    for kernel in [*PRICES.prices][MACHINES.index(machine) :: len(MACHINES)]:
        from_last = replace(machine, memory=machine.memory[-1:])
        said = machine.expression(kernel)
        value = said.subs({symbol: SIZES[str(symbol)] for symbol in said.free_symbols})
        assert float(value) == pytest.approx(from_last.seconds(kernel, **SIZES), rel=1e-9)


def test_the_roofline_has_its_ridge():
    """Below the ridge a product takes what reading it takes, above it what computing it takes."""
    n = p = 4096
    few, many = PLAIN.roofline("linear.bf16", T=16, n=n, p=p), PLAIN.roofline("linear.bf16", T=4096, n=n, p=p)
    assert few["memory"] > few["matrix"] and many["matrix"] > many["memory"]
    assert few["memory"] == pytest.approx((2 * n * p + 4 * 16 * (n + p)) / 1e12)
    assert many["matrix"] == pytest.approx(2 * 4096 * n * p / 64e12) and many["vector"] == 0


def test_a_product_pays_for_whole_tiles():
    def taken(T=16, n=1600, p=1600):
        return PLAIN.roofline("linear.bf16", T=T, n=n, p=p)["matrix"]

    assert taken(T=1) == taken(T=16) < taken(T=17) == taken(T=32) == 2 * taken(T=16)
    assert taken(n=1585) == taken(n=1600) < taken(n=1601) and taken(p=1593) == taken(p=1600) < taken(p=1601)
    for T, n, p in ((1, 1, 1), (33, 100, 9), (512, 77, 1000)):
        whole = 2 * 16 * ceil(T / 16) * 16 * ceil(n / 16) * 8 * ceil(p / 8)
        assert taken(T, n, p) == pytest.approx(whole / 64e12)
    small = PLAIN.roofline("linear.block", T=16, n=512, p=512, blocks=100, r=4, c=4)
    assert small["matrix"] == 0, "float32 has no matrix unit here, so no tiles"
    bf16 = replace(PLAIN, activations="bf16")
    tiled = bf16.roofline("linear.block", T=16, n=512, p=512, blocks=100, r=4, c=4)["matrix"]
    assert (
        tiled
        == bf16.roofline("linear.block", T=16, n=512, p=512, blocks=100, r=16, c=8)["matrix"]
        == 2 * 100 * 16 * 16 * 8 / 64e12
    )


@pytest.mark.parametrize("tile", [(16, 16, 8), (8, 128, 128)])
def test_whole_tiles_are_at_least_the_flops_and_all_of_them_where_they_fit(tile):
    fitting = at(n=1024, p=1024, r=128, c=128, T=128, kept=4, group=4, nnz=1000, blocks=4)
    for name, form in FORMATS.items():
        flops = float(form.flops.subs({symbol: fitting[str(symbol)] for symbol in form.flops.free_symbols}))
        matrix, vector = (
            float(part.subs({symbol: fitting[str(symbol)] for symbol in part.free_symbols}))
            for part in work(catalogue()[f"linear.{name}"], tile, None)[:2]
        )
        assert matrix + vector == pytest.approx(flops), name
        ragged = at(n=1000, p=1000, T=100, blocks=4)
        done = sum(
            float(part.subs({symbol: ragged[str(symbol)] for symbol in part.free_symbols}))
            for part in work(catalogue()[f"linear.{name}"], tile, None)[:2]
        )
        assert done >= float(form.flops.subs({symbol: ragged[str(symbol)] for symbol in form.flops.free_symbols})) * (
            1 - 1e-12
        ), name


def test_units_are_apart():
    """Scattered numbers go to the vector unit, tiles to the matrix unit; 2:4 only where the machine skips by it."""
    a100 = replace(datasheet("A100"), activations="bf16")
    assert a100.roofline("linear.csr", **SIZES)["matrix"] == 0 < a100.roofline("linear.csr", **SIZES)["vector"]
    assert a100.roofline("linear.block", **SIZES)["vector"] == 0 < a100.roofline("linear.block", **SIZES)["matrix"]
    assert a100.roofline("linear.nm", **SIZES)["vector"] == 0
    assert a100.roofline("linear.nm", **at(kept=4, group=8))["matrix"] == 0
    dense, half = (a100.roofline(f"linear.{name}", **at(T=4096, n=4096, p=4096))["matrix"] for name in ("dense", "nm"))
    assert half == pytest.approx(dense / 2), "half of the numbers at the same rate: twice the rate of all"
    ascend = replace(datasheet("ascend910b"), activations="bf16")
    assert ascend.roofline("linear.nm", **SIZES)["matrix"] == 0


@pytest.mark.deep
def test_a_search_takes_one_like_a_calibrated_machine(small):
    from rewrites.laws import EXACT_LAWS
    from rewrites.search.search import search

    found = {
        name: search(small, EXACT_LAWS, datasheet(name), Extents({"T": 40, WHOLE: 600})).time
        for name in ("H100", "A100", "TPUv5e")
    }
    assert 0 < found["H100"] < found["A100"] < found["TPUv5e"], "in float32 these have vector units alone"
    assert len({repr(machine) for machine in MACHINES}) == len(MACHINES), "what is remembered is of one machine"


def test_number_types_have_rates_of_their_own():
    for machine in MACHINES:
        for form in ("bf16", "int8"):
            big = at(T=8192, n=8192, p=8192, group=128)
            if form not in machine.matrix:
                continue
            want = 2 * 8192**3 / machine.matrix[form]
            assert machine.roofline(f"linear.{form}", **big)["matrix"] == pytest.approx(want)
        assert machine.roofline("linear.dense", **SIZES)["matrix"] == 0, "float32 is not rounded to reach a matrix unit"
    tpu = datasheet("TPUv5e")
    assert tpu.dense("linear.int4")[:2] == (393e12, "matrix"), "int4 runs as int8"


def test_narrow_activations_move_fewer_bytes():
    wide, narrow = (
        replace(PLAIN, activations=each).roofline("scale", T=1 << 20, p=1024)["memory"] for each in ("float32", "bf16")
    )
    assert wide == 2 * narrow == 8 * 1024 * (1 << 20) / 1e12 and BYTES["int4"] == 0.5


def test_what_fits_a_nearer_level_is_read_from_it():
    assert PLAIN.bandwidth(9e5) == 1e13 and PLAIN.bandwidth(2e6) == 1e12 and PLAIN.bandwidth(1e15) == 1e12


def test_a_stage_rides_along_or_is_a_pass():
    for stage in EPILOGUE:
        assert PLAIN.seconds(stage, T=999, p=999) <= PLAIN.seconds(f"pointwise.{stage}", T=999, p=999)
    slow = replace(PLAIN, launch=1.0)
    assert slow.seconds("scale", T=1, p=1) > 1 > slow.seconds("activation", T=1, p=1)


def test_tables_are_read_with_mistrust(tmp_path):
    table, file = json.loads(FILE.read_text()), tmp_path / "mine.json"
    file.write_text(json.dumps({"mine": table["A100"]}))
    assert replace(datasheets(file)["mine"], name="A100") == datasheet("a100")
    for change, said in (
        ({"tile": [16, 16]}, "a tile of three"),
        ({"tile": 3}, "mine"),
        ({"vector": {}}, "float32"),
        ({"memory": []}, "a memory"),
        ({"matrix": {"bf16": -1}}, "positive"),
        ({"beads": 1}, "beads"),
        ({"memory": [["far", 2e9, 1e12], ["near", 1e6, 1e13]]}, "must grow"),
        ({"activations": "float7"}, "float7"),
        ({"links": 3}, "mine"),
        ({"links": [["near", 8, 1e11]]}, "mine.*latency"),
        ({"links": [["near", 8, 1e11, "soon"]]}, "mine"),
        ({"links": [["near", 8, -1, 1e-6]]}, "mine: link 'near'.*positive.*-1"),
        ({"links": [["near", 8, 1e11, 0]]}, "mine: link 'near'.*positive"),
        ({"links": [["near", 1, 1e11, 1e-6]]}, "mine: link 'near': give at least two devices"),
        ({"links": [["near", 7.5, 1e11, 1e-6]]}, "7.5 devices is not a whole number"),
        ({"links": [["near", 8, 1e11, 1e-6, 1]]}, "mine: link 'near': `mesh` is true or false, got 1"),
        ({"links": [["near", None, 1e11, 1e-6, True]]}, "mine: link 'near': a mesh needs its number"),
        ({"cores": 0}, "mine: cores 0: give a whole number from 1 on"),
        ({"host": ["bus", 1e10]}, "mine.*latency"),
        ({"host": ["bus", 1e10, 0]}, "mine: link 'bus'.*positive"),
        *(
            ({"links": [["near", 8, 1e11, 1e-6], ["far", *far, 1e-6]]}, "mine: links must grow.*'far'")
            for far in ((8, 1e10), (4, 1e10), (12, 1e10), (16, 2e11))
        ),
        ({"links": [["near", None, 1e11, 1e-6], ["far", 16, 1e10, 1e-6]]}, "must grow"),
    ):
        file.write_text(json.dumps({"mine": table["A100"] | change}))
        with pytest.raises(ValueError, match=said):
            datasheets(file)
    with pytest.raises(ValueError, match="'abacus': there is no data sheet of this name"):
        datasheet("abacus")
    with pytest.raises(ValueError, match=r"linear\.gold"):
        PLAIN.seconds("linear.gold", T=1)
    with pytest.raises(ValueError, match=r"price of linear\.dense needs n, got T, p"):
        PLAIN.seconds("linear.dense", T=1, p=2)


def test_links_are_levels_from_the_nearest_on(tmp_path):
    for machine in MACHINES:
        assert [link.bandwidth for link in machine.links] == sorted(link.bandwidth for link in machine.links)[::-1]
        alone = "one GPU a node" in machine.source  # such a machine has a network alone
        assert len(machine.links) >= 2 - alone, machine.name
        assert machine.links[-1].devices == inf, "networks bound no number of devices"
        assert "links: " in machine.source and "latenc" in machine.source, machine.name
    h100, tpu = datasheet("H100").links, datasheet("TPUv5e").links
    assert h100 == (("NVLink 4", 8, 450e9, 0.6e-6, False), ("InfiniBand NDR", inf, 50e9, 2.7e-6, False))
    assert [link.devices for link in tpu] == [16, 256, inf]
    file = tmp_path / "mine.json"
    file.write_text(
        json.dumps({"mine": {k: v for k, v in json.loads(FILE.read_text())["A100"].items() if k != "links"}})
    )
    assert datasheets(file)["mine"].links == (), "a machine may be alone"


def test_every_machine_says_where_its_numbers_are_from():
    for machine in MACHINES:
        half = [machine.matrix[kind] for kind in ("float16", "bf16") if kind in machine.matrix]
        assert ("bf16" in machine.matrix) != ("no bf16" in machine.source), machine.name
        assert len(machine.source) > 40 and half and min(half) > machine.vector["float32"], machine.name
        assert PRICES["linear.dense"].terms and machine.launch == 0, "no data sheet states it"


def test_a_prediction_compares_and_says_that_nothing_was_run(small):
    from rewrites.cli.predict import predicted

    said, found = predicted(small, datasheet("A100"), 20)
    assert "nothing was run" in said and datasheet("A100").source in said
    rows = {tuple(line.split()[:2]): [*line.split()[2:]] for line in said.splitlines()[-4:]}
    assert set(rows) == {(name, kind) for name in ("imported", "exact") for kind in ("float32", "bf16")}
    for kind in ("float32", "bf16"):
        assert float(rows["exact", kind][0]) <= float(rows["imported", kind][0])
    assert all(sum(map(int, (row[2], row[4], row[6]))) in (99, 100, 101) for row in rows.values()), (
        "shares of one whole"
    )
    assert [f"{1e6 * each['predicted_s']:.1f}" for each in found["programs"]] == [row[0] for row in rows.values()]
    assert all(sum(each["bound"].values()) == pytest.approx(1) for each in found["programs"])


def test_the_command_predicts_or_names_the_machines(monkeypatch, capsys):
    from rewrites.cli import __main__ as cli

    monkeypatch.setattr("sys.argv", ["opmatrix", "optimize", "minilm", "--machine", "abacus"])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 2 and "there are A100, H100, Ascend910B, TPUv5e" in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"[]", b"3", b"null", b"[1,2", b"\xff\xfe[]", b"[" * 4000], ids=repr)
def test_a_table_that_is_none_is_refused_in_a_line(tmp_path, content):
    (file := tmp_path / "mine.json").write_bytes(content)
    with pytest.raises(InputError, match=r"mine\.json: "):
        datasheets(file)


ODD = [None, True, "many", -1, 1e300, [], [1], {}, {"a": 1}, [["x", "y", "z"]], [[1, 2, 3]], [[[]]]]


@pytest.mark.parametrize("field", [*json.loads(FILE.read_text())["A100"], "launch", "processors", "activations"])
def test_a_field_of_another_type_names_the_machine(tmp_path, field):
    """Whatever stands in a field: a data sheet, or a line."""
    file = tmp_path / "mine.json"
    refused = 0
    for value in ODD:
        file.write_text(json.dumps({"mine": json.loads(FILE.read_text())["A100"] | {field: value}}))
        try:
            replace(datasheets(file)["mine"], catalogue=PRICES).seconds("linear.dense", **SIZES)
        except ValueError as error:
            assert "mine: " in str(error)
            refused += 1
    assert refused > 5
