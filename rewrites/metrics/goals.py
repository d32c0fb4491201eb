"""Goals that a program has to keep, beside its memory: each a measure and a threshold. A figure of a program is
compared with that of the exact one, so an exact program keeps every goal."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from operator import sub, truediv
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from formats.core.errors import InputError, suggest_name
from opmatrix.inference.text import read_lines
from opmatrix.runtime.program import Program
from rewrites.metrics import pairs, perplexity
from rewrites.metrics.judgements import judged_goal
from rewrites.metrics.neighbours import CorpusFiles, CorpusGoal, nearest_goal, scores_goal
from rewrites.metrics.pairs import SentencePairs
from rewrites.metrics.reported import Named
from rewrites.workload.workload import divide_lines

ERROR = 0.02  # error allowed if no goal is passed
ANY = 0.4  # error allowed beside other goals
DROP = 0.3  # hundredths of a rank correlation that may be lost
BESIDE_CORPUS = CorpusFiles._fields[1:]
TOKENS = 4096  # tokens of a text that programs are judged by
JUDGED = "--corpus FILE --queries FILE --judgements TSV"
GOAL = re.compile(r"\s*(\w+)\s*(<=|>=)\s*(-?(?:\d+\.?\d*|\.\d+)(?:e-?\d{1,3})?)\s*([%x]?)\s*")


class Measure(NamedTuple):
    """A figure of a program, and the form of its threshold: `sign`, a number from `low` to `high`, `unit`. `against`
    computes the bounded value from the figures of a program and of the exact one. `figure` computes the figure of a
    program, by its name, from the data `read` from the file that the option `needs` names. `beside` adds the exact
    program's answers to the data, and `state` gives what is stated of a program from lines that chose none; its mean
    may be `moved` so far on another machine. The error needs no file: the search states it."""

    name: str
    sign: str
    unit: str
    low: float
    high: float
    example: str
    against: Callable[[float, float], float] = lambda found, exact: found
    title: str = ""
    needs: str = ""
    read: Callable[..., object] = lambda _: None
    figure: Callable[[str, Program, Any], float] | None = None
    beside: Callable[[CorpusGoal, Program], CorpusGoal] | None = None
    state: Callable[[CorpusGoal, Program], Mapping[str, float]] | None = None
    moved: float = 0.02


def over_corpus(example: str, title: str, read: Callable[[CorpusFiles], CorpusGoal]) -> Measure:
    """Return the measure of an agreement with the exact program over a corpus, a share."""
    return Measure(
        example.partition(">")[0],
        ">=",
        "",
        0.0,
        1.0,
        example=example,
        title=title,
        needs="--corpus FILE",
        read=read,
        figure=lambda name, program, data: data.chosen_by(program),
        beside=CorpusGoal.beside,
        state=CorpusGoal.stated,
    )


MEASURES = {
    measure.name: measure
    for measure in (
        Measure("error", "<=", "%", 0.0, 0.999, "error<=2%"),
        Measure(
            "spearman",
            ">=",
            "",
            -100.0,
            0.0,
            "spearman>=-0.3",
            sub,
            "Spearman x 100",
            "--pairs CSV",
            SentencePairs.read,
            lambda name, program, data: pairs.score_pairs(name, program, data).spearman,
        ),
        Measure(
            "perplexity",
            "<=",
            "x",
            1.0,
            100.0,
            "perplexity<=1.02x",
            truediv,
            "perplexity",
            "--text FILE",
            lambda file: "\n".join(divide_lines(read_lines(file)).state),
            lambda name, program, data: perplexity.of_text(name, program, data, "--text", TOKENS).perplexity,
        ),
        over_corpus("top10>=0.95", "top 10", nearest_goal),
        over_corpus("tau>=0.95", "tau", scores_goal),
        over_corpus("ndcg10>=-0.5", "nDCG@10 x 100", judged_goal)._replace(
            low=-100.0, high=0.0, needs=JUDGED, moved=0.2
        ),
    )
}

OVER_CORPUS = tuple(name for name, measure in MEASURES.items() if measure.beside is not None)


class Judged(Protocol):
    """A program as goals see it: the methods that are not exact, its stated error, its figures by measure."""

    @property
    def methods(self) -> Mapping[str, int]:
        """The number of uses of each method that is not exact."""

    @property
    def stated_error(self) -> float:
        """The error that the program states of itself."""

    @property
    def judged(self) -> Mapping[str, float]:
        """The figures of the program, by the name of the measure."""


@dataclass(frozen=True)
class Goal:
    """A measure, its threshold, and the data that its figures are measured on, with the files that it was read from."""

    measure: Measure
    threshold: float
    data: object = None
    file: Named | None = None
    queries: Named | None = None
    judgements: Named | None = None

    def __str__(self) -> str:
        percent = self.measure.unit == "%"
        shown = (100 if percent else 1) * self.threshold
        return f"{self.measure.name}{self.measure.sign}{shown:.6g}{self.measure.unit}"

    @classmethod
    def parsed(cls, text: str) -> "Goal":
        """Return the goal of a text such as perplexity<=1.02x. Raises InputError, which explains the form."""
        where, examples = f"--keep {text[:60]}", ", ".join(measure.example for measure in MEASURES.values())
        if (match := GOAL.fullmatch(text)) is None:
            raise InputError(f"{where}: a goal is a measure, <= or >=, and a number: {examples}")
        name, sign, number, unit = match.groups()
        if name not in MEASURES:
            raise InputError(
                f"{where}: no measure is called {name}; {suggest_name(name, MEASURES)}there are {', '.join(MEASURES)}"
            )
        measure = MEASURES[name]
        if sign != measure.sign:
            raise InputError(f"{where}: {name} takes {measure.sign}, such as {measure.example}")
        if unit != measure.unit and not (measure.unit == "%" and not unit):
            raise InputError(f"{where}: the number is written as in {measure.example}")
        threshold = Decimal(number).scaleb(-2 if unit == "%" else 0)  # float / 100 would be off by its last digit
        return cls(measure, float(threshold)).checked(where)

    def checked(self, where: str) -> "Goal":
        """Return the goal itself. Raises InputError for a threshold that every program keeps, or no program."""
        low, high = (str(replace(self, threshold=threshold)) for threshold in (self.measure.low, self.measure.high))
        if self.measure.low <= self.threshold <= self.measure.high:
            return self
        raise InputError(f"{where}: from {low} to {high}, such as {self.measure.example}")

    def read(self, files: str | Path | CorpusFiles) -> "Goal":
        """Return the goal with the data of its files."""
        corpus = files if isinstance(files, CorpusFiles) else CorpusFiles(files)
        file, queries, judgements = map(Named.of, corpus)
        return replace(self, data=self.measure.read(files), file=file, queries=queries, judgements=judgements)

    def figure(self, name: str, program: Program) -> float:
        """Return the figure of a program, on the goal's data."""
        assert self.measure.figure is not None
        return self.measure.figure(name, program, self.data)

    def beside(self, exact: Program) -> "Goal":
        """Return the goal with the exact program's answers in its data."""
        if self.measure.beside is None or not isinstance(self.data, CorpusGoal):
            return self
        return replace(self, data=self.measure.beside(self.data, exact))

    def figures(self, name: str, program: Program) -> dict[str, float]:
        """Return the figure of a program by its measure, and what is stated of it under longer names."""
        prefix, figures = self.measure.name, {self.measure.name: self.figure(name, program)}
        if self.measure.state is None or not isinstance(self.data, CorpusGoal):
            return figures
        stated = self.measure.state(self.data, program)
        return figures | {f"{prefix}: {key}": value for key, value in stated.items()}

    def stated(self, point: Judged) -> dict[str, float]:
        """Return what is stated of a point, by its name; empty for a measure that states nothing of other lines."""
        prefix = f"{self.measure.name}: "
        return {key.removeprefix(prefix): value for key, value in point.judged.items() if key.startswith(prefix)}

    def value(self, point: Judged, exact: Judged) -> float:
        """Return the value that the threshold bounds."""
        if self.measure.figure is None:
            return point.stated_error if point.methods else 0.0
        return self.measure.against(point.judged[self.measure.name], exact.judged[self.measure.name])

    def kept(self, point: Judged, exact: Judged) -> bool:
        """True if a program's figure is on the allowed side of the threshold."""
        value = self.value(point, exact)
        return value <= self.threshold if self.measure.sign == "<=" else value >= self.threshold

    def described(self, point: Judged, exact: Judged) -> dict[str, object]:
        """Return the goal as reports and certificates record it."""
        stated = self.stated(point)
        return {
            "goal": str(self),
            "value": self.value(point, exact),
            "kept": self.kept(point, exact),
            "of": self.file and self.file._asdict(),
            **{name: named._asdict() for name in BESIDE_CORPUS if (named := getattr(self, name))},
            **({"stated": stated} if stated else {}),
        }


