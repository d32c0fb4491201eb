"""Goals as values: how they are written, what is refused, and that the answer keeps them."""

from types import SimpleNamespace

import ggufs
import pytest
import standin

from formats.core.errors import InputError
from opmatrix.inference.text import read_lines
from rewrites.metrics import perplexity
from rewrites.metrics.goals import ANY, ERROR, MEASURES, Goal, goals
from rewrites.report.choice import allowed, choose
from rewrites.run import optimize
from rewrites.workload.workload import divide_lines

LINES = [
    "the bird the cat 12",
    "the the fish the 1",
    "2 3 dog the end",
    "of the end the",
    "12 12 the the the cat",
    "a cat of the the 3",
]


@pytest.fixture
def pairs(tmp_path):
    (tmp_path / "pairs.csv").write_text("a,b,1\nc,d,2\n")
    return tmp_path / "pairs.csv"


@pytest.fixture
def lines(tmp_path):
    (tmp_path / "lines.txt").write_text("\n".join(LINES * 5))
    return tmp_path / "lines.txt"


@pytest.mark.parametrize(
    "text, name, threshold, said",
    [
        ("error<=2%", "error", 0.02, "error<=2%"),
        ("error <= 0.005", "error", 0.005, "error<=0.5%"),
        ("error<=0", "error", 0.0, "error<=0%"),
        ("spearman>=-0.3", "spearman", -0.3, "spearman>=-0.3"),
        (" spearman >= -.5 ", "spearman", -0.5, "spearman>=-0.5"),
        ("perplexity<=1.02x", "perplexity", 1.02, "perplexity<=1.02x"),
        ("perplexity<=1x", "perplexity", 1.0, "perplexity<=1x"),
    ],
)
def test_a_goal_is_a_measure_and_a_threshold(text, name, threshold, said):
    found = Goal.parsed(text)
    assert (found.measure.name, found.threshold, str(found)) == (name, pytest.approx(threshold, abs=1e-15), said)
    assert Goal.parsed(said) == found


@pytest.mark.parametrize("measure", MEASURES.values(), ids=MEASURES.keys())
def test_the_ends_of_what_may_be_asked_are_read_back(measure):
    """Certificates keep goals as they are said, and verify reads them again."""
    for end in (measure.low, measure.high):
        goal = Goal(measure, end)
        assert Goal.parsed(str(goal)) == goal


@pytest.mark.parametrize(
    "text, words",
    [
        ("", "a goal is a measure, <= or >=, and a number: error<=2%, spearman>=-0.3, perplexity<=1.02x"),
        ("error=2%", "a goal is"),
        ("error<=2%%", "a goal is"),
        ("error<=nan", "a goal is"),
        ("error<=2%;x", "a goal is"),
        ("perplexty<=1.02x", "no measure is called perplexty; did you mean perplexity"),
        ("speed<=2", "there are error, spearman, perplexity"),
        ("error>=2%", "error takes <=, such as error<=2%"),
        ("spearman<=-0.3", "takes >="),
        ("perplexity<=12", "written as in perplexity<=1.02x"),
        ("spearman>=-1%", "written as in spearman"),
        ("error<=2x", "written as in"),
        ("error<=100%", "from error<=0% to error<=99.9%"),
        ("error<=-1%", "from error"),
        ("spearman>=0.5", "from spearman>=-100 to spearman>=0"),
        ("perplexity<=0.98x", "from perplexity<=1x to perplexity<=100x"),
        ("perplexity<=1e9x", "a goal is|from perplexity"),
    ],
)
def test_what_is_no_goal_is_named_in_a_line(text, words):
    with pytest.raises(InputError, match=words) as found:
        Goal.parsed(text)
    assert str(found.value).startswith(f"--keep {text}:") and "\n" not in str(found.value)


@pytest.mark.parametrize(
    "keep, error, said",
    [
        ((), None, [f"error<={100 * ERROR:g}%"]),
        ((), 0.1, ["error<=10%"]),
        (("error<=10%",), None, ["error<=10%"]),
        (("spearman>=-1",), None, [f"error<={100 * ANY:g}%", "spearman>=-1"]),
        (("spearman>=-1",), 0.1, ["error<=10%", "spearman>=-1"]),
        (("perplexity<=1.1x", "error<=10%"), None, ["error<=10%", "perplexity<=1.1x"]),
    ],
)
def test_the_error_comes_first_and_gives_way_to_other_goals(pairs, lines, keep, error, said):
    assert [*map(str, goals(keep, error, pairs if "spearman" in "".join(keep) else None, text=str(lines)))] == said


