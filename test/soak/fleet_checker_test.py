#!/usr/bin/python3
"""Histories made by hand: the checker of the fleet finds what is wrong in each, and nothing in what is right."""

import collections
import copy
import unittest

import fleet_checker as checker

KEY = ("t", "s")


def had(since, until, epoch, host="a", token=None, generation=1, key=KEY):
    return {"host": host, "generation": generation, "key": key, "epoch": epoch, "token": token or f"{host}{epoch}", "since": since, "until": until}


def got(epoch, host="a", offer=None, token=None):
    return {"host": host, "generation": 1, "key": KEY, "epoch": epoch, "token": token or f"{host}{epoch}", "offer": offer or epoch, "at": epoch}


def offer(epoch, number=None):
    return {"key": KEY, "epoch": epoch, "offer": number or epoch, "host": "a", "token": f"a{epoch}"}


def command(state="applied", outcome="applied", outcome_epoch=1, attempt="x", attempt_epoch=1):
    return {"key": KEY, "command": "c", "state": state, "outcome": outcome, "outcome_epoch": outcome_epoch, "attempt": attempt,
            "attempt_epoch": attempt_epoch}


def effect(attempt="x", epoch=1):
    return {"key": KEY, "command": "c", "attempt": attempt, "epoch": epoch, "host": "a"}


GOOD = {
    "life": [{"host": host, "generation": generation, "capacity": 1, "at": 0} for host in "ab" for generation in (1, 2)],
    "had": [had(1, 3, 1), had(3, 5, 2, "b"), had(4, 6, 1, key=("t", "s2"))],
    "got": [got(1), got(1), got(2, "b")],
    "truth offer": [offer(1), offer(2)],
    "truth command": [command()],
    "truth effect": [effect()],
    "begun": [{"host": "a", "key": KEY, "command": "c", "attempt": "x", "epoch": 1}],
    "settled": [{"host": "a", "key": KEY, "command": "c", "kind_of_end": "applied", "epoch": 1}],
    "admitted": [{"key": KEY, "command": "c"}],
    "end": [{"homeless": 0, "when": "now"}],
}
REJECTED = command("rejected", None, None, None, None)


class Rules(unittest.TestCase):
    def broken(self, **changes):
        """The rules that a history with these events instead of the good ones breaks."""
        events = collections.defaultdict(list, copy.deepcopy(GOOD))
        events.update({kind.replace("_", " "): rows for kind, rows in changes.items()})
        return [rule.__name__ for rule in checker.RULES if list(rule(events))]

    def test_good(self):
        self.assertEqual(self.broken(), [])

    def test_one_holder(self):
        self.assertEqual(self.broken(had=[had(1, 3, 1), had(2.9, 5, 2, "b")]), ["one_holder"])
        self.assertEqual(self.broken(had=[had(1, 9, 1), had(2, 3, 1), had(4, 5, 2, "b")]), ["one_holder", "room"])
        self.assertEqual(self.broken(had=[had(1, 3, 2), had(4, 5, 1, "b")]), ["one_holder"])
        self.assertEqual(self.broken(had=[had(1, 3, 1), had(2, 5, 1, "b")]), ["one_holder"])

    def test_epochs_once(self):
        self.assertEqual(self.broken(got=[got(1), got(1, "b")]), ["epochs_once"])
        self.assertEqual(self.broken(got=[got(1), got(1, token="z")]), ["epochs_once"])
        self.assertEqual(self.broken(got=[got(3)]), ["epochs_once"])
        self.assertEqual(self.broken(got=[got(1, offer=7)]), ["epochs_once"])
        self.assertEqual(self.broken(truth_offer=[offer(1), offer(2), offer(2, 9)]), ["epochs_once"])

    def test_room(self):
        self.assertEqual(self.broken(had=[had(1, 3, 1), had(2, 5, 1, key=("t", "s2"))]), ["room"])
        self.assertEqual(self.broken(had=[had(1, 3, 1), had(2, 5, 1, key=("t", "s2"), generation=2)]), [])

    def test_commands(self):
        wrong = ["commands"]
        self.assertEqual(self.broken(truth_command=[REJECTED], begun=[], settled=[]), wrong)
        self.assertEqual(self.broken(truth_command=[command("rejected", "not_applied", 2)], settled=[]), wrong)
        self.assertEqual(self.broken(truth_command=[command("rejected", "not_applied", 1)], settled=[], truth_effect=[]), wrong)
        self.assertEqual(self.broken(truth_command=[command("rejected", "not_applied", 2)], settled=[], truth_effect=[]), [])
        self.assertEqual(self.broken(truth_effect=[effect(), effect("y", 2)]), wrong)
        self.assertEqual(self.broken(truth_effect=[effect("y", 2)]), wrong)
        self.assertEqual(self.broken(truth_effect=[]), wrong)
        self.assertEqual(self.broken(truth_command=[command("applying", None, None)]), wrong)
        self.assertEqual(self.broken(truth_command=[command("applying", None, None)], settled=[]), [])
        self.assertEqual(self.broken(begun=GOOD["begun"] + [{**GOOD["begun"][0], "host": "b"}]), wrong)
        self.assertEqual(self.broken(admitted=[{"key": KEY, "command": "d"}]), wrong)
        self.assertEqual(self.broken(rejected=[{"key": KEY, "command": "c"}]), wrong)

    def test_others(self):
        self.assertEqual(self.broken(late=[{"op": "claim"}]), ["nobody_late"])
        self.assertEqual(self.broken(trouble=[{"op": "claim"}]), ["no_trouble"])
        self.assertEqual(self.broken(end=[{"homeless": 1, "when": "now"}]), ["all_placed"])


if __name__ == "__main__":
    unittest.main()
