"""Every law, one file for each kind of algebra it belongs to. Rulesets are tuples that add."""
from rewrites.laws import attention, choosing, joining, ring, spaces

EXACT_LAWS = ring.LAWS + attention.LAWS + joining.LAWS + spaces.LAWS
CHOOSING_LAWS = choosing.LAWS                               # of columns; no search has them
