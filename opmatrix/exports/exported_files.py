"""Files of exports: written in a directory beside their place, checked, and moved there when they are complete."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from formats.core.errors import InputError
from formats.disk.files import reason, shown, writable
from opmatrix.exports.fx_module import export_program
from opmatrix.exports.graph import SymbolicArray
from opmatrix.exports.onnx_file import OUTSIDE, make_onnx, write_weights
from opmatrix.exports.program_graph import ProgramGraph, read_program
from opmatrix.runtime.program import Program


def export_files(program: Program, onnx: Path | None, torch: Path | None) -> str:
    """Write a program as an ONNX file, as a file of torch.export, or both; return what was written, in words. Raises
    InputError for a step that cannot be exported, and as `export_onnx` and `export_torch` do."""
    read = read_program(program)
    written = [*(export_onnx(read, onnx) if onnx else ()), *(export_torch(read, torch) if torch else ())]
    lines = [f"{place}, {place.stat().st_size / 1e6:,.1f} MB" for place in written]
    lines += [f"inputs   {', '.join(map(describe_value, read.inputs.items()))}"]
    lines += [f"outputs  {', '.join(map(describe_value, read.outputs.items()))}"]
    if read.widened:
        formats = ", ".join(f"{name} x{count}" for name, count in read.widened.items())
        lines += [f"float32  the numbers of {formats}; rows that these formats round are not rounded"]
    return "\n".join(lines)


def describe_value(entry: tuple[str, SymbolicArray]) -> str:
    """Return an input or an output in words: its name, its number type, its sizes."""
    name, value = entry
    return f"{name} {value.dtype}[{', '.join(map(str, value.shape))}]"


def check_place(target: Path) -> None:
    """Raise InputError for a target that exists, and for one that cannot be written."""
    refuse_existing(target)
    writable(target)


def export_onnx(read: ProgramGraph, file: str | Path) -> list[Path]:
    """Write a program's graph as an ONNX file, which onnx.checker has passed; return the files. Weights of a large
    model are in a second file, FILE.data, which has to stay beside it. Raises InputError for a file that exists or that
    cannot be written, and without the package onnx."""
    target = Path(file)
    with fresh_files(target, f"{target.name}{OUTSIDE}") as fresh:
        model = make_onnx(read, f"{target.name}{OUTSIDE}")
        import onnx

        (fresh / target.name).write_bytes(model.SerializeToString())
        write_weights(read, fresh / f"{target.name}{OUTSIDE}")
        onnx.checker.check_model(str(fresh / target.name))
    return existing(target, f"{target.name}{OUTSIDE}")


def export_torch(read: ProgramGraph, file: str | Path) -> list[Path]:
    """Write a program's graph as torch.export writes programs, for torch.export.load; return the file. Raises
    InputError for a file that exists or that cannot be written, and without torch."""
    target = Path(file)
    with fresh_files(target) as fresh:
        export_program(read, str(fresh / target.name))
    return existing(target)


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
