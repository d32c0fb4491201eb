"""What may follow a product while its rows are in cache: bias, activation, residual, normalisation, gain and shift."""

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

# addresses (0: absent) of the two functions below, of the output, of a function of a row, and of the parts; beside,
# across: the steps of times and residual; normal: 1 after the mean, 2 without it
EPILOGUE = np.dtype([
    *words("on_block on_rows out step p bias activation times beside residual across normal gain shift"),
                     ("eps", "f8")])
FLOAT32_MAX = np.finfo(np.float32).max
DOWNSCALE = 2.0 ** -100                                      # brings numbers up to the largest near 1
apply, apply_rows, activate = calling(8), calling(3), calling(4)
TOGETHER = 4096                                 # numbers of rows that lie in the first cache from one stage to the next


@njit(forceinline=True, fastmath=FAST, **HELPER)
def try_normalise(y, centred, eps, unit):
    """Rows times unit: subtract the mean if asked to, divide by the root of the mean square (Ba et al. 2016, eq. 4).
    Whether the squares are finite; if not, y is as it was."""
    total = np.float32(0)
    if centred:
        for j in range(y.size): total += y[j] * unit
    mean = total / np.float32(y.size)
    square = np.float32(0)
    for j in range(y.size):
        apart = y[j] * unit - mean
        square += apart * apart
    if unit == ONE and not square <= FLOAT32_MAX: return False
    scale = ONE / np.sqrt(square / np.float32(y.size) + eps)
    for j in range(y.size): y[j] = (y[j] * unit - mean) * scale
    return True


@njit(**HELPER)
def normalise_far(y, centred, eps):
    """normalise where squares or sums are no float32; equal numbers still become zeros."""
    try_normalise(y, centred, np.float32(max(eps * DOWNSCALE * DOWNSCALE, TINY)), np.float32(DOWNSCALE))


@njit(**HELPER)
def normalise(y, centred, eps):
    """Normalise a row, whatever its size; one with what is no number, or infinite, becomes what these operations make
    of it."""
    if not try_normalise(y, centred, np.float32(eps), ONE): normalise_far(y, centred, eps)


@njit(forceinline=True, **HELPER)
def parted(y, to, lanes, factor, term, other):
    """y factor + term + other for the vector at an address, each unless its address is 0, to another."""
    v = get(y, lanes)
    if factor: v = v * get(factor, lanes)
    if term: v = v + get(term, lanes)
    if other: v = v + get(other, lanes)
    keep(v, to, lanes)


