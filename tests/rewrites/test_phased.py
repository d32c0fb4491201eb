"""A workload of generated text: what is asked, what it is priced at, what sessions are timed for, what reports show."""

import json

import checkpoints
import numpy as np
import pytest
import standin
from searched import Round, relative
from searched import model as encoder
from speakers import BYTES, LLAMA, llama
from test_narrowing import Narrow

from formats.core.errors import InputError
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.batch.extents import S, T, pairs
from opmatrix.algebra.data import Data
from opmatrix.algebra.operators import pick, weight
from opmatrix.algebra.positions.patterns import parse
from opmatrix.files.checkpoint import open_model
from opmatrix.models import build, tensors
from opmatrix.runtime.scheme import Running
from rewrites import run
from rewrites.laws import EXACT_LAWS
from rewrites.lowering.mixed import parse_mix, priced
from rewrites.lowering.narrowing import held_narrow, most_held
from rewrites.lowering.phased import NEW_SCORES, Generation, later_step, prefill
from rewrites.metrics.reported import Reported
from rewrites.opened import Opened, search_exact
from rewrites.report.generated import find_generated, list_contexts
from rewrites.report.results import printed, save
from rewrites.run import find_front, propose_approximations
from rewrites.search.search import search
from rewrites.workload.decoded import Decoding, decoder_of, measure_requests, measured_peak, planned_peak, predict_step
from rewrites.workload.resolve import open_arguments
from rewrites.workload.workload import Workload, draw_workload

CAUSAL = parse("sequence & causal")
ASKED = Generation(6, 4, 2)


@pytest.fixture(scope="module")
def speaker():
    """The operator of a random LLaMA of one layer that scores the last token's successors."""
    rng, config = np.random.default_rng(3), LLAMA | dict(num_hidden_layers=1)
    numbers = {name: rng.normal(size=shape).astype(np.float32) for name, shape in tensors(config).items()}
    top = rng.normal(size=(24, 50)).astype(np.float32)
    return build(config, lambda name, *shape: Data(numbers[name], name)) @ pick("last") @ weight(Data(top, "top"))


@pytest.fixture(scope="module")
def found(speaker, tmp_path_factory):
    """What a run for a request comes to, and what it saves of that."""
    with pytest.MonkeyPatch.context() as patch:
        standin.know_laws(patch)
        result = run.optimize(speaker, workload=str(ASKED), machine=standin.machine(), rounds=2, error=0)
    target = tmp_path_factory.mktemp("phased") / "out"
    return result, printed(save(result, target), target), target / "report.json"


# ---- what is asked


def test_a_request_is_a_word():
    assert parse_mix("generate:512+128") == Generation(512, 128) == Generation(512, 128, 1)
    for each in (Generation(512, 128), Generation(1, 1, 8)):
        assert parse_mix(str(each)) == each
    assert (ASKED.length, ASKED.context, ASKED.prompts) == (10, 8, [6, 6])


@pytest.mark.parametrize(
    "text, words",
    [
        ("generate:0+5", "prompt 0: give 1 or more"),
        ("generate:5+0", "answer 0"),
        ("generate:5+5x0", "sequences 0"),
        ("generate:5", "it is not a workload of generated text: write generate:PROMPT+ANSWER"),
        ("generate:", "write generate:PROMPT"),
        ("generate:-1+5", "write generate:PROMPT"),
        ("generate:5+5x", "write generate:PROMPT"),
        ("generate:a+b", "write generate:PROMPT"),
        ("generate:999999999+1x9", "tokens in all; a workload may have"),
    ],
)
def test_what_is_no_request_is_said_in_a_line(text, words):
    with pytest.raises(InputError) as error:
        parse_mix(text)
    assert str(error.value).startswith(f"--workload {text}") and words in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_of_that_name_is_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "generate:5").write_text("the river")
    assert parse_mix("generate:5") == "generate:5"


