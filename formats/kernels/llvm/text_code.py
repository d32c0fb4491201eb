"""Kernels as machine code: LLVM's language is written statement after statement. Kinds are known as they are met, so
that numba's inference, which takes most of a compilation, is not asked. Kernels assign, choose by `if`, and do again by
`while`, and by `for` over a range; what they say beyond is refused. Functions that they call are written once a
process, for each kind of arguments, and stand behind the kernels that call them."""
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

HEAD_LINES = 3                                              # of a module's text, which say what it is of
PASS_LEVEL = 3                                              # of LLVM's passes, the highest
LARGE = 1000                                                # instructions of a function from which it has registers and
                                                            # loops of its own, wherever it is called


@cache
def read_function(function: Callable[..., Any]) -> tuple[ast.FunctionDef, dict[str, Any]]:
    """A function's definition, and what its names mean."""
    [found] = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    assert isinstance(found, ast.FunctionDef)
    own = inspect.getclosurevars(function)
    return found, {**own.builtins, **function.__globals__, **own.nonlocals}


class Helper(NamedTuple):
    """A function among words: the kind that it gives, its text, and the helpers that it calls."""
    gives: ValueKind
    text: str
    calls: dict[str, Helper]


GIVES_NOTHING = KnownKind(None)
HELPERS: dict[tuple[Any, ...], Helper] = {}                 # by function and kinds
HELPER_NUMBERS: dict[tuple[Any, ...], int] = {}
NUMBERED = re.compile(r"helper\.(\d+)")


class LoopEnds(NamedTuple):
    """Where a loop goes on, and where it ends."""
    again: LlvmValue
    behind: LlvmValue


