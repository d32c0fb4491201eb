"""`om.distil`: a student of a model, trained towards it on unlabelled text, back as a program, and certified against
the model. Hinton, Vinyals and Dean 2015 (arXiv:1503.02531) for logits; embeddings are matched themselves."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from formats.core.errors import InputError
from formats.disk.files import shown, writable
from formats.host.threads import single_blas
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.batch.extents import patterns
from opmatrix.algebra.term import Operator
from opmatrix.display.tables import few_digits, percent
from opmatrix.exports.fx_module import check_torch, to_torch
from opmatrix.exports.read_back import from_torch
from opmatrix.files.checkpoint import Checkpoint, open_model
from opmatrix.runtime.program import OUTPUT, Program
from rewrites.approximate.students.smaller import KeptShares, make_smaller
from rewrites.approximate.students.training import Lesson, Objective, Trainer, TrainingPlan, TrainingState, train
from rewrites.approximate.students.training_text import TrainingText, read_training_text
from rewrites.laws import EXACT_LAWS
from rewrites.lowering.price import TimeModel
from rewrites.metrics.compared import compare
from rewrites.metrics.recheck import RUN_MAKES, RunChecks, check_certificates, import_program
from rewrites.search.search import SearchSpace, cheapest
from rewrites.verify import verify_laws
from rewrites.verify.certificate import certify
from rewrites.verify.differences import Change
from rewrites.verify.programs import EQUAL, ROUNDING, oracle, unrounded, verify_steps, verify_structure
from rewrites.verify.routed import run_beside
from rewrites.workload.line_rows import batch_of_rows
from rewrites.workload.phases import Report, Tell
from rewrites.workload.resolve import calibrated, source
from rewrites.workload.stated import Stated
from rewrites.workload.workload import CHECKED_ROWS, CHOOSE, VERIFY

if TYPE_CHECKING:
    from torch.fx import GraphModule
    from torch.nn import Module

LENGTH = 128  # most tokens of a text that trains
SEARCHED_TEXTS = 8  # texts of a batch that the student's program is made cheapest for
TRAINING_FILE = ".training.safetensors"  # behind the name of the target
OBS, MAGNITUDES = "gram", "none"  # how what is removed is chosen: corrected in closed form, or by size alone


@dataclass(frozen=True)
class Distilled:
    """A student: its certified program, how it was trained, and its stated error against the model. Held-out errors are
    relative, of a language model nats a token."""

    program: Program
    training: TrainingState
    stated: float
    divergence: bool
    removed: str

    def __str__(self) -> str:
        state, unit = self.training, " nats a token" if self.divergence else " relative"
        return "\n".join(
            [
                f"student   {self.removed}; {self.program.stored_bytes / 1e6:,.1f} MB",
                f"trained   {state.step} steps, {state.seconds:,.0f} s, {state.cpu_seconds:,.0f} CPU s",
                f"kept      the state of step {state.best_step}",
                f"held out  off by {few_digits(state.first)} before, {few_digits(state.best)} after,{unit}",
                f"stated    texts like these are off by {percent(self.stated)} together",
            ]
        )


@dataclass(frozen=True)
class Pupil:
    """A student before it is trained, as an operator or as a saved program, and how it was made, in words."""

    source: Operator | Program
    removed: str


@dataclass(frozen=True)
class Teacher:
    """The model that is learnt from: its checkpoint, its operator, a program of it with a kernel for each operator, the
    text."""

    checkpoint: Checkpoint
    operator: Operator
    imported: Program
    text: TrainingText

    @classmethod
    def open(cls, model: "str | Path | Module | Checkpoint", text: str | Path, tokens: int) -> "Teacher":
        """Open a model, and read its text."""
        checkpoint = open_model(model)
        read = read_training_text(checkpoint, text, min(tokens, checkpoint.positions))
        operator = checkpoint.operator(not checkpoint.speaks)
        return cls(checkpoint, operator, import_program(operator).replace(**source(checkpoint)), read)


def distil(
    model: "str | Path | Module | Checkpoint",
    text: str | Path,
    out: str | Path | None = None,
    *,
    student: Program | str | Path | None = None,
    units: float = 0.5,
    heads: float = 0.5,
    tokens: int = LENGTH,
    minutes: float = 15.0,
    steps: int | None = None,
    batch: int = 1024,
    rate: float = 2e-4,
    sparsity: float = 0.0,
    seed: int = 0,
    magnitudes: bool = False,
    machine: TimeModel | None = None,
    report: Report | None = None,
) -> Distilled:
    """Return a student of a model: fewer hidden units and heads, trained on unlabelled text towards the model's
    embeddings, or, of a language model, towards its distribution of the next token; as a program that is certified
    against the model.

    model         name or directory of a checkpoint, or a model in memory
    text          a file of lines: most train, one in eight chooses the best state, one in eight states the error
    out           where to save the program, which nothing may be at; beside it a file OUT.training.safetensors, from
                  which a run that was interrupted goes on, is there until the program is
    student       instead of `units` and `heads`: a program of the model, or its directory, such as one of a front, with
                  weights in float32 or of low rank; it is trained as it is
    units, heads  shares that are kept, from 1/8 to 1; layers keep more or fewer, as predicted losses say
    tokens        most tokens of a text
    minutes       of training, a limit by the clock; or `steps` of about `batch` tokens each
    rate, seed    the largest learning rate of AdamW; the seed of the order of texts
    sparsity      share of the entries of matrices, but of tables, that are pruned on the way
    magnitudes    remove what is smallest, without a correction of the rest: to compare

    SIGTERM or an interrupt from the keyboard ends the training, and the best state up to then becomes the program. The
    machine is this one, from its calibration. Raises InputError for arguments and files that do not fit, and for a
    student whose outputs differ from the model's by 100 % or more."""
    report = Report(quiet=True) if report is None else report
    plan, kept = TrainingPlan(minutes, steps, batch, rate, sparsity, seed), KeptShares(units, heads)
    with report.phase("model"):
        check_torch()
        plan.check()
        kept.check()
        target = None if out is None else Path(out)
        if target is not None:
            check_target(target)
        teacher = Teacher.open(model, text, tokens)
    with report.phase("student"):
        pupil = prune_model(teacher, kept, magnitudes) if student is None else open_student(student, teacher)
    with report.phase("train") as progress:
        trained, state = teach(teacher, pupil, plan, text, target, progress)
    with report.phase("search") as progress:
        program, checks = find_program(trained, teacher, machine, progress)
    with report.phase("certify"):
        program, stated = certify_student(
            program, teacher, {**checks, "student": {"removed": pupil.removed} | vars(state)}, text
        )
    if target is not None:
        program.save(target)
        training_file(target).unlink(missing_ok=True)
    return Distilled(program, state, stated, teacher.checkpoint.speaks, pupil.removed)


