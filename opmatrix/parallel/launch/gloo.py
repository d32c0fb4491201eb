"""A wire of torch.distributed over gloo: torch moves vectors between processes, and computes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from importlib import import_module
from typing import Any, NamedTuple

import torch

from opmatrix.parallel.launch.exchanges import RankVectors
from opmatrix.parallel.launch.headings import RanksFailed
from opmatrix.parallel.launch.pipes import LOOPBACK

dist: Any = import_module("torch.distributed")  # its stubs do not export all names
PATIENCE = timedelta(days=1)  # the launcher, which sees all ranks, finds those that hang


class Lost(RanksFailed):
    """A rank that is gone."""


class Meeting(NamedTuple):
    """The port of this machine on which ranks find each other. The first rank listens on it, by a socket that it was
    given."""

    rank: int  # number of this rank
    ranks: int  # number of all ranks
    port: int
    socket: int  # file descriptor of the listening socket


class GlooWire:
    """One rank's end of the wire."""

    def __init__(self, at: Meeting) -> None:
        torch.set_num_threads(1)
        first = at.rank == 0
        store = dist.TCPStore(
            LOOPBACK,
            at.port,
            at.ranks,
            is_master=first,
            timeout=PATIENCE,
            master_listen_fd=at.socket if first else None,
        )
        dist.init_process_group("gloo", store=store, rank=at.rank, world_size=at.ranks, timeout=PATIENCE)
        self.rank, self.group = at.rank, dist.group.WORLD
        self.posted: list[tuple[Any, torch.Tensor]] = []  # sends that are on their way still

    def exchange(self, sends: RankVectors, takes: Mapping[int, int], wait: bool = True, lane: int = 0) -> RankVectors:
        """Send and receive vectors. Raises Lost if a rank is gone."""
        incoming = {of: torch.empty(size, dtype=torch.float64) for of, size in takes.items()}
        outgoing = {to: torch.from_numpy(vector) for to, vector in sends.items()}
        peer = -1
        try:
            works = []
            for peer, tensor in incoming.items():
                works.append((peer, self.group.recv([tensor], peer, lane)))
            for peer, tensor in outgoing.items():
                work = self.group.send([tensor], peer, lane)
                if wait:
                    works.append((peer, work))
                else:
                    self.posted.append((work, tensor))
            for peer, work in works:  # noqa: B007, an error names the last
                work.wait()
        except RuntimeError as error:
            raise Lost(f"rank {self.rank}: lost rank {peer}: {str(error).splitlines()[0][:120]}") from error
        return {of: tensor.numpy() for of, tensor in incoming.items()}

    def settle(self) -> None:
        """Wait until vectors that were sent without waiting have been received: by then a step has ended."""
        try:
            for work, _ in self.posted:
                work.wait()
        except RuntimeError as error:
            raise Lost(f"rank {self.rank}: lost a rank: {str(error).splitlines()[0][:120]}") from error
        self.posted = []

    def close(self) -> None:
        """Leave the process group."""
        dist.destroy_process_group()
