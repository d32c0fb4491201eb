"""Compiled code is found again until something changes that it depends on; what runs it knows no compiler."""

import ast
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from checkpoints import CONFIG, arrays
from children import LIMIT, ROOT
from programs import bert_program, unfused_layer

from formats import FORMATS, kernels
from formats.core.errors import InputError
from formats.disk import locks
from formats.kernels.engine import compiler, frozen, objects
from formats.kernels.engine.compiled import FUNCTIONS, Function, provide
from formats.kernels.engine.native import Nothing, types
from formats.kernels.rows.activations import PASSES


@Function.of(1, rare=True)
def impossible(number):
    """No code can be made of this."""
    number.nowhere()


def done(code, root=ROOT, **environment):
    """What a Python does that imports the packages below root."""
    environment = os.environ | {"PYTHONPATH": str(root)} | environment
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, cwd=root)


def run(code, root=ROOT, **environment):
    """What it prints."""
    found = done(code, root, **environment)
    assert found.returncode == 0, found.stderr
    return found.stdout.split()


SQUARE = """
import sys
import numpy as np
from formats import kernels
from formats.kernels.engine import objects
from formats.kernels.engine.compiled import FUNCTIONS
from formats.kernels.engine.launch import address
kernels.warm(["square"])
x = np.arange(40, dtype=np.float32)
FUNCTIONS["square"].call(address(x), 40, 1, 160)
assert (x == np.arange(40) ** 2).all()
print("compiled" if "formats.kernels.engine.compiler" in sys.modules else "found", objects.key())
"""
FILE = f"{PASSES['square'].symbol}.o"
NAME = """
from formats.kernels.engine import objects
from formats.kernels.matmul.packed_panels import packed
from formats.kernels.rows.activations import PASSES
print(objects.key(), PASSES["square"].symbol, packed.symbol)
"""


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """A cache that has one function, and its key."""
    directory = tmp_path_factory.mktemp("cache")
    first = done(SQUARE, OPMATRIX_CACHE=str(directory))
    said, key = first.stdout.split()
    assert said == "compiled"
    assert first.stderr == (
        "opmatrix: compiling kernels, 1 of them, which may take a minute, once: they are kept in "
        f"{directory / 'kernels' / key}\n"
    )
    return directory, key


def test_what_was_compiled_is_found_again(cache):
    again = done(SQUARE, OPMATRIX_CACHE=str(cache[0]))
    assert again.stdout.split() == ["found", cache[1]] and not again.stderr


def test_another_build_of_a_python_finds_it_too(cache):
    code = f"import sys\nsys.version = '3.{sys.version_info.minor}.99 (built elsewhere) [GCC]'\n{SQUARE}"
    assert run(code, OPMATRIX_CACHE=str(cache[0])) == ["found", cache[1]]


def test_what_is_damaged_is_compiled_again(cache):
    """Code with another byte anywhere, or of another length, is none."""
    directory, key = cache
    (file,) = directory.rglob(FILE)
    whole = file.read_bytes()
    assert objects.read_intact(file) == whole[: -objects.SIZE]
    for at in (0, 900, *np.random.default_rng(0).integers(0, len(whole), 40).tolist(), len(whole) - 1):
        for instead in (b"", bytes([whole[at] ^ 1]), bytes([33, whole[at]])):
            file.write_bytes(whole[:at] + instead + whole[at + 1 :])
            assert not objects.read_intact(file)
    file.write_bytes(whole[:900] + b"!" + whole[901:])
    assert run(SQUARE, OPMATRIX_CACHE=str(directory)) == ["compiled", key]
    assert len(file.read_bytes()) == len(whole) and [*file.parent.iterdir()] == [file]


