"""The command `plan`: what it prints and writes, and that what cannot be planned is refused in a line."""

import csv
import json
import re

import pytest
from partitioned import GPT2, RATES, command_runner

from opmatrix.runtime.pricing import datasheet

CONFIG = GPT2 | dict(n_embd=12, n_head=6, n_layer=4)


def machine(**more):
    """The file of a machine with one other number."""
    sheet = datasheet("A100")
    said = dict(
        source="made up",
        matrix=dict(sheet.matrix),
        vector=dict(sheet.vector),
        tile=[*sheet.tile],
        memory=[[*each] for each in sheet.memory],
        links=[["near", 8, 3e11, 1e-6], ["far", None, 25e9, 3e-6]],
    )
    return {"Mine": said | more}


@pytest.fixture
def said(tmp_path, monkeypatch, capsys):
    """Runs the command in a folder with some models and machines, and gives status, output and errors."""
    monkeypatch.chdir(tmp_path)
    near = ["near", 8, 3e11, 1e-6]
    for name, given in {
        "tiny": CONFIG,
        "named": CONFIG | dict(n_embd="h"),
        "bert": dict(model_type="bert"),
        "mine": machine(),
        "negative": machine(links=[["near", 8, -3e11, 1e-6]]),
        "missing": machine(links=[near, ["far", None]]),
        "alone": machine(links=[]),
        "hybrid": CONFIG | dict(model_type="jamba"),
        "headless": {key: CONFIG[key] for key in CONFIG if key != "n_head"},
    }.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(given))
    for name, words in {"wide": "--tensor-model-parallel-size 4", "twice": "--bf16 --fp16"}.items():
        (tmp_path / f"{name}.sh").write_text(words)
    return command_runner("plan", monkeypatch, capsys)


ASKED = "--devices 4 --machine A100 --batch 8 --seq 16"


@pytest.mark.deep(every=4)
@pytest.mark.parametrize(
    "line, words",
    [
        (f"tiny.json {ASKED} --devices 17 --batch 32", r"--devices 17: no strategy divides them: .* are 16 and 18"),
        (f"tiny.json {ASKED} --devices 35 --batch 5", r"--batch 5: too small for 35 devices: 35 is the next"),
        (f"tiny.json {ASKED} --machine A10", r"machine 'A10': .*did you mean A100\?"),
        (f"gpt22 {ASKED}", r"gpt22: there is no well-known model of this name; did you mean gpt2\?"),
        (f"tiny.json {ASKED} --machine negative.json", r"negative.json: .*'near': give positive bytes a second .* -3"),
        (f"tiny.json {ASKED} --machine missing.json", r"missing.json: .*Mine: .*missing .* arguments"),
        (
            f"tiny.json {ASKED} --machine alone.json",
            r"Mine: its data sheet declares no links between devices: add `links`",
        ),
        (f"tiny.json {ASKED} --machine none.json", r"none.json: .*No such file"),
        (f"named.json {ASKED}", r"hidden_size is .*: a plan needs its number|n_embd"),
        (f"headless.json {ASKED}", r"n_head"),
        (f"bert.json {ASKED}", r"config"),
        (f"tiny.json {ASKED} --memory 1e-6", r"--memory 1e-06: no strategy of 4 .* are missing for .* would do"),
        (f"tiny.json {ASKED} --memory -1", r"--memory -1: GB, more than 0"),
        (f"tiny.json {ASKED} --seq 100000", r"--seq 100000: the model has \d+ positions"),
        (f"tiny.json {ASKED} --seq 8:0.7,16:0.4", r"--seq: the shares 0.7 \+ 0.4 add up to 1.1"),
        (f"tiny.json {ASKED} --seq 0", r"--seq 0: '0' is no number of tokens"),
        (f"tiny.json {ASKED} --seq 8:0.5,16:0.5 --explain", r"--explain: it is of sequences of one length"),
        (f"tiny.json {ASKED} --seq 8:0.5,16:0.5 --machine local", r"--machine local: it is of sequences of one length"),
        (f"hybrid.json {ASKED}", r"model_type is 'jamba': it must be one of"),
        (f"tiny.json {ASKED} --csv tiny.json", r"--csv tiny.json: it would replace what is read"),
        (f"tiny.json {ASKED} --only tp=4", r"tp 4: 6 heads: .* the nearest legal are 3 and 6"),
        (f"tiny.json {ASKED} --only tensor=2", r"--only: tensor: .*a layout has dp, tp"),
        (f"tiny.json {ASKED} --stack megatrn", r"stack 'megatrn': did you mean megatron"),
        (f"tiny.json {ASKED} --schedule zigzag", r"--schedule zigzag: .*there are 1f1b"),
        (f"tiny.json {ASKED} --precision fp8", r"A100: its data sheet has no rate of fp8 products"),
        (f"tiny.json {ASKED} --calibrate none.csv", r"--calibrate none.csv: .*No such file"),
        (f"tiny.json {ASKED} --headroom 1.5", r"--headroom 1.5: a share of the memory"),
        (f"tiny.json {ASKED} --load 2", r"--load 2: the model has no experts"),
        (f"tiny.json {ASKED} --even --load 2", r"--load 2, --even: give one of them"),
        (f"tiny.json {ASKED} --within 2", r"--within 2: it belongs to --fewest"),
        (f"tiny.json {ASKED} --settings run.sh", r"--settings: settings are those of a stack: give --stack: megatron"),
        (
            f"tiny.json {ASKED} --stack launch --write-settings -",
            r"--write-settings: stack 'launch': .*no settings here",
        ),
        (f"tiny.json {ASKED} --stack megatron --settings none.sh", r"none.sh: No such file"),
        (
            f"tiny.json {ASKED} --stack megatron --settings wide.sh",
            r"of wide.sh.: tp 4: 6 heads: .* nearest legal are 3",
        ),
        (f"tiny.json {ASKED} --stack megatron --settings twice.sh", r"twice.sh: bf16, fp16: give one of them"),
        (
            f"tiny.json {ASKED} --machine local --stack megatron",
            r"--stack megatron: it belongs to machines of data sheets",
        ),
        (
            f"tiny.json {ASKED} --timeline step.png",
            r"--timeline step.png: a timeline's name ends in one of .svg, .json",
        ),
    ],
)
def test_what_cannot_be_planned_is_one_line(line, words, said):
    status, out, errors = said(line)
    assert status == 2 and not out
    assert re.search(words, errors) and len([*filter(None, errors.split("\n"))]) <= 2, errors


