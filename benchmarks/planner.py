"""Predictions of the planner beside what was published, and their speed."""

import itertools
import json
import resource
import time
from collections import defaultdict
from functools import cache
from pathlib import Path

from lib import command
from lib.command import Figure, InputError, Parser, concluded, number, readable, say, tabled, takes
from lib.measured_steps import NEEDED, read_steps

import numpy as np

# ---- planner

STEP = 21
VTRAIN, KORTHIKANTI, BLOOM = "vTrain ground truth", "Table 5", "BLOOM-176B prequel"
PLANNER_COLUMNS = (
    "source",
    "model",
    "devices",
    "dp",
    "tp",
    "pp",
    "micro_batch",
    "batch",
    "measured_s",
    "predicted_s",
    "naive_s",
    "measured_GB",
    "predicted_GB",
)
ASCEND = (
    ("qwen1.5-72b", dict(tp=8, pp=8, virtual=5, sequence=True, schedule="interleaved"), 64, 8192, 339, 64),
    ("llama2-7b", dict(pp=2, dp=4), 64, 4096, 4672, 8),
)
# layouts that were published for large runs: model, devices, machine, batch, tokens, sizes, options of a plan
PUBLISHED = {
    "Meta's, Llama 3 405B on 16,384 H100 (Llama Team 2024, table 4)": (
        ("llama3-405b", 16384, "H100", 2048, 8192),
        dict(tp=8, cp=1, pp=16, dp=128),
        dict(stack="megatron"),
    ),
    "DeepSeek's, V3 on 2,048 H800 (DeepSeek-AI 2024, section 3.2)": (
        ("deepseek-v3", 2048, "H800", 15360, 4096),
        dict(tp=1, cp=1, pp=16, dp=128, ep=64),
        dict(stack="hai-llm", precision="fp8"),
    ),
}
PLACES = 10  # of the fastest, among which a layout is to be
AS_FAST = 3  # percent behind the first, within which a layout is as good


def measure_planner() -> None:
    """Compare steps of training as they were published with what the planner predicts from data sheets alone.

        python benchmarks/planner.py FILE [FILE ..] [--fit] [--csv OUT]

    FILE is a table of measured steps, a row each: model, sizes, machine, strategy, seconds or tokens a second,
    memory. A table with a column `config` has its models' sizes beside it, in FILE's name with .configs.json.
    Errors of seconds are printed by source: mean, with sign, worst, Kendall's tau of their order, and the mean of
    the naive rule.

    A figure has a naive rule beside it: operations at half of the peak (time), least tensor ranks, then least
    stages, then the largest micro-batch (choice), parameters x batch / devices (order), 16 bytes a parameter
    (memory). `--fit` fits, in turn, the four constants that vTrain's rows tell, on every 21st of them; the
    operations a joule and the hidden share, on the first row of six sources in bf16; the fraction of eight bits, on
    the first rows of two. All other constants are assumed (constants.json has their sources). What is reserved of
    what is allocated was chosen with all BLOOM rows in view. The layouts of Ascend are those that were published;
    their places are among the best of each way to factor the devices; so are those of Meta, DeepSeek and NVIDIA,
    each with what puts it behind the first. Rows of shared experts and latent attention are left out. Two rows of
    Korthikanti et al. are fitted in one figure alone: GPT-22B selective, and GPT-175B full, to one factor each for
    time of computation and of the rest."""
    parser = Parser(measure_planner)
    parser.add_argument("files", type=readable, nargs="+")
    parser.add_argument("--residuals", type=Path, help="write ratios of measured to predicted numbers there, as JSON")
    parser.add_argument("--fit", action="store_true", help="fit the constants anew, and print them as JSON")
    given = parser.parse_args()
    takes(90)
    measured = [step for file in given.files for step in read_steps(file)]
    constants = fit(measured) if given.fit else None
    found = [(each, predicted(each, constants)) for each in measured]
    residuals = residuals_of(found)
    if given.residuals:
        write_residuals(given.residuals, residuals)
    say(source_table(found, residuals))
    figures = [
        *interval_figures(residuals),
        *time_figures(found),
        *choice_figures(found),
        *memory_figures(found),
        *ascend_figures(constants),
        *published_figures(measured, constants),
    ]
    tabled(given.csv, [PLANNER_COLUMNS, *map(line, found)])
    concluded(given, figures)


# ---- predictions


