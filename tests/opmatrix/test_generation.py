"""Text that follows prompts: against plain numpy that computes all rows anew for each token; alone, among others that
join and leave, and in sessions that go on."""

import json
import re

import checkpoints
import numpy as np
import pytest
from programs import bert_program
from searched import structure
from speakers import BYTES, SHORT, gpt2, greedy, llama

from formats.core.errors import InputError
from formats.host.threads import limit
from opmatrix.files.checkpoint import open_model
from opmatrix.inference import generation
from opmatrix.inference.cached import cached
from opmatrix.inference.generation import cache_number
from opmatrix.inference.pieces import Pieces
from opmatrix.runtime.program import Program

PROMPTS = ["The history of ", "A", "In 19", "Les Misérables", "He was", "1, 2, 3, "]
DRAWN = dict(temperature=0.8, top_k=40, top_p=0.95, seed=11)


@pytest.mark.parametrize("made, prompts", [(gpt2, PROMPTS[:2]), (llama, [[3, 4, 5], [7], [*range(40)]])])
def test_tokens_are_those_of_all_rows_anew(made, prompts):
    program, scores = made().program, made().scores
    for prompt, reply in zip(prompts, program.generate(prompts, max_tokens=12), strict=True):
        ids = program.tokenizer.encode(prompt).tokens.tolist() if isinstance(prompt, str) else prompt
        assert reply.ids == greedy(scores, ids, 12) and reply.ended == "limit" and [*reply.prompt] == ids


@pytest.mark.parametrize("how", [{}, DRAWN])
def test_a_text_is_the_same_alone_and_among_others(how, monkeypatch):
    """Others join when one leaves, and all end apart: by a space, which here ends a text."""
    program = gpt2().program.replace(ends=[32])
    monkeypatch.setattr(generation, "AT_ONCE", 3)
    together = program.generate(PROMPTS, max_tokens=20, **how)
    with limit(1):
        assert [each.ids for each in program.generate(PROMPTS, max_tokens=20, **how)] == [each.ids for each in together]
    assert len({len(each.ids) for each in together}) > 2
    for i, each in enumerate(together):
        alone = program.generate(PROMPTS[i], max_tokens=20, **how | {"seed": how.get("seed", 0) + i})[0]
        assert (alone.ids, alone.text, alone.ended) == (each.ids, each.text, each.ended)
        assert (each.ended == "end") == (each.ids[-1] == 32) and 32 not in each.ids[:-1]


def test_pieces_are_the_text():
    program, tokenizer = gpt2().program, gpt2().program.tokenizer.tokenizer
    for how in ({}, DRAWN, dict(temperature=3.0)):  # the last draws bytes that are no text
        (reply,) = program.generate("The ", max_tokens=40, **how)
        pieces = [*program.stream_text("The ", max_tokens=40, **how)]
        assert "".join(pieces) == reply.text == tokenizer.decode(reply.ids)


def test_pieces_are_whole_characters():
    tokenizer = gpt2().program.tokenizer.tokenizer
    ids = tokenizer.encode("é 東京🙂!").ids
    pieces = Pieces(tokenizer, [])
    assert [piece for each in ids if (piece := pieces.add(each))] == [*"é 東京🙂!"] and pieces.rest() == ""
    pieces = Pieces(tokenizer, ids[:3])
    assert [pieces.add(each) for each in ids[3:5]] == ["", ""] and pieces.rest() == "\ufffd"


def test_a_session_goes_on():
    """Prompts and replies, one after another, are one text; another sequence is let be."""
    program, scores = llama().program, llama().scores
    session = program.decoder.start(200)
    one, other = session.join(), session.join()
    session.step({other: [9, 8, 7]})
    first = session.generate({one: [3, 4]}, max_tokens=5)[0].ids
    assert one.length == 7 and first == greedy(scores, [3, 4], 5)
    split = session.fork(one)
    again, beside = session.generate({one: [11], other: [12]}, max_tokens=6)
    assert again.ids == greedy(scores, [3, 4, *first, 11], 6) and beside.ids == greedy(scores, [9, 8, 7, 12], 6)
    assert (one.length, other.length, split.length) == (14, 10, 7)
    assert session.generate({split: [11]}, max_tokens=6)[0].ids == again.ids
    session.rewind(split, 7)
    assert session.generate({split: [11]}, max_tokens=3)[0].ids == again.ids[:3]


def test_text_goes_on_without_special_tokens():
    program = gpt2().program
    session = program.decoder.start(256)
    whole = program.generate("The history of art", max_tokens=9)[0].text
    held = session.join()
    session.step({held: program.tokenizer.encode("The history").tokens})
    assert "".join(session.stream_text(held, " of art", max_tokens=9)) == whole and held.length == 18 + 9


def test_a_full_cache_is_known_before():
    session = llama().program.decoder.start(48)
    one, other = session.join(), session.join()
    session.step({one: [1] * 20})
    with pytest.raises(
        InputError,
        match=r"space C is full: .* of 2 sequences need 5 pages of 16 rows, and 1 are "
        r"free: start\(capacity=112\), lower max_tokens, or let sequences leave",
    ):
        session.generate({one: [2], other: [3]}, max_tokens=40)
    assert (one.length, other.length) == (20, 0)
    split = session.fork(one)  # whose last page is copied where one of both goes on
    with pytest.raises(InputError, match="of 1 sequences need 2 pages"):
        session.generate({split: [2]}, max_tokens=20)
    assert len(session.generate({one: [2]}, max_tokens=10)[0].ids) == 10


