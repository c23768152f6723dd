#!/usr/bin/python3
"""Tests checker.py on histories made by hand: a good one, and for each rule one that breaks it."""

import copy
import io
import json
import sys
import tempfile

import checker
import history

WALL = 1_000_000                        # the wall clock when the monotonic one begins
tests = 0


def ok(true, name):
    global tests
    tests += 1
    print(f"{'ok' if true else 'not ok'} {tests} - {name}", flush=True)
    return true


class Story:
    """A history: events in the order in which they are told, each a tenth of a second long."""

    def __init__(self):
        self.events, self.tables, self.t = [], {}, 0
        self.event("setup", "driver", server="s1", seed=1, incarnation=True, guard=True)

    def event(self, op, client, **facts):
        self.t += 1
        facts = {"outcome": "ok", "t0": self.t, "t1": self.t + 0.1, **facts}
        event = {"op": op, "client": client, "n": len(self.events), "w0": WALL + facts["t0"], "w1": WALL + facts["t1"], **facts}
        self.events.append(event)
        return event

    def lease(self, op, client, epoch, ttl=1, **facts):
        facts = {"id": "alpha", "server": "s1", "holder": client, "sync": True, "ttl": ttl, **facts}
        event = self.event(op, client, epoch=epoch, **facts)
        event["expires"] = event["w0"] + ttl
        if op == "acquire" and event["outcome"] == "ok":
            self.row("granted", event["server"], id=event["id"], epoch=epoch, holder=event["holder"],
                     committed=event["w0"] + 0.05)
            self.row("history", event["server"], id=event["id"], epoch=epoch, holder=event["holder"],
                     acquired=event["w0"] + 0.02, ended=event["w0"] + min(ttl, 0.9), end_reason="expired")
        return event

    def write(self, client, epoch, accepted=True, kept=True, revision=None, log=True, server="s1", **facts):
        t0 = facts.pop("at", self.t + 1)
        write = {"w": f"{client}/{len(self.events)}", "how": "apply_fenced", "entity": "e1", "accepted": accepted,
                 "kept": kept and accepted, "t0": t0}
        event = self.event("write", client, id="alpha", holder=client, epoch=epoch, sync=True, server=server,
                           **{"t0": t0, "t1": t0 + 0.1, "commit": t0 + 0.05, "writes": [write], "late": False, **facts})
        if accepted and kept and log:
            rows = self.tables.get((server, "log"), [])
            self.row("log", server, write_id=write["w"], kind="resource", id="alpha", entity="e1", epoch=epoch,
                     revision=revision or len(rows) + 1, committed=event["w1"] - 0.02)
        return event

    def row(self, table, server, **facts):
        self.tables.setdefault((server, table), []).append(facts)
        return facts

    def promote(self, mode="sync", split=False, **facts):
        event = self.event("promote", "driver", server="s2", mode=mode, split=split, **{"from": "s1", **facts})
        for (server, table), rows in list(self.tables.items()):
            self.tables["s2", table] = copy.deepcopy(rows)
        return event

    def broken(self):
        """The rules that it breaks, from files as a run leaves them."""
        with tempfile.TemporaryDirectory() as folder:
            for event in self.events:
                with open(f"{folder}/{event['client']}.jsonl", "a", encoding="utf-8") as file:
                    file.write(json.dumps(event) + "\n")
            for (server, table), rows in self.tables.items():
                with open(f"{folder}/truth-{server}.jsonl", "a", encoding="utf-8") as file:
                    for row in rows:
                        file.write(json.dumps({"server": server, "table": table, **row}) + "\n")
            found = checker.Checker(*history.read(folder)).check()
            self.judged = io.StringIO()
            self.good = checker.judge(folder, wanted=(), out=self.judged)
        return sorted({violation.rule for violation in found})


def good():
    """Two terms, each with a write, one with a stale one; a crash, and a promotion to a third term."""
    story = Story()
    story.lease("acquire", "a", 1)
    story.write("a", 1)
    story.lease("acquire", "b", 2, outcome="refused", expires=None)
    story.t += 1
    story.lease("acquire", "b", 2)
    story.write("a", 1, accepted=False)
    story.write("b", 2)
    story.event("crash", "driver", server="s1", how="kill")
    story.lease("acquire", "c", 3)
    story.write("c", 3)
    story.promote()
    story.lease("acquire", "d", 2 ** 32, server="s2")
    story.write("d", 2 ** 32, server="s2")
    last = story.tables["s2", "log"][-1]
    story.row("state", "s2", kind="resource", id="alpha", entity="e1", epoch=2 ** 32, revision=4, write_id=last["write_id"])
    return story


CASES = []


def case(*rules):
    def add(function):
        CASES.append((rules, function))
        return function
    return add


@case()
def a_good_history():
    return good()


