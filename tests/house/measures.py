"""What the tests of the house count: circles of imports, rooms that import each other, words with several meanings.

python tests/house/measures.py          prints all of them, with where they are"""

import ast
import re
import sys
import tokenize
import tomllib
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

from rooms import ROOMS, order

ROOT = Path(__file__).parents[2]
LADDER = "formats", "opmatrix", "rewrites"
FILES = sorted(path for name in LADDER for path in ROOT.glob(f"{name}/**/*.py"))
MODULES = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in FILES}
DOORS = {"opmatrix"}  # it names what is above as text, imported when asked for
SELF = {"self", "cls"}
BRANCHES = ast.If, ast.IfExp, ast.For, ast.While, ast.ExceptHandler, ast.comprehension, ast.match_case
NUMBERS = {"f4", "i8"}  # numpy's own names for types of numbers
# rooms of like things, a file each
ALIKE = "formats/storage", "rewrites/laws"
# what a docstring must not begin with: it stands alone
OPAQUE = re.compile(r"(The same|Those|Of|What|Whether|How|Which|Where|So)\b")


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


@cache
def nodes(path: Path) -> list[ast.AST]:
    """All nodes of a file: to walk its tree takes longer than to read what is looked for."""
    return [*ast.walk(tree(path))]


def typed_only(path: Path) -> set[int]:
    """Nodes that type checkers alone read."""
    blocks = [node for node in nodes(path) if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    return {id(inner) for block in blocks for inner in ast.walk(block)}


def sources(module: str, typed: bool = False) -> list[tuple[str, str]]:
    """(module, name) of all that a module imports of ours, inside functions too, and with `typed` what type checkers
    alone read; the name is "" for a whole module."""
    path, found = MODULES[module], list[tuple[str, str]]()
    package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    unread = set() if typed else typed_only(path)
    for node in nodes(path):
        if id(node) in unread:
            continue
        if isinstance(node, ast.Import):
            found += [(alias.name, "") for alias in node.names if alias.name in MODULES]
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(
                [*package[: len(package) - node.level + 1], node.module or ""] if node.level else [node.module or ""]
            ).rstrip(".")
            for alias in node.names:
                if (inner := f"{base}.{alias.name}") in MODULES:
                    found.append((inner, ""))
                elif base in MODULES:
                    found.append((base, alias.name))
    return found


@cache
def imported(module: str) -> frozenset[str]:
    """The modules of ours that one imports, whenever that is."""
    return frozenset({source for source, _ in sources(module)} - {module})


def circles() -> list[list[str]]:
    """Strongly connected sets of two modules or more (Tarjan 1972)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        index[module] = low[module] = len(index)
        stack.append(module)
        for other in imported(module):
            if other not in index:
                visit(other)
                low[module] = min(low[module], low[other])
            elif other in stack:
                low[module] = min(low[module], index[other])
        if low[module] == index[module]:
            at = stack.index(module)
            if len(stack) - at > 1:
                found.append(sorted(stack[at:]))
            del stack[at:]

    for module in MODULES:
        if module not in index:
            visit(module)
    return found


def room(module: str) -> str:
    """The folder of its package that a module is in, at any depth; a file of the package itself is a room of its
    own."""
    return ".".join(module.split(".")[:2])


def rooms() -> set[str]:
    """All rooms but the three doors, which name what is in other rooms as text."""
    return {room(module) for module in MODULES} - {*LADDER}


@cache
def arrows(typed: bool = True) -> dict[tuple[str, str], list[str]]:
    """(room, room that it imports from) with the imports; without `typed` not those that type checkers alone read."""
    edges: dict[tuple[str, str], list[str]] = defaultdict(list)
    for module in MODULES:
        for other in {source for source, _ in sources(module, typed)} - {module}:
            a, b = room(module), room(other)
            if a != b and not {a, b} & {*LADDER}:
                edges[a, b].append(f"{module} -> {other}")
    return edges


def mutual_rooms(typed: bool = True) -> dict[tuple[str, str], list[str]]:
    """Pairs of rooms that import each other, with the imports of the rarer way."""
    edges = arrows(typed)
    return {(a, b): min(edges[a, b], edges[b, a], key=len) for a, b in edges if a < b and (b, a) in edges}


def against(order: Sequence[str], typed: bool = True) -> dict[tuple[str, str], list[str]]:
    """Imports of a room from one that comes later in an order of rooms."""
    place = {name: at for at, name in enumerate(order)}
    return {(a, b): each for (a, b), each in arrows(typed).items() if a in place and b in place and place[b] > place[a]}


def defined(path: Path) -> set[str]:
    """The public functions, classes and values of a module. Single letters are symbols of formulas."""
    names = set()
    for each in tree(path).body:
        match each:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.AnnAssign(target=ast.Name(id=name)):
                names.add(name)
            case ast.Assign(targets=targets):
                names |= {part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)}
    return {name for name in names if not name.startswith("_") and len(name) > 1} - NUMBERS


def types(path: Path) -> set[str]:
    """Classes and aliases of types of a module: public, capitalised, not all capitals."""
    return {name for name in defined(path) if name[0].isupper() and not name.isupper()}


def homes(read) -> dict[str, list[str]]:
    """Each name that `read` finds in modules, with where."""
    found: dict[str, list[str]] = defaultdict(list)
    for module, path in MODULES.items():
        for name in read(path):
            found[name].append(module)
    return found


def opaque_docstrings() -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{node.lineno} {text.splitlines()[0]}"
        for path in FILES
        for node in ast.walk(tree(path))
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
        and (text := ast.get_docstring(node) or "")
        and OPAQUE.match(text)
    ]


GENERIC = "found", "got", "res", "item", "each", "own", "given", "kept", "made", "said"


def generic_names() -> Counter[str]:
    """Uses of names that say no type and no role, as variables and as parameters."""
    return Counter(
        name
        for path in FILES
        for node in nodes(path)
        for name in (node.id if isinstance(node, ast.Name) else node.arg if isinstance(node, ast.arg) else "",)
        if name in GENERIC
    )


def docstring_lines(path: Path) -> set[int]:
    """The lines of a file's docstrings."""
    found = set[int]()
    for node in nodes(path):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node, False):
            found |= {*range(node.body[0].lineno, node.body[0].end_lineno + 1)}
    return found


