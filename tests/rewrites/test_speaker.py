"""Replies of a language model to several requests at once, by the thread that writes them, without a server."""

from queue import SimpleQueue

import pytest
from speakers import gpt2

from opmatrix.inference.chat.held_prefixes import HeldPrefixes
from opmatrix.inference.generation import PromptReader, Reply, ReplyBounds
from opmatrix.inference.sampling import Sampling
from rewrites.serving import speaker as speaking
from rewrites.serving.refusals import Refused
from rewrites.serving.serving_counters import ServingCounters
from rewrites.serving.serving_limits import ServingLimits
from rewrites.serving.speaker import QueuedReply, Speaker

ENDS = 60  # seconds until a test gives up
PROMPTS = ["In ", "The history of ", "x" * 100, "In ", "England and "]


@pytest.fixture
def opened():
    """Opens speakers with limits, and closes them."""
    speakers = []

    def open_speaker(**limits):
        speakers.append(Speaker(gpt2().program.replace(), ServingLimits(**limits), ServingCounters()))
        return speakers[-1]

    yield open_speaker
    for each in speakers:
        each.close()
        assert not each.thread.is_alive() and not each.held.used


def queued(prompt, most=10, **sampling):
    """A reply to be written, and the queue of its events."""
    events = SimpleQueue()
    reply = PromptReader.of(gpt2().program).begin(prompt, 0, ReplyBounds(most))
    return QueuedReply(reply, Sampling(**sampling), events.put), events


def written(events):
    """The pieces of a reply, and the event that ends it."""
    pieces = []
    while isinstance(event := events.get(timeout=ENDS), str):
        pieces.append(event)
    return pieces, event


@pytest.mark.parametrize("piece", [1, 7, 16, 128])
@pytest.mark.parametrize("context", [160, 1024])
def test_replies_are_those_of_prompts_alone(opened, monkeypatch, piece, context):
    """Prompts enter in pieces of any size, beside replies; those without room wait for the others."""
    monkeypatch.setattr(speaking, "PROMPT_ROWS", piece)
    speaker = opened(context=context)
    requests = [queued(prompt, temperature=float(at % 2), seed=at) for at, prompt in enumerate(PROMPTS)]
    for request, _ in requests:
        speaker.submit(request)
    for at, (request, events) in enumerate(requests):
        pieces, end = written(events)
        (alone,) = gpt2().program.generate(PROMPTS[at], max_tokens=10, temperature=float(at % 2), seed=at)
        assert end is request.reply and (end.ids, end.text) == (alone.ids, alone.text)
        assert "".join(pieces) == alone.text


def test_a_long_prompt_keeps_no_reply_waiting(opened, monkeypatch):
    """While a prompt of 100 tokens enters by 5 a step, a reply that was begun has 10 and more."""
    monkeypatch.setattr(speaking, "PROMPT_ROWS", 5)
    speaker, told = opened(context=1024), SimpleQueue()
    short, _ = queued("In ", most=100)
    long, _ = queued("x" * 100, most=1)
    short.tell, long.tell = (lambda event: told.put(("short", event))), (lambda event: told.put(("long", event)))
    speaker.submit(short)
    assert told.get(timeout=ENDS)[0] == "short"
    speaker.submit(long)
    before = 0
    while told.get(timeout=ENDS)[0] == "short":
        before += 1
    assert before >= 10
    speaker.give_up(short)


def test_a_reply_that_is_given_up_is_written_no_further(opened):
    speaker = opened(context=1024)
    request, events = queued("In ", most=100)
    speaker.submit(request)
    assert isinstance(events.get(timeout=ENDS), str)
    speaker.give_up(request)
    other, others = queued("The ", most=3)
    speaker.submit(other)
    assert written(others)[1] is other.reply
    assert len(request.reply.ids) < 100 and request not in speaker.live


def test_a_reply_that_is_given_up_while_it_finds_no_room_is_not_written(opened, monkeypatch):
    """Its place in the queue is lost, although it was being begun."""
    speaker, take = opened(context=160), HeldPrefixes.take
    first, firsts = queued("x" * 60, most=60)
    second, seconds = queued("y" * 60, most=60)

    def taking(self, reply):
        if reply is second.reply:
            speaker.give_up(second)
        return take(self, reply)

    monkeypatch.setattr(HeldPrefixes, "take", taking)
    speaker.submit(first)
    speaker.submit(second)
    assert written(firsts)[1] is first.reply
    other, others = queued("z", most=2)
    speaker.submit(other)
    assert written(others)[1] is other.reply and seconds.empty() and not second.reply.ids


def test_a_fault_in_beginning_a_reply_is_told_to_it_alone(opened, monkeypatch):
    speaker, take = opened(context=1024), HeldPrefixes.take
    monkeypatch.setattr(HeldPrefixes, "take", lambda self, reply: 1 / 0)
    wrong, wrongs = queued("In ")
    speaker.submit(wrong)
    assert isinstance(written(wrongs)[1], ZeroDivisionError)
    monkeypatch.setattr(HeldPrefixes, "take", take)
    right, rights = queued("In ", most=2)
    speaker.submit(right)
    assert written(rights)[1] is right.reply


def test_a_reply_that_waits_keeps_the_rows_that_it_continues(opened):
    """Another fills the session meanwhile."""
    speaker = opened(context=160)
    begun, events = queued("The history of ", most=2)
    speaker.submit(begun)
    written(events)
    filling, fillings = queued("x" * 70, most=60)
    waiting, waitings = queued("The history of England", most=40)
    speaker.submit(filling)
    assert isinstance(fillings.get(timeout=ENDS), str)
    speaker.submit(waiting)
    assert written(fillings)[1] is filling.reply
    assert written(waitings)[1].reused == 15


def test_prompts_that_begin_alike_are_not_computed_again(opened):
    speaker = opened(context=1024)
    for prompt, reused in (("The history of ", 0), ("The history of", 13), ("The history of England", 15)):
        request, events = queued(prompt, most=2)
        speaker.submit(request)
        _, end = written(events)
        assert isinstance(end, Reply) and end.reused == reused


def test_what_is_refused(opened):
    speaker = opened(context=64, queue=2048)
    with pytest.raises(Refused, match=r"prompt and reply have 105 tokens.*--context"):
        speaker.submit(queued("x" * 100, most=5)[0])
    speaker.close()
    with pytest.raises(Refused, match="the server ends"):
        speaker.submit(queued("In ")[0])


def test_a_reply_that_fails_fails_alone(opened, monkeypatch):
    """An error of one choice is told to its request; an error of a step to all that were in it."""
    speaker, choose = opened(context=1024), Sampling.choose

    def failing(self, scores, position, sequence=0):
        if self.seed == 13:
            raise speaking.InputError("scores: none")
        return choose(self, scores, position, sequence)

    monkeypatch.setattr(Sampling, "choose", failing)
    wrong, wrongs = queued("In ", seed=13)
    right, rights = queued("The ", seed=3)
    speaker.submit(right)
    speaker.submit(wrong)
    assert str(written(wrongs)[1]) == "scores: none" and written(rights)[1] is right.reply
    monkeypatch.setattr("opmatrix.inference.session.Session.step", lambda *_: 1 / 0)
    both = [queued("In "), queued("The ")]
    for request, _ in both:
        speaker.submit(request)
    assert all(isinstance(written(events)[1], ZeroDivisionError) for _, events in both)