def test_a_change_of_a_source_changes_the_names_that_depend_on_it(tmp_path):
    """Of a kernel's module its own and those that import it, as products do the functions behind them; of others
    none."""
    shutil.copytree(ROOT / "formats", tmp_path / "formats")
    key, square, packed = run(NAME, tmp_path)
    assert [key, square, packed] == run(NAME)

    def change(name):
        with (tmp_path / "formats" / "kernels" / f"{name}.py").open("a") as source:
            source.write("\n# changed\n")
        return run(NAME, tmp_path)

    assert change("attentions/caches") == [key, square, packed]
    same, own, other = change("matmul/packed_panels")
    assert [same, own] == [key, square] and other != packed
    for name in ("rows/activations", "engine/memory"):
        before, (same, *now) = (own, other), change(name)
        own, other = now
        assert same == key and own != before[0] and other != before[1]


def test_a_kernel_of_a_new_file_leaves_the_others_as_they_are(tmp_path):
    shutil.copytree(ROOT / "formats", tmp_path / "formats")
    (tmp_path / "formats" / "kernels" / "rows" / "newer.py").write_text('__all__ = ["newer"]\ndef newer(): pass\n')
    assert run(NAME, tmp_path) == run(NAME)


def imported_by(path):
    """(module, name) of what a source imports, by its syntax tree."""
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Import(names=names):
                yield from ((each.name, "") for each in names)
            case ast.ImportFrom(module=module, names=names, level=level):
                yield from (("." * level + (module or ""), each.name) for each in names)


@pytest.mark.parametrize("file", sorted((ROOT / "formats").rglob("*.py")), ids=lambda path: path.stem)
def test_imports_are_found_without_a_syntax_tree(file):
    """What stands in docstrings may be found besides."""
    assert {*imported_by(file)} <= {*frozen.imports(file.read_text())}


HOME = ROOT / "formats" / "kernels"
CONSTANTS = sorted(
    {
        pair
        for file in HOME.rglob("*.py")
        for pair in imported_by(file)
        if pair[0].startswith("formats.")
        and not pair[0].startswith("formats.kernels")
        and isinstance(getattr(import_module(pair[0]), pair[1], None), int | float | tuple | dict)
    }
)


@pytest.mark.deep(every=13)
@pytest.mark.parametrize("module, name", CONSTANTS)
def test_any_constant_that_kernels_have_from_elsewhere_changes_the_name(monkeypatch, module, name):
    using = [file for file in HOME.rglob("*.py") if (module, name) in {*imported_by(file)}]
    names = [".".join(file.relative_to(ROOT).with_suffix("").parts) for file in using]
    before, of = kernels.digest.__wrapped__(), [frozen.sources.__wrapped__(each) for each in names]
    assert before == kernels.digest.__wrapped__()
    match value := getattr(import_module(module), name):
        case tuple():
            changed = (*value, value[-1])
        case dict():
            changed = value | {"another": 1}
        case _:
            changed = value + 1 if value < 1e9 else value / 2
    monkeypatch.setattr(f"{module}.{name}", changed)
    assert before != kernels.digest.__wrapped__()
    assert all(one != frozen.sources.__wrapped__(each) for one, each in zip(of, names, strict=True))
    assert len(CONSTANTS) > 8


def test_a_constant_of_another_module_changes_the_name(tmp_path):
    shutil.copytree(ROOT / "formats", tmp_path / "formats")
    file = tmp_path / "formats" / "core" / "layout.py"
    file.write_text(file.read_text().replace("\nPANEL = 64 ", "\nPANEL = 32 "))
    assert run(NAME, tmp_path)[2] != run(NAME)[2]


OUTSIDE = {
    "kernels.py": "from formats.kernels.engine.compiled import Function\nfrom mine.helpers import scaled\n"
    "from mine import tables\nSHIFT = 3\n@Function.of(1, result=True)\n"
    "def shifted(number): return scaled(number) + SHIFT + tables.WIDE\n",
    "helpers.py": "from formats.kernels.engine.native import njit\nfrom .constants import SCALE\n"
    "@njit\ndef scaled(number): return number * SCALE\n",
    "constants.py": "SCALE = 2\n",
    "tables.py": "import os\nWIDE = int(os.environ.get('WIDE', 5))\nNOW = os.getpid()\n",
}


