"""Settings of stacks: what is written is read back equal for drawn layouts, published scripts are read as what they
are, and what cannot be read is one line."""

import json
import os
from dataclasses import fields, replace

import pytest
from declared_arguments import SOURCES, dataclasses_of, options_of, table_of
from hypothesis import given, settings
from hypothesis import strategies as st
from published_settings import PUBLISHED

from formats.core.errors import InputError
from opmatrix.parallel.settings.known_settings import SETTINGS, read_settings, read_text, settings_of, write_settings
from opmatrix.parallel.settings.run_layout import RunFacts, RunLayout, even_layers
from opmatrix.parallel.settings.spellings import ARGUMENT_TABLE, ReadValues

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
    fields_of_stack = SETTINGS[stack].fields
    tp, cp, ep = (draw(st.sampled_from([1, 2, 4])) for _ in range(3))
    pp = draw(st.sampled_from([1, 2, 4, 8])) if "virtual" in fields_of_stack else 1
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

    @settings(max_examples=80, deadline=None, derandomize=True)
    @given(layouts(stack))
    def both_ways(drawn):
        layout, facts = drawn
        text = write_settings(layout, SETTINGS[stack], facts, form)
        again = read_text(text, form, SETTINGS[stack], facts)
        assert stated_by(again.layout, stack) == stated_by(layout, stack)
        assert not again.unknown and not again.otherwise
        assert write_settings(again.layout, SETTINGS[stack], facts, form) == text

    both_ways()


USUAL = dict(
    tp=1,
    pp=1,
    cp=1,
    ep=1,
    virtual=1,
    zero=0,
    sequence=False,
    recompute="none",
    context="ring",
    schedule="1f1b",
    whole_experts=False,
    precision="bf16",
)


@pytest.mark.parametrize("script", PUBLISHED, ids=lambda script: script.source.split("/")[-1])
def test_published_scripts_are_read_and_written_back(script):
    """Each is the layout that it is known to be; written without a look at its arguments it has the same ones again,
    but for those that follow from others."""
    stack, facts = SETTINGS[script.stack], RunFacts(script.layers, script.devices)
    read = stack.read(script.arguments, facts)
    wanted = RunLayout(**{**{name: value for name, value in USUAL.items() if name in stack.fields}, **script.layout})
    assert read.layout == wanted and not read.unknown and not read.unpriced
    assert {*read.otherwise} <= {*script.derived}
    arguments = stack.declared.arguments
    stated, written = ReadValues(read.arguments, arguments), ReadValues(stack.write(read.layout, facts), arguments)
    compared = stack.names - {*script.derived}
    assert {name: written[name] for name in compared} == {name: stated[name] for name in compared}
    again = read_text(write_settings(read.layout, stack, facts), stack.forms[0], stack, facts)
    assert again.layout == read.layout


MEGATRON_SCRIPT = """#!/bin/bash
NODES=${NODES:-4}
TP=8 # tensor ranks
DEEP=2
MORE="--recompute-granularity full --recompute-method block \\
    --recompute-num-layers $DEEP"
GPT_ARGS=(
    --tensor-model-parallel-size ${TP} --sequence-parallel  # norms
    --pipeline-model-parallel-size "4"
    --micro-batch-size ${MICRO:-1}
    --global-batch-size=64 --seq-length 4096 --bf16 --lr 1e-4
    --new-argument 7
)
torchrun --nproc_per_node 8 train.py ${GPT_ARGS[@]} $MORE --use-distributed-optimizer | tee log
"""


def test_a_script_is_read_with_its_variables():
    read = read_text(MEGATRON_SCRIPT, "script", SETTINGS["megatron"], RunFacts(32, 64))
    wanted = dict(
        tp=8, pp=4, sequence=True, micro_batch=1, batch=64, seq=4096, zero=1, recompute="full", again=(2,) * 4
    )
    assert read.layout == RunLayout(**USUAL | wanted)
    assert read.unknown == ("new-argument",) and read.arguments["new-argument"] == "7"
    text = write_settings(read.layout, SETTINGS["megatron"], RunFacts(32, 64), beside=read)
    again = read_text(text, "script", SETTINGS["megatron"], RunFacts(32, 64))
    assert again.layout == read.layout and again.arguments["lr"] == 1e-4 and again.unknown == read.unknown


