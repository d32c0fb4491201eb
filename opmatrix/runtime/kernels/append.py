"""New rows into a cache, in place."""
from typing import Any

from formats import kernels as compiled
from opmatrix.relations import SLOTS, Relation
from opmatrix.runtime.arguments import Doubles
from opmatrix.runtime.costs import one_pass
from opmatrix.runtime.fitting import copied, same
from opmatrix.runtime.kernel import Arguments, kernel
from opmatrix.runtime.operands import Cache, Heads


@kernel(launches=True, inplace="cache", prices={})
class append(Arguments):
    """cache + product(given("slots"), x), slots a C × T relation into rows that are zero: x's rows, written where they
    are to lie."""

    def run(out: Any, batch: Any, x: Heads, cache: Cache) -> None:
        if out is not cache: out[...] = cache
        compiled.append(x, batch.slots, out)

    def shape(a) -> Cache:
        same("x heads", a.x.heads, a.cache.heads)
        same("x columns", a.x.cols, a.cache.cols)
        return Cache(*a.cache)

    def relations(a) -> tuple[Relation, ...]: return (SLOTS,)

    def reference(a) -> Doubles:
        """A cache with rows of x in their slots."""
        cache: Doubles = a.cache.copy()
        cache[a.batch.slots] = a.x
        return cache
    bound, cost = copied, one_pass("scale")