def test_a_kernel_from_elsewhere_is_named_by_all_that_it_is_made_of(tmp_path):
    """The sources and values of modules that its module imports; in the process that compiles, too."""

    def symbol(**environment):
        return run(
            "from mine.kernels import shifted; print(shifted.symbol)",
            PYTHONPATH=f"{ROOT}{os.pathsep}{tmp_path}",
            **environment,
        )[0]

    (tmp_path / "mine").mkdir()
    for name, source in OUTSIDE.items():
        (tmp_path / "mine" / name).write_text(source)
    first = symbol()
    assert first == symbol(OPMATRIX_COMPILES="1") != symbol(WIDE="6")
    for name in OUTSIDE:
        (tmp_path / "mine" / name).write_text(OUTSIDE[name] + "\nMORE = 1\n")
        assert symbol() != first
        (tmp_path / "mine" / name).write_text(OUTSIDE[name])


HOLDING = {
    "a default": "def helper(number, by={}): return number + by",
    "a default by name": "def helper(number, *, by={}): return number + by",
    "a cell": "def make(by):\n    def inner(number): return number + by\n    return inner\nhelper = make({})",
    "a cell of a cell": "def make(by):\n    def deep(number): return number + by\n"
    "    def inner(number): return deep(number)\n    return inner\nhelper = make({})",
    "a table in a tuple": "TABLE = (1, (2, ({}, 3)))\ndef helper(number): return number + TABLE[1][1][0]",
    "an array": "TABLE = np.array([1, {}])\ndef helper(number): return number + TABLE[1]",
    "another module's": "def helper(number): return number + beside.WIDE",
}


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("what", HOLDING)
def test_what_a_helper_holds_is_in_a_kernels_name(tmp_path, monkeypatch, what, wrapped):
    """Whatever the source does not say, here what the environment does."""
    value = "int(os.environ['WIDE'])"
    source = f"import os\nimport numpy as np\nimport beside\nfrom types import SimpleNamespace\n{HOLDING[what]}\n"
    if wrapped:
        source += "def plain(f): return SimpleNamespace(py_func=f)\nhelper = plain(helper)\n"
    (tmp_path / "holding.py").write_text(source.replace("{}", value) + "def kernel(number): return helper(number)\n")
    (tmp_path / "beside.py").write_text(f"import os\nWIDE = {value}\n")
    monkeypatch.syspath_prepend(tmp_path)

    def named(wide):
        monkeypatch.setenv("WIDE", wide)
        for name in ("holding", "beside"):
            monkeypatch.delitem(sys.modules, name, raising=False)
        return frozen.closure(import_module("holding").kernel)

    assert named("5") == named("5") != named("6")


@pytest.mark.parametrize(
    "setting", [("CPU_FEATURES", "+sse2"), ("CPU_NAME", "generic"), ("ENABLE_AVX", "0"), ("OPT", "1")]
)
def test_other_settings_have_other_names(cache, setting):
    name, value = setting
    code = "from formats.kernels.engine import native, objects; print(objects.key(), '+avx' in native.FEATURES)"
    key, avx = run(code, **{f"NUMBA_{name}": value})
    assert key != cache[1] and avx == str(name == "OPT" and "+avx" in objects.FEATURES)


@pytest.mark.deep(every=2)
@pytest.mark.parametrize("place", ["{}", "/proc/none"])
def test_a_cache_that_cannot_be_written_to(tmp_path, place):
    (tmp_path / "kernels").write_text("in the way")
    found = done(SQUARE, OPMATRIX_CACHE=place.format(tmp_path))
    assert found.returncode == 0 and found.stdout.startswith("compiled ")
    assert found.stderr.startswith("opmatrix: compiled kernels: not kept: ") and found.stderr.count("\n") == 1, (
        found.stderr
    )
    assert (tmp_path / "kernels").read_text() == "in the way" and {path.name for path in tmp_path.iterdir()} <= {
        "kernels",
        "processors",
    }


