"""What pages show is what happens, in README.md, docs/ and elsewhere: links lead somewhere, every command is run, every
block of Python runs, and what was written to be read once is short."""

import doctest
import re
import runpy
import shlex
import shutil
import sys

import ggufs
import pytest
import standin
import typer
from children import ROOT
from partitioned import RATES
from searched import KINDS, structure

from opmatrix.exports.exported_files import export_files
from opmatrix.files.checkpoint import open_model
from opmatrix.inference.corpora.corpus_stage import embed_shard
from opmatrix.runtime.program import Program
from rewrites.cli import __main__ as cli
from rewrites.cli import explained_program as explain  # noqa: F401, before what it imports is replaced
from rewrites.cli.commands import app
from rewrites.metrics import recheck
from rewrites.workload.resolve import source

PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "benchmarks/README.md")),
    *sorted((ROOT / "docs").glob("**/*.md")),
]
TEXTS = {page.relative_to(ROOT).as_posix(): page.read_text("utf-8") for page in PAGES}
GUIDES = [name for name in TEXTS if name.startswith("docs/guide/")]
SHORT = [
    "README.md",
    "docs/commands.md",
    "docs/results.md",
    "docs/add_a_command.md",
    "docs/add_a_monoid.md",
    "docs/add_a_pattern.md",
    "docs/add_a_function.md",
    "docs/your_own_operator.md",
    "docs/add_an_activation.md",
    *GUIDES,
]
FENCED = re.compile(r"^```(.*?)\n(.*?)^```$", re.M | re.S)


def prose(text):
    return FENCED.sub("", text)


# ---- links and length


def anchors(text):
    """The headings of a page as links name them."""
    headings = re.findall(r"^#+ (.*)$", prose(text), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", TEXTS)
def test_links_lead_somewhere(name):
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", prose(TEXTS[name]))):
        file, _, anchor = target.partition("#")
        if "://" in file:
            continue
        page = ((ROOT / name).parent / file).resolve() if file else ROOT / name
        assert page.exists() and page.is_relative_to(ROOT), target
        assert not anchor or anchor in anchors(page.read_text("utf-8")), target


@pytest.mark.parametrize("name", SHORT)
def test_it_is_read_once(name):
    assert max(map(len, TEXTS[name].splitlines())) <= 160
    paragraphs = re.split(r"\n\s*\n|\n(?=- |\|)", prose(TEXTS[name]))
    assert not [each for each in paragraphs if len(each.split()) > 80 and not each.lstrip().startswith("|")]


def test_every_guide_is_found():
    assert not [
        name
        for name in [*GUIDES, "docs/commands.md", "docs/results.md", "benchmarks/README.md"]
        if f"]({name}" not in TEXTS["README.md"]
    ]


# ---- Python

PYTHON = {
    name: [block for how, block in FENCED.findall(text) if how == "python"]
    for name, text in TEXTS.items()
    if name != "README.md" and not name.startswith("docs/add_a")
}
PYTHON = {name: blocks for name, blocks in PYTHON.items() if blocks}


@pytest.mark.parametrize("name", PYTHON)
def test_its_python_runs(name, tmp_path, monkeypatch):
    """Block after block, as a file; what has prompts as a doctest; what begins with the name of a file is one, too,
    which others may import. Recipes: tests/house/test_contributing.py."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for file, block in ((block.split()[1], block) for block in PYTHON[name] if re.match(r"# \w+\.py\n", block)):
        (tmp_path / file).write_text(block, "utf-8")
        monkeypatch.delitem(sys.modules, file.removesuffix(".py"), raising=False)
    shown = "\n".join(block for block in PYTHON[name] if block.startswith(">>>"))
    runner = doctest.DocTestRunner()
    runner.run(doctest.DocTestParser().get_doctest(shown, {}, name, name, 0))
    assert not runner.failures
    script = tmp_path / "page.py"
    script.write_text("\n".join(block for block in PYTHON[name] if not block.startswith(">>>")), "utf-8")
    runpy.run_path(str(script))


# ---- commands

SHELL = [block for text in TEXTS.values() for how, block in FENCED.findall(text) if not how.startswith("python")]
LINES = sorted({line for block in SHELL for line in block.splitlines() if re.search(r"(^|&& |\| )opmatrix ", line)})
DEAR = r"discover .*--size|explain .*--(full|json)|optimize .*--machine|plan mixtral"  # of each kind others stay
COMMANDS = typer.main.get_command(app).commands
PAIRS = 'the bank,a bank,4.5\n"the river, dry",river,3.0\na,of,0.25\nruns,the river runs,3.0\n'
TEXT = "the bird the\ncat 12 the\nthe fish the\n12 3 dog\n"
SMALL = {
    "minilm": "./minilm",
    "minilm/config.json": "./minilm/config.json",
    "smollm2": "./smollm2.gguf",
    "128": "8",
    "0.7:1x16,0.3:8x128": "0.7:1x8,0.3:2x16",
    "a sentence": "the river",
    "another": "a bank",
    "the capital of France is": "the bird",
    "answer briefly": "the",
}


def asked(line):
    """The words of the command in a line, and the file that is its standard input, if there is one."""
    before, command = re.fullmatch(r"(?:(.*?) )?opmatrix (.*)", line).groups()
    return shlex.split(command, comments=True), (before or "").partition("cat ")[2].rstrip(" |") or None


def packages_needed(words):
    """What a command and options of a line need beyond the base installation, as their help says: "(needs
    matplotlib)"."""
    options = {option: each.help for each in COMMANDS[words[0]].params for option in each.opts}
    helps = [COMMANDS[words[0]].help, *(options.get(word) for word in words)]
    return {package for text in helps for package in re.findall(r"\(needs (\w+)\)", text or "")}