@case("epoch granted twice", "epoch not above the last")
def an_epoch_with_two_holders():
    story = good()
    story.events = [dict(e, epoch=1) if e["op"] == "acquire" and e["holder"] == "b" and e["outcome"] == "ok" else e
                    for e in story.events]
    for server in ("s1", "s2"):
        for table in ("granted", "history"):
            story.tables[server, table] = [row for row in story.tables[server, table] if row["holder"] not in ("a", "b")]
        story.tables[server, "history"].append(dict(id="alpha", epoch=1, holder="b", acquired=WALL, ended=WALL + 1))
    broken = story.broken
    # that the first is gone is another rule's
    story.broken = lambda: [rule for rule in broken() if rule != "acknowledged grant is gone"]
    story.events = [e for e in story.events if e["op"] != "write"]
    story.tables = {key: rows for key, rows in story.tables.items() if key[1] not in ("log", "state")}
    return story


@case("epoch not above the last")
def an_epoch_that_falls():
    story = Story()
    story.lease("acquire", "a", 5)
    story.t += 1
    story.lease("acquire", "b", 4)
    story.tables["s1", "history"].clear()
    story.events = [dict(e, outcome="ok") for e in story.events]
    for event in story.events[1:]:
        story.row("history", "s1", id="alpha", epoch=event["epoch"], holder=event["holder"], acquired=WALL + 10 * event["epoch"],
                  ended=WALL + 10 * event["epoch"] + 1)
    return story


@case()
def grants_at_one_time_in_any_order():
    story = Story()
    story.lease("acquire", "a", 2, t0=1, t1=9)
    story.lease("acquire", "b", 1, t0=1.1, t1=1.5, ttl=0.1)
    story.tables["s1", "history"][0].update(acquired=WALL + 5, ended=WALL + 6)
    return story


@case("epoch not above the last")
def a_released_epoch_again():
    story = Story()
    story.lease("acquire", "a", 1)
    story.lease("release", "a", 1)
    event = story.lease("reacquire", "a", 1)
    event["expires"] = event["w1"] + 1
    return story


@case("terms overlap")
def terms_that_overlap():
    story = Story()
    story.lease("acquire", "a", 1, ttl=10)
    story.lease("acquire", "b", 2)
    return story


@case()
def a_grant_of_which_its_client_heard_late():
    story = Story()
    story.lease("acquire", "a", 1, t0=1, t1=3.5)["expires"] = WALL + 2
    story.lease("acquire", "b", 2, t0=2.5, t1=2.6, ttl=5)
    story.tables["s1", "history"][0]["ended"] = WALL + 2
    return story


@case("terms overlap")
def a_renewal_that_did_not_hold():
    story = Story()
    story.lease("acquire", "a", 1)
    story.lease("renew", "a", 1, t0=2.5, t1=2.6, ttl=20)
    story.t += 2
    story.lease("acquire", "b", 2)
    return story


@case()
def a_term_that_was_given_up():
    story = Story()
    for n, end in enumerate((dict(op="release", outcome="unknown"), dict(op="force", outcome="unknown"),
                             dict(op="renew", outcome="lost"), dict(op="renew", outcome="unknown", ttl=0.1))):
        op = end.pop("op")
        story.event("crash", "driver", server="s1", how="kill")
        story.lease("acquire", f"a{n}", 2 * n + 1, ttl=10)
        story.event("crash", "driver", server="s1", how="kill")
        story.lease(op, f"a{n}", 2 * n + 1, **end)
        story.lease("acquire", f"b{n}", 2 * n + 2, ttl=0.5)
    return story


@case("terms overlap")
def terms_that_overlap_in_a_servers_history():
    story = good()
    story.tables["s1", "history"][0]["ended"] += 100
    return story


@case("live term lost")
def a_live_term_that_is_refused():
    story = Story()
    story.lease("acquire", "a", 1, ttl=10)
    story.lease("renew", "a", 1, outcome="lost")
    return story


@case()
def a_term_that_a_crash_may_have_shortened():
    story = Story()
    story.lease("acquire", "a", 1, ttl=10)
    story.event("crash", "driver", server="s1", how="kill")
    story.lease("renew", "a", 1, outcome="lost")
    return story


@case("stale write")
def a_stale_write_that_was_accepted():
    story = good()
    story.write("a", 1, server="s2", kept=False, outcome="rolled back")
    story.events[-1]["server"] = "s1"
    story.events[-1].pop("commit")
    return story


@case("committed after the next grant", "stale write")
def a_write_that_was_begun_before_and_committed_after():
    story = Story()
    story.lease("acquire", "a", 1)
    story.t += 1
    story.lease("acquire", "b", 2)
    story.write("a", 1, at=2.5, commit=5, t1=5.1)
    return story


@case("committed after the next grant")
def a_late_commit_of_which_nobody_heard():
    story = good()
    story.events = [dict(e, outcome="unknown") if e["op"] == "write" and e["holder"] == "a" and e["writes"][0]["kept"] else e
                    for e in story.events]
    for server in ("s1", "s2"):
        story.tables[server, "log"][0]["committed"] += 4
    return story


