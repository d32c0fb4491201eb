"""One module, one name; one word, one meaning; imports without circles."""

import ast
from collections import Counter, defaultdict
from functools import cache
from importlib import import_module
from pathlib import Path

from measures import FILES, LADDER, MODULES, ROOT, defined, nodes


def statements(body):
    """The imports that run when a module is imported: not those of functions, nor those that only type checkers
    read."""
    for each in body:
        match each:
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                pass
            case ast.If() | ast.Try():
                yield from statements(each.body + each.orelse)
            case ast.Import() | ast.ImportFrom():
                yield each


def imported(module):
    """The modules of ours that importing this one imports."""
    path = MODULES[module]
    package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    for each in statements(ast.parse(path.read_text()).body):
        if isinstance(each, ast.Import):
            named = [alias.name for alias in each.names]
        else:
            source = ".".join(
                [*package[: len(package) - each.level + 1], each.module or ""] if each.level else [each.module]
            ).rstrip(".")
            named = [inner if (inner := f"{source}.{alias.name}") in MODULES else source for alias in each.names]
        yield from {*named} & {*MODULES} - {module}


def test_no_circle_of_imports():
    """Leave out whatever imports nothing that is left, until nothing is."""
    needs = {module: {*imported(module)} for module in MODULES}
    while free := {module for module, needed in needs.items() if not needed & {*needs}}:
        needs = {module: needed for module, needed in needs.items() if module not in free}
    assert not needs, f"these import each other, or what does: {', '.join(sorted(needs))}"


@cache
def bound(module):
    """The names that statements of a module bind; where it answers for others, it is asked (`answers`)."""
    names = set()
    for node in nodes(MODULES[module]):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.Name(id=name, ctx=ast.Store()):
                names.add(name)
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                names |= {alias.asname or alias.name for alias in aliases}
    return names


def answers(module, name):
    """True if a module can be imported and gives a name."""
    if module not in MODULES or name == "*" or name in bound(module) or f"{module}.{name}" in MODULES:
        return module in MODULES
    return hasattr(import_module(module), name)


def unresolved(path):
    """Imports of packages of ours, in functions too, that no module answers; handlers import for older trees."""
    older = {id(node) for each in nodes(path) if isinstance(each, ast.ExceptHandler) for node in ast.walk(each)}
    for node in nodes(path):
        if isinstance(node, ast.ImportFrom) and not node.level and id(node) not in older:
            if node.module.split(".")[0] in LADDER:
                for alias in node.names:
                    if not answers(node.module, alias.name):
                        yield f"{path.relative_to(ROOT)}:{node.lineno}: {node.module}.{alias.name}"


def test_every_import_resolves():
    """Also those of functions, which fail when the function is called: of benchmarks, pages and tests, too."""
    others = [path for place in ("benchmarks", "docs", "tests") for path in sorted(ROOT.glob(f"{place}/**/*.py"))]
    assert len(others) > 300
    assert [line for path in (*FILES, *others) for line in unresolved(path)] == []


def test_no_twins():
    """No two modules are called alike, so that a file's name says which one is meant."""
    names = Counter(path.stem for path in FILES if path.name != "__init__.py")
    assert not (twins := sorted(name for name, count in names.items() if count > 1)), twins


KERNELS = "opmatrix.runtime.kernels."
LAWS = ("rewrites.laws.", "rewrites.laws.proving.")


def test_one_word_one_meaning():
    """No public name is defined in more than two modules. By design some functions are called as what they are: in
    modules of laws, a law; in properties, a property; in the room of kernels, a kernel."""
    homes = defaultdict(list)
    for module, path in MODULES.items():
        if (
            module == "opmatrix.algebra.properties"
            or module.startswith(KERNELS)
            or (module.startswith(LAWS) and module != "rewrites.laws.facts")
        ):
            continue
        for name in defined(path):
            homes[name].append(module)
    assert not (many := {name: found for name, found in sorted(homes.items()) if len(found) > 2}), many


def test_files_are_short():
    """Nodes of the syntax tree are counted, not lines: a limit on lines is met by packing."""
    assert not [(path, count) for path in FILES if (count := len(nodes(path))) > 6_200]


def test_a_room_says_what_it_is_for():
    assert not [
        path
        for path in FILES
        if path.name == "__init__.py" and not ast.get_docstring(ast.parse(Path(path).read_text()))
    ]