def test_a_model_that_generates_no_text_is_refused(tmp_path):
    place = str(checkpoints.write(tmp_path / "bert"))
    with pytest.raises(InputError, match=r"workload generate:5\+3: bert is not a language model"):
        open_arguments(place, "generate:5+3", None, None)
    with pytest.raises(InputError, match="it reads other rows"):
        draw_workload(Generation(5, 3), encoder())
    limit = open_model(BYTES).positions
    with pytest.raises(InputError, match=rf"prompt and answer have {limit + 1} tokens: \w+ takes 1 to {limit} tokens"):
        open_arguments(str(BYTES), f"generate:{limit}+1", None, None)
    with pytest.raises(InputError, match="--tokens 3 --workload generate:5"):
        open_arguments(str(BYTES), "generate:5+3", None, 3)


# ---- what it is priced at


def test_phases_count_rows_and_scores():
    first, later = ASKED.phases([CAUSAL])
    assert (first.times, first.cached) == (1, True)
    assert (first.extents[T], first.extents[S], first.extents[NEW_SCORES]) == (12, 2, 42)
    assert (later.times, later.extents[T], later.extents[S], later.extents[NEW_SCORES]) == (4, 2, 2, 16)
    assert later.starts.tolist() == [0, 1, 2] and first.starts.tolist() == [0, 6, 12]
    assert later.extents[pairs[CAUSAL]] > later.extents[NEW_SCORES], "what no cache serves computes all scores anew"
    whole = ASKED.phases([CAUSAL], cached=False)
    assert [each.extents[T] for each in whole] == [12, 16] and [each.times for each in whole] == [1, 4]


def test_the_price_of_a_request_is_that_of_the_program_that_sessions_run(speaker):
    """The prompts' step, and the answer's times a step at the mean context, as the program's own cost says."""
    machine, found = standin.machine(), search(speaker, EXACT_LAWS, standin.machine(), ASKED.phases([CAUSAL]))
    decoder = found.program({})[0].decoder
    apart = [predict_step(machine, decoder, each) for each in (prefill(6, 2), later_step(8, 2))]
    assert found.time == pytest.approx(apart[0] + 4 * apart[1], rel=1e-9)
    assert predict_step(machine, decoder, later_step(64, 2)) > apart[1]


def test_attention_of_steps_has_a_price_of_its_own(speaker):
    """Where it is dear, a request is dear, by what its rows see, and no kernel stands in that sessions do not run; runs
    of whole texts are not."""

    class Dear(Round):
        def seconds(self, kernel, **size):
            return size["S2"] * 1.0 if kernel == "attention_cached" else super().seconds(kernel, **size)

    scores = 42 + 4 * 16
    for phases, least, most in (
        (ASKED.phases([CAUSAL]), scores - 1e-3 * scores, scores + 1),
        (ASKED.phases([CAUSAL], cached=False), 0, 1),
    ):
        found = search(speaker, (), Dear(), phases)
        assert least <= found.time <= most


def test_groups_of_sequences_are_priced_by_their_share():
    """Half of the sequences have half of the scores, though lengths alone do not say them."""

    class Halves(Running):
        def group(self, extents):
            return extents.mean((1,), 1)

    later = later_step(8, 2, [CAUSAL])
    [(_, prices)] = priced([Halves(standin.machine(), "apart")], (later,)).parts
    assert prices.group[NEW_SCORES] == 8 and prices.group[T] == 1


# ---- what sessions are timed for


def test_a_session_is_timed_at_its_context():
    """Steps are taken back, so each sees as many rows, and gives the row of a whole run."""
    program, ids = llama().program, np.arange(9) % 50
    timed = Decoding(program, 2, ids, 8, 6)
    assert timed.first() > 0 and timed.step(3) > 0 and timed.first() > 0
    assert [each.length for each in timed.held] == [7, 7] and len(timed.session.sequences) == 2
    rows = timed.session.step(dict.fromkeys(timed.held, ids[:1]))
    whole = program.run(Batch([[*ids[:7], ids[0]]] * 2))
    assert relative(rows, whole) < 1e-5


def test_a_program_without_caches_runs_whole_texts(monkeypatch):
    """Its seconds are those of a run of the prompts, and of one of the text at the mean context for each token."""
    monkeypatch.setattr("rewrites.workload.decoded.seconds", lambda call, batch: float(batch.rows))
    program = search(encoder(), (), Round(), Batch([[1] * 6]).extents(), fusion=False).program({})[0]
    assert decoder_of(program) is None
    taken = measure_requests({"whole": program}, ASKED, np.arange(3), 2, lambda *_: None)
    assert taken == {"whole": [12.0 + 4 * 16] * 2}


