"""A rank that imports nothing and plays a part: `python acting_rank.py PART..`, a part for each rank. It speaks to the
launcher as a real one does."""

import json
import os
import select
import signal
import sys
import time


def say(kind, **said):
    print(json.dumps({"kind": kind, "shape": None, **said}), flush=True)


def beat(count, waits=""):
    say("beat", progress=count, waits=waits)


def done():
    meter = dict(flops=1, peak=2, stored=3, gathered=0, payload=[["send", "x", 4]], wire=[], messages=[])
    say("done", times=[[1.0, 2.0]], memory=[5], moments=[], meter=meter)


given = json.loads(sys.stdin.readline())
part, counter = sys.argv[1:][given["rank"]], 0
if part == "late":
    time.sleep(60)
if part == "never starts":
    os.kill(os.getpid(), signal.SIGSTOP)
say("ready")
sys.stdin.readline()
match part:
    case "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    case "ends":
        sys.exit("nothing left to do")
    case "fails":
        say("failed", what="NotFinite", text="step 3: rank 1: the output is not finite")
    case "refuses":
        say("failed", what="InputError", text="mesh: not so")
    case "loses":
        say("failed", what="Lost", text="rank 0: lost rank 1: closed")
        sys.exit(1)
    case "stops":
        os.kill(os.getpid(), signal.SIGSTOP)
    case "done":
        done()
while True:
    if select.select([sys.stdin], [], [], 0.01)[0]:
        sys.exit()  # nobody writes any more
    counter += part in ("works", "goes on")
    if counter == 24 and part == "works":
        done()
    beat(counter, waits="" if part in ("computes", "works") else f"send of step 1 on axis x, {part}")
