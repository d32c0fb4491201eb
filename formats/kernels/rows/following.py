"""Stages that follow a product while its rows are in cache: bias, activation, residual, norm, gain and shift."""

import numpy as np

from formats.core.epilogue import NOTHING, TINY, Epilogue
from formats.core.stage import STAGES
from formats.kernels.engine.compiled import FAST, HELPER, Function, calling
from formats.kernels.engine.launch import address, make_record, step, words
from formats.kernels.engine.memory import floats, record
from formats.kernels.engine.native import njit
from formats.kernels.rows.activations import PASSES, ROUGH
from formats.kernels.simd.arithmetic import get, keep
from formats.kernels.simd.maths import ONE

# addresses (0: absent) of the two functions below, of the output, of the activation, and of the operands; beside,
# across: row steps of times and residual; normal: 1 subtracts the mean, 2 does not, 0 is no normalisation
EPILOGUE = np.dtype(
    [
        *words("on_block on_rows out step p bias activation times beside residual across normal gain shift"),
        ("eps", "f8"),
    ]
)
FLOAT32_MAX = np.finfo(np.float32).max
DOWNSCALE = 2.0**-100  # brings the largest float32 near 1
apply, apply_rows, activate = calling(8), calling(3), calling(4)
TOGETHER = 4096  # numbers of rows that stay in L1 from one stage to the next


@njit(forceinline=True, fastmath=FAST, **HELPER)
def try_normalise(y, centred, eps, unit):
    """Normalise rows times unit: subtract the mean if `centred`, divide by the root of the mean square (Ba et al. 2016,
    eq. 4). True if the squares are finite; if not, y is unchanged."""
    total = np.float32(0)
    if centred:
        for j in range(y.size):
            total += y[j] * unit
    mean = total / np.float32(y.size)
    square = np.float32(0)
    for j in range(y.size):
        apart = y[j] * unit - mean
        square += apart * apart
    if unit == ONE and not square <= FLOAT32_MAX:
        return False
    scale = ONE / np.sqrt(square / np.float32(y.size) + eps)
    for j in range(y.size):
        y[j] = (y[j] * unit - mean) * scale
    return True


@njit(**HELPER)
def normalise_far(y, centred, eps):
    """Run `normalise` for rows whose squares or sums overflow float32; equal numbers still become zeros."""
    try_normalise(y, centred, np.float32(max(eps * DOWNSCALE * DOWNSCALE, TINY)), np.float32(DOWNSCALE))


@njit(**HELPER)
def normalise(y, centred, eps):
    """Normalise a row, whatever its magnitude; in a row with NaN or infinite numbers these propagate as the operations
    define it."""
    if not try_normalise(y, centred, np.float32(eps), ONE):
        normalise_far(y, centred, eps)


@njit(forceinline=True, **HELPER)
def parted(y, to, lanes, factor, term, other):
    """Store y factor + term + other for the vector at an address; an operand at address 0 is left out."""
    v = get(y, lanes)
    if factor:
        v = v * get(factor, lanes)
    if term:
        v = v + get(term, lanes)
    if other:
        v = v + get(other, lanes)
    keep(v, to, lanes)


