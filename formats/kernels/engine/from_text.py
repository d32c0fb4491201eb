"""Kernels from texts that are generated with a program: compiled when they are chosen, and found by a digest of the
text ever after."""

import json
from collections.abc import Iterable
from functools import cached_property
from importlib import import_module
from typing import Any

from formats.kernels.engine.compiled import FUNCTIONS, Function, Kernel, digest_code
from formats.kernels.engine.frozen import sources

PREFIX = "term-"  # prefix of their names; a digest of the text follows


class TextKernel(Kernel):
    """A kernel by its text, which declares one function with the names of a module, its home. Equal texts have one
    name."""

    def __init__(self, text: str, home: str) -> None:
        self.text, self.home = text, home
        self.name = f"{PREFIX}{digest_code(f'{sources(home)} {text}')}"
        self.arguments, self.result, self.rare, self.place = 3, False, True, 0

    @property
    def module(self) -> str:
        return self.home

    @property
    def symbol(self) -> str:
        return self.name

    @cached_property
    def words(self) -> dict[str, Any]:
        """The global names of the text and their values, in a process that compiles."""
        words: dict[str, Any] = dict(vars(import_module(self.home)))
        # a text is words of tables, counted names and numbers (row_text.py): no name or string of a file is in it
        exec(compile(self.text, f"<{self.name}>", "exec"), words)
        return words


def enter_text(text: str, home: str) -> TextKernel:
    """Return the kernel of a text, entered in FUNCTIONS by its name like all others."""
    kernel = TextKernel(text, home)
    FUNCTIONS[kernel.name] = kernel
    return kernel


def hand_over(functions: Iterable[Function]) -> bytes:
    """Serialise the texts among these functions for a process that compiles; empty where there are none."""
    texts = {kernel.name: (kernel.text, kernel.home) for kernel in functions if isinstance(kernel, TextKernel)}
    return json.dumps(texts).encode() if texts else b""


def take_over(content: bytes) -> dict[str, Function]:
    """Read the kernels that `hand_over` serialised, by name. ValueError where a text does not match its name."""
    kernels: dict[str, Function] = {}
    for name, (text, home) in json.loads(content or b"{}").items():
        kernels[name] = TextKernel(text, home)
        if kernels[name].name != name:
            raise ValueError(f"{name}: its source text is that of another kernel")
    return kernels
