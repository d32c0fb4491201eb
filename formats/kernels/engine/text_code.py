"""Texts of kernels as machine code: LLVM's language is written statement after statement. Kinds are known as they are
met, so that numba's inference, which takes most of a compilation, is not asked. Texts assign, choose by `if`, and do
again by `while`, and by `for` over a range that ascends. Functions among their words are written once a process, for
each kind of arguments, and stand behind the kernels that call them; those that give addresses are taken in."""
from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from formats.kernels.simd.arithmetic import NUMBER

from .from_text import TextKernel
from .native import ir, llvm, types
from .text_values import INTEGER64, STORED_KINDS, Computed, Scope, ValueWriter

HEAD_LINES = 3                                              # of a module's text, which say what it is of
PASS_LEVEL = 3                                              # of LLVM's passes, the highest


@cache
def read_function(function: Callable[..., Any]) -> tuple[ast.FunctionDef, dict[str, Any]]:
    """A function's definition, and what its names mean."""
    [found] = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    assert isinstance(found, ast.FunctionDef)
    own = inspect.getclosurevars(function)
    return found, {**own.builtins, **function.__globals__, **own.nonlocals}


class Helper(NamedTuple):
    """A function among words: the kinds that it gives, its text, and the helpers that it calls."""
    gives: tuple[Any, ...]
    text: str
    calls: dict[str, Helper]


HELPERS: dict[tuple[Any, ...], Helper | None] = {}          # by function and kinds; None: taken in


class TextWriter(ValueWriter):
    """Writes one function, of arguments of these kinds."""

    def __init__(self, name: str, kinds: Sequence[Any], gives: Sequence[Any] = ()) -> None:
        self.module, self.kinds = ir.Module(name), kinds
        self.module.triple = llvm.get_process_triple()
        self.function = ir.Function(self.module, function_kind(kinds, gives), name)
        self.entry, begin = (self.function.append_basic_block() for _ in range(2))
        self.build = ir.IRBuilder(begin)
        self.scope, self.calls = Scope({}, {}, [], begin), dict[str, Helper]()

    def whole(self, definition: ast.FunctionDef, names: Mapping[str, Any]) -> tuple[Any, ...]:
        """Writes all of it; what it gives."""
        begin = self.build.block
        found = self.write(definition, names, [*map(Computed, self.kinds, self.function.args)])
        if self.function.ftype.return_type == ir.VoidType(): self.build.ret_void()
        else: self.build.ret(pack_values(self.build, self.function.ftype.return_type, found))
        ir.IRBuilder(self.entry).branch(begin)
        return found

    def take_in(self, function: Any, args: list[Any]) -> Any:
        given = [self.known(each) for each in args if isinstance(each, Computed | int | np.number)]
        kinds = tuple(each.kind for each in given)
        helper = find_helper(function, kinds) if len(given) == len(args) and {*kinds} <= {*STORED_KINDS} else None
        if helper is None: return sole_value(self.write(*read_function(function.py_func), args))
        name = name_helper(function, kinds)
        if name not in self.calls:
            self.calls[name] = helper
            ir.Function(self.module, function_kind(kinds, helper.gives), name)
        found = self.build.call(self.module.globals[name], [each.value for each in given])
        return sole_value(tuple(Computed(kind, self.build.extract_value(found, k))
                                for k, kind in enumerate(helper.gives)))

    def write(self, definition: ast.FunctionDef, names: Mapping[str, Any], args: list[Any]) -> tuple[Any, ...]:
        """What a function gives, of these arguments; its code is here from now on."""
        bound = dict(zip((each.arg for each in definition.args.args), args, strict=True))
        outer, self.scope = self.scope, Scope({}, {**names, **bound}, [], self.function.append_basic_block())
        for node in ast.walk(definition):                   # an argument that is assigned is a variable
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in bound:
                self.keep(node.id, bound[node.id])
        self.follow(definition.body)
        self.leave(self.scope.end)
        self.build.position_at_end(self.scope.end)
        found = tuple(self.read(each) for each in self.scope.results)
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
                case ast.If(test=test, body=one, orelse=other):
                    self.choose(self.value(test), lambda one=one: self.follow(one),        # type: ignore[misc]
                                lambda other=other: self.follow(other))                    # type: ignore[misc]
                case ast.While(test=test, body=inside):
                    with self.looping(lambda test=test: self.truth(self.value(test))): self.follow(inside)  # type: ignore[misc]
                case ast.For(target=ast.Name(id=name), iter=ast.Call(func=ast.Name(id="range"), args=bounds),
                             body=inside):
                    self.count(name, [*map(self.value, bounds)], inside)
                case ast.Return(value=value): self.give(value and self.value(value))
                case _: self.refuse(each)

    def assign(self, target: ast.expr, found: Any) -> None:
        match target:
            case ast.Tuple(elts=parts):
                for part, each in zip(parts, found, strict=True): self.assign(part, each)
            case ast.Subscript(value=value, slice=at): self.put(found, *self.element(self.value(value), self.value(at)))
            case ast.Name(id=name): self.keep(name, found)
            case _: self.refuse(target)

    def put(self, found: Any, where: Any, kind: Any) -> None:
        """A number to where it lies."""
        self.build.store(self.as_kind(found, NUMBER if kind is np.float32 else types.int64).value, where)

    def keep(self, name: str, found: Any) -> None:
        """A variable from now on; what is of another kind is turned to that of the first."""
        given = self.known(found)
        if name not in self.scope.variables: self.scope.variables[name] = self.place(given.kind)
        self.store(given, self.scope.variables[name])

    def give(self, found: Any) -> None:
        """What the function gives, and its end."""
        several = isinstance(found, tuple) and not isinstance(found, Computed)
        for k, each in enumerate(found if several else () if found is None else (found,)):
            given = self.known(each)
            if k == len(self.scope.results): self.scope.results.append(self.place(given.kind))
            self.store(given, self.scope.results[k])
        self.leave(self.scope.end)

    def leave(self, block: Any) -> None:
        if not self.build.block.is_terminated: self.build.branch(block)

    @contextmanager
    def looping(self, test: Callable[[], Any]) -> Iterator[None]:
        """A body that is done while a test is true."""
        head, body, behind = (self.function.append_basic_block() for _ in range(3))
        self.build.branch(head)
        self.build.position_at_end(head)
        self.build.cbranch(test(), body, behind)
        self.build.position_at_end(body)
        yield
        self.leave(head)
        self.build.position_at_end(behind)

    def count(self, name: str, bounds: list[Any], body: list[ast.stmt]) -> None:
        """A body for each of a range of whole numbers, which ascends."""
        given = [self.as_kind(each, types.int64).value for each in bounds]
        start, stop, step = [INTEGER64(0), *given, INTEGER64(1)] if len(given) == 1 else [*given, INTEGER64(1)][:3]
        at = self.place(types.int64)
        self.build.store(start, at.value)
        with self.looping(lambda: self.build.icmp_signed("<", self.read(at).value, stop)):
            self.keep(name, self.read(at))
            self.follow(body)
            if not self.build.block.is_terminated:
                self.build.store(self.build.add(self.read(at).value, step, flags=("nsw",)), at.value)


