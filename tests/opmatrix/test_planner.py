"""The planner: random lives never overlap; random programs give the right numbers in the space that was planned."""

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from programs import Writer

from formats import Dense
from opmatrix.algebra.batch.batch import Batch
from opmatrix.runtime.buffers.planner import Life, floor, place_buffers
from opmatrix.runtime.measure import peak
from opmatrix.runtime.program import Program

spans = st.tuples(st.integers(1, 40), st.integers(0, 30), st.integers(0, 12))
lives = st.lists(spans.map(lambda s: Life(64 * s[0], s[1], s[1] + s[2])), min_size=1, max_size=25)
SMALL, LARGE = Batch([[1, 2, 3], [4], list(range(5, 14))]), Batch([np.arange(n) % 20 for n in range(180, 320, 10)])


@given(lives, st.data())
def test_buffers_alive_together_lie_apart(lives, data):
    result = data.draw(st.integers(0, len(lives) - 1))
    plan = place_buffers(lives, result)
    at = list(zip(plan.offsets, lives, strict=True))
    assert plan.offsets[result] == 0 and plan.wall == lives[result].size
    assert all(low % 64 == 0 and low + life.size <= plan.end for low, life in at)
    assert not any(low < plan.wall < low + life.size for low, life in at), "a buffer crosses the end of the result"
    for i, (low, life) in enumerate(at):
        for low2, life2 in at[:i]:
            assert not life.meets(life2) or low + life.size <= low2 or low2 + life2.size <= low
    assert plan.end >= floor(lives)
    assert plan.times(3) == place_buffers([Life(3 * size, *when) for size, *when in lives], result)


def test_the_tightest_gap_is_taken():
    result, early, stays, brief = Life(64, 0, 9), Life(640, 0, 2), Life(512, 0, 5), Life(256, 0, 2)
    plan = place_buffers([result, early, stays, brief, Life(192, 0, 5), Life(128, 3, 5)], 0)
    assert plan.offsets[:5] == (0, 64, 704, 1216, 1472)
    assert plan.offsets[5] == 1216, "where brief was, not where early was"


@st.composite
def programs(draw):
    """A random program: passes, products, views and attention, each on any values made before."""
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    write, constants = Writer({}), {"E": Dense.pack(rng.standard_normal((20, 192)).astype(np.float32))}
    constants |= {name: rng.standard_normal((len(LARGE.tokens), 7)).astype(np.float32) for name in ("cos", "sin")}
    made = {write.step("embed", {"fields": "tokens"}, table0="E"): ("rows", 192)}
    of = lambda *wanted: [name for name, shape in made.items() if shape[0] in wanted]
    for _ in range(draw(st.integers(1, 12))):
        kinds = ["pointwise", "scale", "linear", "columns", "heads"]
        kinds += ["join", "attention", "scores", "rotate"] * bool(of("heads")) + ["softmax", "values"] * bool(
            of("scores")
        )
        match draw(st.sampled_from(kinds)):
            case "pointwise":
                x = draw(st.sampled_from(of("rows")))
                twin = draw(st.sampled_from([None, *(name for name in of("rows") if made[name] == made[x])]))
                attributes = {"eps": 0.5} | draw(st.sampled_from([{}, {"activation": "gelu"}]))
                made[write.step("pointwise", attributes, x=x, **({"residual": twin} if twin else {}))] = made[x]
            case "scale":
                x = draw(st.sampled_from(of("rows")))
                made[write.step("scale", {"factor": -0.7}, x=x)] = made[x]
            case "linear":
                x, p = draw(st.sampled_from(of("rows"))), draw(st.sampled_from([96, 192, 240]))
                key = f"w{made[x][1]}x{p}"
                constants[key] = Dense.pack((rng.standard_normal((made[x][1], p)) / 12).astype(np.float32))
                made[write.step("linear", {"eps": 0.5}, x=x, weight=key)] = "rows", p
            case "columns":
                x = draw(st.sampled_from(of("rows", "part")))
                lo, hi = draw(st.sampled_from([(0, 48), (made[x][1] - 48, made[x][1])]))
                made[write.step("columns", {"lo": lo, "hi": hi}, x=x)] = "part", hi - lo
            case "heads":
                x = draw(st.sampled_from(of("rows", "part")))
                made[write.step("heads", {"heads": 3}, x=x)] = "heads", made[x][1]
            case "join":
                x = draw(st.sampled_from(of("heads")))
                made[write.step("join", x=x)] = "part", made[x][1]
            case "attention":
                q, v = draw(st.sampled_from(of("heads"))), draw(st.sampled_from(of("heads")))
                made[write.step("attention", {"scale": 0.1}, q=q, k=q, v=v)] = "heads", made[v][1]
            case "rotate":
                x = draw(st.sampled_from(of("heads")))
                made[write.step("rotate", x=x, cos="cos", sin="sin")] = made[x]
            case "scores":
                q = draw(st.sampled_from(of("heads")))
                made[write.step("scores", {"scale": 0.1}, q=q, k=q)] = "scores", 3
            case "softmax":
                x = draw(st.sampled_from(of("scores")))
                p = write.step("softmax", x=x)
                made[p] = made[x]
            case "values":
                p = write.step("softmax", x=draw(st.sampled_from(of("scores"))))
                v = draw(st.sampled_from(of("heads")))
                made[p], made[write.step("values", p=p, v=v)] = ("scores", 3), ("heads", made[v][1])
    return Program(write.steps, constants, draw(st.sampled_from(of("rows", "part"))))


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(programs())
def test_random_programs(program):
    found, exact = program.run(SMALL), program.exact(SMALL)
    assert np.linalg.norm(found - exact) <= 1e-4 * np.linalg.norm(exact)
    assert np.array_equal(program.run(SMALL), found)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(programs())
def test_the_peak_is_the_planned_one(program):
    assert abs(peak(program, LARGE) / program.peak_bytes(LARGE) - 1) < 0.01
