"""The house keeps its shape: rooms that point one way, words with one meaning, docstrings that stand alone, types."""
import re

import measures
import pytest


def test_circles_of_imports():
    """Two at most, imports inside functions included."""
    assert len(found := measures.circles()) <= 2, found


def test_no_two_rooms_import_each_other():
    assert measures.mutual_rooms() == {}


def test_rooms_stand_in_the_order_that_the_page_gives():
    """Each room of `rewrites/` imports only from those above it on the page."""
    page = (measures.ROOT / "docs" / "architecture.md").read_text()
    tree = page.split("\nrewrites/ ")[1].split("```")[0]
    order = [f"rewrites.{name}" for name in re.findall(r"^  (\w+)/ ", tree, re.MULTILINE)]
    rooms = {measures.room(module) for module in measures.MODULES if module.startswith("rewrites.")}
    assert {room for room in rooms if "." in room.removeprefix("rewrites.")} == {"rewrites.laws.proving"}
    assert {room for room in rooms if measures.MODULES.get(room, measures.ROOT).name == "__init__.py"} == {
        *order, "rewrites.laws.proving"}
    assert not [(module, other) for module in measures.MODULES for other in measures.imported(module)
                if (own := measures.room(module)) in order and (its := measures.room(other)) in order
                and order.index(its) > order.index(own)]


def test_nobody_imports_the_command_line():
    assert measures.from_the_command_line() == []


def test_no_table_of_another_package_is_changed():
    assert measures.upward_changes() == []


@pytest.mark.parametrize("read, least, most", [(measures.defined, 3, 15), (measures.types, 2, 10)],
                         ids=["public names in three modules", "type names in two"])
def test_one_word_one_meaning(read, least, most):
    assert len(found := measures.listed(measures.homes(read), least)) <= most, "\n".join(found)


def test_docstrings_stand_alone():
    assert measures.opaque_docstrings() == []


def test_rooms_can_be_read_at_once():
    """Fifteen files at most, but for rooms of like things, a file each, which have an index."""
    assert [room for room in measures.full_rooms() if room.split()[0] not in measures.ALIKE] == []


def test_types_are_said():
    assert sum(measures.anys().values()) <= 900
    assert measures.relaxed_lines() <= 0.20


@pytest.mark.parametrize("source, wanted", [
    ("from formats.machine.prices import PRICES\nPRICES['x'] = 1", 1),
    ("from formats.machine import prices\nprices.PRICES |= {}", 1),
    ("from formats.machine.running import STARTUP\ndef f(): STARTUP.append(1)", 1),
    ("from rewrites.laws.law import LAWS\nLAWS['x'] = 1", 0), ("TABLE = {}\nTABLE['x'] = 1", 0)])
def test_a_change_of_another_package_is_seen(source, wanted, tmp_path, monkeypatch):
    path = tmp_path / "changing.py"
    path.write_text(source)
    monkeypatch.setattr(measures, "ROOT", tmp_path)
    monkeypatch.setitem(measures.MODULES, "rewrites.changing", path)
    assert len(measures.upward_changes(["rewrites.changing"])) == wanted
