"""Configurations without weights: searched, priced, planned and printed, and refused where numbers are needed."""

import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_models import random_config, random_weights
from safetensors.numpy import load_file
from searched import Round

from formats import FORMATS
from formats.core.errors import InputError
from opmatrix.algebra.batch.extents import counted, patterns
from opmatrix.algebra.data import Promised
from opmatrix.models import build, promised
from opmatrix.runtime.pricing import datasheet
from rewrites.cli.commands import app
from rewrites.laws import EXACT_LAWS
from rewrites.search.planned import planned, shapes
from rewrites.search.search import search

SMALL = dict(
    model_type="transformer",
    vocab_size=50,
    max_position_embeddings=32,
    hidden_size=24,
    intermediate_size=40,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=6,
    norm="rms",
    norm_eps=1e-5,
    pre_norm=True,
    hidden_act="silu",
    gated=True,
    bias=False,
    mask="sequence & causal",
    positions="rotary",
    head="own",
)
LARGE = SMALL | dict(
    vocab_size=32000,
    max_position_embeddings=4096,
    hidden_size=8192,
    intermediate_size=28672,
    num_hidden_layers=80,
    num_attention_heads=64,
    num_key_value_heads=8,
    head_dim=128,
)


@pytest.mark.deep(every=8)
@pytest.mark.parametrize("seed", range(8))
def test_a_plan_is_the_program_with_numbers(seed):
    """The same steps, seconds and bytes as that of random weights, which have no special numbers."""
    rng = np.random.default_rng(seed)
    config = (
        random_config(rng) | dict(positions=("learned", "rotary")[seed % 2], head_dim=2 * (seed + 1)) if seed else SMALL
    )
    operator = build(config, random_weights(config, rng))
    found = search(operator, EXACT_LAWS, Round(), counted([9, 4], patterns(operator)))
    program, _ = found.program({})
    plan = planned(config, Round(), [9, 4])
    assert [(s.kernel, s.attributes) for s in plan.program.steps] == [(s.kernel, s.attributes) for s in program.steps]
    assert plan.time == pytest.approx(found.time) and plan.stored == program.stored_bytes
    assert plan.peak == program.peak_bytes(plan.extents) and plan.program.cost(plan.extents) == program.cost(
        plan.extents
    )
    assert str(plan).splitlines()[2:] == str(program).splitlines()[1:]


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(["dense", "packed", "half", "bf16", "int8"]), st.integers(1, 200), st.integers(1, 200))
def test_a_promised_matrix_has_the_bytes_of_one_with_numbers(name, n, p):
    packed, promise = FORMATS[name].approximate(np.ones((n, p), np.float32)), FORMATS[name].promised(n, p)
    assert promise.nbytes == packed.nbytes and promise.shape == packed.shape and promise.meta() == packed.meta()
    kinds = lambda each: {key: (array.shape, array.dtype) for key, array in each.arrays().items()}
    assert kinds(promise) == kinds(packed)


def test_what_needs_numbers_is_refused_in_a_line(tmp_path):
    program = planned(SMALL, Round()).program
    for use in (
        lambda: program.run([[1]]),
        lambda: program([[1]]),
        lambda: program.exact([[1]]),
        lambda: program.trace([[1]]),
        lambda: program.embed("a"),
        lambda: program.save(tmp_path / "p"),
        lambda: program.hash,
    ):
        with pytest.raises(
            InputError, match="a configuration was planned from a configuration: its weights have no numbers"
        ):
            use()
    assert not (tmp_path / "p").exists()
    leaf = next(node.args[0] for node in promised(SMALL).walk() if node.kind.name == "weight")
    assert isinstance(leaf, Promised)
    with pytest.raises(TypeError, match="is not loaded"):
        leaf.array.sum()


def test_configurations_of_the_command(tmp_path, capsys):
    (file := tmp_path / "config.json").write_text(json.dumps(SMALL))
    app(["optimize", str(file), "--machine", "H100", "--tokens", "16"], standalone_mode=False)
    assert "one sentence of 16 tokens: lower bounds from its data sheet" in capsys.readouterr().out
    with pytest.raises(
        InputError, match="a configuration has no weights to optimize: give their directory, or --machine"
    ):
        app(["optimize", str(file)], standalone_mode=False)
    for text, said in (
        ("[1]", "it is not a configuration, but a JSON list"),
        ("{}", "'model_type' is missing"),
        ("{", "config.json"),
    ):
        file.write_text(text)
        with pytest.raises(InputError, match=said):
            planned(file, datasheet("H100"))


