"""A batch is one matrix: no padding exists, sentences do not see each other, patterns say who sees whom."""

from itertools import pairwise

import numpy as np
import pytest
from test_monoids import both, minplus
from tiny_config import CONFIG

from opmatrix.algebra import oracles
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.monoids import MONOIDS
from opmatrix.algebra.operators import I, attention, given, over, product, softmax, weight
from opmatrix.algebra.oracles import dense, entrywise
from opmatrix.algebra.positions.patterns import Pattern, causal, coarse, everyone, hubs, mask, sequence, window
from opmatrix.algebra.shapes import ShapeError
from opmatrix.algebra.term import Data, formula


def test_fields(batch):
    assert batch.rows == 7 and len(batch) == 3 and batch.starts.tolist() == [0, 4, 5, 7]
    assert batch.tokens.tolist() == [3, 1, 4, 1, 5, 9, 2] and batch.positions.tolist() == [0, 1, 2, 3, 0, 0, 1]
    assert batch.kinds.tolist() == [0, 1, 1, 0, 1, 0, 0] and batch.sequence.tolist() == [0, 0, 0, 0, 1, 2, 2]
    assert Batch([[1, 2], [3]]).kinds.tolist() == [0, 0, 0]
    assert [one.tokens.tolist() for one in batch] == [[3, 1, 4, 1], [5], [9, 2]]
    np.testing.assert_array_equal(batch.selection("tokens", 11).toarray() @ np.arange(11), batch.tokens)


@pytest.mark.parametrize(
    "make, error, words",
    [
        (lambda: Batch([]), ValueError, "Batch: no sentences"),
        (lambda: Batch([[1], [], [2]]), ValueError, "sentence 1 of 3 has 0 tokens"),
        (lambda: Batch([[1.5]]), TypeError, "sentence 0 holds float64"),
        (lambda: Batch([np.ones((2, 2), int)]), ValueError, r"sentence 0 has shape \(2, 2\)"),
        (lambda: Batch([[1, 2]], [[0]]), ValueError, r"kinds have lengths \[1\] but the sentences \[2\]"),
        (
            lambda: Batch([[1, 2], [3, 11]]).selection("tokens", 11),
            ValueError,
            r"tokens: id 11 of sentence 1, token 1 \(row 3 of the batch\) is outside 0\.\.10",
        ),
        (
            lambda: Batch([[1, -2]]).selection("tokens", 11),
            ValueError,
            r"id -2 of sentence 0, token 1 .* is outside 0\.\.10",
        ),
        (lambda: Batch([range(9)]).selection("positions", 8), ValueError, r"positions: id 8 .* is outside 0\.\.7"),
        (lambda: Batch([[1]]).selection("colour", 8), ValueError, "no field 'colour'"),
    ],
)
def test_bad_batches(make, error, words):
    with pytest.raises(error, match=words):
        make()


def test_bad_input_of_an_operator(small, batch, rng):
    with pytest.raises(ValueError, match=r"tokens: id 99 .* outside 0\.\.10"):
        dense(small, Batch([[1, 99]]))
    with pytest.raises(ValueError, match=r"positions: id 7 .* outside 0\.\.6"):
        entrywise(small, Batch([range(8)]))
    with pytest.raises(ShapeError, match="columns against rows 5 ≠ 11"):
        dense(small, rng.normal(size=(7, 5)), batch)
    with pytest.raises(ShapeError, match="x has 6 rows, but its <Batch of 3 sentences, 7 rows>"):
        dense(small, rng.normal(size=(6, 11)), batch)
    with pytest.raises(ShapeError, match=r"x has shape \(5,\)"):
        dense(I, np.ones(5))
    with pytest.raises(TypeError, match="depends on the batch"):
        dense(small, rng.normal(size=(6, 11)))
    with pytest.raises(ShapeError, match=r"where sequence: scores are \(3 × 3\): 3 is a number of columns"):
        dense(formula(lambda x: x @ x.T @ product(x.T @ x, x.T, where=sequence).T), rng.normal(size=(7, 3)), batch)


def test_sentences_in_a_batch_are_as_if_alone(small, batch):
    whole = both(small, batch)
    for one, rows in zip(batch, np.split(whole, batch.starts[1:-1]), strict=True):
        np.testing.assert_allclose(dense(small, one), rows, rtol=1e-12)


