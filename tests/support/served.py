"""Servers in threads, and waits for what they do."""

import threading
import time
from contextlib import contextmanager

from rewrites.serving import listening
from rewrites.serving.serving_counters import ServingCounters
from rewrites.serving.serving_limits import ServingLimits

ENDS = 60  # seconds until a test gives up


@contextmanager
def serving(models, **limits):
    """A server in a thread: its port and its counters."""
    listener, counters = listening.bind_socket("127.0.0.1", 0), ServingCounters()
    listener.listen(128)
    server = listening.make_server(models, ServingLimits(**limits), counters)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1], counters
    finally:
        server.should_exit = True
        thread.join(ENDS)
        listener.close()
    assert not thread.is_alive()


def until(holds):
    """Wait until a condition holds."""
    end = time.monotonic() + ENDS
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)
