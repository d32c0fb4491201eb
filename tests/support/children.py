"""Processes that tests start: one that does not end says where it hangs."""

import os
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SUPPORT = ROOT / "tests" / "support"  # where this and the other helpers of tests are
LIMIT = 300  # seconds that end a child which should take one, or
# compiles first


def printed(code, *paths, limit=LIMIT, **environment):
    """What a Python prints that imports from these directories. It must end in time, with status 0; otherwise the
    stacks of its threads are told."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths))} | environment
    child = subprocess.Popen(
        [sys.executable, "-X", "faulthandler", "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=paths[-1],
    )
    try:
        said, errors = child.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        child.send_signal(signal.SIGABRT)
        _, errors = child.communicate()
        raise AssertionError(f"it has not ended after {limit} s:\n{errors}") from None
    assert child.returncode == 0, errors
    return said
