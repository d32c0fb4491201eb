"""Files of exports: written in a directory beside their place, checked, and moved there when they are complete."""

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from uuid import uuid4

from formats.core.errors import InputError
from formats.disk.files import parse_json, reason, shown, writable
from opmatrix.exports.cached_graph import read_cached
from opmatrix.exports.fx_module import check_torch, export_program
from opmatrix.exports.graph import SymbolicArray
from opmatrix.exports.onnx_file import OUTSIDE, check_onnx, make_onnx, write_weights
from opmatrix.exports.program_graph import ProgramGraph, read_program
from opmatrix.exports.runtimes import ONNX_ENDING, TORCH_ENDING
from opmatrix.runtime.program import Program

ExportOrigin = Mapping[str, object]
MOST_TOLD = 6  # inputs or outputs that are described
NO_ORIGIN: ExportOrigin = MappingProxyType({})
CACHES = "caches"  # the entry of an origin that says that a file has caches
ORIGIN = "opmatrix"  # the entry of a file's metadata: the program that it was made of, and its measurement, in JSON


def export_files(program: Program, onnx: Path | None, torch: Path | None, caches: bool = False) -> str:
    """Write a program as an ONNX file, as a file of torch.export, or both, over caches or not; return what was written,
    in words. Raises InputError for a step that cannot be exported, and as `export_onnx` and `export_torch` do."""
    read, origin = read_cached(program) if caches else read_program(program), name_origin(program, caches)
    return describe_files(
        read,
        [*(export_onnx(read, onnx, origin) if onnx else ()), *(export_torch(read, torch, origin) if torch else ())],
    )


def name_origin(program: Program, caches: bool) -> ExportOrigin:
    """Return the origin of a file: the digest of its program, and whether it has caches."""
    return {"program": program.hash, **({CACHES: True} if caches else {})}


def describe_files(read: ProgramGraph, written: Sequence[Path]) -> str:
    """Return files of an export in words: sizes, inputs, outputs, and what became of its weights."""
    lines = [f"{place}, {place.stat().st_size / 1e6:,.1f} MB" for place in written]
    lines += [f"inputs   {describe_values(read.inputs)}", f"outputs  {describe_values(read.outputs)}"]
    for counts, word, told in (
        (read.multiplied, "integers", "{} are multiplied as integers, rows rounded as the program rounds them"),
        (read.stored, "stored", "{} are stored as they are: a runtime widens them, or rounds rows its own way"),
        (read.narrow, "16 bits", "{} are stored as they are, and widened where they are read"),
        (read.widened, "float32", "the numbers of {}; rows that these formats round are not rounded"),
    ):
        if counts:
            formats = ", ".join(f"{name} x{count}" for name, count in counts.items())
            lines += [f"{word:8} {told.format(formats)}"]
    return "\n".join(lines)


def describe_values(values: Mapping[str, SymbolicArray]) -> str:
    """Return inputs or outputs in words; of many the first ones and the last."""
    words = [describe_value(entry) for entry in values.items()]
    return ", ".join(words if len(words) <= MOST_TOLD else [*words[: MOST_TOLD - 2], "…", words[-1]])


def describe_value(entry: tuple[str, SymbolicArray]) -> str:
    """Return an input or an output in words: its name, its number type, its sizes."""
    name, value = entry
    return f"{name} {value.dtype}[{', '.join(map(str, value.shape))}]"


def check_place(target: Path) -> None:
    """Raise InputError for a target that exists, and for one that cannot be written."""
    refuse_existing(target)
    writable(target)


def export_onnx(read: ProgramGraph, file: str | Path, origin: ExportOrigin = NO_ORIGIN) -> list[Path]:
    """Write a program's graph as an ONNX file, which onnx.checker has passed, with its origin; return the files.
    Weights of a large model are in a second file, FILE.data, which has to stay beside it. Raises InputError for a file
    that exists or that cannot be written, and without the package onnx."""
    target = Path(file)
    with fresh_files(target, f"{target.name}{OUTSIDE}") as fresh:
        model = make_onnx(read, f"{target.name}{OUTSIDE}", {ORIGIN: json.dumps(dict(origin))})
        import onnx

        (fresh / target.name).write_bytes(model.SerializeToString())
        write_weights(read, fresh / f"{target.name}{OUTSIDE}")
        onnx.checker.check_model(str(fresh / target.name))
    return existing(target, f"{target.name}{OUTSIDE}")


def export_torch(read: ProgramGraph, file: str | Path, origin: ExportOrigin = NO_ORIGIN) -> list[Path]:
    """Write a program's graph as torch.export writes programs, with its origin, for torch.export.load; return the file.
    Raises InputError for a file that exists or that cannot be written, and without torch."""
    target = Path(file)
    with fresh_files(target) as fresh:
        export_program(read, str(fresh / target.name), {ORIGIN: json.dumps(dict(origin))})
    return existing(target)


def read_origin(file: Path) -> dict[str, object]:
    """Return the origin that an exported file records. Raises InputError for a file that cannot be read, or that
    records none."""
    reads = {ONNX_ENDING: read_onnx_origin, TORCH_ENDING: read_torch_origin}
    if file.suffix not in reads:
        raise InputError(f"{shown(file)}: it is no export: give a file that ends in {' or '.join(reads)}")
    try:
        text = reads[file.suffix](file)
    except InputError:
        raise
    except Exception as error:  # readers of both formats raise what their own parsers do
        fault = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"{shown(file)}: it cannot be read: {fault[:200]}") from error
    origin = parse_json(text, f"{shown(file)}: metadata") if text else None
    if not isinstance(origin, dict):
        raise InputError(f"{shown(file)}: it does not record a program: export it again with this version")
    return origin


def read_onnx_origin(file: Path) -> str:
    """Return the text of the origin in an ONNX file; empty if there is none. Raises InputError without onnx."""
    check_onnx()
    import onnx

    model = onnx.load(str(file), load_external_data=False)
    return str({entry.key: entry.value for entry in model.metadata_props}.get(ORIGIN, ""))


def read_torch_origin(file: Path) -> str:
    """Return the text of the origin in a file of torch.export; empty if there is none. Raises InputError without
    torch."""
    check_torch()
    import torch

    beside = {ORIGIN: ""}
    torch.export.load(str(file), extra_files=beside)
    return str(beside[ORIGIN])


@contextmanager
def fresh_files(target: Path, *beside: str) -> Iterator[Path]:
    """Give a directory beside the target; what is written there, the target and files beside it, is moved to its place
    if nothing fails. Raises InputError for a target that exists, a directory that does not, and a disk that is full."""
    refuse_existing(target, *beside)
    fresh = target.parent / f".{uuid4().hex[:8]}.part"
    try:
        fresh.mkdir()
        yield fresh
        refuse_existing(target, *beside)
        for name in (*beside, target.name):
            if (fresh / name).exists():
                os.replace(fresh / name, target.parent / name)
    except OSError as error:
        raise InputError(f"{shown(target)}: not writable: {reason(error)}") from None
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def refuse_existing(target: Path, *beside: str) -> None:
    """Raise InputError for a target, or a file beside it, that exists."""
    for place in existing(target, *beside):
        raise InputError(f"{shown(place)}: it exists, and an export replaces no file: remove it, or give another name")


def existing(target: Path, *beside: str) -> list[Path]:
    """Return the target and the files beside it that exist."""
    return [place for place in (target, *(target.parent / name for name in beside)) if os.path.lexists(place)]
