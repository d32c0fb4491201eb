"""The arguments that a training stack declares, read off its source without running it: names, kinds, defaults and
choices. `python tests/support/declared_arguments.py STACK=CHECKOUT@REF ..` writes the table that the package ships."""

import ast
import json
import subprocess
import sys
from pathlib import Path

TABLE = Path(__file__).parents[2] / "opmatrix/parallel/settings/stack_arguments.json"
SOURCES = {
    "megatron": ("Megatron-LM core 0.15.0", ["megatron/training/arguments.py"]),
    "mindspeed": ("MindSpeed 2.0.0 for core 0.8.0", ["mindspeed/arguments.py", "mindspeed/features_manager"]),
    "mindspeed-llm": ("MindSpeed-LLM 2.0.0", ["mindspeed_llm/training/arguments.py"]),
    "torchtitan": ("torchtitan 0.2.0", ["torchtitan/config/job_config.py"]),
}
FLAGS = "store_true", "store_false"
KINDS = "float", "int", "str", "bool"


def literal(node):
    """The value of an expression of literals; None for any other."""
    try:
        return ast.literal_eval(node) if node is not None else None
    except (ValueError, TypeError, SyntaxError):
        return None


def plain(value):
    """A value as JSON has it."""
    return json.loads(json.dumps(value, default=lambda _: None))


def option(call):
    """The name and the entry of an `add_argument` call; None for one without a long name."""
    names = [name for name in map(literal, call.args) if isinstance(name, str) and name.startswith("--")]
    if not names:
        return None
    more = {keyword.arg: keyword.value for keyword in call.keywords}
    if literal(more.get("action")) in FLAGS:
        return names[0].removeprefix("--"), {"kind": "flag", "default": False}
    kind = getattr(more.get("type"), "id", "str")
    entry = {"kind": kind if kind in KINDS else "str", "default": plain(literal(more.get("default")))}
    if (choices := literal(more.get("choices"))) is not None:
        entry["choices"] = [*choices]
    if (many := literal(more.get("nargs"))) is not None and many != "?":
        entry["many"] = True
    return names[0].removeprefix("--"), entry


def options_of(text):
    """All options of a module that builds a parser."""
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    added = [option(call) for call in calls if getattr(call.func, "attr", "") == "add_argument"]
    return dict(filter(None, added))


def kind_of(annotation):
    """The kind of an annotation, by the first name of a number or a text in it."""
    words = ast.unparse(annotation)
    if "list" in words:
        return "list"
    return next((kind for kind in KINDS if kind in words.split("Literal")[0]), "str")


def default_of(node):
    """The default of a field of a dataclass; an empty list for one that is made."""
    return [] if isinstance(node, ast.Call) else plain(literal(node))


def fields_of(classes, name, prefix=""):
    """The fields of nested dataclasses, by dotted path."""
    for node in classes[name].body:
        if not isinstance(node, ast.AnnAssign):
            continue
        path, inner = f"{prefix}{node.target.id}", ast.unparse(node.annotation)
        if inner in classes:
            yield from fields_of(classes, inner, f"{path}.")
            continue
        entry = {"kind": kind_of(node.annotation), "default": default_of(node.value)}
        parts = [part for part in ast.walk(node.annotation) if isinstance(part, ast.Subscript)]
        literals = [part for part in parts if ast.unparse(part.value) == "Literal"]
        if literals and not inner.startswith("list"):
            named = literals[0].slice
            entry["choices"] = [literal(part) for part in getattr(named, "elts", [named])]
        yield path, entry


def dataclasses_of(text):
    """All fields of a module of dataclasses, from the one of the whole job."""
    classes = {node.name: node for node in ast.parse(text).body if isinstance(node, ast.ClassDef)}
    return dict(fields_of(classes, "JobConfig"))


def git(checkout, *words):
    """What git prints of a checkout."""
    run = ["git", "-C", str(checkout), *words]
    return subprocess.run(run, capture_output=True, text=True, check=True).stdout


def shown(checkout, ref, path):
    """The texts of a file, or of all modules below a folder, at a commit."""
    for name in git(checkout, "ls-tree", "-r", "--name-only", ref, path).split():
        if name.endswith(".py"):
            yield git(checkout, "show", f"{ref}:{name}")


def table_of(stack, checkout, ref):
    """The entry of a stack: its version, its commit, and its arguments."""
    version, paths = SOURCES[stack]
    read = dataclasses_of if stack == "torchtitan" else options_of
    arguments = {}
    for path in paths:
        for text in shown(checkout, ref, path):
            arguments |= read(text)
    commit = git(checkout, "rev-parse", f"{ref}^{{commit}}").strip()
    return {"version": version, "commit": commit, "arguments": dict(sorted(arguments.items()))}


def written(table):
    """The table as text, an argument a line."""
    stacks = []
    for name, entry in table.items():
        lines = ",\n".join(f"   {json.dumps(key)}: {json.dumps(value)}" for key, value in entry["arguments"].items())
        head = f'  "version": {json.dumps(entry["version"])}, "commit": {json.dumps(entry["commit"])},\n'
        stacks.append(f' {json.dumps(name)}: {{\n{head}  "arguments": {{\n{lines}\n  }}\n }}')
    return "{\n" + ",\n".join(stacks) + "\n}\n"


if __name__ == "__main__":
    table = {}
    for word in sys.argv[1:]:
        stack, place = word.split("=")
        table[stack] = table_of(stack, *place.split("@"))
    TABLE.write_text(written(table))
