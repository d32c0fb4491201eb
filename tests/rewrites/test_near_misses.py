"""Sparse and low-rank methods that no program took: which is the nearest, by how much, and where it would pay."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from searched import RAGGED, Round, model, structure

from rewrites.lowering.lower import EXACT, Method
from rewrites.lowering.mixed import Mean
from rewrites.lowering.price import Prices
from rewrites.report.near_misses import NearMiss, heaviest_batch, near_misses, tell_miss, tell_misses

CSR, LOW, HALF = Method("csr", (("density", 0.45),)), Method("lowrank", (("rank", 4),)), Method("half")


class Rates(Round):
    """Sparse products are quick with many rows, low rank never is; half of the numbers are quick at once."""

    def seconds(self, kernel, **sizes):
        share = {"linear.csr": 20.0 / sizes.get("T", 1), "linear.lowrank": 3.0, "linear.half": 0.5}.get(kernel, 1.0)
        return share * super().seconds(kernel, **sizes)


@pytest.fixture(scope="module")
def exact():
    return structure(model(num_hidden_layers=1))


def nearest(exact, errors, machine=Rates(), allowed=0.1):
    """The near misses where every weight has these methods, each with an error."""
    methods = [*EXACT, *(method._replace(error=error**2) for method, error in errors.items())]
    prices = Prices(machine, RAGGED.extents())
    priced = [replace_prices(lowering, prices) for lowering in exact.lowerings]
    choices = SimpleNamespace(methods=lambda lowering, use: methods)
    return near_misses(replace(exact, lowerings=priced), choices, prices, allowed)


def replace_prices(lowering, prices):
    """A lowering with other prices."""
    return SimpleNamespace(
        stored=lowering.stored,
        gathers=lowering.gathers,
        arrays=lowering.arrays,
        price=lambda use, method: (
            prices.linear(method.format, *lowering.stored(use.weight, use.layout), method.parameters),
            0,
        ),
    )


def test_each_kind_has_its_nearest(exact):
    sparse, low = nearest(exact, {CSR: 0.05, LOW: 0.06, HALF: 0.01})
    assert (sparse.kind, low.kind) == ("sparsity", "rank") and sparse.rival == low.rival == "half"
    assert sparse.seconds > 1 and low.seconds > 1
    assert sparse.error == pytest.approx(0.05) and sparse.allowed == 0.1
    n, p = low.shape
    assert low.multiplications == pytest.approx(4 * (n + p) / (n * p)) and sparse.multiplications < 0.5
    assert sparse.rows == 64 and low.rows is None, "a twentieth of its rows at 40, half a dense product"
    assert "from 64 rows" in tell_miss(sparse) and "every length" in tell_miss(low)


def test_a_rival_errs_no_more(exact):
    sparse, _ = nearest(exact, {CSR: 0.05, LOW: 0.06, HALF: 0.055})
    assert sparse.rival == "dense"


def test_a_product_of_no_rows_misses_none(exact):
    """It takes no time in any format."""

    class Free(Round):
        def seconds(self, kernel, **sizes):
            return 0.0

    assert nearest(exact, {CSR: 0.05, LOW: 0.06}, Free()) == []


def test_what_errs_more_than_allowed_is_second(exact):
    quick = Method("csr", (("density", 0.05),))
    [miss] = nearest(exact, {CSR: 0.05, quick: 0.2})
    assert miss.method == str(CSR)
    [miss] = nearest(exact, {CSR: 0.15, quick: 0.2})
    assert miss.error > miss.allowed


def test_kinds_without_a_method_have_no_line(exact):
    assert nearest(exact, {HALF: 0.01}) == []
    assert tell_misses([]) == []


def test_a_report_says_what_would_make_it_pay():
    miss = NearMiss("rank", "w", (8, 8), "lowrank[rank=2]", "int8", 1.5, 1.2, 2.0, 0.01, 0.02, None)
    assert tell_misses([miss._asdict()]) == [
        "rank: nearest at w by lowrank[rank=2]: 1.5 x the seconds of int8, which errs no more; "
        "alone it errs 1 % of 2 % allowed; slower here at every length tried; no machine is faster with it"
    ]
    assert "pays where bytes of weights (0.5 x) limit a product" in tell_miss(miss._replace(bytes=0.5))


def test_of_several_batches_the_one_that_weighs_most_counts():
    few, many = (Prices(Rates(), RAGGED.extents()) for _ in range(2))
    assert heaviest_batch(Mean(((0.3, few), (0.7, many)))) is many
