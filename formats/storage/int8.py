"""Bytes: whole numbers with a scale for each output, or for each group of inputs of one."""

from types import MappingProxyType

import numpy as np

from formats.core.arrays import ROUNDED_TOGETHER, FormatError, multiply_sizes
from formats.core.epilogue import gamma
from formats.core.layout import PANEL, TILE, Panelled, deepened, panels, unpanelled
from formats.core.sizes import T, ceiling, f4, n, p, u1
from formats.core.sizes import group as size
from formats.core.stage import SMALLEST
from formats.storage.format import Format, WholeNumbers
from formats.storage.packed import Packed

STEP_INPUTS = 64  # inputs of a step
COLUMN = 1 << 16  # a group that holds all inputs
UNIT = 2.0**-24
MAX_WEIGHT = 2.0**70  # its scale times that of a row is a float32


class Int8(Format):
    """W / scale rounded to whole numbers up to 127, stored as bytes with 128 added, in panels of 64 outputs, fours of
    inputs together; x is rounded row by row on the way, to its own largest number / 127 (Dettmers et al. 2022,
    arXiv:2208.07339, section 2.1).

    `group`: the number of inputs of an output that share a scale, a multiple of 64; the default is all of them, one
    scale an output."""

    w: u1[64 * ceiling(n / 64) * 16 * ceiling(p / 16)]
    scale: f4[ceiling(n / size), p]
    unit = "int8"
    panelled = Panelled(TILE, 4, STEP_INPUTS)
    portion = PANEL
    flops = 2 * T * n * p
    work = T * n * p, n * p * ceiling(T / 256), T * (n + p), T * n, T * p * ceiling(n / size)
    named = MappingProxyType({"group": size})

    def fit(W, *, group=COLUMN):
        """Round to the nearest integer multiples of scales, which the largest numbers determine."""
        whole, scale = quantised(W, group, 127)
        return scale_groups(whole, scale, group)

    def pack(W, *, group=COLUMN):
        """Return panels of bytes, four inputs to a word, and the scales of groups."""
        whole, scale = quantised(W, group, 127, 128, np.uint8)
        return panels(deepened(whole, STEP_INPUTS), 4, TILE), scale

    def unpack(shape, w, scale, *, group):
        """Subtract 128 from the stored bytes and multiply by the scales."""
        return scale_groups(stored_bytes(shape, w).astype(np.float32) - 128, scale, group)

    def integers(self):
        """Return the stored bytes without the 128 that is added."""
        whole = (stored_bytes(self.shape, self.w) ^ np.uint8(128)).view(np.int8)
        return (whole_numbers(whole, self.scale, self.remembered["group"]),)

    def kernel(x, w, scale, out, epilogue, *, group):
        """Write x @ W to `out` by integer sums of each group, x rounded row by row, then the epilogue."""
        from formats.kernels import product_int8

        product_int8(x, w, scale, group, out, epilogue)

    def transpose(self):
        """Store W.T as float32 in panels, as it has no scales of its own."""
        return Packed.pack(self.unpack().T)  # scales of outputs are none of inputs

    def unsound(self):
        """Describe the fault of the group or of the scales; empty if there is none."""
        return unsound("int8", self.scale, self.remembered["group"])

    def tolerance(self, W):
        """Allow for the rounding of integer times scale: 4 unit roundoffs of W's norm."""
        return 4 * UNIT * float(np.linalg.norm(W.astype(np.float64)))

    def bound(self, x, operands=None):
        """Bound the float32 roundings around integer sums, which are exact, by group."""
        return bound_error(x, *operands or self.operands(x), len(self.scale))

    @staticmethod
    def reads(x):
        """Return x as its kernel reads it: integers up to 127 times the scale of their row, in float64."""
        return by_row(x)

    @classmethod
    def rounding(cls, spectrum, *, group=COLUMN):
        """Estimate the error of rounding x to 1/127 of the largest number of its row."""
        return row_rounding(spectrum, spectrum.squares, spectrum.weight)

    @classmethod
    def choices(cls, inputs, outputs):
        """Propose one scale for an output, and groups of one step if the matrix has more inputs than that."""
        return [{"group": COLUMN}, *([{"group": STEP_INPUTS}] if inputs > STEP_INPUTS else [])]

    @classmethod
    def counts(cls, inputs, outputs, *, group=COLUMN):
        """Return the inputs of a group; FormatError for a group that a kernel cannot step through."""
        return {size: check_group("int8", group)}