@pytest.mark.parametrize(
    "prompt, more, said",
    [
        ("", {}, "prompt 0 is empty: give text"),
        ([], {}, "no prompt"),
        ([[1], []], {}, "prompt 1 is empty"),
        ([[1, 1.7]], {}, "prompt 0: 1.7 is not a token id: give whole numbers"),
        ([["1"]], {}, "prompt 0: '1' is not a token id"),
        ([[2, True]], {}, "prompt 0: True is not a token id"),
        ([1.7, 2], {}, "prompt 0: 1.7 is float: give text, or a row"),
        ([True], {}, "prompt 0: True is bool"),
        (b"ab", {}, "prompt 0: b.ab. is bytes"),
        ([b"ab"], {}, "is bytes: give text"),
        ([bytearray(b"a")], {}, "is bytearray"),
        (np.array([[1.0]]), {}, "prompt 0: .*1.0.* is not a token id"),
        ([None], {}, "prompt 0: None is NoneType"),
        ("x" * 128, {}, "prompt 0 has 128 tokens, and the model has positions for 128, prompt and reply"),
        ("a\udc80", {}, "prompt 0, byte 1 is not UTF-8"),
        ("a", dict(max_tokens=0), "max_tokens 0: give a whole number"),
        ("a", dict(temperature=-1), "temperature -1"),
        ("a", dict(top_k=0), "top_k 0"),
        ("a", dict(top_p=0), "top_p 0"),
    ],
)
def test_bad_input_is_one_line(prompt, more, said):
    with pytest.raises(InputError, match=said) as found:
        gpt2().program.generate(prompt, **more)
    assert "\n" not in str(found.value)


def test_a_prompt_with_a_token_that_the_model_has_no_row_for_is_one_line():
    from tokenizers import Tokenizer as Plain

    program = gpt2().program
    added, known = Plain.from_str(program.meta["tokenizer"]), program.meta["config"]["vocab_size"]
    added.add_tokens([f"<{at}>" for at in range(known - added.get_vocab_size() + 1)])
    token = re.escape(added.id_to_token(known))
    words = rf"prompt 1, .*, has the token '{token}' of tokenizer.json, id {known}, and the model has rows"
    prompts = ["a", f"b{added.id_to_token(known)}"]
    with pytest.raises(InputError, match=words):
        program.replace(tokenizer=added.to_str()).generate(prompts)


def test_answers_end_where_positions_do():
    assert len(gpt2().program.generate("x" * 120)[0].ids) == 8


def test_what_is_no_language_model():
    encoder = bert_program(checkpoints.CONFIG, checkpoints.arrays(checkpoints.CONFIG))
    for refused in (lambda: encoder.generate([[1, 2]]), lambda: encoder.stream_text([1, 2])):
        with pytest.raises(InputError, match=r"generate: .* is not a language model: its rows are not scores"):
            refused()
    with pytest.raises(InputError, match="no tokenizer: give token ids"):
        llama().program.generate("text")


def test_a_program_of_all_rows_generates_the_same():
    program, _ = structure(open_model(BYTES).operator(), (), batch=SHORT).program(gpt2().program.meta)
    assert not program.pooled
    assert [each.ids for each in program.generate(PROMPTS[:3], max_tokens=6)] == [
        each.ids for each in gpt2().program.generate(PROMPTS[:3], max_tokens=6)
    ]


def test_caches_of_bf16_are_rounded_once(tmp_path):
    """A step is the meaning of its kernels over rounded rows, and no farther from it than one in float32 is; caches
    take half the bytes. What is saved is loaded, and says what its caches are."""
    found = {}
    for number in ("float32", "bf16"):
        program, ids = cached(llama().program, number), [[3, 4, 5], [7] * 20]
        program.save(tmp_path / number)
        said = json.loads((tmp_path / number / "program.json").read_text())
        loaded, rows = Program.load(tmp_path / number), []
        assert said["version"] == {"float32": 5, "bf16": 6}[number] and loaded.hash == program.hash
        for session in (program.start(64), program.start(64, exact=True), loaded.start(64)):
            each = session.join()
            rows.append(np.concatenate([session.step({each: part}) for part in (*ids, [9])]))
        assert np.array_equal(rows[0], rows[2])
        found[number] = abs(rows[0] - rows[1]).max() / abs(rows[1]).max(), rows[1], program.schedule.cached
    (own, plain, size), (half, rounded, halved) = found.values()
    assert max(own, half) < 2e-6 and size == 2 * halved and 1e-4 < abs(plain - rounded).max() / abs(plain).max() < 2e-2


def test_the_number_type_of_caches():
    """As it is asked for; a program with caches of its own has theirs."""
    program = llama().program
    for number in ("float32", "bf16"):
        assert cache_number(generation.decodable(program, number)) == number
        (reply,) = program.generate([[3, 4, 5]], max_tokens=4, cache=number)
        session = cached(program, number).start(64)
        assert session.generate({session.join(): [3, 4, 5]}, max_tokens=4)[0].ids == reply.ids
    with pytest.raises(InputError, match=r"cache 'bf16': this program already has caches, of float32: leave it out"):
        program.decoder.generate([[3]], cache="bf16")
    for refused in (lambda: program.generate([[3]], cache="int8"), lambda: cached(program, "int8")):
        with pytest.raises(InputError, match=r"cache 'int8': give float32 or bf16"):
            refused()
