"""What shows itself in a notebook: figures that are its own, and nothing of a name that a browser would obey."""

from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pytest

import opmatrix as om
from formats import FORMATS
from opmatrix.display.boxes import Box, box_levels, draw_boxes
from opmatrix.display.front_plot import TICKS, front_plot, ticks
from opmatrix.display.shown import dense_mask, result_html
from opmatrix.display.tables import micro
from opmatrix.runtime.program import Program, Step
from rewrites.laws import EXACT_LAWS

EVIL = "<script>alert(1)</script>"


def test_a_program_shows_its_steps():
    """What each stores, with its format and bytes."""
    table = FORMATS["dense"].pack(np.ones((9, 4), np.float32))
    steps = [
        Step("embed", {"table0": "table"}, {"fields": "tokens"}, "x"),
        Step("pointwise", {"x": "x"}, {"activation": "relu"}, "y"),
    ]
    shown = Program(steps, {"table": table}, "y", {"model": EVIL})._repr_html_()
    assert "table0: dense 9×4" in shown and f"<td>{table.nbytes:,}</td>" in shown and "<script" not in shown


def test_a_law_shows_both_sides():
    for law in EXACT_LAWS:
        shown = law._repr_html_()
        assert (law.name in shown and "→" in shown) or "⇄" in shown
        assert ("fails with" in shown) == bool(law.without)


@pytest.mark.parametrize(
    "pattern, seen",
    [
        (om.causal, lambda q, k: k <= q),
        (om.window(2), lambda q, k: abs(q - k) <= 2),
        (om.causal & om.window(1), lambda q, k: (q >= k) & (q - k <= 1)),
    ],
)
def test_a_pattern_is_drawn(pattern, seen):
    """A dot for each key that a query sees."""
    q, k = np.indices((24, 24))
    assert np.array_equal(dense_mask(pattern, 24), seen(q, k))
    root = ElementTree.fromstring(pattern._repr_svg_())
    assert len(root[-1]) == seen(q, k).sum()


def test_what_else_shows_itself():
    packed = FORMATS["csr"].pack(np.eye(4, dtype=np.float32))
    assert packed._repr_html_() == f"<pre>{packed.show()}</pre>"
    assert "given with each batch" in om.relation("edges", "V", "V")._repr_html_()
    x = om.weight(np.ones((4, 4))) @ om.relu
    plan = om.partition(x, om.Mesh.of(), om.BatchSizes(2, 8), tokens=False)
    assert plan._repr_html_().startswith("<pre>") and str(plan).splitlines()[0][:20] in plan._repr_html_()


def point(name, seconds, size, error):
    return SimpleNamespace(
        name=name,
        predicted_s=seconds,
        measured_s=None,
        predicted_bytes=size,
        measured_bytes=None,
        predicted_error=error,
        measured_error=error,
    )


def test_a_front_is_drawn():
    """A diamond, a square and a disc; the ring is around the chosen one, whose row is bold."""
    exact, near = point("exact", 0.01, 9e6, 0.0), point(EVIL, 0.005, 4e6, 0.01)
    result = SimpleNamespace(model=EVIL, imported=point("imported", 0.02, 9e6, 0.0), points=[exact, near], chosen=1)
    shown = result_html(result)
    drawn = ElementTree.fromstring(front_plot(vars(result.imported), [vars(exact), vars(near)], 1))
    marks = [[each.tag.rpartition("}")[2] for each in group] for group in drawn if group.tag.endswith("}g")]
    assert marks == [["title", "path"], ["title", "rect", "text"], ["title", "circle", "circle", "text"]]
    assert "<script" not in shown and "* 1 " in shown and shown.count("font-weight:bold") == 1


@pytest.mark.parametrize("most", [1e-9, 0.037, 1.0, 61.9, 124, 5e6])
def test_lines_stand_at_round_numbers(most):
    found = ticks(most)
    assert 2 <= len(found) - 1 <= TICKS and found[0] == 0 and found[-1] <= most * 1.0000001
    assert {f"{each:.0e}"[0] for each in found[1:2]} <= set("125")


def test_boxes_stand_under_what_they_read():
    boxes = [
        Box("a", ("a",)),
        Box("b", ("b",)),
        Box("c", (EVIL,), 1.0, ("a", "b")),
        Box("d", ("d" * 99,), 0.5, ("c",), ("a",)),
    ]
    assert [[box.key for box in row] for row in box_levels(boxes)] == [["a", "b"], ["c"], ["d"]]
    root = ElementTree.fromstring(draw_boxes(boxes, EVIL))
    lines = [each.attrib for each in root if each.tag.endswith("}path")]
    assert len(lines) == 4 and sum("stroke-dasharray" in each for each in lines) == 1


@pytest.mark.parametrize("seconds, said", [(0.0, "0"), (1.5e-3, "1500.0"), (2.345e-6, "2.35"), (1e-9, "0.001")])
def test_microseconds(seconds, said):
    assert micro(seconds) == said
