"""Tiles of matrix registers (Intel AMX): 32 rows by 32 columns of sums from narrow numbers in words of 32 bits.

A tile of W is 16 words of depth by 16 columns, so these instructions read the panels of formats/core/layout.py as they
are stored."""

import ctypes
import sys

from formats.kernels.engine.compiled import HELPER
from formats.kernels.engine.memory import VOID, WORD, bytes_at
from formats.kernels.engine.native import intrinsic, ir, njit, types
from formats.kernels.simd.vectors import FEATURES, LANE, llvm_function

BYTE = ir.IntType(8)
ADDRESS = BYTE.as_pointer()
ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA, SYS_ARCH_PRCTL = 0x1023, 18, 158


def permitted() -> bool:
    """True if this process may use matrix registers. Linux requires one request by each process."""
    if not ("+amx-int8" in FEATURES and "+amx-bf16" in FEATURES and sys.platform == "linux"):
        return False
    return ctypes.CDLL(None).syscall(SYS_ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0


MATRIX = permitted()


@intrinsic
def load_shapes(typing, address):
    """Set the shapes of the registers from 64 bytes at an address; their contents become zeros."""

    def code(context, builder, signature, values):
        builder.call(
            llvm_function(builder, "llvm.x86.ldtilecfg", VOID, ADDRESS), [builder.inttoptr(values[0], ADDRESS)]
        )
        return context.get_dummy_value()

    return types.void(types.int64), code


@intrinsic
def release_registers(typing):
    """Clear the registers: their contents would be saved with the thread, and keep the core awake."""

    def code(context, builder, signature, values):
        builder.call(llvm_function(builder, "llvm.x86.tilerelease", VOID), [])
        return context.get_dummy_value()

    return types.void(), code


@njit(**HELPER)
def shape_registers(at):
    """Give all registers 16 rows of 64 bytes; the 64 bytes at `at` are overwritten. So x and sums need room for whole
    registers."""
    shapes = bytes_at(at, 64)
    for i in range(64):
        shapes[i] = 0
    shapes[0] = 1  # the only palette
    for i in range(8):
        shapes[16 + 2 * i], shapes[48 + i] = 64, 16
    load_shapes(at)


def multiply_tiles(dot, rows, across):
    """Build an intrinsic: rows by across registers of sums at y from steps of 64 bytes of x against a panel at w. Rows
    of x are along bytes apart, the next 16 rows below, the next steps deeper; rows of W are apart bytes apart, the next
    16 columns beside. Meanwhile `lines` lines of memory from `ahead` on are prefetched at each step."""
    first = 4  # registers: sums, then from here x, then W
    weights = range(first + rows, 8)

    @intrinsic
    def tiles(typing, x, along, below, deeper, w, apart, beside, steps, y, step, ahead, lines):
        def code(context, builder, signature, values):
            x, along, below, deeper, w, apart, beside, steps, y, step, ahead, lines = values

            def run(name, *arguments):
                kinds = [ADDRESS if isinstance(a.type, ir.PointerType) else a.type for a in arguments]
                builder.call(llvm_function(builder, f"llvm.x86.{name}", VOID, *kinds), arguments)

            def at(base, apart, count, more=0):
                return builder.inttoptr(
                    builder.add(builder.add(base, builder.mul(apart, WORD(count))), WORD(more)), ADDRESS
                )

            for i in range(rows * across):
                run("tilezero", BYTE(i))
            before = builder.basic_block
            loop, asking, asked, after = (
                builder.append_basic_block(name) for name in ("depth", "asking", "asked", "done")
            )
            builder.branch(loop)
            builder.position_at_end(loop)
            k, source, weight, far = (builder.phi(WORD) for _ in range(4))
            for phi, start in (k, WORD(0)), (source, x), (weight, w), (far, ahead):
                phi.add_incoming(start, before)
            for r in range(rows):
                run("tileloadd64", BYTE(first + r), at(source, below, r), along)
            for v in range(across):
                held = weights[v % len(weights)]
                run("tileloadd64", BYTE(held), at(weight, beside, v), apart)
                for r in range(rows):
                    run(dot, BYTE(across * r + v), BYTE(first + r), BYTE(held))
            end = builder.add(far, builder.mul(lines, WORD(64)))
            builder.cbranch(builder.icmp_signed("<", far, end), asking, asked)
            builder.position_at_end(asking)
            line = builder.phi(WORD)
            line.add_incoming(far, loop)
            ask = llvm_function(builder, "llvm.prefetch.p0", VOID, ADDRESS, LANE, LANE, LANE)
            builder.call(ask, [builder.inttoptr(line, ADDRESS), LANE(0), LANE(3), LANE(1)])
            then = builder.add(line, WORD(64))
            line.add_incoming(then, asking)
            builder.cbranch(builder.icmp_signed("<", then, end), asking, asked)
            builder.position_at_end(asked)
            following = builder.add(k, WORD(1))
            for phi, value in (
                (k, following),
                (source, builder.add(source, deeper)),
                (far, end),
                (weight, builder.add(weight, builder.mul(apart, WORD(16)))),
            ):
                phi.add_incoming(value, asked)
            builder.cbranch(builder.icmp_signed("<", following, steps), loop, after)
            builder.position_at_end(after)
            for r in range(rows):
                for v in range(across):
                    run("tilestored64", BYTE(across * r + v), at(y, step, 16 * r, 64 * v), step)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 12), code

    return tiles


def registers(dot):
    """Build a function: sums at y of up to 32 rows, and columns, a multiple of 16, of words of x against a panel, a
    multiple of 16. Rows are computed 16 at a time. Rows of x are stored in pieces of 64 bytes, 16 rows of them, then
    the next pieces, along bytes a row in all. `lines` lines of memory from `ahead` on are prefetched on the way."""
    both, left = (multiply_tiles(dot, 2, across) for across in (2, 1))
    upper, corner = (multiply_tiles(dot, 1, across) for across in (4, 1))

    @njit(**HELPER)
    def multiply(rows, columns, x, along, w, apart, beside, words, y, step, ahead, lines):
        steps, width = words // 16, 32 if rows > 16 else 64
        pieces = (columns // width + columns % width // 16) * steps
        lines = (lines + pieces - 1) // pieces
        v = 0
        while v + width <= columns:
            if rows > 16:
                both(x, 64, 16 * along, 1024, w + v // 16 * beside, apart, beside, steps, y + 4 * v, step, ahead, lines)
            else:
                upper(
                    x, 64, 16 * along, 1024, w + v // 16 * beside, apart, beside, steps, y + 4 * v, step, ahead, lines
                )
            v += width
            ahead += 64 * lines * steps
        while v < columns:
            if rows > 16:
                left(x, 64, 16 * along, 1024, w + v // 16 * beside, apart, beside, steps, y + 4 * v, step, ahead, lines)
            else:
                corner(
                    x, 64, 16 * along, 1024, w + v // 16 * beside, apart, beside, steps, y + 4 * v, step, ahead, lines
                )
            v += 16
            ahead += 64 * lines * steps

    return multiply


matrix_pairs, matrix_fours = registers("tdpbf16ps"), registers("tdpbsud")
