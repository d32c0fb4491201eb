"""Nothing compares the name of a kernel or of a format: what is asked of one is declared with it.

The syntax trees of the three packages are read for comparisons, memberships, matches, prefixes and tables by name,
whether the name is written there or in a constant of the module. Some names are words of terms, operands and properties
too; of these only what is compared with a kernel, a format or a method counts."""

import ast
import re
from collections.abc import Iterator
from importlib import import_module

import pytest
from children import ROOT

from formats import FORMATS
from opmatrix.algebra import monoids, operators  # noqa: F401, their kinds
from opmatrix.algebra.term import KINDS, PROPERTIES
from opmatrix.runtime.kernels import KERNELS
from opmatrix.runtime.pricing import catalogue
from rewrites.laws.law import Sort

FILES = sorted(path for package in ("formats", "opmatrix", "rewrites") for path in (ROOT / package).rglob("*.py"))
NAMES = {part for name in (*KERNELS, *FORMATS, *catalogue().prices) for part in (name, name.removeprefix("linear."))}
# linear., pointwise., attention.
FAMILIES = {f"{name.partition('.')[0]}." for name in catalogue().prices if "." in name}
OPERANDS = {name for each in KERNELS.values() for name in (*each.operands, *each.attributes)}
SORTS = {value.name for value in vars(import_module("rewrites.laws.law")).values() if isinstance(value, Sort)}
# bf16 and int8 are number types, too
NUMBERS = {"float32", "float16", *(form.unit for form in FORMATS.values())}
WORDS = {*KINDS, *PROPERTIES, *OPERANDS, *SORTS, *NUMBERS, "columns"}  # columns: a layout
ABOUT = re.compile(r"kernel|format|method|\bform\b|packed|stored|CALLS", re.IGNORECASE)
OWN = re.compile(r"[\w.]+\.(fields|parameters)\b")  # names of a format's arrays and options are others
CLASSES = {form.__name__ for form in FORMATS.values()}
PREFIXES = ("startswith", "endswith", "removeprefix", "removesuffix", "partition")


def strings(node: ast.AST | None, known: dict[str, ast.AST]) -> Iterator[str]:
    """The texts that an expression may stand for: itself, its members, its keys, those of a constant."""
    match node:
        case ast.Constant(value=str(text)):
            yield text
        case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Set(elts=parts) | ast.Dict(keys=parts):
            for part in parts:
                yield from strings(part, known)
        case ast.Starred(value=value):
            yield from strings(value, known)
        case ast.Name(id=name) if name in known:
            yield from strings(known[name], {k: v for k, v in known.items() if k != name})
        case ast.Call(func=ast.Name(id="set" | "frozenset" | "tuple" | "dict"), args=parts, keywords=named):
            yield from (word.arg for word in named if word.arg)
            for part in parts:
                yield from strings(part, known)


def asked(node: ast.AST, known: dict[str, ast.AST], subject: str) -> Iterator[tuple[list[str], str]]:
    """Names that this node compares something with, and that thing as text."""
    match node:
        case ast.Compare(left=left, comparators=others):
            found = [text for each in (left, *others) for text in strings(each, known)]
            yield found, " ".join(ast.unparse(each) for each in (left, *others) if not [*strings(each, known)])
        case ast.MatchValue(value=value):
            yield [*strings(value, known)], subject
        case ast.Call(func=ast.Attribute(value=value, attr=attr), args=[first, *_]) if attr in PREFIXES:
            yield [text for text in strings(first, known)], ast.unparse(value)
        case ast.Call(func=ast.Attribute(value=table, attr="get"), args=[key, *_]) if not isinstance(key, ast.Constant):
            if isinstance(known.get(getattr(table, "id", ""), table), ast.Dict):
                yield [*strings(table, known)], ast.unparse(key)
        case ast.Subscript(value=table, slice=key) if not isinstance(key, ast.Constant):
            if isinstance(known.get(getattr(table, "id", ""), table), ast.Dict):
                yield [*strings(table, known)], ast.unparse(key)


def compared(source: str) -> list[tuple[int, str]]:
    """Line and name of each comparison with the name of a kernel or a format, or with a format's class."""
    tree = ast.parse(source)
    known = {
        target.id: each.value
        for each in tree.body
        if isinstance(each, ast.Assign)
        for target in each.targets
        if isinstance(target, ast.Name)
    }
    subjects = {
        id(inner): ast.unparse(each.subject)
        for each in ast.walk(tree)
        if isinstance(each, ast.Match)
        for inner in ast.walk(each)
    }
    found = []
    for node in ast.walk(tree):
        for names, thing in asked(node, known, subjects.get(id(node), "")):
            about = ABOUT.search(OWN.sub("", thing))
            found += [
                (node.lineno, name)
                for name in names
                if name in FAMILIES or (name in NAMES and (about or name not in WORDS))
            ]
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("isinstance", "issubclass"):
            found += [
                (node.lineno, each.id)
                for each in ast.walk(node.args[1])
                if isinstance(each, ast.Name) and each.id in CLASSES
            ]
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_name_of_a_kernel_or_a_format_is_compared(path):
    assert compared(path.read_text("utf-8")) == []


@pytest.mark.parametrize(
    "source",
    [
        "if method == 'lowrank': pass",
        "if step.kernel != 'attention': pass",
        "if kernel in ('heads', 'pool'): pass",
        "ATTENTION = 'attention'\nfound = step.kernel == ATTENTION",
        "PLAIN = 'dense', 'packed'\nif name in PLAIN: pass",
        "PASSES = {'pool': 'scale'}\nfound = PASSES[kernel]",
        "PASSES = {'pool': 'scale'}\nfound = PASSES.get(kernel)",
        "match call.kernel:\n    case 'repeat': pass",
        "if kernel.startswith('linear.'): pass",
        "found = {'csr': 1}[name]",
        "found = isinstance(weight, LowRank | CSR)",
        "SOME = {'int4'}\nif not stored.name in SOME: pass",
        "if layout == 'headwise': pass",
    ],
)
def test_a_comparison_is_found(source):
    assert compared(source)


@pytest.mark.parametrize(
    "source",
    [
        "if node.kind == 'rotate': pass",
        "match sort.name:\n    case 'value' | 'scores': pass",
        "if 'scale' in parameters: pass",
        "if 'scale' in form.fields: pass",
        "step = Step('softmax', {}, {}, 'h1')",
        "weight = FORMATS['dense'].pack(W)",
        "if number_type == 'bf16': pass",
    ],
)
def test_other_words_are_let_be(source):
    assert not compared(source)