@njit(forceinline=True, **HELPER)
def combine(y, to, count, factor, term, other):
    """parted for count numbers; nothing is done where they stay as they are."""
    if y == to and not (factor or term or other): return
    full = 4 * (count // 16 * 16)
    for at in range(0, full, 64):
        parted(y + at, to + at, None, factor + at if factor else 0, term + at if term else 0,
               other + at if other else 0)
    if full < 4 * count:
        parted(y + full, to + full, count - full // 4, factor + full if factor else 0, term + full if term else 0,
               other + full if other else 0)


@njit(forceinline=True, **HELPER)
def rest_part(e, y, to, row, start, count, bias):
    """What follows an activation on the columns from start on of one row, so many at y: a bias (0 where it was before),
    a factor and a residual; the result goes elsewhere."""
    times, residual = e.times, e.residual
    if times: times += 4 * (row * e.beside + start)
    if residual: residual += 4 * (row * e.across + start)
    combine(y, to, count, times, bias or residual, residual if bias else 0)


@njit(forceinline=True, **HELPER)
def affine_part(e, y, start, count):
    """Gain and shift on the columns from start on of one row, so many at y."""
    gain, shift = e.gain, e.shift
    combine(y, y, count, gain + 4 * start if gain else 0, shift + 4 * start if shift else 0, 0)


@Function.of(8)
def on_block(after, low, high, left, right, block, along, biased):
    """The epilogue on rows low..high and columns left..right, which lie at block, but for what needs whole rows and
    what follows that; the result goes to the output. biased: the bias was added already."""
    e = record(after, EPILOGUE)
    count, bias = right - left, 0 if biased or not e.bias else e.bias + 4 * left
    early = e.activation or e.times                         # the bias comes before these
    most = max(1, TOGETHER // count)
    for start in range(low, high, most):
        end, first = min(start + most, high), block + (start - low) * along
        if early and bias:
            for i in range(end - start): combine(first + i * along, first + i * along, count, 0, bias, 0)
        if e.activation: activate(e.activation, first, count, end - start, along)
        for row in range(start, end):
            to = e.out + 4 * (row * e.step + left)
            rest_part(e, first + (row - start) * along, to, row, left, count, 0 if early else bias)
            if not e.normal: affine_part(e, to, left, count)


@Function.of(3)
def on_rows(after, low, high):
    """Normalisation, and then gain and shift, of rows low..high."""
    e = record(after, EPILOGUE)
    for row in range(low, high):
        y = e.out + 4 * row * e.step
        normalise(floats(y, e.p), e.normal == 1, e.eps)
        affine_part(e, y, 0, e.p)


@njit(**HELPER)
def pointwise_sums(after):
    """Whether the record at an address, or 0, asks for nothing of single columns but that a bias and a residual are
    added."""
    if not after: return True
    e = record(after, EPILOGUE)
    return not (e.activation or e.times or ((e.gain or e.shift) and not e.normal))


@njit(**HELPER)
def sums_at(after, row, column, nothing, simple):
    """(bias, residual, bytes between its rows) of the record at an address, from a row and a column on; what is not
    there, or where more than sums is asked for comes later, is at `nothing`, a line that adds nothing."""
    if not after: return nothing, nothing, 0
    e = record(after, EPILOGUE)
    bias = e.bias + 4 * column if e.bias else nothing
    if not (simple and e.residual): return bias, nothing, 0
    return bias, e.residual + 4 * (row * e.across + column), 4 * e.across


@njit(**HELPER)
def finish_sums(after, low, high, left, right, biased):
    """finish_block; biased: the bias was added already."""
    if after:
        e = record(after, EPILOGUE)
        apply(e.on_block, after, low, high, left, right, e.out + 4 * (low * e.step + left), 4 * e.step, biased)


@njit(**HELPER)
def finish_block(after, low, high, left, right):
    """on_block of the record at an address, where the output is; nothing for 0."""
    finish_sums(after, low, high, left, right, 0)


@njit(**HELPER)
def move_block(after, low, high, left, right, block, along, out, step):
    """finish_block for a block that lies elsewhere, along bytes between its rows; to out (a whole row's step in bytes)
    it goes as it is where there is no record."""
    if after: apply(record(after, EPILOGUE).on_block, after, low, high, left, right, block, along, 0)
    else:
        for i in range(high - low): combine(block + i * along, out + i * step, right - left, 0, 0, 0)


@njit(**HELPER)
def finish_rows(after, low, high):
    """on_rows of the record at an address; nothing for 0, or where nothing is normalised."""
    if after and record(after, EPILOGUE).normal: apply_rows(record(after, EPILOGUE).on_rows, after, low, high)


def epilogue_record(epilogue: Epilogue | None, out: np.ndarray, rough: bool = False) -> np.ndarray | None:
    """The EPILOGUE of one that fits out (T, p) and lies apart from it; None where nothing is done. rough: what comes
    before is no more exact than ROUGH_ERROR, so activations need not be."""
    if epilogue is None or epilogue is NOTHING: return None
    epilogue.check(*out.shape, "out", out)
    words = {"on_block": on_block.address, "on_rows": on_rows.address, "out": address(out), "step": step(out),
             "p": out.shape[1], **encode(epilogue, ROUGH if rough else PASSES)}
    return make_record([tuple(words[name] for name in EPILOGUE.names)], EPILOGUE)


def encode(e: Epilogue, activations: dict[str, Function]) -> dict[str, int | float]:
    """The words of the operands of stages."""
    beside, across = (0 if rows is None else step(rows) for rows in (e.times, e.residual))
    return {**{name: address(getattr(e, name)) for name in ("bias", "times", "residual", "gain", "shift")},
            "activation": activations[e.activation].address if e.activation else 0, "beside": beside, "across": across,
            "eps": e.eps or 0.0, "normal": 0 if e.eps is None else 1 if e.norm == "layer" else 2}


for stage in STAGES:
    if not stage.operands.keys() & {*EPILOGUE.names}:
        raise TypeError(f"stage {stage.__name__}: formats/kernels/rows/following.py has no {', '.join(stage.operands)}")
