"""A process that opmatrix starts imports no file of the working directory, however the process that starts it was
started."""

import os
import subprocess
import sys

import pytest
from children import LIMIT, ROOT

from formats.disk.own_python import added_paths, child_of_module, child_of_python
from formats.host.blas import TRIAL
from formats.kernels.engine.compiler import TEXTS
from rewrites.cli import leave_working_directory

TRAPS = "torch", "numpy", "queue", "pip", "formats", "llvmlite"
STARTERS = {
    "script": "from rewrites.cli.__main__ import main; main()",
    "-c": "from rewrites.cli.__main__ import main; main()",
    "-m": "",
}
INHERITED = {"clean": "{}", "an empty part first": ":{}", "an empty part last": "{}:"}


@pytest.fixture
def trapped(tmp_path):
    """A folder of modules that leave a file beside them when they are imported."""
    folder = tmp_path / "trapped"
    for name in TRAPS:
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(f"open({str(folder / 'sprung')!r}, 'a').write('{name} ')")
        (folder / name / "__main__.py").write_text("")
    return folder


def sprung(folder):
    file = folder / "sprung"
    return file.read_text() if file.exists() else ""


def run(child, folder):
    return subprocess.run(
        child.command,
        cwd=folder,
        env=child.environment,
        text=True,
        capture_output=True,
        timeout=LIMIT,
        stdin=subprocess.DEVNULL,
    )


@pytest.mark.parametrize("inherited", INHERITED)
@pytest.mark.parametrize("arguments", [("-c", TRIAL), ("-m", "pip", "--version"), ("-c", "import queue, numpy")])
def test_a_python_of_ours(trapped, monkeypatch, inherited, arguments):
    monkeypatch.setenv("PYTHONPATH", INHERITED[inherited].format(ROOT))
    monkeypatch.chdir(trapped)
    done = run(child_of_python(*arguments), trapped)
    assert done.returncode == 0 and not sprung(trapped), done.stderr


def test_a_working_directory_that_was_removed(tmp_path, monkeypatch):
    """No file is in it, so relative entries of the path name none; absolute ones are handed on."""
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    monkeypatch.setattr(sys, "path", ["", "beside", str(tmp_path), *sys.path])
    paths = added_paths()
    assert str(tmp_path) in paths and all(map(os.path.isabs, paths))
    assert child_of_module("formats.kernels.engine.compiler").command[0] == sys.executable


def test_a_trap_springs_where_python_is_started_plainly(trapped):
    subprocess.run([sys.executable, "-c", "import queue, numpy"], cwd=trapped, check=True)
    assert sprung(trapped) == "queue numpy "


def test_a_module_of_ours_is_the_one_of_this_process(trapped, tmp_path, monkeypatch):
    """Others of our names that the path has first are passed by; what a user declared kernels in is found last."""
    monkeypatch.setattr(sys, "path", ["", str(trapped), *sys.path])
    monkeypatch.chdir(trapped)
    (tmp_path / TEXTS).touch()  # a compiler that is asked for no kernel
    places = [str(tmp_path / name) for name in ("kernels", "spare", ".")]
    done = run(child_of_module("formats.kernels.engine.compiler", str(os.getpid()), *places), trapped)
    assert done.returncode == 0 and not sprung(trapped), done.stderr


def test_the_folder_of_a_users_module_comes_last(tmp_path, monkeypatch):
    import json

    (tmp_path / "users_package").mkdir()
    for name in ("__init__", "kernels"):
        (tmp_path / "users_package" / f"{name}.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    import users_package.kernels  # noqa: F401

    monkeypatch.chdir(tmp_path)
    for user in ("users_package.kernels", "users_package"):
        *_, paths, module = child_of_module("formats.none", users=[user]).command
        assert module == "formats.none" and json.loads(paths)[-1] == str(tmp_path)
    assert str(tmp_path) not in json.loads(child_of_module("formats.none").command[3])


@pytest.mark.parametrize("inherited", INHERITED)
@pytest.mark.parametrize("starter", STARTERS)
def test_a_command(trapped, tmp_path, starter, inherited):
    """However it is started, in the folder of traps."""
    environment = os.environ | {"PYTHONPATH": INHERITED[inherited].format(ROOT), "OPMATRIX_CACHE": str(tmp_path)}
    script = tmp_path / "opmatrix"
    script.write_text(STARTERS[starter])
    start = {"script": [str(script)], "-c": ["-c", STARTERS[starter]], "-m": ["-m", "rewrites.cli"]}[starter]
    done = subprocess.run(
        [sys.executable, *start, "doctor"], cwd=trapped, env=environment, text=True, capture_output=True, timeout=LIMIT
    )
    assert not sprung(trapped) and done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "arguments, named, left",
    [
        (["-m"], "", []),
        (["/bin/opmatrix", "laws"], "", []),
        (["-m"], ".", ["", "here"]),
        (["-c"], "/elsewhere", ["here"]),
        (["-c"], ":/elsewhere", []),
        (["-c"], "", ["here"]),
        (["/home/run.py"], "", ["", "here"]),
        ([], "", ["", "here"]),
        ([""], "", ["", "here"]),
    ],
)
def test_the_working_directory_is_left(tmp_path, monkeypatch, arguments, named, left):
    monkeypatch.chdir(tmp_path)
    path = ["", "/elsewhere", str(tmp_path)]
    leave_working_directory(arguments, path, named)
    assert [{str(tmp_path): "here"}.get(each, each) for each in path if each != "/elsewhere"] == left


def test_what_a_parent_process_has_added_stays(tmp_path):
    """As workers of pytest-xdist and multiprocessing have it: their `-c` adds the parent's paths before it imports."""
    code = f"import sys; sys.path[:0] = [{str(ROOT)!r}, {str(tmp_path)!r}]; import rewrites.cli; print(sys.path[1])"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, text=True, capture_output=True, timeout=LIMIT)
    assert done.stdout == f"{tmp_path}\n", done.stderr


def test_without_a_python_nothing_is_started(monkeypatch):
    monkeypatch.setattr(sys, "executable", "")
    with pytest.raises(RuntimeError, match=r"sys\.executable is empty"):
        child_of_python("-c", "")
