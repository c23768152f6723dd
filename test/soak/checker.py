#!/usr/bin/python3
"""Judges what clients saw, and what servers held in the end, offline: checker.py FOLDER

The rules are the methods of Checker that have "rule" in their name; each says
what must never be. What a client could not know (an outcome lost with its
connection) may be either. Servers are one line of descent: each promotion makes
a new one. Where the installed extension has no incarnation, nothing is said
about epochs across a promotion.
"""

import bisect
import collections
import sys

import history

GRANTS = ("acquire", "reacquire")
EXTENDS = ("acquire", "reacquire", "renew")
ENDS = ("release", "force")
SHOWN = 20                              # violations that are printed


class Violation:
    def __init__(self, rule, what, *events):
        self.rule, self.what, self.events = rule, what, events

    def __str__(self):
        return "\n".join([f"{self.rule}: {self.what}", *(f"    {event}" for event in self.events)])


def may_be(event):
    return event["outcome"] in ("ok", "unknown")


class Highest:
    """The event with the highest epoch among those that were complete at a time."""

    def __init__(self, events):
        events = sorted(events, key=lambda event: event["t1"])
        self.times = [event["t1"] for event in events]
        self.best = []
        for event in events:
            above = not self.best or event["epoch"] > self.best[-1]["epoch"]
            self.best.append(event if above else self.best[-1])

    def before(self, t):
        n = bisect.bisect_left(self.times, t)
        return self.best[n - 1] if n else None


class Term:
    """What one client knew of one epoch on one server."""

    def __init__(self, event):
        self.id, self.epoch, self.server = event["id"], event["epoch"], event["server"]
        self.holder = event["holder"]
        self.start = event["t1"]
        self.deadline = self.start
        self.ended = float("inf")       # the earliest that it may have been given up, or was known to be lost
        self.extended = None            # the last event that moved the deadline for certain

    def until(self):
        return min(self.deadline, self.ended)