@pytest.mark.deep
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_70_billion_weights_take_less_than_a_gigabyte():
    """Searched, priced, planned and printed in a process of its own, whose memory is looked at."""
    code = f"""
from pathlib import Path
from opmatrix.runtime.pricing import datasheet
from rewrites.search.planned import planned, shapes
plan = planned({LARGE!r}, datasheet("H100"), [512])
assert plan.program.steps[-1].kernel == "linear" and len(plan.program.schedule.calls) > 80 * 10 and str(plan)
lines = Path("/proc/self/status").read_text().splitlines()      # getrusage remembers who forked
said = dict(line.split(":", 1) for line in lines)
print(plan.stored, plan.peak, plan.time, int(said["VmHWM"].split()[0]) * 1024)"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    stored, peak, seconds, resident = map(float, said.split())
    weights = 2 * 32000 * 8192 + 80 * (2 * 8192 * 8192 + 2 * 8192 * 1024 + 3 * 8192 * 28672)
    assert 4 * weights <= stored < 4.01 * weights and resident < 1e9
    assert 512 * 32000 * 4 < peak < 1e9 and 2 * 512 * weights / 2e15 < seconds < 60


@pytest.mark.deep(every=4)
@pytest.mark.parametrize(
    "changed",
    [{}, dict(num_hidden_layers=5), dict(num_key_value_heads=4, head="tied"), dict(head="none", bias=True)],
    ids=str,
)
def test_planned_bytes_are_those_of_the_file(changed, tmp_path):
    """Tables of positions lie there once, however many layers turn their queries and keys by them."""
    config = SMALL | changed
    operator = build(config, random_weights(config, np.random.default_rng(0)))
    found = search(operator, EXACT_LAWS, Round(), counted([9, 4], patterns(operator)))
    program, _ = found.program({})
    program.save(tmp_path / "p")
    kept = load_file(tmp_path / "p" / "weights.safetensors")
    stored = sum(array.nbytes for name, array in kept.items() if not name.startswith("padding"))
    assert found.memory == program.stored_bytes == stored == planned(config, Round(), [9, 4]).stored
    tables = {step.operands[name] for step in program.steps if step.kernel == "rotate" for name in ("cos", "sin")}
    assert (
        len(tables) == 2 and sum(step.kernel == "rotate" for step in program.steps) == 2 * config["num_hidden_layers"]
    )


@pytest.mark.parametrize(
    "change, said",
    [
        ({"hidden_size": "x y"}, "hidden_size is 'x y'"),
        ({"model_type": "none"}, "model_type is 'none'"),
        ({"rope_scaling": {"rope_type": "su"}}, "rope_type is 'su'"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers"),
    ],
    ids=str,
)
def test_what_is_wrong_with_a_configuration_alone_names_its_file(tmp_path, change, said):
    config = {
        "model_type": "llama",
        "hidden_size": 24,
        "intermediate_size": 40,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "vocab_size": 64,
        "max_position_embeddings": 128,
    }
    file = tmp_path / "alone.json"
    file.write_text("\ufeff" + json.dumps(config), "utf-8")
    assert shapes(str(file)).into.cols == 64, "a mark of byte order is no fault"
    file.write_text(json.dumps(config | change))
    with pytest.raises(InputError, match=f"^{re.escape(str(file))}: {said}"):
        shapes(str(file))


@pytest.mark.parametrize(
    "content, said",
    [
        (b"\xff\xfe{\x00}\x00", "not UTF-8: save the file as UTF-8"),
        (b"[1]", "a JSON list"),
        (b"{" * 4000, "not JSON|too deeply"),
    ],
)
def test_what_is_no_configuration(tmp_path, content, said):
    file = tmp_path / "alone.json"
    file.write_bytes(content)
    with pytest.raises(InputError, match=rf"alone\.json: .*({said})"):
        shapes(str(file))


def test_a_configuration_through_a_pipe_is_refused(tmp_path):
    """Reading it would wait for a writer."""
    os.mkfifo(tmp_path / "alone.json")
    with pytest.raises(InputError, match="it is a pipe: give a file"):
        shapes(str(tmp_path / "alone.json"))
