"""The command `partition`: what it prints, and that what cannot be is refused in a line."""

import json
import re

import pytest
from partitioned import GPT2, LLAMA, command_runner

CONFIG = GPT2 | dict(n_embd=12, n_head=6, n_layer=4)


@pytest.fixture
def said(tmp_path, monkeypatch, capsys):
    """Runs the command in a folder with some models, and gives status, output and errors."""
    monkeypatch.chdir(tmp_path)
    for name, config in dict(
        tiny=CONFIG,
        llama=LLAMA,
        named=LLAMA | dict(hidden_size="h", intermediate_size="f"),
        layers=CONFIG | dict(n_layer="l"),
    ).items():
        (tmp_path / f"{name}.json").write_text(json.dumps(config))
    (tmp_path / "further.json").write_text(json.dumps(LLAMA | dict(num_nextn_predict_layers=2)))
    (tmp_path / "damaged.json").write_text('{"model_type": "gpt2", ')
    (tmp_path / "list.json").write_text("[1]")
    for name in ("directory", "empty"):
        (tmp_path / name).mkdir()
    (tmp_path / "directory" / "config.json").write_text(json.dumps(CONFIG))
    return command_runner("partition", monkeypatch, capsys)


@pytest.mark.deep(every=5)
@pytest.mark.parametrize(
    "line, words",
    [
        ("tiny.json --tp 8", r"mesh: tp has 8 ranks, and .* gives 6 heads: the nearest that divides is 6"),
        ("llama.json --tp 4", r"gives 6 heads in groups of 2: the nearest that divides is 2"),
        ("tiny.json --pp 5", r"mesh: 5 stages of 4 layers: at most 4 stages, of a layer each"),
        ("tiny.json --pp 2 --stages 1,2", r"stages \[1, 2\]: give 2 numbers of layers, each from 1 on, 4 in all"),
        (
            "tiny.json --pp 2 --stages 2,x",
            r"--stages 2,x: numbers of layers with commas between them, such as 10,12,10",
        ),
        ("tiny.json --tp 0", r"'--tp'.* greater than or equal to 1"),
        ("tiny.json --dp 2 --zero 4", r"zero 4: a stage of ZeRO is 0, 1, 2 or 3"),
        ("tiny.json --zero 1", r"zero 1: it stores state over the ranks of dp, of which there is one"),
        ("tiny.json --dp 4 --node 2", r"node 2: of no ranks of experts: give ep"),
        ("tiny.json --dp 4 --zero-ranks 2", r"zero ranks 2: of no stage of ZeRO: give zero"),
        ("tiny.json --dp 4 --zero 3 --zero-ranks 3", r"zero ranks 3: they divide dp, 4"),
        ("tiny.json --offload 4", r"offload 4: 1 the optimiser, 2 gradients, too, 3 weights, too, or 0"),
        ("tiny.json --offload 3 --machine Ascend910B", r"Ascend910B: its data sheet declares no link to the host"),
        ("tiny.json --tp 2 --crossing int3", r"--crossing int3: .*it is one of float32"),
        ("tiny.json --tp 2 --crossing dp=int8", r"--crossing dp: the mesh has no such axis: it has tp, weights"),
        ("tiny.json --cp 2 --context rings", r"context 'rings': it is one of ring, ulysses, keys, gather"),
        (
            "tiny.json --cp 2 --tp 6 --context ulysses",
            r"cp has 2 ranks and attention has 6 heads, at least one for each.*, or strategy ring",
        ),
        ("tiny.json --dp 2 --batch 1 --tokens 8", r"mesh: dp has 2 ranks and there is 1 sequence: at most 1 rank"),
        ("tiny.json --dp 4 --batch 3 --tokens 8", r"mesh: dp has 4 ranks and there are 3 sequences: at most 3 ranks"),
        ("tiny.json --cp 4 --batch 2 --tokens 3", r"mesh: cp has 4 ranks and there are 3 rows: at most 3 ranks"),
        ("tiny.json --cp 300", r"mesh: a ring has 300 ranks: .* at most 256 ranks"),
        ("tiny.json --batch 2 --tokens 17", r"tokens 17: the model has 16 positions: at most 16 tokens a sequence"),
        ("tiny.json --batch 2", r"--tokens has no number: numbers beside the formulas need --batch and --tokens"),
        ("tiny.json --batch 0 --tokens 8", r"--batch 0: from 1 to 10\^12"),
        ("tiny.json --form tables", r"--form tables: did you mean table\? it is one of table, latex, python"),
        ("tiny.json --values int3", r"--values int3: it is one of bf16, float16, float32"),
        ("tiny.json --weights foo", r"--weights foo: weights are stored in float32, bf16, .*, or in a format: dense, "),
        ("tiny.json --weights nm:k=2", r"--weights nm: it has no k; it has density, m, n"),
        ("tiny.json --weights nm:n=two", r"--weights nm:n=two: parameters are numbers, such as nm:n=2:m=4"),
        (
            "tiny.json --weights nm:n=1:m=5",
            r"wte_weight, of which a rank has 23 × 12: nm: 23 inputs are not a multiple",
        ),
        ("tiny.json --cut *c_fc*=cols", r"--cut \*c_fc\*= cols: .*it is one of columns, rows, whole"),
        ("tiny.json --cut c_fc", r"--cut c_fc: a pattern of names, and how they are cut"),
        (
            "tiny.json --tp 2 --cut *q_proj*=columns",
            r"cuts: no weight is called '\*q_proj\*': names are such as h.0.attn.c_attn.weight",
        ),
        ("tiny.json --machine A101", r"machine 'A101': there is no data sheet of this name: did you mean A100"),
        ("tiny.json --machine A101 --form latex", r"machine 'A101': there is no data sheet of this name"),
        ("tiny.json --schedule gpipe", r"--schedule gpipe: it belongs to a step of training: give --train, too"),
        ("tiny.json --train --schedule 1f1c", r"schedule 1f1c: did you mean 1f1b\? it is one of 1f1b, gpipe, "),
        (
            "tiny.json --train --micro-batches 9 --batch 8 --tokens 8",
            r"micro-batches 9: a batch of 8 sequences has at ",
        ),
        (
            "tiny.json --train --recompute ful",
            r"--recompute ful: did you mean full\? it is one of none, selective, full",
        ),
        (
            "tiny.json --train --pp 2 --schedule interleaved:3 --micro-batches 2",
            r"4 layers on 2 stages of 3 chunks: 6 ",
        ),
        ("tiny.json --train --timeline out.svg", r"--timeline: it needs numbers: give --batch and --tokens"),
        ("tiny.json --train --form latex", r"--form latex: a training step is printed as a table only"),
        ("gpt3 --tp 2", r"gpt3: there is no well-known model of this name; did you mean gpt2\? there are bert-base"),
        ("nowhere.json", r"nowhere.json: .*No such file"),
        ("empty", r"empty/config.json: No such file"),
        ("damaged.json", r"damaged.json: not JSON: "),
        ("list.json", r"list.json: it is not a configuration, but a JSON list"),
        ("layers.json", r"n_layer is 'l': it must be a whole number from 0 to 1000, no name"),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(said, line, words):
    status, out, errors = said(line)
    assert status == 2 and not out and errors.count("\n") == 1 and re.search(words, errors), errors


def test_formulas_stand_beside_numbers_of_the_busiest_rank(said):
    """Three sequences on two ranks are two on the busiest, eight tokens of a window are eight."""
    status, out, _ = said("tiny.json --dp 2 --tp 2 --batch 3 --tokens 8")
    layers = 4 * (24 * 12**2 * 2 * 8 + 4 * 12 * 2 * 8 * 8) // 2
    assert status == 0 and "tiny on 4 ranks: dp 2 (data) × tp 2 (tensor)" in out and "at b = 3, s = 8" in out
    assert f"{layers / 1000:.4g} kflop" in out and "48*b*s**2 + 3456*b*s" in out


def test_named_sizes_have_the_numbers_of_their_configuration(said):
    """As the same mesh without names."""
    one, other = (said(f"directory --tp 2 --batch 3 --tokens 8 {more}")[1] for more in ("", "--symbolic"))
    one, other = (re.search(r"^operations .* (\S+ kflop)", each, re.M)[1] for each in (one, other))
    assert one == other
    assert "48*b*h**2*s + 8*b*h*s**2" in said("directory --tp 2 --symbolic")[1]
    assert "kflop" not in said("named.json --batch 3 --tokens 8")[1]  # nobody knows h


@pytest.mark.parametrize(
    "weights, state", [("int8", 1), ("*c_fc*=float32,bf16", None), ("wte*=bf16,wpe*=bf16,nm:n=2:m=4", None)]
)
def test_weights_are_stored_by_their_names(said, weights, state):
    status, out, _ = said(f"tiny.json --weights {weights}")
    found = int(re.search(r"^state +(\d+)", out, re.M)[1])
    biases = 4 * (9 + 4) * 12 + 24
    tables, matrices, c_fc = (23 + 16) * 12, 4 * 12 * 12 * 12, 4 * 4 * 12 * 13
    wanted = {
        "int8": tables + matrices + biases,
        "*c_fc*=float32,bf16": 2 * (tables + matrices + biases) + 2 * c_fc,
        "wte*=bf16,wpe*=bf16,nm:n=2:m=4": 2 * tables + 5 * matrices // 2 + 4 * biases,
    }
    assert status == 0 and found == wanted[weights]


def test_a_cut_by_hand_is_followed(said):
    whole, cut = (said(f"tiny.json --tp 2 {more}")[1] for more in ("--cut *c_fc*=whole", ""))
    assert "4*b*12" not in cut and int(re.search(r"over tp +(\d+)", whole)[1]) * 2 == int(
        re.search(r"over tp +(\d+)", cut)[1]
    )


def test_a_machine_prices_every_stage(said):
    status, out, _ = said("tiny.json --pp 2 --tp 2 --batch 2 --tokens 8 --machine A100")
    below = out.partition("ms at least")[2]
    rows = dict(re.findall(r"^(stage 1|stage 2|all, one after the other) +(.*)$", below, re.M))
    assert status == 0 and "lower bounds, nothing overlaps, nothing was run" in out
    columns = [[float(each) for each in row.split()] for row in rows.values()]
    for one, other, both in zip(*columns, strict=True):
        assert both == pytest.approx(one + other, rel=2e-3)
    assert all(row[-2] == pytest.approx(sum(row[:-2]), rel=2e-3) for row in columns)
    assert "stage 1: computation" in said("tiny.json --tp 2 --machine A100")[1]


def test_the_derivation_says_which_rule_splits_what(said):
    """Rows of a matrix are parts of a sum, which an all-reduce merges: twice a layer, and layers are said once."""
    status, out, _ = said("tiny.json --tp 2 --form derivation")
    assert status == 0 and out.count("all-reduce over tp of 12·b·s numbers") == 2
    assert out.count("rows of a matrix") == 2 and "and alike 4, 6, 8" in out


def test_what_the_host_stores_is_fetched(said):
    status, out, _ = said("tiny.json --dp 4 --zero 3 --zero-ranks 2 --offload 3 --crossing int8")
    numbers = 4 * 12 * (12 * 12 + 13) + 24 + (23 + 16) * 12
    assert status == 0 and "copies 2 (data) × dp 2 (zero3)" in out and re.search(r"^state +0$", out, re.M)
    for name in ("state of the host", "fetch over host"):
        assert re.search(rf"^{name} +{numbers}\b", out, re.M)


def module_numbers(ranks):
    """Numbers of a module behind LLAMA on a tensor rank: attention and a gated unit are shared; the product that joins
    rows, four norms and the table of rotations are whole."""
    n, f, heads, keys, positions = (
        LLAMA[key]
        for key in (
            "hidden_size",
            "intermediate_size",
            "num_attention_heads",
            "num_key_value_heads",
            "max_position_embeddings",
        )
    )
    shared = 2 * n * n + 2 * n * (n * keys // heads) + 3 * n * f
    return shared // ranks + 2 * n * n + 4 * n + positions * (n // heads)


@pytest.mark.parametrize("options", ["--dp 2", "--pp 2", "--tp 2", "--pp 2 --train --micro-batches 2"])
def test_modules_behind_the_last_stage_are_partitioned(said, options):
    """A module has no stages of its own, and what stands before it is as without it."""
    status, out, errors = said(f"further.json {options}")
    assert status == 0, errors
    before, name, behind = out.partition("further, behind its last stage: 2 x a module that predicts a token further")
    ranks = 2 if "--tp" in options else 1
    assert name and before == said(f"llama.json {options}")[1].replace("llama", "further").rstrip("\n") + "\n\n"
    assert int(re.search(r"^state +(\d+)", behind, re.M)[1]) == 2 * module_numbers(ranks)
    assert "stage 2" not in behind and ("a step of training" in behind) == ("--train" in options)


def test_python_and_latex(said):
    space: dict[str, object] = {}
    exec(compile(said("tiny.json --tp 2 --form python")[1], "costs.py", "exec"), space)
    assert space["costs"](b=2, s=8)["all_reduce over tp, payload"] == 8 * 2 * 2 * 8 * 12
    text = said("tiny.json --tp 2 --form latex")[1]
    assert r"\begin{tabular}" in text and text.count("{") == text.count("}")


def test_a_step_of_training_is_told_and_drawn(said, tmp_path):
    status, out, errors = said(
        "tiny.json --pp 2 --dp 2 --train --schedule zb-h1 --micro-batches 4 --batch 16 "
        "--tokens 8 --machine A100 --timeline step.svg"
    )
    assert status == 0, errors
    assert "a step of training: 4 micro-batches of b sequences, zb-h1, recompute none" in out
    assert re.search(r"kept in all +\d+\*b\*s\*\*2 \+ \d+\*b\*s +\d", out)
    assert re.search(r"stage 2 .*%", out) and re.search(r"ramp \d+\.\d %, imbalance", out)
    assert "a step takes at least" in out and (tmp_path / "step.svg").read_text().count("<title>") == 2 * 4 * 3
    status, out, _ = said("tiny.json --pp 2 --train --schedule interleaved:2 --micro-batches 2 --symbolic")
    assert status == 0 and "chunks 2 to 3, a micro-batch" in out