def code_lines(path: Path) -> set[int]:
    """The lines of a file that hold code: no docstrings, comments, or brackets and commas alone."""
    silent = tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER
    found = set[int]()
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type in (*silent, tokenize.ENCODING) or token.string in [*"()[]{},:"]:
                continue
            found |= {*range(token.start[0], token.end[0] + 1)}
    return found - docstring_lines(path)


def density(package: str) -> float:
    """Nodes of the syntax tree a line of code, in one of the packages."""
    files = [path for path in FILES if path.is_relative_to(ROOT / package)]
    return sum(len(nodes(path)) for path in files) / sum(len(code_lines(path)) for path in files)


def functions() -> list[tuple[str, ast.FunctionDef]]:
    """All functions, each with its place."""
    return [
        (f"{path.relative_to(ROOT)}:{node.lineno} {node.name}", node)
        for path in FILES
        for node in nodes(path)
        if isinstance(node, ast.FunctionDef)
    ]


def long_signatures(least: int = 8) -> list[str]:
    """Functions of many parameters, outside kernels, commands, and calls whose parameters are another library's."""
    outside = "formats/kernels/", "opmatrix/runtime/kernels/", "rewrites/cli/", "rewrites/encoders/"
    return [
        place
        for place, node in functions()
        if not place.startswith(outside) and len([each for each in parameters(node) if each not in SELF]) >= least
    ]


def parameters(node: ast.FunctionDef) -> list[str]:
    return [each.arg for each in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]


def branched(least: int = 20) -> list[str]:
    """Functions of many branches: conditions, loops, cases, handlers, and each operand of and/or after the second."""
    return [place for place, node in functions() if sum(map(branches, ast.walk(node))) >= least]


def branches(node: ast.AST) -> int:
    if isinstance(node, ast.BoolOp):
        return len(node.values) - 1
    return isinstance(node, BRANCHES)


def undocumented() -> float:
    """The share of public functions without a docstring."""
    public = [node for _, node in functions() if not node.name.startswith("_")]
    return sum(not ast.get_docstring(node) for node in public) / len(public)


def anys() -> Counter[Path]:
    """How often each file says Any."""
    counts = {
        path: sum(isinstance(node, ast.Name) and node.id == "Any" for node in ast.walk(tree(path))) for path in FILES
    }
    return Counter({path: count for path, count in counts.items() if count})


def relaxed_lines() -> float:
    """The share of lines that lie under relaxed types."""
    rules = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]["overrides"]
    loose = [
        pattern
        for rule in rules
        for pattern in rule["module"]
        if "disable_error_code" in rule or "allow_untyped_defs" in rule
    ]
    lines = {module: len(path.read_text("utf-8").splitlines()) for module, path in MODULES.items()}
    return sum(
        count
        for module, count in lines.items()
        if any(fnmatch(module, each) for each in loose) or "mypy: ignore-errors" in MODULES[module].read_text("utf-8")
    ) / sum(lines.values())


