"""Things of one name that are not one thing: what enters graphs, programs and files is the thing itself."""

import re
from itertools import combinations

import numpy as np
import pytest
from proof_pairs import LINKS, OURS, OWN, PATTERNS, functions
from searched import RAGGED, relative, structure

from formats.core.errors import InputError
from opmatrix.algebra.data import Data
from opmatrix.algebra.monoids import softmax
from opmatrix.algebra.nodes import LASTING, compose
from opmatrix.algebra.operators import I, heads, product, relu, symbol, turn, weight
from opmatrix.algebra.oracles import dense
from opmatrix.algebra.positions.patterns import Pattern, causal, coarse, hubs, mask, parse, scattered, sequence, window
from opmatrix.algebra.shapes import Shape, size
from opmatrix.algebra.term import KINDS, formula
from opmatrix.runtime.interpreted import is_writable, write_term
from rewrites.egraph.template import AttributeTable
from rewrites.extraction import Infeasible
from rewrites.laws.law import law, n, value
from rewrites.laws.spelling import spelled
from rewrites.proofs.equations import prove
from rewrites.verify import verify_steps

TOKENS, WIDTH = 24, 4
M, K = size("m"), size("k")
A, B = (symbol(name, None, Shape(1, M, K)) for name in "AB")


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def attended(x, where, over=softmax, heads_of=1):
    """Attention of a value to itself."""
    q, k, v = (x @ weight(Data(numbers(WIDTH, WIDTH, seed=each), f"w{each}")) @ heads(heads_of) for each in range(3))
    return product(q @ k.T, v, over=over, where=where) @ heads(heads_of).T


# ---- names in graphs

THINGS = [
    *OURS,
    *OWN,
    *PATTERNS,
    *LINKS,
    None,
    "sum",
    "mine",
    "None",
    "data1",
    "links: T × T",
    "everyone",
    "m",
    M,
    size("data1"),
    (),
    ("linear",),
    "('linear',)",
    3,
    3.0,
    True,
    "3",
    Shape(1, M, K),
    Data(numbers(2), "W"),
    Data(numbers(2, seed=1), "W"),
    Data(numbers(1), "sum"),
    mask(Data(np.eye(3), "seen")),
]


def test_each_thing_has_a_name_of_its_own():
    """In one table, in any order of appearance; equal things have one."""
    for things in (THINGS, THINGS[::-1]):
        table = AttributeTable()
        names = [table.name(each) for each in things]
        assert len({*names}) == len(things) == len(table.values)
        assert all(
            table.values[name] is each or table.values[name] == each for name, each in zip(names, things, strict=True)
        )
        assert [table.name(each) for each in things] == names


def test_what_laws_spell_is_ours_alone():
    for ours in (*OURS, *(each for each in PATTERNS if each.stated)):
        assert not any(spelled(each) == spelled(ours) for each in THINGS if each is not ours)
    assert [spelled(each) for each in (*OURS, causal)] == ["sum", "max", "mean", "softmax", "causal"]


@pytest.mark.parametrize("one, other", [(a, b) for a, b in combinations((*OURS, *OWN), 2) if a.__name__ == b.__name__])
def test_monoids_of_one_name_are_two(one, other):
    proof = prove(*(product(compose(turn(A), I * 0.01), B, over=each) for each in (one, other)))
    assert not proof and proof.verdict == "refuted"


@pytest.mark.parametrize("one, other", [(a, b) for a, b in combinations(PATTERNS, 2) if a.name == b.name])
def test_patterns_of_one_name_are_two(one, other):
    assert one != other and {one: 1}.get(other) is None
    proof = prove(*(formula(lambda x, where=where: attended(x, where)) for where in (one, other)))
    assert not proof and proof.verdict == "refuted"


def test_functions_of_one_name_are_two():
    for one, other in combinations(functions(), 2):
        assert one.kind.name != other.kind.name and KINDS[one.kind.name] is one.kind
        assert prove(one, other).verdict == "refuted"


def test_symbols_of_one_name_are_two():
    assert prove(symbol("a", 4, 4), symbol("a", 4, 4, linear=True)).verdict == "refuted"
    assert prove(symbol("n", size("n"), 4), symbol("n", size("n"), 4))


def test_a_monoid_called_sum_is_not_turned():
    """The law asks for ours."""
    own, x = OWN[0], turn(A)
    assert own.__name__ == "sum" and prove(turn(product(x, B)), product(turn(B), turn(x)))
    assert not prove(turn(product(x, B, over=own)), product(turn(B), turn(x), over=own)).matches.get("turn_product")


