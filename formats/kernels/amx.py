"""Tiles of matrix registers (Intel AMX): 32 rows by 32 columns of sums from narrow numbers in words of 32 bits.

A tile of W is 16 words of depth by 16 columns, so the panels of panels.py serve these instructions as they lie."""
import ctypes
import sys

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from .compiled import HELPER
from .memory import VOID, WORD, bytes_at
from .vectors import FEATURES, function

BYTE = ir.IntType(8)
ADDRESS = BYTE.as_pointer()
ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA, SYS_ARCH_PRCTL = 0x1023, 18, 158


def permitted() -> bool:
    """Whether this process may use matrix registers: Linux wants to be asked once."""
    if not ("+amx-int8" in FEATURES and "+amx-bf16" in FEATURES and sys.platform == "linux"): return False
    return ctypes.CDLL(None).syscall(SYS_ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0


MATRIX = permitted()


@intrinsic
def load_shapes(typing, address):
    """Take the shapes of the registers from 64 bytes at an address; their contents become zeros."""
    def code(context, builder, signature, values):
        builder.call(function(builder, "llvm.x86.ldtilecfg", VOID, ADDRESS), [builder.inttoptr(values[0], ADDRESS)])
        return context.get_dummy_value()
    return types.void(types.int64), code


@intrinsic
def release_registers(typing):
    """Leave the registers empty: what they hold would be saved with the thread, and keep the core awake."""
    def code(context, builder, signature, values):
        builder.call(function(builder, "llvm.x86.tilerelease", VOID), [])
        return context.get_dummy_value()
    return types.void(), code


@njit(**HELPER)
def shape_registers(at, first, second):
    """The shapes for so many rows of x in the first and in the second row of registers; the 64 bytes at `at` are written."""
    shapes = bytes_at(at, 64)
    for i in range(64): shapes[i] = 0
    shapes[0] = 1                                            # the one palette there is
    for i in range(8):
        shapes[16 + 2 * i] = 64                              # bytes of a row
        shapes[48 + i] = 16 if i >= 6 else second if i in (2, 3, 5) else first
    load_shapes(at)


def multiplied(dot, rows, across):
    """An intrinsic: rows by across registers of sums at y from steps of 64 bytes of x against panels at w."""
    @intrinsic
    def tiles(typing, x, along, w, apart, steps, y, step):
        def code(context, builder, signature, values):
            x, along, w, apart, steps, y, step = values
            def run(name, *arguments):
                kinds = [ADDRESS if isinstance(a.type, ir.PointerType) else a.type for a in arguments]
                builder.call(function(builder, f"llvm.x86.{name}", VOID, *kinds), arguments)
            def at(base, apart, count, more=0):
                return builder.inttoptr(builder.add(builder.add(base, builder.mul(apart, WORD(count))), WORD(more)), ADDRESS)
            for r in range(rows):
                for v in range(across): run("tilezero", BYTE(2 * r + v))
            before, loop, after = builder.basic_block, builder.append_basic_block("depth"), builder.append_basic_block("done")
            builder.branch(loop)
            builder.position_at_end(loop)
            k, source, weight = (builder.phi(WORD) for _ in range(3))
            for phi, start in (k, WORD(0)), (source, x), (weight, w): phi.add_incoming(start, before)
            for r in range(rows): run("tileloadd64", BYTE(4 + r), at(source, along, 16 * r), along)
            for v in range(across):
                run("tileloadd64", BYTE(6 + v), at(weight, apart, 0, 64 * v), apart)
                for r in range(rows): run(dot, BYTE(2 * r + v), BYTE(4 + r), BYTE(6 + v))
            following = builder.add(k, WORD(1))
            for phi, value in (k, following), (source, builder.add(source, WORD(64))), (
                    weight, builder.add(weight, builder.mul(apart, WORD(16)))): phi.add_incoming(value, loop)
            builder.cbranch(builder.icmp_signed("<", following, steps), loop, after)
            builder.position_at_end(after)
            for r in range(rows):
                for v in range(across): run("tilestored64", BYTE(2 * r + v), at(y, step, 16 * r, 64 * v), step)
            return context.get_dummy_value()
        return types.void(*[types.int64] * 7), code
    return tiles


def registers(dot):
    """A function: so many rows, up to 32, and columns, a multiple of 16, of sums at y, of words of x against a panel, a multiple of
    16. Rows were given to shape_registers."""
    both, left, upper, corner = (multiplied(dot, rows, across) for rows in (2, 1) for across in (2, 1))

    @njit(**HELPER)
    def multiply(rows, columns, x, along, w, apart, words, y, step):
        steps = words // 16
        for v in range(0, columns - 16, 32):
            if rows > 16: both(x, along, w + 4 * v, apart, steps, y + 4 * v, step)
            else: upper(x, along, w + 4 * v, apart, steps, y + 4 * v, step)
        if columns % 32:
            v = columns - 16
            if rows > 16: left(x, along, w + 4 * v, apart, steps, y + 4 * v, step)
            else: corner(x, along, w + 4 * v, apart, steps, y + 4 * v, step)
    return multiply


matrix_pairs, matrix_fours = registers("tdpbf16ps"), registers("tdpbsud")