def test_a_plan_is_printed_written_drawn_and_explained(said, tmp_path):
    status, out, _ = said(
        f"tiny.json {ASKED} --machine mine.json --explain --json plan.json --csv plan.csv --timeline step.svg --keep 3"
    )
    found, rows = json.loads((tmp_path / "plan.json").read_text()), [*csv.DictReader((tmp_path / "plan.csv").open())]
    assert status == 0 and "tiny on 4 x Mine: 8 sequences of 16 tokens a step" in out
    assert "why the next lose" in out and "data sheet: made up" in out and "a billion tokens" in out
    assert len(rows) == len(found["strategies"]) == 3 and found["machine"] == "Mine"
    explained = dict(re.findall(r"^(\w+) = .* = (\S+)$", out, re.MULTILINE))
    assert float(explained["seconds"]) == pytest.approx(found["strategies"][0]["seconds"], rel=1e-6)
    assert (tmp_path / "step.svg").read_text().startswith("<svg")


def test_layouts_are_judged_and_steps_teach(said, tmp_path):
    """One layout beside the first, two part by part, and rows of a plan with measured seconds."""
    line = f"tiny.json {ASKED} --machine mine.json --stack megatron --max-tp 2"
    status, out, _ = said(f"{line} --only tp=2,pp=2 --against dp=4 --json one.json --csv plan.csv")
    told = json.loads((tmp_path / "one.json").read_text())
    assert status == 0 and "the layout tp=2,pp=2:" in out and "GB by the driver" in out
    assert (told["only"]["tp"], told["only"]["pp"], told["against"]["dp"]) == (2, 2, 4)
    assert told["stack"] == "megatron" and all(each["tp"] <= 2 for each in told["strategies"])
    rows = [*csv.DictReader((tmp_path / "plan.csv").open())]
    first = {**rows[0], "step_s": str(2 * float(rows[0]["seconds"]))}
    (tmp_path / "steps.csv").write_text(f"{','.join(first)}\n{','.join(first.values())}\n")
    status, out, _ = said(f"{line} --calibrate steps.csv --json two.json")
    again = json.loads((tmp_path / "two.json").read_text())
    assert status == 0 and "calibrated by 1 rows of 1 strategies" in out
    assert again["strategies"][0]["seconds"] == pytest.approx(2 * told["strategies"][0]["seconds"], rel=1e-6)