class Checker:
    def __init__(self, events, truth):
        self.events, self.truth = events, truth
        self.violations = []
        self.servers = []               # in the order of their promotion
        self.promotions = {}            # by the server that was promoted
        self.left = {}                  # the promotion by which a server was left
        self.marks = collections.defaultdict(list)
        self.breaks = collections.defaultdict(list)
        self.incarnation = False
        offsets = []
        for event in events:
            offsets.append(event["w0"] - event["t0"])
            op = event["op"]
            if op == "setup":
                self.incarnation = event["incarnation"]
                self.servers.append(event["server"])
            elif op == "promote":
                self.servers.append(event["server"])
                self.promotions[event["server"]] = self.left[event["from"]] = event
                self.breaks[event["from"]].append(event)
            elif op == "crash":
                self.breaks[event["server"]].append(event)
            elif op == "caught_up":
                self.marks[event["server"]].append(event)
        # deadlines are wall clock: what that clock moved, they may be off
        self.drift = max(offsets, default=0) - min(offsets, default=0) + 0.001
        self.grants = [e for e in events if e["op"] in GRANTS and e["outcome"] == "ok"]
        self.writes = [e for e in events if e["op"] == "write"]
        self.granted = collections.defaultdict(list)        # by id and server
        for event in self.grants:
            self.granted[event["id"], event["server"]].append(event)
        self.highest = {key: Highest(grants) for key, grants in self.granted.items()}
        self.terms = self.known_terms()
        self.attempts = {}              # of writes, by their id: the write and its transaction
        for event in self.writes:
            for write in event.get("writes", ()):
                self.attempts[write["w"]] = write, event

    def violate(self, rule, what, *events):
        self.violations.append(Violation(rule, what, *events))

    def check(self):
        for name in dir(self):
            if name.startswith("rule_"):
                getattr(self, name)()
        return self.violations

    # --- what clients knew ---------------------------------------------------

    def known_terms(self):
        terms = {}
        for event in sorted(self.events, key=lambda event: event["t1"]):
            op = event["op"]
            if op in EXTENDS and event.get("epoch") is not None:
                key = event["id"], event["server"], event["epoch"], event["holder"]
                if event["outcome"] == "ok":
                    term = terms.setdefault(key, Term(event))
                    term.deadline = event["expires"] - (event["w1"] - event["t1"])
                    term.extended = event
                elif key in terms and event["outcome"] == "unknown":
                    # it may have been made shorter
                    terms[key].deadline = min(terms[key].deadline, event["t0"] + event["ttl"])
                elif key in terms and event["outcome"] == "lost":
                    terms[key].ended = min(terms[key].ended, event["t1"])
        given_up = collections.defaultdict(list)
        for event in self.events:
            if event["op"] in ENDS and may_be(event):
                given_up[event["id"], event["server"], event["epoch"]].append(event)
        for term in terms.values():
            for event in given_up[term.id, term.server, term.epoch]:
                if event["op"] == "force" or event["holder"] == term.holder:
                    term.ended = min(term.ended, event["t0"])
        for term in terms.values():
            if term.server in self.left:
                term.ended = min(term.ended, self.left[term.server]["t0"])
        return terms

    def rule_epoch_granted_once(self):
        """No epoch of an id has two holders."""
        seen = {}
        for event in self.grants:
            key = event["id"], event["epoch"], None if self.incarnation else event["server"]
            other = seen.setdefault(key, event)
            if other["holder"] != event["holder"]:
                self.violate("epoch granted twice", f"{event['id']} {event['epoch']}", other, event)

    def rule_epochs_increase(self):
        """What is granted after a grant was known has a higher epoch, or is the same holder's term again."""
        for event in self.grants:
            before = self.highest[event["id"], event["server"]].before(event["t0"])
            if before is None or event["epoch"] > before["epoch"]:
                continue
            if event["epoch"] < before["epoch"] or event["holder"] != before["holder"]:
                self.violate("epoch not above the last", event["id"], before, event)

    def rule_no_term_again(self):
        """An epoch that its holder has released is not granted again."""
        released = collections.defaultdict(list)
        for event in self.events:
            if event["op"] == "release" and event["outcome"] == "ok" and event["sync"]:
                released[event["id"], event["server"], event["epoch"]].append(event)
        for event in self.grants:
            for end in released[event["id"], event["server"], event["epoch"]]:
                if end["t1"] < event["t0"]:
                    self.violate("epoch not above the last", "it had been released", end, event)

    def rule_epochs_above_the_lost(self):
        """After a promotion every epoch is above all that were granted before on any server."""
        if not self.incarnation:
            return
        below = {}
        for server in self.servers:
            for (lease, at), grants in self.granted.items():
                if at != server:
                    continue
                for event in grants:
                    if lease in below and event["epoch"] <= below[lease]["epoch"]:
                        self.violate("epoch of the lost past", lease, below[lease], event)
            for (lease, at), grants in self.granted.items():
                if at == server:
                    highest = max(grants, key=lambda event: event["epoch"])
                    if lease not in below or highest["epoch"] > below[lease]["epoch"]:
                        below[lease] = highest

    def rule_terms_apart(self):
        """Nobody holds an id while another knows that he holds it."""
        by_id = collections.defaultdict(list)
        for term in self.terms.values():
            # who hears of his term when it is over has held nothing
            if term.start < term.until():
                by_id[term.id, term.server].append(term)
        for terms in by_id.values():
            terms.sort(key=lambda term: term.start)
            last = None
            for term in terms:
                if last is not None and term.epoch != last.epoch and term.start < last.until() - self.drift:
                    self.violate("terms overlap", f"{term.id}: epoch {term.epoch} at {term.start:.3f}, "
                                 f"epoch {last.epoch} until {last.until():.3f}", last.extended, term.extended)
                if last is None or term.until() > last.until():
                    last = term

    def rule_live_terms_stand(self):
        """A holder whose term lasts is not told that it is lost."""
        for event in self.events:
            if event["outcome"] != "lost" or event["op"] not in ("renew", "write"):
                continue
            term = self.terms.get((event["id"], event["server"], event["epoch"], event["holder"]))
            if term is None or term.extended["t1"] > event["t0"] or term.deadline - self.drift < event["t1"]:
                continue
            if any(end["op"] in ENDS and end["id"] == event["id"] and end["epoch"] == event["epoch"] and
                   end["t0"] < event["t1"] for end in self.events):
                continue
            # a crash may have lost the last renewal
            if any(broken["t1"] > term.extended["t0"] and broken["t0"] < event["t1"]
                   for broken in self.breaks[event["server"]]):
                continue
            self.violate("live term lost", f"until {term.deadline:.3f}", term.extended, event)

    def rule_stale_writes_refused(self):
        """Nothing is accepted, or committed, that was sent after a later grant was known."""
        for event in self.writes:
            for server, sent, what in self.accepted(event):
                later = self.highest.get((event["id"], server))
                later = later.before(sent) if later is not None else None
                if later is not None and later["epoch"] > event["epoch"]:
                    self.violate("stale write", what, later, event)

    @staticmethod
    def accepted(event):
        for write in event.get("writes", ()):
            if write["accepted"]:
                yield event["server"], write["t0"], f"{write['w']} was accepted"
        if event["outcome"] == "ok" and "commit" in event and any(w["kept"] for w in event["writes"]):
            yield event["server"], event["commit"], "it was committed"

    def rule_lost_epochs_refused(self):
        """After a promotion nothing is accepted at an epoch of before."""
        if not self.incarnation:
            return
        of = {(e["id"], e["epoch"]): e["server"] for e in self.grants}
        for event in self.writes:
            granted = of.get((event["id"], event["epoch"]))
            if granted not in (None, event["server"]) and any(w["accepted"] for w in event.get("writes", ())):
                self.violate("write of the lost past", f"epoch {event['epoch']} is of {granted}", event)

    def rule_probes(self):
        """What is tried because it must fail has failed."""
        for event in self.events:
            if event["op"] == "probe" and event["outcome"] == "accepted":
                self.violate("not refused", event["what"], event)
            elif event["op"] == "trouble":
                self.violate("trouble", event["what"], event)

    # --- what servers held ---------------------------------------------------

    def rule_order_of_each_entity(self):
        """By the revisions of an entity its epochs never fall, and no revision is there twice or missing."""
        for server, tables in self.truth.items():
            rows = collections.defaultdict(list)
            for row in tables.get("log", ()):
                rows[row["kind"], row["id"], row["entity"]].append(row)
            for key, log in rows.items():
                log.sort(key=lambda row: row["revision"])
                for n, row in enumerate(log):
                    if row["revision"] != n + 1:
                        self.violate("revisions", f"{server} {key}: {n + 1} is there twice or missing", *log[max(n - 1, 0):n + 1])
                        break
                    if n and row["epoch"] < log[n - 1]["epoch"]:
                        self.violate("lower epoch after a higher one", f"{server} {key}", log[n - 1], row)
            self.ends_of_entities(server, tables, rows)

    def ends_of_entities(self, server, tables, rows):
        for state in tables.get("state", ()):
            log = rows.get((state["kind"], state["id"], state["entity"]))
            last = log[-1] if log else None
            if last is None or (last["write_id"], last["revision"]) != (state["write_id"], state["revision"]) or \
                    last["epoch"] != state["epoch"]:
                self.violate("state is not the last write's", server, last, state)

    def rule_commits_before_the_next_grant(self):
        """By the times of their commits no write follows a grant of a higher epoch."""
        for server, tables in self.truth.items():
            grants = collections.defaultdict(list)
            for row in tables.get("granted", ()):
                grants[row["id"]].append(row)
            for rows in grants.values():
                rows.sort(key=lambda row: row["epoch"])
            # the earliest commit of any grant from each epoch on
            first = {lease: rows[:] for lease, rows in grants.items()}
            for rows in first.values():
                for n in range(len(rows) - 2, -1, -1):
                    rows[n] = min(rows[n], rows[n + 1], key=lambda row: row["committed"])
            for row in tables.get("log", ()):
                n = bisect.bisect_right(grants[row["id"]], row["epoch"], key=lambda grant: grant["epoch"])
                if n == len(grants[row["id"]]):
                    continue
                later = first[row["id"]][n]
                if row["committed"] > later["committed"] + self.drift:
                    self.violate("committed after the next grant", server, later, row)

    def rule_what_was_acknowledged_is_there(self):
        """A grant, and a write that was committed synchronously, outlives every crash, and a promotion that waits for it."""
        for server in self.servers:
            tables = self.truth.get(server, {})
            rows = {row["write_id"]: row for row in tables.get("log", ())}
            terms = {(row["id"], row["epoch"]): row for row in tables.get("history", ())}
            for event in self.writes:
                if event["outcome"] == "ok" and event["sync"] and self.must_reach(event, server):
                    for write in event["writes"]:
                        if write["kept"] and write["w"] not in rows:
                            self.violate("acknowledged write is gone", f"{write['w']} from {server}", event)
            for event in self.grants:
                # a standby is waited for only by who asks for it
                if event["server"] != server and not (event["sync"] and self.must_reach(event, server)):
                    continue
                term = terms.get((event["id"], event["epoch"]))
                if term is None or term["holder"] != event["holder"]:
                    self.violate("acknowledged grant is gone", f"from {server}", event, term)

    def must_reach(self, event, server):
        """Must what was committed in this event be there on the server?"""
        while server != event["server"]:
            promotion = self.promotions.get(server)
            if promotion is None:
                return False
            server = promotion["from"]
            if promotion["mode"] == "sync" or server != event["server"]:
                continue
            if not any(mark["standby"] == promotion["server"] and event["t1"] < mark["t0"] for mark in self.marks[server]):
                return False
        return True

    def rule_what_was_undone_is_not_there(self):
        """What was refused or rolled back left nothing, and what is there is what was sent."""
        for server, tables in self.truth.items():
            for row in tables.get("log", ()):
                if row["write_id"] not in self.attempts:
                    continue            # its client was killed
                write, event = self.attempts[row["write_id"]]
                if not may_be(event) or not write["kept"] or row["epoch"] != event["epoch"]:
                    self.violate("undone write is there", server, row, event)

    def rule_history_of_servers(self):
        """In a server's own history terms follow one another."""
        for server, tables in self.truth.items():
            terms = collections.defaultdict(list)
            for row in tables.get("history", ()):
                terms[row["id"]].append(row)
            for rows in terms.values():
                rows.sort(key=lambda row: row["epoch"])
                for before, row in zip(rows, rows[1:]):
                    if before["ended"] is None or before["ended"] > row["acquired"] + self.drift:
                        self.violate("terms overlap", f"in the history of {server}", before, row)

    # --- what was done at all ------------------------------------------------

    def counts(self):
        count = collections.Counter()
        for event in self.events:
            op, outcome = event["op"], event["outcome"]
            if outcome == "unknown":
                count["unknown outcomes"] += 1
            if op in EXTENDS:
                count[{"acquire": "grants", "reacquire": "refreshes", "renew": "renewals"}[op]] += outcome == "ok"
                count["refused: lease held"] += outcome == "refused"
                count["refused: term lost"] += outcome == "lost"
            elif op in ENDS:
                count["releases" if op == "release" else "forced releases"] += outcome == "ok"
            elif op == "write":
                self.count_write(event, count)
            elif op == "crash":
                count[f"crashes: {event['how']}"] += 1
            elif op == "promote":
                count[f"promotions: {event['mode']}"] += 1
                count["promotions: old primary left running"] += event["split"]
            elif op == "pause":
                count[f"pauses of a {event['what']}"] += 1
            elif op == "probe":
                count[f"probes: {event['what']}"] += 1
            elif op == "killed":
                count["clients killed"] += 1
        return count

    @staticmethod
    def count_write(event, count):
        count["refused: term lost"] += event["outcome"] == "lost"
        for write in event.get("writes", ()):
            if write["accepted"] and write["kept"] and event["outcome"] == "ok":
                count[f"writes: {write['how']}"] += 1
            elif write["accepted"]:
                count["writes undone or unknown"] += 1
            else:
                count["refused: stale write"] += 1
        count["transactions rolled back"] += event["outcome"] == "rolled back"
        count["rollbacks to a savepoint"] += event.get("undone", 0)
        count["transactions that outlived their term"] += event["late"] and "commit" in event if "late" in event else 0

    def missing(self, wanted):
        """Kinds of events that never came; and breaks after which nothing was granted."""
        count = self.counts()
        found = [f"{kind}: none" for kind in wanted if not count[kind]]
        for server in self.servers:
            since = [(e["t1"], f"{e['op']} at {e['t1']:.3f}") for e in self.breaks[server] if e["op"] == "crash"]
            if server in self.promotions:
                since.append((self.promotions[server]["t1"], f"promotion of {server}"))
            times = sorted(e["t0"] for grants in (g for (_, at), g in self.granted.items() if at == server) for e in grants)
            found += [f"no grant after {what}" for t, what in since if not times or times[-1] < t]
        return found


