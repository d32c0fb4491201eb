"""Attention over blocks of scores: blocks that a mask leaves out are never computed, and bits decide only at its
edges."""

import numpy as np

from formats.core.arrays import separate
from formats.host.threads import threads
from formats.kernels.attentions.heads import (
    KEYS,
    PLACES,
    QUERIES,
    blank,
    check_heads,
    check_scale,
    copy_rows,
    heads_of,
    scores_of,
    served,
)
from formats.kernels.engine.compiled import HELPER, Kernel
from formats.kernels.engine.launch import ROOM, address, launch, make_record, words
from formats.kernels.engine.memory import floats, pointer, record
from formats.kernels.engine.native import intrinsic, ir, njit, types
from formats.kernels.engine.pool import POOL
from formats.kernels.matmul.gemm import gemm, multiply
from formats.kernels.matmul.linear import typed
from formats.kernels.simd.maths import exponentials, fade, largest
from formats.kernels.simd.vectors import LANE, LANES, MASK, VECTOR, llvm_function, pointer_at

__all__ = ["attention_blocks"]
__borders__ = QUERIES, KEYS

# the mask's arrays and its block (see formats/storage/masks.py), m queries and n keys; the rest as in heads.py
MASKED = np.dtype(
    [*PLACES, *words("ptr idx edge bits block m n h d e multiply room apart q_of k_of v_of tile"), ("scale", "f8")]
)
f4, i8 = np.float32, np.int64
HIDDEN = f4(-np.inf)
FAINT = 1e-30  # replaces a scale of 0, which would turn hidden scores into NaN


@intrinsic
def hide(typing, bits, s, value):
    """Store a number in those of the 16 at s whose bit is not set."""

    def code(context, builder, signature, values):
        bits, s, value = values
        gone = builder.bitcast(builder.trunc(builder.not_(bits), ir.IntType(LANES)), MASK)
        first = builder.insert_element(ir.Constant(VECTOR, ir.Undefined), value, LANE(0))
        several = builder.shuffle_vector(first, first, ir.Constant(ir.VectorType(LANE, LANES), [0] * LANES))
        at = pointer_at(builder, s, 0, VECTOR)
        masked = llvm_function(builder, f"llvm.masked.store.v{LANES}f32.p0", ir.VoidType(), VECTOR, at.type, LANE, MASK)
        builder.call(masked, [several, at, LANE(4), gone])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.float32), code


