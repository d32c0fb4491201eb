"""Weights in the spellings of runtimes: integers as the program computes, whole numbers and 16 bits as they are stored;
exports beside their program, and the one that is kept for a runtime."""

import json

import numpy as np
import pytest
from checkpoints import CONFIG, arrays
from padded import feed, ragged
from programs import bert_program
from typer.testing import CliRunner

import opmatrix as om
from formats import FORMATS
from formats.core.errors import InputError
from opmatrix.exports.exported_files import export_onnx, export_torch, read_origin
from opmatrix.exports.onnx_file import make_onnx
from opmatrix.exports.probed_weights import one_product, probing
from opmatrix.exports.program_graph import MASK, read_program
from opmatrix.exports.runtimes import RUNTIMES
from opmatrix.exports.spelled_weights import (
    INTEGERS,
    NARROW_SPELLING,
    STORED_SPELLING,
    STORED_WAY,
    SUMMED,
    WIDE,
    WIDENED,
)
from opmatrix.exports.timed_exports import TimedExport
from opmatrix.runtime.program import Step
from rewrites.metrics import targets
from rewrites.metrics.check_table import FAILS
from rewrites.metrics.exported import compare_export, of_export, rounding_of
from rewrites.metrics.targets import ExportCandidate, export_for, judge_exports, kept_points, parse_shapes

onnx = pytest.importorskip("onnx", reason="needs peers: onnx")
onnxruntime = pytest.importorskip("onnxruntime", reason="needs peers: onnxruntime")

BATCH = [[1, 2, 3], [4], [5, 6, 7, 8, 9, 10, 49]]
ROUNDING = {
    "int8": {},
    "int8, groups": {"group": 64},
    "balancedint8": {},
    "balancedint8, groups": {"group": 64},
    "nmint8": {},
    "blockint8": {"density": 0.5},
    "lowrankint8": {"rank": 9},
}
STORING = {**ROUNDING, "int4": {}, "q8_0": {}, "half": {}, "bf16": {}}


def product(name, options, inputs):
    """Rows of a table, in float16, times a weight in a format."""
    rng = np.random.default_rng(inputs)
    form = FORMATS[name.partition(",")[0]]
    table = FORMATS["half"].approximate(rng.standard_normal((50, inputs)).astype(np.float32))
    weight = form.approximate(rng.standard_normal((inputs, 24)).astype(np.float32), **options)
    steps = [
        Step("embed", {"table0": "t"}, {"fields": "tokens", "eps": 1e-5}, "rows"),
        Step("linear", {"x": "rows", "weight": "w"}, {}, "out"),
    ]
    return om.Program(steps, {"t": table, "w": weight}, "out")


def session(made):
    """A model of ONNX, checked, in ONNX Runtime, which rounds no rows of its own accord."""
    onnx.checker.check_model(made, full_check=True)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    return onnxruntime.InferenceSession(made.SerializeToString(), options, providers=["CPUExecutionProvider"])


def computed(program, spelling, *batches):
    """Rows of batches, one behind another, by an export."""
    read = read_program(program, spelling)
    ready, rows = session(make_onnx(read, "weights")), []
    for sentences in batches:
        inputs = feed(read, sentences)
        rows.append(ragged(ready.run(None, inputs)[0], inputs[MASK]))
    return np.concatenate(rows), read


@pytest.mark.parametrize("inputs", [64, 100, 400])
@pytest.mark.parametrize("name", ROUNDING)
def test_integers_round_rows_as_the_program_does(name, inputs):
    program = product(name, ROUNDING[name], inputs)
    rows, read = computed(program, INTEGERS, BATCH)
    wanted = program.exact(BATCH)
    assert sum(read.multiplied.values()) == 1 and read.narrow == {"half": 1}
    np.testing.assert_allclose(rows, wanted, rtol=0, atol=2e-6 * abs(wanted).max())
    assert abs(program.exact(BATCH, rounded=False) - wanted).max() > 1e-4 * abs(wanted).max()
    alone, _ = computed(program, INTEGERS, *([sentence] for sentence in BATCH))
    np.testing.assert_allclose(alone, rows, rtol=0, atol=2e-6 * abs(wanted).max())  # no level of a row has moved


@pytest.mark.parametrize("name", STORING)
def test_stored_numbers_are_those_of_the_program(name):
    program = product(name, STORING[name], 400)
    wanted = program.exact(BATCH, rounded=False)
    sizes = {}
    for spelling in (WIDENED, STORED_SPELLING):
        rows, read = computed(program, spelling, BATCH)
        np.testing.assert_allclose(rows, wanted, rtol=0, atol=2e-6 * abs(wanted).max())
        sizes[spelling] = sum(tensor.ByteSize() for tensor in make_onnx(read, "weights").graph.initializer)
    assert sizes[STORED_SPELLING] < 0.9 * sizes[WIDENED]


