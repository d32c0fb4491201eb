"""`python -m rewrites.cli` is the command `opmatrix`."""
from rewrites.cli import main

main()