def check_target(target: Path) -> None:
    """Raise InputError if something is at the place of a program, or it cannot be written."""
    if target.exists():
        raise InputError(f"{shown(target)}: it exists, and a student replaces nothing: remove it, or give another name")
    writable(training_file(target))


def training_file(target: Path) -> Path:
    """Return the file, beside a program's place, that an interrupted training goes on from."""
    return target.with_name(target.name + TRAINING_FILE)


def prune_model(teacher: Teacher, kept: KeptShares, magnitudes: bool) -> Pupil:
    """Return the model with these shares of its units and heads."""
    probe = next(batch_of_rows(teacher.text.choose).pieces(CHOOSE))
    metric = MAGNITUDES if magnitudes else OBS
    with single_blas():
        removed = make_smaller(teacher.operator, teacher.imported, kept, teacher.text.fit, probe, metric)
    return Pupil(removed.model, f"{removed.name}, by size alone" if magnitudes else removed.name)


def open_student(student: Program | str | Path, teacher: Teacher) -> Pupil:
    """Return a program as a student. Raises InputError for one that cannot be read, or is of another model."""
    program = student if isinstance(student, Program) else Program.load(student)
    wanted = teacher.imported
    if program.meta.get("config") != wanted.meta["config"] or program.space != wanted.space:
        name = program.meta.get("model", "program")
        raise InputError(f"--student: {name!s:.60}: it is no program of {teacher.checkpoint.name}, or gives other rows")
    return Pupil(program, f"a program of {len(program.steps)} steps")


