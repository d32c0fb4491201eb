"""What benchmarks/paired.py finds out about a program on a workload, as lines of a table and of a file."""

from dataclasses import dataclass, field
from statistics import median

from lib.pairing import LOUD, ROOM, interval, verdict

from opmatrix.display.tables import table

COLUMNS = (
    "model",
    "program",
    "workload",
    "quantity",
    "first",
    "second",
    "ratio",
    "low",
    "high",
    "verdict",
    "bits",
    "saved",
    "others",
    "stolen",
)
HEADER = "", "ratio", "95 %", "", "bits", "saved", "others"
EQUAL, REFUSED = "equal", "refused: "
UNITS = {"seconds": (1e3, "ms"), "first": (1e3, "ms"), "resident": (1e-6, "MB")}
ABSENT = "absent"


@dataclass
class Row:
    """A program on a workload. `taken` has, of each pair of processes, the figures of both sides in every round; `bits`
    says whether results have the same bits, `saved` whether those of the first tree's program have them when the second
    runs it; `shares` of the processors' time others took, and the host gave to other machines."""

    model: str
    program: str
    workload: str
    quantity: str = "seconds"
    taken: list = field(default_factory=list)
    bits: str = ""
    saved: str = ""
    shares: tuple | None = None

    @property
    def name(self):
        said = self.model, self.program, self.workload, "" if self.quantity == "seconds" else self.quantity
        return " ".join(filter(None, said))

    @property
    def raced(self):
        return bool(self.taken)

    @property
    def middles(self):
        """The median figure of each side."""
        return [median(side) for side in zip(*(round for rounds in self.taken for round in rounds), strict=True)]

    @property
    def found(self):
        return interval(self.taken) if self.raced else ()

    @property
    def verdict(self):
        return verdict(*self.found[1:]) if self.raced else ABSENT

    @property
    def changed(self):
        """What is not the same, in words; nothing where all is."""
        said = [self.verdict] * (self.verdict in ("slower", "faster", ABSENT))
        said += [f"bits: {self.bits}"] * (self.bits not in ("", EQUAL))
        return said + [f"saved: {self.saved}"] * (self.saved not in ("", EQUAL) and not self.saved.startswith(REFUSED))

    def cells(self):
        scale, unit = UNITS[self.quantity]
        ratio, between = (f"{self.found[0]:.3f}", "{1:.3f} to {2:.3f}".format(*self.found)) if self.raced else ("", "")
        others = "" if self.shares is None else f"{100 * sum(self.shares):.0f} %"
        middles = [f"{scale * middle:.2f}" for middle in self.middles] or ["", ""]
        return [self.name, *middles, unit, ratio, between, self.verdict, self.bits, self.saved, others]

    def csv(self):
        return [
            self.model,
            self.program,
            self.workload,
            self.quantity,
            *(self.middles or [""] * 2),
            *(self.found or [""] * 3),
            self.verdict,
            self.bits,
            self.saved,
            *(self.shares or [""] * 2),
        ]


def told(rows, first, second):
    """The table, what disturbed it, and what is not the same; whether anything is not."""
    said = [table([row.cells() for row in rows], ["", first, second, *HEADER])]
    if loud := sum(bool(row.shares) and sum(row.shares) > LOUD for row in rows):
        said += [f"others took over {100 * LOUD:.0f} % of the processors' time in {loud} of {len(rows)} rows"]
    if wide := [row.name for row in rows if row.verdict == "wide"]:
        said += [f"wide, so that little is shown: {', '.join(wide)}: more rounds, --patience, or a quieter time"]
    changed = [f"NOT THE SAME  {row.name}: {', '.join(row.changed)}" for row in rows if row.changed]
    equal = (
        f"no change: equal bits and narrow intervals that reach into 1.00 ± {ROOM} in {len(rows) - len(wide)} of "
        f"{len(rows)} rows"
    )
    said += ["\n".join(changed) or equal]
    return "\n\n".join(said), bool(changed)