def test_a_law_speaks_of_its_own_monoid():
    """One's own law about one's own monoid, and about no other of its name."""

    @law()
    def turned(a: value[n], b: value[n]):
        """True where merging is."""
        return product(a, turn(b), over=OWN[2]), turn(product(b, turn(a), over=OWN[2]))

    a, b = (symbol(name, None, 4) for name in "ab")
    for over, known in ((OWN[2], True), (OWN[1], False)):
        sides = product(a, turn(b), over=over), turn(product(b, turn(a), over=over))
        assert bool(prove(*sides, laws=[turned])) == known


# ---- equal patterns


def near(w, reflexive=True):
    return Pattern(f"near({w})", lambda q, k: abs(q.position - k.position) <= w, reflexive)


MADE = [
    lambda: window(2),
    lambda: hubs(1),
    lambda: scattered(2),
    lambda: sequence & causal & window(1),
    lambda: sequence & (causal & window(1)),
    lambda: sequence & (causal | window(1)),
    lambda: coarse(window(1) | hubs(1), 4),
    lambda: mask(Data(np.tri(5), "seen")),
    lambda: mask(np.tri(4), 2),
]


@pytest.mark.parametrize("made", MADE)
def test_patterns_that_are_made_alike_are_equal(made):
    assert made() == made() and hash(made()) == hash(made()) and made().stated
    assert parse(made().form, made().data) == made() and made() != window(3)


def test_patterns_see_what_they_compute():
    assert near(2) == near(2) and near(2) != near(3) and near(2) != near(2, reflexive=False)
    assert not near(2).stated and not (near(2) & causal).stated
    assert mask(Data(np.tri(5), "seen")) != mask(Data(np.tri(5).T, "seen"))
    one, other = (
        Pattern("p", lambda q, k, table=table: table[q.position, k.position]) for table in (np.eye(3), np.ones((3, 3)))
    )
    assert one != other


# ---- programs


def test_masks_of_one_name_are_two_in_a_program():
    """Two layers, each with its own table, both called alike."""
    tables = [mask(Data(table, "seen")) & sequence for table in (np.tri(16), np.eye(16) + np.eye(16, k=1))]
    model = formula(lambda x: attended(attended(x @ weight(numbers(TOKENS, WIDTH)), tables[0]), tables[1]))
    program, _ = structure(model).program({})
    np.testing.assert_allclose(program(RAGGED), dense(model, RAGGED), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "where",
    [
        Pattern(
            "causal & sequence",
            lambda q, k: (q.sequence == k.sequence) & (k.position >= q.position),
            True,
            True,
            reach=(0, 1 << 40),
        ),
        Pattern("sequence", lambda q, k: (q.sequence == k.sequence) & (q.position == k.position), True, True),
    ],
)
def test_a_pattern_of_ones_own_is_not_taken_for_ours(where):
    """Kernels read patterns by their text: one that says something else is no kernel's, and is refused."""
    model = formula(lambda x: attended(x @ weight(numbers(TOKENS, WIDTH)), where))
    assert not where.attends and not is_writable(model)
    with pytest.raises((InputError, Infeasible)):
        structure(model).program({})


@pytest.mark.parametrize("over", [each for each in OWN if each.__name__ in ("sum", "softmax")])
def test_a_monoid_of_ones_own_is_not_taken_for_ours(over):
    """It runs as what it is, and is not saved under the name of another."""
    model = formula(lambda x: attended(x @ weight(numbers(TOKENS, WIDTH)), sequence, over))
    program, _ = structure(model).program({})
    assert "attention" not in [step.kernel for step in program.steps]
    verify_steps(program, [RAGGED])  # each within its bound: a kernel merges in float32
    assert relative(program(RAGGED), dense(model, RAGGED)) < 1e-5
    assert re.search(rf'"over":"{over.__name__}:[0-9a-f]{{16}}"', write_term(model, {})[0])


@pytest.mark.parametrize("f", functions()[3:], ids=lambda f: f.kind.name)
def test_functions_of_ones_own_run_and_are_not_saved_as_ours(f, tmp_path):
    """Where it has a name of ours it is refused, and nothing is left; ours is saved."""
    model = formula(lambda x: x @ weight(numbers(TOKENS, WIDTH)) @ f)
    program, _ = structure(model).program({})
    np.testing.assert_allclose(program(RAGGED), dense(model, RAGGED), rtol=1e-5, atol=1e-6)
    name = f.kind.body.__name__
    if f is relu or name not in LASTING:
        program.save(tmp_path / "saved")
        return
    with pytest.raises(InputError, match=f"not saved: the user-defined {name} has the name of a function of opmatrix"):
        program.save(tmp_path / "saved")
    assert not [*tmp_path.iterdir()]
