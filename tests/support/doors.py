"""The door of every kernel: what it reads, how it is called, what it means. tests/support/guarded.py spoils the
arrays."""

from collections.abc import Callable, Iterator
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

SHAPES = (20, 35), (64, 18), (100, 130)  # of weights


class Door(NamedTuple):
    """A kernel: what it reads (one makes them for so many rows), the shape of out, how it is called, and what it means
    in float64 with a bound. over: what out may be; flat: out is so many numbers, of any shape; exempt: (operand,
    layout) that it cannot know to be wrong."""

    operands: Callable[[np.random.Generator, int], dict[str, np.ndarray]]
    out: Callable[..., tuple[int, ...]]
    call: Callable[..., Any]
    means: Callable[..., tuple[np.ndarray, Any]]
    over: tuple[str, ...] = ()
    flat: bool = False
    exempt: tuple[tuple[str, str], ...] = ()


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape, np.float32)


def parts(rng: np.random.Generator, rows: int, columns: int) -> dict[str, np.ndarray]:
    """The operands of an epilogue."""
    return {name: normal(rng, columns) for name in ("bias", "gain", "shift")} | {
        name: normal(rng, rows, columns) for name in ("times", "residual")
    }


def after(arrays: dict[str, np.ndarray]) -> Any:
    from formats import Epilogue

    return Epilogue(activation="gelu", eps=1e-5, **arrays)


def product_doors() -> Iterator[tuple[str, Door]]:
    """Every choice of every format: as x @ W, and its kernel alone. W's own arrays are operands of the kernel."""
    from formats import FORMATS

    for name, F in FORMATS.items():
        for i, shape in enumerate(SHAPES):
            for j, options in enumerate(F.choices(*shape)):
                if j and i != 1:
                    continue
                where = f"{name} {shape[0]}x{shape[1]}" + (f" {options}" if j else "")
                yield f"{where} matmul", product_door(F, shape, options, whole=True)
                yield f"{where} kernel", product_door(F, shape, options, whole=False)


def column_doors() -> Iterator[tuple[str, Door]]:
    """Rows gathered from the panels of every format that declares them."""
    from formats import FORMATS, kernels

    for name, F in FORMATS.items():
        if (
            stored := F.approximate(
                np.random.default_rng(7).standard_normal((64, 90), np.float32), **F.choices(64, 90)[0]
            )
        ).panelled:

            def embedded(out: np.ndarray, ids: np.ndarray, stored: Any = stored, **arrays: np.ndarray) -> Any:
                return kernels.embed(
                    [(ids, kernels.Columns(stored.shape, stored.panelled, **arrays, **stored.remembered))], out
                )

            yield (
                f"Columns {name}",
                Door(
                    lambda rng, rows, stored=stored: {"ids": rng.integers(0, 90, rows), **stored.arrays()},
                    lambda ids, **_: (len(ids), 64),
                    embedded,
                    lambda ids, stored=stored, **_: (stored.unpack().T[ids].astype(np.float64), 0),
                ),
            )


def product_door(F: Any, shape: tuple[int, int], options: dict[str, Any], whole: bool) -> Door:
    @cache
    def packed() -> Any:
        return F.approximate(np.random.default_rng(7).standard_normal(shape, np.float32), **options)

    def operands(rng: np.random.Generator, rows: int) -> dict[str, np.ndarray]:
        return {"x": normal(rng, rows, shape[0]), **parts(rng, rows, shape[1]), **({} if whole else packed().arrays())}

    def call(out: np.ndarray, x: np.ndarray, **given: np.ndarray) -> Any:
        if whole:
            return packed().matmul(x, out, after(given))
        stored = [given.pop(name) for name in packed().arrays()]
        return packed().declared.kernel(x, *stored, out, after(given), **packed().remembered)

    def means(x: np.ndarray, **given: np.ndarray) -> Any:
        W = packed()
        if not whole:
            W = F(shape, tuple(given.pop(name) for name in W.arrays()), **W.remembered)
        exact = np.matmul(*W.operands(x))
        return after(given).reference(exact), after(given).bound(exact, W.bound(x), F.rounds)

    # arrays of a weight need not say how many inputs it has: what calls their kernels does
    exempt = () if whole else (("x", "a number more"),)
    return Door(operands, lambda x, **_: (len(x), shape[1]), call, means, exempt=exempt)


