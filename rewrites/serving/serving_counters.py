"""Counters of a server, in memory that its processes share, and their text for Prometheus."""

import mmap
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

METRIC_PREFIX = "opmatrix_"


class Series(NamedTuple):
    """A number that is counted: its kind for Prometheus and its help."""

    kind: str
    help: str


SERIES: Mapping[str, Series] = {
    "answered_total": Series("counter", "requests that were answered"),
    "refused_total": Series("counter", "requests that were refused, by a status below 500"),
    "failed_total": Series("counter", "requests that failed, by a status of 500 or more"),
    "request_seconds_total": Series("counter", "seconds of these requests, each from its head to its reply"),
    "open_requests": Series("gauge", "requests that are read, wait, or are computed"),
    "waiting_texts": Series("gauge", "texts that wait, or are computed"),
    "batches_total": Series("counter", "batches and steps that programs ran"),
    "texts_total": Series("counter", "texts that programs ran, and replies that ended"),
    "tokens_total": Series("counter", "tokens that programs ran"),
    "busy_seconds_total": Series("counter", "seconds that programs ran"),
}
SERIES_COLUMNS = {name: column for column, name in enumerate(SERIES)}


class ServingCounters:
    """Numbers of SERIES for each of the processes, in shared memory. A process writes its row; totals are sums of all
    rows. A process that takes the place of another goes on with its row."""

    def __init__(self, processes: int = 1) -> None:
        memory = mmap.mmap(-1, processes * len(SERIES) * np.dtype(np.float64).itemsize)
        self.rows = np.frombuffer(memory, np.float64).reshape(processes, len(SERIES))
        self.row = self.rows[0]

    def take_row(self, process: int) -> None:
        """Count in the row of a process from now on; none of its requests is open yet."""
        self.row = self.rows[process]
        for name, series in SERIES.items():
            if series.kind == "gauge":
                self.set(name, 0)

    def add(self, name: str, amount: float) -> None:
        """Add to a number."""
        self.row[SERIES_COLUMNS[name]] += amount

    def set(self, name: str, amount: float) -> None:
        """Set a number of this process."""
        self.row[SERIES_COLUMNS[name]] = amount

    def total(self, name: str) -> float:
        """Return a number, summed over processes."""
        return float(self.rows[:, SERIES_COLUMNS[name]].sum())

    def text(self) -> str:
        """Return all numbers as Prometheus reads them (text format 0.0.4)."""
        lines: list[str] = []
        for name, series in SERIES.items():
            lines.append(f"# HELP {METRIC_PREFIX}{name} {series.help}")
            lines.append(f"# TYPE {METRIC_PREFIX}{name} {series.kind}")
            lines.append(f"{METRIC_PREFIX}{name} {self.total(name):.12g}")
        return "\n".join([*lines, ""])
