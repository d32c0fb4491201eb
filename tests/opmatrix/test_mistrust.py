"""What a saved program says is checked before anything of it runs, whatever its hash: terms, patterns, attributes,
sizes."""

import json
import resource

import numpy as np
import pytest

from formats import CSC, CSR, FORMATS, NM, SELL, Block, Dense, FormatError, Int8
from opmatrix.algebra.positions.patterns import parse
from opmatrix.runtime.kernels import KERNELS
from opmatrix.runtime.program import Program, Step

TABLE, ARRAY = Dense.pack(np.ones((9, 4))), np.ones((9, 4), np.float32)
EMBED = Step("embed", {"table0": "t"}, {"fields": "tokens"}, "x")
GOOD = [
    ["value", 0],
    ["given", [], ["tokens", 9]],
    ["weight", [], [{"array": 0}]],
    ["compose", [1, 2], []],
    ["add", [0, 3], []],
]


def program(*steps, **constants):
    return Program([EMBED, *steps], {"t": TABLE, "c": ARRAY} | constants, steps[-1].output)


def reading(nodes):
    """A program that reads a term, given as nodes or as text."""
    text = nodes if isinstance(nodes, str) else json.dumps(nodes)
    return program(Step("interpret", {"x0": "x", "c0": "c"}, {"term": text}, "y"))


def changed(at, value):
    """The good term with an entry of a node replaced."""
    nodes = json.loads(json.dumps(GOOD))
    nodes[at[0]][at[1]] = value
    return nodes


# ---- terms


def test_a_term_is_read():
    assert np.array_equal(reading(GOOD).run([[1, 2]]), np.full((2, 4), 2))


@pytest.fixture
def canary(tmp_path):
    """Code that leaves a file behind where it is run."""
    file = tmp_path / "canary"
    yield f"__import__('pathlib').Path({str(file)!r}).touch()"
    assert not file.exists(), "text of a term was run"


@pytest.mark.parametrize("at", [(1, 2, 0), (1, 2, 1), (2, 2, 0), (0, 1), (3, 1, 0), (1, 0), (4, 0)])
def test_no_text_in_a_term_is_run(canary, at):
    nodes = json.loads(json.dumps(GOOD))
    entry = nodes
    for key in at[:-1]:
        entry = entry[key]
    entry[at[-1]] = canary
    with pytest.raises(ValueError, match=r"step 1, y = interpret: term: .* is no"):
        reading(nodes)


def test_sizes_are_never_read_from_text(canary):
    from opmatrix.algebra.shapes import Shape, ShapeError

    with pytest.raises(ShapeError, match="is no size"):
        Shape(1, 4, canary) + Shape(1, 4, 5)


