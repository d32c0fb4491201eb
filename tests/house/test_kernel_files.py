"""A kernel is read in one place: its declaration, its law, and its compiled code."""

import ast
import re
from importlib import import_module
from statistics import median

import pytest
from children import ROOT
from measures import MODULES

from formats import kernels
from formats.core.stage import STAGES, collect_operands
from formats.kernels import find_modules
from formats.kernels.engine.compiled import COMMON
from opmatrix.runtime.declarations.kernel import BESIDE, Arguments, kernel
from opmatrix.runtime.kernels import KERNELS, enter

ROOM = ROOT / "opmatrix/runtime/kernels"
LANGUAGE = {"flat", "guards", "instances", "kinds", "law", "spelling"}  # what laws are written in
LAWS = sorted(path for path in (ROOT / "rewrites/laws").glob("*.py") if path.stem not in LANGUAGE)
READ = {path: ast.parse(path.read_text("utf-8")) for path in sorted(ROOM.glob("*.py"))}
CLASSES = {
    node.name: (path, node)
    for path, tree in READ.items()
    for node in tree.body
    if isinstance(node, ast.ClassDef) and node.name in KERNELS
}


def attributes_of(tree, name):
    """The attributes that a tree reads of a variable."""
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == name
    }


def files(name):
    """The files in which one kernel is said: its declaration, the compiled code that it calls, laws that name it."""
    path, node = CLASSES[name]
    code = {found for each in attributes_of(node, "compiled") if (found := find_modules().get(each))}
    laws = {law for law in LAWS if re.search(rf'["(]{name}"', law.read_text("utf-8"))}
    return {path, *code, *laws}


def test_a_kernel_lies_in_few_files():
    counts = {name: len(files(name)) for name in KERNELS}
    assert CLASSES.keys() == KERNELS.keys() and median(counts.values()) <= 3 and max(counts.values()) <= 4, counts


def test_the_index_is_made_of_the_files():
    """What a module lists it has, and what is asked of the index is there; names are listed once."""
    for name, module in find_modules().items():
        assert getattr(kernels, name) is getattr(import_module(f"formats.kernels.{module}"), name)
    assert {each for _, node in CLASSES.values() for each in attributes_of(node, "compiled")} <= {*dir(kernels)}
    with pytest.raises(AttributeError, match=r"^formats\.kernels has no 'product_dens'; it has product_"):
        _ = kernels.product_dens


@pytest.mark.parametrize("name", KERNELS)
def test_readings_name_no_other_operands(name):
    """What a reading asks of its arguments is in the signature."""
    declared, (_, node) = KERNELS[name], CLASSES[name]
    readings = [
        each
        for each in node.body
        if isinstance(each, ast.FunctionDef) and [arg.arg for arg in each.args.args][:1] == ["a"]
    ]
    asked = {name for each in readings for name in attributes_of(each, "a")}
    assert readings and asked <= {*declared.operands, *declared.attributes, *BESIDE}


def test_mistakes_are_one_line():
    class nothing(Arguments):
        """No readings."""

    with pytest.raises(TypeError, match=r"^kernel nothing: it does not declare run: see the kernels in opmatrix/runt"):
        kernel()(nothing)
    with pytest.raises(ValueError, match=r"^kernel scale: there is one already; give it another name$"):
        enter(KERNELS["scale"])
    with pytest.raises(TypeError, match=r"^stage bias: an earlier stage declares the operand bias, too: rename one$"):
        collect_operands((*STAGES, STAGES[0]))
    with pytest.raises(AttributeError, match=r"^kernel scale\(x; factor\) has no facto; there are x, factor$"):
        _ = KERNELS["scale"].record(x=1, factor=2.0).facto
    with pytest.raises(TypeError, match=r"^kernel scale\(x; factor\) has no facto$"):
        KERNELS["scale"].record(facto=2.0)


def test_modules_that_are_compiled_ahead_exist():
    assert {f"formats.kernels.{name}" for name in COMMON} <= {*MODULES}
