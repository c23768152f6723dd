"""What clients, the driver and the checker of the history check share: clocks, and files of events.

An event is one JSON line. What changes something is written twice: as "invoked"
before it is sent, and whole when it is known what became of it. Times t… are of
CLOCK_MONOTONIC, which all processes of a machine share; w… are of the wall
clock, which the server uses too.
"""

import json
import os
import time


def clock():
    """(monotonic, wall), read at one time however this process was stopped in between."""
    while True:
        before = time.monotonic()
        wall = time.time()
        after = time.monotonic()
        if after - before < 0.001:
            return before, wall


class Writer:
    def __init__(self, path, **common):
        self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self.common = common
        self.count = 0

    def write(self, event):
        os.write(self.file, (json.dumps(event) + "\n").encode())

    def invoke(self, op, **facts):
        """An event without an outcome: should we be killed, nobody knows what became of it."""
        t, w = clock()
        self.count += 1
        event = {**self.common, "n": self.count, "op": op, "t0": t, "w0": w, **facts}
        self.write({**event, "invoked": True})
        return event

    def complete(self, event, outcome, **facts):
        t, w = clock()
        event.update(facts, t1=t, w1=w, outcome=outcome)
        self.write(event)
        return event


def read(folder):
    """All events of a folder, in order of their invocation; and what each server held in the end."""
    events, truth = {}, {}
    for name in sorted(os.listdir(folder)):
        if not name.endswith(".jsonl"):
            continue
        with open(os.path.join(folder, name), encoding="utf-8") as file:
            for line in file:
                event = json.loads(line)
                if name.startswith("truth-"):
                    truth.setdefault(event.pop("server"), {}).setdefault(event.pop("table"), []).append(event)
                else:
                    # the completed line follows the invoked one, and takes its place
                    events[event["client"], event["n"]] = event
    for event in events.values():
        if event.pop("invoked", False):
            event.update(outcome="unknown", t1=float("inf"), w1=float("inf"))
    return sorted(events.values(), key=lambda event: event["t0"]), truth
