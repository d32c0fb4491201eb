"""A workload of several batches with shares: what is predicted, chosen, measured and reported is their mean."""

import json

import numpy as np
import pytest
import standin
from searched import RAGGED, Round, model, structure
from test_joining import model as gated

from formats.core.errors import InputError
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.batch.extents import counted, patterns
from opmatrix.runtime import measure
from rewrites import run
from rewrites.laws import EXACT_LAWS
from rewrites.lowering.mixed import Mean, format_lengths, lengths, parse_mix, priced
from rewrites.lowering.price import Prices
from rewrites.metrics.reported import Reported
from rewrites.report.results import printed, save
from rewrites.search.search import search
from rewrites.workload.workload import Workload, of_shares

SHORT, LONG = counted([2]), counted([60, 40])


class Dear(Round):
    """A machine on which a call of a product takes as long as five passes, and passes over many rows are dear."""

    def seconds(self, kernel, **size):
        passing = 1e-8 * size["T"] * size["p"] if kernel.startswith("pointwise") else 0
        return 1e-5 * kernel.startswith("linear.") + passing + super().seconds(kernel, **size)


def test_the_price_of_a_program_is_the_mean_by_shares():
    """The import is one program, whatever it is priced for."""
    one, other = (search(model(), (), Round(), each, fusion=False).time for each in (SHORT, LONG))
    for share in (0.25, 0.9):
        found = search(model(), (), Round(), [(share, SHORT), (1 - share, LONG)], fusion=False)
        assert found.time == pytest.approx(share * one + (1 - share) * other, rel=1e-12)
    assert search(model(), EXACT_LAWS, Round(), [(1.0, RAGGED.extents())]).time == structure(model()).time


def test_what_is_found_depends_on_the_shares(rng):
    """A gate is joined with what it multiplies where calls count, and not where rows do; between, the cheaper mean
    wins."""
    operator = gated(rng, norms=False)
    short, long = (counted(each, patterns(operator)) for each in ([2], [60, 40]))

    def joined(extents):
        return sum(
            step.kernel == "linear" for step in search(operator, EXACT_LAWS, Dear(), extents).program({})[0].steps
        )

    few, many = joined(short), joined(long)
    assert few < many
    assert joined([(1 - 1e-6, short), (1e-6, long)]) == few and joined([(1e-3, short), (1 - 1e-3, long)]) == many


def test_each_batch_is_priced_where_it_runs():
    machines = [Dear(), Round()]
    found = priced(machines, [(0.5, SHORT), (0.5, LONG)])
    assert isinstance(found, Mean) and [each.machine for _, each in found.parts] == machines and found.extents == LONG
    one, other = (Prices(*each).linear("dense", 4, 4) for each in zip(machines, (SHORT, LONG), strict=True))
    assert found.linear("dense", 4, 4) == (one + other) / 2 and one > other


def test_seconds_are_weighed_by_shares(monkeypatch):
    monkeypatch.setattr(measure, "seconds", lambda call, batch: call(batch))
    batches = [Batch([[1]]), Batch([[1, 2, 3]])]
    taken = measure.measure({"rows": lambda batch: float(batch.rows)}, batches, 2, 0, shares=[0.75, 0.25])
    assert taken == {"rows": [1.5, 1.5]} and measure.measure(
        {"rows": lambda batch: float(batch.rows)}, batches, 1, 0
    ) == {"rows": [4.0]}


@pytest.mark.deep
def test_a_workload_of_shares_is_optimized_and_kept(tmp_path, laws_known):
    found = run.optimize(
        model(),
        workload=[(0.75, "1x3"), (0.25, Batch([[1, 2, 3], [4, 5]]))],
        machine=standin.machine(),
        rounds=2,
        leave_out=standin.EVERY_LAW,
    )
    workload = found.workload
    assert [(share, np.diff(batch.starts).tolist()) for share, batch in workload.shares] == [
        (0.75, [3]),
        (0.25, [3, 2]),
    ]
    assert workload.timed is workload.shares[1][1] and workload.name == "75 % 1x3, 25 % 1x3+1x2 (sentences x tokens)"
    apart = [search(model(), (), standin.machine(), batch.extents(), fusion=False).time for _, batch in workload.shares]
    assert found.structures["imported"].time == pytest.approx(np.dot([0.75, 0.25], apart), rel=1e-12)
    assert "75 % 1x3" in printed(save(found, tmp_path / "out"), tmp_path / "out")
    report = Reported.read(tmp_path / "out" / "report.json")
    assert report.mix == ((0.75, "1x3"), (0.25, "1x3+1x2"))
    again = Workload.drawn(model(), report.mix)
    assert [batch.starts.tolist() for _, batch in again.shares] == [
        batch.starts.tolist() for _, batch in workload.shares
    ]
    whole = json.loads((tmp_path / "out" / "report.json").read_text())
    for wrong in ([], [[0.5, "1x3"]], [["all", "1x3"]], [[1, "x"]], [[1, 2]], "1x3", [[1.0, "1x3", 2]]):
        (tmp_path / "report.json").write_text(json.dumps(whole | {"mix": wrong}))
        with pytest.raises(InputError, match="mix"):
            Reported.read(tmp_path / "report.json")


