"""Expressions of kernel texts as LLVM IR: numbers, vectors, addresses, records, and calls."""

import ast
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from formats.kernels.engine.memory import pointer
from formats.kernels.engine.native import carray, ir, typeof, types
from formats.kernels.llvm.text_kinds import (
    BIT,
    CASTS,
    INTEGER64,
    LIES,
    REAL32,
    REAL64,
    REALS,
    STORED_KINDS,
    UNREAD,
    ArrayAt,
    At,
    Computed,
    GivenValue,
    LlvmValue,
    Unwritten,
    ValueKind,
    each_part,
    is_several,
    is_tuple,
    narrow_bits,
    pack_values,
    real_kind,
    stored,
)
from formats.kernels.simd.arithmetic import NUMBER, VECTOR16, arithmetic, emitted
from formats.kernels.simd.vectors import llvm_function

ON_FLOATS = {ast.Add: "fadd", ast.Sub: "fsub", ast.Mult: "fmul", ast.Div: "fdiv"}
ON_WORDS = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.RShift: "ashr",
    ast.LShift: "shl",
    ast.BitAnd: "and_",
    ast.BitOr: "or_",
    ast.BitXor: "xor",
}
ON_TRUTHS = ast.BitAnd, ast.BitOr, ast.BitXor
ON_KNOWN: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.RShift: operator.rshift,
    ast.LShift: operator.lshift,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
}
ON_ONE: dict[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.USub: operator.neg,
    ast.Not: operator.not_,
    ast.Invert: operator.invert,
}
OF_KNOWN: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
}
NUMBER_CLASSES = np.generic, int, float
COMPARED = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!="}


class Scope(NamedTuple):
    """The state of a function being written: variables by name, the objects that other names refer to, the places of
    results, the end block."""

    variables: dict[str, Any]
    names: Mapping[str, Any]
    results: list[GivenValue]
    end: LlvmValue


def common_kind(one: ValueKind, other: ValueKind) -> ValueKind:
    """Return the kind in which two numbers meet, as in numba: integers and float32 meet in float64."""
    if not {one, other} & REALS:
        return types.int64
    return NUMBER if {one, other} == {NUMBER} else types.float64


class Unasked:
    """The part of numba's context that intrinsics use."""

    def get_dummy_value(self) -> None:
        return None