def test_settings_are_judged_and_written(said, tmp_path):
    """A layout of a file is judged by stage; what is written is judged as the same layout, with what was kept."""
    (tmp_path / "run.yaml").write_text(
        "seed: 3\nstrange_key: 1\nmodel: {model_config: {compute_dtype: bfloat16, seq_length: 16}}\n"
        "parallel_config: {data_parallel: 1, pipeline_stage: 2, model_parallel: 2, micro_batch_num: 8}\n"
        "recompute_config: {select_recompute: [2, 0]}\n"
    )
    line = "tiny.json --devices 4 --machine A100 --stack mindformers --settings"
    status, out, _ = said(f"{line} run.yaml --write-settings out.yaml --json one.json")
    told = json.loads((tmp_path / "one.json").read_text())
    assert status == 0 and "the layout of run.yaml:" in out and "8 sequences of 16 tokens" in out
    assert "with stages of 2 layers (selective again), 2 layers:" in out and "not known, and kept: strange_key" in out
    assert (told["settings"]["tp"], told["settings"]["pp"], told["settings"]["recompute"]) == (2, 2, "selective")
    status, again, _ = said(f"{line} out.yaml --json two.json")
    other = json.loads((tmp_path / "two.json").read_text())
    assert status == 0 and other["settings"] == told["settings"] and "not known, and kept: strange_key" in again
    status, out, _ = said(f"tiny.json {ASKED} --fewest --within 100 --no-ring --headroom 0.1")
    assert status == 0 and "the fewest devices where a step takes at most 100 s: 1, of 1 devices" in out
    status, out, _ = said(f"tiny.json {ASKED} --stack megatron --only pp=2 --write-settings -")
    assert status == 0 and "--pipeline-model-parallel-size 2" in out and "ARGUMENTS=(" in out
    status, out, _ = said(f"tiny.json {ASKED} --stack deepspeed --only tp=2,pp=2 --write-settings ds.json")
    assert status == 0 and "not in these settings: pp 2" in out
    assert json.loads((tmp_path / "ds.json").read_text())["tensor_parallel"]["autotp_size"] == 2


@pytest.mark.parametrize(
    "more, words",
    [
        ("--infer", r"--\w+ \d.* --scores --batch 8 --tokens 16"),
        ("", r"--\w+ \d.* --train --schedule \S+ --micro-batches \d+ --recompute none --batch 8 --tokens 16"),
    ],
)
def test_a_plan_of_local_ranks_is_a_line_that_launch_takes(said, monkeypatch, more, words):
    """Of rates as they were measured somewhere."""
    monkeypatch.setattr("opmatrix.parallel.launch.local_ranks.rank_rates", lambda ranks: RATES)
    status, out, _ = said(f"tiny.json --devices 4 --machine local --batch 8 --seq 16 --keep 2 --explain {more}")
    assert status == 0 and re.search(f"the first: opmatrix launch tiny.json --ranks 4 {words}$", out, re.MULTILINE)
    assert re.search(r"^processors +1.8", out, re.MULTILINE) and "data sheet: somewhere" in out


@pytest.mark.deep(every=2)
@pytest.mark.parametrize("layout", ["", "--only tp=2,pp=2,zero=0,recompute=none"])
def test_the_constraint_that_binds_is_printed(layout, said, tmp_path):
    """Of the first, or of the layout that is judged, in text and in JSON."""
    status, out, _ = said(f"tiny.json {ASKED} --schedule gpipe --constraints {layout} --json plan.json")
    told = json.loads((tmp_path / "plan.json").read_text())
    judged = told["only"] if layout else told["strategies"][0]
    constraints = told["constraints"]
    assert status == 0 and f"which constraint binds {constraints['strategy']}" in out
    assert constraints["seconds"] == judged["seconds"]
    assert {row["constraint"] for row in constraints["relaxed"]} >= {"memory", "links", "batch", "sizes", "--schedule"}
    assert ("tp other than 2" in out) == bool(layout)
