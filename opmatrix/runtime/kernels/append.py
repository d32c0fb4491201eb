"""New rows appended to a cache, in place; and rows as a cache would store them."""

from collections.abc import Collection, Mapping
from typing import Annotated, Any

import numpy as np

from formats import FORMATS
from formats import kernels as compiled
from formats.core.choices import OneOf
from formats.storage.bf16 import FLUSHED
from opmatrix.algebra.batch.relations import SLOTS, Relation
from opmatrix.algebra.batch.signature import FLOAT, HALF, HELD_NUMBERS
from opmatrix.runtime.declarations.arguments import Doubles
from opmatrix.runtime.declarations.costs import one_pass
from opmatrix.runtime.declarations.fitting import copied, same
from opmatrix.runtime.declarations.kernel import Arguments, kernel
from opmatrix.runtime.declarations.operands import Cache, Heads
from opmatrix.runtime.declarations.padded import Padded
from opmatrix.runtime.declarations.pullbacks import Cotangents

HeldNumber = Annotated[str, OneOf(tuple(HELD_NUMBERS))]


@kernel(launches=True, inplace="cache", prices={})
class append(Arguments):
    """cache + product(given("slots"), x), slots a C × T relation into rows that are zero: x's rows, written where they
    are to lie. In a cache of bfloat16 they are rounded."""

    def run(out: Any, batch: Any, x: Heads, cache: Cache, *, number: HeldNumber = FLOAT) -> None:
        """Copy the cache to `out` unless it is `out` itself, and write the rows of x into the batch's slots."""
        if out is not cache:
            out[...] = cache
        compiled.append(x, batch.slots, out)

    def shape(a) -> Cache:
        """Return the shape of the cache. Raises ValueError if heads, columns or number type of the new rows differ from
        it."""
        same("x heads", a.x.heads, a.cache.heads)
        same("x columns", a.x.cols, a.cache.cols)
        same("number", a.number, a.cache.number)
        return Cache(*a.cache)

    def reads(a) -> Mapping[str, object]:
        """Return the rows as the cache stores them."""
        if a.number != HALF:
            return {}
        return {"x": FORMATS["bf16"].reads(a.x)}

    def relations(a) -> tuple[Relation, ...]:
        """Name the relation that it reads: the slots of the new rows."""
        return (SLOTS,)

    def reference(a) -> Doubles:
        """Return the cache with rows of x in their slots."""
        cache: Doubles = a.cache.copy()
        cache[a.batch.slots] = a.x
        return cache

    def padded(a) -> Padded:
        """Return the cache of a padded batch with new rows. Raises Unpadded for whole texts."""
        return a.batch.append(a.x, a.cache)

    def bound(a) -> Any:
        """Return 0, or the largest number that a processor may flush, below any normal number, for bfloat16."""
        return copied(a) if a.number == FLOAT else np.full(a.cache.shape, FLUSHED)

    cost = one_pass("scale")

    def borders(a) -> Collection[int]:
        """Return the rows at which the compiled `append` takes another path."""
        return compiled.borders("append")


@kernel(held_as=HALF, prices={})
class narrow(Arguments):
    """Keys or values as a cache of bfloat16 holds them. A session rounds them when it puts them into one, and has no
    such step."""

    def run(out: Any, x: Heads) -> None:
        """Round x to bfloat16, in float32."""
        out[...] = FORMATS["bf16"].reads(x)

    def shape(a) -> Heads:
        """Return the heads and columns of x."""
        return Heads(a.x.heads, a.x.cols)

    def reads(a) -> Mapping[str, object]:
        """Return x as it is stored: rounded to bfloat16."""
        return {"x": FORMATS["bf16"].reads(a.x)}

    def reference(a) -> Doubles:
        """Return x, which `reads` has rounded."""
        return np.asarray(a.x)

    def padded(a) -> Padded:
        """Return x as it is: the rounding of a session's cache is left out."""
        return a.x

    def pullback(a, g: Doubles) -> Cotangents:
        """Return g: rounding is no more than a small change of x."""
        return {"x": g}

    def bound(a) -> Any:
        """Allow FLUSHED for each number, as a processor may flush numbers below any normal one."""
        return np.full(a.x.shape, FLUSHED)

    cost = one_pass("scale")
