"""Texts that end at a stop string, however it is cut into pieces."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from speakers import gpt2, llama

from formats.core.errors import InputError
from opmatrix.inference.chat.stop_strings import StopStrings

LETTERS = st.text("ab", max_size=12)


@given(st.lists(LETTERS, max_size=8), st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3))
def test_pieces_end_before_the_first_that_is_complete(pieces, stops):
    """After every piece the text is that before the first stop string so far; what may still begin one is kept
    back, and the last piece keeps nothing."""
    check, text, given_out = StopStrings(stops), "", ""
    for number, piece in enumerate(pieces):
        text += piece
        more, stopped = check.add(piece, last=number == len(pieces) - 1)
        given_out += more
        complete = [text.find(stop) for stop in stops if stop in text]
        assert stopped == bool(complete)
        if stopped:
            assert given_out == text[: min(complete)]
            return
        assert text.startswith(given_out)
    assert given_out == text


def test_a_reply_ends_at_a_stop_string_across_tokens():
    """Tokens are bytes, so each string is of several tokens."""
    program = gpt2().program
    whole = program.generate("The history of ", max_tokens=30)[0]
    for stop in (whole.text[4:7], ["never", whole.text[8:10], whole.text[20:]]):
        (reply,) = program.generate("The history of ", max_tokens=30, stop=stop)
        first = min(whole.text.find(each) for each in ([stop] if isinstance(stop, str) else stop) if each in whole.text)
        assert (reply.text, reply.ended) == (whole.text[:first], "stop")
        assert reply.ids == whole.ids[: len(reply.ids)] and len(reply.ids) < 30
        assert "".join(program.stream_text("The history of ", max_tokens=30, stop=stop)) == reply.text
    assert program.generate("The history of ", max_tokens=30, stop=["\0"])[0].text == whole.text


@pytest.mark.parametrize(
    "stop, said", [("", "''"), ([""], "''"), ([1], "1"), (["a"] * 65, "65 strings: give 64 at most")]
)
def test_bad_stop_strings_are_one_line(stop, said):
    if stop == "":
        assert StopStrings.of([]) is None
    with pytest.raises(InputError, match=f"^stop: {said}"):
        gpt2().program.generate("a", max_tokens=1, stop=stop)


def test_token_ids_alone_have_no_stop_strings():
    with pytest.raises(InputError, match=r"^stop 'a': this program has no tokenizer"):
        llama().program.generate([1], max_tokens=1, stop="a")