@pytest.fixture(scope="module")
def place(optimized, tmp_path_factory):
    """A directory with everything that lines name: the small models, the program of the one run that tests share, one
    of a language model, and files."""
    home = tmp_path_factory.mktemp("pages")
    shutil.copytree(optimized.model, home / "minilm")
    shutil.copytree(optimized.out, home / "minilm.opmatrix")
    shutil.copy(optimized.lines, home / "lines.txt")
    (home / "pairs.csv").write_text(PAIRS)
    (home / "text.txt").write_text(TEXT * 8)
    (home / "questions.txt").write_text(TEXT)
    (home / "person.json").write_text('{"enum": [12, 34]}')
    (home / "mine.py").write_text(next(b for b in PYTHON["docs/guide/schedules.md"] if b.startswith("# mine.py")))
    chat = "{{ messages[-1].content }} "
    checkpoint = open_model(ggufs.write(home / "smollm2.gguf", {"tokenizer.chat_template": chat}))
    for name, pooled in (("smollm2", True), ("rows", False)):
        program, _ = structure(checkpoint.operator(pooled), *KINDS["exact"]).program(source(checkpoint))
        program.save(home / f"{name}.opmatrix")
    return home


def prepare_shards(place, name):
    """What `join` reads is there, and nothing that `embed` and `join` write."""
    for written in (*place.glob("part*.npy*"), *place.glob("vectors.npy")):
        written.unlink()
    for number in range(1, 5) if name == "join" else ():
        made = embed_shard(number, 4, place / "minilm.opmatrix", place / "lines.txt", place / "shards")
        shutil.copy(made, place / f"part{number}.npy")
        shutil.copy(f"{made}.json", place / f"part{number}.npy.json")


@pytest.mark.parametrize("line", LINES)
def test_a_command_is_as_the_command_line_has_it(line):
    name, *words = asked(line)[0]
    with COMMANDS[name].make_context(name, words) as context:
        assert context.command is COMMANDS[name]


@pytest.mark.parametrize(
    "line", [pytest.param(line, marks=pytest.mark.deep) if re.search(DEAR, line) else line for line in LINES]
)
def test_a_command_does_what_it_says(line, optimized, place, laws_known, monkeypatch, capsys):
    """On small models and a machine that nobody measured. A search is the one that tests share: all that a line asks
    for is opened and checked, and its result is saved and printed. Laws are verified already (test_verify.py), what
    each saves is left to test_explain.py, calibrations to test_calibrate_command.py."""
    for module in (
        "rewrites.run",
        "rewrites.cli.explained_program",
        "rewrites.metrics.evaluate",
        "rewrites.cli.machine.profile",
        "rewrites.encoders.language_models",
    ):
        monkeypatch.setattr(f"{module}.calibrated", lambda progress, *batches: standin.machine())
    monkeypatch.setattr("rewrites.run.pursue", lambda run, *given: optimized.result)
    monkeypatch.setattr("rewrites.cli.explained_program.group_fired", lambda opened, exact: [])
    monkeypatch.setattr("rewrites.report.results.tell_steps", lambda *_: "its steps")
    monkeypatch.setattr("rewrites.cli.rank_commands.launched", lambda *_: ("launched", {"holds": True}))
    monkeypatch.setattr("rewrites.approximate.students.distilled.distil", lambda *_, **options: "trained")
    monkeypatch.setattr("rewrites.serving.listening.serve_models", lambda *asked: asked[-1]("minilm"))
    monkeypatch.setattr("opmatrix.parallel.launch.local_ranks.rank_rates", lambda ranks: RATES)
    monkeypatch.setattr("rewrites.cli.machine.calibrate.calibrate_machine", lambda report: ("calibrated", {}))
    monkeypatch.setattr(recheck, "verify_laws", lambda laws: {"laws": len(laws)})
    monkeypatch.setattr(recheck, "verify_graphs", lambda templates, laws: {"graphs": len([*templates])})
    words, piped = asked(line)
    for package in packages_needed(words):
        pytest.importorskip(package, reason=f"needs peers: {package}")
    words += {
        "explain": ["--text", "lines.txt"],  # which the shared run was given
        "optimize": ["--out", "made.opmatrix"] * ("--machine" not in words),
    }.get(words[0], [])
    monkeypatch.chdir(place)
    if words[0] in ("embed", "join"):
        prepare_shards(place, words[0])
    if words[0] == "verify" and words[1].endswith(".onnx") and not (place / words[1]).exists():
        export_files(Program.load(place / "minilm.opmatrix"), place / words[1], None)
    monkeypatch.setattr(sys, "argv", ["opmatrix", *(SMALL.get(word, word) for word in words)])
    if piped:
        monkeypatch.setattr(sys, "stdin", open(piped))
    with pytest.raises(SystemExit) as end:
        cli.main()
    told = capsys.readouterr()
    assert not end.value.code and told.out.strip(), told.err + told.out


OPTIONS = {
    option
    for each in COMMANDS.values()
    for parameter in each.params
    for option in (*parameter.opts, *parameter.secondary_opts)
} | {"--help", "--version"}


@pytest.mark.parametrize("name", [*GUIDES, "README.md", "docs/results.md", "docs/commands.md"])
def test_options_in_prose_are_options(name):
    code = " ".join(re.findall("`([^`\n]*)`", prose(TEXTS[name])))
    named = {*re.findall(r"--[a-z][\w-]+", code)}
    assert named <= OPTIONS, f"{name} names {named - OPTIONS}"
