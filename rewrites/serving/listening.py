"""The processes of a server: a socket that is bound once, models that are opened once, and uvicorn in this process or
in forks of it, which share the socket and the mapped weights."""

import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from threading import Thread
from typing import TYPE_CHECKING, NoReturn

from formats.core.errors import InputError
from formats.disk.files import reason
from formats.host.threads import available, limit
from rewrites.serving.served_models import Served, open_served
from rewrites.serving.serving_counters import ServingCounters
from rewrites.serving.serving_limits import ServingLimits

if TYPE_CHECKING:
    import uvicorn

SERVER_PACKAGES = "starlette", "uvicorn"
BACKLOG = 2048  # connections that the system holds until they are accepted
SOON = 5.0  # seconds: a process that ends earlier is not started again


def serve_models(
    names: Iterable[str],
    address: tuple[str, int],
    limits: ServingLimits,
    processes: int,
    announce: Callable[[str], None],
) -> None:
    """Serve models until a signal ends the process: requests that were taken are answered first. `announce` is called
    with the address once clients can connect. Raises InputError for a model or an address that cannot be served."""
    require_packages()
    check_processes(processes)
    listener = bind_socket(*address)
    with listener:
        models = open_served(names)
        counters = ServingCounters(processes)
        listener.listen(BACKLOG)
        announce(f"{', '.join(models)} on {shown_address(listener)}")
        if processes == 1:
            run_server(listener, models, limits, counters)
        else:
            serve = partial(run_server, listener, models, limits, counters)
            ServingProcesses(processes, serve, counters).supervise()


def require_packages() -> None:
    """Raise InputError if a package that a server needs is not installed."""
    if missing := [name for name in SERVER_PACKAGES if find_spec(name) is None]:
        raise InputError(f"serve: {', '.join(missing)} is not installed: pip install 'opmatrix[serve]'")


def check_processes(processes: int) -> None:
    """Raise InputError for a number of processes that is not possible."""
    if not 1 <= processes <= available():
        raise InputError(f"--processes {processes}: give 1 to {available()}, as many as there are threads")
    if processes > 1 and not hasattr(os, "fork"):
        raise InputError(f"--processes {processes}: this system cannot fork processes: leave it out")


def bind_socket(host: str, port: int) -> socket.socket:
    """Return a socket that is bound, and does not listen yet. Raises InputError for an address that cannot be had."""
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)  # of TCP by number: else asyncio lets small packets wait
    except (OSError, ValueError) as error:
        raise InputError(f"--host {host}: {reason(error)}: give an address of this machine") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(place)
    except OSError as error:
        listener.close()
        raise InputError(f"{host}:{port}: {reason(error)}: name another address: --host, --port") from error
    return listener


def shown_address(listener: socket.socket) -> str:
    """Return the address of a socket as a URL."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def run_server(listener: socket.socket, models: Served, limits: ServingLimits, counters: ServingCounters) -> None:
    """Serve in this process until a signal ends it."""
    make_server(models, limits, counters).run(sockets=[listener])


def make_server(models: Served, limits: ServingLimits, counters: ServingCounters) -> "uvicorn.Server":
    """Return a server of uvicorn that has not begun."""
    import uvicorn

    from rewrites.serving.endpoints import Endpoints

    config = uvicorn.Config(
        Endpoints(models, limits, counters).application(),
        lifespan="on",
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=round(limits.seconds) + 1,
    )
    return uvicorn.Server(config)


@dataclass
class ServingProcesses:
    """Forked processes that serve, each with its share of the threads. One that ends by itself is started again, unless
    it ends at once."""

    count: int
    serve: Callable[[], None]
    counters: ServingCounters
    running: dict[int, tuple[int, float]] = field(default_factory=dict)  # process -> its number, and when it began

    def supervise(self) -> NoReturn:
        """Run the processes until a signal ends this one. Raises InputError if one ends soon after it began."""
        self.alive, self.held = os.pipe()  # the second end is held by this process alone: when it ends, the others see
        try:
            for number in range(self.count):
                self.start(number)
            while True:
                process, status = os.wait()
                self.replace(process, os.waitstatus_to_exitcode(status))
        finally:
            self.end()

    def start(self, number: int) -> None:
        """Fork a process."""
        if process := os.fork():
            self.running[process] = number, time.monotonic()
        else:
            self.run_child(number)

    def run_child(self, number: int) -> NoReturn:
        """Serve in a forked process, which ends with its server."""
        status = 1
        try:
            os.close(self.held)
            Thread(target=end_with_parent, args=[self.alive], daemon=True).start()
            self.counters.take_row(number)
            with limit(max(1, available() // self.count)):
                self.serve()
            status = 0
        except KeyboardInterrupt:
            status = 128 + signal.SIGINT
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(status)

    def replace(self, process: int, status: int) -> None:
        """Start a process in place of one that ended. Raises InputError if that ended soon."""
        number, began = self.running.pop(process)
        if time.monotonic() - began < SOON:
            raise InputError(f"serve: process {number + 1} of {self.count} ended with status {status}: see above")
        self.start(number)

    def end(self) -> None:
        """End all processes: they answer the requests that they have taken."""
        for process in self.running:
            os.kill(process, signal.SIGTERM)
        while self.running:
            process, _ = os.wait()
            self.running.pop(process, None)


def end_with_parent(alive: int) -> None:
    """Wait until the process that forked this one has ended, and end this one as by SIGTERM."""
    os.read(alive, 1)
    os.kill(os.getpid(), signal.SIGTERM)