def work_of(each):
    from opmatrix.parallel.cost.layer_work import model_work

    return model_work(each.config, each.strategy.context, each.strategy.sequence, each.dropout)


def predicted(each, constants=None):
    from opmatrix.parallel.cost.prediction import predict

    return predict(work_of(each), each.machine, each.strategy, each.batch, each.seq, constants=constants)


def fit(measured):
    """The constants, stage by stage, each on a few rows; stages whose rows are not in the files are left out."""
    from lib.fit_constants import FITTED, START, fit_constants

    rows = [each for each in measured if VTRAIN in each.row["source"]][::STEP]
    constants = START
    if rows:
        say(f"{', '.join(FITTED)}: on {len(rows)} rows: every {STEP}st of vTrain's, from the first on")
        constants = fit_constants(columns_of(rows), [each.seconds for each in rows], constants)
    for names, sources in FEW_ROWS.items():
        firsts = [first_of(measured, source) for source in sources]
        if None not in firsts:
            say(f"{', '.join(names)}: on the first rows of {', '.join(sources)}")
            seconds = [each.seconds for each in firsts]
            constants = fit_constants(one_by_one(firsts), seconds, constants, names)
    print(json.dumps(constants._asdict()))
    return constants


DGXC = "NVIDIA DGXC"
DENSE = "llama3-70b", "llama3-8b", "llama3-405b", "nemotron-15b", "nemotron-340b", "gpt3-175b"
FEW_ROWS = {
    ("joule", "hidden"): [f"{DGXC} {name} bf16" for name in DENSE],
    ("eight",): [f"{DGXC} {name} fp8" for name in DENSE[:2]],
}


def first_of(measured, source):
    return next((each for each in measured if each.row["source"] == source and each.seconds), None)


def one_by_one(rows):
    def seconds(constants):
        return np.array([float(predicted(each, constants).step_seconds) for each in rows])

    return seconds


def columns_of(rows):
    """Seconds of rows of few models, the rows of a model at once."""
    from dataclasses import replace

    from opmatrix.parallel.cost.prediction import predict

    groups = defaultdict(list)
    for at, each in enumerate(rows):
        groups[json.dumps(each.config, sort_keys=True)].append(at)

    def seconds(constants):
        out = np.zeros(len(rows))
        for places in groups.values():
            sizes = {
                name: np.array([getattr(rows[at].strategy, name) for at in places], float)
                for name in ("dp", "tp", "pp", "cp", "micro_batch", "virtual")
            }
            one = rows[places[0]]
            batch = np.array([rows[at].batch for at in places], float)
            out[places] = predict(
                work_of(one), one.machine, replace(one.strategy, **sizes), batch, one.seq, constants=constants
            ).step_seconds
        return out

    return seconds


def naive_seconds(each):
    """Six operations a parameter and token that it meets, eight where all is computed again, at half of the peak."""
    whole = active_parameters(each)
    rate = each.machine.peak(each.strategy.precision)
    return (
        (8 if each.strategy.recompute == "full" else 6)
        * whole
        * each.batch
        * each.seq
        / (0.5 * rate * int(each.row["devices"]))
    )


def active_parameters(each):
    stated = each.row.get("params_b")
    return float(stated) * 1e9 if stated else counted_parameters(json.dumps(each.config))


@cache
def counted_parameters(config):
    from opmatrix.models import activated

    return float(activated(json.loads(config)))


def line(pair):
    each, prediction = pair
    own = each.strategy
    return (
        each.row["source"][:40],
        each.row["model"],
        each.row["devices"],
        own.dp,
        own.tp,
        own.pp,
        own.micro_batch,
        each.batch,
        each.seconds,
        f"{float(prediction.step_seconds):.4f}",
        f"{naive_seconds(each):.4f}",
        each.memory,
        f"{predicted_gigabytes(each, prediction):.1f}",
    )


# ---- errors by source

SOURCE_COLUMNS = "source", "rows", "mean %", "sign %", "worst %", "tau", "half of the peak %", "in interval %"


def source_table(found, residuals):
    """Errors of seconds by source, those of steps that were measured."""
    from opmatrix.display.tables import table

    sources = dict.fromkeys(each.row["source"] for each, _ in found if each.seconds)
    inside = covered(residuals)
    rows = [
        [*source_line(source, of_source(found, source, whole=True)), f"{100 * inside[source]:.0f}"]
        for source in sources
    ]
    return table(rows, [*SOURCE_COLUMNS])