def test_a_table_of_bytes_is_taken_by_rows():
    """A turned table, as a head shares it: whole numbers are gathered, not a widened table."""
    rng = np.random.default_rng(3)
    table = FORMATS["int8"].approximate(rng.standard_normal((64, 50)).astype(np.float32))
    program = om.Program(
        [Step("embed", {"table0": "t"}, {"fields": "tokens", "eps": 1e-5, "turned": "0"}, "rows")], {"t": table}, "rows"
    )
    rows, read = computed(program, STORED_SPELLING, BATCH)
    np.testing.assert_allclose(rows, program.exact(BATCH), rtol=0, atol=1e-6)
    assert "DequantizeLinear" not in {node.op_type for node in make_onnx(read, "weights").graph.node}


def test_the_torch_module_keeps_float32():
    program = product("int8", {}, 64)
    assert read_program(program).widened == {"int8": 1, "half": 1}


# ---- an export and its program


def packed(form="int8"):
    return bert_program(CONFIG, arrays(CONFIG), pack=FORMATS[form].approximate)


@pytest.fixture
def exported(tmp_path):
    """A program of bytes, saved, and its export as integers."""
    program = packed()
    program.save(tmp_path / "small")
    read = read_program(program, INTEGERS)
    export_onnx(read, tmp_path / "small.onnx", {"program": program.hash, "rows": rounding_of(read)})
    return tmp_path


def verdicts(file, place):
    return {check.what: check.verdict for check in of_export(file, place, None)}


def test_an_export_is_verified_beside_its_program(exported):
    checks = verdicts(exported / "small.onnx", exported / "small")
    assert checks == {"program": "holds", "runtime": "claimed", "outputs": "holds", "alone": "holds"}


def test_another_program_and_other_numbers_fail(exported):
    other = bert_program(CONFIG, {name: 2 * array for name, array in arrays(CONFIG).items()})
    other.save(exported / "other")
    assert verdicts(exported / "small.onnx", exported / "other") == {"program": FAILS}
    model = onnx.load(exported / "small.onnx")
    weight = next(each for each in model.graph.initializer if each.data_type == onnx.TensorProto.INT8)
    weight.raw_data = bytes(len(weight.raw_data))
    onnx.save(model, exported / "damaged.onnx")
    assert verdicts(exported / "damaged.onnx", exported / "small")["outputs"] == FAILS


def test_what_is_no_export_is_refused(exported):
    model = onnx.load(exported / "small.onnx")
    del model.metadata_props[:]
    onnx.save(model, exported / "plain.onnx")
    (exported / "broken.onnx").write_bytes(b"no model")
    for name, complaint in (
        ("plain.onnx", "it does not record a program"),
        ("broken.onnx", "it cannot be read"),
        ("small/program.json", "it is no export"),
    ):
        with pytest.raises(InputError, match=complaint):
            of_export(exported / name, exported / "small", None)
    with pytest.raises(InputError, match="give its program: --program DIR"):
        of_export(exported / "small.onnx", None, None)


def test_a_file_of_torch_names_its_program(tmp_path):
    pytest.importorskip("torch", reason="needs peers: torch")
    program = bert_program(CONFIG, arrays(CONFIG))
    program.save(tmp_path / "small")
    export_torch(read_program(program), tmp_path / "small.pt2", {"program": program.hash})
    assert read_origin(tmp_path / "small.pt2") == {"program": program.hash}
    assert verdicts(tmp_path / "small.pt2", tmp_path / "small")["outputs"] == "holds"


# ---- for a runtime


@pytest.mark.parametrize("name", ["int8", "int8, groups", "balancedint8", "lowrankint8"])
def test_a_probe_multiplies_in_every_way(name):
    """The graph that a probe times is the product in each way, and one of them is chosen."""
    program = product(name, ROUNDING[name], 400)
    weight = program.constants["w"].integers()[0]
    columns = weight.whole.shape[1]
    for way in (WIDE, STORED_WAY, SUMMED):
        ready = session(make_onnx(one_product(weight, way), "weights"))
        [rows] = ready.run(None, {"input_ids": np.arange(6)[None]})
        assert rows.shape == (1, 6, columns) and np.isfinite(rows).all()
    assert probing(8, 1).way(weight) in (WIDE, STORED_WAY, SUMMED)


def test_the_fastest_that_computes_its_program_is_kept(tmp_path):
    """A file of other numbers is quicker, and left out."""
    program = packed()
    candidates = {
        name: ExportCandidate(program, read_program(program, spelling), name) for name, spelling in SPELT.items()
    }
    files = {name: export_onnx(each.read, tmp_path / f"{name}.onnx")[0] for name, each in candidates.items()}
    other = read_program(bert_program(CONFIG, {name: 2 * array for name, array in arrays(CONFIG).items()}))
    [files["integers"]] = export_onnx(other, tmp_path / "other.onnx")
    times = {name: TimedExport(ms, "1", {}) for name, ms in (("integers", 1.0), ("float32", 2.0), ("stored", 3.0))}
    rows, chosen = judge_exports(RUNTIMES["onnxruntime"], candidates, files, times)
    assert chosen == "float32" and [row[0] for row in rows] == ["integers", "float32", "stored"]
    assert rows[0][-1].startswith("beyond ") and rows[1][-1] == "kept"
    with pytest.raises(InputError, match="no export computes its program there: integers"):
        judge_exports(RUNTIMES["onnxruntime"], candidates, files, {"integers": times["integers"]})