def test_going_sentence_by_sentence_is_allowed_only_where_they_are_apart(rng, data, batch):
    """What crosses sentences is computed at once: the oracle never changes the meaning."""
    W, x = weight(data("W", 6, 6)), rng.normal(size=(7, 6))
    cross = [attention(W, W, W, 2, where) for where in (everyone, causal, sequence | window(1))]
    cross += [
        formula(lambda x: (x @ x.T) @ x),
        given("sequence", 3) @ weight(data("S", 3, 6)) @ attention(W, W, W, 2, sequence),
        formula(lambda x: product(x @ x.T, x, over=softmax)),
    ]
    for A in cross:
        assert not oracles.separate(A) and np.isfinite(both(A, x, batch)).all()
    apart = attention(W, W, W, 2, sequence & causal)
    assert oracles.separate(apart)
    whole = both(apart, x, batch)
    for one, lo in zip(batch, batch.starts, strict=False):
        np.testing.assert_allclose(dense(apart, x[lo : lo + one.rows], one), whole[lo : lo + one.rows], rtol=1e-12)


def seen(where: Pattern, batch):
    """The whole pattern as a table."""
    at = np.arange(batch.rows)
    return np.broadcast_to(where.sees(batch.token(at[:, None]), batch.token(at)), (batch.rows, batch.rows))


def test_patterns(batch):
    i, j = np.indices((7, 7))
    p, s = batch.positions, batch.sequence
    for where, want in (
        (everyone, i == i),
        (sequence, s[i] == s[j]),
        (causal, p[j] <= p[i]),
        (window(1), abs(p[i] - p[j]) <= 1),
        (sequence & causal, (s[i] == s[j]) & (p[j] <= p[i])),
        (sequence | window(0), (s[i] == s[j]) | (p[i] == p[j])),
        (mask(np.tri(4)), p[j] <= p[i]),
        (hubs(1), (p[i] < 1) | (p[j] < 1)),
        (coarse(causal, 2), p[j] // 2 <= p[i] // 2),
        (
            sequence & coarse(window(0) | hubs(1), 2),
            (s[i] == s[j]) & ((p[i] // 2 == p[j] // 2) | (p[i] < 2) | (p[j] < 2)),
        ),
        (mask(np.eye(4)[::-1]) & sequence, (s[i] == s[j]) & (p[i] + p[j] == 3)),
    ):
        np.testing.assert_array_equal(seen(where, batch), want, err_msg=str(where))
        assert not where.reflexive or want.diagonal().all()
        assert not where.within or not want[s[i] != s[j]].any()
    assert sequence.reflexive and (sequence & causal).reflexive and (sequence & causal).within and not causal.within
    assert (sequence | causal).reflexive and not (sequence | causal).within and not mask(np.eye(4)[::-1]).reflexive
    assert window(2) == window(2) != window(3) and mask(np.tri(4)) == mask(np.tri(4)) != mask(np.tri(3))
    assert sequence & causal == sequence & causal and hash(mask(np.tri(4))) == hash(mask(np.tri(4)))
    with pytest.raises(ValueError, match=r"position 3 is outside its table of 3 × 3"):
        seen(mask(np.tri(3)), batch)
    with pytest.raises(ValueError, match="a square table"):
        mask(np.ones((2, 3)))


def test_a_row_that_sees_nobody_gets_zeros(rng, data, batch):
    nobody = np.tri(4)
    nobody[2] = 0
    A = formula(lambda x: product(x @ x.T, x, over=softmax, where=sequence & mask(Data(nobody, "nobody"))))
    found = both(A, rng.normal(size=(7, 6)), batch)
    np.testing.assert_array_equal(found[2], 0)
    assert np.abs(np.delete(found, 2, 0)).min(1).all()


def test_number_types(small, batch):
    exact, rough = dense(small, batch), dense(small, batch, dtype=np.float32)
    assert rough.dtype == np.float32 and 0 < np.abs(exact - rough).max() < 1e-3
    W, x = weight(np.ones((3, 3))), np.ones((7, 3), np.float32)
    for m in (*MONOIDS, minplus):
        for A in (over(W, m), formula(lambda x, m=m: product(x @ x.T, x, over=m, where=sequence & causal))):
            if m.width is None:
                continue
            assert dense(A, x, batch, np.float32).dtype == np.float32, f"{m.__name__} widens"
    assert small(batch).tolist() == exact.tolist() and CONFIG["vocab_size"] == small.into.cols


@pytest.mark.parametrize("rows", [1, 4, 5, 9, 100])
def test_pieces_are_the_batch_again(rows):
    batch = Batch([[1, 2], [3], [4, 5, 6], [7], [8, 9, 10, 11, 12, 13]], [[0, 1], [1], [0, 1, 1], [0], [1] * 6])
    found = list(batch.pieces(rows))
    for field in ("tokens", "kinds", "positions"):
        assert np.concatenate([getattr(each, field) for each in found]).tolist() == getattr(batch, field).tolist()
    assert all(each.rows <= rows or len(each) == 1 for each in found)
    assert all(a.rows + np.diff(b.starts)[0] > rows for a, b in pairwise(found)), "a piece could have been longer"
