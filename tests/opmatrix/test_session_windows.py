"""Windows in sessions: keys behind them are not seen, pages behind them are given back, forks and rewinds respect that;
a text is what the program gives of the whole."""

import re
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from formats import FORMATS
from formats.core.errors import InputError
from formats.host.threads import limit
from formats.kernels.attentions.chunks import PAGE
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.positions.patterns import causal, sequence, window
from opmatrix.inference.cached import cached, rows_behind
from opmatrix.inference.cached_terms import cached_model, check_sessions
from opmatrix.inference.generation import PROMPT_PIECE, pages_held
from opmatrix.inference.pages import NO_PAGE
from opmatrix.inference.pooling import LAST
from opmatrix.models import build
from opmatrix.runtime.program import Program, Step

WORDS = 30


@cache
def decoder(where, heads=4, shared=2, columns=8, last=False):
    """Two layers of attention with residuals, scores of a vocabulary; perhaps of the last row of a text alone. `where`
    is a text, or one for each layer."""
    rng, width = np.random.default_rng(3), 24

    def packed(*shape):
        return FORMATS["dense"].pack((rng.standard_normal(shape) / shape[0] ** 0.5).astype(np.float32))

    constants, x = {"E": FORMATS["dense"].pack(rng.standard_normal((WORDS, width), np.float32))}, "x0"
    steps = [Step("embed", {"table0": "E"}, {"fields": "tokens"}, x)]
    for layer, seen in enumerate((where, where) if isinstance(where, str) else where):
        for name, count in (("Q", heads), ("K", shared), ("V", shared)):
            constants[name + str(layer)] = packed(width, count * columns)
            steps += [
                Step("linear", {"x": x, "weight": name + str(layer)}, {}, f"{name.lower()}{layer}"),
                Step("heads", {"x": f"{name.lower()}{layer}"}, {"heads": count}, f"{name}h{layer}"),
            ]
        constants[f"O{layer}"] = packed(heads * columns, width)
        steps += [
            Step(
                "attention",
                {"q": f"Qh{layer}", "k": f"Kh{layer}", "v": f"Vh{layer}"},
                {"scale": 0.5, "where": seen},
                f"a{layer}",
            ),
            Step("join", {"x": f"a{layer}"}, {}, f"j{layer}"),
            Step("linear", {"x": f"j{layer}", "weight": f"O{layer}", "residual": x}, {}, x := f"x{layer + 1}"),
        ]
    constants["U"] = packed(width, WORDS)
    if last:
        steps.append(Step("pool", {"x": x}, {"how": "last"}, x := "last"))
    steps.append(Step("linear", {"x": x, "weight": "U"}, {}, "scores"))
    meta = {"config": {"vocab_size": WORDS}, "pooling": LAST.described()} if last else {}
    return Program(steps, constants, "scores", meta)


def seen(w):
    return "sequence & causal" if w is None else f"sequence & causal & window({w})"


def text(count, seed=0):
    return np.random.default_rng(seed).integers(0, WORDS, count)


def entered(program, ids, cuts, **options):
    """Scores of a text that comes in these pieces, and its session."""
    session = cached(program).start(**options)
    held = session.join()
    rows = [session.step({held: ids[low:high]}) for low, high in pairwise(cuts)]
    return np.concatenate(rows), session, held


@pytest.mark.parametrize("w", [0, 1, PAGE - 1, PAGE, PAGE + 1, 100, None])
def test_a_text_in_any_pieces_has_the_bits_of_one_step(w):
    """In float64 those steps are the whole text's; in float32 they are to rounding, on any number of threads."""
    program, ids = decoder(seen(w)), text(290)
    whole = program.run(Batch([ids]))
    once, _, _ = entered(program, ids, [0, 290], capacity=304)
    for cuts in ([*range(291)], [0, 7, 50, 51, 200, 203, 290], [0, 16, 128, 256, 290]):
        for count in (1, 2):
            with limit(count):
                rows, session, _ = entered(program, ids, cuts, capacity=304, rewinds=0)
            assert np.array_equal(rows, once), cuts
    assert abs(once - whole).max() < 1e-5 * abs(whole).max()
    exact, _, _ = entered(program, ids[:60], [0, 33, 34, 60], capacity=64, exact=True)
    wanted = program.exact(Batch([ids[:60]]))
    assert abs(exact - wanted).max() < 1e-12 * abs(wanted).max()
    pages = 290 // PAGE + 1 if w is None else (289 // PAGE) - max(0, 290 - w) // PAGE + 1
    assert len(session.before) - len(session.usage.free) == max(1, pages)


