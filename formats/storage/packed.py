"""Packed: float32 in the order in which a kernel reads it."""

from formats.core.layout import PANEL, Panelled, panels, unpanelled
from formats.core.sizes import T, ceiling, f4, n, p
from formats.storage.format import Format


class Packed(Format):
    """Every number in float32, in panels of 64 outputs: all inputs of one panel, then those of the next.

    A product reads a panel straight through, without packing (Goto and van de Geijn 2008, there packed by every
    call)."""

    w: f4[n * 16 * ceiling(p / 16)]
    plain, proposed = True, False  # it is as exact as dense
    unit = "float32"
    panelled = Panelled()
    portion = PANEL
    flops = 2 * T * n * p
    work = T * n * p, n * p * ceiling(T / 256), T * (n + p)

    def fit(W):
        """Return W itself, as every matrix can be held."""
        return W

    def pack(W):
        """Lay W out in panels of 64 outputs."""
        return panels(W)

    def unpack(shape, w):
        """Undo the panels: the matrix (n, p) in rows again."""
        return unpanelled(w, shape)

    def kernel(x, w, out, epilogue):
        """Write x @ W to `out`, one panel after the other, then the epilogue."""
        from formats.kernels import product_packed

        product_packed(x, w, out, epilogue)