def relocate(path):
    """A link to what lies where other users may write."""
    (elsewhere := path.parents[2] / "elsewhere").mkdir()
    elsewhere.chmod(0o777)
    path.rename(elsewhere / path.name)
    path.symlink_to(elsewhere / path.name)


FULL = """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
{}
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
kernels.warm(["gelu"])
"""


@pytest.mark.deep
@pytest.mark.skipif(sys.platform == "win32", reason="no limits of files")
def test_a_disk_that_is_full_everywhere_is_an_error_in_words(tmp_path):
    """Nothing half is left, and nothing half is called."""
    found = done(FULL.format(SQUARE), OPMATRIX_CACHE=str(tmp_path))
    assert (
        "not compiled: gelu" in found.stderr
        and "File too large" in found.stderr
        and found.stdout.startswith("compiled ")
    )
    assert [file.name for file in (tmp_path / "kernels").rglob("*") if file.is_file()] == [FILE]


@pytest.mark.deep(every=2)
@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give files to others")
@pytest.mark.parametrize(
    "place, theirs",
    [
        (FILE, lambda path: os.chown(path, 54321, -1)),
        (FILE, lambda path: path.chmod(0o664)),
        (FILE, relocate),
        ("kernels", lambda path: path.chmod(0o777)),
    ],
    ids=["a stranger's", "writable to a group", "a link", "kernels"],
)
def test_object_code_that_others_could_have_written_is_not_called(cache, tmp_path, place, theirs):
    """It is whole and would be found: only who owns it, or may write to it, is wrong. Both of files and of directories:
    tests/formats/test_cache.py."""
    shutil.copytree(cache[0], mine := tmp_path / "mine")
    for path in (mine, *mine.rglob("*")):
        path.chmod(0o700)
    assert run(SQUARE, OPMATRIX_CACHE=str(mine)) == ["found", cache[1]]
    theirs(found := next(mine.rglob(place)))
    ran = done(SQUARE, OPMATRIX_CACHE=str(mine))
    assert ran.returncode == 0 and ran.stdout.split() == ["compiled", cache[1]]
    assert ran.stderr.count("\n") == 1 and str(found) in ran.stderr
    assert any(words in ran.stderr for words in ("54321", "other users may write", "it is a symbolic link"))
    again = done(SQUARE, OPMATRIX_CACHE=str(mine))
    if place == FILE:
        assert again.stdout.split()[0] == "found" and not again.stderr, "ours took its place"
    else:
        assert again.stdout.split()[0] == "compiled" and again.stderr == ran.stderr


def test_together_is_at_once(tmp_path):
    assert run(
        """
from formats.kernels.rows import activations; from formats.kernels.engine import compiled
missed = []
def walk():
    missed.append([each.address for each in (activations.PASSES["relu"], activations.PASSES["square"])])
    if len(missed) == 2: compiled.provide = None                # nothing is left to compile
    return missed[-1]
assert compiled.walk_compiled(walk, activations.PASSES["relu"])[1] == activations.PASSES["square"].place != 0
assert missed[0] == [0, 0] and compiled.MISSING.get() is None
print("done")
""",
        OPMATRIX_CACHE=str(tmp_path),
    ) == ["done"]