@case("committed after the next grant", "lower epoch after a higher one")
def a_lower_epoch_after_a_higher_one():
    story = good()
    for server in ("s1", "s2"):
        first, second = story.tables[server, "log"][:2]
        first["revision"], second["revision"] = 2, 1
        first["committed"] = second["committed"] + 0.5
    return story


@case("revisions")
def a_revision_that_is_there_twice():
    story = good()
    story.tables["s1", "log"][1]["revision"] = 1
    return story


@case("state is not the last write's")
def a_state_of_another_write():
    story = good()
    story.tables["s2", "state"][0]["write_id"] = "another"
    return story


@case("acknowledged write is gone")
def a_write_that_is_gone():
    story = good()
    story.tables["s1", "log"].pop()
    return story


@case("acknowledged write is gone")
def a_write_that_a_synchronous_standby_has_not():
    story = good()
    story.promote()
    story.tables["s2", "log"] = story.tables["s1", "log"][:-1]
    del story.tables["s2", "state"]
    story.events = [e for e in story.events if e.get("server") != "s2" or e["op"] == "promote"][:-1]
    for table in ("granted", "history"):
        story.tables["s2", table] = story.tables["s1", table]
    return story


def asynchronous(mark):
    story = Story()
    story.lease("acquire", "a", 1)
    story.write("a", 1)
    if mark:
        story.event("caught_up", "driver", server="s1", standby="s2")
    story.promote("async")
    for table in ("log", "granted", "history"):
        story.tables["s2", table] = []
    return story


@case()
def what_an_asynchronous_standby_has_not():
    return asynchronous(False)


@case("acknowledged grant is gone", "acknowledged write is gone")
def what_it_had_and_has_not():
    return asynchronous(True)


@case("acknowledged grant is gone")
def a_grant_that_is_gone():
    story = good()
    story.tables["s1", "history"].pop()
    return story


@case("undone write is there")
def a_write_that_was_undone_and_is_there():
    story = good()
    event = story.write("d", 2 ** 32, server="s2")
    event["outcome"] = "rolled back"
    story.tables["s2", "state"][0].update(write_id=event["writes"][0]["w"], revision=5)
    return story


@case()
def an_unknown_outcome_is_either():
    story = good()
    for log in (True, False):
        event = story.write("d", 2 ** 32, server="s2", log=log, outcome="unknown")
        event["writes"][0]["accepted"] = False          # nobody has heard
        if log:
            story.tables["s2", "state"][0].update(write_id=event["writes"][0]["w"], revision=5)
    return story


@case()
def a_client_that_was_killed():
    story = good()
    event = story.lease("acquire", "e", None, outcome=None, invoked=True)
    for key in ("outcome", "t1", "w1"):
        del event[key]
    story.row("granted", "s2", id="alpha", epoch=2 ** 32 + 1, holder="e", committed=WALL + 1000)
    return story


@case("epoch of the lost past")
def an_epoch_of_the_lost_past():
    story = Story()
    story.lease("acquire", "a", 7)
    story.promote("async")
    for table in ("granted", "history"):
        story.tables["s2", table] = []
    story.lease("acquire", "b", 6, server="s2")
    return story


@case()
def the_same_without_incarnation():
    story = an_epoch_of_the_lost_past()
    story.events[0]["incarnation"] = False
    return story


@case("write of the lost past")
def a_write_of_the_lost_past():
    story = good()
    story.write("c", 3, server="s2", kept=False, outcome="rolled back")
    story.events[-1]["t0"] = story.events[-1]["writes"][0]["t0"] = story.events[-4]["t1"] + 0.01
    story.events[-1].pop("commit")
    return story


@case("not refused")
def a_probe_that_was_accepted():
    story = good()
    story.event("probe", "a", what="rolled back", outcome="accepted")
    return story


@case("terms overlap")
def a_clock_that_was_set_hides_little():
    story = terms_that_overlap()
    story.events[0]["w0"] += 2
    return story


def main():
    good_so_far = True
    for rules, function in CASES:
        name = function.__name__.replace("_", " ")
        story = function()
        found = story.broken()
        if not ok(found == sorted(rules), f"{name}: {', '.join(rules) or 'nothing is wrong'}"):
            print(f"# found {found}\n# " + story.judged.getvalue().replace("\n", "\n# "))
            good_so_far = False
    # what too little was done of is told, too
    story = Story()
    story.event("crash", "driver", server="s1", how="kill")
    story.broken()
    good_so_far &= ok(not story.good and "no grant after crash" in story.judged.getvalue(),
                      "a crash after which nothing was granted")
    print(f"1..{tests}")
    return 0 if good_so_far else 1


if __name__ == "__main__":
    sys.exit(main())
