"""BLAS on one thread, as commands have it: imported before numpy. Several processes run tests side by side, and threads
of BLAS that wait for cores of one another spin: small decompositions took sixteen times as much processor time."""

import os

from formats.host.threads import command_line_environment

for name, value in command_line_environment().items():
    os.environ.setdefault(name, value)