def heads(rng: np.random.Generator, rows: int, **count: int) -> dict[str, np.ndarray]:
    return {name: normal(rng, rows, many, 24 if name == "v" else 20) for name, many in count.items()}


def starts(rows: int) -> np.ndarray:
    return np.array([0, rows // 3, rows // 3, rows])


def softly(s: np.ndarray, v: np.ndarray, seen: Any = True) -> tuple[np.ndarray, np.ndarray]:
    """softmax(s) v over what is seen, and what a relative error of p as of float32 sums may make of it: s (h, q, k), v
    (h, k, e)."""
    from formats.core.epilogue import gamma

    p = np.where(seen, np.exp(s - np.where(seen, s, -1e9).max(-1, keepdims=True)), 0)
    p /= np.maximum(p.sum(-1, keepdims=True), 1e-300)
    wrong = gamma(64 + s.shape[-1]) * (4 + 8 * np.abs(s).max(-1, keepdims=True, initial=0))
    return (p @ v).swapaxes(0, 1), (wrong * (p @ abs(v))).swapaxes(0, 1)


def near(bias: np.ndarray | None, queries: Any, keys: int) -> Any:
    """The numbers of a table by distance for each pair: at key - query, or at the end that is nearer."""
    if bias is None:
        return 0
    most = bias.shape[1] // 2
    return bias.astype(np.float64)[:, np.clip(np.arange(keys) - np.asarray(queries)[:, None], -most, most) + most]


def attended(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, at: np.ndarray, rough: float = 0, bias: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Attention sequence by sequence; rough: what rounding q, k, p and v costs besides, of float32's own error 1."""
    most = max(each.shape[1] for each in (q, k, v))
    q, k, v = (each.astype(np.float64).repeat(most // each.shape[1], 1).swapaxes(0, 1) for each in (q, k, v))
    found = [
        softly(0.3 * q[:, a:b] @ k[:, a:b].swapaxes(1, 2) + near(bias, range(b - a), b - a), v[:, a:b])
        for a, b in pairwise(at)
        if a < b
    ]
    want, bound = (np.concatenate(each) for each in zip(*found, strict=True))
    if rough:
        bound = bound + rough * (1 + 0.3 * np.abs(q).max() * np.abs(k).max() * q.shape[2]) * np.abs(v).max()
    return want, bound


def pass_doors() -> Iterator[tuple[str, Door]]:
    from formats import Epilogue, kernels
    from formats.core.epilogue import gamma

    def alone(out: np.ndarray, x: np.ndarray, **given: np.ndarray) -> Any:
        return kernels.pointwise(x, out, after(given))

    def finished(x: np.ndarray, **given: np.ndarray) -> Any:
        return after(given).reference(x), after(given).bound(x, np.zeros(x.shape))

    for columns in (18, 35):
        yield (
            f"pointwise {columns}",
            Door(
                lambda rng, rows, c=columns: {"x": normal(rng, rows, c), **parts(rng, rows, c)},
                lambda x, **_: x.shape,
                alone,
                finished,
                ("x",),
            ),
        )
    for shape in (35,), (3, 5), ():
        yield (
            f"scale {len(shape) + 1} axes",
            Door(
                lambda rng, rows, shape=shape: {"x": normal(rng, rows, *shape)},
                lambda x: x.shape,
                lambda out, x: kernels.scale(x, 0.3, out),
                lambda x: (x * np.float32(0.3), 0),
                ("x",),
            ),
        )

    def summed(ids: np.ndarray, table: np.ndarray, few: np.ndarray) -> Any:
        one, two = table[ids].astype(np.float64), few[ids * 0]
        return one + two, gamma(2) * (abs(one) + abs(two))

    yield (
        "embed",
        Door(
            lambda rng, rows: {
                "ids": rng.integers(0, 9, rows),
                "table": normal(rng, 9, 35),
                "few": normal(rng, 3, 35).astype(np.float16),
            },
            lambda ids, **_: (len(ids), 35),
            lambda out, ids, table, few: kernels.embed([(ids, table), (ids * 0, few)], out),
            summed,
        ),
    )

    def turned(x: np.ndarray, at: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> Any:
        k = cos.shape[1]
        (a, b, rest), c, s = np.split(x.astype(np.float64), (k, 2 * k), -1), cos[at][:, None], sin[at][:, None]
        size = np.concatenate([abs(a * c) + abs(b * s), abs(a * s) + abs(b * c), 0 * rest], -1)
        return np.concatenate([a * c - b * s, a * s + b * c, rest], -1), gamma(2) * size

    for k, d in (10, 20), (18, 37):
        yield (
            f"rotate {k} {d}",
            Door(
                lambda rng, rows, k=k, d=d: {
                    "x": normal(rng, rows, 3, d),
                    "at": rng.integers(0, 9, rows),
                    "cos": normal(rng, 9, k),
                    "sin": normal(rng, 9, k),
                },
                lambda x, **_: x.shape,
                lambda out, x, at, cos, sin: kernels.rotate(x, at, cos, sin, out),
                turned,
                ("x",),
            ),
        )

    def normed(x: np.ndarray, gain: np.ndarray, shift: np.ndarray, norm: str) -> Any:
        own, each = Epilogue(eps=0.1, norm=norm, gain=gain, shift=shift), x.reshape(-1, x.shape[2])
        return own.reference(each).reshape(x.shape), own.bound(each, np.zeros(each.shape)).reshape(x.shape)

    for norm, d in ("rms", 20), ("layer", 35):
        yield (
            f"pointwise_heads {norm} {d}",
            Door(
                lambda rng, rows, d=d: {"x": normal(rng, rows, 3, d), "gain": normal(rng, d), "shift": normal(rng, d)},
                lambda x, **_: x.shape,
                lambda out, x, gain, shift, norm=norm: kernels.pointwise_heads(x, out, gain, shift, 0.1, norm),
                lambda norm=norm, **given: normed(norm=norm, **given),
                ("x",),
            ),
        )
    for last in (True, False):
        yield (
            f"rotate of {'last' if last else 'first'} rows",
            Door(
                lambda rng, _: {
                    "x": normal(rng, 4, 3, 20),
                    "at": rng.integers(0, 9, 9),
                    "cos": normal(rng, 9, 10),
                    "sin": normal(rng, 9, 10),
                    "starts": np.array([0, 3, 4, 5, 9]),
                },
                lambda x, **_: x.shape,
                lambda out, x, at, cos, sin, starts, last=last: kernels.rotate(x, at, cos, sin, out, starts, last),
                lambda x, at, cos, sin, starts, last=last: turned(
                    x, at[starts[1:] - 1 if last else starts[:-1]], cos, sin
                ),
                ("x",),
            ),
        )


def head_doors() -> Iterator[tuple[str, Door]]:
    from formats import Mask, kernels
    from formats.core.epilogue import gamma

    width = lambda v, q=None, **_: (len(v), max(4, v.shape[1]), v.shape[2])
    for name, rough in ("attention", 0), ("attention_halves", 2.0**-5):
        for many in (4, 4, 4), (4, 2, 1):
            yield (
                f"{name} {many}",
                Door(
                    lambda rng, rows, many=many: (
                        heads(rng, rows, **dict(zip("qkv", many, strict=True))) | {"starts": starts(rows)}
                    ),
                    width,
                    lambda out, q, k, v, starts, name=name: getattr(kernels, name)(q, k, v, starts, out, 0.3),
                    lambda q, k, v, starts, rough=rough: attended(q, k, v, starts, rough),
                ),
            )

        yield (
            f"{name} with a bias",
            Door(
                lambda rng, rows: (
                    heads(rng, rows, q=4, k=2, v=4) | {"starts": starts(rows), "bias": normal(rng, 4, 19)}
                ),
                width,
                lambda out, q, k, v, starts, bias, name=name: getattr(kernels, name)(
                    q, k, v, starts, out, 0.3, bias=bias
                ),
                lambda q, k, v, starts, bias, rough=rough: attended(q, k, v, starts, rough, bias),
            ),
        )

    def summed_states(q: np.ndarray, k: np.ndarray, v: np.ndarray, starts: np.ndarray, decays: np.ndarray) -> Any:
        """Sums of keys times values, and of the sizes of what is added up."""
        out, size = np.zeros((2, len(q), 4, v.shape[2])), 0.0
        wide = [np.repeat(x.astype(np.float64), 4 // x.shape[1], 1) for x in (q, k, v, decays)]
        for read, (q, k, v, decays) in zip(out, (wide, [*map(abs, wide)]), strict=True):
            for t in range(len(q)):
                size = 0.0 if t in starts else size * decays[t][:, :, None]
                size = size + k[t][:, :, None] * v[t][:, None]
                read[t] = np.einsum("hd,hde->he", q[t], size)
        return out[0], gamma(2 * len(q) + wide[0].shape[2]) * out[1]

    for many in (4, 4, 4, 1), (4, 2, 1, 4):
        yield (
            f"recurrent {many}",
            Door(
                lambda rng, rows, many=many: (
                    heads(rng, rows, **dict(zip("qkv", many[:3], strict=True)))
                    | {"starts": starts(rows), "decays": heads(rng, rows, q=many[3])["q"]}
                ),
                width,
                lambda out, q, k, v, starts, decays: kernels.recurrent(q, k, v, starts, out, decays),
                summed_states,
            ),
        )

    def left_states(k: np.ndarray, v: np.ndarray, starts: np.ndarray, decays: np.ndarray) -> Any:
        """The state behind each row, behind one of zeros, and the sizes of what is added up."""
        out = np.zeros((2, len(k) + 1, 4, k.shape[2] * v.shape[2]))
        wide = [x.astype(np.float64) for x in (k, v, decays)]
        for states, (k, v, decays) in zip(out, (wide, [*map(abs, wide)]), strict=True):
            state: Any = 0.0
            for t in range(len(k)):
                state = 0.0 if t in starts else state * decays[t][:, :, None]
                state = state + k[t][:, :, None] * v[t][:, None]
                states[t + 1] = state.reshape(4, -1)
        return out[0], gamma(2 * len(k)) * out[1]

    def leave(out: np.ndarray, k: np.ndarray, v: np.ndarray, starts: np.ndarray, decays: np.ndarray) -> None:
        """Write every state; the kernel leaves the first as it is, that of sequences that begin."""
        held = out, np.zeros(len(k), np.int64)
        kernels.leave_states(k, v, starts, held, np.arange(1, len(k) + 1), decays)
        out[0] = 0

    yield (
        "leave_states",
        Door(
            lambda rng, rows: (
                heads(rng, rows, k=4, v=4) | {"starts": starts(rows), "decays": heads(rng, rows, q=4)["q"]}
            ),
            lambda k, v, **_: (len(k) + 1, 4, k.shape[2] * v.shape[2]),
            leave,
            left_states,
        ),
    )

    def scored(q: np.ndarray, k: np.ndarray, bias: np.ndarray | None = None) -> Any:
        q, k = q.astype(np.float64).swapaxes(0, 1), k.astype(np.float64).swapaxes(0, 1)
        s, added = 0.3 * q @ k.swapaxes(1, 2), near(bias, range(q.shape[1]), k.shape[1])
        size = 0.3 * (abs(q) @ abs(k).swapaxes(1, 2)) + abs(added)
        return (s + added).ravel(), gamma(q.shape[2] + 4) * size.ravel()

    yield (
        "scores with a bias",
        Door(
            lambda rng, rows: heads(rng, rows, q=4, k=4) | {"bias": normal(rng, 4, 7)},
            lambda q, **_: (4 * len(q) ** 2,),
            lambda out, q, k, bias: kernels.scores(q, k, np.array([0, q.size // 80]), out, 0.3, bias),
            scored,
            flat=True,
        ),
    )
    yield (
        "scores",
        Door(
            lambda rng, rows: heads(rng, rows, q=4, k=4),
            lambda q, **_: (4 * len(q) ** 2,),
            lambda out, q, k: kernels.scores(q, k, np.array([0, q.size // 80]), out, 0.3),
            scored,
            flat=True,
        ),
    )

    def relatively_scored(q: np.ndarray, k: np.ndarray, ahead: np.ndarray, behind: np.ndarray) -> Any:
        """Scores, and the sums of the sizes of what is added up."""

        def by_distance(x: np.ndarray, table: np.ndarray) -> np.ndarray:
            at, n = np.arange(x.shape[1]), table.shape[2]
            return np.take_along_axis(x @ table, np.clip(at - at[:, None] + n // 2, 0, n - 1)[None].repeat(4, 0), 2)

        def summed(q: np.ndarray, k: np.ndarray, ahead: np.ndarray, behind: np.ndarray) -> np.ndarray:
            return q @ k.swapaxes(1, 2) + by_distance(q, ahead) + by_distance(k, behind).swapaxes(1, 2)

        operands = [x.astype(np.float64) for x in (q.swapaxes(0, 1), k.swapaxes(0, 1), ahead, behind)]
        return summed(*operands).ravel(), gamma(q.shape[2] + 4) * summed(*map(abs, operands)).ravel()

    yield (
        "relative_scores",
        Door(
            lambda rng, rows: (
                heads(rng, rows, q=4, k=4) | {name: normal(rng, 4, 20, 31) for name in ("ahead", "behind")}
            ),
            lambda q, **_: (4 * len(q) ** 2,),
            lambda out, q, k, ahead, behind: kernels.relative_scores(
                q, k, np.array([0, q.size // 80]), out, ahead, behind
            ),
            relatively_scored,
            flat=True,
        ),
    )

    def shared(x: np.ndarray) -> Any:
        s = x.astype(np.float64).reshape(4, -1, int((x.size // 4) ** 0.5))
        p, bound = softly(s, np.broadcast_to(np.eye(s.shape[-1]), (4, s.shape[-1], s.shape[-1])))
        return p.swapaxes(0, 1).ravel(), bound.swapaxes(0, 1).ravel()

    yield (
        "softmax",
        Door(
            lambda rng, rows: {"x": normal(rng, 4 * rows**2)},
            lambda x: x.shape,
            lambda out, x: kernels.softmax(x, np.array([0, int((x.size // 4) ** 0.5)]), 4, out),
            shared,
            ("x",),
            True,
        ),
    )

    def weighed(p: np.ndarray, v: np.ndarray) -> Any:
        s, v = p.astype(np.float64).reshape(4, len(v), len(v)), v.astype(np.float64).swapaxes(0, 1)
        return (s @ v).swapaxes(0, 1), (gamma(len(s[0]) + 2) * (abs(s) @ abs(v))).swapaxes(0, 1)

    yield (
        "values",
        Door(
            lambda rng, rows: {"p": normal(rng, 4 * rows**2), **heads(rng, rows, v=4)},
            width,
            lambda out, p, v: kernels.values(p, v, np.array([0, v.size // 96]), out),
            weighed,
        ),
    )

    def headwise(x: np.ndarray, w: np.ndarray) -> Any:
        x, w = x.astype(np.float64).swapaxes(0, 1), w.astype(np.float64)
        return (x @ w).swapaxes(0, 1), gamma(22) * (abs(x) @ abs(w)).swapaxes(0, 1)

    yield (
        "headwise",
        Door(
            lambda rng, rows: {"x": normal(rng, rows, 4, 20), "w": normal(rng, 4, 20, 9)},
            lambda x, w: (len(x), 4, 9),
            lambda out, x, w: kernels.headwise(x, w, out),
            headwise,
        ),
    )

    def masked(q: np.ndarray, k: np.ndarray, v: np.ndarray, **_: np.ndarray) -> Any:
        seen = Mask.window(len(q), 9, 16).unpack()
        q, k, v = (each.astype(np.float64).repeat(4 // each.shape[1], 1).swapaxes(0, 1) for each in (q, k, v))
        return softly(0.3 * q @ k.swapaxes(1, 2), v, seen)

    yield (
        "attention_blocks",
        Door(
            lambda rng, rows: heads(rng, rows, q=4, k=2, v=2) | Mask.window(rows, 9, 16).arrays(),
            width,
            lambda out, q, k, v, **mask: kernels.attention_blocks(q, k, v, *mask.values(), out, 16, 0.3),
            masked,
        ),
    )


def cache_doors() -> Iterator[tuple[str, Door]]:
    from formats import kernels
    from formats.kernels.attentions.chunks import PAGE

    def kept(x: np.ndarray, slots: np.ndarray) -> Any:
        return x[np.argsort(slots)].astype(np.float64), 0

    yield (
        "append",
        Door(
            lambda rng, rows: {"x": normal(rng, rows, 2, 20), "slots": rng.permutation(rows)},
            lambda x, **_: x.shape,
            lambda out, x, slots: kernels.append(x, slots, out),
            kept,
            exempt=(("out", "a row more"), ("slots", "rows all the same"), ("slots", "numbers all the same")),
        ),
    )

    def recalled(
        q: np.ndarray,
        k: np.ndarray,
        v: np.ndarray,
        slots: np.ndarray,
        before: np.ndarray,
        bias: np.ndarray | None = None,
    ) -> Any:
        k, v = (each.astype(np.float64).repeat(2, 1).swapaxes(0, 1) for each in (k, v))
        scores = 0.3 * q.astype(np.float64).swapaxes(0, 1) @ k.swapaxes(1, 2) + near(bias, slots, k.shape[1])
        return softly(scores, v, np.arange(k.shape[1]) <= slots[:, None])

    def cached(rng: np.random.Generator, rows: int) -> dict[str, np.ndarray]:
        """One sequence, whose pages follow one another."""
        pages = rows // PAGE + 1
        return {
            "q": normal(rng, rows, 4, 20),
            "k": normal(rng, pages * PAGE, 2, 20),
            "v": normal(rng, pages * PAGE, 2, 24),
            "slots": np.arange(rows),
            "before": np.arange(pages) - 1,
        }

    def few(rng: np.random.Generator, rows: int) -> dict[str, np.ndarray]:
        """The last rows of what are two sequences, or one; to a cache their rows follow one another."""
        starts = np.array([0, rows // 2, rows] if rows > 1 else [0, rows])
        return cached(rng, rows) | {"q": normal(rng, len(starts) - 1, 4, 20), "starts": starts}

    yield (
        "attention_cached of last rows",
        Door(
            few,
            lambda q, v, **_: (len(q), 4, v.shape[2]),
            lambda out, q, k, v, slots, before, starts: kernels.attention_cached(
                q, k, v, slots, before, out, 0.3, starts
            ),
            lambda q, k, v, slots, before, starts: recalled(q, k, v, slots[starts[1:] - 1], before),
        ),
    )
    yield (
        "attention_cached",
        Door(
            cached,
            lambda q, v, **_: (len(q), 4, v.shape[2]),
            lambda out, q, k, v, slots, before: kernels.attention_cached(q, k, v, slots, before, out, 0.3),
            recalled,
        ),
    )
    yield (
        "attention_cached with a bias",
        Door(
            lambda rng, rows: cached(rng, rows) | {"bias": normal(rng, 4, 19)},
            lambda q, v, **_: (len(q), 4, v.shape[2]),
            lambda out, q, k, v, slots, before, bias: kernels.attention_cached(
                q, k, v, slots, before, out, 0.3, bias=bias
            ),
            recalled,
        ),
    )


def space_doors() -> Iterator[tuple[str, Door]]:
    from formats import kernels
    from formats.core.epilogue import gamma

    def mean(x: np.ndarray, **_: np.ndarray) -> Any:
        return x.astype(np.float64).sum(0, keepdims=True) / max(1, len(x)), gamma(2) * abs(x).max(0, initial=0)

    yield (
        "pool_rows",
        Door(
            lambda rng, rows: {"x": normal(rng, rows, 35), "starts": np.array([0, rows])},
            lambda **_: (1, 35),
            lambda out, x, starts: kernels.pool_rows(x, starts, out, "mean"),
            mean,
        ),
    )

    yield (
        "hand_rows",
        Door(
            lambda rng, rows: {"x": normal(rng, rows, 35), "starts": np.arange(rows + 1)},
            lambda x, **_: x.shape,
            lambda out, x, starts: kernels.hand_rows(x, starts, out),
            lambda x, starts: (x.astype(np.float64), 0),
        ),
    )

    def linked(x: np.ndarray, starts: np.ndarray, at: np.ndarray, weights: np.ndarray) -> Any:
        every = weights.astype(np.float64)[:, None] * x[at]
        return (
            np.stack([each[a:b].sum(0) for each in (every, abs(every)) for a, b in pairwise(starts)]).reshape(
                2, len(starts) - 1, -1
            )
            * np.array([1, gamma(len(at) + 2)])[:, None, None]
        )

    yield (
        "link_rows",
        Door(
            lambda rng, rows: {
                "x": normal(rng, rows, 35),
                "starts": np.array([0, rows, rows, 2 * rows]),
                "at": rng.integers(0, max(rows, 1), 2 * rows),
                "weights": normal(rng, 2 * rows),
            },
            lambda **_: (3, 35),
            lambda out, x, starts, at, weights: kernels.link_rows(x, starts, at, weights, out, "sum"),
            linked,
        ),
    )

    def once(q: np.ndarray, k: np.ndarray, v: np.ndarray, starts: np.ndarray, bias: np.ndarray | None = None) -> Any:
        q, k, v = (each.astype(np.float64).repeat(4 // each.shape[1], 1).swapaxes(0, 1) for each in (q, k, v))
        return softly(0.3 * q @ k.swapaxes(1, 2) + near(bias, [k.shape[1] - 1], k.shape[1]), v)

    yield (
        "attend_once",
        Door(
            lambda rng, rows: heads(rng, 1, q=4) | heads(rng, rows, k=2, v=2) | {"starts": np.array([0, rows])},
            lambda **_: (1, 4, 24),
            lambda out, q, k, v, starts: kernels.attend_once(q, k, v, starts, out, 0.3),
            once,
        ),
    )
    yield (
        "attend_once with a bias",
        Door(
            lambda rng, rows: (
                heads(rng, 1, q=4)
                | heads(rng, rows, k=2, v=2)
                | {"starts": np.array([0, rows]), "bias": normal(rng, 1, 19)}
            ),
            lambda **_: (1, 4, 24),
            lambda out, q, k, v, starts, bias: kernels.attend_once(q, k, v, starts, out, 0.3, bias=bias),
            once,
        ),
    )


def routing_doors() -> Iterator[tuple[str, Door]]:
    """Rows that go to a few of five matrices, and what routers make of scores."""
    from formats import kernels
    from formats.core.epilogue import gamma

    shapes = dict(up=(5, 35, 18), beside=(5, 35, 18), down=(5, 18, 20))

    def operands(rng: np.random.Generator, rows: int) -> dict[str, np.ndarray]:
        gate = normal(rng, rows, 5)
        gate[np.argsort(gate, 1).argsort(1) > 1] = 0
        return {
            "x": normal(rng, rows, 35),
            "gate": gate,
            **{name: normal(rng, *shape) for name, shape in shapes.items()},
            "residual": normal(rng, rows, 20),
            "bias": normal(rng, 5, 18),
            "beside_bias": normal(rng, 5, 18),
        }

    def mixed(
        x: np.ndarray,
        gate: np.ndarray,
        up: np.ndarray,
        beside: np.ndarray,
        down: np.ndarray,
        residual: np.ndarray,
        bias: np.ndarray,
        beside_bias: np.ndarray,
    ) -> Any:
        def once(of: Callable[[np.ndarray], Any], act: Callable[[Any], Any]) -> Any:
            x_, gate_, up_, beside_, down_, bias_, more_ = (
                of(each.astype(np.float64)) for each in (x, gate, up, beside, down, bias, beside_bias)
            )
            hidden = [act(x_ @ up_[e] + bias_[e]) * act(x_ @ beside_[e] + more_[e]) for e in range(5)]
            return sum(gate_[:, [e]] * (hidden[e] @ down_[e]) for e in range(5))

        size = once(np.abs, lambda y: y)
        return once(lambda a: a, lambda y: np.maximum(y, 0)) + residual, gamma(80) * (size + abs(residual))

    yield (
        "experts",
        Door(
            operands,
            lambda x, **_: (len(x), 20),
            lambda out, x, gate, up, beside, down, residual, bias, beside_bias: kernels.experts(
                x, gate, up, down, out, beside, "relu", 2, residual, bias, beside_bias, "relu"
            ),
            mixed,
            exempt=(("gate", "rows that slide"),),
        ),
    )  # such rows name more than two

    def weighed(x: np.ndarray, by: np.ndarray, residual: np.ndarray) -> Any:
        terms = x.astype(np.float64) * by[:, :, None]
        return terms.sum(1) + residual, gamma(5) * (abs(terms).sum(1) + abs(residual))

    yield (
        "blend_heads",
        Door(
            lambda rng, rows: {
                "x": normal(rng, rows, 3, 20),
                "by": normal(rng, rows, 3),
                "residual": normal(rng, rows, 20),
            },
            lambda x, **_: (len(x), 20),
            lambda out, x, by, residual: kernels.blend_heads(x, by, out, residual),
            weighed,
        ),
    )

    def kept(x: np.ndarray, by: np.ndarray) -> Any:
        order = np.argsort(-by, -1, kind="stable")
        return np.where(order.argsort(-1) < 3, x, 0).astype(np.float64), 0

    yield (
        "gate_rows",
        Door(
            lambda rng, rows: {"x": normal(rng, rows, 3, 20), "by": normal(rng, rows, 3, 20)},
            lambda x, **_: x.shape,
            lambda out, x, by: kernels.gate_rows(x, out, by, 3),
            kept,
        ),
    )


@cache
def doors() -> dict[str, Door]:
    return dict(
        [
            *product_doors(),
            *column_doors(),
            *pass_doors(),
            *head_doors(),
            *cache_doors(),
            *space_doors(),
            *routing_doors(),
        ]
    )
