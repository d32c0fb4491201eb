"""The packages form a ladder: formats, then opmatrix, then rewrites; nobody imports upward."""
import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LADDER = ["formats", "opmatrix", "rewrites"]
FILES = sorted(path for name in LADDER for path in ROOT.glob(f"{name}/**/*.py"))


def imports(path):
    """Every module a file names: statements, and strings given to import_module or __import__."""
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Import(names=names):
                yield from (alias.name.split(".")[0] for alias in names)
            case ast.ImportFrom(module=str(module), level=0):
                yield module.split(".")[0]
            case ast.Call(func=ast.Name(id="__import__" | "import_module") | ast.Attribute(attr="import_module"),
                          args=[ast.Constant(value=str(module)), *_]):
                yield module.split(".")[0]


@pytest.mark.parametrize("file", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_down(file):
    above = LADDER[LADDER.index(file.relative_to(ROOT).parts[0]) + 1:]
    assert not set(imports(file)) & set(above)