def source_line(source, pairs):
    off = errors(pairs)
    order = tau([each.seconds for each, _ in pairs], [float(step.step_seconds) for _, step in pairs])
    return [
        source[:60],
        str(len(pairs)),
        f"{mean(off):.1f}",
        f"{100 * float(np.mean(off)):+.1f}",
        f"{100 * max(off, key=abs):+.1f}",
        f"{order:.2f}",
        f"{mean(naive_errors(pairs)):.1f}",
    ]


# ---- intervals


def residuals_of(found):
    """Ratios of measured to predicted seconds and bytes, by source and kind."""
    from opmatrix.parallel.cost.intervals import SourceResiduals, kind_of

    groups = defaultdict(lambda: ([], []))
    for each, step in found:
        seconds, sizes = groups[each.row["source"], kind_of(step.setting, each.stack)]
        if each.seconds:
            seconds.append(round(each.seconds / float(step.step_seconds), 4))
        if each.memory and "analytic" not in each.row["notes"]:
            sizes.append(round(each.memory / predicted_gigabytes(each, step), 4))
    return [SourceResiduals(source, kind, tuple(a), tuple(b)) for (source, kind), (a, b) in groups.items() if a or b]


def write_residuals(file, residuals):
    from opmatrix.parallel.cost.constants import CONSTANTS_FILE

    version = json.loads(CONSTANTS_FILE.read_text("utf-8"))["version"]
    lines = ",\n".join(f"  {json.dumps(one._asdict())}" for one in residuals)
    file.write_text(f'{{\n "version": {version},\n "sources": [\n{lines}\n ]\n}}\n', "utf-8")


def left_out(residuals, source):
    """Each kind of a source with its ratios of seconds, and the interval of the other sources."""
    from opmatrix.parallel.cost.intervals import find_interval

    others = [one for one in residuals if one.source != source]
    return [
        (one.seconds, find_interval(one.kind, residuals=others))
        for one in residuals
        if one.source == source and one.seconds
    ]


def covered(residuals):
    """The share of a source's rows in the intervals of all other sources, by source."""
    shares = {}
    for source in dict.fromkeys(one.source for one in residuals if one.seconds):
        inside = [
            interval is not None and interval.low <= ratio <= interval.high
            for ratios, interval in left_out(residuals, source)
            for ratio in ratios
        ]
        shares[source] = float(np.mean(inside))
    return shares


def interval_figures(residuals):
    shares = covered(residuals)
    counts = {source: sum(len(one.seconds) for one in residuals if one.source == source) for source in shares}
    if len(shares) < 4:
        return
    whole = 100 * float(np.mean([*shares.values()]))
    yield Figure(
        "intervals of 80 %, sources left out: rows inside, sources weigh the same", whole, "%", least=70, most=90
    )
    large = [share for source, share in shares.items() if counts[source] >= 5]
    yield Figure("  worst source of 5 rows or more", 100 * min(large), "%", least=50)
    widths = [
        100 * (interval.high - interval.low)
        for source in shares
        for _, interval in left_out(residuals, source)
        if interval is not None
    ]
    yield Figure("  width of the median source", float(np.median(widths)), "%", most=40)


# ---- figures


def errors(found):
    return [float(own.step_seconds) / each.seconds - 1 for each, own in found]


def naive_errors(found):
    return [naive_seconds(each) / each.seconds - 1 for each, _ in found]


def of_source(found, source, whole=False):
    """The steps of a source with measured seconds; `whole`: its name is no part of another."""
    return [
        (each, step)
        for each, step in found
        if each.seconds and (source == each.row["source"] if whole else source in each.row["source"])
    ]


def mean(each):
    return 100 * float(np.mean(np.abs([*each])))


def time_figures(found):
    vtrain = of_source(found, VTRAIN)
    rest = [pair for at, pair in enumerate(vtrain) if at % STEP]
    if rest:
        yield Figure(f"time, {len(rest)} vTrain rows not fitted: MAPE", mean(errors(rest)), "%", most=6.5)
        yield Figure("  half of the peak", mean(naive_errors(rest)), "%")
    table = of_source(found, KORTHIKANTI)
    if table:
        yield Figure("time, Korthikanti Table 5, none fitted: mean", mean(errors(table)), "%", most=9)
        yield Figure("  half of the peak", mean(naive_errors(table)), "%")
        own = [*scaled_errors(table)]
        yield Figure("time, Korthikanti, GPT-22B selective, GPT-175B full fitted: mean", mean(own), "%", most=3.5)
        yield Figure("  worst", 100 * max(map(abs, own)), "%", most=8.5)
    for source in sorted({e.row["source"] for e, _ in found} - {e.row["source"] for e, _ in vtrain + table}):
        rows = of_source(found, source)
        if rows:
            yield Figure(f"time, {source[:60]}, {len(rows)} rows: MAPE", mean(errors(rows)), "%")