def goals(
    keep: Sequence[str] = (),
    error: float | None = None,
    file: str | Path | None = None,
    drop: float | None = None,
    text: str | None = None,
    corpus: CorpusFiles | None = None,
) -> tuple[Goal, ...]:
    """Return the goals of texts and of the short forms: `error`, and `drop` hundredths of the rank correlation of the
    pairs in `file`. The error comes first: without a goal for it ERROR, or ANY beside other goals. Perplexity is
    measured on the lines of `text` that are not used to fit or choose, goals of neighbours and of ranks on `corpus`.
    Raises InputError for two goals of one measure, and for one without its data."""
    if error is not None and (isinstance(error, bool) or not isinstance(error, int | float)):
        raise InputError(f"error {error!r:.40}: give a number from 0 to 0.999, such as 0.02")
    if isinstance(keep, str):
        raise InputError(f'keep {keep!r:.40}: give several goals, such as ("error<=2%",)')
    asked = [] if error is None else [Goal(MEASURES["error"], error).checked(f"--error {error}")]
    if drop is not None:
        asked.append(Goal(MEASURES["spearman"], 0.0 - drop).checked(f"--drop {drop}"))
    asked += [Goal.parsed(goal_text) for goal_text in keep]
    by_measure = {goal.measure.name: goal for goal in reversed(asked)}
    for goal in asked:
        if goal is not (first := by_measure[goal.measure.name]):
            raise InputError(f"--keep {goal}: {first} is given, too: leave one out")
    if file is not None:
        by_measure.setdefault("spearman", Goal(MEASURES["spearman"], -DROP))
    files: Mapping[str, str | Path | CorpusFiles | None] = {
        "spearman": file,
        "perplexity": text,
        **dict.fromkeys(OVER_CORPUS, corpus),
    }
    if corpus is not None and not by_measure.keys() & {*OVER_CORPUS}:
        examples = ", ".join(MEASURES[name].example for name in OVER_CORPUS)
        raise InputError(f"--corpus {corpus.corpus}: no goal is measured on it: --keep with one of {examples}")
    for name in by_measure.keys() & files.keys():
        if (path := files[name]) is None:
            raise InputError(
                f"--keep {by_measure[name]}: it is measured on your data: give {by_measure[name].measure.needs}"
            )
        by_measure[name] = by_measure[name].read(path)
    error_goal = by_measure.pop("error", Goal(MEASURES["error"], ANY if by_measure else ERROR))
    return error_goal, *by_measure.values()
