"""What enters beside the tokens: schedules of terms with inputs, cross attention of several heads as people write it;
and what no program can be made of is refused before anything is searched."""

import numpy as np
import pytest
import standin

import opmatrix as om
from formats.core.errors import InputError
from opmatrix.algebra.batch.extents import collect_needs
from opmatrix.algebra.monoid import Monoid
from opmatrix.algebra.positions.patterns import Pattern
from opmatrix.algebra.term import Data
from rewrites.explain.derivations.schedules import schedule
from rewrites.explain.derivations.stages import half
from rewrites.laws import EXACT_LAWS
from rewrites.search.search import search

RNG = np.random.default_rng(0)
VOCABULARY, WIDTH, HEADS = 20, 8, 2
Q, K, V = (om.weight(Data(RNG.normal(size=(WIDTH, WIDTH)), name)) for name in "QKV")
TABLE = om.weight(Data(RNG.normal(size=(VOCABULARY, WIDTH)), "table"))
MEMORY = om.given("memory", WIDTH, "M")
EXACT, SEEN = 1e-5, om.relation("seen", "T", "M")
INPUTS = {
    "memory": RNG.normal(size=(4, WIDTH)).astype(np.float32),
    "queries": RNG.normal(size=(3, WIDTH)).astype(np.float32),
    "more": RNG.normal(size=(5, WIDTH)).astype(np.float32),
}
BATCH = om.Batch([[1, 2, 3], [4, 5]], inputs=INPUTS, relations={"seen": np.tri(5, 4)})


def split(x, W):
    return x @ W @ om.heads(HEADS)


def joined(x):
    return x @ om.heads(HEADS).T