def test_memory_is_that_of_the_window():
    """A text many times as long as the caches."""
    ids = text(900)
    rows, session, held = entered(decoder(seen(20)), ids, [*range(901)], capacity=4 * PAGE, rewinds=0)
    assert held.length == 900 and session.capacity == 64
    once, _, _ = entered(decoder(seen(20)), ids, [0, 900], capacity=912)
    assert np.array_equal(rows, once)


def test_a_layer_that_sees_all_keeps_all():
    program = cached(decoder((seen(5), seen(None))))
    assert rows_behind(cached(decoder(seen(5)))) == 5 and rows_behind(program) > 2**39
    session = program.start(320, rewinds=0)
    held = session.join()
    session.step({held: text(300)})
    assert session.first_held(held) == 0
    once, _, _ = entered(decoder((seen(5), seen(None))), text(300), [0, 300], capacity=304)
    rows, _, _ = entered(decoder((seen(5), seen(None))), text(300), [0, 100, 101, 300], capacity=304)
    assert np.array_equal(once, rows)


def test_forks_keep_what_the_shortest_still_sees():
    session = cached(decoder(seen(20))).start(40 * PAGE, rewinds=0)
    first = session.join()
    session.step({first: text(200)})
    second = session.fork(first)
    for at in range(200):
        session.step({first: [at % WORDS]})
    assert session.first_held(second) == 176 and session.first_held(first) == 368
    assert len(session.before) - len(session.usage.free) == 2 + 2, "those between are nobody's"
    wanted, _, _ = entered(decoder(seen(20)), np.append(text(200), 7), [0, 201], capacity=208)
    assert np.array_equal(session.step({second: [7]})[0], wanted[-1])
    session.leave(second)
    assert len(session.before) - len(session.usage.free) == 2


def test_a_sequence_goes_back_as_far_as_it_was_promised():
    program, ids = decoder(seen(20)), text(400)
    session = cached(program).start(40 * PAGE, rewinds=50)
    held = session.join()
    for at in range(400):
        session.step({held: ids[at : at + 1]})
    for back in (350, 360, 399):
        session.rewind(session.fork(held), back)
    session.rewind(held, 350)
    wanted, _, _ = entered(program, ids, [0, 400], capacity=400)
    assert np.array_equal(session.step({held: ids[350:]}), wanted[350:])
    with pytest.raises(
        InputError,
        match=r"rewind: sequence 1 of 400 rows holds rows 320 and later, but at 200 it "
        r"reads rows 180 and later: go back to 0, or start\(capacity, rewinds=200\)",
    ):
        session.rewind(held, 200)
    assert held.length == 400
    session.rewind(held, 0)
    assert np.array_equal(session.step({held: ids[:30]}), wanted[:30])
    with pytest.raises(InputError, match="start: rewinds is -1"):
        cached(program).start(16, rewinds=-1)


def test_rows_that_are_given_back_one_after_another_add_up():
    """What is then asked for is what makes it possible."""

    def back_twice(rewinds):
        session = cached(decoder(seen(3))).start(8 * PAGE, rewinds=rewinds)
        held = session.join()
        session.step({held: text(42)})
        session.rewind(held, 41)
        session.rewind(held, 34)
        return held.length

    with pytest.raises(InputError, match=r"rewind: sequence 1 of 41 rows .* start\(capacity, rewinds=\d+\)") as refused:
        back_twice(7)
    enough = int(re.search(r"rewinds=(\d+)", str(refused.value))[1])
    assert enough > 7 and back_twice(enough) == 34


