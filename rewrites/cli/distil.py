"""The command `distil`: its options, and what it prints."""

from pathlib import Path
from typing import Annotated

import typer

from rewrites.cli import options
from rewrites.cli.outputs import possible, say


def distil_model(
    context: typer.Context,
    model: options.ModelName,
    text: Annotated[Path, typer.Option(metavar="FILE", help="unlabelled text: 256 different lines or more")],
    out: Annotated[
        Path | None, typer.Option(help="where to save the student; by default MODEL.student; nothing may be there")
    ] = None,
    student: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="train this program of the MODEL, in float32, instead of removing anything"),
    ] = None,
    units: Annotated[float, typer.Option(help="share of hidden units that the student keeps")] = 0.5,
    heads: Annotated[float, typer.Option(help="share of heads that the student keeps")] = 0.5,
    tokens: Annotated[int, typer.Option(min=2, help="most tokens of a text")] = 128,
    minutes: Annotated[float, typer.Option(help="minutes of training")] = 15.0,
    steps: Annotated[int | None, typer.Option(help="steps of training, instead of minutes")] = None,
    batch: Annotated[int, typer.Option(help="tokens of a step, about")] = 1024,
    rate: Annotated[float, typer.Option(help="largest learning rate of AdamW")] = 5e-4,
    sparsity: Annotated[float, typer.Option(help="share of the entries of matrices that are pruned on the way")] = 0.0,
    seed: options.Seed = 0,
    quiet: options.Quiet = False,
) -> None:
    """Train a smaller student of a MODEL on unlabelled text towards its embeddings, or the distribution of its next
    token; save it as a program, certified against the MODEL. An interrupt ends the training, and the best state becomes
    the program; a run that was killed goes on where it was. It needs torch."""
    from rewrites.workload.phases import Report, silence_stdout

    report = Report(quiet=quiet, began=context.obj)
    with report.phase("start", brief=True):
        from rewrites.approximate.students.distilled import check_target, distil

        target = out or Path(f"{Path(model).resolve().name}.student")
        possible({"--out": (target, check_target)}, model, text, student)
    with silence_stdout():
        distilled = distil(
            model,
            text,
            target,
            student=student,
            units=units,
            heads=heads,
            tokens=tokens,
            minutes=minutes,
            steps=steps,
            batch=batch,
            rate=rate,
            sparsity=sparsity,
            seed=seed,
            report=report,
        )
    say(f"{distilled}\nsaved     {target}")
