"""What a command line answers with one line: bad input, a budget that nothing meets, a program that fails its verification."""
from formats import FormatError
from opmatrix.errors import InputError
from rewrites.extraction import Infeasible
from rewrites.verify.failure import VerificationError

BAD_INPUT = (InputError, Infeasible, FormatError, VerificationError)