@njit(**HELPER)
def hide_edges(c, b, count, rows, scores, value):
    """Hide the scores that the bits of edge blocks leave out, in a run of blocks."""
    edge = pointer(c.edge, np.uint32)
    for j in range(count):
        if not edge[b + j]:
            continue
        bits = c.bits + (i8(edge[b + j]) - 1) * c.block * c.block // 8
        for i in range(rows):
            words = pointer(bits + i * c.block // 8, np.uint16)
            for g in range(c.block // 16):
                if words[g] != 0xFFFF:
                    hide(i8(words[g]), scores + 4 * (i * c.tile + j * c.block + 16 * g), value)


@njit(**HELPER)
def fold_in(c, rows, keys, scores, o, tops, masses, scale):
    """Turn a run of scores into weights, and rescale the earlier sums to the new maximum."""
    for i in range(rows):
        s = scores + 4 * i * c.tile
        top = largest(s, keys, scale)
        if top == HIDDEN:
            blank(floats(s, keys), keys, keys, keys)
            continue
        if masses[i] == 0:
            tops[i], masses[i] = top, exponentials(s, keys, scale, top)
            continue
        top = max(top, tops[i])
        kept = fade(tops[i], top)
        tops[i], masses[i] = top, masses[i] * kept + exponentials(s, keys, scale, top)
        if kept != f4(1):
            y = floats(o + 4 * i * c.o_row, c.e)
            for j in range(c.e):
                y[j] *= kept


@njit(**HELPER)
def neighbours(c, b, end):
    """Count the consecutive blocks from b on, at most a tile."""
    idx, count = pointer(c.idx, np.uint32), 1
    while b + count < end and (count + 1) * c.block <= c.tile and idx[b + count] == idx[b] + count:
        count += 1
    return count


@Kernel.of(3, rare=True)
def attend_blocks(item, worker, arguments):
    """Compute softmax(scale q kᵀ) v of a block row of a head: run after run of neighbouring stored blocks."""
    c = record(arguments, MASKED)
    row, head, scale = item // c.h, item % c.h, f4(c.scale)
    low = row * c.block
    rows, room = min(c.block, c.m - low), c.room + worker * c.apart
    tops, masses, scores = floats(room, c.block), floats(room + 4 * c.block, c.block), room + 8 * c.block
    packed = scores + 4 * c.block * c.tile
    q, o = c.q + 4 * (low * c.q_row + head // c.q_of * c.q_head), c.o + 4 * (low * c.o_row + head * c.o_head)
    ptr, idx = pointer(c.ptr, np.uint32), pointer(c.idx, np.uint32)
    b, end, fresh = i8(ptr[row]), i8(ptr[row + 1]), 1
    for i in range(rows):
        tops[i], masses[i] = 0, 0
        if b == end:
            blank(floats(o + 4 * i * c.o_row, c.e), c.e, c.e, c.e)
    while b < end:
        count, key = neighbours(c, b, end), i8(idx[b]) * c.block
        keys = min(count * c.block, c.n - key)
        scores_of(c, q, rows, key, keys, head, packed, scores, 4 * c.tile)
        hide_edges(c, b, count, rows, scores, HIDDEN if scale > 0 else -HIDDEN)
        fold_in(c, rows, keys, scores, o, tops, masses, scale)
        copy_rows(c.v + 4 * (key * c.v_row + head // c.v_of * c.v_head), 4 * c.v_row, keys, c.e, packed, 4 * c.e)
        multiply(c.multiply, rows, c.e, keys, scores, 4 * c.tile, packed, 4 * c.e, o, 4 * c.o_row, fresh)
        fresh, b = 0, b + count
    for i in range(rows):
        y, share = floats(o + 4 * i * c.o_row, c.e), f4(0) if masses[i] == 0 else f4(1) / masses[i]
        for j in range(c.e):
            y[j] *= share


def attention_blocks(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    ptr: np.ndarray,
    idx: np.ndarray,
    edge: np.ndarray,
    bits: np.ndarray,
    out: np.ndarray,
    block: int,
    scale: float = 1.0,
) -> np.ndarray:
    """out (m, h, e) = softmax(scale q kᵀ) v over the scores that a mask holds (formats.storage.masks), in each head.

    q (m, ·, d), k (n, ·, d) and v (n, ·, e) are views with any steps between rows and heads, each of as many heads as
    out or of a divisor; ptr, idx, edge: uint32, bits: uint16. Rows that see no key are zeros."""
    check_heads(out, q=q, k=k, v=v)
    for name, array in (("ptr", ptr), ("idx", idx), ("edge", edge)):
        typed(name, array, np.uint32)
    separate(out, ptr=ptr, idx=idx, edge=edge, bits=typed("bits", bits, np.uint16, axes=3))
    (m, h, e), (n, _, d) = out.shape, k.shape
    if block < 16 or block % 16 or bits.shape[1:] != (block, block // 16):
        raise ValueError(f"mask: bits of {bits.shape} are not of blocks of {block}, which must be a multiple of 16")
    if len(ptr) - 1 != -(-m // block) or not ptr[-1] == len(idx) == len(edge) or ptr[0] or (ptr[1:] < ptr[:-1]).any():
        raise ValueError(
            f"mask: ptr of {len(ptr)} does not rise from 0 to {len(idx)} blocks of {block} over {m} queries"
        )
    if len(idx) and int(idx.max()) * block >= n:
        raise ValueError(f"mask: block {idx.max()} of {block} keys is outside the {n} keys")
    if len(edge) and int(edge.max()) > len(bits):
        raise ValueError(f"mask: an edge refers to bits {edge.max()}, but there are {len(bits)}")
    if q.shape[2] != d:
        raise ValueError(f"q and k: widths {q.shape[2]} and {d} differ")
    if v.shape[2] != e:
        raise ValueError(f"v and out: widths {v.shape[2]} and {e} differ")
    serves = [served(name, view, h) for name, view in (("q", q), ("k", k), ("v", v))]
    views = zip("qkvo", (q, k, v, out), (m, n, n, m), (*serves, 1), strict=True)
    places = [number for name, view, rows, many in views for number in heads_of(name, view, rows, h // many)]
    tile = max(KEYS // block, 1) * block
    workers = threads()
    with POOL.lock:
        room = ROOM.reserve(4 * (block * (tile + 2) + tile * max(d, e)), workers)
        fields = (
            *places,
            *map(address, (ptr, idx, edge, bits)),
            block,
            m,
            n,
            h,
            d,
            e,
            gemm.address,
            *room,
            *serves,
            tile,
            check_scale(scale) or FAINT,
        )
        launch(workers, (attend_blocks, make_record([fields], MASKED), (len(ptr) - 1) * h))
    return out