def test_pairs_alone_ask_for_their_ranking(pairs):
    assert [*map(str, goals(file=pairs))] == [f"error<={100 * ANY:g}%", "spearman>=-0.3"]
    assert [*map(str, goals(file=pairs, drop=0.0))] == [f"error<={100 * ANY:g}%", "spearman>=0"]


@pytest.mark.parametrize(
    "asked, words",
    [
        (dict(error="2%"), "error '2%': give a number"),
        (dict(error=True), "True"),
        (dict(keep="error<=2%"), "keep 'error<=2%': give several goals"),
    ],
)
def test_words_in_place_of_numbers_and_of_goals(asked, words):
    with pytest.raises(InputError, match=words):
        goals(**asked)


@pytest.mark.parametrize(
    "options, words",
    [
        ({"keep": ["spearman>=-1"]}, "--keep spearman>=-1: .* give --pairs CSV"),
        ({"drop": 1.0}, "--keep spearman>=-1: .* --pairs"),
        ({"keep": ["perplexity<=1.1x"]}, "give --text FILE"),
        ({"keep": ["error<=1%", "error<=2%"]}, "--keep error<=2%: error<=1% is given, too: leave one out"),
        ({"keep": ["error<=1%"], "error": 0.02}, "error<=1%: error<=2% is given, too"),
        ({"error": 1.0}, "--error 1.0: from error<=0%"),
        ({"error": float("nan")}, "--error nan"),
        ({"drop": -1.0}, "--drop -1.0: from spearman"),
    ],
)
def test_goals_that_cannot_be_kept_together(options, words):
    with pytest.raises(InputError, match=words):
        goals(**options)


def point(error=0.0, methods=(), **judged):
    return SimpleNamespace(stated_error=error, methods=methods, judged=judged)


@pytest.mark.parametrize(
    "text, found, exact, kept",
    [
        ("error<=2%", point(0.02, ["int8"]), point(), True),
        ("error<=2%", point(0.021, ["int8"]), point(), False),
        ("error<=0%", point(1e-7), point(), True),  # rounding is none that methods bring about
        ("spearman>=-0.3", point(spearman=81.75), point(spearman=82.0), True),
        ("spearman>=-0.3", point(spearman=81.6), point(spearman=82.0), False),
        ("perplexity<=1.02x", point(perplexity=10.1), point(perplexity=10.0), True),
        ("perplexity<=1.02x", point(perplexity=10.3), point(perplexity=10.0), False),
    ],
)
def test_figures_are_compared_with_those_of_the_exact_program(text, found, exact, kept):
    assert Goal.parsed(text).kept(found, exact) is kept


@pytest.mark.deep
def test_the_answer_keeps_the_perplexity(tmp_path, lines, laws_known):
    """Of lines that nothing was fitted to or chosen by; the certificate says so, and a program that foresees them worse
    is no answer."""
    model = str(ggufs.write(tmp_path / "small.gguf") or tmp_path / "small.gguf")
    found = optimize(
        model,
        keep=["perplexity<=2x"],
        text=str(lines),
        tokens=8,
        output="rows",
        machine=standin.machine(),
        rounds=1,
        leave_out=standin.EVERY_LAW,
    )
    exact, others = found.points[0], found.points[1:]
    held_out = "\n".join(divide_lines(read_lines(lines)).state)
    assert others and exact.judged["perplexity"] == perplexity.of_text("", exact.program, held_out, "").perplexity
    assert all(
        each.judged["perplexity"] == perplexity.of_text("", each.program, held_out, "").perplexity for each in others
    )
    ratios = [each.judged["perplexity"] / exact.judged["perplexity"] for each in found.points]
    assert found.best is choose([each for each, ratio in zip(found.points, ratios, strict=True) if ratio <= 2])
    bar = sorted(ratios)[len(ratios) // 2]
    asked = (Goal.parsed(f"error<={100 * ANY}%"), Goal(found.goals[1].measure, bar))
    assert (
        allowed(found.points, asked, None)
        == [each for each, ratio in zip(found.points, ratios, strict=True) if ratio <= bar]
        != found.points
    )
    assert [each.program.meta["certificate"]["verified"]["goals"][1]["value"] for each in found.points] == ratios


def test_a_perplexity_needs_every_token_s_scores(tmp_path, lines):
    ggufs.write(tmp_path / "small.gguf")
    with pytest.raises(InputError, match="--output rows"):
        optimize(
            str(tmp_path / "small.gguf"), keep=["perplexity<=2x"], text=str(lines), tokens=8, machine=standin.machine()
        )
