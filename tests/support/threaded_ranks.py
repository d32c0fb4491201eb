"""Ranks that are threads of this process: a wire of queues, for what crosses between ranks without torch."""

from queue import Empty, SimpleQueue
from threading import Lock, Thread

import numpy as np
from children import LIMIT

from opmatrix.parallel.launch.exchanges import Crossings
from opmatrix.parallel.launch.train_runs import TrainingRun, mean_losses, train_plan
from opmatrix.parallel.ranks.ranks import Meter
from opmatrix.parallel.ranks.virtual import Ran


class Queues(dict):
    """A queue for each sender, receiver and lane; who takes from one that has failed gets None."""

    def __init__(self):
        self.lock, self.ended = Lock(), set()

    def __missing__(self, key):
        with self.lock:
            found = self.setdefault(key, SimpleQueue())
            if key[0] in self.ended:
                found.put(None)
        return found

    def end(self, rank):
        with self.lock:
            self.ended.add(rank)
            for (of, *_), queue in self.items():
                if of == rank:
                    queue.put(None)


class QueueWire:
    """A queue for each pair of ranks and lane; a vector of another length than is taken is a mistake."""

    def __init__(self, rank, queues):
        self.rank, self.queues = rank, queues

    def exchange(self, sends, takes, wait=True, lane=0):
        for to, vector in sends.items():
            self.queues[self.rank, to, lane].put(np.array(vector, np.float64))
        found = {of: self.queues[of, self.rank, lane].get(timeout=LIMIT) for of in takes}
        if any(each is None for each in found.values()):
            raise Empty  # whose rank has failed
        assert {of: len(each) for of, each in found.items()} == dict(takes)
        return found

    def settle(self):
        pass


def run_threads(prepared, mesh, feed, runs=1, crossings=Crossings):
    """Runs the ranks of a prepared partition as threads, so often; the last run. The first failure is raised."""
    meters, results = {}, {}

    def one(line, place):
        for _ in range(runs):
            results[place], meters[place] = prepared.run(place, feed, line), line.meter

    as_threads(mesh, one, crossings)
    return Ran(prepared.assembled(results), meters)


def run_steps(job):
    """The losses of a job of training whose ranks are threads, and what they counted in its last step."""
    meters, values = {}, {}

    def one(line, place):
        run = TrainingRun(job, place)
        values[place], meters[place] = np.stack([run.run(line) for _ in range(job.steps)]), line.meter

    as_threads(job.mesh, one, Crossings)
    return mean_losses(train_plan(job), values), meters


def as_threads(mesh, body, crossings):
    """Runs a body for each rank in a thread of its own. The first failure is raised."""
    places = [*mesh.places()]
    queues, failed = Queues(), []

    def one(rank, place):
        try:
            body(crossings(QueueWire(rank, queues), mesh, place, Meter()), place)
        except Exception as error:
            failed.append(error)
            queues.end(rank)

    threads = [Thread(target=one, args=each) for each in enumerate(places)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    if failed:
        raise next((each for each in failed if not isinstance(each, Empty)), failed[0])