class TextWriter(ValueWriter):
    """Writes one function, of arguments of these kinds."""

    def __init__(self, name: str, kinds: Sequence[Any], gives: ValueKind = GIVES_NOTHING) -> None:
        self.module, self.kinds = ir.Module(name), kinds
        self.module.triple = llvm.get_process_triple()
        self.function = ir.Function(self.module, function_kind(kinds, gives), name)
        self.entry, begin = (self.function.append_basic_block() for _ in range(2))
        self.build = ir.IRBuilder(begin)
        self.scope, self.calls = Scope({}, {}, [], begin), dict[str, Helper]()
        self.loops: list[LoopEnds] = []

    def whole(self, definition: ast.FunctionDef, names: Mapping[str, Any]) -> ValueKind:
        """Writes all of it; the kind that it gives."""
        begin, args, values = self.build.block, iter(self.function.args), list[GivenValue]()
        found = self.write(definition, names, [rebuilt(each, args) for each in self.kinds])
        gives = self.kind_of(found, values)
        if self.function.ftype.return_type == ir.VoidType(): self.build.ret_void()
        else: self.build.ret(pack_values(self.build, self.function.ftype.return_type, values))
        ir.IRBuilder(self.entry).branch(begin)
        return gives

    def take_in(self, function: Any, args: list[GivenValue]) -> GivenValue:
        given: list[GivenValue] = []
        kinds = tuple(self.kind_of(each, given) for each in args)
        helper = find_helper(function, kinds)
        name = name_helper(function, kinds)
        if name not in self.calls:
            self.calls[name] = helper
            ir.Function(self.module, function_kind(kinds, helper.gives), name)
        found = self.build.call(self.module.globals[name], given)
        return rebuilt(helper.gives, (self.build.extract_value(found, k) for k in count()))

    def kind_of(self, given: GivenValue, values: list[GivenValue]) -> ValueKind:
        """The kind of an argument; what is computed of it is added to the values."""
        if is_several(given): return PartsKind(type(given), tuple(self.kind_of(each, values) for each in given))
        if not isinstance(given, Computed | int | float | np.number): return KnownKind(given)
        found = self.known(given)
        values.append(found.value)
        return found.kind

    def write(self, definition: ast.FunctionDef, names: Mapping[str, Any], args: list[GivenValue]) -> GivenValue:
        """What a function gives, of these arguments; its code is here from now on."""
        bound = dict(zip((each.arg for each in definition.args.args), args, strict=True))
        outer, self.scope = self.scope, Scope({}, {**names, **bound}, [], self.function.append_basic_block())
        for node in ast.walk(definition):                   # an argument that is assigned is a variable
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in bound:
                self.keep(node.id, bound[node.id])
        self.follow(definition.body)
        if self.scope.results and self.is_reached(): self.refuse(definition)        # it would give nothing there
        self.leave(self.scope.end)
        self.build.position_at_end(self.scope.end)
        [found] = [each_part(self.read, each) for each in self.scope.results] or [None]
        self.scope = outer
        return found

    def follow(self, body: list[ast.stmt]) -> None:
        """Statements, one after another, to the first that leaves."""
        for each in body:
            if self.build.block.is_terminated: return
            match each:
                case ast.Pass(): pass
                case ast.Expr(value=value): self.value(value)
                case ast.Assign(targets=[target], value=value): self.assign(target, self.value(value))
                case ast.AnnAssign(target=target, value=ast.expr() as value): self.assign(target, self.value(value))
                case ast.AugAssign(target=ast.Name(id=name), op=op, value=value):
                    self.keep(name, self.binary(op, self.value(ast.Name(name)), self.value(value)))
                case ast.AugAssign(target=ast.Subscript(value=value, slice=at), op=op, value=more):
                    where, kind = self.element(self.value(value), self.value(at))
                    self.put(self.binary(op, self.load(where, kind), self.value(more)), where, kind)
                case ast.Break(): self.leave(self.loops[-1].behind)
                case ast.Continue(): self.leave(self.loops[-1].again)
                case ast.If(test=test, body=one, orelse=other) if isinstance(told := self.test(test), Computed):
                    self.choose(told, lambda one=one: self.follow(one),        # type: ignore[misc]
                                lambda other=other: self.follow(other))                    # type: ignore[misc]
                case ast.If(body=one, orelse=other): self.follow(one if told else other)
                case ast.While(test=test, body=inside, orelse=[]):
                    with self.looping(lambda test=test: self.test(test)): self.follow(inside)       # type: ignore[misc]
                case ast.For(target=ast.Name(id=name), body=inside, orelse=[],
                             iter=ast.Call(func=ast.Name(id="range"), args=bounds, keywords=[])):
                    self.count(name, [*map(self.value, bounds)], inside)
                case ast.Return(value=value): self.give(value and self.value(value))
                case _: self.refuse(each)

    def assign(self, target: ast.expr, found: GivenValue) -> None:
        match target:
            case ast.Tuple(elts=parts):
                for part, each in zip(parts, found, strict=True): self.assign(part, each)
            case ast.Subscript(value=value, slice=at): self.put(found, *self.element(self.value(value), self.value(at)))
            case ast.Attribute(value=value, attr=name): self.put(found, *self.field(self.value(value), name))
            case ast.Name(id=name): self.keep(name, found)
            case _: self.refuse(target)

    def keep(self, name: str, found: GivenValue) -> None:
        """A variable from now on, of several parts where it is a tuple."""
        given = each_part(self.known, found)
        if name not in self.scope.variables:
            self.scope.variables[name] = each_part(lambda each: self.place(each.kind), given)
        each_part(self.store, given, self.scope.variables[name])

    def give(self, found: GivenValue) -> None:
        """What the function gives, and its end."""
        if found is not None:
            given = each_part(self.known, found)
            if not self.scope.results: self.scope.results.append(each_part(lambda each: self.place(each.kind), given))
            each_part(self.store, given, *self.scope.results)
        self.leave(self.scope.end)

    def is_reached(self) -> bool:
        """Whether what is written next would ever be done."""
        block = self.build.block
        ends = [each.terminator for each in self.function.blocks if each.is_terminated]
        return not block.is_terminated and any(block in end.operands for end in ends)

    def leave(self, block: LlvmValue) -> None:
        if not self.build.block.is_terminated: self.build.branch(block)

    @contextmanager
    def looping(self, test: Callable[[], Any], step: Callable[[], None] = lambda: None) -> Iterator[None]:
        """A body that is done, and a step behind it, while a test is true."""
        head, body, again, behind = (self.function.append_basic_block() for _ in range(4))
        self.build.branch(head)
        self.build.position_at_end(head)
        told = test()
        if isinstance(told, Computed): self.build.cbranch(told.value, body, behind)
        else: self.build.branch(body if told else behind)
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
        """A body for each of a range of whole numbers, which descends where its step is negative."""
        start, stop, by = [0, *bounds, 1] if len(bounds) == 1 else [*bounds, 1][:3]
        first, last, step = (self.as_kind(each, types.int64).value for each in (start, stop, by))
        at, none = self.place(types.int64), INTEGER64(0)
        self.build.store(first, at.value)
        def advance() -> None: self.build.store(self.build.add(self.read(at).value, step, flags=("nsw",)), at.value)
        def within() -> Computed:
            here = self.read(at).value
            ascends, descends = (self.build.icmp_signed(past, here, last) for past in "<>")
            if isinstance(by, Computed):
                found = self.build.select(self.build.icmp_signed("<", step, none), descends, ascends)
            else: found = descends if by < 0 else ascends
            return Computed(types.boolean, found)
        with self.looping(within, advance):
            self.keep(name, self.read(at))
            self.follow(body)


