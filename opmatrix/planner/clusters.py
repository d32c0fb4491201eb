"""Machines beside each other, as they were built somewhere: a data sheet with links or memory of their own."""
from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from formats.core.errors import InputError, suggest_name
from formats.machine.datasheets import Datasheet, load_bundled
from formats.network.links import check_links, read_links

CLUSTERS_FILE = Path(__file__).with_suffix(".json")


@cache
def load_clusters() -> dict[str, Datasheet]:
    """The clusters that come along, by name, each as the data sheet of one of its devices."""
    found: dict[str, Datasheet] = {}
    for name, said in json.loads(CLUSTERS_FILE.read_text("utf-8")).items():
        sheet = load_bundled()[said["machine"]]
        links: Any = said.get("links")
        own = read_links(links) if links else sheet.links
        check_links(name, own)
        source = f"{said['source']}; {said['topology']}; {sheet.source}"
        memory = tuple((level, size, rate) for level, size, rate in said.get("memory", sheet.memory))
        found[name] = replace(sheet, name=name, source=source, links=own, memory=memory)
    return found


def find_machine(name: str) -> Datasheet:
    """A machine or a cluster by name, in any case of letters. Raises InputError, which names those there are."""
    every = load_bundled() | load_clusters()
    for known, sheet in every.items():
        if known.lower() == name.lower(): return sheet
    raise InputError(f"machine {name!r}: there is no data sheet of it: {suggest_name(name, every)}there are "
                     f"{', '.join(every)}")