def test_a_saved_program_runs_without_a_compiler(tmp_path):
    program = bert_program(CONFIG, arrays(CONFIG), unfused_layer, FORMATS["packed"].pack)
    program.save(tmp_path / "program")
    code = f"""
import sys
from opmatrix.algebra.batch.batch import Batch
from opmatrix.runtime.program import Program
program = Program.load({str(tmp_path / "program")!r})
batch = Batch([[3, 4, 5], [8], [9, 10, 11, 12]])
found = program.run(batch)
known = any(each in sys.modules for each in ("numba", "llvmlite"))
print(known, found.tobytes().hex())
"""
    run(code)
    known, found = run(code)
    assert known == "False"
    from opmatrix.algebra.batch.batch import Batch

    assert program.run(Batch([[3, 4, 5], [8], [9, 10, 11, 12]])).tobytes().hex() == found


@pytest.mark.deep
def test_what_cannot_be_compiled_says_why():
    with pytest.raises(RuntimeError, match=r"(?s)not compiled: impossible .*TypingError.*nowhere"):
        provide([impossible])
    with pytest.raises(ValueError, match=r"kernels: there is no such_one; there are .*gemm"):
        kernels.warm(["such_one"])
    here = done(
        "from formats.kernels.engine.compiled import Kernel\ndef local(item, worker, arguments): "
        "pass\nKernel(local).call(1, 1, 1)"
    )
    assert "local: a kernel of __main__ cannot be compiled" in here.stderr


@pytest.mark.deep
def test_a_kernel_must_be_declared_where_it_says(monkeypatch):
    def hidden(number):
        pass

    function = Function(hidden, 1, rare=True)
    monkeypatch.delitem(FUNCTIONS, "hidden")
    with pytest.raises(RuntimeError, match="test_compiling: importing it declares no kernel hidden"):
        provide([function])


def test_what_only_the_compiler_has_is_nothing():
    class Kind(types.Type):
        """Declared by a kernel."""

    assert Kind(1, name="x") is Nothing is types.int64 and "numba" not in sys.modules


def test_every_kernel_compiles_and_says_so():
    told = []
    kernels.warm(progress=lambda name, seconds: told.append(name))
    assert sorted(told) == sorted(name for name, function in FUNCTIONS.items() if not function.rare)


# ---- compilers that end otherwise than they should

POSIX = pytest.mark.skipif(
    not hasattr(os, "waitid") or not os.path.isdir("/proc/self/task"), reason="children are found by /proc"
)


def children(pid):
    """The numbers of the processes that a process has started."""
    try:
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def wait_for(condition):
    """What a condition gives once it gives anything."""
    end = time.monotonic() + LIMIT
    while not (found := condition()):
        assert time.monotonic() < end
        time.sleep(0.02)
    return found


@pytest.fixture
def compiling(tmp_path):
    """A process on an empty cache, a compiler of its, and the folder of its temporary files."""
    (temporary := tmp_path / "temporary").mkdir()
    environment = {"PYTHONPATH": str(ROOT), "OPMATRIX_CACHE": str(tmp_path / "cache"), "TMPDIR": str(temporary)}
    process = subprocess.Popen(
        [sys.executable, "-c", SQUARE],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        env=os.environ | environment,
    )
    yield process, wait_for(lambda: children(process.pid))[0], temporary
    process.kill()
    process.communicate()


@POSIX
@pytest.mark.deep
def test_a_compiler_that_is_stopped_goes_on(compiling):
    process, compiler, temporary = compiling
    os.kill(compiler, signal.SIGSTOP)
    said, errors = process.communicate(timeout=LIMIT)
    assert said.startswith("compiled ") and process.returncode == 0, errors
    assert not [*temporary.iterdir()]


@POSIX
@pytest.mark.deep
def test_compilers_end_with_the_process_that_wants_them(compiling):
    """However that ends, and nothing temporary is left."""
    process, compiler, temporary = compiling
    process.kill()
    wait_for(lambda: not os.path.exists(f"/proc/{compiler}") and not [*temporary.iterdir()])


