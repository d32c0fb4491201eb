"""Rows that go to a few of many matrices: what the kernel means, to the bit alone and in a batch, and what a wrong one
is told by."""

from itertools import product

import numpy as np
import pytest

from formats import FORMATS, Stacked, can_stack, kernels
from formats.host.threads import limit
from formats.kernels.matmul.linear import MAX_ITEM_ROWS
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.routes import noted
from opmatrix.runtime.declarations.meanings import bound, meaning
from opmatrix.runtime.kernels import KERNELS
from opmatrix.runtime.program import Program, Step
from rewrites.verify import VerificationError, verify_steps

STACKABLE = [name for name, form in FORMATS.items() if can_stack(form) and (form.proposed or form.plain or form.filed)]
SIZES = {
    "one row": (1, 8, 2),
    "all experts": (5, 4, 4),
    "one expert": (40, 1, 1),
    "few rows": (7, 20, 4),
    "several tiles": (2 * MAX_ITEM_ROWS + 9, 3, 1),
}
N, F, Q = 72, 100, 33


def stacks(rng, name, E, n=N, f=F, q=Q):
    """up, beside, down."""
    arrays = [rng.standard_normal((E, *shape)).astype(np.float32) / 8 for shape in ((n, f), (n, f), (f, q))]
    return arrays if name == "array" else [Stacked.approximate(FORMATS[name], each) for each in arrays]


def gate(rng, T, E, k):
    """k numbers a row, with both signs."""
    found = rng.standard_normal((T, E)).astype(np.float32)
    found[np.argsort(rng.random((T, E)), 1).argsort(1) >= k] = 0
    return found


def mixed(x, gate, up, beside, down, k, activation="silu", residual=None, bias=None):
    out = np.empty((len(x), down.shape[2]), np.float32)
    return kernels.experts(x, gate, up, down, out, beside, activation, k, residual, bias)


def held(found, x, gate, up, beside, down, k, activation="silu", residual=None, bias=None):
    """Whether it is within the kernel's own bound of its meaning."""
    given = dict(
        x=x,
        gate=gate[:, :, None],
        up=up,
        down=down,
        beside=beside,
        residual=residual,
        most=k,
        activation=activation,
        bias=None if bias is None else bias.reshape(-1),
        beside_bias=None,
        beside_activation="",
    )
    exact = meaning(KERNELS["experts"], given, None)
    return abs(found - exact) <= bound(KERNELS["experts"], given)


@pytest.mark.deep(every=17)
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("name", ["array", *STACKABLE])
def test_it_is_what_it_means(rng, name, sizes):
    T, E, k = SIZES[sizes]
    (up, beside, down), x, residual = (
        stacks(rng, name, E),
        rng.standard_normal((T, N), np.float32),
        rng.standard_normal((T, Q), np.float32),
    )
    routed = gate(rng, T, E, k)
    assert held(mixed(x, routed, up, beside, down, k), x, routed, up, beside, down, k).all()
    plain = mixed(x, routed, up, None, down, k, "", residual)
    assert held(plain, x, routed, up, None, down, k, "", residual).all()
    bias = rng.standard_normal((E, F), np.float32)
    for factor in (None, beside):
        biased = mixed(x, routed, up, factor, down, k, "gelu_tanh", residual, bias)
        assert held(biased, x, routed, up, factor, down, k, "gelu_tanh", residual, bias).all()


def test_its_bound_sees_the_bias_of_another_expert(rng):
    (up, _, down), x, routed = stacks(rng, "array", 4), rng.standard_normal((9, N), np.float32), gate(rng, 9, 4, 2)
    bias = rng.standard_normal((4, F), np.float32)
    wrong = mixed(x, routed, up, None, down, 2, "gelu", bias=np.roll(bias, 1, 0))
    assert not held(wrong, x, routed, up, None, down, 2, "gelu", bias=bias).any(1).all()