class ValueWriter(ABC):
    """Writes the expressions of one function. `build` is at the current place."""

    function: LlvmValue
    build: LlvmValue
    entry: LlvmValue
    scope: Scope

    def value(self, node: ast.expr) -> GivenValue:
        """Evaluate an expression: to a computed value, a tuple, or a known value of Python's."""
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name):
                if name not in self.scope.variables:
                    return self.scope.names[name]
                return each_part(self.read, self.scope.variables[name])
            case ast.Tuple(elts=parts):
                return tuple(map(self.value, parts))
            case ast.BinOp(op=op, left=left, right=right):
                return self.binary(op, self.value(left), self.value(right))
            case ast.UnaryOp(op=op, operand=operand):
                return self.turned(op, self.value(operand))
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                return self.compared(op, self.value(left), self.value(right))
            case ast.Compare(left=left, ops=[op, *ops], comparators=[middle, *right]):
                one, two = (ast.Constant(self.value(operand)) for operand in (left, middle))  # once
                return self.value(ast.BoolOp(ast.And(), [ast.Compare(one, [op], [two]), ast.Compare(two, ops, right)]))
            case ast.BoolOp(op=op, values=[first, *rest]):
                then = ast.BoolOp(op, rest) if len(rest) > 1 else rest[0]
                return self.joined(isinstance(op, ast.Or), self.value(first), then, self.value)
            case ast.IfExp(test=test, body=one, orelse=other):
                return self.either(test, one, other)
            case ast.Attribute(value=value, attr=name):
                holder = self.value(value)
                return self.word(holder, name) if isinstance(holder, Computed) else getattr(holder, name)
            case ast.Subscript(value=value, slice=at):
                holder, place = self.value(value), self.value(at)
                if is_several(holder) and not isinstance(holder, ArrayAt):
                    return holder[place]
                return self.load(*self.element(holder, place))
            case ast.Call(func=func, args=args, keywords=[]):
                return self.call(self.value(func), [*map(self.value, args)])
        return self.refuse(node)

    def test(self, node: ast.expr) -> GivenValue:
        """Evaluate an expression as a truth value: operands are tested one after another, whatever their kinds."""
        match node:
            case ast.BoolOp(op=op, values=[first, *rest]):
                then = ast.BoolOp(op, rest) if len(rest) > 1 else rest[0]
                return self.joined(isinstance(op, ast.Or), self.test(first), then, self.test)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return self.turned(node.op, self.test(operand))
        truth = self.value(node)
        return self.as_truth(truth) if isinstance(truth, Computed) else bool(truth)

    def refuse(self, node: ast.AST) -> GivenValue:
        raise Unwritten(f"{ast.unparse(node)[:80]}: not supported in a kernel")

    @abstractmethod
    def take_in(self, function: Any, args: list[GivenValue]) -> GivenValue:
        """Return the result of a call of a helper function."""

    # ---- kinds

    def known(self, given: GivenValue) -> Computed:
        """Return a value of Python's as a computed constant; a computed value as it is."""
        if isinstance(given, Computed):
            return given
        if given is None:
            return Computed(types.none, None)
        if isinstance(given, type | np.dtype):
            return Computed(typeof(given), None)
        if isinstance(given, bool | np.bool_):
            return Computed(types.boolean, BIT(int(given)))
        if isinstance(given, int | np.integer) and abs(int(given)) < 1 << 63:
            return Computed(types.int64, INTEGER64(int(given)))
        if isinstance(given, np.float32):
            return Computed(NUMBER, REAL32(float(given)))
        if isinstance(given, float | np.floating):
            return Computed(types.float64, REAL64(float(given)))
        raise Unwritten(f"{given!r:.80}: not a number")

    def as_kind(self, given: GivenValue, kind: ValueKind) -> Computed:
        """Convert a value to another kind."""
        computed = self.known(given)
        if computed.kind == kind:
            return computed
        if isinstance(computed.kind, At) and kind == types.int64:
            return Computed(kind, computed.value)
        if kind == types.boolean:
            return Computed(kind, self.truth(computed))
        if (computed.kind, kind) not in CASTS:
            raise Unwritten(f"{computed.kind} cannot be converted to {kind}")
        return Computed(kind, getattr(self.build, CASTS[computed.kind, kind])(computed.value, stored(kind)))

    def truth(self, given: GivenValue) -> LlvmValue:
        return self.as_truth(given).value

    def as_truth(self, given: GivenValue) -> Computed:
        computed = self.known(given)
        return computed if computed.kind == types.boolean else self.compared(ast.NotEq(), computed, 0)

    # ---- operations

    def binary(self, op: ast.operator, one: GivenValue, other: GivenValue) -> GivenValue:
        if not isinstance(one, Computed) and not isinstance(other, Computed):
            return ON_KNOWN[type(op)](one, other)
        a, b = self.known(one), self.known(other)
        if VECTOR16 in (a.kind, b.kind):
            emit = arithmetic(ON_FLOATS[type(op)])
            return Computed(VECTOR16, emitted(emit, self.build, (a.kind, b.kind), [a.value, b.value]))
        kind = common_kind(a.kind, b.kind)
        if isinstance(op, ast.Div) and kind not in REALS:
            kind = types.float64
        if {a.kind, b.kind} == {types.boolean} and isinstance(op, ON_TRUTHS):
            kind = types.boolean
        x, y = (self.as_kind(number, kind).value for number in (a, b))
        if kind in REALS:
            return Computed(kind, getattr(self.build, ON_FLOATS[type(op)])(x, y))
        if isinstance(op, ast.FloorDiv | ast.Mod):
            return Computed(types.int64, self.divided(op, x, y))
        return Computed(kind, getattr(self.build, ON_WORDS[type(op)])(x, y))

    def turned(self, op: ast.unaryop, given: GivenValue) -> GivenValue:
        """Apply a unary operator: -x, not x, ~x."""
        if not isinstance(given, Computed):
            return ON_ONE[type(op)](given)
        match op:
            case ast.Not():
                return Computed(types.boolean, self.build.not_(self.truth(given)))
            case ast.Invert():
                return Computed(types.int64, self.build.not_(self.as_kind(given, types.int64).value))
            case ast.USub() if given.kind in REALS:
                return Computed(given.kind, self.build.fneg(given.value))
        return self.binary(ast.Sub(), 0, given)

    def compared(self, op: ast.cmpop, one: GivenValue, other: GivenValue) -> GivenValue:
        """Compare two numbers; for NaN only != is true."""
        named = isinstance(op, ast.Is | ast.IsNot)
        if not named and (is_several(one) or is_several(other)):
            raise Unwritten("tuples cannot be compared")
        if not isinstance(one, Computed) and not isinstance(other, Computed):
            return OF_KNOWN[type(op)](one, other)
        kind, x, y = self.meet(one, other)
        word = COMPARED[type(op)]
        if kind not in REALS:
            return Computed(types.boolean, self.build.icmp_signed(word, x, y))
        test = self.build.fcmp_unordered if word == "!=" else self.build.fcmp_ordered
        return Computed(types.boolean, test(word, x, y))

    def meet(self, one: GivenValue, other: GivenValue) -> tuple[ValueKind, LlvmValue, LlvmValue]:
        """Return the kind in which two numbers meet, and both converted to it."""
        kind = common_kind(self.known(one).kind, self.known(other).kind)
        return kind, self.as_kind(one, kind).value, self.as_kind(other, kind).value

    def divided(self, op: ast.operator, x: LlvmValue, y: LlvmValue) -> LlvmValue:
        """Return x // y or x % y, rounded down, as in Python; 0 if y is 0."""
        build, none = self.build, INTEGER64(0)
        by_nothing = build.icmp_signed("==", y, none)
        x, y = build.select(by_nothing, none, x), build.select(by_nothing, INTEGER64(1), y)
        left = build.srem(x, y)
        below = build.and_(build.icmp_signed("!=", left, none), build.icmp_signed("<", build.xor(left, y), none))
        if isinstance(op, ast.Mod):
            return build.select(below, build.add(left, y), left)
        whole = build.sdiv(x, y)
        return build.select(below, build.sub(whole, INTEGER64(1)), whole)

    def choose(self, test: Any, one: Callable[[], None], other: Callable[[], None]) -> None:
        """Branch by a test: the other side is not computed."""
        first, second, behind = (self.function.append_basic_block() for _ in range(3))
        self.build.cbranch(self.truth(test), first, second)
        for block, body in ((first, one), (second, other)):
            self.build.position_at_end(block)
            body()
            if not self.build.block.is_terminated:
                self.build.branch(behind)
        self.build.position_at_end(behind)

    def joined(
        self, either: bool, first: GivenValue, then: ast.expr, asked: Callable[[ast.expr], GivenValue]
    ) -> GivenValue:
        """Return `first or then`, or `first and then`: one of the two operands, as in Python; both have one kind."""
        if not isinstance(first, Computed):
            return first if bool(first) == either else asked(then)
        held = self.place(first.kind)
        self.store(first, held)

        def store() -> None:
            self.store(self.known(asked(then)), held)

        self.choose(first, *((lambda: None, store) if either else (store, lambda: None)))
        return self.read(held)

    def either(self, test: ast.expr, one: ast.expr, other: ast.expr) -> GivenValue:
        """Return one value or the other, by a test."""
        places: list[GivenValue] = []
        if not isinstance(told := self.test(test), Computed):
            return self.value(one if told else other)

        def store(part: ast.expr) -> None:
            parts = each_part(self.known, self.value(part))
            if not places:
                places.append(each_part(lambda each: self.place(each.kind), parts))
            each_part(self.store, parts, places[0])

        self.choose(told, lambda: store(one), lambda: store(other))
        return each_part(self.read, places[0])

    # ---- memory

    def place(self, kind: ValueKind) -> Computed:
        """Allocate a variable of this kind."""
        return Computed(kind, ir.IRBuilder(self.entry).alloca(stored(kind)))

    def read(self, place: Computed) -> Computed:
        return Computed(place.kind, self.build.load(place.value))

    def store(self, given: GivenValue, place: Computed) -> None:
        """Store a value in a variable of its kind; a truth value also in an int64 variable. Unwritten for other kinds,
        for which numba would widen the variable."""
        computed = self.known(given)
        if computed.kind != place.kind and (computed.kind, place.kind) != (types.boolean, types.int64):
            raise Unwritten(f"{computed.kind} assigned to a variable of kind {place.kind}")
        self.build.store(self.as_kind(computed, place.kind).value, place.value)

    def element(self, found: GivenValue, at: LlvmValue) -> tuple[Any, Any]:
        """Return the address of a number or a record of an array, and its kind."""
        if isinstance(found, ArrayAt):
            found = found.at
        kind, place = found.kind.of, self.known(at)
        if place.kind in REALS or (isinstance(at, int) and at < 0):
            raise Unwritten(f"index {at!r:.80} of an array: give a whole number from 0 on")
        at, size = self.as_kind(place, types.int64).value, np.dtype(kind).itemsize
        if kind in UNREAD:
            raise Unwritten(f"arrays of {kind} are not supported")
        if isinstance(kind, np.dtype):
            return self.build.add(found.value, self.build.mul(at, INTEGER64(size))), kind
        lies = LIES.get(kind) or ir.IntType(8 * size)
        start = self.build.inttoptr(found.value, lies.as_pointer())  # a base that LLVM can follow
        return self.build.gep(start, [at]), kind

    def load(self, where: LlvmValue, kind: ValueKind) -> Computed:
        """Load the number at an address; an integer becomes a word. A record stays an address."""
        if isinstance(kind, np.dtype):
            return Computed(At(kind), where)
        value, dtype = self.build.load(where), np.dtype(kind)
        if dtype.kind == "f":
            return Computed(real_kind(dtype), value)
        return Computed(types.int64, value) if dtype.itemsize == 8 else self.widened(value, dtype.kind == "i")

    def put(self, found: GivenValue, where: LlvmValue, kind: ValueKind) -> None:
        """Store a number at an address."""
        dtype = np.dtype(kind)
        if dtype.kind == "f":
            value = self.as_kind(found, real_kind(dtype)).value
        else:
            value = self.as_kind(found, types.int64).value
            if dtype.itemsize < 8:
                value = self.build.trunc(value, ir.IntType(8 * dtype.itemsize))
        self.build.store(value, where)

    def field(self, record: Computed, name: str) -> tuple[Any, Any]:
        """Return the address of a word of a record, and its kind."""
        kind, offset = record.kind.of.fields[name][:2]
        return self.element(Computed(At(kind.type), self.build.add(record.value, INTEGER64(offset))), 0)

    def word(self, record: Computed, name: str) -> Computed:
        """Load a word of a record."""
        return self.load(*self.field(record, name))

    # ---- calls

    def call(self, function: Any, args: list[GivenValue]) -> GivenValue:
        if function is min or function is max:
            return self.extreme(function, *args)
        if function is pointer:
            return Computed(At(args[1]), self.as_kind(args[0], types.int64).value)
        if function is carray:
            return ArrayAt(*args)
        if function is len and isinstance(args[0], ArrayAt):
            return args[0].size
        if isinstance(function, type) and issubclass(function, tuple):
            return function(*args)
        if isinstance(function, type) and issubclass(function, NUMBER_CLASSES):
            return self.cast(function, *args)
        if function in (abs, np.sqrt):
            return self.of_number(function, *args)
        if hasattr(function, "py_func"):
            return self.take_in(function, args)
        if not hasattr(function, "_defn"):
            raise Unwritten(f"{function!r:.80} cannot be called in a kernel")
        operands = [*map(self.known, args)]
        literal = function._prefer_literal and all(isinstance(arg, int) for arg in args)
        signature, code = function._defn(
            None, *([*map(types.literal, args)] if literal else [a.kind for a in operands])
        )
        result = code(Unasked(), self.build, signature, self.handed(signature.args, operands))
        kind = signature.return_type
        if result is None:
            return None
        return self.widened(result, kind.signed) if narrow_bits(kind) else Computed(kind, result)

    def widened(self, value: LlvmValue, signed: bool) -> Computed:
        """Extend an integer of fewer bits to a word."""
        return Computed(types.int64, (self.build.sext if signed else self.build.zext)(value, INTEGER64))

    def handed(self, wanted: Sequence[Any], given: Sequence[Computed]) -> list[GivenValue]:
        """Convert values to the kinds that an intrinsic takes: trailing arguments are packed into one tuple, integers
        narrowed."""
        values = []
        for k, kind in enumerate(wanted):
            if is_tuple(kind):
                parts = [self.as_kind(*pair).value for pair in zip(given[k:], kind, strict=True)]
                values.append(pack_values(self.build, ir.LiteralStructType([part.type for part in parts]), parts))
            elif bits := narrow_bits(kind):
                values.append(self.build.trunc(self.as_kind(given[k], types.int64).value, ir.IntType(bits)))
            elif kind in STORED_KINDS:
                values.append(self.as_kind(given[k], kind).value)
            else:
                values.append(given[k].value)
        return values

    def cast(self, kind: type, given: GivenValue) -> GivenValue:
        """Convert a number to one of numpy's kinds; integers stay words."""
        if not isinstance(given, Computed):
            return kind(given)
        if kind in (bool, np.bool_):
            return self.as_truth(given)
        dtype = np.dtype(kind)
        if kind in UNREAD:
            raise Unwritten(f"conversion to {kind} is not supported")
        if dtype.kind == "f":
            return self.as_kind(given, real_kind(dtype))
        word = self.as_kind(given, types.int64)
        if dtype.itemsize == 8:
            return word
        return self.widened(self.build.trunc(word.value, ir.IntType(8 * dtype.itemsize)), dtype.kind == "i")

    def of_number(self, function: Any, given: GivenValue) -> GivenValue:
        """Return the magnitude or the square root of a number."""
        if not isinstance(given, Computed):
            return function(given)
        kind = given.kind if given.kind in REALS else types.int64 if function is abs else types.float64
        value = self.as_kind(given, kind).value
        if kind == types.int64:
            return Computed(
                kind,
                self.build.select(
                    self.build.icmp_signed("<", value, INTEGER64(0)), self.build.sub(INTEGER64(0), value), value
                ),
            )
        name = f"llvm.{'fabs' if function is abs else 'sqrt'}.f{32 if kind == NUMBER else 64}"
        return Computed(kind, self.build.call(llvm_function(self.build, name, value.type, value.type), [value]))

    def extreme(self, function: Any, one: GivenValue, other: GivenValue, *more: Any) -> GivenValue:
        """Return the smallest or the largest of numbers."""
        if more:
            return self.extreme(function, self.extreme(function, one, other), *more)
        if not isinstance(one, Computed) and not isinstance(other, Computed):
            return function(one, other)
        kind, x, y = self.meet(one, other)
        test = self.build.fcmp_ordered if kind in REALS else self.build.icmp_signed
        return Computed(kind, self.build.select(test("<" if function is min else ">", y, x), y, x))