def attend(q, k, v, **more):
    return joined(om.product(q @ k.T * (WIDTH // HEADS) ** -0.5, v, over="softmax", **more))


def applied(x):
    return attend(split(x, Q), split(x @ MEMORY, K), split(x @ MEMORY, V))


def as_values(x):
    return attend(split(x, Q), split(MEMORY, K), split(MEMORY, V))


def by_transpose(x):
    scores = split(x, Q) @ om.transpose(split(MEMORY, K)) * (WIDTH // HEADS) ** -0.5
    return joined(om.product(scores, split(MEMORY, V), over=om.softmax))


def by_share(x):
    shares = split(x, Q) @ split(MEMORY, K).T * (WIDTH // HEADS) ** -0.5 @ om.share
    return joined(shares @ split(MEMORY, V))


def seen(x):
    return attend(split(x, Q), split(MEMORY, K), split(MEMORY, V), where=om.among(SEEN))


def backwards(x):
    return attend(split(MEMORY, Q), split(x, K), split(x, V))


CROSS = {
    spelling.__name__: TABLE @ om.formula(spelling)
    for spelling in (applied, as_values, by_transpose, by_share, seen, backwards)
}
CROSS["attention"] = TABLE @ om.attention(Q, MEMORY @ K, MEMORY @ V, HEADS, om.everyone)
BESIDE = CROSS | {
    "added": TABLE @ Q + om.given("more", WIDTH, "T"),
    "inputs alone": om.attention(om.given("queries", WIDTH, "P") @ Q, MEMORY @ K, MEMORY @ V, HEADS, om.everyone),
}


def by_hand(q, k, v, there=1):
    """Attention in numpy, head by head."""
    found = []
    for at in np.split(np.arange(WIDTH), HEADS):
        shares = np.exp(q[:, at] @ k[:, at].T * (WIDTH // HEADS) ** -0.5) * there
        found.append(shares / shares.sum(1, keepdims=True) @ v[:, at])
    return np.hstack(found)


def matrix(term):
    return term.args[0].array


@pytest.mark.parametrize("name", CROSS)
def test_cross_attention_of_several_heads(name):
    """However keys that no token enters are written."""
    x, m = matrix(TABLE)[BATCH.tokens], INPUTS["memory"].astype(float)
    if name == "backwards":
        wanted = by_hand(m @ matrix(Q), x @ matrix(K), x @ matrix(V))
    else:
        wanted = by_hand(x @ matrix(Q), m @ matrix(K), m @ matrix(V), np.tri(5, 4) if name == "seen" else 1)
    np.testing.assert_allclose(om.dense(CROSS[name], BATCH), wanted, 1e-12, 1e-12)


def test_spellings_are_one_term():
    assert CROSS["as_values"] is CROSS["by_transpose"]
    assert om.transpose(MEMORY) is MEMORY.T and MEMORY.T.T is not MEMORY
    assert Q.T is not om.turn(Q), "of what does depend on x the matrix is transposed"


@pytest.mark.parametrize("name", ["as_values", "seen", "added", "inputs alone"])
def test_a_schedule_of_what_enters(name):
    """It runs, is verified, stores by approximations what multiplies an input, and derives by laws."""
    term = BESIDE[name]
    wanted = om.dense(term, BATCH)
    made = schedule(term, BATCH, machine=standin.machine())
    assert made.verify()["program"]["float64"]["worst_row"] < 1e-10
    assert abs(made.run(BATCH) - wanted).max() < EXACT * abs(wanted).max()
    if name in ("added", "inputs alone"):
        stored = made | half()
        found = stored.verify()["program"]
        assert stored.error > 0 and found["float32"]["relative"] <= found["stated"]


@pytest.mark.parametrize("name", BESIDE)
def test_a_search_of_what_enters(name):
    term = BESIDE[name]
    found = search(term, EXACT_LAWS, standin.machine(), BATCH.extents(*collect_needs(term)))
    wanted = om.dense(term, BATCH)
    assert abs(found.program({})[0].run(BATCH) - wanted).max() < EXACT * abs(wanted).max()


# ---- what is not possible yet


class cubes(Monoid):
    """The sum of cubes."""

    identity = 0

    def lift(x, w):
        return (x * w) ** 3

    def merge(a, b):
        return a + b


class mean(om.monoids.mean):
    """Of a name that is taken."""


even = Pattern("even", lambda q, k: (q.position - k.position) % 2 == 0, reflexive=True)
X = TABLE @ Q
OWN = (
    "it is user-defined and has no name: declare it by @pattern (opmatrix.algebra.positions.patterns), or evaluate "
    "the term itself"
)
IMPOSSIBLE = [
    (TABLE @ om.attention(Q, K, V, 2, even & om.sequence), f"pattern even & sequence: {OWN}"),
    (TABLE @ om.formula(lambda x: om.product(x @ x.T, x, over="softmax", where=even)), f"pattern even: {OWN}"),
    (TABLE @ om.formula(lambda x: (x @ Q).T), r"output: formula(lambda x: (x @ Q).T) gives (8 × T), but a program "),
    (TABLE @ om.formula(lambda x: (x @ Q).T @ x), "output: formula(lambda x: (x @ Q).T @ x) gives (8 × 8), but a "),
    (TABLE @ om.formula(lambda x: x @ x.T), "output: formula(lambda x: x @ x.T) gives (T × T), but a program gives "),
]


@pytest.mark.parametrize(
    "term, says", IMPOSSIBLE, ids=[says.split(":")[0] + str(k) for k, (_, says) in enumerate(IMPOSSIBLE)]
)
def test_what_is_not_possible_is_said_at_once(term, says, monkeypatch):
    def never(*_):
        raise AssertionError("it was searched")

    monkeypatch.setattr("rewrites.egraph.layers.flat", never)
    monkeypatch.setattr("rewrites.workload.resolve.this_machine", never)
    for ask in (
        lambda: om.optimize(term, workload=BATCH),
        lambda: schedule(term, BATCH, machine=standin.machine()),
        lambda: search(term, (), standin.machine(), BATCH.extents()),
    ):
        with pytest.raises(InputError) as error:
            ask()
        assert says in str(error.value).replace("table @ ", "") and "\n" not in str(error.value)
    assert np.isfinite(om.dense(term, BATCH)).all(), "what it says to do instead"


@pytest.mark.parametrize("over", [cubes, mean])
def test_monoids_of_ones_own_run(over):
    """Each row's own, and a product over it."""
    for term in (X @ over, TABLE @ om.formula(lambda x: om.product(x @ x.T, x, over=over))):
        found, wanted = search(term, EXACT_LAWS, standin.machine(), BATCH.extents()), om.dense(term, BATCH)
        assert abs(found.program({})[0].run(BATCH) - wanted).max() < EXACT * abs(wanted).max()


def test_values_without_rows_of_a_space_run():
    """Inside a term: a matrix that keys and values make, which queries multiply."""
    state = om.formula(lambda x: x @ Q @ ((x @ K).T @ (x @ V)))
    by_heads = om.formula(lambda x: joined(split(x, Q) @ (split(x, K).T @ split(x, V))))
    for term in (TABLE @ state, TABLE @ state @ K @ om.relu, TABLE @ by_heads @ K):
        found, wanted = search(term, EXACT_LAWS, standin.machine(), BATCH.extents()), om.dense(term, BATCH)
        assert abs(found.program({})[0].run(BATCH) - wanted).max() < EXACT * abs(wanted).max()