def teach(
    teacher: Teacher, pupil: Pupil, plan: TrainingPlan, text: str | Path, target: Path | None, progress: Tell
) -> tuple[Operator | Program, TrainingState]:
    """Return the trained student, and how it was trained. Raises InputError for one without weights to train, and
    before training for one whose weights cannot be read back."""
    module, model = to_torch(pupil.source), to_torch(teacher.operator)
    if not [*module.parameters()]:
        raise InputError("distil: the student has no weights to train: give another one")
    from_torch(module)
    model.requires_grad_(False)
    lesson = Lesson(module, model, teacher.text, Objective(teacher.checkpoint.speaks))
    learnt = describe_lesson(teacher, text, pupil, module, plan)
    state = train(Trainer(lesson, plan), target and training_file(target), learnt, progress)
    return from_torch(module), state


def describe_lesson(teacher: Teacher, text: str | Path, pupil: Pupil, module: "GraphModule", plan: TrainingPlan) -> str:
    """Return the digest of what a training file belongs to: the model, the text and where it is cut, the student and
    its sizes, the order of texts."""
    checkpoint, shapes = teacher.checkpoint, {name: [*tensor.shape] for name, tensor in module.state_dict().items()}
    student = pupil.source.hash if isinstance(pupil.source, Program) else pupil.removed
    tokens = [sum(len(row) for row, _ in rows) for rows in (teacher.text.train, teacher.text.choose)]
    learnt: list[object] = [
        checkpoint.name,
        dict(checkpoint.config),
        hashlib.sha256(Path(text).read_bytes()).hexdigest(),
        shapes,
    ]
    learnt += [student, tokens]
    return hashlib.sha256(repr([*learnt, plan.batch, plan.seed, plan.sparsity]).encode()).hexdigest()


def find_program(
    trained: Operator | Program, teacher: Teacher, machine: TimeModel | None, progress: Tell
) -> tuple[Program, dict[str, object]]:
    """Return the cheapest exact program of a trained student, and the checks that it passed; a student that is a
    program stays as it is."""
    few = few_texts(teacher.text)
    if isinstance(trained, Program):
        program = trained.replace(**source(teacher.checkpoint))
        return program, {"steps": verify_steps(program, [few])}
    length = min(LENGTH, teacher.checkpoint.positions)
    timed = Batch([[0] * length] * SEARCHED_TEXTS)
    machine = calibrated(progress, timed) if machine is None else machine
    structure = cheapest(SearchSpace(trained, EXACT_LAWS, machine, timed.extents(patterns(trained))))
    program, emitter = structure.program(source(teacher.checkpoint))
    equal = verify_structure(program, [few], unrounded(structure, emitter), oracle(trained, [few]), trained)
    return program, {"float64 of the student": equal, "steps": verify_steps(program, [few])}


def few_texts(text: TrainingText) -> Batch:
    """Return the texts that every step is checked on."""
    return next(batch_of_rows(text.state).pieces(CHECKED_ROWS))


def certify_student(
    program: Program, teacher: Teacher, checks: dict[str, object], text: str | Path
) -> tuple[Program, float]:
    """Return a student's program with its certificate, and its stated error against the model on texts that neither
    trained it nor chose it. Raises InputError for an error of 100 % or more, VerificationError where a check fails."""
    state, few, model = batch_of_rows(teacher.text.state), few_texts(teacher.text), teacher.operator
    verify = next(state.pieces(VERIFY))
    near = oracle(model, [few])
    (base, off), [compared] = compare([teacher.imported, program], {OUTPUT: model}, verify, state, [True, False])
    beside = run_beside(program, model, [few], near, exact=False)
    shown = Change.of(beside.found[0], beside.alone[0], program.starts(few))
    measured, worst = max(*off.free.values(), shown.relative), float(shown.each.max())
    stated = Stated.of(
        compared.change,
        compared.cosines,
        ROUNDING * base.along[OUTPUT],
        measured + EQUAL,
        checked_sentence=worst + EQUAL,
    )
    if not stated.error < 1:
        raise InputError(
            f"distil: the student is off by {percent(stated.error)}, and a certificate states less than 100 %: train "
            "longer, or keep more"
        )
    error = {"relative": off.free[OUTPUT], "stated": stated.error, "rows": state.rows, "like": f"the lines of {text}"}
    results = {"error": error | stated.described(), "laws": verify_laws(EXACT_LAWS), **checks}
    certified = certify(program, results, [few])
    check_certificates([certified], model, RunChecks(RUN_MAKES, [few], near, teacher.imported))
    return certified, stated.error
