"""Files of settings as arguments by name, and back: lines of a shell script, TOML, JSON and YAML. Nested keys are one
name with dots. Nothing in a file is run."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from formats.core.errors import InputError
from opmatrix.parallel.settings.spellings import Argument, ArgumentValue, SettingValues, spell_value

MOST_FILE_LETTERS = 2_000_000  # letters of a file
MOST_VALUES = 20_000  # values of a file
MOST_ROUNDS = 8  # variables of a script that stand for each other
LAUNCHER = {  # arguments of torchrun
    "nproc_per_node",
    "nnodes",
    "node_rank",
    "master_addr",
    "master_port",
    "rdzv_endpoint",
    "rdzv_backend",
    "rdzv_id",
}
ASSIGNED = re.compile(r"([A-Za-z_]\w*)\+?=(.*)", re.DOTALL)
VARIABLE = re.compile(r"\$(?:\{([A-Za-z_]\w*)(?::-([^${}]*))?\}|([A-Za-z_]\w*))")
NAMED_WORD = re.compile(r"--([A-Za-z][\w.-]*)(?:=(.*))?", re.DOTALL)
ENDS = set("();|&<>")
HEADING = "{title}, by `opmatrix plan`"


# ---- lines of a shell script


def read_script(text: str, arguments: Mapping[str, Argument], once: Collection[str] = ()) -> dict[str, ArgumentValue]:
    """Read the arguments that a script states: those in its commands, arrays and quoted texts, with variables that it
    assigns. Raises InputError for quotes that are open, and for an argument of `once` with two values."""
    words, variables = [], dict[str, str]()
    for word in script_words(text):
        assigned = ASSIGNED.fullmatch(word)
        if assigned and "--" not in assigned[2]:
            variables[assigned[1]] = assigned[2]
        else:
            words += inner_words(assigned[2] if assigned else word)
    stated: dict[str, ArgumentValue] = {}
    at = 0
    while at < len(words):
        named = NAMED_WORD.fullmatch(words[at])
        at += 1
        if named is None or named[1] in LAUNCHER:
            continue
        name = named[1].replace("-", "_") if "." in named[1] else named[1]
        values = [named[2]] if named[2] is not None else values_after(words[at:], arguments.get(name))
        at += 0 if named[2] is not None else len(values)
        value = value_of([substituted(value, variables) for value in values])
        if name in once and stated.get(name, value) != value:
            raise InputError(
                f"--{name}: it is stated twice, as {spell_value(stated[name])} and as {spell_value(value)}"
            )
        stated[name] = value
    return stated


def script_words(text: str) -> Iterator[str]:
    """Yield the words of a script. Raises InputError where a quote is open."""
    lexer = shlex.shlex(text.replace("\\\n", " "), posix=True, punctuation_chars="();|&<>")
    lexer.whitespace_split = True
    try:
        yield from lexer
    except ValueError as error:
        raise InputError(f"line {lexer.lineno}: {str(error).lower()}: it is no shell script") from None


def inner_words(word: str) -> list[str]:
    """Return the words of a quoted text that has arguments; any other word alone."""
    if "--" not in word or not re.search(r"\s", word):
        return [word]
    return [inner for inner in script_words(word)]


def values_after(words: Sequence[str], argument: Argument | None) -> list[str]:
    """Return the words that are values of the argument before them."""
    most = 0 if argument and argument.kind == "flag" else len(words) if argument and argument.several else 1
    values: list[str] = []
    for word in words[:most]:
        if NAMED_WORD.fullmatch(word) or word[:1] in ENDS or ASSIGNED.fullmatch(word):
            break
        values.append(word)
    return values


def value_of(values: Sequence[str]) -> ArgumentValue:
    """Return the value of an argument: true for a name alone, one text, or several."""
    if not values:
        return True
    return values[0] if len(values) == 1 else [*values]


def substituted(text: str, variables: Mapping[str, str]) -> str:
    """Return a value with the variables of the script. What a script does not assign stays as it is."""

    def replaced(match: re.Match[str]) -> str:
        """Return what a variable stands for."""
        return variables.get(match[1] or match[3], match[2] if match[2] is not None else match[0])

    for _ in range(MOST_ROUNDS):
        text, before = VARIABLE.sub(replaced, text)[:MOST_FILE_LETTERS], text
        if text == before:
            break
    return text


def write_script(arguments: SettingValues, title: str) -> str:
    """Write arguments as an array of a shell script, a line each."""
    lines = []
    for name, value in arguments.items():
        values = [] if value is True else value if isinstance(value, list | tuple) else [value]
        lines.append("    " + " ".join([f"--{name}", *(shlex.quote(spell_plain(part)) for part in values)]))
    return "\n".join([f"# {HEADING.format(title=title)}", "ARGUMENTS=(", *lines, ")", ""])


def spell_plain(value: object) -> str:
    """Write a value as a word of a command line."""
    return json.dumps(value) if isinstance(value, bool | list) else str(value)


# ---- nested keys


def flattened(tree: object, prefix: str = "") -> Iterator[tuple[str, ArgumentValue]]:
    """Yield each value of nested keys, with its name. Raises InputError for a tree that is none of keys and values."""
    if not isinstance(tree, Mapping):
        raise InputError("it has no keys with values: give settings of the stack")
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from flattened(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def values_by_name(tree: object) -> dict[str, ArgumentValue]:
    """Return the values of nested keys by name. Raises InputError for more than a file of settings has."""
    values: dict[str, ArgumentValue] = {}
    for name, value in flattened(tree):
        values[name] = value
        if len(values) > MOST_VALUES:
            raise InputError(f"it has more than {MOST_VALUES:,} values: give settings of one run")
    return values


def nested(arguments: SettingValues) -> dict[str, ArgumentValue]:
    """Return arguments as nested keys."""
    tree: dict[str, ArgumentValue] = {}
    for name, value in arguments.items():
        *parents, last = name.split(".")
        inner = tree
        for parent in parents:
            inner = inner.setdefault(parent, {})
        inner[last] = value
    return tree


def read_toml(text: str, arguments: Mapping[str, Argument], once: Collection[str] = ()) -> dict[str, ArgumentValue]:
    """Read TOML. Raises InputError where it is none."""
    try:
        return values_by_name(tomllib.loads(text))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"{error}: it is no TOML") from None


def write_toml(arguments: SettingValues, title: str) -> str:
    """Write arguments as TOML, a table for each section."""
    sections: dict[str, list[str]] = {}
    for name, value in arguments.items():
        section, _, key = name.rpartition(".")
        sections.setdefault(section, []).append(f"{key} = {json.dumps(value)}")
    blocks = [f"# {HEADING.format(title=title)}"]
    for section, lines in sections.items():
        blocks += [*([f"[{section}]"] if section else []), *lines, ""]
    return "\n".join(blocks)


def read_json(text: str, arguments: Mapping[str, Argument], once: Collection[str] = ()) -> dict[str, ArgumentValue]:
    """Read JSON. Raises InputError where it is none."""
    try:
        return values_by_name(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{error}: it is no JSON") from None


def write_json(arguments: SettingValues, title: str) -> str:
    """Write arguments as JSON."""
    return json.dumps(nested(arguments), indent=2) + "\n"


def read_yaml(text: str, arguments: Mapping[str, Argument], once: Collection[str] = ()) -> dict[str, ArgumentValue]:
    """Read YAML of plain values. Raises InputError where it is none, and where no reader of YAML is installed."""
    try:
        import yaml
    except ImportError:
        raise InputError("YAML: its reader is not installed: pip install 'opmatrix[settings]'") from None
    try:
        return values_by_name(yaml.safe_load(text))
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise InputError(f"{error}: it is no YAML") from None


def write_yaml(arguments: SettingValues, title: str) -> str:
    """Write arguments as YAML, whose texts and lists are those of JSON."""
    return "\n".join([f"# {HEADING.format(title=title)}", *yaml_lines(nested(arguments)), ""])


def yaml_lines(tree: Mapping[str, ArgumentValue], indent: str = "") -> Iterator[str]:
    """Yield the lines of nested keys."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield f"{indent}{key}:"
            yield from yaml_lines(value, indent + "  ")
        else:
            yield f"{indent}{key}: {json.dumps(value)}"


class SettingsForm(NamedTuple):
    """A form of files: how it is read, and how it is written with a title."""

    read: Callable[[str, Mapping[str, Argument], Collection[str]], dict[str, ArgumentValue]]
    write: Callable[[SettingValues, str], str]


SETTINGS_FORMS = {
    "script": SettingsForm(read_script, write_script),
    "toml": SettingsForm(read_toml, write_toml),
    "json": SettingsForm(read_json, write_json),
    "yaml": SettingsForm(read_yaml, write_yaml),
}
SUFFIXES = {".toml": "toml", ".json": "json", ".yaml": "yaml", ".yml": "yaml"}  # of files; any other is a script
