"""Expressions of texts of kernels as LLVM's language: numbers, vectors, addresses, records, and calls of words."""
import ast
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from formats.kernels.simd.arithmetic import NUMBER, VECTOR16, arithmetic, emitted

from .memory import pointer
from .native import carray, ir, types

INTEGER64, BIT, REAL32 = ir.IntType(64), ir.IntType(1), ir.FloatType()
STORED_KINDS = {types.int64: INTEGER64, types.boolean: BIT, NUMBER: REAL32,
                VECTOR16: ir.ArrayType(ir.VectorType(REAL32, 16), 1)}
ON_FLOATS = {ast.Add: "fadd", ast.Sub: "fsub", ast.Mult: "fmul", ast.Div: "fdiv"}
ON_WORDS = {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.RShift: "ashr", ast.BitAnd: "and_"}
ON_KNOWN: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod, ast.RShift: operator.rshift, ast.BitAnd: operator.and_}
COMPARED = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!="}


class At(NamedTuple):
    """The kind of an address at which numbers or a record of this kind lie."""
    of: Any


class Computed(NamedTuple):
    """A value that a kernel computes: its kind, and LLVM's name for it. What is none is one of Python's, and known."""
    kind: Any
    value: Any


class Scope(NamedTuple):
    """What a function being written has: variables by name, what other names mean, where results go, its end."""
    variables: dict[str, Computed]
    names: Mapping[str, Any]
    results: list[Computed]
    end: Any


class Unwritten(TypeError):
    """What texts do not say."""


class Unasked:
    """What intrinsics ask of numba's context."""
    def get_dummy_value(self) -> None: return None


