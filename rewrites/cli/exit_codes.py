"""What a command line answers with one line and status 2: bad input, and a budget that nothing meets."""
from formats import FormatError
from formats.core.errors import InputError
from rewrites.extraction import Infeasible

BAD_INPUT = (InputError, Infeasible, FormatError)