TWICE = "--pipeline-model-parallel-size 2 --pipeline-model-parallel-size 4"
EXPERTS = "--expert-model-parallel-size 4 --tensor-model-parallel-size 2"
OTHER_SCHEDULE = "[parallelism]\npipeline_parallel_degree = 2\npipeline_parallel_schedule = 'ZBV'"
TOO_MANY = "parallel_config:\n  pipeline_stage: 2\nrecompute_config:\n  recompute: [17, 0]"
SHORT_LIST = "parallel_config:\n  pipeline_stage: 4\nmodel: {model_config: {offset: [1, 2]}}"
WRONG = [
    ("megatron", "--bf16 --fp16", "bf16, fp16: give one of them"),
    ("megatron", "--tensor-model-parallel-size two", "tensor-model-parallel-size two: it is no whole number"),
    ("megatron", "--tensor-model-parallel-size", "tensor-model-parallel-size: its value is missing"),
    ("megatron", "--tensor-model-parallel-size 0", "give a whole number from 1 on"),
    ("megatron", "--tensor-model-parallel-size 1e99", "it is no whole number"),
    ("megatron", TWICE, "it is stated twice, as 2 and as 4"),
    ("megatron", "--sequence-parallel 'open", "no closing quotation: it is no shell script"),
    ("megatron", "--num-layers 31", "num-layers 31: the model has 32 layers"),
    ("megatron", "--pipeline-model-parallel-size 5", "32 layers: 5 chunks do not divide them"),
    ("megatron", "--pipeline-model-parallel-layout 'Et*32|L|x'", "it has E embedding, t layer"),
    ("megatron", "--pipeline-model-parallel-layout 'E(t)*999999999L'", "it stands for more than"),
    ("megatron", "--pipeline-model-parallel-layout 'Et*30L'", "they are 30 layers of 1 chunks"),
    ("megatron", "--recompute-granularity all", "recompute-granularity all: .*it is one of full, selective"),
    ("megatron", "--recompute-granularity full", "it needs recompute-method and recompute-num-layers"),
    ("megatron", EXPERTS, "it needs sequence-parallel"),
    ("megatron", "--tensor-model-parallel-size 4 --expert-tensor-parallel-size 2", "a plan has 1 .whole experts. or"),
    ("megatron", "nothing at all", "it has no argument of Megatron-LM"),
    ("mindspeed", "--pipeline-model-parallel-size 4 --num-layer-list 8,8,x", "give whole numbers with commas"),
    ("mindspeed", "--noop-layers 40 --num-layers 33 --pipeline-model-parallel-size 3", "noop-layers 40: there are 33"),
    ("torchtitan", "[parallelism", "it is no TOML"),
    ("torchtitan", "[parallelism]\ntensor_parallel_degree = 3", "64 devices do not divide by 3 other ranks"),
    ("torchtitan", "[training]\nlocal_batch_size = 4\nglobal_batch_size = 130", "do not divide it"),
    ("torchtitan", OTHER_SCHEDULE, "ZBV: a plan has 1F1B"),
    ("torchtitan", "[activation_checkpoint]\nselective_ac_option = 'two'", "give op, or each how many layers"),
    ("deepspeed", "{", "it is no JSON"),
    ("deepspeed", "[1, 2]", "it has no keys with values"),
    ("deepspeed", '{"zero_optimization": {"stage": 4}}', "zero_optimization.stage 4: it is one of 0, 1, 2, 3"),
    ("deepspeed", '{"bf16": {"enabled": true}, "fp16": {"enabled": true}}', "give one of them"),
    ("deepspeed", '{"train_batch_size": 10, "train_micro_batch_size_per_gpu": 4}', "do not divide it"),
    ("mindformers", "parallel_config: [", "it is no YAML"),
    ("mindformers", SHORT_LIST, "give 4 whole"),
    ("mindformers", TOO_MANY, "layers computed again 17,0: .* at most that of its chunk: 16,16"),
]


@pytest.mark.parametrize("stack, text, words", WRONG)
def test_what_cannot_be_read_is_one_line(stack, text, words, tmp_path):
    file = tmp_path / f"run.{SETTINGS[stack].forms[0]}"
    file.write_text(text)
    with pytest.raises(InputError, match=words) as error:
        read_settings(file, SETTINGS[stack], RunFacts(32, 64))
    assert str(file) in str(error.value) and "\n" not in str(error.value)


def test_files_that_are_none_and_stacks_without_settings_are_one_line(tmp_path):
    with pytest.raises(InputError, match="No such file"):
        read_settings(tmp_path / "none.sh", SETTINGS["megatron"], RunFacts(32, 64))
    (tmp_path / "bytes.sh").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="no text of UTF-8"):
        read_settings(tmp_path / "bytes.sh", SETTINGS["megatron"], RunFacts(32, 64))
    with pytest.raises(InputError, match="give --stack"):
        settings_of(None, "--settings")
    with pytest.raises(InputError, match="did you mean megatron"):
        settings_of("megatrn", "--settings")
    deep = json.dumps({f"key{at}": at for at in range(20_001)})
    with pytest.raises(InputError, match="more than 20,000 values"):
        read_text(deep, "json", SETTINGS["deepspeed"], RunFacts(32, 64))