@given(st.data())
@settings(max_examples=25, deadline=None)
def test_any_interleaving_is_the_whole_text(data):
    """Sequences that step, fork, go back and leave, pages given back between: the rows are those of one step, to the
    bit, and every page is free or held once."""
    w, rewinds = data.draw(st.sampled_from([0, 3, 16, 33])), data.draw(st.sampled_from([0, 7, 64]))
    program = decoder(seen(w))
    session, texts = cached(program).start(40 * PAGE, rewinds=rewinds), {}
    texts[session.join()] = []
    longest = dict.fromkeys(texts, 0)  # since a sequence had no rows
    for turn in range(data.draw(st.integers(3, 10))):
        one = data.draw(st.sampled_from([*texts]))
        match data.draw(st.sampled_from(["step", "step", "step", "fork", "rewind", "leave"])):
            case "fork" if len(texts) < 4:
                fork = session.fork(one)
                texts[fork], longest[fork] = [*texts[one]], longest[one]
            case "rewind":
                length = max(0, one.length - data.draw(st.integers(0, rewinds - longest[one] + one.length)))
                session.rewind(one, length)
                longest[one] *= length > 0
                del texts[one][length:]
            case "leave" if len(texts) > 1:
                session.leave(one)
                del texts[one]
            case _:
                new = {each: text(data.draw(st.sampled_from([1, 1, 2, 17, 40])), turn) for each in {one, [*texts][-1]}}
                if any(each.length > 120 for each in new):
                    continue
                rows = session.step(new)
                for each, ids in new.items():
                    longest[each] = max(longest[each], each.length)
                    texts[each] += ids.tolist()
                    once, _, _ = entered(program, np.array(texts[each]), [0, len(texts[each])], capacity=240)
                    assert np.array_equal(rows[: len(ids)], once[-len(ids) :])
                    rows = rows[len(ids) :]
        followed = set()
        for each in texts:
            page = session.state.sequences[each].page
            while page != NO_PAGE:
                followed.add(page)
                page = int(session.before[page])
        assert followed.isdisjoint(session.usage.free)
        assert len(followed) + len(session.usage.free) == len(session.before)


@pytest.mark.parametrize("w", [3, 40])
def test_generated_text_needs_no_more_than_the_window(w):
    """A prompt longer than a piece, and a reply, in the session of `generate`; the same tokens as without giving pages
    back, alone and among others, in either number type of caches."""
    program, prompt = decoder(seen(w), last=True), text(PROMPT_PIECE + 90).tolist()
    ids = [*prompt]
    for _ in range(20):
        ids.append(int(program.run(Batch([ids]))[0].argmax()))
    replies = program.generate([prompt, prompt[:5], prompt], max_tokens=20)
    assert replies[0].ids == replies[2].ids == ids[len(prompt) :]
    assert pages_held(w, 10**6) <= (w + PROMPT_PIECE) // PAGE + 3
    assert program.generate([prompt], max_tokens=20, cache="bf16")[0].ids[:1] == ids[len(prompt) :][:1]
    session = cached(program).start(PAGE * pages_held(w + 64, 10**6))
    held = session.join()
    assert session.generate({held: prompt}, max_tokens=20)[0].ids == ids[len(prompt) :]


def test_a_mistral_like_model_has_sessions():
    """Its term looks back by a window, which no term over caches says; its program's session does."""
    config = {
        "model_type": "mistral",
        "vocab_size": 41,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_hidden_layers": 2,
        "sliding_window": 6,
        "max_position_embeddings": 400,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
    }
    from random_models import random_weights

    model = build(config, random_weights(config, np.random.default_rng(0)))
    check_sessions(model)
    with pytest.raises(InputError, match=r"cached: .*window\(5\): no term expresses distances"):
        cached_model(model)
    from searched import Round

    from opmatrix.algebra.batch.extents import patterns
    from rewrites.laws import EXACT_LAWS
    from rewrites.search.search import search

    batch = Batch([[1, 2, 3]])
    program, _ = search(model, EXACT_LAWS, Round(), batch.extents(patterns(model))).program({})
    ids = text(300)
    rows, session, held = entered(program, ids, [0, 100, *range(101, 301)], capacity=12 * PAGE, rewinds=0)
    wanted = program.exact(Batch([ids]))
    assert abs(rows - wanted).max() < 1e-5 * abs(wanted).max()
    assert session.first_held(held) == (300 - 5) // PAGE * PAGE


def test_patterns_that_are_no_windows_are_refused():
    for where in (sequence & causal & window(3) | sequence & causal & window(5),):
        assert where.reach == (5, 0)
    with pytest.raises(InputError, match="with a window or without"):
        cached(decoder("sequence & window(3)"))
    with pytest.raises(InputError, match="with a window or without"):
        cached(decoder("sequence & coarse(causal, 4)"))
