"""Spellings: how a stack names the fields of a layout. A spelling reads and writes the same arguments, so a stack is
one declaration for both directions."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias

from formats.core.errors import InputError, suggest_name
from opmatrix.parallel.settings.run_layout import RunFacts, RunLayout

ArgumentValue: TypeAlias = Any  # of any kind that an argument has
SettingValues: TypeAlias = Mapping[str, ArgumentValue]  # values by the stack's name of an argument
LayoutFields: TypeAlias = dict[str, ArgumentValue]
ARGUMENT_TABLE = Path(__file__).with_name("stack_arguments.json")
LARGEST_VALUE = 10**9  # the largest number of an argument
UNMARKED = None, False, 0, 1, "none", "ring", "1f1b", "bf16"  # values of fields that need no setting


class Argument(NamedTuple):
    """An argument that a stack declares."""

    kind: str  # int, float, str, bool, flag (a name alone), list, or any
    default: object = None
    choices: tuple[object, ...] = ()
    many: bool = False  # takes several values

    @property
    def several(self) -> bool:
        """True if it takes several words of a command line."""
        return self.many or self.kind == "list"


class DeclaredArguments(NamedTuple):
    """The arguments of a stack, of the commit that they were read from."""

    version: str
    commit: str
    arguments: Mapping[str, Argument]
    sections: tuple[str, ...] = ()  # starts of names that are known, without kinds


@cache
def declared(name: str) -> DeclaredArguments:
    """Return the table of arguments that the package ships for a stack."""
    table = json.loads(ARGUMENT_TABLE.read_text("utf-8"))[name]
    arguments = {
        key: Argument(entry["kind"], entry["default"], tuple(entry.get("choices", ())), entry.get("many", False))
        for key, entry in table["arguments"].items()
    }
    return DeclaredArguments(table["version"], table["commit"], arguments)


class ReadValues:
    """The values of arguments: as stated, else their defaults."""

    def __init__(self, stated: SettingValues, arguments: Mapping[str, Argument]) -> None:
        self.stated, self.arguments = stated, arguments

    def __getitem__(self, name: str) -> ArgumentValue:
        return self.stated[name] if name in self.stated else self.arguments[name].default

    def __contains__(self, name: str) -> bool:
        return name in self.stated


class Spelling(Protocol):
    """A part of a layout in a stack's arguments."""

    @property
    def names(self) -> tuple[str, ...]:
        """The arguments that it reads and writes."""
        ...

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields of a layout that it reads and writes."""
        ...

    def read(self, values: ReadValues, layout: RunLayout, facts: RunFacts) -> LayoutFields:
        """Return the fields that arguments state; `layout` has those that were read before."""
        ...

    def write(self, layout: RunLayout, facts: RunFacts) -> SettingValues:
        """Return the arguments of a layout's fields."""
        ...


@dataclass(frozen=True)
class NumberArgument:
    """A number that is an argument."""

    field: str
    name: str
    least: int = 1

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,)

    @property
    def fields(self) -> tuple[str, ...]:
        return (self.field,)

    def read(self, values: ReadValues, layout: RunLayout, facts: RunFacts) -> LayoutFields:
        number = values[self.name]
        if number is None or number >= self.least:
            return {self.field: number}
        raise InputError(f"{self.name} {number}: give a whole number from {self.least} on")

    def write(self, layout: RunLayout, facts: RunFacts) -> SettingValues:
        return {self.name: getattr(layout, self.field)}


