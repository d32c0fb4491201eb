"""Cached steps: new rows of a causal program over keys and values that a session holds, against computing all rows
anew."""

from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
import standin
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule
from searched import Round, relative

from formats.core.errors import InputError
from formats.host.threads import limit
from formats.kernels.attentions.chunks import PAGE
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.batch.extents import Extents, S, T, collect_needs, pairs, patterns
from opmatrix.algebra.data import Data
from opmatrix.algebra.monoids import mean
from opmatrix.algebra.operators import (
    I,
    const,
    diag,
    given,
    heads,
    pick,
    product,
    relation,
    repeat,
    rmsnorm,
    rotate,
    silu,
    softmax,
    weight,
)
from opmatrix.algebra.oracles import dense, entrywise
from opmatrix.algebra.positions.patterns import causal, sequence
from opmatrix.algebra.term import formula
from opmatrix.inference.cached import cached
from opmatrix.inference.cached_terms import cached_model
from opmatrix.inference.session import New, some
from opmatrix.runtime.declarations.operands import C
from opmatrix.runtime.kernels import KERNELS
from opmatrix.runtime.program import Program
from rewrites import optimize
from rewrites.laws import EXACT_LAWS
from rewrites.search.search import search
from rewrites.verify import unrounded, verify_graphs, verify_outputs, verify_steps

WORDS, POSITIONS = 30, 330