SPELT = {"float32": NARROW_SPELLING, "stored": STORED_SPELLING, "integers": INTEGERS}


def test_points_beyond_a_goal_are_left_out(tmp_path):
    points = [
        {"methods": {}, "stated_error": 0.0, "spearman": 82.0},
        {"methods": {"int8": 1}, "stated_error": 0.01, "spearman": 81.9},
        {"methods": {"int8": 1}, "stated_error": 0.04, "spearman": 81.9},
        {"methods": {"int8": 1}, "stated_error": 0.01, "spearman": 80.0},
        {"methods": {"int8": 1}, "stated_error": 0.01, "spearman": None},
    ]
    goals = [{"goal": "error<=2%"}, {"goal": "spearman>=-0.3"}]
    (tmp_path / "report.json").write_text(json.dumps({"goals": goals, "front": points}))
    assert kept_points(tmp_path / "report.json") == [0, 1]
    (tmp_path / "other.json").write_text(json.dumps({"front": points}))
    with pytest.raises(InputError, match=r"other\.json: it is no report of a search"):
        kept_points(tmp_path / "other.json")


def test_bad_requests_are_one_line(exported, monkeypatch):
    place, file = exported / "small", exported / "fast.onnx"
    for name, onnx_file, torch_file, complaint in (
        ("tensorrt", file, None, "--for tensorrt: it is no runtime"),
        ("onnxruntime", None, file, "--for onnxruntime: it reads one file: give --onnx FILE alone"),
        ("torch", file, None, "--for torch: it reads one file: give --torch FILE alone"),
        ("onnxruntime", exported / "small.onnx", None, "it exists, and an export replaces no file"),
    ):
        with pytest.raises(InputError, match=complaint):
            export_for(place, name, onnx_file, torch_file, ((1, 4),), None)
    with pytest.raises(InputError, match="--at: 9999 tokens: the model has"):
        export_for(place, "onnxruntime", file, None, ((1, 9999),), None)
    monkeypatch.setattr("opmatrix.exports.runtimes.find_spec", lambda name: None)
    with pytest.raises(InputError, match="--for openvino: openvino is not installed: pip install openvino"):
        export_for(place, "openvino", file, None, ((1, 4),), None)
    assert sorted(entry.name for entry in exported.iterdir()) == ["small", "small.onnx"]


@pytest.mark.parametrize("text", ["", "1x", "x128", "1x0", "1x16,", "1x16 8x128", "-1x16"])
def test_shapes_that_are_none_are_refused(text):
    with pytest.raises(InputError, match=r"--at .*: give sentences x tokens"):
        parse_shapes(text)


def test_the_command_keeps_one_file_and_says_where_it_was_timed(exported, monkeypatch):
    from rewrites.cli.commands import app

    monkeypatch.chdir(exported)
    monkeypatch.setattr(targets, "probing", lambda rows, threads: STORED_SPELLING)  # tests time nothing
    monkeypatch.setattr(
        targets,
        "time_exports",
        lambda runtime, files, job: {
            name: TimedExport(float(at), "9.9", {"MatMulInteger": 8}) for at, name in enumerate(reversed(files))
        },
    )
    done = CliRunner().invoke(app, ["export", "small", "--for", "onnxruntime", "--onnx", "fast.onnx", "--at", "2x8"])
    assert done.exit_code == 0, done.output
    assert "onnxruntime 9.9: small, integers" in done.stdout and "integers int8 x8" in done.stdout
    origin = read_origin(exported / "fast.onnx")
    assert origin["runtime"] == "onnxruntime 9.9" and origin["at"] == "2x8" and origin["spelling"] == "integers"
    checked = CliRunner().invoke(app, ["verify", "fast.onnx", "--program", "small"])
    assert checked.exit_code == 0 and "timed in onnxruntime 9.9" in checked.stdout


@pytest.mark.deep
@pytest.mark.parametrize("name", RUNTIMES)
def test_exports_are_run_in_processes_of_each_runtime(name, exported):
    pytest.importorskip(name, reason=f"needs peers: {name}")
    ending = RUNTIMES[name].ending
    files = {"--onnx": exported / "fast.onnx"} if ending == ".onnx" else {"--torch": exported / "fast.pt2"}
    told = export_for(exported / "small", name, files.get("--onnx"), files.get("--torch"), ((1, 8), (2, 4)), None)
    assert f"{name} {RUNTIMES[name].version}: " in told and "ms at 1x8 + 2x4" in told
    [file] = files.values()
    assert read_origin(file)["runtime"] == f"{name} {RUNTIMES[name].version}"
    program = om.load(exported / "small")
    inputs = list(read_program(program).inputs)
    assert compare_export(RUNTIMES[name].open(file, 1), program, inputs, read_origin(file)["rows"]).agrees