def function_kind(kinds: Sequence[Any], gives: Sequence[Any]) -> Any:
    """LLVM's kind of a function: what it gives is one value of several."""
    result = ir.LiteralStructType([STORED_KINDS[each] for each in gives]) if gives else ir.VoidType()
    return ir.FunctionType(result, [STORED_KINDS[each] for each in kinds])


def sole_value(found: tuple[Any, ...]) -> Any: return None if not found else found[0] if len(found) == 1 else found


def pack_values(build: Any, kind: Any, found: Sequence[Computed]) -> Any:
    """Several values as one."""
    made = ir.Constant(kind, ir.Undefined)
    for k, each in enumerate(found): made = build.insert_value(made, each.value, k)
    return made


def name_helper(function: Any, kinds: tuple[Any, ...]) -> str:
    return f"{function.py_func.__module__}.{function.py_func.__qualname__}{kinds}"


def find_helper(function: Any, kinds: tuple[Any, ...]) -> Helper | None:
    """A function for arguments of these kinds; None where it gives an address. It is written twice: the first time says
    what it gives."""
    key = function.py_func, kinds
    if key not in HELPERS:
        definition, names = read_function(function.py_func)
        name = name_helper(function, kinds)
        gives = tuple(each.kind for each in TextWriter(name, kinds).whole(definition, names))
        if not {*gives} <= {*STORED_KINDS}: HELPERS[key] = None
        else:
            writer = TextWriter(name, kinds, gives)
            writer.function.linkage = "internal"
            if function.targetoptions.get("forceinline"): writer.function.attributes.add("alwaysinline")
            writer.whole(definition, names)
            HELPERS[key] = Helper(gives, str(writer.module), writer.calls)
    return HELPERS[key]


def join_modules(writer: TextWriter) -> str:
    """The text of a function and of all that it calls, each once."""
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
    return "\n".join(kept)


@cache
def code_maker() -> Any:
    """numba's, which knows the processor, and how code is addressed."""
    from numba.core.codegen import JITCPUCodegen
    return JITCPUCodegen("texts")


def pass_through(module: Any) -> None:
    """LLVM's passes, without unrolled loops: texts say how many vectors are abreast, and copies of a body take a
    quarter of a compilation and gain nothing. Loops over single numbers do become vectors."""
    options = llvm.create_pipeline_tuning_options(PASS_LEVEL)
    options.loop_unrolling, options.loop_vectorization, options.slp_vectorization = False, True, False
    builder = llvm.create_pass_builder(code_maker()._tm, options)
    builder.getModulePassManager().run(module, builder)


def compile_text(kernel: TextKernel) -> bytes:
    """The object code of a kernel, from its text. Unwritten for what texts do not say."""
    [definition] = [each for each in ast.parse(kernel.text).body if isinstance(each, ast.FunctionDef)]
    writer = TextWriter(kernel.symbol, [types.int64] * 3)
    writer.whole(definition, {"min": min, "max": max} | kernel.words)
    module = llvm.parse_assembly(join_modules(writer))
    module.verify()
    module.data_layout = code_maker()._data_layout
    pass_through(module)
    return bytes(code_maker()._tm.emit_object(module))