def scaled_errors(table):
    """Errors where computation and the rest have a factor each, by which two rows are exact."""

    def parts(prediction):
        own = sum(float(seconds) for name, seconds in prediction.seconds.items() if name.startswith("computation"))
        return own, float(prediction.step_seconds) - own

    named = [
        (each, own)
        for each, own in table
        if (each.row["model"], each.strategy.recompute) in (("GPT-22B", "selective"), ("GPT-175B", "full"))
    ]
    if len(named) < 2:
        return
    both = np.array([parts(own) for _, own in named])
    factors = np.linalg.solve(both, [each.seconds for each, _ in named])
    for each, own in table:
        yield float(np.dot(parts(own), factors)) / each.seconds - 1


def choice_figures(found):
    groups = defaultdict(list)
    for pair in of_source(found, VTRAIN):
        groups[pair[0].row["model"], pair[0].row["devices"], pair[0].batch].append(pair)
    groups = [rows for rows in groups.values() if len(rows) > 3]
    if groups:

        def losses(choose):
            return [100 * (min(rows, key=choose)[0].seconds / min(e.seconds for e, _ in rows) - 1) for rows in groups]

        own = losses(lambda pair: float(pair[1].step_seconds))
        rule = losses(lambda pair: (pair[0].strategy.tp, pair[0].strategy.pp, -pair[0].strategy.micro_batch))
        yield Figure(f"choice, {len(groups)} vTrain groups: lost on the mean", float(np.mean(own)), "%", most=2)
        yield Figure("  at worst", max(own), "%", most=15)
        for half in range(2):
            part = own[half::2]
            yield Figure(f"  of each second group, from number {half + 1}: mean", float(np.mean(part)), "%")
        yield Figure("  least tp, least pp, largest micro-batch: mean", float(np.mean(rule)), "%")
        yield Figure("  at worst", max(rule), "%")
    tables = defaultdict(dict)
    for each, own in of_source(found, BLOOM):
        if "!= devices" in each.row["notes"]:
            continue
        key = tuple(each.row[name] for name in (*NEEDED[2:], "zero_or_fsdp"))
        tables[each.row["source"]].setdefault(key, (each, own))
    large = [[*rows.values()] for rows in tables.values() if len(rows) > 7]
    if not large:
        return
    order, lost = [], []
    for rows in large:

        def share(each):
            return int(each.row["devices"]) / (float(each.row["params_b"]) * each.batch)

        real, ours = [e.seconds * share(e) for e, _ in rows], [float(o.step_seconds) * share(e) for e, o in rows]
        order.append(tau(real, ours))
        lost.append(100 * (real[int(np.argmin(ours))] / min(real) - 1))
    yield Figure(f"order, {len(large)} BLOOM tables: Kendall tau", float(np.mean(order)), least=0.35)
    yield Figure("  parameters x batch / devices", 0.0)
    yield Figure("  the chosen row loses at worst", max(lost), "%", most=5)


def tau(one, other):
    pairs = [*itertools.combinations(range(len(one)), 2)]
    return sum(np.sign(one[i] - one[j]) * np.sign(other[i] - other[j]) for i, j in pairs) / max(len(pairs), 1)


def predicted_gigabytes(each, step):
    """The memory of the kind that a row measured, by the driver where it does not say."""
    return float(step.bytes_of(each.memory_kind or "driver")) / 1e9


def memory_error(pair):
    each, step = pair
    return predicted_gigabytes(each, step) / each.memory - 1


KIND_BARS = {"allocated": 3, "reserved": None, "driver": 10, "": None}


def kind_figures(found):
    """Errors by kind of memory, of rows that say theirs and of those that do not; of models with experts apart."""
    for kind, most in KIND_BARS.items():
        for experts in (False, True):
            pairs = [
                (each, step)
                for each, step in found
                if each.memory and each.memory_kind == kind and bool(step.setting.model.asks) == experts
            ]
            if not pairs:
                continue
            name = f"{kind or 'not said, taken as by the driver'}{', experts' if experts else ', dense'}"
            counted = ", counted by its authors" if kind == "allocated" else ""
            bar = 6 if experts and kind == "allocated" else most
            yield Figure(
                f"memory, {name}{counted}, {len(pairs)} rows: MAPE", mean(map(memory_error, pairs)), "%", most=bar
            )


