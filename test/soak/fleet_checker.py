#!/usr/bin/python3
"""Judges what the hosts of a fleet believed, and what the server held in the end: fleet_checker.py FOLDER

Each rule yields what is wrong. Times are of the wall clock, which the server uses too.
"""

import collections
import json
import os
import sys

SHOWN = 20


def read(folder):
    """Events by kind, and rows of the server by table."""
    events = collections.defaultdict(list)
    for name in sorted(os.listdir(folder)):
        if name.endswith(".jsonl"):
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                for line in file:
                    event = json.loads(line)
                    if "key" in event:
                        event["key"] = tuple(event["key"])
                    events[event.pop("kind")].append(event)
    return events


def by(events, *names):
    groups = collections.defaultdict(list)
    for event in events:
        groups[tuple(event[name] for name in names)].append(event)
    return groups


def one_holder(events):
    """Two hosts never take a session for their own at one time, and who comes later has the higher epoch."""
    for (key,), beliefs in by(events["had"], "key").items():
        beliefs.sort(key=lambda belief: (belief["since"], belief["epoch"]))
        longest = None
        for belief in beliefs:
            if longest is not None:
                same = belief["epoch"] == longest["epoch"] and belief["token"] == longest["token"]
                if belief["since"] < longest["until"] and not same:
                    yield f"two holders of {key}: {longest} {belief}"
                if belief["epoch"] < longest["epoch"]:
                    yield f"{key} had by a lower epoch later: {longest} {belief}"
            if longest is None or belief["until"] > longest["until"]:
                longest = belief


def epochs_once(events):
    """Whoever was told an epoch of a session is the only one, and the server knows it."""
    accepted = by(events["truth offer"], "key", "epoch")
    for (key, epoch), grants in by(events["got"], "key", "epoch").items():
        if len({(grant["token"], grant["host"]) for grant in grants}) > 1:
            yield f"epoch {epoch} of {key} was granted twice: {grants}"
        if grants[0]["offer"] not in [offer["offer"] for offer in accepted[key, epoch]]:
            yield f"epoch {epoch} of {key} was told and is gone: {grants[0]}"
    for (key, epoch), offers in accepted.items():
        if len(offers) > 1:
            yield f"epoch {epoch} of {key} was granted twice: {offers}"


def most_used(events):
    """For each life of a host what it had at most, and its capacity."""
    lives = {(life["host"], life["generation"]): life["capacity"] for life in events["life"]}
    for life, beliefs in by(events["had"], "host", "generation").items():
        # at one instant what ends is over
        changes = sorted([(belief["since"], 1) for belief in beliefs] + [(max(belief["until"], belief["since"]), -1) for belief in beliefs])
        used = most = 0
        for _, change in changes:
            used += change
            most = max(most, used)
        yield life, most, lives[life]


def room(events):
    """No host ever has more than it said it has room for."""
    for life, most, capacity in most_used(events):
        if most > capacity:
            yield f"{life} had {most} of {capacity}"


def full(events):
    """How many lives of hosts had all that they had room for."""
    return sum(most >= capacity for _, most, capacity in most_used(events))


def commands(events):
    """What was rejected is not done; what was done is done once; what was told stands."""
    rows = {(row["key"], row["command"]): row for row in events["truth command"]}
    done = by(events["truth effect"], "key", "command")
    for (key, command), effects in done.items():
        row = rows[key, command]
        if row["state"] == "rejected":
            yield f"done and rejected: {row} {effects}"
        if len(effects) > 1:
            yield f"done twice: {row} {effects}"
        if effects[0]["attempt"] != row["attempt"] or effects[0]["epoch"] != row["attempt_epoch"]:
            yield f"done by another attempt: {row} {effects}"
    for row in rows.values():
        if row["state"] == "applied" and (row["key"], row["command"]) not in done:
            yield f"applied and not done: {row}"
        if row["outcome"] == "not_applied" and row["outcome_epoch"] <= row["attempt_epoch"]:
            yield f"said not to be applied by no later holder: {row}"
    for (key, command), begun in by(events["begun"], "key", "command").items():
        if len({(event["attempt"], event["host"]) for event in begun}) > 1:
            yield f"begun twice: {begun}"
        if rows[key, command]["attempt"] != begun[0]["attempt"]:
            yield f"begun, and it is gone: {begun[0]} {rows[key, command]}"
    for event in events["settled"]:
        if rows[event["key"], event["command"]]["outcome"] != event["kind_of_end"]:
            yield f"settled, and it is gone: {event} {rows[event['key'], event['command']]}"
    for event in events["admitted"]:
        if (event["key"], event["command"]) not in rows:
            yield f"admitted, and it is gone: {event}"
    for event in events["rejected"]:
        if rows[event["key"], event["command"]]["state"] != "rejected":
            yield f"rejected, and it is not: {event} {rows[event['key'], event['command']]}"


def nobody_late(events):
    """Who was paused past his lease can do nothing."""
    for event in events["late"]:
        yield f"after the end: {event}"


def no_trouble(events):
    """There is no error, and no answer that cannot be."""
    for event in events["trouble"]:
        yield f"trouble: {event}"


def all_placed(events):
    """Every session with a command is placed when faults have stopped."""
    for event in events["end"]:
        if event["homeless"] > 0:
            yield f"{event['homeless']} sessions have no host, {event['when']}"


RULES = (one_holder, epochs_once, room, commands, nobody_late, no_trouble, all_placed)


def judge(events):
    """Prints what is wrong; is all well?"""
    wrong = [(rule, what) for rule in RULES for what in rule(events)]
    for rule, what in wrong[:SHOWN]:
        print(f"{rule.__name__}: {what}")
    if len(wrong) > SHOWN:
        print(f"and {len(wrong) - SHOWN} more")
    return not wrong


if __name__ == "__main__":
    sys.exit(0 if judge(read(sys.argv[1])) else 1)