class ValueWriter(ABC):
    """Writes the expressions of one function. `build` says where."""
    function: Any
    build: Any
    entry: Any
    scope: Scope

    def value(self, node: ast.expr) -> Any:
        """What an expression is: a value that is computed, several, or one of Python's that is known."""
        match node:
            case ast.Constant(value=value): return value
            case ast.Name(id=name):
                if name not in self.scope.variables: return self.scope.names[name]
                return self.read(self.scope.variables[name])
            case ast.Tuple(elts=parts): return tuple(map(self.value, parts))
            case ast.BinOp(op=op, left=left, right=right): return self.binary(op, self.value(left), self.value(right))
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                found = self.value(operand)
                return self.binary(ast.Sub(), 0, found) if isinstance(found, Computed) else -found
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                return self.compared(COMPARED[type(op)], self.known(self.value(left)), self.known(self.value(right)))
            case ast.BoolOp(op=op, values=[first, *rest]):
                then = ast.BoolOp(op, rest) if len(rest) > 1 else rest[0]
                if isinstance(op, ast.Or): return self.either(first, ast.Constant(True), then)
                return self.either(first, then, ast.Constant(False))
            case ast.IfExp(test=test, body=one, orelse=other): return self.either(test, one, other)
            case ast.Attribute(value=value, attr=name):
                found = self.value(value)
                return self.word(found, name) if isinstance(found, Computed) else getattr(found, name)
            case ast.Subscript(value=value, slice=at):
                found = self.value(value)
                return found if isinstance(found.kind.of, np.dtype) else self.load(*self.element(found, self.value(at)))
            case ast.Call(func=func, args=args): return self.call(self.value(func), [*map(self.value, args)])
        return self.refuse(node)

    def refuse(self, node: ast.AST) -> Any: raise Unwritten(f"{ast.unparse(node)[:80]}: no text of a kernel says this")

    @abstractmethod
    def take_in(self, function: Any, args: list[Any]) -> Any:
        """What a function among words gives."""

    # ---- kinds

    def known(self, given: Any) -> Computed:
        """A value of Python's as one that is computed."""
        if isinstance(given, Computed): return given
        if given is None: return Computed(types.none, None)
        if isinstance(given, bool | np.bool_): return Computed(types.boolean, BIT(int(given)))
        if isinstance(given, int | np.integer): return Computed(types.int64, INTEGER64(int(given)))
        if isinstance(given, float | np.floating): return Computed(NUMBER, REAL32(float(given)))
        raise Unwritten(f"{given!r:.80}: no number")

    def as_kind(self, given: Any, kind: Any) -> Computed:
        """A value turned to another kind."""
        found, build = self.known(given), self.build
        if found.kind == kind: return found
        match found.kind, kind:
            case types.boolean, types.int64: value = build.zext(found.value, INTEGER64)
            case types.int64, types.float32: value = build.sitofp(found.value, REAL32)
            case types.float32, types.int64: value = build.fptosi(found.value, INTEGER64)
            case _: raise Unwritten(f"{found.kind} where {kind} was")
        return Computed(kind, value)

    def truth(self, given: Any) -> Any:
        found = self.known(given)
        return found.value if found.kind == types.boolean else self.build.icmp_signed("!=", found.value, INTEGER64(0))

    # ---- operations

    def binary(self, op: ast.operator, one: Any, other: Any) -> Any:
        if not isinstance(one, Computed) and not isinstance(other, Computed): return ON_KNOWN[type(op)](one, other)
        a, b = self.known(one), self.known(other)
        if VECTOR16 in (a.kind, b.kind):
            emit = arithmetic(ON_FLOATS[type(op)])
            return Computed(VECTOR16, emitted(emit, self.build, (a.kind, b.kind), [a.value, b.value]))
        if NUMBER in (a.kind, b.kind):
            return Computed(NUMBER, getattr(self.build, ON_FLOATS[type(op)])(*(self.as_kind(each, NUMBER).value
                                                                            for each in (a, b))))
        x, y = (self.as_kind(each, types.int64).value for each in (a, b))
        if isinstance(op, ast.FloorDiv | ast.Mod): return Computed(types.int64, self.divided(op, x, y))
        return Computed(types.int64, getattr(self.build, ON_WORDS[type(op)])(x, y))

    def compared(self, op: str, one: Computed, other: Computed) -> Computed:
        """Whether it is so of two numbers; of what is none only != is."""
        kind = NUMBER if NUMBER in (one.kind, other.kind) else types.int64
        a, b = (self.as_kind(each, kind).value for each in (one, other))
        if kind == types.int64: return Computed(types.boolean, self.build.icmp_signed(op, a, b))
        test = self.build.fcmp_unordered if op == "!=" else self.build.fcmp_ordered
        return Computed(types.boolean, test(op, a, b))

    def divided(self, op: ast.operator, x: Any, y: Any) -> Any:
        """x // y or x % y, rounded down, as Python does."""
        build, left = self.build, self.build.srem(x, y)
        none = INTEGER64(0)
        below = build.and_(build.icmp_signed("!=", left, none), build.icmp_signed("<", build.xor(left, y), none))
        if isinstance(op, ast.Mod): return build.select(below, build.add(left, y), left)
        whole = build.sdiv(x, y)
        return build.select(below, build.sub(whole, INTEGER64(1)), whole)

    def choose(self, test: Any, one: Callable[[], None], other: Callable[[], None]) -> None:
        """Either of two, by a test: what is not asked is not computed."""
        first, second, behind = (self.function.append_basic_block() for _ in range(3))
        self.build.cbranch(self.truth(test), first, second)
        for block, body in ((first, one), (second, other)):
            self.build.position_at_end(block)
            body()
            if not self.build.block.is_terminated: self.build.branch(behind)
        self.build.position_at_end(behind)

    def either(self, test: ast.expr, one: ast.expr, other: ast.expr) -> Computed:
        """One value or the other, by a test."""
        made: list[Computed] = []
        def store(part: ast.expr) -> None:
            found = self.known(self.value(part))
            if not made: made.append(self.place(found.kind))
            self.store(found, made[0])
        self.choose(self.value(test), lambda: store(one), lambda: store(other))
        return self.read(made[0])

    # ---- memory

    def place(self, kind: Any) -> Computed:
        """Room for a value of this kind."""
        stored = INTEGER64 if isinstance(kind, At) else STORED_KINDS[kind]
        return Computed(kind, ir.IRBuilder(self.entry).alloca(stored))

    def read(self, place: Computed) -> Computed: return Computed(place.kind, self.build.load(place.value))
    def store(self, given: Any, place: Computed) -> None:
        self.build.store(self.as_kind(given, place.kind).value, place.value)

    def element(self, found: Computed, at: Any) -> tuple[Any, Any]:
        """Where a number of an array lies, and its kind."""
        kind, at = found.kind.of, self.as_kind(at, types.int64).value
        size = np.dtype(kind).itemsize
        lies = REAL32 if kind is np.float32 else ir.IntType(8 * size)
        where = self.build.add(found.value, self.build.mul(at, INTEGER64(size), flags=("nsw",)))
        return self.build.inttoptr(where, lies.as_pointer()), kind

    def load(self, where: Any, kind: Any) -> Computed:
        """The number that lies there; whole ones as words."""
        value = self.build.load(where)
        if kind is np.float32: return Computed(NUMBER, value)
        widened = self.build.sext if np.dtype(kind).kind == "i" else self.build.zext
        return Computed(types.int64, value if np.dtype(kind).itemsize == 8 else widened(value, INTEGER64))

    def word(self, record: Computed, name: str) -> Computed:
        """A word of a record."""
        kind, offset = record.kind.of.fields[name][:2]
        return self.load(*self.element(Computed(At(kind.type), self.build.add(record.value, INTEGER64(offset))), 0))

    # ---- calls

    def call(self, function: Any, args: list[Any]) -> Any:
        if function is min or function is max: return self.extreme(function, *args)
        if function is pointer: return Computed(At(args[1]), self.as_kind(args[0], types.int64).value)
        if function is carray: return args[0]
        if isinstance(function, type) and issubclass(function, np.generic):
            [given] = args
            if not isinstance(given, Computed): return function(given)
            return self.as_kind(given, NUMBER if function is np.float32 else types.int64)
        if hasattr(function, "py_func"): return self.take_in(function, args)
        if not hasattr(function, "_defn"): raise Unwritten(f"{function!r:.80} is called, and is no word of kernels")
        given = [*map(self.known, args)]
        literal = function._prefer_literal and all(isinstance(each, int) for each in args)
        signature, code = function._defn(None, *([*map(types.literal, args)] if literal else [a.kind for a in given]))
        made = code(Unasked(), self.build, signature, [each.value for each in given])
        return None if made is None else Computed(signature.return_type, made)

    def extreme(self, function: Any, one: Any, other: Any) -> Any:
        """The smaller or the larger of two whole numbers."""
        if not isinstance(one, Computed) and not isinstance(other, Computed): return function(one, other)
        a, b = (self.as_kind(each, types.int64).value for each in (one, other))
        beyond = self.build.icmp_signed("<" if function is min else ">", b, a)
        return Computed(types.int64, self.build.select(beyond, b, a))
