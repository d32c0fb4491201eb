"""Rows of x times factors of their inputs, then mixed: neighbouring vectors are replaced by their sums and differences
by a Hadamard matrix, so that the magnitude of a few inputs is spread over 16 times as many (Ashkboos et al. 2024,
QuaRot, arXiv:2404.00456, section 4).

Sums of vectors need no shuffles, and each is one float32 operation, so that numpy computes the same bits
(formats/storage/pairs/balancedint8.py)."""

from collections.abc import Callable

from formats.core.layout import MIXED
from formats.kernels.engine.compiled import HELPER
from formats.kernels.engine.native import intrinsic, njit, types
from formats.kernels.simd.vectors import LANES, load_vector, put


def mixing(order: int) -> Callable[..., None]:
    """Build an intrinsic that mixes `order` vectors at x times those at factors, and stores them. With lanes, only that
    many numbers are read, and zeros."""

    @intrinsic
    def mix(typing, x, factors, to, lanes):
        def code(context, builder, signature, values):
            x, factors, to, left = values

            def each(address, v):
                some = None if lanes == types.none else builder.sub(left, left.type(LANES * v))
                return load_vector(builder, address, 64 * v, some)

            found = [builder.fmul(each(x, v), each(factors, v)) for v in range(order)]
            for apart in (2**stage for stage in range(order.bit_length() - 1)):
                for v in (v for v in range(order) if not v & apart):
                    a, b = found[v], found[v + apart]
                    found[v], found[v + apart] = builder.fadd(a, b), builder.fsub(a, b)
            for v, vector in enumerate(found):
                put(builder, vector, to, 64 * v)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, types.int64, lanes), code

    return mix


def by_order(order: int) -> Callable[..., int]:
    """Build a function that mixes as many groups of `order` vectors as fit before depth, from an input on, and returns
    the start of the next group."""
    mix, width = mixing(order), LANES * order

    @njit(**HELPER)
    def groups(x, n, factors, to, start, depth):
        while start + width <= depth:
            at = 4 * start
            if start + width <= n:
                mix(x + at, factors + at, to + at, None)
            else:
                mix(x + at, factors + at, to + at, n - start)
            start += width
        return start

    return groups


sixteens, eights, fours = map(by_order, MIXED)


@njit(**HELPER)
def mix_row(x, n, factors, to, depth):
    """Store n float32 at x, times factors and mixed, at an address; zeros follow up to depth, a multiple of 64."""
    fours(x, n, factors, to, eights(x, n, factors, to, sixteens(x, n, factors, to, 0, depth), depth), depth)