@dataclass(frozen=True)
class ChoiceArguments:
    """A choice by name, as the values of one or more arguments. Of several ways to state a choice the first is
    written."""

    field: str
    ways: Sequence[tuple[object, SettingValues]]  # the choice, and the arguments that state it
    axis: str | None = None  # axis whose single rank needs no choice

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for _, arguments in self.ways for name in arguments))

    @property
    def fields(self) -> tuple[str, ...]:
        return (self.field,)

    def read(self, values: ReadValues, layout: RunLayout, facts: RunFacts) -> LayoutFields:
        for choice, arguments in self.ways:
            if all(values[name] == value for name, value in arguments.items()):
                return {self.field: choice}
        stated = ", ".join(f"{name} {spell_value(values[name])}" for name in self.names if name in values)
        raise InputError(f"{stated}: a plan knows no such {self.field.replace('_', ' ')}: it is none of its forms")

    def write(self, layout: RunLayout, facts: RunFacts) -> SettingValues:
        choice = getattr(layout, self.field)
        if self.axis is not None and getattr(layout, self.axis) == 1:
            return {}
        written = next((arguments for way, arguments in self.ways if way == choice), None)
        if written is None and choice is not None:
            known = dict.fromkeys(str(way) for way, _ in self.ways)
            raise InputError(
                f"{self.field.replace('_', ' ')} {choice}: this stack has no setting for it: it is one of "
                f"{', '.join(known)}"
            )
        return written or {}


@dataclass(frozen=True)
class Contradiction:
    """Settings that do not go together."""

    complaint: str
    holds: Callable[[ReadValues], bool]


class ReadSettings(NamedTuple):
    """A layout that was read from settings, and what beside it they state."""

    layout: RunLayout
    arguments: SettingValues  # all that they state, by name
    unknown: tuple[str, ...]  # arguments that nobody knows
    unpriced: tuple[str, ...]  # arguments with effects on time or memory that a plan does not price
    otherwise: tuple[str, ...]  # arguments of the layout that would be written otherwise


@dataclass(frozen=True)
class StackSettings:
    """The spelling of a layout by a stack: its arguments, and a spelling for each field that it has."""

    stack: str
    declared: DeclaredArguments
    spellings: Sequence[Spelling]
    forms: tuple[str, ...]  # forms of its files, the first is the usual one
    contradictions: Sequence[Contradiction] = ()
    unpriced: frozenset[str] = frozenset()  # arguments whose effects a plan does not price
    layers: str | None = None  # argument that has the layers of the model

    @property
    def title(self) -> str:
        """The version and the commit that names and defaults are of."""
        return f"{self.declared.version} ({self.declared.commit[:12]})"

    @property
    def fields(self) -> frozenset[str]:
        """The fields of a layout that its settings state."""
        return frozenset(name for spelling in self.spellings for name in spelling.fields)

    @property
    def names(self) -> frozenset[str]:
        """The arguments that state a layout."""
        return frozenset(name for spelling in self.spellings for name in spelling.names)

    def states(self, name: str) -> bool:
        """True if an argument, or one that it is a part of, states a layout."""
        parts = name.split(".")
        return any(".".join(parts[:end]) in self.names for end in range(1, len(parts) + 1))

    def knows(self, name: str) -> bool:
        """True if an argument is one of the stack."""
        return name in self.declared.arguments or name.startswith(self.declared.sections or "\0")

    def read(self, stated: SettingValues, facts: RunFacts, place: str = "settings") -> ReadSettings:
        """Read the layout that arguments state. Raises InputError for values that are none of an argument, for settings
        that contradict each other, and for layers that are not those of the model."""
        try:
            return self.read_values(stated, facts)
        except InputError as error:
            raise InputError(f"{place}: {error}") from None

    def read_values(self, stated: SettingValues, facts: RunFacts) -> ReadSettings:
        """Read the layout that arguments state."""
        arguments = self.declared.arguments
        typed = {name: self.typed(name, value) for name, value in stated.items()}
        values = ReadValues(typed, arguments)
        for contradiction in self.contradictions:
            if contradiction.holds(values):
                raise InputError(contradiction.complaint)
        if self.layers is not None and values[self.layers] not in (None, facts.layers):
            raise InputError(f"{self.layers} {values[self.layers]}: the model has {facts.layers} layers")
        layout = RunLayout()
        for spelling in self.spellings:
            layout = replace(layout, **spelling.read(values, layout, facts))
        layout = layout.simplest(facts)
        again = ReadValues(self.write(layout, facts), arguments)
        return ReadSettings(
            layout,
            typed,
            tuple(name for name in typed if not self.knows(name)),
            tuple(name for name in typed if name in self.unpriced and values[name] not in (None, False, 1)),
            tuple(name for name in typed if self.states(name) and differs(name, values, again)),
        )

    def typed(self, name: str, value: ArgumentValue) -> ArgumentValue:
        """Return a value by the kind of its argument. Raises InputError for a value of the layout that is none; any
        other, such as a variable that a script does not assign, is kept as it is."""
        argument = self.declared.arguments.get(name)
        if argument is None:
            return value
        if name in self.names:
            return read_value(name, value, argument)
        try:
            return read_value(name, value, argument)
        except InputError:
            return value

    def write(self, layout: RunLayout, facts: RunFacts) -> dict[str, ArgumentValue]:
        """Return the arguments that state a layout, but for those that are at their defaults. Raises InputError for
        what the stack has no setting for."""
        layout = layout.simplest(facts)
        written: dict[str, ArgumentValue] = {}
        for spelling in self.spellings:
            written |= spelling.write(layout, facts)
        arguments = self.declared.arguments
        return {name: value for name, value in written.items() if value != arguments[name].default}

    def beside(self, layout: RunLayout) -> Iterator[str]:
        """Yield the fields of a layout that are not usual, and that the stack's settings do not state."""
        for field in fields(layout):
            value = getattr(layout, field.name)
            if field.name not in (*self.fields, "dp", "batch", "seq") and value not in UNMARKED:
                yield f"{field.name.replace('_', ' ')} {value}"

    def nearest(self, name: str) -> str:
        """Return a suggestion for an argument that nobody knows; empty where none is near."""
        return suggest_name(name, self.declared.arguments).strip().rstrip(";,")


