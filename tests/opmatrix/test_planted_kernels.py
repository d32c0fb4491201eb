"""Wrong kernels of narrow numbers, planted: the format's own check sees each, and so does the check of a program's
steps."""

from types import SimpleNamespace

import numpy as np
import pytest
from test_formats_properties import few_inputs

from formats import FORMATS, kernels
from formats.core.epilogue import NOTHING
from formats.storage.check import check_product
from opmatrix.algebra.batch.batch import Batch
from opmatrix.runtime.declarations.meanings import bound, meaning
from opmatrix.runtime.kernels import KERNELS
from opmatrix.runtime.program import Program, Step
from rewrites.verify import VerificationError, verify_steps

ROUNDING = {name: F for name, F in FORMATS.items() if F.rounds}
SENTENCES = Batch([[1, 2, 3, 4, 5], [6, 7], [8, 9, 10, 11, 12, 13, 14, 15, 16]])


# ---- faults: what a right kernel does, on other operands, or with its result changed


def lost_input(right, x, *given, **options):
    """The input with the median size of those of the first row counts as 0."""
    less = x.copy()
    less[:, np.argsort(abs(x[0]))[x.shape[1] // 2]] = 0
    right(less, *given, **options)


def factor(right, x, *given, **options):
    """Products 1 % too large."""
    *arrays, out, epilogue = given
    right(x, *arrays, out, NOTHING, **options)
    out[...] = epilogue.reference(out * np.float32(1.01))


def lost_row(right, x, *given, **options):
    """The last row is computed from zeros."""
    less = x.copy()
    less[-1] = 0
    right(less, *given, **options)


def wrong_scale(right, x, *given, **options):
    """The scale of the output with the largest, 1 % too large; where there are no scales, one output."""
    *arrays, last, out, epilogue = given
    if last.dtype == np.float32:
        other = last.copy()
        other[..., np.argmax(last) % last.shape[-1]] *= np.float32(1.01)
        right(x, *arrays, other, out, epilogue, **options)
    else:
        right(x, *arrays, last, out, NOTHING, **options)
        out[:, 3] *= np.float32(1.01)
        out[...] = epilogue.reference(out)


def shifted_group(right, x, *given, **options):
    """Scales of the group before, or of the output before where there is one group; where there are no scales, inputs
    of the one before."""
    *arrays, last, out, epilogue = given
    if last.dtype != np.float32:
        right(np.roll(x, 1, 1), *arrays, last, out, epilogue, **options)
    else:
        right(x, *arrays, np.roll(last, 1, 0 if last.ndim == 2 and len(last) > 1 else -1), out, epilogue, **options)


def zeros(right, x, *given, **options):
    """No product at all."""
    *_, out, epilogue = given
    out[...] = epilogue.reference(np.zeros_like(out))


FAULTS = lost_input, factor, lost_row, wrong_scale, shifted_group


def plant(monkeypatch, F, fault):
    right = F.declared.kernel
    monkeypatch.setattr(F.declared, "kernel", lambda *given, **options: fault(right, *given, **options))


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", ROUNDING)
def test_the_check_of_a_format_sees_it(monkeypatch, name, fault):
    plant(monkeypatch, ROUNDING[name], fault)
    with pytest.raises(AssertionError, match=f"^{name} "):
        ROUNDING[name].check(np.random.default_rng(0))


def mlp(F, options, rng):
    """Embeddings, a product with gelu, one with a residual and a norm."""
    table = FORMATS["dense"].pack(rng.standard_normal((17, 200), np.float32))
    up, down = (
        F.approximate(rng.standard_normal(shape, np.float32) / 14, **options) for shape in ((200, 132), (132, 200))
    )
    bias, gain = rng.standard_normal(132).astype(np.float32), 1 + rng.standard_normal(200).astype(np.float32) / 5
    steps = [
        Step("embed", {"table0": "E"}, {"fields": "tokens"}, "x"),
        Step("linear", {"x": "x", "weight": "U", "bias": "b"}, {"activation": "gelu"}, "y"),
        Step("linear", {"x": "y", "weight": "D", "residual": "x", "gain": "g"}, {"eps": 1e-5}, "z"),
    ]
    return Program(steps, {"E": table, "U": up, "D": down, "b": bias, "g": gain}, "z")


@pytest.mark.deep(every=5)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize(
    "name, options", [(name, options) for name, F in ROUNDING.items() for options in F.choices(200, 132)]
)
def test_the_check_of_steps_sees_it(monkeypatch, rng, name, options, fault):
    program = mlp(ROUNDING[name], options, rng)
    assert verify_steps(program, [SENTENCES])["count"] == 3
    plant(monkeypatch, ROUNDING[name], fault)
    with pytest.raises(VerificationError, match=r"= linear\(.*differs from the reference of its kernel"):
        verify_steps(program, [SENTENCES])


@pytest.mark.deep(every=7)
@pytest.mark.parametrize("name", ROUNDING)
def test_no_input_of_a_deep_product_may_be_lost(rng, name):
    """Each of 1,536 that the weight keeps in turn, by what a step's check allows."""
    F = ROUNDING[name]
    packed, x = F.approximate(rng.standard_normal((1536, 24), np.float32)), rng.standard_normal((9, 1536), np.float32)
    allowed, W = packed.bound(x), packed.unpack().astype(np.float64)
    seen = [(abs(packed.reads(x)[:, [i]] * W[i]) > 2 * allowed).any() for i in range(1536) if W[i].any()]
    assert sum(seen) >= 0.975 * len(seen) > 300


@pytest.mark.deep(every=7)
@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("name", FORMATS)
def test_zeros_in_place_of_a_very_deep_product_are_seen(monkeypatch, name, rows):
    """Of 65,600 inputs, whose sums may round the most: where few of them are not 0, little is allowed."""
    F, rng = FORMATS[name], np.random.default_rng(1)
    W, x = rng.standard_normal((65600, 8), np.float32), few_inputs(rng, rows, 65600)
    W[x.any(0)] *= 4  # so that what is sparse keeps them
    packed = F.approximate(W)
    check_product(packed, x, np.random.default_rng(0))
    plant(monkeypatch, F, zeros)
    with pytest.raises(AssertionError, match="rounding allows"):
        check_product(packed, x, np.random.default_rng(0))


# ---- attention in bfloat16


def attended(q, k, v, lengths, scale=1.0, tile=256, call=kernels.attention_halves):
    starts = np.concatenate([[0], np.cumsum(lengths)])
    return call(q, k, v, starts, np.empty((len(q), q.shape[1], v.shape[2]), np.float32), scale, tile=tile)


def lost_key(call, q, k, v, starts, out, *rest):
    """The second token of the first sentence is seen by itself alone."""
    call(q, k, v, starts, out, *rest)
    others = np.arange(len(q)) != 1
    less = np.empty((len(q) - 1, *out.shape[1:]), out.dtype)
    call(*(part[others] for part in (q, k, v)), np.concatenate([starts[:1], starts[1:] - 1]), less, *rest)
    out[others] = less


ATTENDING = {
    "a lost key": lost_key,
    "a lost feature": lambda call, q, k, v, *rest: call(q * (np.arange(q.shape[2]) > 0), k, v, *rest),
    "a lost value": lambda call, q, k, v, *rest: call(q, k, v * (np.arange(len(v)) != 1)[:, None, None], *rest),
    "a factor": lambda call, q, k, v, *rest: call(q, k, v * np.float32(1.01), *rest),
    "a wrong scale": lambda call, q, k, v, starts, out, scale, *rest: call(q, k, v, starts, out, scale * 1.05, *rest),
    "a shifted head": lambda call, q, k, v, *rest: call(q, k, np.roll(v, 1, 1), *rest),
    "a lost row": lambda call, q, k, v, *rest: call(q * (np.arange(len(q)) < len(q) - 1)[:, None, None], k, v, *rest),
}


def test_equal_scores_give_the_mean_of_the_values_to_the_bit(rng):
    lengths = [1, 2, 4, 64, 128, 512]
    q, k, v = (rng.integers(-9, 9, (sum(lengths), 3, 32)).astype(np.float32) for _ in range(3))
    ends = np.cumsum(lengths)
    means = np.concatenate(
        [
            np.broadcast_to(v[end - n : end].mean(0, dtype=np.float64), (n, 3, 32))
            for n, end in zip(lengths, ends, strict=True)
        ]
    )
    for tile in (32, 256):
        np.testing.assert_array_equal(attended(0 * q, k, v, lengths, tile=tile), means)


def test_a_key_far_above_the_others_gives_its_value_to_the_bit(rng):
    """Rows of ±1 that differ from each other: a query is one of them, times 2^8, and scores fall by 2^9 or more to the
    next."""
    lengths = [1, 3, 70, 200, 300]
    for n in lengths:
        signs = 1 - 2 * ((np.arange(n)[:, None] >> np.arange(16)) & 1)
        k = np.stack([signs, -signs], 1).astype(np.float32)
        order, v = rng.permutation(n), rng.integers(-99, 99, (n, 2, 24)).astype(np.float32)
        np.testing.assert_array_equal(attended(256 * k[order], k, v, [n], tile=64), v[order])


@pytest.mark.parametrize("fault", ATTENDING)
def test_the_check_of_steps_sees_wrong_attention(monkeypatch, rng, fault):
    names = ("Q", 24), ("K", 24), ("V", 40)
    constants = {name: FORMATS["dense"].pack(rng.standard_normal((17, p), np.float32)) for name, p in names}
    steps = [
        step
        for name, _ in names
        for step in (
            Step("embed", {"table0": name}, {"fields": "tokens"}, name.lower()),
            Step("heads", {"x": name.lower()}, {"heads": 2}, f"{name}h"),
        )
    ]
    steps += [
        Step("attention", {"q": "Qh", "k": "Kh", "v": "Vh"}, {"scale": 0.3, "number_type": "bf16"}, "a"),
        Step("join", {"x": "a"}, {}, "z"),
    ]
    program = Program(steps, constants, "z")
    assert verify_steps(program, [SENTENCES])["count"] == 8
    right = kernels.attention_halves
    wrong = lambda *given, bias: ATTENDING[fault](right, *given)
    monkeypatch.setattr(kernels, "attention_halves", wrong)
    with pytest.raises(VerificationError, match=r"= attention\(.*differs from the reference of its kernel"):
        verify_steps(program, [SENTENCES])


def test_a_run_that_is_not_what_its_steps_give_is_found(monkeypatch, rng):
    program = mlp(ROUNDING["bf16"], {}, rng)
    right = type(program.schedule).run
    monkeypatch.setattr(
        type(program.schedule), "run", lambda self, batch: tuple(np.roll(each, 1, 0) for each in right(self, batch))
    )
    with pytest.raises(VerificationError, match="its run differs from its steps"):
        verify_steps(program, [SENTENCES])


def test_what_attention_reads_is_within_a_unit_of_bfloat16(rng):
    """The meaning of its operands, told apart from the kernel: q, k, v are rounded to 8 bits, not left as they are."""
    q, k, v = (rng.standard_normal((16, 2, 32), np.float32) for _ in range(3))
    call = SimpleNamespace(
        q=q,
        k=k,
        v=v,
        scale=0.25,
        cap=0.0,
        number_type="bf16",
        where="sequence",
        tile=256,
        bias=None,
        margin=None,
        batch=Batch([range(16)]),
    )
    declared = KERNELS["attention"]
    found, exact = attended(q, k, v, [16], 0.25), meaning(declared, vars(call), call.batch)
    plain = meaning(declared, vars(call), call.batch, rounded=False)
    assert (abs(found - exact) <= bound(KERNELS["attention"], vars(call))).all()
    assert np.linalg.norm(found - exact) < np.linalg.norm(found - plain)