def test_bytes_of_a_request_hold_its_caches():
    program, ids = llama().program, np.arange(9) % 50
    planned = planned_peak(program, Generation(20, 13, 2))
    assert planned >= program.decoder.schedule.cached * 2 * 48, "two sequences of 33 rows, in pages of 16"
    asked = Generation(48, 14, 16)  # beside which Python's own objects are little
    assert measured_peak(program, asked, ids, 2) == pytest.approx(planned_peak(program, asked), rel=0.15)


# ---- what a report shows


def test_the_report_of_a_request(found):
    result, text, file = found
    assert result.workload.generation == ASKED and "a prompt of 6 tokens, 4 generated, 2 sequences at once" in text
    assert "generated: 2 sequences at once, by a session of the chosen program" in text
    [entry] = json.loads(file.read_text())["generated"]
    assert entry["context"] == 16 and entry["token_measured_s"] > 0 < entry["first_measured_s"]
    assert entry["cache_bytes"] == result.best.program.decoder.schedule.cached * 2 * 16
    assert Reported.read(file).generation == ASKED
    whole = json.loads(file.read_text())
    for wrong in (5, "generate:5", "5+5"):
        (file.parent / "wrong.json").write_text(json.dumps(whole | {"generate": wrong}))
        with pytest.raises(InputError, match="generate is"):
            Reported.read(file.parent / "wrong.json")


def test_contexts_go_as_far_as_positions():
    assert list_contexts(ASKED, None) == [16, 256, 1024, 4096] and list_contexts(ASKED, 1024) == [16, 256, 1024]
    assert list_contexts(ASKED, 12) == [10]
    program = llama().program
    slow = standin.machine()
    [entry] = find_generated(program, ASKED, np.arange(3), Slow(slow), [16])
    assert entry["first_predicted_s"] > 30 and entry["first_measured_s"] is None, "nobody waits for it"


class Slow:
    """A machine that takes a minute for anything."""

    def __init__(self, machine):
        self.machine = machine

    def seconds(self, kernel, **sizes):
        return 60.0


def test_errors_are_stated_of_whole_texts():
    """Methods are fitted and judged as ever; what is timed are prompts."""
    plain, asked = (Workload.of(open_model(BYTES), **each) for each in ({}, {"generation": Generation(24, 8, 2)}))
    assert asked.state.tokens.tolist() == plain.state.tokens.tolist() and asked.fit.rows == plain.fit.rows
    assert np.diff(asked.timed.starts).tolist() == [24, 24] and asked.name.startswith("a prompt of 24 tokens")
    assert [np.diff(each.starts).tolist() for each in asked.lengths_run] == [[24, 24], [32]]


# ---- caches of bf16 on a front


@pytest.fixture(scope="module")
def front(speaker):
    """What is proposed, and the front, where attention over caches of bfloat16 takes half as long."""
    opened = Opened(speaker, draw_workload(ASKED, speaker), Narrow(0.5), EXACT_LAWS)
    proposed = propose_approximations(search_exact(opened), 0.2)
    return proposed, find_front(proposed, 0.2, None)


def test_points_of_a_front_say_and_take_off_what_their_caches_save(front):
    """Exact programs keep float32."""
    (proposed, found), said = front, []
    prices = proposed.searched.space.prices
    for point in found.points:
        count, saved = held_narrow(point.program, prices)
        halved = {port.number for port in point.program.decoder.inputs} == {"bf16"}
        assert (count > 0) == (saved > 0) == halved == ("bf16 caches" in point.name)
        assert point.predicted_s == pytest.approx(
            point.structure.time - saved + prices.beside(point.program) - prices.start, rel=1e-9
        )
        said.append(halved)
    assert found.points[0].name == "exact" and not said[0] and any(said)


def test_the_bound_of_a_front_is_that_of_programs_with_such_caches(front):
    """No program takes less; and it is less than all would take with caches of float32."""
    proposed, found = front
    prices = proposed.searched.space.prices
    least = min(point.structure.time - held_narrow(point.program, prices)[1] for point in found.points)
    assert found.bound <= least * (1 + 1e-9) and most_held(proposed.searched.exact, prices) > 0
    assert found.bound < min(point.structure.time for point in found.points) * (1 - 1e-9)