def model(h=4, g=2, d=8, layers=2, where=sequence & causal):
    """Norms of roots before, grouped queries, RoPE, a gate, as LLaMA has them; numbers that float32 holds."""
    rng, width = np.random.default_rng(7), h * d + 2
    angles = np.arange(POSITIONS)[:, None] * 100.0 ** (-np.arange(d // 2) / (d // 2))
    table = rotate(np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32))

    def numbers(*shape):
        return Data((rng.normal(size=shape) / shape[0] ** 0.5).astype(np.float32))

    def layer():
        def mix(x):
            x = x @ (rmsnorm(1e-3) @ diag(numbers(width)))
            q, k = (
                x @ (weight(numbers(width, many * d)) + const(numbers(many * d))) @ heads(many) @ table
                for many in (h, g)
            )
            v = x @ weight(numbers(width, g * d)) @ heads(g)
            scores = q @ (k @ repeat(h)).T * 0.25
            return (
                product(scores, v @ repeat(h), over=softmax, where=where) @ heads(h).T @ weight(numbers(h * d, width))
            )

        def feed(x):
            x = x @ (rmsnorm(1e-3) @ diag(numbers(width)))
            return (
                (x @ weight(numbers(width, 48)) @ silu) * (x @ weight(numbers(width, 48))) @ weight(numbers(48, width))
            )

        return formula(lambda x: x + mix(x)) @ formula(lambda x: x + feed(x))

    made = weight(numbers(WORDS, width))
    for _ in range(layers):
        made = made @ layer()
    return made


@cache
def by_steps(laws=EXACT_LAWS):
    """A program as `optimize` finds it, and the one with caches of the same steps."""
    term, batch = model(), Batch([[1, 2, 3], [4]])
    program, _ = search(term, laws, Round(), batch.extents(patterns(term))).program({})
    return program, cached(program)


@cache
def found(laws=EXACT_LAWS):
    """The same program, and one that was found for a step itself, whose caches are terms."""
    return by_steps(laws)[0], stepping(laws)[0].program({})[0]


@cache
def stepping(laws=EXACT_LAWS):
    """What is found for new rows of the model, and the batch that it was searched for."""
    outputs = cached_model(model())
    batch = some(outputs, (1, 7, 20), (1, 1, 3), WORDS)
    return search(outputs, laws, Round(), batch.extents(*collect_needs(*outputs.values()))), outputs, batch


def text(count, seed=0):
    return np.random.default_rng(seed).integers(0, WORDS, count)


# ---- a step equals computing all rows anew


def test_a_step_is_a_term():
    """Both oracles of a step agree, and with the model on whole sequences; what is found for it is that term, caches
    included, and every kernel of its graph computes its class."""
    small = cached_model(model(2, 1, 4, 1))
    batch = some(small, (1, 3), (1, 2), WORDS)
    for name, term in small.items():
        exact = entrywise(term, batch).astype(float)
        assert relative(exact.reshape(dense(term, batch).shape), dense(term, batch)) < 1e-12, name
    _, outputs, batch = stepping()
    for laws in ((), EXACT_LAWS):
        structure, _, _ = stepping(laws)
        program, emitter = structure.program({})
        assert max(verify_outputs(program, outputs, [batch], unrounded(structure, emitter)).values()) < 1e-12
        verify_steps(program, [batch])
        assert [*program.state] == [*outputs][1:] and program.signature.relations == ("slots: C × T", "held: T × C")
    verify_graphs([part.template for part in structure.parts[1:2]], EXACT_LAWS)
    products = [
        [step.operands["weight"] for step in each.steps if step.kernel == "linear"]
        for each in (found()[1], by_steps()[1])
    ]
    assert len(products[0]) == len(products[1]), "queries, keys and values are one product, as without caches"


@pytest.mark.parametrize("exact, within", [(True, 1e-12), (False, 1e-5)])
@pytest.mark.parametrize("laws", [(), EXACT_LAWS], ids=["fused", "laws"])
@pytest.mark.parametrize("made", [found, by_steps], ids=["terms", "steps"])
def test_a_step_over_ragged_sequences_is_the_full_recompute(exact, within, laws, made):
    program, step = made(laws)
    session, lengths = step.start(400, exact), (1, 7, 300)
    texts = [text(length + 1, seed) for seed, length in enumerate(lengths)]
    sequences = [session.join() for _ in lengths]
    session.step({each: ids[:-1] for each, ids in zip(sequences, texts, strict=True)})
    new = session.step({each: ids[-1:] for each, ids in zip(sequences, texts, strict=True)})
    whole = Batch(texts)
    wanted = program.exact(whole)[whole.starts[1:] - 1]
    assert [each.length for each in sequences] == [length + 1 for length in lengths]
    assert relative(new, wanted) < within
    if exact and not laws:
        assert relative(new, dense(model(), whole)[whole.starts[1:] - 1]) < 1e-12


@pytest.mark.deep
def test_optimize_takes_a_step(tmp_path, savings_known):
    """Found, verified and measured on a step of sequences that have rows already; saved, and run by a session."""
    outputs = cached_model(model(layers=1))
    result = optimize(
        outputs, workload=some(outputs, (1, 7, 20), (1, 1, 3), WORDS), machine=standin.machine(), rounds=3, error=0
    )
    assert all(point.verified and point.measured_error < 1e-6 for point in result.points)
    result.best.program.save(tmp_path / "p")
    loaded, whole = Program.load(tmp_path / "p"), Batch([text(20)])
    session = loaded.start(64)
    sequence = session.join()
    rows = np.concatenate([session.step({sequence: whole.tokens[:13]}), session.step({sequence: whole.tokens[13:]})])
    assert loaded.hash == result.best.program.hash and relative(rows, dense(model(layers=1), whole)) < 1e-5


@pytest.mark.parametrize("threads", [1, 2])
def test_many_rows_and_sequences_at_a_time(threads):
    """Whole prompts in one step, cut into groups, whatever came before."""
    program, step = found()
    with limit(threads):
        session = step.start(3000)
        texts = [text(length, length) for length in (130, 1, 90, 64, 17, 16, 15, 200, 128)]
        sequences = [session.join() for _ in texts]
        session.step({sequences[3]: texts[3][:20], sequences[1]: texts[1]})
        rest = {each: ids[each.length :] for each, ids in zip(sequences, texts, strict=True) if each.length < len(ids)}
        rows = session.step(rest)
    whole = Batch(texts)
    wanted = program.exact(whole)
    kept = [
        i
        for i in range(whole.rows)
        if not (whole.sequence[i] == 1 or (whole.sequence[i] == 3 and whole.positions[i] < 20))
    ]
    assert relative(rows, wanted[kept]) < 1e-5


@pytest.mark.parametrize("exact, within", [(True, 1e-12), (False, 1e-5)])
def test_a_program_of_last_rows_steps_in_last_rows(exact, within):
    """A row a sequence, of the last token of a prompt or of a step: nothing else is computed behind the last
    attention."""
    term, batch = (
        model() @ pick("last") @ weight(Data(np.random.default_rng(1).normal(size=(34, 50)))),
        Batch([text(40), text(30, 1)]),
    )
    program, _ = search(term, EXACT_LAWS, Round(), batch.extents(patterns(term))).program({})
    step = cached(program)
    used = [(each.kernel, each.attributes.get("rows")) for each in step.steps]
    assert ("attention_cached", "last") in used and "attend_once" not in [kernel for kernel, _ in used]
    session, texts = step.start(600, exact), [text(n, n) for n in (41, 7, 200, 1, 3, 90)]
    sequences = [session.join() for _ in texts]
    for cut in (5, 60, 500):
        new = {
            each: ids[each.length : cut]
            for each, ids in zip(sequences, texts, strict=True)
            if each.length < min(cut, len(ids))
        }
        found = session.step(new)
        wanted = program.exact(Batch([ids[:cut] for ids, each in zip(texts, sequences, strict=True) if each in new]))
        assert found.shape == (len(new), 50) and relative(found, wanted) < within


BEHIND = {
    "first": pick("first"),
    "another order": pick(relation("swapped", "T", "T")),
    "mean": formula(lambda x: product(given("members"), x, over=mean)),
}


@pytest.mark.parametrize("behind", BEHIND.values(), ids=BEHIND)
def test_rows_that_are_not_new_have_no_cached_step(behind):
    """They were passed by as if each row were itself."""
    term, batch = model() @ behind, Batch([[1, 2, 3]], relations={"swapped": np.eye(3)[::-1]})
    program, _ = search(term, (), Round(), batch.extents(patterns(term))).program({})
    with pytest.raises(InputError, match=r"= (pool|pick): it reads other rows"):
        cached(program)
    with pytest.raises(InputError, match=r"(given|pick)\(.*: it reads other rows"):
        cached_model(term)


class Interleaved(RuleBasedStateMachine):
    """Any interleaving of joining, stepping, forking, going back and leaving: each new row is that of the whole
    sequence."""

    def __init__(self):
        super().__init__()
        self.program, step = found()
        self.session, self.texts = step.start(10 * PAGE), {}

    sequences = Bundle("sequences")

    @rule(target=sequences)
    def join(self):
        made = self.session.join()
        self.texts[made] = []
        return made

    @rule(target=sequences, of=sequences)
    def fork(self, of):
        made = self.session.fork(of)
        self.texts[made] = [*self.texts[of]]
        return made

    @rule(of=sequences, share=st.floats(0, 1))
    def rewind(self, of, share):
        length = int(share * of.length)
        self.session.rewind(of, length)
        del self.texts[of][length:]

    @rule(of=consumes(sequences))
    def leave(self, of):
        self.session.leave(of)
        del self.texts[of]

    @rule(
        chosen=st.lists(sequences, min_size=1, max_size=4, unique_by=id),
        counts=st.lists(st.integers(1, 2 * PAGE + 3), min_size=4),
        seed=st.integers(0, 99),
    )
    def step(self, chosen, counts, seed):
        new = {each: text(count, seed + i) for i, (each, count) in enumerate(zip(chosen, counts, strict=False))}
        before, free = {each: each.length for each in new}, len(self.session.usage.free)
        try:
            rows = self.session.step(new)
        except InputError as error:
            assert "space C is full" in str(error) and free == len(self.session.usage.free)
            assert all(each.length == length for each, length in before.items())
            return
        for each, ids in new.items():
            self.texts[each] += ids.tolist()
        whole = Batch([self.texts[each] for each in new])
        wanted = self.program.exact(whole)
        kept = np.concatenate(
            [np.arange(stop - len(ids), stop) for stop, ids in zip(whole.starts[1:], new.values(), strict=True)]
        )
        assert relative(rows, wanted[kept]) < 1e-5

    @invariant()
    def pages_are_counted(self):
        """Every page is free, or a sequence ends in it or another page follows it; no more are taken than sequences
        need."""
        assert all(held.length == len(self.texts[held]) for held in self.session.sequences.values())
        counted(self.session)


def counted(session):
    """Every page is free or held, once, and has as many users as it has."""
    chains = {held: chain(session, held) for held in session.sequences.values()}
    followed, usage = {page for pages in chains.values() for page in pages}, session.usage
    assert followed.isdisjoint(usage.free) and len(followed) + len(usage.free) == len(session.before)
    users = [0] * len(session.before)
    for page in followed:
        if (before := session.before[page]) >= 0:
            users[before] += 1
    for held, pages in chains.items():
        assert len(pages) == -(-held.length // PAGE)
        if pages:
            users[pages[0]] += 1
    assert users == usage.users


def chain(session, held):
    """The pages of a sequence, the last one first."""
    pages, page = [], session.state.sequences[held].page
    while page >= 0:
        pages.append(page)
        page = int(session.before[page])
    return pages


TestInterleaved = Interleaved.TestCase
TestInterleaved.settings = settings(
    max_examples=40,
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)


def test_forks_share_pages_until_they_write():
    _, step = found()
    session = step.start(8 * PAGE)
    first = session.join()
    session.step({first: text(2 * PAGE + 3)})
    second = session.fork(first)
    assert len(session.usage.free) == 5
    session.step({first: [1], second: [2]})
    assert len(session.usage.free) == 4, "one of both has a page of its own behind the two that they share"


def test_an_append_is_its_term():
    """cache + product(given("slots"), x): in terms a cache is appended to without a notion of time."""
    rng = np.random.default_rng(0)
    session = found()[1].start(40)
    shape, sequences = (48, 2, 8), [session.join(), session.join()]
    taken, _ = session.take(dict(zip(sequences, (3, 1), strict=True)))
    new = New([[1, 2, 3], [4]], [0, 0], taken, session)
    x, cache = rng.normal(size=(4, 16)), rng.normal(size=shape)
    cache[new.slots] = 0
    entries = np.zeros((48, 4))
    entries[new.slots, range(4)] = 1
    slots = relation("slots", "C", "T")
    term = product(given(slots), I)
    batch = Batch([[1, 2, 3], [4]], relations={"slots": entries})
    wanted = cache.reshape(48, 16) + dense(term, x, batch)
    meant = KERNELS["append"].reference(SimpleNamespace(batch=new, x=x.reshape(4, 2, 8), cache=cache))
    assert np.array_equal(meant.reshape(48, 16), wanted)
    out = cache.astype(np.float32)
    KERNELS["append"].function(out, new, x.reshape(4, 2, 8).astype(np.float32), out)
    assert np.array_equal(out, meant.astype(np.float32))


# ---- what it takes


@pytest.mark.deep
def test_a_thousand_steps_leave_memory_flat():
    """The same caches, where they were; no page is lost; what Python and numpy hold does not grow."""
    import gc
    import tracemalloc

    _, step = found()
    session = step.start(1100)
    one, other = session.join(), session.join()
    session.step({one: [1, 2], other: [3]})
    places, scripts = [cache.ctypes.data for cache in session.caches.values()], step.schedule.segments[0].scripts

    def held():
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    def steps(count):
        for at in range(count):
            if at % 100 == 99:
                for each in (one, other):
                    session.rewind(each, 5)
            session.step({one: [at % WORDS], other: [5]} if at % 5 == 0 else {one: [at % WORDS]})

    tracemalloc.start()
    try:
        steps(1000)  # until Python keeps what it frees
        before, kept = held(), len(scripts)
        steps(1000)
        assert held() - before < 24_000, "fewer bytes a step than a number takes"
    finally:
        tracemalloc.stop()
    assert [cache.ctypes.data for cache in session.caches.values()] == places and len(scripts) == kept
    session.leave(one)
    session.leave(other)
    assert len(session.usage.free) == len(session.before) and not session.sequences


def test_the_plan_counts_the_caches():
    _, step = found()
    session = step.start(500)
    row = 2 * 2 * 2 * 8 * 4  # layers, keys and values, heads, columns, bytes
    held = 512 + PAGE  # a page is nobody's
    assert session.capacity == 512 and session.bytes == held * row == sum(
        cache.nbytes for cache in session.caches.values()
    )
    assert f"{row:,} bytes a row of space C" in str(step).splitlines()[0]
    seen = {pairs[each]: 9 for each in step.patterns}
    peaks = [step.peak_bytes(Extents({**seen, T: 3, S: 1, C: rows})) for rows in (held, 2 * held)]
    assert peaks[1] - peaks[0] == held * row and peaks[0] > session.bytes


def test_a_program_with_state_is_saved_and_does_not_change(tmp_path):
    program, step = by_steps()
    hashed = step.hash
    step.save(tmp_path / "p")
    loaded = Program.load(tmp_path / "p")
    assert loaded.hash == hashed == cached(program).hash
    ids, rows = text(20), []
    for each in (step, loaded):
        session = each.start(64)
        sequence = session.join()
        rows.append(np.concatenate([session.step({sequence: ids[:13]}), session.step({sequence: ids[13:]})]))
    assert np.array_equal(*rows) and step.hash == hashed