def differs(name: str, values: ReadValues, others: ReadValues) -> bool:
    """True if an argument has another value; one that is a part of another is never written."""
    return name not in values.arguments or bool(values[name] != others[name])


def spell_value(value: object) -> str:
    """Write the value of an argument, a list as its parts."""
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def read_value(name: str, value: ArgumentValue, argument: Argument) -> ArgumentValue:
    """Return the value of an argument by its kind. Raises InputError for one that it does not take."""
    if argument.kind == "flag":
        if value in (True, False):
            return value
        raise InputError(f"{name} {spell_value(value)}: it takes no value")
    if value is None or argument.kind == "any":
        return value
    if argument.kind == "list":
        return [*map(list_part, value if isinstance(value, list) else [value])]
    if argument.many:
        return [*value] if isinstance(value, list | tuple) else [value]
    if isinstance(value, list | tuple) and len(value) == 1:
        value = value[0]
    if value is True and argument.kind != "bool":
        raise InputError(f"{name}: its value is missing")
    read = converted(value, argument.kind)
    if read is None:
        raise InputError(f"{name} {spell_value(value)}: it is no {SPELLED_KINDS.get(argument.kind, argument.kind)}")
    if argument.choices and read not in argument.choices:
        known = [*map(str, argument.choices)]
        raise InputError(f"{name} {read}: {suggest_name(str(read), known)}it is one of {', '.join(known)}")
    return read


def list_part(part: ArgumentValue) -> ArgumentValue:
    """Return a part of a list; a text that is a list itself, as on a command line, as its parts."""
    if not isinstance(part, str) or not part.startswith("["):
        return part
    try:
        return json.loads(part)
    except ValueError:
        return part


SPELLED_KINDS = {"int": "whole number", "float": "number", "str": "text", "bool": "true or false"}
SPELLED_BOOLS = {"true": True, "false": False}


def converted(value: ArgumentValue, kind: str) -> ArgumentValue:
    """Return a value as one of a kind; None for one that is none."""
    if isinstance(value, list | tuple | dict):
        return None
    text = str(value).strip()
    if kind == "bool":
        return SPELLED_BOOLS.get(text.lower())
    if kind == "str":
        return text
    try:
        number = float(text)
    except ValueError:
        return None
    if kind == "float":
        return number
    return int(number) if number == number and abs(number) <= LARGEST_VALUE and number == int(number) else None