def upward_changes(modules: Collection[str] = tuple(MODULES)) -> list[str]:
    """Statements outside functions' own names that change what was imported from another package: `TABLE[x] = y`,
    `TABLE.append(...)`, `TABLE |= ...`, `module.name = ...`."""
    changing = {"append", "add", "update", "extend", "insert", "setdefault", "pop", "clear", "remove", "discard"}
    found = []
    for module in modules:
        path, own = MODULES[module], module.split(".")[0]
        foreign = {(name or source.split(".")[-1]) for source, name in sources(module) if source.split(".")[0] != own}
        statements = [node for node in nodes(path) if isinstance(node, ast.Import | ast.ImportFrom)]
        aliased = {alias.asname: alias.name for node in statements for alias in node.names if alias.asname}
        foreign |= {new for new, old in aliased.items() if old in foreign}

        def root(node: ast.expr) -> str:
            while isinstance(node, ast.Subscript | ast.Attribute):
                node = node.value
            return node.id if isinstance(node, ast.Name) else ""

        for node in nodes(path):
            targets = (
                node.targets
                if isinstance(node, ast.Assign | ast.Delete)
                else [node.target]
                if isinstance(node, ast.AugAssign)
                else []
            )
            hit = any(
                isinstance(each, ast.Subscript | ast.Attribute) and root(each) in foreign for each in targets
            ) or (isinstance(node, ast.AugAssign) and root(node.target) in foreign)
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in changing
                and isinstance(node.func.value, ast.Name)
                and node.func.value.id in foreign
                and node.func.value.id.isupper()
            ):
                hit = True
            if hit:
                found.append(f"{path.relative_to(ROOT)}:{node.lineno} {ast.unparse(node)[:80]}")
    return found


def lines() -> int:
    return sum(len(path.read_text("utf-8").splitlines()) for path in FILES)


def from_the_command_line() -> list[str]:
    """Imports of the command line from elsewhere."""
    inside = ("rewrites.cli",)
    return sorted(
        f"{module} -> {other}"
        for module in MODULES
        if not module.startswith(inside)
        for other in imported(module)
        if other.startswith(inside)
    )


def full_rooms() -> list[str]:
    """Rooms with more than 15 files beside those of their sub-rooms, which may have any number."""
    counts = Counter(path.parent for path in FILES if path.parent.parent.parent == ROOT)
    return [f"{path.relative_to(ROOT)} {count}" for path, count in counts.items() if count > 15]


def listed(found: dict[str, list[str]], least: int) -> list[str]:
    return [f"{name}: {' '.join(where)}" for name, where in sorted(found.items()) if len(where) >= least]


def main() -> None:
    for title, rows in {
        "circles": [" ".join(each) for each in circles()],
        "rooms that import each other": listed({f"{a} <-> {b}": edges for (a, b), edges in mutual_rooms().items()}, 1),
        "rooms": sorted(rooms()),
        "functions of 8 parameters or more": long_signatures(),
        "functions of 20 branches or more": branched(),
        "who imports the command line": from_the_command_line(),
        "changes of another package's tables": upward_changes(),
        "public names in three modules or more": listed(homes(defined), 3),
        "type names in two modules or more": listed(homes(types), 2),
        "docstrings that do not stand alone": opaque_docstrings(),
        "rooms over 15 files": full_rooms(),
    }.items():
        print(f"\n## {title}: {len(rows)}", *rows, sep="\n   ")
    most = [(str(path.relative_to(ROOT)), count) for path, count in anys().most_common(25)]
    print("\n## Any:", sum(anys().values()), most)
    print("## relaxed:", round(relaxed_lines(), 3))
    print("## generic names:", dict(generic_names()))
    print("## nodes a line of code:", {package: round(density(package), 2) for package in LADDER})
    print("## nodes:", sum(len(nodes(path)) for path in FILES), "lines:", lines())
    print("## public functions without a docstring:", f"{undocumented():.1%}")
    for package, names in ROOMS.items():
        inside = [pair for pair in arrows() if {*pair} <= {*order(package)}]
        print(f"## arrows of {package}:", len(inside), "against the order:", len(against(order(package))), *names)


if __name__ == "__main__":
    sys.exit(main())