def memory_figures(found):
    yield from kind_figures(found)
    rows = [(each, own) for each, own in found if each.memory and "analytic" not in each.row["notes"]]
    for source in sorted({each.row["source"] for each, _ in rows}):
        own = [(e, o) for e, o in rows if e.row["source"] == source]
        yield Figure(f"memory, {source[:60]}, {len(own)} rows: MAPE", mean(map(memory_error, own)), "%")
    if rows:
        yield Figure(f"memory, all {len(rows)} measured rows: MAPE", mean(map(memory_error, rows)), "%", most=8)
        yield Figure(
            "  16 bytes a parameter",
            mean(
                16 * active_parameters(e) / 1e9 / int(e.row["devices"]) / e.memory - 1
                for e, _ in rows
                if e.row.get("params_b")
            ),
            "%",
        )
        over = [float(o.driver) / e.machine.memory[-1][1] for e, o in rows]
        yield Figure("rows that ran, refused by over 5 %", sum(share > 1.05 for share in over), most=0)
    failed = [(each, own) for each, own in found if each.failed]
    if failed:
        yield Figure(
            f"rows of {len(failed)} that ran out of memory, refused",
            sum(float(o.driver) > e.machine.memory[-1][1] for e, o in failed),
            least=len(failed),
        )


def ascend_figures(constants):
    from opmatrix.parallel.cost.prediction import predict
    from opmatrix.parallel.cost.stacks import STACKS
    from opmatrix.parallel.cost.strategies import Strategy
    from opmatrix.parallel.search.plans import plan

    for name, how, batch, seq, published, devices in ASCEND:
        strategy = STACKS["mindspeed"].habits(Strategy(flash=True, context="ulysses", **how))
        own = predict(name, "Ascend910B", strategy, batch, seq, constants=constants)
        rate = batch * seq / devices / float(own.step_seconds)
        yield Figure(f"{name}, {devices} Ascend910B, {published} published: tokens a second, device", rate)
        yield Figure("  beside it", 100 * abs(rate / published - 1), "%", most=15)
        best = plan(name, devices, "Ascend910B", batch=batch, seq=seq, constants=constants, keep=100).best
        axes = {axis: how.get(axis, 1) for axis in ("dp", "tp", "pp")}
        yield Figure(
            "  place of its layout",
            next(at for at, each in enumerate(best, 1) if axes.items() <= each.sizes.items()),
            most=10,
        )


def published_layouts(measured):
    """Layouts of large runs, and those of the last run of each dense model in bf16, which is the largest: NVIDIA's."""
    yield from PUBLISHED.items()
    for name in DENSE:
        largest = first_of(reversed(measured), f"{DGXC} {name} bf16")
        if largest is not None:
            devices, own = int(largest.row["devices"]), largest.strategy
            sizes = {axis: getattr(own, axis) for axis in ("tp", "cp", "pp", "dp")}
            question = largest.config, devices, largest.machine, largest.batch, largest.seq
            yield f"NVIDIA's, {name} on {devices:,} H100", (question, sizes, dict(stack=largest.stack))


def published_figures(measured, constants):
    """The place of a published layout among the fastest ways to factor the devices, and what puts it behind."""
    from opmatrix.parallel.questions.layouts import StatedLayout, find_layout
    from opmatrix.parallel.search.plan_text import lost
    from opmatrix.parallel.search.plans import plan

    for title, ((model, devices, machine, batch, seq), sizes, options) in published_layouts(measured):
        best = plan(model, devices, machine, batch=batch, seq=seq, constants=constants, keep=1, **options)
        choice = find_layout(best.question, StatedLayout(title, sizes))
        behind = 100 * (choice.seconds / best.best[0].seconds - 1)
        rows = map(best.found.sizes.row, best.found.best_rows(len(best.found.sizes)))
        place = next((at for at, row in enumerate(rows, 1) if sizes.items() <= row.items()), None)
        over = (choice.bytes - best.question.room) / 1e9
        why = f"no strategy of it fits, by {over:.1f} GB"
        say(f"{title}: {choice}\n  beside the first, {best.best[0]}: {lost(best.best[0], choice)}")
        yield Figure(f"place of {title}", place, why=why, most=None if behind <= AS_FAST else PLACES)
        yield Figure("  slower than the first", behind, "%", most=AS_FAST if behind <= AS_FAST else None)
        yield Figure("  memory beyond the device's", max(over, 0), "GB", most=0)