@pytest.mark.parametrize(
    "mix, words",
    [
        ([], r"workload: it is empty: give shares that add to 1"),
        ([(0.5, "1x3")], r"workload: shares 0\.5 add to 0\.5, and must add to 1"),
        ([(0.5, "1x3"), (0.6, "1x4")], r"shares 0\.5, 0\.6 add to 1\.1"),
        ([(0, "1x3"), (1, "1x4")], r"the share of 1x3 is 0: it must be a number above 0"),
        ([(-0.5, "1x3"), (1.5, "1x4")], r"the share of 1x3 is -0\.5"),
        ([(float("nan"), "1x3")], r"the share of 1x3 is nan"),
        ([("half", "1x3")], r"the share of 1x3 is 'half'"),
        ([(True, "1x3")], r"the share of 1x3 is True"),
        (["1x3"], r"it is not a list of shares"),
        ([1.0], r"it is not a list of shares"),
        ({"1x3": 1.0}, r"it is not a list of shares"),
        ([(1.0, "0x3")], r"'0x3' is not a batch: write COUNTxTOKENS"),
        ([(1.0, "3")], r"'3' is not a batch"),
        ([(1.0, 3)], r"3 is not a batch"),
        ([(1.0, "999999x999999")], r"tokens; a batch that is timed may have"),
        (
            [(1.0, Batch([[1]], relations={"edges": np.eye(1)}))],
            r"a batch with relations or matrices of its own has no share",
        ),
    ],
    ids=lambda each: str(each)[:30],
)
def test_what_is_no_workload_is_said_in_a_line(mix, words):
    with pytest.raises(InputError, match=words) as found:
        run.optimize(model(), workload=mix, machine=standin.machine())
    assert "\n" not in str(found.value)


def test_shares_of_the_command_line(tmp_path, monkeypatch):
    assert (
        parse_mix("0.7:1x16,0.3:8x128+2x4") == [(0.7, "1x16"), (0.3, "8x128+2x4")]
        and parse_mix("texts.txt") == "texts.txt"
    )
    for text, words in (
        ("0.7:1x16", "0.7:1x16: shares 0.7 add to 0.7"),
        ("0.7:1x16,0.4:8x128", "0.7:1x16,0.4:8x128: shares 0.7, 0.4 add to 1.1"),
        ("1:eight", "part 1, '1:eight': 'eight' is not a batch"),
        ("1:1x3,", "part 2, '': '' is not a share"),
        ("0.5:1x2,0.5.5:1x3", "part 2, '0.5.5:1x3': '0.5.5' is not a share"),
        ("0.5:1x2,half:1x3", "part 2, 'half:1x3': 'half' is not a share"),
        ("half:1x2,0.5:1x3", "part 1, 'half:1x2': 'half' is not a share"),
        ("nan:1x2", "part 1, 'nan:1x2': the share of 1x2 is nan"),
        ("0.5:1x2,-0.5:1x3,1:1x4", "part 2, '-0.5:1x3': the share of 1x3 is -0.5"),
        ("0,7:1x16", "part 1, '0': '' is not a batch"),
        ("0.5:1x2,0.5:0x3", "part 2, '0.5:0x3': '0x3' is not a batch"),
    ):
        with pytest.raises(InputError) as error:
            parse_mix(text)
        assert str(error.value).startswith(f"--workload {text}: ") and words in str(error.value)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "1:1x3").write_text("the river")
    assert parse_mix("1:1x3") == "1:1x3", "a file is a file"


@pytest.mark.parametrize("each", [[3], [3, 3, 2], [1, 2, 1]])
def test_lengths_are_kept_as_a_word(each):
    assert lengths(format_lengths(Batch([[0] * length for length in each]))) == each


def test_a_length_beyond_the_model_is_said():
    with pytest.raises(InputError, match="a sentence of 12 tokens: bert takes 1 to 8 tokens"):
        of_shares([(1.0, "1x12")], 8, "bert", np.arange(3))
