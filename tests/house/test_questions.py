"""Twenty questions of somebody new: the file that answers each is in the listing, by a word of the question."""

import re

import pytest
from children import ROOT

QUESTIONS = {
    "Where is ring attention?": "opmatrix/parallel/sharding/ring_attention.py",
    "Where is the 1F1B schedule?": "opmatrix/parallel/schedules/one_f_one_b.py",
    "Where are zero-bubble pipelines?": "opmatrix/parallel/schedules/zero_bubble.py",
    "Where is DualPipe?": "opmatrix/parallel/schedules/dualpipe.py",
    "Where does a value get redistributed over a mesh?": "opmatrix/parallel/sharding/redistribute.py",
    "Where is the device mesh?": "opmatrix/parallel/sharding/mesh.py",
    "Where are tokens dispatched to experts (MoE)?": "opmatrix/parallel/sharding/moe_dispatch.py",
    "Where are ranks launched as processes?": "opmatrix/parallel/launch/launcher.py",
    "Where does the planner search strategies?": "opmatrix/parallel/search/strategy_search.py",
    "Where is a step's memory predicted, part by part?": "opmatrix/parallel/cost/memory_parts.py",
    "Where is the pullback?": "opmatrix/autodiff/pullback.py",
    "Where is the checkpoint policy, which says what is saved for backward?": "opmatrix/autodiff/checkpoint_policy.py",
    "Where is the N:M format?": "formats/storage/nm.py",
    "Where are collectives priced?": "formats/machine/collectives.py",
    "Where is the e-graph saturated?": "rewrites/egraph/egraph.py",
    "Where is the exact search?": "rewrites/search/search.py",
    "Where is the law of online softmax attention?": "rewrites/laws/attention.py",
    "Where is an equation refuted?": "rewrites/proofs/refute.py",
    "Where is text generated?": "opmatrix/inference/generation.py",
    "Where is the GGUF reader?": "opmatrix/files/gguf.py",
}


def words(text):
    """The stems of a text's words: four letters, or the word where it is shorter."""
    return {word[:4] for word in re.findall(r"[a-z0-9]+", text.lower().replace("1f1b", "one f one b"))}


@pytest.mark.parametrize("question, answer", QUESTIONS.items())
def test_the_answer_is_there(question, answer):
    assert (ROOT / answer).is_file()


def test_the_listing_answers():
    """The name of the file shares a word with the question, in 18 of 20 at least."""
    told = [
        question
        for question, answer in QUESTIONS.items()
        if words(question) & words(answer.rpartition("/")[2].removesuffix(".py").replace("_", " "))
    ]
    assert len(QUESTIONS) == 20 and len(told) >= 18, {*QUESTIONS} - {*told}