def function_kind(kinds: Sequence[Any], gives: ValueKind) -> LlvmValue:
    """LLVM's kind of a function: what it gives is one value of several."""
    result = ir.LiteralStructType(stored_parts(gives)) if gives != GIVES_NOTHING else ir.VoidType()
    return ir.FunctionType(result, [part for each in kinds for part in stored_parts(each)])


def name_helper(function: Any, kinds: tuple[Any, ...]) -> str:
    """By its number, as two that are declared alike may stand for others."""
    return f"helper.{HELPER_NUMBERS.setdefault((function.py_func, kinds), len(HELPER_NUMBERS))}"


def find_helper(function: Any, kinds: tuple[Any, ...]) -> Helper:
    """A function for arguments of these kinds. It is written twice: the first time says what it gives."""
    key = function.py_func, kinds
    if key not in HELPERS:
        definition, names = read_function(function.py_func)
        name = name_helper(function, kinds)
        gives = TextWriter(name, kinds).whole(definition, names)
        writer = TextWriter(name, kinds, gives)
        writer.function.linkage = "internal"
        writer.whole(definition, names)
        if function.targetoptions.get("forceinline"): writer.function.attributes.add("alwaysinline")
        elif sum(len(block.instructions) for block in writer.function.blocks) > LARGE:
            writer.function.attributes.add("noinline")
        if fast := function.targetoptions.get("fastmath"): rewrite_module(writer.module, FastMathOptions(fast))
        HELPERS[key] = Helper(gives, str(writer.module), writer.calls)
    return HELPERS[key]


def join_modules(writer: TextWriter) -> str:
    """The text of a function and of all that it calls, each once; these are numbered as they are met, so that code does
    not tell what else a process compiled."""
    left, found = [writer.calls], dict[str, Helper]()
    while left:
        fresh = {name: each for name, each in left.pop().items() if name not in found}
        found |= fresh
        left += [each.calls for each in fresh.values()]
    said, lines = {*found}, str(writer.module).splitlines()
    for each in found.values(): lines += each.text.splitlines()[HEAD_LINES:]
    kept = []
    for line in lines:
        if line.startswith("declare"):
            name = line.split('@"')[1].split('"')[0]
            if name in said: continue
            said.add(name)
        kept.append(line)
    order: dict[str, int] = {}
    return NUMBERED.sub(lambda met: f"helper.{order.setdefault(met[1], len(order))}", "\n".join(kept))


@cache
def code_maker() -> GivenValue:
    """numba's, which knows the processor, and how code is addressed."""
    from numba.core.codegen import JITCPUCodegen
    return JITCPUCodegen("texts")


def pass_through(module: LlvmValue) -> None:
    """LLVM's passes, without unrolled loops: kernels say how many vectors are abreast, and copies of a body take a
    quarter of a compilation and gain nothing. Loops over single numbers do become vectors."""
    options = llvm.create_pipeline_tuning_options(PASS_LEVEL)
    options.loop_unrolling, options.loop_vectorization, options.slp_vectorization = False, True, False
    builder = llvm.create_pass_builder(code_maker()._tm, options)
    builder.getModulePassManager().run(module, builder)


def compile_written(function: Function) -> bytes:
    """The object code of a function. Unwritten for what this writes no code of."""
    if isinstance(function, TextKernel):
        [definition] = [each for each in ast.parse(function.text).body if isinstance(each, ast.FunctionDef)]
        names = {"min": min, "max": max} | function.words
    else: definition, names = read_function(function.body)
    kinds, gives = [types.int64] * function.arguments, types.int64 if function.result else GIVES_NOTHING
    writer = TextWriter(function.symbol, kinds, gives)
    writer.whole(definition, names)
    module = llvm.parse_assembly(join_modules(writer))
    module.verify()
    module.data_layout = code_maker()._data_layout
    pass_through(module)
    return bytes(code_maker()._tm.emit_object(module))