# Each of these a run of any length does at least once.
WANTED = (
    "grants", "refreshes", "renewals", "releases", "refused: lease held", "refused: term lost", "refused: stale write",
    "writes: apply_fenced", "writes: apply_fenced_many", "writes: fenced_write", "writes: table",
    "transactions rolled back", "rollbacks to a savepoint", "transactions that outlived their term",
    "crashes: kill", "crashes: stop", "promotions: sync", "promotions: async", "promotions: old primary left running",
    "pauses of a client", "pauses of a backend",
)


def judge(folder, wanted=WANTED, out=sys.stdout):
    """Prints what was done and what is wrong; true if nothing is."""
    events, truth = history.read(folder)
    checker = Checker(events, truth)
    violations = checker.check()
    missing = checker.missing(wanted)
    setup = next((event for event in events if event["op"] == "setup"), {})
    print(f"seed {setup.get('seed')}, {len(events)} events on {len(checker.servers)} servers, clocks apart by "
          f"{1000 * checker.drift:.1f} ms, incarnation {'checked' if checker.incarnation else 'not there'}, "
          f"guarded tables {'checked' if setup.get('guard') else 'not there'}", file=out)
    for kind, number in sorted(checker.counts().items()):
        print(f"  {number:7} {kind}", file=out)
    for violation in violations[:SHOWN]:
        print(violation, file=out)
    if len(violations) > SHOWN:
        print(f"... {len(violations)} in all", file=out)
    for what in missing:
        print(f"too little was done: {what}", file=out)
    print("no rule is violated" if not violations else f"{len(violations)} violations", file=out)
    return not violations and not missing


if __name__ == "__main__":
    sys.exit(0 if judge(sys.argv[1]) else 1)
