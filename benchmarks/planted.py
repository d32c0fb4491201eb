"""Kernels that are wrong for some data or lengths alone: which does `verify` of a saved program find, which
`optimize`?

    python benchmarks/planted.py [--of lengths|data] [--count 60] [--family bert|gpt2|llama|mistral|mixtral]
                                 [--positions 300] [--model DIR] [--number-type int8] [--seed 0] [--csv OUT]

Faults of lengths are of eight kinds (tests/support/wrong_kernels.py): an input, a key, a row, a head, a group or a
tail that is lost, a wrong scale, wrong bits; of products, attention in float32 and in bfloat16, rotations, norms,
pooling, embeddings. Of a family that decodes every third is one of its sessions (tests/support/wrong_sessions.py):
lost pages and rows, page boundaries, masks of several rows, shared writes, rewinds, double rounding, windows, two
threads. Each appears only in sequences longer, or rows further, than a threshold drawn within the lengths that the
certificates list. Faults of data (tests/support/wrong_for_data.py) are made from what kernels declare: rows that are
zero, equal, tiny, huge, of a drawn size, an id of a table, ties, an expert without rows, of one or of all, an eps
that is forgotten. The model is a random one of a family, of so many positions, or one of your own; its front is made
once without faults, and its programs are verified with each fault, those that have the kernel, by `verify` and as
`optimize` does it; with every tenth fault all of `optimize` runs. `sentences` says how many the checks on the
sentences of certificates find alone."""

import json
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple
from unittest import mock

from lib import command
from lib.command import Figure, Parser, concluded, count, folder, say, tabled, takes, whole

import numpy as np

WORDS = "the bank of river runs dry a ? . bank river runs of the dry".split()
WHOLE = 10  # of so many faults one is met by all of `optimize`
FAMILIES = {  # of one layer
    "bert": dict(hidden_size=64, intermediate_size=128, num_attention_heads=2, num_hidden_layers=1),
    "gpt2": dict(vocab_size=41, n_embd=64, n_layer=1, n_head=2),
    "llama": dict(
        vocab_size=41,
        hidden_size=64,
        intermediate_size=128,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_hidden_layers=1,
    ),
    "mistral": dict(
        vocab_size=41,
        hidden_size=64,
        intermediate_size=128,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_hidden_layers=1,
        sliding_window=21,
    ),
    "mixtral": dict(
        vocab_size=41,
        hidden_size=64,
        intermediate_size=96,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_hidden_layers=1,
        num_local_experts=4,
        num_experts_per_tok=2,
        sliding_window=None,
    ),
}
COLUMNS = "kind", "faults", "sentences", "verify", "optimize"


class Found(NamedTuple):
    """What found a fault: the checks on sentences alone, `verify`, `optimize`."""

    kind: str
    sentences: bool
    verify: bool
    optimize: bool


def main() -> int:
    parser = Parser(__doc__)
    parser.add_argument("--of", choices=("lengths", "data"), default="lengths")
    parser.add_argument("--count", type=count, default=60)
    parser.add_argument("--positions", type=count, default=300)
    parser.add_argument("--model", type=folder, help="a checkpoint")
    parser.add_argument("--family", choices=FAMILIES, default="bert")
    parser.add_argument("--number-type", choices=("float32", "bf16", "int8", "int4"), default="int8")
    parser.add_argument("--seed", type=whole, default=0)
    given = parser.parse_args()
    takes(30 + 5 * given.count)
    with tempfile.TemporaryDirectory() as place:
        model = given.model or written(Path(place, "model"), given.family, given.positions)
        found = judged(Path(place), model, given.number_type, drawing(given.of, given.count, given.seed))
    rows, width = table(found), max(len(each.kind) for each in found)
    print(f"seed {given.seed}")
    for kind, *row in rows:
        print(f"{kind:>{max(9, width)}}", *(f"{cell!s:>9}" for cell in row))
    tabled(given.csv, rows)
    _, faults, _, verified, optimized = rows[-1]
    concluded(
        given,
        [
            Figure(f"of {faults} faults those that verify does not find", faults - verified, most=0),
            Figure(f"of {faults} faults those that optimize does not find", faults - optimized, most=0),
        ],
    )
    return int(min(verified, optimized) < faults)


def table(found: list[Found]) -> list[tuple]:
    """A row a kind, and all of them."""
    counted = {kind: Counter[str]() for kind in (*dict.fromkeys(each.kind for each in found), "all")}
    for each in found:
        for kind in (each.kind, "all"):
            counted[kind] += Counter(faults=1, sentences=each.sentences, verify=each.verify, optimize=each.optimize)
    return [COLUMNS, *((kind, *(row[column] for column in COLUMNS[1:])) for kind, row in counted.items())]


def written(place: Path, family: str, positions: int) -> Path:
    """A checkpoint of random numbers."""
    from checkpoints import fused, safetensors, write, write_tokenizer
    from random_models import random_weights

    from opmatrix.models import build

    if family == "bert":
        return write(place, **FAMILIES[family], max_position_embeddings=positions)
    limit = "n_positions" if family == "gpt2" else "max_position_embeddings"
    config = FAMILIES[family] | {"model_type": family, limit: positions}
    build(config, numbers := random_weights(config, np.random.default_rng(0)))
    place.mkdir()
    place.joinpath("config.json").write_text(json.dumps(config))
    safetensors(place / "model.safetensors", fused({name: data.array for name, data in numbers.made.items()}))
    write_tokenizer(place / "tokenizer.json")
    return place