# ---- strategies

STRATEGIES_COLUMNS = "model", "devices", "strategies", "whole_s", "columns_s", "a second"
ASKED = (
    ("gpt3-175b", 1024, "A100", 1536, 2048),
    ("llama3-405b", 16384, "H100", 16384, 8192),
    ("gpt3-175b", 10000, "A100", 10000, 2048),
    ("gpt3-175b", 10080, "A100", 20160, 2048),
)
DRAWN = 1000


def measure_strategies() -> None:
    """Count strategies predicted a second, and compare columns of them with each alone.

        python benchmarks/planner.py strategies [--rounds 5] [--csv OUT]

    A strategy counts where it is legal and both its seconds and its peak are predicted. `whole` is a search from a
    question on, the reading of the model and the writing of its tape included; `columns` what runs again where
    sizes are others. A thousand strategies that are drawn are predicted alone, in Python's numbers. One core;
    seconds are of this process, not of a clock on the wall, and the least of some rounds."""
    parser = Parser(measure_strategies)
    parser.add_argument("--rounds", type=number(int, 1, 100, "a whole number from 1 to 100"), default=5)
    given = parser.parse_args()
    takes(60)
    rows = [timed(*each, given.rounds) for each in ASKED]
    say("drawn strategies, each alone")
    first, large = rows[0], max(row[3] for row in rows if row[1] >= 10000)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    tabled(given.csv, [STRATEGIES_COLUMNS, *rows])
    concluded(
        given,
        [
            Figure("strategies a second, columns", first[5], least=1e6),
            Figure("GPT-3 on 1,024 devices, whole", first[3], "s", most=2),
            Figure("10,000 devices and more, whole", large, "s", most=30),
            Figure("furthest of 1,000 strategies from each alone", furthest(), most=1e-12),
            Figure("memory of the process", peak, "GB", most=1),
        ],
    )


def question(model, devices, machine, batch, seq):
    from opmatrix.models import known
    from opmatrix.parallel.search.strategy_search import PlanQuestion
    from opmatrix.runtime.pricing import datasheet

    return PlanQuestion(known.configuration(model), datasheet(machine), devices, batch, seq, 80e9)


def timed(model, devices, machine, batch, seq, rounds):
    """A row: seconds of a search from the question on, and of columns alone."""
    from opmatrix.parallel.cost.layer_work import read_model
    from opmatrix.parallel.search.strategy_search import compile_forms, predict_columns, search_strategies

    whole, columns = [], []
    for _ in range(rounds):
        read_model.cache_clear()
        asked, begin = question(model, devices, machine, batch, seq), time.process_time()
        found = search_strategies(asked)
        whole.append(time.process_time() - begin)
        programs = compile_forms(asked, asked.forms)
        begin = time.process_time()
        predict_columns(asked, programs)
        columns.append(time.process_time() - begin)
    rate = found.count / min(columns)
    say(f"{model} on {devices}: {found.count:,} strategies, {min(whole):.2f} s, {rate:,.0f} a second")
    return model, devices, found.count, min(whole), min(columns), rate


def furthest():
    """The largest relative difference of a thousand strategies' seconds and bytes from each alone."""
    from opmatrix.parallel.search.forms import FormMasks
    from opmatrix.parallel.search.strategy_search import compile_forms

    asked = question(*ASKED[0])
    sizes, programs = asked.sizes, compile_forms(asked, asked.forms)
    values = programs.values_at(sizes, asked.batch)
    legal, far = np.argwhere(FormMasks(asked.forms, asked.limits, asked.seq)(sizes)), 0.0
    for form, row in np.random.default_rng(0).permutation(legal)[:DRAWN]:
        alone = asked.predicted(asked.forms[form], sizes.row(row))
        for found, wanted in (
            (values[programs.times[form], row], alone.step_seconds),
            (values[programs.peaks[form], row], alone.driver),
        ):
            far = max(far, abs(found - wanted) / wanted)
    return far


if __name__ == "__main__":
    command.run_parts(measure_planner, measure_strategies, refused=(InputError,))
