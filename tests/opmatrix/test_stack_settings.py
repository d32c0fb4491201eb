"""Settings of stacks: what is written is read back equal for drawn layouts, published scripts read as what they are, and
what cannot be read is one line."""

import json
from dataclasses import fields, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from formats.core.errors import InputError
from opmatrix.parallel.cost.stacks import STACKS
from opmatrix.parallel.settings.known_settings import SETTINGS, read_settings, read_text, settings_of, write_settings
from opmatrix.parallel.settings.run_layout import RunFacts, RunLayout, even_layers

SHARES = 1, 2, 3, 5


def uneven(draw, layers, chunks):
    """Layers of each chunk, one at least, that add up."""
    ends = sorted(draw(st.lists(st.integers(1, layers - 1), min_size=chunks - 1, max_size=chunks - 1, unique=True)))
    return tuple(end - start for start, end in zip([0, *ends], [*ends, layers], strict=True))


def chosen(draw, stack, name, usual):
    """A choice that a stack's settings have."""
    return draw(st.sampled_from(CHOICES[stack].get(name, [usual])))


CHOICES = {
    "megatron": dict(
        zero=[0, 1],
        recompute=["none", "selective", "full"],
        context=["ring", "ulysses"],
        precision=["bf16", "float16", "float32", "fp8", "mxfp8"],
        sequence=[False, True],
        whole_experts=[False, True],
        virtual=[1, 2, 3],
    ),
    "torchtitan": dict(
        zero=[2, 3],
        recompute=["none", "selective", "full"],
        precision=["bf16", "float32", "fp8", "mxfp8"],
        sequence=[True],
        schedule=["1f1b", "gpipe", "zb-h1"],
        virtual=[1, 2, 3],
    ),
    "deepspeed": dict(zero=[0, 1, 2, 3], precision=["bf16", "float16", "float32"]),
    "mindformers": dict(
        zero=[0, 1],
        recompute=["none", "selective", "full"],
        context=["ring", "ulysses"],
        precision=["bf16", "float16", "float32"],
        sequence=[False, True],
        virtual=[1, 2, 3],
    ),
}
CHOICES["mindspeed"] = CHOICES["megatron"]
LISTED_AGAIN = "mindformers"


@st.composite
def layouts(draw, stack):
    """A layout that a stack's settings state, and the model and devices that it is for."""
    own = SETTINGS[stack].fields
    tp, cp, ep = (draw(st.sampled_from([1, 2, 4])) for _ in range(3))
    pp = draw(st.sampled_from([1, 2, 4, 8])) if "virtual" in own else 1
    virtual = chosen(draw, stack, "virtual", 1) if pp > 1 else 1
    chunks, dp, micro = pp * virtual, draw(st.sampled_from([1, 2, 6])), draw(st.sampled_from([1, 2, 4]))
    layers = chunks * draw(st.sampled_from(SHARES)) + draw(st.integers(0, 5)) + 2
    cut = draw(st.sampled_from([even_layers(layers, chunks), uneven(draw, layers, chunks)])) if pp > 1 else None
    recompute = chosen(draw, stack, "recompute", "none")
    again = None
    if stack == LISTED_AGAIN and pp > 1 and recompute != "none" and draw(st.booleans()):
        again = tuple(draw(st.integers(0, most)) for most in cut)
    elif stack in ("megatron", "mindspeed") and recompute == "full" and draw(st.booleans()):
        again = tuple(min(2, most) for most in cut or (layers,))
    several = "interleaved" if virtual > 1 else chosen(draw, stack, "schedule", "1f1b")
    facts = RunFacts(layers, dp * tp * pp * cp)
    layout = RunLayout(
        dp=dp,
        tp=tp,
        pp=pp,
        cp=cp,
        ep=ep,
        micro_batch=micro,
        virtual=virtual,
        zero=chosen(draw, stack, "zero", 0),
        sequence=tp > 1 and (chosen(draw, stack, "sequence", False) or ep > 1),
        recompute=recompute,
        context=chosen(draw, stack, "context", "ring"),
        schedule=several if pp > 1 else "1f1b",
        whole_experts=chosen(draw, stack, "whole_experts", False),
        precision=chosen(draw, stack, "precision", "bf16"),
        batch=dp * micro * draw(st.sampled_from([1, 4, 8])),
        seq=draw(st.sampled_from([512, 4096])),
        cut=cut,
        again=again,
    )
    return replace(layout, zero=0 if stack == "torchtitan" and dp * cp == 1 else layout.zero).simplest(facts), facts


def stated_by(layout, stack):
    """The fields of a layout that a stack's settings state; for DeepSpeed the rest is the program's."""
    return {field.name: getattr(layout, field.name) for field in fields(layout) if field.name in SETTINGS[stack].fields}


FORMS = [(stack, form) for stack, entry in SETTINGS.items() for form in entry.forms]


@pytest.mark.parametrize("stack, form", FORMS)
def test_what_is_written_is_read(stack, form):
    """Over drawn layouts, in each form of a stack's files."""

    @settings(max_examples=150, deadline=None, derandomize=True)
    @given(layouts(stack))
    def both_ways(drawn):
        layout, facts = drawn
        text = write_settings(layout, SETTINGS[stack], facts, form)
        again = read_text(text, form, SETTINGS[stack], facts)
        assert stated_by(again.layout, stack) == stated_by(layout, stack)
        assert not again.unknown and not again.otherwise
        assert write_settings(again.layout, SETTINGS[stack], facts, form) == text

    both_ways()
