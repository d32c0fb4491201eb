"""Programs of promised weights: planned, priced and printed like any other, but without numbers that they could run
on."""

from typing import NoReturn

from formats.core.errors import InputError
from opmatrix.runtime.program import Constant, Program


class Planned(Program):
    """A program whose weights are promised: `cost`, `peak_bytes`, `stored_bytes` and printing are those of the program
    with numbers; any use of the numbers raises InputError."""

    @staticmethod
    def held(name: str, constant: Constant) -> Constant:
        """Return the constant as it is: one broadcast zero, as a copy would be as large as the weight."""
        return constant

    def refuse(self, *_: object, **__: object) -> NoReturn:
        """Raise InputError: the weights have no numbers to run with or to save."""
        name = self.meta.get("model", "this program")
        raise InputError(
            f"{name} was planned from a configuration: its weights have no numbers; load a checkpoint to "
            "run or to save it"
        )

    run = __call__ = exact = trace = embed = stream = save = refuse

    @property
    def hash(self) -> NoReturn:
        """Raise InputError: a program without numbers has no hash."""
        self.refuse()
