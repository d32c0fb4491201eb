"""Groups of options: a command that takes records has an option for each field, under the group's heading."""

import inspect
from dataclasses import dataclass
from typing import Annotated, ClassVar

import pytest
import typer
from typer.testing import CliRunner

from rewrites.cli import rank_commands
from rewrites.cli.commands import app
from rewrites.cli.option_groups import (
    MeshOptions,
    PlannedMeshOptions,
    RunStepsOptions,
    StoredOptions,
    TrainedStepOptions,
    WatchOptions,
    left_out,
    options_of,
    with_groups,
)

COMMANDS = typer.main.get_command(app).commands
GROUPS = {
    "partition": (PlannedMeshOptions, StoredOptions, TrainedStepOptions),
    "launch": (MeshOptions, RunStepsOptions, WatchOptions),
}


@dataclass(frozen=True)
class Pair:
    HEADING: ClassVar[str] = "A pair"
    left: Annotated[int, typer.Option(min=0, help="the left one")] = 1
    right_side: Annotated[str, typer.Option("--right", help="the right one")] = "r"


def own_app(seen):
    own = typer.Typer()

    @own.command()
    @with_groups
    def show(pair: Pair, last: Annotated[bool, typer.Option("--last")] = False) -> None:
        """Show a pair."""
        seen.append((pair, last))

    return own


@pytest.mark.parametrize(
    "words, wanted",
    [
        ([], (Pair(), False)),
        (["--left", "3", "--last"], (Pair(3), True)),
        (["--right", "x", "--left", "0"], (Pair(0, "x"), False)),
    ],
)
def test_a_record_is_made_of_the_line(words, wanted):
    seen = []
    done = CliRunner().invoke(own_app(seen), words)
    assert done.exit_code == 0 and seen == [wanted]


@pytest.mark.parametrize("words", [["--left", "-1"], ["--left", "x"], ["--right"], ["--pair", "3"]])
def test_what_a_field_refuses_is_refused(words):
    seen = []
    assert CliRunner().invoke(own_app(seen), words).exit_code == 2 and not seen


def test_help_shows_fields_under_the_heading():
    shown = CliRunner().invoke(own_app([]), ["--help"]).output
    assert "A pair" in shown and "the left one" in shown and "--right" in shown and "Show a pair." in shown


@pytest.mark.parametrize("name", GROUPS)
def test_every_field_is_an_option_with_its_default(name):
    options = {each.name: each for each in COMMANDS[name].params}
    for group in GROUPS[name]:
        for field in options_of(group):
            assert options[field.name].default == field.default, field.name
            assert options[field.name].rich_help_panel == group.HEADING


@pytest.mark.parametrize("name", GROUPS)
def test_commands_take_few_parameters(name):
    command = inspect.unwrap(getattr(rank_commands, f"{name}_model"))
    assert len(inspect.signature(command).parameters) <= 12


def test_options_that_belong_to_training_are_told_apart_from_their_defaults():
    options = left_out(RunStepsOptions(rate=0.5), "train", "seed")
    assert {name for name, (value, usual) in options.items() if value != usual} == {"--rate"}
    assert {"--train", "--seed"}.isdisjoint(options) and "--micro-batches" in options
