"""The packages form a ladder: formats, then opmatrix, then rewrites; nobody imports upward. The front door alone,
opmatrix/__init__.py, names modules of rewrites as text, and imports one when somebody asks for what it holds."""

import ast
import re

import pytest
from children import ROOT

LADDER = ["formats", "opmatrix", "rewrites"]
DOOR = ROOT / "opmatrix" / "__init__.py"
FILES = sorted(path for name in LADDER for path in ROOT.glob(f"{name}/**/*.py"))


def imports(path):
    """The package of every module that a file names: in statements, and in text that is the name of one."""
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Import(names=names):
                yield from (alias.name.split(".")[0] for alias in names)
            case ast.ImportFrom(module=str(module), level=0):
                yield module.split(".")[0]
            case ast.Call(
                func=ast.Name(id="__import__" | "import_module") | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(module)), *_],
            ):
                yield module.split(".")[0]
            case ast.Constant(value=str(text)) if re.fullmatch(r"(formats|opmatrix|rewrites)(\.\w+)+", text):
                yield text.split(".")[0]


@pytest.mark.parametrize("file", [file for file in FILES if file != DOOR], ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_down(file):
    above = LADDER[LADDER.index(file.relative_to(ROOT).parts[0]) + 1 :]
    assert not set(imports(file)) & set(above)


def test_the_front_door_imports_nothing_from_above():
    """What it imports from there is for type checkers alone."""
    own = [
        node
        for node in ast.parse(DOOR.read_text()).body
        if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    ]
    statements = [node for each in own for node in ast.walk(each) if isinstance(node, ast.Import | ast.ImportFrom)]
    assert not [line for line in map(ast.unparse, statements) if re.search(r"\b(formats|rewrites)\b", line)]
