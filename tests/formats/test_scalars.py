"""Python on numbers is traced: what it means, how far float32 is from that, what cannot be followed."""

import math

import numpy as np
import pytest

from formats.kernels.generated.rowwise.scalar_graphs import (
    bound_graph,
    check_traced,
    count_work,
    exact_graph,
    name_graph,
)
from formats.kernels.generated.rowwise.scalars import Untraceable, trace_numbers
from opmatrix.algebra import monoids
from opmatrix.algebra.monoid import Monoid
from opmatrix.runtime.codegen.merging import traced_monoid


def bent(u):
    return np.where(u > 0, u, np.expm1(np.minimum(u, 0))) + u**3 / (1 + np.abs(u))


def asking(u):
    return u if u > 0 else -u


def float_only(u):
    return math.lgamma(u)


def whole_array(u):
    return u + isinstance(u, np.ndarray)


def unknown(u):
    return np.sinc(u) + u


def powered(u):
    return u**u


def both(u):
    return np.where((u > -1) & ~(u > 1) | (u == 5), np.sqrt(abs(u)), np.log1p(np.clip(u, 0, 2)))


@pytest.mark.parametrize("function", [bent, both])
def test_a_graph_is_its_function(function):
    x = np.concatenate([np.random.default_rng(0).normal(size=500) * 3, [0.0, -0.0, np.inf, -np.inf, np.nan, 5.0]])
    graph = trace_numbers(function)
    check_traced(graph, function)
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(exact_graph(graph, x)[0], function(x), rtol=1e-12)
    again, other = trace_numbers(function), trace_numbers(lambda u: u)
    assert graph.inputs == 1 and name_graph(graph) == name_graph(again) != name_graph(other)
    assert all(each > 0 for each in count_work(graph))


def test_parts_are_shared_once():
    simple, _ = count_work(trace_numbers(lambda u: np.exp(u) * np.exp(u) + np.exp(u)))
    assert simple == count_work(trace_numbers(np.exp))[0] + 2


@pytest.mark.parametrize(
    "function, said",
    [
        (asking, "it uses a number as a condition"),
        (float_only, "it converts a number to a Python float or int"),
        (unknown, "numpy.sinc is not supported"),
        (powered, "an exponent that is not a literal"),
    ],
)
def test_what_cannot_be_followed_is_said_with_its_line(function, said):
    with pytest.raises(Untraceable) as caught:
        check_traced(trace_numbers(function), function)
    code = function.__code__
    assert str(caught.value).startswith(f"{code.co_filename}:{code.co_firstlineno + 1}: {said}")  # its body


def test_what_differs_on_arrays_is_not_followed():
    with pytest.raises(Untraceable, match="its result on single numbers differs from its result on arrays"):
        check_traced(trace_numbers(whole_array), whole_array)


@pytest.mark.parametrize("function", [bent, np.exp, np.tanh, lambda u: 1 / (u * u + 0.5) - np.log1p(u * u)])
def test_float32_is_within_the_running_bound(function):
    x = np.random.default_rng(1).normal(size=2000).astype(np.float32)
    [(meant, most)] = bound_graph(trace_numbers(function), (x.astype(np.float64), np.zeros(2000)))
    wide = x.astype(np.float64) if isinstance(function, np.ufunc) else x  # numpy's float32 exp: up to 3 units off
    error = abs(function(wide).astype(np.float32) - meant)
    assert (error <= most).all() and np.median(most[error > 0] / error[error > 0]) < 1000
    [(_, spread)] = bound_graph(trace_numbers(function), (x.astype(np.float64), np.full(2000, 1e-3)))
    off = x + np.float32(1e-3) * np.random.default_rng(2).uniform(-1, 1, 2000).astype(np.float32)
    assert (abs(function(off.astype(np.float64)) - meant) <= spread + 1e-6).all() and (spread > most).all()


@pytest.mark.parametrize("over", [each for each in monoids.MONOIDS if each.width is not None], ids=str)
def test_monoids_are_graphs_without_what_nothing_needs(over):
    found = traced_monoid(over)
    assert found.merge.inputs == 2 * len(found.used) == 2 * found.finish.inputs
    if over is monoids.moments.mean:
        assert found.used == (0, 1)


class whole_summed(Monoid):
    """A sum that knows arrays when it sees them."""

    identity = 0.0

    def lift(x, w):
        return x * w + isinstance(x, np.ndarray)

    def merge(a, b):
        return a + b


def test_a_monoid_that_is_no_graph_is_said_with_its_own_line():
    code = whole_summed.lift.__code__
    with pytest.raises(Untraceable, match="its result on single numbers") as caught:
        traced_monoid(whole_summed)
    assert str(caught.value).startswith(f"{code.co_filename}:{code.co_firstlineno}: ")