@pytest.mark.parametrize("name", ["packed", "int8"])
def test_its_bound_sees_a_lost_input(rng, name):
    """Of the second product, which reads what the first gave."""
    (up, beside, down), x, routed = stacks(rng, name, 4), rng.standard_normal((9, N), np.float32), gate(rng, 9, 4, 2)
    lost = down.unpack()
    lost[:, F // 2] = 0
    wrong = mixed(x, routed, up, beside, Stacked.approximate(down.form, lost), 2)
    assert not held(wrong, x, routed, up, beside, down, 2).all()


@pytest.mark.deep(every=3)
@pytest.mark.parametrize("name", ["array", *STACKABLE])
def test_the_same_bits_alone_in_a_batch_and_on_other_threads(rng, name):
    T, E, k = 300, 8, 2
    (up, beside, down), x, routed = stacks(rng, name, E), rng.standard_normal((T, N), np.float32), gate(rng, T, E, k)
    bias = rng.standard_normal((E, F), np.float32)
    routed[3:290, :2] = 1, 0.5  # one asked by nearly all, so that its tiles are full
    routed[3:290, 2:] = 0
    some = rng.permutation(T)[:50]
    for given in (dict(beside=beside), dict(beside=None, bias=bias, activation="gelu_tanh")):

        def mix(at, given=given):
            return mixed(x[at], routed[at], up, down=down, k=k, **given)

        with limit(1):
            whole = mix(slice(None))
        with limit(2):
            np.testing.assert_array_equal(mix(slice(None)), whole)
        np.testing.assert_array_equal(mix(some), whole[some])
        np.testing.assert_array_equal(np.stack([mix([at])[0] for at in some[:20]]), whole[some[:20]])


MIXED = {"array", *STACKABLE[:4], *(name for name in STACKABLE if FORMATS[name].portion != 16)}


@pytest.mark.deep(every=38)  # of which each format is one and the other
@pytest.mark.parametrize("width", [32, 100])
@pytest.mark.parametrize("raised, factor", [pair for pair in product(sorted(MIXED), repeat=2) if pair[0] != pair[1]])
def test_matrices_of_two_formats_are_cut_at_the_same_columns(rng, raised, factor, width):
    """The number of outputs that a thread takes at a time is each format's own."""
    (up, _, down), (_, beside, _) = (stacks(rng, name, 8, f=width) for name in (raised, factor))
    x, routed = rng.standard_normal((37, N), np.float32), gate(rng, 37, 8, 2)
    with limit(1):
        alone = mixed(x, routed, up, beside, down, 2)
    assert held(alone, x, routed, up, beside, down, 2).all()
    for workers in (2, 3, 5):
        with limit(workers):
            assert np.array_equal(mixed(x, routed, up, beside, down, 2), alone)


def test_rows_at_every_border_of_tiles(rng):
    """All go to one expert, and as whole numbers nothing is rounded."""
    up, down = (rng.integers(-3, 4, (3, 16, 16)).astype(np.float32) for _ in range(2))
    for T in (1, 2, 5, 6, 7, MAX_ITEM_ROWS - 1, MAX_ITEM_ROWS, MAX_ITEM_ROWS + 1, 2 * MAX_ITEM_ROWS + 1):
        x, routed = rng.integers(-3, 4, (T, 16)).astype(np.float32), np.zeros((T, 3), np.float32)
        routed[:, 1], routed[T // 2, 1], routed[T // 2, 2] = 2, 0, 1
        wanted = 2 * (np.maximum(x @ up[1], 0) @ down[1])
        wanted[T // 2] = np.maximum(x[T // 2] @ up[2], 0) @ down[2]
        np.testing.assert_array_equal(mixed(x, routed, up, None, down, 1, "relu"), wanted)


def test_experts_that_no_row_names_are_not_read(rng):
    """Nor added, as 0 times what is no number would be none."""
    up, beside, down = stacks(rng, "array", 5)
    x, routed = rng.standard_normal((6, N), np.float32), gate(rng, 6, 5, 2)
    routed[:, 3], routed[0] = 0, 0
    whole = mixed(x, routed, up, beside, down, 2)
    for each in (up, beside, down):
        each[3] = np.nan
    np.testing.assert_array_equal(mixed(x, routed, up, beside, down, 2), whole)
    assert (whole[0] == 0).all() and np.isfinite(whole).all()


def test_a_row_that_names_more_than_is_promised_is_no_number(rng):
    (up, beside, down), x = stacks(rng, "array", 4), rng.standard_normal((3, N), np.float32)
    routed = gate(rng, 3, 4, 2)
    routed[1] = 1
    found = mixed(x, routed, up, beside, down, 2)
    assert np.isnan(found[1]).all() and np.isfinite(found[[0, 2]]).all()


@pytest.mark.parametrize(
    "change, said",
    [
        (dict(gate=np.zeros((3, 5), np.float32)), r"up: expected matrices \(5, 72, 100\), got \(4, 72, 100\)"),
        (dict(down=np.zeros((4, 99, 33), np.float32)), r"up: expected matrices \(4, 72, 99\)"),
        (dict(bias=np.zeros((3, 100), np.float32)), r"bias: expected float32 of shape \(4, 100\), got .* \(3, 100\)"),
        (dict(k=0), "most: each row is routed to at least one matrix, got 0"),
        (dict(up=np.zeros((4, 72, 100))), "up: expected contiguous float32 of three axes, .* got float64"),
    ],
)
def test_what_does_not_fit_is_refused(rng, change, said):
    up, beside, down = stacks(rng, "array", 4)
    given = dict(x=np.zeros((3, N), np.float32), gate=np.zeros((3, 4), np.float32), up=up, beside=beside, down=down)
    with pytest.raises(ValueError, match=said):
        mixed(**given | dict(k=2) | change)


def test_formats_of_several_kernels_are_refused(rng):
    """As low rank, whose product is two."""

    class Two:
        shape = 2, 20, 30

        def arrays(self):
            return {}

        def __getitem__(self, e):
            return FORMATS["lowrank"].approximate(np.ones((20, 30), np.float32), rank=2)

    with pytest.raises(ValueError, match="up: a product of its format takes several kernels"):
        mixed(
            np.zeros((3, 20), np.float32),
            np.zeros((3, 2), np.float32),
            Two(),
            None,
            np.zeros((2, 30, 9), np.float32),
            1,
        )


# ---- steps of programs


def layer(rng, name="packed", E=6, k=2):
    """Embeddings, a router, its gate, experts."""
    up, beside, down = stacks(rng, name, E, 40, 48, 40)
    constants = {
        "table": FORMATS["dense"].pack(rng.standard_normal((60, 40), np.float32)),
        "up": up,
        "down": down,
        "beside": beside,
        "router": FORMATS["packed"].pack(rng.standard_normal((40, E), np.float32)),
    }
    steps = [
        Step("embed", {"table0": "table"}, {"fields": "tokens"}, "x"),
        Step("linear", {"x": "x", "weight": "router"}, {}, "s"),
        Step("gate", {"x": "s"}, {"k": k, "shares": 1, "unit": 1}, "g"),
        Step("heads", {"x": "g"}, {"heads": E}, "h"),
        Step(
            "experts",
            {"x": "x", "gate": "h", "up": "up", "down": "down", "beside": "beside", "residual": "x"},
            {"most": k, "activation": "silu"},
            "y",
        ),
    ]
    return Program(steps, constants, "y")


SENTENCES = Batch([range(1, 30), [6, 7], [8, 9, 10, 11, 12, 13, 14, 15, 16]])


@pytest.mark.parametrize("name", ["packed", "bf16", "int8"])
def test_steps_run_as_recorded(rng, name):
    program = layer(rng, name)
    assert verify_steps(program, [SENTENCES])["count"] == 5
    assert program.schedule.recordings == 1
    [*_, (found, _)] = program.schedule.trace(SENTENCES)
    np.testing.assert_array_equal(program.run(SENTENCES), found)


def lost_tile(right, x, gate, *given, **options):
    """The last tile of the last expert that rows name is not there."""
    less, last = gate.copy(), np.flatnonzero(gate.any(0))[-1]
    rows = np.flatnonzero(gate[:, last])
    less[rows[len(rows) // MAX_ITEM_ROWS * MAX_ITEM_ROWS :], last] = 0
    return right(x, less, *given, **options)


def wrong_factor(right, x, gate, *given, **options):
    """Shares of the gate are taken 0.1 % too large."""
    return right(x, gate * np.float32(1.001), *given, **options)


def next_expert(right, x, gate, *given, **options):
    """One row goes to the expert beside."""
    other = gate.copy()
    other[0] = np.roll(gate[0], 1)
    return right(x, other, *given, **options)


@pytest.mark.parametrize("fault", [lost_tile, wrong_factor, next_expert])
@pytest.mark.parametrize("name", ["packed", "int8"])
def test_the_check_of_steps_sees_a_wrong_kernel(monkeypatch, rng, name, fault):
    program, right = layer(rng, name), kernels.experts
    monkeypatch.setattr(kernels, "experts", lambda *given, **options: fault(right, *given, **options))
    with pytest.raises(VerificationError, match=r"= experts\(.*differs from the reference of its kernel"):
        verify_steps(program, [SENTENCES])


# ---- gates


@pytest.mark.parametrize("T, h, n, k", [(1, 1, 8, 2), (7, 1, 64, 8), (5, 8, 8, 1), (9, 2, 37, 37), (3, 1, 1, 1)])
def test_gates_are_what_they_mean(rng, T, h, n, k):
    x = rng.integers(-4, 5, (T, h, n)).astype(np.float32)  # with ties
    for shares, unit, by in ((1, 1, None), (0, 0, None), (1, 0, rng.integers(-4, 5, (T, h, n)).astype(np.float32))):
        out = kernels.gate_rows(x, np.empty_like(x), by, k, bool(shares), bool(unit))
        given = dict(x=x, by=by, k=k, shares=shares, unit=unit)
        exact = meaning(KERNELS["gate"], given, None)
        assert (abs(out - exact) <= bound(KERNELS["gate"], given)).all()
        assert np.count_nonzero(exact, -1).max() <= k


def test_a_gate_of_what_is_no_number_is_none_and_infinite_scores_are_ordered(rng):
    x = np.full((2, 1, 20), -np.inf, np.float32)
    x[0, 0, 3], x[1, 0, 5] = np.nan, np.inf
    out = kernels.gate_rows(x, np.empty_like(x), None, 3)
    assert np.isnan(out[0]).all() and [*np.flatnonzero(out[1, 0])] == [0, 1, 5]


def test_a_score_that_is_absent_has_no_share(rng):
    """Minus infinity, as masks give it: 0, and the bound of the others is a number."""
    x = rng.normal(size=(4, 2, 9)).astype(np.float32)
    x[:, :, ::2] = -np.inf
    out = kernels.gate_rows(x, np.empty_like(x), None, 0, True)
    given = dict(x=x, by=None, k=0, shares=1, unit=0)
    exact, allowed = meaning(KERNELS["gate"], given, None), bound(KERNELS["gate"], given)
    assert not out[:, :, ::2].any() and (abs(out - exact) <= allowed).all() and allowed.max() < 1e-5


def test_a_run_notes_whom_rows_go_to(rng):
    """As the steps of a recording do not, a run that is noted is its steps, to the bit."""
    program = layer(rng)
    found, [route] = noted(lambda: program.run(SENTENCES))
    np.testing.assert_array_equal(found, program.run(SENTENCES))
    [_, _, (gated, _), *_] = [each for each in program.schedule.trace(SENTENCES)]
    np.testing.assert_array_equal(route.taken[0], gated != 0)