@POSIX
@pytest.mark.deep
def test_a_compiler_that_the_system_ends_had_too_little_memory(compiling):
    process, compiler, temporary = compiling
    os.kill(compiler, signal.SIGKILL)
    _, errors = process.communicate(timeout=LIMIT)
    assert errors.splitlines()[-1].startswith(
        "formats.core.errors.InputError: not compiled: square: there was not enough memory"
    )
    assert not [*temporary.iterdir()]


@pytest.mark.parametrize(
    "codes, said, kind",
    [
        ([0, 0], "", type(None)),
        ([0, -9], "", InputError),
        ([1], "MemoryError: ", InputError),
        ([-6], "terminate called after throwing an instance of 'std::bad_alloc'", InputError),
        ([1, 0], "TypingError", RuntimeError),
        ([-11], "", RuntimeError),
    ],
)
def test_what_ends_compilers_is_told_apart(codes, said, kind):
    assert type(compiler.find_failure(codes, BytesIO(said.encode()), {"square"})) is kind


def test_where_memory_ends_one_compiler_is_tried_alone(monkeypatch):
    """For what is left, and no further."""
    counts = []

    @contextmanager
    def started(functions, count):
        counts.append(([each.name for each in functions], count))
        yield ["square 0.1 \n"] if len(counts) == 1 else [], BytesIO(), [SimpleNamespace(wait=lambda: -9)]

    monkeypatch.setattr(compiler, "started", started)
    monkeypatch.setattr("formats.host.threads.threads", lambda: 2)
    monkeypatch.setattr(compiler.Host, "here", lambda: SimpleNamespace(usable=2))
    with pytest.raises(InputError, match="not compiled: relu: there was not enough memory"):
        list(compiler.compile_each([PASSES["square"], PASSES["relu"]]))
    assert counts == [(["square", "relu"], 2), (["relu"], 1)]


@pytest.mark.skipif(locks.fcntl is None, reason="no locks here")
def test_several_processes_compile_each_kernel_once(tmp_path, monkeypatch):
    """Here threads: locks are of open files. All begin with the same kernel."""
    compiled, functions = Counter(), [PASSES["square"], PASSES["relu"], FUNCTIONS["gelu"]]

    def compile_to(function, directory, spare):
        compiled[function.name] += 1
        time.sleep(0.05)  # the others come by
        objects.write_code(directory, function.symbol, b"code", [])
        return ""

    monkeypatch.setattr(compiler, "compile_to", compile_to)
    answers = os.open(tmp_path / "answers", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    (directory := tmp_path / "kernels").mkdir()
    work = compiler.CompilerWork(directory, tmp_path, 0, answers)
    with ThreadPoolExecutor(8) as pool:
        for each in [pool.submit(work.compile_all, functions) for _ in range(8)]:
            each.result()
    assert compiled == dict.fromkeys(("square", "relu", "gelu"), 1)
    answered = Counter(line.split()[0] for line in (tmp_path / "answers").read_text().splitlines())
    assert answered == dict.fromkeys(compiled, 8)
    assert {path.suffix for path in directory.iterdir()} == {".o"}, "no lock is left"
    os.close(answers)


@pytest.mark.skipif(locks.fcntl is None, reason="no locks here")
def test_a_kernel_that_another_never_ends_is_compiled_anyway(tmp_path, monkeypatch):
    """Its process may have been stopped; and what lies there from before, which was not believed, is made anew."""
    monkeypatch.setattr(compiler, "LONGEST", 0.1)
    monkeypatch.setattr(compiler, "compile_to", lambda function, *_: made.append(function.name) or "")
    made, square, answers = [], PASSES["square"], os.open(os.devnull, os.O_WRONLY)
    work = compiler.CompilerWork(tmp_path, tmp_path, time.time_ns() + 10**9, answers)
    with locks.taking(objects.lock_file(tmp_path, square.symbol), 0) as taken:
        assert taken
        work.compile_all([square])
    objects.write_code(tmp_path, square.symbol, b"code", [])
    work.compile_all([square])
    assert made == ["square", "square"]
    os.close(answers)
