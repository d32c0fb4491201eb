"""Special numbers in every tensor of a BERT in turn: no fact is read from them, so graphs, searches and programs stay
right."""

import numpy as np
import pytest
from checkpoints import CONFIG, arrays
from searched import RAGGED, Round, relative

from formats.core.errors import InputError
from opmatrix.algebra.batch.extents import patterns
from opmatrix.algebra.data import Data
from opmatrix.algebra.monoids import topk
from opmatrix.algebra.operators import I, affine, const, diag, given, product, symbol, turn, weight
from opmatrix.algebra.oracles import dense
from opmatrix.models import build
from rewrites.egraph.layers import Explorer, parts
from rewrites.laws import EXACT_LAWS
from rewrites.laws.flat import flat
from rewrites.lowering.representations import Representable
from rewrites.lowering.sharing import Shares
from rewrites.search.search import SearchSpace, solve_chain
from rewrites.verify import check_graph
from rewrites.verify.precision import check_precision, check_ties

SMALL = CONFIG | dict(hidden_size=16, num_attention_heads=2, intermediate_size=24, num_hidden_layers=1)
NUMBERS = arrays(SMALL)
PLAIN, FUSED, MATCHED, SOLVED, CHECKED = Explorer(()), Explorer(EXACT_LAWS), ({}, {}), ({}, {}), set()


def single(x):
    y = np.zeros_like(x)
    y[tuple(size // 2 for size in x.shape)] = 1
    return y


SPECIAL = {
    "zeros": np.zeros_like,
    "ones": np.ones_like,
    "single": single,
    "equal rows": lambda x: np.broadcast_to(x[:1], x.shape),
    "denormal": lambda x: x * np.float32(1e-40),
    "huge": lambda x: x * np.float32(1e30),
}
MATRICES = [name for name, numbers in NUMBERS.items() if numbers.ndim == 2]


def special(name):
    """The numbers for a tensor. A matrix of few numbers, or of those that 16 bits hold, has forms of its own, so a
    search of its own: matrices take turns at these."""
    turn = MATRICES.index(name) % 2 if name in MATRICES else None
    left_out = {None: (), 0: ("single", "ones"), 1: ("zeros", "equal rows")}[turn]
    return {what: made for what, made in SPECIAL.items() if what not in left_out}


def bert(**changed):
    """A BERT of one layer, with other numbers in some tensors."""
    numbers = NUMBERS | changed
    return build(SMALL, lambda name, *shape: Data(numbers[name], name))


def program(model, explorer, fusion=True):
    """The cheapest program. Equal signatures have one graph and are matched once, and solved once where no number
    decides what holds them."""
    space = SearchSpace(model, explorer.laws, Round(), RAGGED.extents(patterns(model)), fusion=fusion)
    space.explorer, space.first = explorer, MATCHED[fusion]
    return solve_chain(space, Representable(), 10.0, None, Shares({}), SOLVED[fusion], {}).program({})[0]


def fault(model):
    """How far the program is from the float64 oracle, once every graph that is new has been checked."""
    for part in (part for by_state in parts(model) for part in by_state.values()):
        if part.template.text not in CHECKED:
            assert not check_graph(part.template, EXACT_LAWS)
        CHECKED.add(part.template.text)
    return relative(program(model, FUSED).run(RAGGED), dense(model, RAGGED))


@pytest.mark.deep(every=21)
@pytest.mark.parametrize("name", NUMBERS)
def test_special_numbers_in_a_tensor(name):
    for what, made in special(name).items():
        model = bert(**{name: made(NUMBERS[name])})
        with np.errstate(all="ignore"):
            found = fault(model)
        if what != "huge":
            assert found < 1e-5, what
        else:
            try:
                check_precision(model, [program(model, PLAIN, fusion=False), program(model, FUSED)], RAGGED)
            except InputError as error:
                assert repr(name) in str(error) and "float32" in str(error)
            else:
                assert found < 1e-5, what


def test_a_bias_that_drops_out_of_the_exact_program_is_named_too():
    """Scores lose all that distinguishes them beside 1e30, in either number type; without the bias they do not."""
    model = bert(**{"encoder.layer.0.attention.self.key.bias": np.full(16, 1e30, np.float32)})
    imported, exact = program(model, PLAIN, fusion=False), program(model, FUSED)
    with pytest.raises(InputError, match=r"self\.key\.bias' holds 1e\+30"):
        check_precision(model, [imported, exact], RAGGED)
    check_precision(bert(), [program(bert(), PLAIN, fusion=False), program(bert(), FUSED)], RAGGED)


def test_an_output_of_zeros_is_refused_in_words():
    last = {
        name: np.zeros_like(row) for name, row in NUMBERS.items() if name.startswith("encoder.layer.0.output.LayerNorm")
    }
    model = bert(**last)
    with pytest.raises(InputError, match="output on ordinary text is at most 0, so"):
        check_precision(model, [program(model, FUSED)], RAGGED)


@pytest.mark.parametrize("apart, refused", [(0.0, True), (1e-9, True), (1.0, False)])
def test_largest_of_equal_numbers_are_named_by_rounding(apart, refused):
    """Sums of one row in two orders: rows of tokens are `apart` from one another."""
    rng = np.random.default_rng(0)
    rows = const(rng.normal(size=6)) + given("tokens", CONFIG["vocab_size"]) @ weight(
        apart * rng.normal(size=(CONFIG["vocab_size"], 6))
    )
    scores = product(rows, turn(rows))
    nearest = product(scores, rows, over=topk(3).indices)
    check_ties(product(scores, rows), RAGGED)
    if refused:
        with pytest.raises(InputError, match="names the largest of numbers that are equal but for rounding"):
            check_ties(nearest, RAGGED)
    else:
        check_ties(nearest, RAGGED)


def test_a_fresh_model():
    """As a library initialises it: biases are zeros, gains are ones."""
    rows = {name: row for name, row in NUMBERS.items() if row.ndim == 1}
    fresh = {name: (np.zeros_like if name.endswith("bias") else np.ones_like)(row) for name, row in rows.items()}
    assert fault(bert(**fresh)) < 1e-5


def test_zeros_are_not_added_and_ones_are_no_gain():
    x, W = symbol("x", None, 3), np.arange(9.0).reshape(3, 3)
    assert flat(affine(W, np.zeros(3)), x) is x @ weight(W) and flat(I + const(0.0), x) is x
    assert flat(diag(np.ones(3)), x) is x and flat(I * np.ones(3), x) is x
    assert flat(I + const([0.0, 0.0, 1.0]), x) is not x and flat(diag([1.0, 1.0, 2.0]), x) is not x
    column = symbol("c", None, 1)
    assert flat(I + const(np.zeros(3)), column).out.cols == 3  # what spreads to more columns stays


def test_properties_are_not_read_from_numbers():
    for row in (const(0.0), const(1.0), const(np.zeros(3))):
        assert not (row.linear or row.additive or row.maps_zero_to_zero)


@pytest.mark.parametrize("number", [np.inf, -np.inf, 1e40, 3e38])
def test_a_weight_beyond_float32_is_refused_in_words_of_weights(number):
    """As given, or as two that are multiplied out."""
    numbers = np.full((4, 4), 2.0)
    numbers[2, 1] = number
    for model in (weight(numbers), weight(np.full((9, 4), 2.0)) @ weight(numbers)):
        if number == 3e38 and model.kind is weight:
            continue  # float32 has it
        with pytest.raises(InputError, match=r"^a weight of \d × 4: it has \S+ at \[\d, \d\], .* scale it$"):
            program(model, FUSED)