def drawing(of: str, count: int, seed: int):
    """Return a function that draws `count` faults for programs and a longest sentence, and one that tells whether
    a program meets a fault."""
    import wrong_for_data
    import wrong_kernels

    rng = np.random.default_rng(seed)
    if of == "data":
        return lambda programs, _: wrong_for_data.drawn(rng, count, programs), wrong_for_data.meets
    return lambda programs, longest: with_sessions(
        wrong_kernels.drawn(rng, count, longest, kernels_of(programs)), programs[0], longest, seed
    ), has


def judged(place: Path, model: Path, number_type: str, drawn_faults) -> list[Found]:
    """Verify saved programs with each fault planted, and list which door found it."""
    from opmatrix.runtime.program import Program

    (draw, meets), (searched, points) = drawn_faults, verified(model, number_type)
    longest = max(map(max, points[0].lengths))
    places = [place / f"{at}" for at in range(len(points))]
    for each, point in zip(places, points, strict=True):
        point.program.save(each)
    found = []
    say(f"texts of up to {longest} tokens")
    for at, fault in enumerate(draw([point.program for point in points], longest)):
        with fault.planted():
            programs = [Program.load(each) for each in places]
            names = [checked(program) for program in programs if meets(program, fault)]
            short = all("steps within bounds" in each for each in names)
            ended = refused(lambda: verified_anew(searched, points)) and (
                at % WHOLE or refused(lambda: verified(model, number_type))
            )
            found.append(Found(fault.kind, short, all(map(bool, names)), bool(ended)))
        if not (found[-1].verify and found[-1].optimize):
            say(f"not found: {fault}: {found[-1]}")
        elif len(found) % 10 == 0:
            say(f"{len(found)} faults")
    return found


def with_sessions(faults, program, longest: int, seed: int):
    """These faults; of a program that decodes a fault of its sessions in place of every third."""
    import wrong_sessions

    from opmatrix.inference.cached import decoder_of, rows_behind

    decoder = decoder_of(program)
    if decoder is None:
        return faults
    others = wrong_sessions.endless(np.random.default_rng(seed), longest, rows_behind(decoder) < longest)
    return (next(others) if at % 3 == 2 else fault for at, fault in enumerate(faults))


def verified(model: Path, number_type: str):
    """What `optimize` searches within 5 %, and its programs, verified; laws and their graphs are verified elsewhere."""
    import standin
    from pytest import MonkeyPatch

    from rewrites import run

    rng, stages = np.random.default_rng(0), []
    with tempfile.TemporaryDirectory() as place, MonkeyPatch.context() as patch:
        standin.know_laws(patch)
        time_front = run.time_front
        patch.setattr(
            run,
            "time_front",
            lambda searched, front, *given: (
                stages.append((searched, front.points)),
                time_front(searched, front, *given),
            )[1],
        )
        text = Path(place, "lines.txt")
        text.write_text("\n".join(" ".join(rng.choice(WORDS, rng.integers(3, 20))) for _ in range(80)))
        run.optimize(
            str(model),
            error=0.05,
            text=str(text),
            tokens=60,
            number_type=number_type,
            machine=standin.machine(),
            rounds=1,
        )
    return stages[0]


def verified_anew(searched, points) -> None:
    """What `optimize` does with the programs that it found, which are bound again to the kernels that there are now."""
    from rewrites.report.checked import check_decoders, check_lengths
    from rewrites.verify import verify_steps

    told = set()
    points = [replace(point, program=point.program.over(point.program.steps)) for point in points]
    programs = {name: program.over(program.steps) for name, program in searched.programs.items()}
    few = searched.workload.few
    for program in (programs["imported"], *(point.program for point in points)):
        verify_steps(program, [few], told)
    check_lengths(replace(searched, programs=programs | {"exact": points[0].program}), points, few)
    check_decoders(points, few)


def refused(call) -> bool:
    """Whether verification ends it."""
    from rewrites.verify import VerificationError

    try:
        call()
    except VerificationError:
        return True
    return False


def kernels_of(programs: list) -> dict[str, list[bool]]:
    """The kernels that programs have; of attention whether in bfloat16."""
    found: dict[str, set[bool]] = {}
    for program in programs:
        for call in program.schedule.calls[program.schedule.first :]:
            narrow = getattr(call.bound, "number_type", "float32") != "float32"
            found.setdefault(call.kernel.name, set()).add(narrow)
    return {name: sorted(each) for name, each in found.items()}


def has(program, fault) -> bool:
    """Tell whether a program has the kernel of a fault, or sessions."""
    if not hasattr(fault, "narrow"):
        return True
    return fault.narrow in kernels_of([program]).get(fault.kernel, ()) or (
        not fault.narrow and fault.kernel in kernels_of([program])
    )


def checked(program) -> set[str]:
    """What fails of a program that is verified."""
    from rewrites.metrics import recheck

    with mock.patch.object(recheck, "verify_laws", lambda laws: {"laws": len(laws)}):
        return {check.what for check in recheck.checks(program) if check.verdict == recheck.FAILS}


if __name__ == "__main__":
    command.run(main)
