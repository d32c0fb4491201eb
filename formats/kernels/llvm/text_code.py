"""Kernels as machine code: LLVM IR is written statement by statement. The kind of each value is known when it is met,
so numba's type inference, which takes most of a compilation, is not needed. Kernels may assign, branch by `if`, and
loop by `while`, and by `for` over a range; all other statements are refused. A function that they call is written once
a process for each kind of arguments, and is placed behind the kernels that call it."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import count
from typing import Any, NamedTuple

import numpy as np

from formats.kernels.engine.compiled import Function
from formats.kernels.engine.from_text import TextKernel
from formats.kernels.engine.native import FastMathOptions, ir, llvm, rewrite_module, types
from formats.kernels.llvm.text_kinds import (
    INTEGER64,
    Computed,
    GivenValue,
    KnownKind,
    LlvmValue,
    PartsKind,
    ValueKind,
    each_part,
    is_several,
    pack_values,
    rebuilt,
    stored_parts,
)
from formats.kernels.llvm.text_values import Scope, ValueWriter

HEAD_LINES = 3  # header lines of a module's text: its name and target
PASS_LEVEL = 3  # optimisation level of LLVM's passes, the highest
LARGE = 1000  # instructions of a function from which it is not inlined,
# so that it has its own registers and loops


@cache
def read_function(function: Callable[..., Any]) -> tuple[ast.FunctionDef, dict[str, Any]]:
    """Return a function's definition, and the objects that its names refer to."""
    [definition] = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    assert isinstance(definition, ast.FunctionDef)
    closure = inspect.getclosurevars(function)
    return definition, {**closure.builtins, **function.__globals__, **closure.nonlocals}


class Helper(NamedTuple):
    """A called function: the kind of its result, its text, and the helpers that it calls."""

    gives: ValueKind
    text: str
    calls: dict[str, Helper]


GIVES_NOTHING = KnownKind(None)
HELPERS: dict[tuple[Any, ...], Helper] = {}  # keyed by function and kinds of arguments
HELPER_NUMBERS: dict[tuple[Any, ...], int] = {}
NUMBERED = re.compile(r"helper\.(\d+)")


class LoopEnds(NamedTuple):
    """The blocks where a loop continues (`again`) and where it ends (`behind`)."""

    again: LlvmValue
    behind: LlvmValue


