"""The commands of ranks: `plan` finds the fastest ways to spread a model over many; `partition` shows what each
computes, sends and holds; `launch` runs them as processes, compared with one rank and with the formulas."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from formats.core.errors import InputError
from formats.disk.files import writable
from rewrites.cli import options
from rewrites.cli.option_groups import (
    MeshOptions,
    PlanAskedOptions,
    PlannedMeshOptions,
    PlanScaleOptions,
    RunStepsOptions,
    StoredOptions,
    TrainedStepOptions,
    WatchOptions,
    left_out,
    with_groups,
)
from rewrites.cli.outputs import possible, printable, say, write_results

if TYPE_CHECKING:
    from collections.abc import Mapping

    from opmatrix.models.config import Settings
    from opmatrix.parallel.questions.constraints import PlanConstraints
    from opmatrix.parallel.questions.layouts import StatedLayout
    from opmatrix.parallel.search.plans import StrategyPlan
    from opmatrix.parallel.search.strategy_search import PlanQuestion
    from opmatrix.parallel.settings.planned_layouts import PlannedSettings

DRAWN_WEIGHTS = 2 * 10**8  # weights that each rank may draw, at most
BRIEF_DEVICES = 2048  # devices, at most, that are planned for in a second or so
TOO_FAR = 1e-6  # error relative to the largest entry; rounding is smaller


@with_groups
def plan_model(
    model: options.ModelName,
    devices: options.Devices,
    machine: options.PlannedMachine,
    wanted: PlanAskedOptions,
    scale: PlanScaleOptions,
    batch: options.StepBatch = None,
    seq: options.SequenceTokens = None,
    memory: options.DeviceMemory = None,
    infer: options.Infer = False,
    flash: options.Flash = True,
    carbon: options.Carbon = 473.0,
    keep: options.BestPlans = 10,
    results: options.Results = None,
    rows: options.PlanRows = None,
    timeline: options.PlanTimeline = None,
    explain: options.ExplainPlan = False,
    quiet: options.Quiet = False,
) -> None:
    """Find the fastest strategies to train or run a MODEL on many devices of a machine. Each has time and memory by
    part, and a reason why it loses to the first; for the first, sensitivities are printed. Times are predicted from
    data sheets and formulas; nothing is run. With `--machine local` ranks are timed, and the command line of
    `opmatrix launch` is printed."""
    from opmatrix.display.progress import ProgressLine
    from opmatrix.display.timeline import check_timeline
    from opmatrix.parallel.launch.local_ranks import LOCAL, launch_line, local_plan
    from opmatrix.parallel.questions.fewest_devices import fewest_devices
    from opmatrix.parallel.search.explained import explain_choice
    from opmatrix.parallel.search.length_mix import read_lengths
    from opmatrix.parallel.search.plan_text import plan_csv, plan_json
    from opmatrix.parallel.search.plans import AskedPlan, plan
    from opmatrix.parallel.search.stage_times import best_cut, draw_step
    from opmatrix.parallel.settings.run_layout import RunLayout
    from rewrites.cli.partitions import name_of

    outputs = {"--json": (results, writable), "--csv": (rows, writable), "--timeline": (timeline, check_timeline)}
    possible(
        outputs | {"--write-settings": (file_of(wanted.write_settings), writable)},
        model,
        wanted.calibrate,
        wanted.settings,
    )
    if memory is not None and not 0 < memory < 1e9:
        raise InputError(f"--memory {memory:g}: GB, more than 0")
    config, line = planned_config(model), ProgressLine("strategies", quiet, brief=devices <= BRIEF_DEVICES)
    local = machine == LOCAL
    lengths = None if seq is None else read_lengths(seq)
    if isinstance(lengths, dict):
        check_one_length(
            {"--machine local": machine == LOCAL, "--explain": explain, "--timeline": timeline is not None}
        )
    if local:
        check_not_local(wanted, scale)
    scaled = left_out(scale).items()
    if any(value is not None for _, (value, _) in scaled):
        check_scale(
            scale, wanted, {"--infer": infer and scale.vary is None, "--explain": explain, "--timeline": timeline}
        )
        text, figures, table = answer_scale(
            scale,
            AskedPlan(
                batch or devices,
                lengths,
                memory and memory * 1e9,
                infer,
                flash,
                wanted.precision or "bf16",
                None,
                wanted.stack,
                wanted.schedule,
                wanted.max_tp,
                wanted.no_ring,
                wanted.headroom,
                load_of(wanted),
            ).question(config, devices, machine),
            keep,
            name_of(model),
        )
        say(text)
        write_results(figures, results)
        write_rows(table, rows)
        return
    stated = planned_settings_of(wanted, config, devices)
    layouts, layout = read_layouts(wanted, stated), RunLayout() if stated is None else stated.layout
    asked = dict[str, Any](
        batch=batch or layout.batch or devices,
        seq=lengths or layout.seq,
        memory=memory and memory * 1e9,
        infer=infer,
        keep=keep,
        carbon=carbon,
        name=name_of(model),
        heard=line,
    )
    if not local:
        asked |= dict(
            flash=flash,
            precision=wanted.precision or layout.precision or "bf16",
            stack=wanted.stack,
            schedule=wanted.schedule,
            max_tp=wanted.max_tp,
            calibrate=wanted.calibrate,
            no_ring=wanted.no_ring,
            headroom=wanted.headroom,
            load=load_of(wanted),
        )
    with line.ticking():
        planned = local_plan(config, devices, **asked) if local else plan(config, devices, machine, **asked)
    line.end(f"{planned.found.count:,}")
    text, figures = judged_layouts(planned, layouts, stated)
    say(f"{planned}{text}")
    if wanted.constraints:
        binding = find_binding(planned, layouts)
        figures["constraints"] = binding.figures()
        say(f"\n{binding}")
    if wanted.fewest:
        say(f"\n{fewest_devices(planned.question, wanted.within)}")
    if wanted.write_settings is not None and stated is not None:
        write_layout(planned, layouts, stated, wanted.write_settings)
    if local:
        say(f"\nthe first: {launch_line(planned, planned.best[0], model)}")
    if explain:
        say(f"\n{explain_choice(planned, planned.best[0])}")
    if timeline is not None:
        first = planned.best[0]
        say(
            "\ndrawn in "
            f"{draw_step(first, timeline, f'{planned.name}: {first}', best_cut(first, planned.question.room))}"
        )
    write_results(plan_json(planned) | figures, results)
    write_rows(plan_csv(planned), rows)


SCALED_ALONE = "only", "against", "calibrate", "fewest", "within", "constraints", "settings", "write_settings"


def check_scale(scale: PlanScaleOptions, wanted: PlanAskedOptions, others: Mapping[str, object]) -> None:
    """Raise InputError for options of pools or shapes that miss their first, and for those of a single plan beside
    them."""
    if scale.pools is not None and scale.vary is not None:
        raise InputError(f"--pools {scale.pools}, --vary {scale.vary}: give one of them")
    for first, names in (("pools", ("reply", "ttft", "tpot", "pool_link")), ("vary", ("parameters",))):
        missing = getattr(scale, first) is None
        for name in names:
            if missing and (value := getattr(scale, name)) is not None:
                raise InputError(f"--{name.replace('_', '-')} {value}: it belongs to --{first}: give both")
    option = "--pools" if scale.vary is None else "--vary"
    for name, value in (
        *((f"--{name.replace('_', '-')}", getattr(wanted, name)) for name in SCALED_ALONE),
        *others.items(),
    ):
        if value:
            raise InputError(f"{name}: it is of a single plan, not of {option}")


def answer_scale(
    scale: PlanScaleOptions, question: PlanQuestion, keep: int, name: str
) -> tuple[str, dict[str, object], str]:
    """Return the plan of pools or of shapes as text, as figures and as CSV."""
    if question.lengths is not None:
        raise InputError("--seq: pools and shapes are of sequences of one length")
    from opmatrix.parallel.questions.pool_splits import PoolLimits, plan_pools
    from opmatrix.parallel.questions.pool_text import pools_csv, pools_json, pools_text

    if scale.pools is None:
        return answer_shapes(scale, question, keep, name)
    if scale.reply is None:
        raise InputError(f"--pools {scale.pools}: give --reply, the tokens of a sequence that are generated")
    limits = PoolLimits(scale.reply, scale.ttft, scale.tpot, scale.pool_link)
    planned = plan_pools(question, scale.pools, limits, keep=keep, name=name)
    return pools_text(planned), pools_json(planned), pools_csv(planned)


def answer_shapes(
    scale: PlanScaleOptions, question: PlanQuestion, keep: int, name: str
) -> tuple[str, dict[str, object], str]:
    """Return the plan of shapes as text, as figures and as CSV."""
    from opmatrix.parallel.questions.model_shapes import plan_shapes, read_budget, shapes_csv, shapes_json, shapes_text

    budget = None if scale.parameters is None else read_budget(scale.parameters)
    planned = plan_shapes(question, scale.vary or "", budget, keep=keep, name=name)
    return shapes_text(planned), shapes_json(planned), shapes_csv(planned)


def write_rows(text: str, out: Path | None) -> None:
    """Write rows as CSV, if there is a place for them."""
    from formats.disk.files import replacing

    if out is not None:
        with replacing(out) as file:
            file.write(text.encode())


def read_layouts(wanted: PlanAskedOptions, stated: PlannedSettings | None) -> dict[str, StatedLayout]:
    """Return the layouts that are stated, by option. Raises InputError for words that name nothing."""
    from opmatrix.parallel.questions.layouts import read_layout

    texts = {"--only": wanted.only, "--against": wanted.against}
    layouts = {option: read_layout(text, option) for option, text in texts.items() if text is not None}
    return layouts if wanted.settings is None or stated is None else {"--settings": stated.stated(), **layouts}


def planned_settings_of(wanted: PlanAskedOptions, config: Settings, devices: int) -> PlannedSettings | None:
    """Return the settings that are read or written; None where none are. Raises InputError for settings that cannot be
    read, and without a stack."""
    if wanted.settings is None and wanted.write_settings is None:
        return None
    from opmatrix.models.encoders.encoder_decoders import has_halves
    from opmatrix.models.encoders.towers import has_tower
    from opmatrix.parallel.search.legal_sizes import limits_of
    from opmatrix.parallel.settings.planned_layouts import planned_settings
    from opmatrix.parallel.settings.run_layout import RunFacts

    if has_tower(config) or has_halves(config):
        raise InputError(
            f"--settings: a stack's settings are of a decoder alone, and {config['model_type']} is two stacks"
        )
    return planned_settings(wanted.stack, wanted.settings, RunFacts(limits_of(config).layers, devices))


def judged_of(layouts: Mapping[str, StatedLayout]) -> StatedLayout | None:
    """Return the layout that is judged; None where it is the first of the plan."""
    return next((layouts[option] for option in ("--only", "--settings") if option in layouts), None)


def find_binding(planned: StrategyPlan, layouts: Mapping[str, StatedLayout]) -> PlanConstraints:
    """Return the constraints of the layout that is judged, or of the first of a plan."""
    from opmatrix.parallel.questions.constraints import find_constraints
    from opmatrix.parallel.questions.layouts import find_layout

    question, judged = planned.question, judged_of(layouts)
    if judged is None:
        return find_constraints(question, planned.best[0])
    return find_constraints(question, find_layout(question, judged), judged.fixed)


def load_of(wanted: PlanAskedOptions) -> float | None:
    """Return the load of the busiest expert rank; None where it is not stated. Raises InputError for a load that is
    stated twice, and for a time without --fewest."""
    if wanted.within is not None and not wanted.fewest:
        raise InputError(f"--within {wanted.within:g}: it belongs to --fewest: give both")
    if wanted.even and wanted.load not in (None, 1):
        raise InputError(f"--load {wanted.load:g}, --even: give one of them")
    return 1.0 if wanted.even else wanted.load


def file_of(path: Path | None) -> Path | None:
    """Return a file that is written; None for standard output."""
    return None if path is None or str(path) == "-" else path


def write_layout(
    planned: StrategyPlan, layouts: Mapping[str, StatedLayout], stated: PlannedSettings, out: Path
) -> None:
    """Write the layout that is judged, or the first of a plan, as settings of the stack; "-" is standard output."""
    from formats.disk.files import replacing
    from opmatrix.parallel.questions.layouts import find_layout

    question = planned.question
    judged = judged_of(layouts)
    choice = planned.best[0] if judged is None else find_layout(question, judged)
    text = stated.text(choice, question.batch, question.seq, out)
    if beside := stated.unstated(choice, question.batch, question.seq):
        say(f"\nnot in these settings: {beside}: give them to the program")
    if file_of(out) is None:
        say(f"\n{text}")
        return
    with replacing(out) as file:
        file.write(text.encode())
    say(f"\n{choice}: settings of {stated.settings.title} in {out}")


def check_one_length(asked: Mapping[str, bool]) -> None:
    """Raise InputError for an option that is of sequences of one length."""
    for option, wanted in asked.items():
        if wanted:
            raise InputError(f"{option}: it is of sequences of one length: give --seq one number of tokens")


def check_not_local(*groups: PlanAskedOptions | PlanScaleOptions) -> None:
    """Raise InputError for an option that does not belong to processes of this machine."""
    for option, (value, usual) in (pair for group in groups for pair in left_out(group).items()):
        if value != usual:
            raise InputError(f"{option} {value}: it belongs to machines of data sheets, not to --machine local")


def judged_layouts(
    planned: StrategyPlan, layouts: Mapping[str, StatedLayout], stated: PlannedSettings | None
) -> tuple[str, dict[str, object]]:
    """Return the text of the layouts that were stated, and their figures by option."""
    from opmatrix.parallel.questions.layouts import against_table, find_layout, layout_lines, stages_line
    from opmatrix.parallel.search.plan_text import choice_row

    choices = {option: find_layout(planned.question, layout) for option, layout in layouts.items()}
    text = "".join(f"\n\n{layout_lines(planned, layouts[option], choice)}" for option, choice in choices.items())
    if stated is not None and "--settings" in choices:
        choice, cut = choices["--settings"], stated.stages()
        by_stage = [] if cut is None else [stages_line(planned, choice, cut)]
        text += "".join(f"\n{line}" for line in [*by_stage, *stated.lines()])
    if "--against" in choices:
        one = choices.get("--only", choices.get("--settings", planned.best[0]))
        text += f"\n\n{against_table(one, choices['--against'])}"
    return text, {option.removeprefix("--"): choice_row(planned, choice) for option, choice in choices.items()}


def planned_config(model: str) -> Settings:
    """Return the configuration of a MODEL that is planned. Raises InputError for an unknown name."""
    from rewrites.cli.partitions import config_of
    from rewrites.cli.predict import open_known

    config = config_of(model)
    return open_known(model).config if config is None else config


@with_groups
def partition_model(
    model: options.ModelName,
    axes: PlannedMeshOptions,
    stored: StoredOptions,
    step: TrainedStepOptions,
    symbolic: Annotated[bool, typer.Option("--symbolic", help="keep sizes of the model as symbols")] = False,
    scores: Annotated[bool, typer.Option("--scores", help="include the head that scores the vocabulary")] = False,
) -> None:
    """Partition a MODEL over ranks: formulas of the computation, communication and memory of the busiest rank of each
    stage. The MODEL may be a configuration without weights, or a well-known name. Nothing is run."""
    from opmatrix.display.timeline import check_timeline
    from rewrites.cli.partitions import check_asked, check_train, told
    from rewrites.workload.phases import silence_stdout

    mesh = axes.mesh()
    wish = check_train(step, stored.batch)
    possible({"--timeline": (step.timeline, check_timeline)}, model)
    wishes = check_asked(stored, wish)
    with silence_stdout():
        text = told(model, mesh, symbolic, scores, wishes)
    say(text)


@with_groups
def launch_model(
    model: options.ModelName,
    axes: MeshOptions,
    learned: RunStepsOptions,
    watched: WatchOptions,
    ranks: Annotated[int | None, typer.Option(help="processes; by default as many as the axes have")] = None,
    stages: options.Stages = None,
    batch: Annotated[int, typer.Option(min=1, help="sequences of random tokens")] = 4,
    tokens: Annotated[int, typer.Option(min=1, help="tokens of each sequence")] = 32,
    steps: Annotated[int, typer.Option(min=1, help="forward passes, or training steps")] = 2,
    decode: Annotated[
        bool,
        typer.Option(
            "--decode",
            help="each step generates the next token of each sequence, with keys and values cached on the ranks",
        ),
    ] = False,
    scores: Annotated[
        bool, typer.Option("--scores", help="include the head that scores the vocabulary, of a configuration")
    ] = False,
    results: options.Results = None,
) -> None:
    """Run a MODEL on ranks, as processes of this machine, over torch.distributed (gloo), in float64. The output is
    compared with that of one rank, counted work with the formulas. A configuration without weights gets random
    ones."""
    from opmatrix.parallel.launch.headings import RanksFailed
    from opmatrix.parallel.launch.jobs import job_mesh
    from rewrites.cli.partitions import stages_of

    possible({"--trace": (watched.trace, traceable), "--json": (results, writable)}, model)
    mesh = axes.mesh()
    if learned.train and decode:
        raise InputError("--decode, --train: ranks do one of the two: leave one out")
    learns = check_steps(learned)
    if ranks is not None and ranks != mesh.ranks:
        names = " × ".join(f"{axis.name} {axis.ranks}" for axis in mesh) or "one rank"
        raise InputError(f"--ranks {ranks}: the axes have {mesh.ranks} ({names}): give axes with that product")
    if not 0 < watched.deadline < 1e9:
        raise InputError(f"--deadline {watched.deadline:g}: seconds, more than 0")
    asked = dict(
        **job_mesh(mesh),
        steps=steps,
        seed=learned.seed,
        stages=stages_of(stages),
        scores=scores,
        traced=watched.trace is not None,
        train=learns,
        decode=decode,
    )
    try:
        text, figures = launched(model, (batch, tokens), asked, watched)
    except RanksFailed as error:
        end_with(str(error))
    say(text)
    write_results(figures, results)
    if not figures["holds"]:
        end_with("ranks differ from one rank or from the formulas, as the table says")


def end_with(line: str) -> NoReturn:
    """Print one line on the standard error, and exit with status 1."""
    typer.echo(printable(f"opmatrix: {' '.join(line.split())}"), err=True)
    raise typer.Exit(1)


def traceable(place: Path) -> None:
    """Raise InputError for a trace with an unknown suffix, and for a place that cannot be written."""
    if place.suffix not in (".json", ".svg"):
        raise InputError(f"{place}: a trace is a .json of Chrome's tracing or an .svg: give such a name")
    writable(place)


def launched(
    model: str, size: tuple[int, int], asked: dict[str, object], watched: WatchOptions
) -> tuple[str, dict[str, object]]:
    """Run ranks and return their results, as text and as figures. Raises InputError for an impossible model or mesh,
    and RanksFailed if a rank fails."""
    import numpy as np

    from formats.disk.files import replacing
    from opmatrix.display.tables import table
    from opmatrix.parallel.cost.overview import describe_axes, shorten
    from opmatrix.parallel.launch.compare_runs import judge_of
    from opmatrix.parallel.launch.counters import unlike_said
    from opmatrix.parallel.launch.jobs import Job
    from opmatrix.parallel.launch.launcher import Ranks
    from opmatrix.parallel.launch.rank_traces import chrome_trace, drawn_trace
    from rewrites.cli.partitions import name_of

    if size[0] * size[1] > options.LARGEST_BATCH:
        raise InputError(f"--batch {size[0]}, --tokens {size[1]}: at most {options.LARGEST_BATCH} tokens together")
    opened = given_model(model)
    wide = size[0], size[1] + bool(asked["train"])  # the next token of each is its target
    ids = np.random.default_rng(int(str(asked["seed"]))).integers(0, vocabulary_of(opened), wide)
    job = Job(opened, ids=ids.tolist(), **asked)  # type: ignore[arg-type]
    term = job.operator()
    plan = job.plan(term)  # raises InputError before a process starts
    ready = judge_of(job, plan, term)
    with Ranks(int(job.mesh.ranks), watched.deadline, watched.port) as ranks:
        ran = ranks.run(job)
    counts, far, more = ready(ran, watched.compare)
    trace = watched.trace
    if trace is not None:
        text = chrome_trace(ran.moments) if trace.suffix == ".json" else drawn_trace(ran.moments)
        with replacing(trace) as out:
            out.write(text.encode())
    bad = [*unlike_said(counts)]
    rows = [
        [
            count.name,
            shorten(count.counted, count.unit),
            shorten(count.formula, count.unit),
            "equal" if count.holds else f"differs, first at {count.differs}",
        ]
        for count in counts
    ]
    compared = [table(rows, ["all ranks", "counted", "by the formulas", ""], (0,)), ""] if rows else []
    lines = [
        f"{name_of(model)} on {job.mesh.ranks} processes: {describe_axes(job.mesh)}; {size[0]} sequences of "
        f"{size[1]} tokens, float64",
        "",
        *compared,
        f"a step takes {1e3 * ran.later:.1f} ms, the first took {1e3 * ran.seconds[0]:.1f} ms; memory of all "
        f"ranks {shorten(ran.memory[-1], 'B')}, {shorten(ran.memory[0], 'B')} after the first",
        *more,
    ]
    what = "loss" if job.train is not None else "entry"
    if far is not None and not job.decode:
        lines.append(f"from one rank: {far:.1e} of the largest {what} at most")
    if trace is not None:
        lines.append(f"the last step is in {trace}")
    figures: dict[str, object] = dict(
        holds=not bad and (far is None or far <= TOO_FAR),
        far=far,
        seconds=[*ran.seconds],
        memory=[*ran.memory],
        counts=[
            dict(name=count.name, unit=count.unit, counted=count.counted, formula=count.formula) for count in counts
        ],
    )
    return "\n".join(lines), figures


def check_steps(learned: RunStepsOptions) -> dict[str, object] | None:
    """Check and collect the options of steps of training; None without `--train`. Raises InputError for an option with
    an unknown value, and for an option without `--train`."""
    from opmatrix.parallel.cost.timed_step import RECOMPUTED
    from opmatrix.parallel.train.requested_steps import TrainAsked, check_train_asked
    from rewrites.cli.partitions import check_among, check_left_out

    if not learned.train:
        check_left_out(left_out(learned, "train", "seed"), "steps of training")
        return None
    check_among("--recompute", learned.recompute, [*RECOMPUTED])
    keep = RECOMPUTED[learned.recompute]
    asked = TrainAsked(learned.rate, learned.schedule, learned.micro_batches, keep, learned.dropout, learned.seed)
    check_train_asked(asked)
    return asked._asdict()


def given_model(model: str) -> str | Settings:
    """Return the model that ranks open: a configuration, or the directory of a checkpoint. Raises InputError for a
    configuration of more numbers than ranks may draw, and for one whose sizes have names."""
    from opmatrix.files.fetch import MODELS
    from opmatrix.models import check, parameters
    from rewrites.cli.predict import open_promised
    from rewrites.search.planned import configured, weightless

    if not weightless(model):
        if model in MODELS:
            return model
        open_promised(model)  # raises InputError if it is no model
        return str(Path(model).resolve()) if Path(model).exists() else model
    config = configured(model)
    check(config)
    if (count := parameters(config)) > DRAWN_WEIGHTS:
        raise InputError(
            f"{model}: {count:.3g} weights, to be drawn at random by every rank: at most {DRAWN_WEIGHTS:.0e}; "
            "give a checkpoint, or fewer layers"
        )
    return dict(config)


def vocabulary_of(given: str | Settings) -> int:
    """Return the number of tokens in a model's vocabulary."""
    from opmatrix.files.checkpoint import open_model
    from opmatrix.models import normalise_config

    config = open_model(given).config if isinstance(given, str) else given
    return int(normalise_config(config)["vocab_size"])