@njit(forceinline=True, **HELPER)
def combine(y, to, count, factor, term, other):
    """Run `parted` for count numbers; no number is stored if they stay as they are."""
    if y == to and not (factor or term or other):
        return
    full = 4 * (count // 16 * 16)
    for at in range(0, full, 64):
        parted(
            y + at, to + at, None, factor + at if factor else 0, term + at if term else 0, other + at if other else 0
        )
    if full < 4 * count:
        parted(
            y + full,
            to + full,
            count - full // 4,
            factor + full if factor else 0,
            term + full if term else 0,
            other + full if other else 0,
        )


@njit(forceinline=True, **HELPER)
def rest_part(e, y, to, row, start, count, bias):
    """Apply the stages after an activation to `count` columns of one row, from start on, at y: a bias (address 0 if it
    was added before), a factor and a residual; the result is stored at `to`."""
    times, residual = e.times, e.residual
    if times:
        times += 4 * (row * e.beside + start)
    if residual:
        residual += 4 * (row * e.across + start)
    combine(y, to, count, times, bias or residual, residual if bias else 0)


@njit(forceinline=True, **HELPER)
def affine_part(e, y, start, count):
    """Apply gain and shift to `count` columns of one row, from start on, at y."""
    gain, shift = e.gain, e.shift
    combine(y, y, count, gain + 4 * start if gain else 0, shift + 4 * start if shift else 0, 0)


@Function.of(8)
def on_block(after, low, high, left, right, block, along, biased):
    """Apply the epilogue to rows low..high and columns left..right, which are stored at block, except normalisation and
    the stages after it; the result is stored in the output. biased: 1 if the bias was added already."""
    e = record(after, EPILOGUE)
    count, bias = right - left, 0 if biased or not e.bias else e.bias + 4 * left
    early = e.activation or e.times  # the bias comes before these
    most = max(1, TOGETHER // count)
    for start in range(low, high, most):
        end, first = min(start + most, high), block + (start - low) * along
        if early and bias:
            for i in range(end - start):
                combine(first + i * along, first + i * along, count, 0, bias, 0)
        if e.activation:
            activate(e.activation, first, count, end - start, along)
        for row in range(start, end):
            to = e.out + 4 * (row * e.step + left)
            rest_part(e, first + (row - start) * along, to, row, left, count, 0 if early else bias)
            if not e.normal:
                affine_part(e, to, left, count)


@Function.of(3)
def on_rows(after, low, high):
    """Apply normalisation, and then gain and shift, to rows low..high."""
    e = record(after, EPILOGUE)
    for row in range(low, high):
        y = e.out + 4 * row * e.step
        normalise(floats(y, e.p), e.normal == 1, e.eps)
        affine_part(e, y, 0, e.p)


@njit(**HELPER)
def pointwise_sums(after):
    """True if the record at an address, or 0, asks for no stage on single columns except the addition of a bias and a
    residual."""
    if not after:
        return True
    e = record(after, EPILOGUE)
    return not (e.activation or e.times or ((e.gain or e.shift) and not e.normal))


@njit(**HELPER)
def sums_at(after, row, column, nothing, simple):
    """Return (bias, residual, bytes between its rows) of the record at an address, from a row and a column on. An
    operand that is absent, or that on_block adds later, is at `nothing`, a line that adds zero."""
    if not after:
        return nothing, nothing, 0
    e = record(after, EPILOGUE)
    bias = e.bias + 4 * column if e.bias else nothing
    if not (simple and e.residual):
        return bias, nothing, 0
    return bias, e.residual + 4 * (row * e.across + column), 4 * e.across


@njit(**HELPER)
def finish_sums(after, low, high, left, right, biased):
    """Run `finish_block`; biased: 1 if the bias was added already."""
    if after:
        e = record(after, EPILOGUE)
        apply(e.on_block, after, low, high, left, right, e.out + 4 * (low * e.step + left), 4 * e.step, biased)


@njit(**HELPER)
def finish_block(after, low, high, left, right):
    """Run `on_block` of the record at an address on the output in place; no effect for 0."""
    finish_sums(after, low, high, left, right, 0)


@njit(**HELPER)
def move_block(after, low, high, left, right, block, along, out, step):
    """Run `finish_block` on a block stored elsewhere, with `along` bytes between its rows. Without a record the block
    is copied to out, with `step` bytes between rows."""
    if after:
        apply(record(after, EPILOGUE).on_block, after, low, high, left, right, block, along, 0)
    else:
        for i in range(high - low):
            combine(block + i * along, out + i * step, right - left, 0, 0, 0)


@njit(**HELPER)
def finish_rows(after, low, high):
    """Run `on_rows` of the record at an address; no effect for 0, or if there is no normalisation."""
    if after and record(after, EPILOGUE).normal:
        apply_rows(record(after, EPILOGUE).on_rows, after, low, high)


def epilogue_record(epilogue: Epilogue | None, out: np.ndarray, rough: bool = False) -> np.ndarray | None:
    """Return the EPILOGUE record of an epilogue that fits out (T, p) and does not overlap it; None if there is no
    stage. rough: the product is no more exact than ROUGH_ERROR, so activations need not be."""
    if epilogue is None or epilogue is NOTHING:
        return None
    epilogue.check(*out.shape, "out", out)
    words = {
        "on_block": on_block.address,
        "on_rows": on_rows.address,
        "out": address(out),
        "step": step(out),
        "p": out.shape[1],
        **encode(epilogue, ROUGH if rough else PASSES),
    }
    return make_record([tuple(words[name] for name in EPILOGUE.names)], EPILOGUE)


def encode(e: Epilogue, activations: dict[str, Function]) -> dict[str, int | float]:
    """Return the words of the operands of stages."""
    beside, across = (0 if rows is None else step(rows) for rows in (e.times, e.residual))
    return {
        **{name: address(getattr(e, name)) for name in ("bias", "times", "residual", "gain", "shift")},
        "activation": activations[e.activation].address if e.activation else 0,
        "beside": beside,
        "across": across,
        "eps": e.eps or 0.0,
        "normal": 0 if e.eps is None else 1 if e.norm == "layer" else 2,
    }


for stage in STAGES:
    if not stage.operands.keys() & {*EPILOGUE.names}:
        raise TypeError(f"stage {stage.__name__}: formats/kernels/rows/following.py has no {', '.join(stage.operands)}")