class TextWriter(ValueWriter):
    """Writes one function, for arguments of these kinds."""

    def __init__(self, name: str, kinds: Sequence[Any], gives: ValueKind = GIVES_NOTHING) -> None:
        self.module, self.kinds = ir.Module(name), kinds
        self.module.triple = llvm.get_process_triple()
        self.function = ir.Function(self.module, function_kind(kinds, gives), name)
        self.entry, begin = (self.function.append_basic_block() for _ in range(2))
        self.build = ir.IRBuilder(begin)
        self.scope, self.calls = Scope({}, {}, [], begin), dict[str, Helper]()
        self.loops: list[LoopEnds] = []

    def whole(self, definition: ast.FunctionDef, names: Mapping[str, Any]) -> ValueKind:
        """Write the whole function, and return the kind of its result."""
        begin, args, values = self.build.block, iter(self.function.args), list[GivenValue]()
        result = self.write(definition, names, [rebuilt(kind, args) for kind in self.kinds])
        gives = self.kind_of(result, values)
        if self.function.ftype.return_type == ir.VoidType():
            self.build.ret_void()
        else:
            self.build.ret(pack_values(self.build, self.function.ftype.return_type, values))
        ir.IRBuilder(self.entry).branch(begin)
        return gives

    def take_in(self, function: Any, args: list[GivenValue]) -> GivenValue:
        arguments: list[GivenValue] = []
        kinds = tuple(self.kind_of(arg, arguments) for arg in args)
        helper = find_helper(function, kinds)
        name = name_helper(function, kinds)
        if name not in self.calls:
            self.calls[name] = helper
            ir.Function(self.module, function_kind(kinds, helper.gives), name)
        result = self.build.call(self.module.globals[name], arguments)
        return rebuilt(helper.gives, (self.build.extract_value(result, k) for k in count()))

    def kind_of(self, given: GivenValue, values: list[GivenValue]) -> ValueKind:
        """Return the kind of an argument; its computed parts are appended to `values`."""
        if is_several(given):
            return PartsKind(type(given), tuple(self.kind_of(part, values) for part in given))
        if not isinstance(given, Computed | int | float | np.number):
            return KnownKind(given)
        computed = self.known(given)
        values.append(computed.value)
        return computed.kind

    def write(self, definition: ast.FunctionDef, names: Mapping[str, Any], args: list[GivenValue]) -> GivenValue:
        """Return the result of a function for these arguments; its code is inserted here."""
        bound = dict(zip((arg.arg for arg in definition.args.args), args, strict=True))
        outer, self.scope = self.scope, Scope({}, {**names, **bound}, [], self.function.append_basic_block())
        for node in ast.walk(definition):  # an argument that is assigned is a variable
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in bound:
                self.keep(node.id, bound[node.id])
        self.follow(definition.body)
        if self.scope.results and self.is_reached():
            self.refuse(definition)  # one path returns no value
        self.leave(self.scope.end)
        self.build.position_at_end(self.scope.end)
        [result] = [each_part(self.read, place) for place in self.scope.results] or [None]
        self.scope = outer
        return result

    def follow(self, body: list[ast.stmt]) -> None:
        """Write statements, one after another, up to the first that leaves the block."""
        for statement in body:
            if self.build.block.is_terminated:
                return
            match statement:
                case ast.Pass():
                    pass
                case ast.Expr(value=value):
                    self.value(value)
                case ast.Assign(targets=[target], value=value):
                    self.assign(target, self.value(value))
                case ast.AnnAssign(target=target, value=ast.expr() as value):
                    self.assign(target, self.value(value))
                case ast.AugAssign(target=ast.Name(id=name), op=op, value=value):
                    self.keep(name, self.binary(op, self.value(ast.Name(name)), self.value(value)))
                case ast.AugAssign(target=ast.Subscript(value=value, slice=at), op=op, value=more):
                    where, kind = self.element(self.value(value), self.value(at))
                    self.put(self.binary(op, self.load(where, kind), self.value(more)), where, kind)
                case ast.Break():
                    self.leave(self.loops[-1].behind)
                case ast.Continue():
                    self.leave(self.loops[-1].again)
                case ast.If(test=test, body=one, orelse=other) if isinstance(told := self.test(test), Computed):
                    self.choose(
                        told,
                        lambda one=one: self.follow(one),  # type: ignore[misc]
                        lambda other=other: self.follow(other),  # type: ignore[misc]
                    )
                case ast.If(body=one, orelse=other):
                    self.follow(one if told else other)
                case ast.While(test=test, body=inside, orelse=[]):
                    with self.looping(lambda test=test: self.test(test)):  # type: ignore[misc]
                        self.follow(inside)
                case ast.For(
                    target=ast.Name(id=name),
                    body=inside,
                    orelse=[],
                    iter=ast.Call(func=ast.Name(id="range"), args=bounds, keywords=[]),
                ):
                    self.count(name, [*map(self.value, bounds)], inside)
                case ast.Return(value=value):
                    self.give(value and self.value(value))
                case _:
                    self.refuse(statement)

    def assign(self, target: ast.expr, found: GivenValue) -> None:
        match target:
            case ast.Tuple(elts=parts):
                for part, value_part in zip(parts, found, strict=True):
                    self.assign(part, value_part)
            case ast.Subscript(value=value, slice=at):
                self.put(found, *self.element(self.value(value), self.value(at)))
            case ast.Attribute(value=value, attr=name):
                self.put(found, *self.field(self.value(value), name))
            case ast.Name(id=name):
                self.keep(name, found)
            case _:
                self.refuse(target)

    def keep(self, name: str, found: GivenValue) -> None:
        """Store a value in a variable, which has several parts if the value is a tuple."""
        computed = each_part(self.known, found)
        if name not in self.scope.variables:
            self.scope.variables[name] = each_part(lambda each: self.place(each.kind), computed)
        each_part(self.store, computed, self.scope.variables[name])

    def give(self, found: GivenValue) -> None:
        """Store the result of the function, and jump to its end."""
        if found is not None:
            computed = each_part(self.known, found)
            if not self.scope.results:
                self.scope.results.append(each_part(lambda each: self.place(each.kind), computed))
            each_part(self.store, computed, *self.scope.results)
        self.leave(self.scope.end)

    def is_reached(self) -> bool:
        """True if the code written next can be reached."""
        block = self.build.block
        ends = [basic_block.terminator for basic_block in self.function.blocks if basic_block.is_terminated]
        return not block.is_terminated and any(block in end.operands for end in ends)

    def leave(self, block: LlvmValue) -> None:
        if not self.build.block.is_terminated:
            self.build.branch(block)

    @contextmanager
    def looping(self, test: Callable[[], Any], step: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Write a loop: the body of the `with` statement, then a step, while a test is true."""
        head, body, again, behind = (self.function.append_basic_block() for _ in range(4))
        self.build.branch(head)
        self.build.position_at_end(head)
        told = test()
        if isinstance(told, Computed):
            self.build.cbranch(told.value, body, behind)
        else:
            self.build.branch(body if told else behind)
        self.build.position_at_end(body)
        self.loops.append(LoopEnds(again, behind))
        yield
        self.loops.pop()
        self.leave(again)
        self.build.position_at_end(again)
        step()
        self.build.branch(head)
        self.build.position_at_end(behind)

    def count(self, name: str, bounds: list[GivenValue], body: list[ast.stmt]) -> None:
        """Write a loop over a range of integers, which descends if its step is negative."""
        start, stop, by = [0, *bounds, 1] if len(bounds) == 1 else [*bounds, 1][:3]
        first, last, step = (self.as_kind(bound, types.int64).value for bound in (start, stop, by))
        at, none = self.place(types.int64), INTEGER64(0)
        self.build.store(first, at.value)

        def advance() -> None:
            self.build.store(self.build.add(self.read(at).value, step, flags=("nsw",)), at.value)

        def within() -> Computed:
            here = self.read(at).value
            ascends, descends = (self.build.icmp_signed(past, here, last) for past in "<>")
            if isinstance(by, Computed):
                test = self.build.select(self.build.icmp_signed("<", step, none), descends, ascends)
            else:
                test = descends if by < 0 else ascends
            return Computed(types.boolean, test)

        with self.looping(within, advance):
            self.keep(name, self.read(at))
            self.follow(body)


def function_kind(kinds: Sequence[Any], gives: ValueKind) -> LlvmValue:
    """Return LLVM's type of a function: its result is one struct of several values."""
    result = ir.LiteralStructType(stored_parts(gives)) if gives != GIVES_NOTHING else ir.VoidType()
    return ir.FunctionType(result, [part for kind in kinds for part in stored_parts(kind)])


def name_helper(function: Any, kinds: tuple[Any, ...]) -> str:
    """Return a helper's name: its number, as functions declared alike may mean different ones."""
    return f"helper.{HELPER_NUMBERS.setdefault((function.py_func, kinds), len(HELPER_NUMBERS))}"


def find_helper(function: Any, kinds: tuple[Any, ...]) -> Helper:
    """Return the helper of a function for arguments of these kinds. It is written twice: the first time gives the kind
    of the result."""
    key = function.py_func, kinds
    if key not in HELPERS:
        definition, names = read_function(function.py_func)
        name = name_helper(function, kinds)
        gives = TextWriter(name, kinds).whole(definition, names)
        writer = TextWriter(name, kinds, gives)
        writer.function.linkage = "internal"
        writer.whole(definition, names)
        if function.targetoptions.get("forceinline"):
            writer.function.attributes.add("alwaysinline")
        elif sum(len(block.instructions) for block in writer.function.blocks) > LARGE:
            writer.function.attributes.add("noinline")
        if fast := function.targetoptions.get("fastmath"):
            rewrite_module(writer.module, FastMathOptions(fast))
        HELPERS[key] = Helper(gives, str(writer.module), writer.calls)
    return HELPERS[key]


def join_modules(writer: TextWriter) -> str:
    """Return the text of a function and of all functions that it calls, each once. They are numbered in the order in
    which they are met, so the code does not depend on what else the process compiled."""
    left, helpers = [writer.calls], dict[str, Helper]()
    while left:
        fresh = {name: helper for name, helper in left.pop().items() if name not in helpers}
        helpers |= fresh
        left += [helper.calls for helper in fresh.values()]
    declared, lines = {*helpers}, str(writer.module).splitlines()
    for helper in helpers.values():
        lines += helper.text.splitlines()[HEAD_LINES:]
    needed = []
    for line in lines:
        if line.startswith("declare"):
            name = line.split('@"')[1].split('"')[0]
            if name in declared:
                continue
            declared.add(name)
        needed.append(line)
    order: dict[str, int] = {}
    return NUMBERED.sub(lambda met: f"helper.{order.setdefault(met[1], len(order))}", "\n".join(needed))


@cache
def code_maker() -> GivenValue:
    """Return numba's code generator, which knows the processor and the addressing of code."""
    from numba.core.codegen import JITCPUCodegen

    return JITCPUCodegen("texts")


def pass_through(module: LlvmValue) -> None:
    """Run LLVM's passes, without unrolling loops: kernels set the number of vectors in flight themselves, and copies of
    a body take a quarter of a compilation and gain no time. Loops over single numbers are vectorised."""
    options = llvm.create_pipeline_tuning_options(PASS_LEVEL)
    options.loop_unrolling, options.loop_vectorization, options.slp_vectorization = False, True, False
    builder = llvm.create_pass_builder(code_maker()._tm, options)
    builder.getModulePassManager().run(module, builder)


def compile_written(function: Function) -> bytes:
    """Compile to object code. Raises `Unwritten` for Python that the writer does not support."""
    if isinstance(function, TextKernel):
        [definition] = [
            statement for statement in ast.parse(function.text).body if isinstance(statement, ast.FunctionDef)
        ]
        names = {"min": min, "max": max} | function.words
    else:
        definition, names = read_function(function.body)
    kinds, gives = [types.int64] * function.arguments, types.int64 if function.result else GIVES_NOTHING
    writer = TextWriter(function.symbol, kinds, gives)
    writer.whole(definition, names)
    module = llvm.parse_assembly(join_modules(writer))
    module.verify()
    module.data_layout = code_maker()._data_layout
    pass_through(module)
    return bytes(code_maker()._tm.emit_object(module))
