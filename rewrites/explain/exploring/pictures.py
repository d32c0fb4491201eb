"""The program of a part as a picture: a box for each class that it computes, with the other members of the class."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from formats.core.errors import InputError
from formats.disk.files import replacing, writable
from opmatrix.display.boxes import Box, draw_boxes
from opmatrix.display.html import html_table
from opmatrix.display.tables import micro
from rewrites.explain.exploring.looked_at import MEMBER_COLUMNS, LookedAt, Member
from rewrites.extraction import Node

MOST_MEMBERS = 12  # members that an opened class shows


@dataclass(frozen=True, repr=False)
class GraphPicture:
    """An SVG, a text about its omissions, and a table of members for each class that it shows."""

    svg: str
    said: str
    folds: tuple[tuple[str, str], ...]

    def save(self, path: str | Path) -> Path:
        """Write the SVG, whole or not at all. Raises InputError for a name that does not end in .svg."""
        path = Path(path)
        if path.suffix != ".svg":
            raise InputError(f"{path}: a picture of a graph is an SVG: give a name in .svg")
        writable(path)
        with replacing(path) as out:
            out.write(self.svg.encode())
        return path

    def __str__(self) -> str:
        return self.said

    def __repr__(self) -> str:
        return f"<GraphPicture: {self.said.splitlines()[0]}; .save('graph.svg') writes it>"

    def _repr_svg_(self) -> str:
        return self.svg

    def _repr_html_(self) -> str:
        """Return the picture, and below it classes that open without a script."""
        folds = "".join(f"<details><summary>{escape(head)}</summary>{body}</details>" for head, body in self.folds)
        return f'<div>{self.svg}<p style="white-space:pre-line">{escape(self.said)}</p>{folds}</div>'


def draw_graph(view: LookedAt, opened: int | None, most: int, title: str) -> GraphPicture:
    """Draw at most `most` classes, the dearest, and the opened one whatever its price."""
    if most < 1:
        raise InputError(f"draw: {most} classes: at least 1")
    running = view.running
    if opened is not None and opened not in running:
        return draw_members(view, opened, title)
    price = {cls: view.price(node)[0] for cls, node in running.items()}
    dear = sorted(running, key=lambda cls: (cls != opened, cls != view.result, -price[cls]))[:most]
    shown, gone = set(dear), [cls for cls in running if cls not in dear]
    top = max(price.values(), default=0.0) or 1.0
    boxes = [made_box(view, cls, shown, price[cls] / top, cls == opened) for cls in running if cls in shown]
    total = sum(price.values())
    caption = f"{title}\n{len(boxes)} classes of the program; darker ones take more of {micro(total)} µs"
    if gone:
        caption += (
            f"\nleft out: {len(gone)} classes that take {micro(sum(price[cls] for cls in gone))} µs together: "
            f"draw(most={len(running)}) shows all, draw('c{gone[-1]}') opens one of them"
        )
    others = len(view.forest.members) - len(running)
    caption += f"\n{others} more classes, which the program does not compute, are in .classes"
    return GraphPicture(
        draw_boxes(boxes, title),
        caption,
        tuple((f"c{cls}: {view.say(cls)}", tell_members([*view.list_members(cls)])) for cls in running if cls in shown),
    )


def made_box(view: LookedAt, cls: int, shown: set[int], weight: float, opened: bool) -> Box:
    """Return the box of a class; an opened one has a line for each member."""
    node = view.running[cls]
    seconds, stored = view.price(node)
    kernels = len(view.calls.get(cls, ()))
    name = view.say_call(node.label)  # type: ignore[arg-type]
    kernel, counted = name.split("(")[0], f"c{cls}, {micro(seconds)} µs, the best of {kernels}"
    inside = tell_lines([*view.list_members(cls)]) if opened else [view.say(cls, 3)]
    below = tuple(child for child in node.children if isinstance(child, int) and child in shown)
    return Box(
        cls,
        (kernel, *inside, counted),
        weight,
        below,
        tuple(classes_behind(node, shown, view.running)),
        f"c{cls}: {name}\n{view.say(cls)}\n{1e6 * seconds:.2f} µs, {stored / 1e3:.1f} kB stored",
    )


def classes_behind(node: Node, shown: set[int], running: Mapping[int, Node]) -> list[int]:
    """Return the shown classes that lead to a node through classes that are not shown."""
    todo, reached = [child for child in node.children if isinstance(child, int) and child not in shown], list[int]()
    for child in todo:
        for below in running[child].children if child in running else ():
            if isinstance(below, int):
                if below in shown:
                    reached.append(below)
                elif below not in todo:
                    todo.append(below)
    return reached


def draw_members(view: LookedAt, cls: int, title: str) -> GraphPicture:
    """Draw a class that the program does not compute, alone."""
    listed = [*view.list_members(cls)]
    box = Box(cls, (f"c{cls}", *tell_lines(listed)), 0.0, (), (), view.say(cls))
    return GraphPicture(
        draw_boxes([box], title),
        f"{title}\nc{cls} is computed by no kernel of the program",
        ((f"c{cls}: {view.say(cls)}", tell_members(listed)),),
    )


def tell_lines(members: Sequence[Member]) -> list[str]:
    """Return members as lines of a box, with prices where they exist."""
    lines = [
        f"{'*' * member.chosen} {'' if member.seconds is None else f'{micro(member.seconds)} µs '}{member.text}".strip()
        for member in members[:MOST_MEMBERS]
    ]
    return lines + [f"and {len(members) - MOST_MEMBERS} more"] * (len(members) > MOST_MEMBERS)


def tell_members(members: Sequence[Member]) -> str:
    """Return members as a table."""
    return html_table(MEMBER_COLUMNS, [member.row for member in members])
