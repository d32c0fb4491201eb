"""What a command line answers with one line: bad input, a budget that nothing meets, a program that fails its verification."""
from formats import FormatError
from opmatrix.errors import InputError
from rewrites.extraction import Infeasible


class VerificationError(ValueError):
    """A program that is not what it should be: names the level, the step or law, and the values."""


BAD_INPUT = (InputError, Infeasible, FormatError, VerificationError)