@pytest.mark.parametrize(
    "stack, fields, words",
    [
        ("megatron", dict(pp=4, schedule="zb-h1"), "this stack runs 1f1b"),
        ("megatron", dict(pp=4, recompute="full", again=(8, 4, 2, 0)), "computes as many again on each stage"),
        ("megatron", dict(zero=2), "zero 2: this stack has no setting"),
        ("torchtitan", dict(dp=4, zero=1), "torchtitan has ZeRO 2"),
        ("torchtitan", dict(tp=2, sequence=False), "torchtitan cuts them"),
        ("mindformers", dict(precision="fp8"), "precision fp8: this stack has no setting"),
        ("mindformers", dict(pp=4, cut=(9, 9, 9, 9)), "they are 36 layers"),
    ],
)
def test_what_a_stack_has_no_setting_for_is_one_line(stack, fields, words):
    with pytest.raises(InputError, match=words):
        write_settings(RunLayout(**{**USUAL, **fields}), SETTINGS[stack], RunFacts(32, 64))


def test_what_settings_do_not_state_is_listed():
    """DeepSpeed's file has no stages, no recomputation and no norms."""
    layout = RunLayout(**USUAL | dict(pp=4, recompute="full", zero=1, dp=2))
    assert [*SETTINGS["deepspeed"].beside(layout)] == ["pp 4", "recompute full"]
    assert not [*SETTINGS["megatron"].beside(layout)]


PARSER = """
group.add_argument('--ranks', '-r', type=int, default=1, help='ranks')
group.add_argument("--recipe", default='delayed', choices=['delayed', 'mxfp8'], dest='kind')
group.add_argument('--ways', nargs='+', type=str, default=["p2p"])
group.add_argument('--no-fusion', action='store_false', dest='fusion')
"""
DATACLASSES = """
class Parallelism:
    ranks: int = -1
    reshard: Literal["default", "never"] = "default"
    parts: list[list[str]] | None = None
class JobConfig:
    parallelism: Parallelism = field(default_factory=Parallelism)
"""


def test_tables_are_what_stacks_declare():
    """Names, kinds, defaults and choices are read off sources without running them; OPMATRIX_STACK_CHECKOUTS, such as
    "megatron=CHECKOUT@REF ..", names checkouts whose tables are compared with those of the package."""
    assert options_of(PARSER) == {
        "ranks": {"kind": "int", "default": 1},
        "recipe": {"kind": "str", "default": "delayed", "choices": ["delayed", "mxfp8"]},
        "ways": {"kind": "str", "default": ["p2p"], "many": True},
        "no-fusion": {"kind": "flag", "default": False},
    }
    assert dataclasses_of(DATACLASSES) == {
        "parallelism.ranks": {"kind": "int", "default": -1},
        "parallelism.reshard": {"kind": "str", "default": "default", "choices": ["default", "never"]},
        "parallelism.parts": {"kind": "list", "default": None},
    }
    shipped = json.loads(ARGUMENT_TABLE.read_text("utf-8"))
    assert {*shipped} == {*SOURCES} and all(len(entry["commit"]) == 40 for entry in shipped.values())
    for word in os.environ.get("OPMATRIX_STACK_CHECKOUTS", "").split():
        stack, place = word.split("=")
        assert shipped[stack] == table_of(stack, *place.split("@"))


def test_operations_that_are_selected_by_name_are_read_as_selective():
    """By stage as the first of them; the names are not written beside the list that they become."""
    text = (
        "parallel_config: {pipeline_stage: 2}\nrecompute_config:\n  recompute: False\n"
        "  select_recompute: {'mul': [3, 0], 'silu': [3, 0]}\n"
    )
    read = read_text(text, "yaml", SETTINGS["mindformers"], RunFacts(8, 2))
    assert (read.layout.recompute, read.layout.again) == ("selective", (3, 0)) and len(read.otherwise) == 2
    written = write_settings(read.layout, SETTINGS["mindformers"], RunFacts(8, 2), beside=read)
    assert "select_recompute: [3, 0]" in written and "mul" not in written


def test_arguments_beside_the_layout_may_be_anything():
    """A variable that is not assigned, a value of a later version, a second value."""
    text = "--micro-batch-size 1 --train-iters ${STEPS} --tokenizer-type New --lr 1 --lr 2"
    read = read_text(text, "script", SETTINGS["megatron"], RunFacts(8, 2))
    assert read.arguments["train-iters"] == "${STEPS}" and read.arguments["lr"] == 2 and not read.unknown