EACH = [{"over": "concat"}, {"pattern": "everyone", "arrays": []}]
WRONG = {
    "a number that is none": (changed((1, 2), ["tokens", 9.0]), "9.0 is no int"),
    "true": (changed((1, 2), ["tokens", True]), "True is no int"),
    "below zero": (changed((1, 2), ["tokens", -9]), "-9 is no int"),
    "too many columns": (changed((1, 2), ["tokens", 10**12]), "1000000000000 is no int"),
    "no field of a batch": (changed((1, 2), ["__class__", 9]), "'__class__' is no Literal"),
    "an array for a number": (changed((1, 2), ["tokens", {"array": 0}]), "{'array': 0} is no int"),
    "an array from the end": (changed((2, 2), [{"array": -1}]), "-1 is not an index below 1"),
    "a value that is true": (changed((0, 1), False), "False is not an index below 1"),
    "a later node": (changed((3, 1), [1, 4]), "4 is not an index below 3"),
    "one child": (changed((3, 1), [1]), "is no compose"),
    "an attribute more": (changed((3, 2), [1]), "is no compose"),
    "no kind": (changed((4, 0), "eval"), "is not a node"),
    "a symbol": (changed((4, 0), "symbol"), "is not a node"),
    "no monoid": ([*GOOD, ["over", [2], [{"over": "__class__"}]]], "'__class__' is no monoid"),
    "no nodes": ([], "it is no list of 1 to"),
    "not JSON": ("[[", "not JSON"),
    "brackets": ("[" * 100_000, "nested too deeply"),
    "long": (" " * 200_000, "200,000 characters"),
    "many nodes": ([["I", [], []]] * 1001, "it is no list of 1 to"),
    "doubled again and again": ([["value", 0], *(["row", [k, k], []] for k in range(60))], "no size from 1 to"),
    "read again and again": ([["relu", [], []], *(["compose", [k, k], []] for k in range(60))], "at most 10,000 are"),
    "powers of an unknown size": (
        [
            ["I", [], []],
            *(node for k in range(0, 80, 2) for node in (["turn", [k], []], ["product", [k, k + 1], EACH])),
        ],
        "no size from",
    ),
    "deep": ([["value", 0], *(["add", [0, k], []] for k in range(500))], "nested"),
    "merged in an age": (
        [
            ["value", 0],
            ["place", [], [0, 10**6]],
            ["compose", [0, 1], []],
            ["I", [], []],
            ["over", [3], [{"over": "max"}]],
            ["compose", [2, 4], []],
        ],
        "too many",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_term_is_refused(case):
    nodes, words = WRONG[case]
    with pytest.raises(ValueError, match=words):
        reading(nodes)


def test_what_is_read_at_one_value_is_read_once():
    """Sums of what came before are shared, so many of them are few readings."""
    nodes = [["value", 0], *(["add", [k, k], []] for k in range(60))]
    assert reading(nodes).run([[1]])[0, 0] == 2.0**60


# ---- patterns


@pytest.mark.parametrize(
    "text",
    ["(" * 5000, "(" * 490, "sequence & " * 200_000 + "causal", "(" * 90 + "causal", "causal " * 90],
    ids=lambda text: f"{text[:9]}{len(text)}",
)
def test_a_long_pattern_is_refused(text):
    with pytest.raises(ValueError):
        parse(text)
    steps = (
        Step("heads", {"x": "x"}, {"heads": 2}, "h"),
        Step("attention", dict.fromkeys("qkv", "h"), {"where": text}, "o"),
    )
    with pytest.raises(ValueError, match="step 2, o = attention"):
        program(*steps, Step("join", {"x": "o"}, {}, "y"))


def test_as_long_a_pattern_as_may_be_is_read():
    assert parse(" & ".join(["causal"] * 50)).reach[1] == 0
    assert parse("(" * 40 + "causal" + ")" * 40).form == "causal"


# ---- attributes

HEADS = Step("heads", {"x": "x"}, {"heads": 2}, "h")
ATTEND = dict.fromkeys("qkv", "h")
REFUSED = [("pointwise", {"x": "x"}, {"eps": eps}) for eps in (-1, 0, 1e-300, np.inf, 10**400, "0.1", True, [1])]
REFUSED += [("scale", {"x": "x"}, {"factor": factor}) for factor in (1e300, -np.inf, 10**400, "2", None, False)]
REFUSED += [("heads", {"x": "x"}, {"heads": heads}) for heads in (0, -1, 10**9, 2.0, "2", True)]
REFUSED += [("repeat", {"x": "h"}, {"heads": heads}) for heads in (0, -2, 3, 10**9, 2**40)]
REFUSED += [("columns", {"x": "x"}, {"lo": lo, "hi": hi}) for lo, hi in ((-1, 2), (0, 10**30), (2, 1), (0, 2.0))]
REFUSED += [("attention", ATTEND, {"tile": tile}) for tile in (0, -1, 2**40, 1.5, "256")]
REFUSED += [("attention", ATTEND, {"scale": scale}) for scale in (np.inf, np.nan, 1e39)]
REFUSED += [("attention", ATTEND, {"where": where}) for where in ("everyone", "", "mask({})", "__import__('os')", 3)]
REFUSED += [
    ("pointwise", {"x": "x"}, {name: value}) for name in ("activation", "norm") for value in ("eval", ["gelu"], 0)
]
REFUSED += [("embed", {"table0": "t"}, {"fields": fields}) for fields in ("__class__", "tokens,kinds", "", "Tokens", 0)]


@pytest.mark.parametrize("kernel, operands, attributes", REFUSED, ids=lambda part: str(part)[:40])
def test_attributes_beyond_what_a_kernel_declares_are_refused(kernel, operands, attributes):
    with pytest.raises(ValueError, match=f"step 2, y = {kernel}"):
        program(HEADS, Step(kernel, operands, attributes, "y"))


def test_a_value_may_not_be_wider_than_any_file_pays_for():
    with pytest.raises(ValueError, match="a row may have 1,048,576 numbers"):
        program(HEADS, Step("repeat", {"x": "h"}, {"heads": 2**20}, "r"), Step("join", {"x": "r"}, {}, "y"))


def test_a_norm_of_equal_numbers_is_zero():
    """The least eps that a program may have is one in float32."""
    least = KERNELS["pointwise"].attributes["eps"].annotation.low
    assert not program(Step("pointwise", {"x": "x"}, {"eps": least}, "y")).run([[1, 2]]).any()


# ---- sizes of formats


def empty(F, **arrays):
    return {name: arrays.get(name, np.zeros(0, "f4")) for name in F.fields}


def slices(*ptr):
    return dict(order=np.arange(4, dtype="u2"), ptr=np.array(ptr, "u4"), idx=np.zeros(0, "u2"))


NOTHING, ONES, ENDS = np.zeros(0, "u4"), np.ones((1, 1, 1 << 13), "f4"), np.zeros(2, "u4")
ROOMY = {
    "wide tiles": (Block, {"shape": [4, 1 << 30]}, dict(ptr=ENDS, idx=NOTHING, val=np.zeros((0, 4, 1 << 30), "f4"))),
    "slices beyond 64 bits": (SELL, {"shape": [4, 4], "chunk": 1 << 33, "sigma": 1 << 33}, slices(0, 1 << 31)),
    "slices beyond memory": (SELL, {"shape": [4, 4], "chunk": 1 << 30, "sigma": 1 << 30}, slices(0, (1 << 32) - 1)),
    "a side of 2^62": (CSR, {"shape": [1 << 62, 1]}, dict(ptr=ENDS, idx=NOTHING)),
    "inputs of 2^40": (CSR, {"shape": [1 << 40, 1]}, dict(ptr=ENDS, idx=NOTHING)),
    "columns of 2^31": (CSC, {"shape": [1, 1 << 31]}, dict(ptr=ENDS, idx=NOTHING)),
    "a group of 2^40": (Int8, {"shape": [1, 1], "group": 1 << 40}, dict(w=np.zeros(1024, "u1"), scale=ONES[0, :, :1])),
}


@pytest.mark.parametrize("case", ROOMY)
def test_a_small_file_asks_for_no_more_memory_than_it_is_worth(case):
    F, meta, arrays = ROOMY[case]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(FormatError, match=f"^{F.name}"):
        F.from_arrays({"format": F.name} | meta, empty(F, **arrays))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000


def test_fields_that_say_where_numbers_lie_are_known():
    assert {F.name: F.indices() for F in FORMATS.values() if F.indices()} == {
        "csr": ["ptr", "idx"],
        "block": ["ptr", "idx"],
        "blockint8": ["ptr", "idx"],
        "nm": ["idx"],
        "vectorwise": ["idx"],
        "sell": ["order", "ptr", "idx"],
        "csc": ["ptr", "idx"],
    }
    assert NM.fields["idx"].number.name == "u1"
