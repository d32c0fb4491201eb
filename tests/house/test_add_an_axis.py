"""docs/add_an_axis.md: its four files are enough, and every reader of an axis then knows the new one."""

import filecmp
import re
import shutil
import subprocess
import sys

import pytest
from children import ROOT

PAGE, STRATEGY = (ROOT / "docs" / "add_an_axis.md").read_text("utf-8").split("## A strategy of an axis\n")
RECORD, *USE = re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S)
MOST_FILES = 5
READERS = """
import json
from opmatrix.parallel.axes.known_axes import AXES, ORDERS, mesh_options
from opmatrix.parallel.launch.jobs import Job, job_mesh
from opmatrix.parallel.sharding.mesh import Mesh, usual_mesh
from opmatrix.parallel.search.forms import STRATEGY_FORMS
from rewrites.cli.commands import app
from docs.make_tables import describe_axis
import typer
for command in ("partition", "launch"):
    option, = [each for each in typer.main.get_command(app).commands[command].params if each.name == "up"]
    assert option.opts == ["--up"] and option.help.startswith("ranks that share the tokens of each rank of cp")
mesh = usual_mesh(2, cp=2, up=2, tp=2)
assert [axis.name for axis in mesh] == ["dp", "cp", "up", "tp"]
job = Job("model", ids=[[1, 2]], **job_mesh(mesh))
assert Job.read(json.loads(json.dumps(job.json()))).mesh == mesh
assert describe_axis(AXES["up"])[:2] == ["up", "Ulysses parallel"]
assert {form.order for form in STRATEGY_FORMS} == {*ORDERS} and all("up" in order for order in ORDERS)
try: usual_mesh(up=2, cp=2, context="ulysses")
except Exception as error: assert str(error).startswith("mesh: axes cp and up both split by ulysses"), error
else: raise AssertionError("two axes would split the same")
"""
PLANNED = """
from formats.machine.datasheets import datasheet
from opmatrix.models import known
from opmatrix.parallel.search.strategy_search import PlanQuestion, search_strategies
question = PlanQuestion(known.configuration("gpt2"), datasheet("A100"), 8, 4, 512, 80e9)
forms = [form for form in question.forms if form.context == "keys" and form.recompute == "none"]
found = search_strategies(question, forms=forms)
assert 0 < found.fit <= found.count and all(found.sizes.cp[row] > 1 for row in found.best_rows(5))
crossings = [crossing for layer, _ in question.work(forms[0]).layers for crossing in layer.crossings]
ops = {crossing.op for crossing in crossings if crossing.axis == "cp"}
assert ops == {"all_gather", "reduce_scatter", "all_to_all"}, ops
"""
FORMULAS = """
from opmatrix.algebra.batch.batch_sizes import BatchSizes
from opmatrix.models import known, promised
from opmatrix.parallel.cost.layer_work import model_work
from opmatrix.parallel.cost.step_costs import BACKWARD, training_step
from opmatrix.parallel.sharding.axis_states import even
from opmatrix.parallel.sharding.mesh import Mesh
from opmatrix.parallel.sharding.partition import partition
config = known.configuration("gpt2") | {"n_layer": 2}
mesh = Mesh.of(cp=(2, "gathered"), up=(3, "ulysses"), tp=(2, "tensor-vocabulary"))
step = training_step(partition(promised(config, scores=True), mesh, BatchSizes(4, 96)))
work, sizes = model_work(config, "ring"), dict(b=4, s=96, t=2, c=2, u=3)
layers = [(work.first, 1), *work.layers, (work.last, 1)]
for axis in ("up", "cp", "tp"):
    read = sum(
        count * crossing.count * crossing.whole.at(sizes)
        for layer, count in layers
        for crossing in layer.crossings
        if crossing.axis == axis
    )
    booked = sum(
        chunk.count * even(crossing.whole)
        for chunk in step.stages[0]
        for crossing in chunk.booked.crossings_of("forward", *BACKWARD)
        if crossing.axis == axis
    )
    assert 0 < read == float(booked), (axis, read, booked)
"""
COMMAND = "from rewrites.cli.commands import app; app()"


def copied(place):
    """A copy of the packages."""
    for name in ("formats", "opmatrix", "rewrites"):
        shutil.copytree(ROOT / name, place / name, ignore=shutil.ignore_patterns("*.pyc.*", "__pycache__"))
    return place


def patched(place, text):
    for patch in re.findall(r"^```diff\n(.*?)^```$", text, re.M | re.S):
        subprocess.run(["git", "apply", "--unidiff-zero", "-"], input=patch, text=True, cwd=place, check=True)


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A copy of the packages with the files of the page."""
    place = copied(tmp_path_factory.mktemp("copy"))
    (place / "docs").mkdir()
    shutil.copy(ROOT / "docs" / "make_tables.py", place / "docs")
    file = place / re.match(r"# (opmatrix/\S+\.py)\n", RECORD)[1]
    assert not file.exists()
    file.write_text(RECORD, "utf-8")
    patched(place, PAGE)
    return place


def touched(tree):
    """The files of the copy that are new, or are not as they were."""
    files = [file.relative_to(tree) for file in tree.rglob("*.py")]
    return {
        file.as_posix()
        for file in files
        if not (ROOT / file).exists() or not filecmp.cmp(ROOT / file, tree / file, shallow=False)
    }


def run(tree, code, *words):
    code = f"import sys; sys.path.insert(0, {str(tree)!r})\n{code}"
    return subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, cwd=tree, timeout=300)


def test_few_files_are_touched(tree):
    """The page names each of them; whoever adds a reader that must be changed by hand sees it here."""
    named = {*re.findall(r"^\+\+\+ b/(\S+)$", PAGE, re.M), *re.findall(r"^# (opmatrix/\S+\.py)$", PAGE, re.M)}
    assert touched(tree) == named and len(named) <= MOST_FILES


@pytest.mark.parametrize("script", ["\n".join(USE), READERS, FORMULAS], ids=["the page", "its readers", "the planner"])
def test_they_are_enough(tree, script):
    done = run(tree, script)
    assert not done.returncode, done.stderr


def test_it_is_printed_and_its_ranks_are_refused(tree):
    words = "partition gpt2 --cp 2 --tp 2 --batch 4 --tokens 512 --up".split()
    shown = run(tree, COMMAND, *words, "2")
    assert "gpt2 on 8 ranks: cp 2 (ring) × up 2 (ulysses) × tp 2 (tensor)" in shown.stdout, shown.stderr
    assert re.search(r"^all_to_all over up  9216\*b\*s +4608\*b\*s ", shown.stdout, re.M), shown.stdout
    assert "up has 8 ranks and attention has 12 heads" in run(tree, COMMAND, *words, "8").stderr


def test_a_strategy_of_an_axis_is_a_line_of_its_file(tmp_path):
    patched(copied(tmp_path), STRATEGY)
    assert touched(tmp_path) == {"opmatrix/parallel/axes/context_axis.py"}
    done = run(tmp_path, PLANNED)
    assert not done.returncode, done.stderr