def stored_bytes(shape, w):
    """Return the bytes (n, p) of panels, each with 128 added."""
    return unpanelled(w, (-(-shape[0] // STEP_INPUTS) * STEP_INPUTS, shape[1]), 4, TILE)[: shape[0]]


def whole_numbers(whole, scale, group, bits=8):
    """Return integers (n, p) and scales (groups, p) that are multiplied by rows rounded by their largest numbers."""
    return WholeNumbers(whole, scale, min(group, len(whole)), bits, rounds=True)


def row_rounding(spectrum, seen, W):
    """Estimate the relative error of the output by rounding rows before W. `seen` are the squares of their inputs,
    taken as independent: a step is 1/127 of a row's largest number, that of the largest input, or of normal numbers of
    the mean one."""
    largest = max(seen.max(), 2 * np.log(len(seen) + 1) * seen.mean())
    return float(np.sqrt(largest * np.square(W).sum() / spectrum.energy / 12) / 127) if spectrum.energy else 0.0


def check_group(where, group):
    """Return the group; FormatError if a kernel cannot step through it."""
    if isinstance(group, int | np.integer) and group > 0 and group % STEP_INPUTS == 0:
        return int(group)
    raise FormatError(f"{where}: group = {group!r} is not a positive multiple of {STEP_INPUTS}")


def quantised(W, group, most, more=0, kind=np.float32):
    """Return W (n, p) as integers up to `most`, to which `more` is added, and the scales (groups, p) of groups of
    inputs. Some columns at a time are rounded: for all of them float64 would take four times the bytes of W."""
    group = check_group("quantise", group)
    starts, some = np.arange(0, len(W), group), max(1, ROUNDED_TOGETHER // len(W))
    whole, scale = np.empty(W.shape, kind), np.empty((len(starts), W.shape[1]), np.float32)
    for at in range(0, W.shape[1], some):
        part = W[:, at : at + some]
        largest = np.maximum.reduceat(abs(part), starts, 0)
        check_size(largest.max())
        scale[:, at : at + some] = scales = (largest / most).astype(np.float32)
        inverse = np.zeros(scales.shape)  # float32 has no inverse of its smallest numbers
        np.divide(1, scales, out=inverse, where=scales > SMALLEST, dtype=np.float64)
        rounded = np.rint(part * repeat_scales(inverse, len(W), group))
        whole[:, at : at + some] = np.clip(rounded, -most, most, out=rounded) + more
    return whole, scale


def check_size(largest):
    """Raise FormatError where the largest number of a weight is too large for a scale times that of a row."""
    if largest > MAX_WEIGHT:
        raise FormatError(f"quantise: W holds {largest:.3g}, beyond {MAX_WEIGHT:.3g}; give smaller weights")


def repeat_scales(rows, n, group):
    """Repeat a row for every group as a row for every input; one row where there is one group."""
    return rows if len(rows) == 1 else np.repeat(rows, group, 0)[:n]


def scale_groups(whole, scale, group):
    """Multiply integers by their scales, in place."""
    whole *= repeat_scales(scale, len(whole), group)
    return whole


def unsound(where, scale, group):
    """Describe the fault of stored scales and their groups; empty if there is none."""
    try:
        check_group(where, group)
    except FormatError as error:
        return str(error)
    return f"the scale {scale.min()} is negative" if (scale < 0).any() else ""


def row_bytes(x):
    """Return x (T, n) as integer multiples, up to 127, of each row's largest number / 127, these scales, and a lift of
    each row that both are multiplied by: computed by the float32 operations of formats/kernels/matmul/rounding.py, one
    by one."""
    from formats.kernels.matmul.rounding import LIFT, LIFT_ABOVE, LIFT_BELOW

    x = np.asarray(x, np.float32)
    largest = abs(x).max(1, keepdims=True)
    lift = np.where(
        (0 < largest) & (largest < LIFT_BELOW), LIFT, np.where(largest > LIFT_ABOVE, 1 / LIFT, np.float32(1))
    )
    largest = largest * lift
    turns = np.divide(np.float32(127), largest, out=np.zeros_like(largest), where=largest > 0)
    return np.rint(x * lift * turns), largest / np.float32(127), lift


def by_row(x):
    """Return x (T, n) in float64 as its kernel reads it."""
    whole, scale, lift = row_bytes(x)
    return whole.astype(np.float64) * scale / lift.astype(np.float64)


def bound_error(x, read, W, groups):
    """Bound the roundings around integer sums, which are exact: unpack() once, each group's sum, scale and product, and
    their sum; x is `read` by rows. The underflow in a product of two scales is lost once for every integer of a sum;
    rows beyond LIFT_ABOVE are multiplied back."""
    from formats.kernels.matmul.rounding import LIFT, LIFT_ABOVE

    lost = np.where(abs(np.asarray(x, np.float32)).max(1, keepdims=True) > LIFT_ABOVE, float(LIFT), 1.0)
    return gamma(groups + 5) * multiply_sizes(read, W) + SMALLEST * (1 + 127 * 127 * len(W)) * lost
