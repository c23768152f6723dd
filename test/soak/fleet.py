#!/usr/bin/python3
"""A simulated fleet: hosts that die, lose answers, pause, refuse and drain, judged by fleet_checker.py.

    fleet.py --bindir DIR --conf FILE --folder DIR [--seconds N] [--hosts N] [--sessions N]
             [--crashes N] [--seed N]

--conf has the settings by which a server finds and preloads the extension. All that is
made lies in the folder, and the sockets in a temporary one. A storm of faults lasts so
many seconds, and until enough of each kind has happened, however slow the machine is;
then they stop, and all sessions that a command waits for must come to a host.
"""

import collections
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time

import psycopg

import fleet_checker
import fleet_host
import soak
from soak import say

HERE = os.path.dirname(os.path.abspath(__file__))
PROCESSES = 5                           # of hosts
TENANTS = 5
OPEN_MOST = 1200                        # commands that wait at one time
DEADLINE = 600                          # seconds for anything that is awaited

PHASES = ("storm", "calm", "hold", "over")
SETTINGS = soak.SETTINGS + """
max_connections = 120
shared_buffers = '128 MB'
"""
STORM = {"session_ttl": "5 s", "offer_ttl": "2 s", "interval": "300 ms", "claim_ttl": "1 s", "replace_backoff": "50 ms",
         "control_shards": 4}
# nothing runs out any more because a machine is slow
CALM = {"session_ttl": "5 min", "offer_ttl": "1 min"}

# the least of each that a run is worth something with
ENOUGH = {**{f"fault: {fault}": 3 for fault in fleet_host.FAULTS}, **{f"refused with {code}": 1 for code in fleet_host.CODES},
          "fault: drains": 3, "accept after a lost answer: repeated": 1,
          **{f"late {op}": 1 for op in ("beat", "begin")}, "accept: accepted": 1000, "settle: settled": 500}

TRUTH = {
    "offer": """SELECT tenant_id, session_id, epoch, offer_id AS offer, host_id AS host, token FROM reconcile.session_offer
                 WHERE state = 'accepted'""",
    "command": """SELECT tenant_id, session_id, command_id AS command, state, outcome, outcome_epoch, attempt_id AS attempt, attempt_epoch
                    FROM reconcile.session_command""",
    "effect": "SELECT tenant_id, session_id, command_id AS command, attempt_id AS attempt, epoch, host_id AS host FROM fleet.effect",
}


class Notes:
    """A file of events that the threads of a process share."""

    def __init__(self, path):
        self.file = open(path, "a", encoding="utf-8")  # pylint: disable=consider-using-with
        self.lock = threading.Lock()

    def __call__(self, kind, **facts):
        with self.lock:
            self.file.write(json.dumps({"kind": kind, **facts}) + "\n")


class Fleet:
    """What hosts know of the world."""

    def __init__(self, options, host, phase, tally):
        self.seed, self.host = options.seed, host
        self.capacity = (6, max(18, int(options.seconds / 5)))
        self.calm = 8                   # seconds between two faults of a host, on average
        self.beat_every, self.pace, self.batch = 1.5, 0.5, 25
        self.counts = collections.Counter()
        self.state, self.tally = phase, tally

    def phase(self):
        return PHASES[self.state.value]


def hosts(options, host, phase, tally, number, path):
    """A process of some hosts, each of them a thread."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    fleet = Fleet(options, host, phase, tally)
    notes = Notes(path)
    threads = [threading.Thread(target=fleet_host.Host(n, fleet, notes).run, daemon=True)
               for n in range(number, options.hosts, PROCESSES)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        time.sleep(0.5)
        tally.put((number, dict(fleet.counts)))
    notes.file.close()


class Factory:
    """Gives sessions commands, takes some back, and wants something else of others."""

    def __init__(self, storm, notes):
        self.storm, self.notes = storm, notes
        self.random = random.Random(f"{storm.options.seed} factory")
        self.number = 0
        self.order = []
        self.counts = storm.counts
        self.recent = collections.deque(maxlen=400)

    def key(self, n):
        return f"t{n % TENANTS}", f"s{n}"

    def next_sessions(self, number):
        while len(self.order) < number:
            more = list(range(self.storm.options.sessions))
            self.random.shuffle(more)
            self.order += more
        chosen, self.order = self.order[:number], self.order[number:]
        return chosen

    def admit(self, db, sessions, deadline):
        keys = sorted(self.key(n) for n in sessions)
        self.number += 1
        rows = db.execute("""SELECT k.t, k.s, a.outcome, k.c, a.revision FROM unnest(%s::text[], %s::text[]) WITH ORDINALITY i (t, s, n)
                CROSS JOIN LATERAL (SELECT i.t, i.s, 'c' || %s::int || '-' || i.n AS c) k,
                LATERAL reconcile.admit_session_command(k.t, k.s, k.c, 'input', 'x', apply_deadline_in => %s) a""",
                          ([key[0] for key in keys], [key[1] for key in keys], self.number, deadline)).fetchall()
        for t, s, outcome, command, revision in rows:
            self.counts[f"admit: {outcome}"] += 1
            self.notes("admitted", key=(t, s), command=command)
            self.recent.append(((t, s), command, revision))

    def admit_last(self, db):
        """A command for many sessions, which may wait as long as it likes."""
        self.number = 10 ** 6
        self.admit(db, self.next_sessions(150), "1 h")

    def reject(self, db):
        key, command, revision = self.random.choice(self.recent)
        (outcome,) = db.execute("SELECT outcome FROM reconcile.reject_session_command(%s, %s, %s, NULL, NULL, %s)",
                                (*key, command, revision)).fetchone()
        self.counts[f"reject: {outcome}"] += 1
        if outcome == "rejected":
            self.notes("rejected", key=key, command=command)

    def change(self, db):
        t, s = self.key(self.random.randrange(self.storm.options.sessions))
        self.number += 1
        (outcome,) = db.execute("""SELECT u.outcome FROM reconcile.sessions s, LATERAL reconcile.update_desired_state(s.tenant_id, s.session_id,
                %s, s.revision, 'pooled', %s, NULL, NULL) u WHERE (s.tenant_id, s.session_id) = (%s, %s)""",
                                (f"change {self.number}", f"r{self.random.randrange(2)}", t, s)).fetchone()
        self.counts[f"desired: {outcome}"] += 1

    def claim(self, db):
        t, s = self.key(self.random.randrange(self.storm.options.sessions))
        (outcome,) = db.execute("SELECT outcome FROM reconcile.acquire_claim(%s, %s, 'factory', '300 ms')", (t, s)).fetchone()
        self.counts[f"claim: {outcome}"] += 1

    def turn(self, db):
        (waiting,) = db.execute("SELECT count(*) FROM reconcile.session_command WHERE state IN ('pending', 'claimed')").fetchone()
        if waiting < OPEN_MOST:
            self.admit(db, self.next_sessions(100), "10 min")
            self.admit(db, self.next_sessions(10), self.random.choice(("300 ms", "1 s", "2 s")))
        for act in (self.reject, self.change, self.change, self.claim):
            act(db)

    def run(self):
        while self.storm.phase.value == 0:
            try:
                with self.storm.server.connect() as db:
                    while self.storm.phase.value == 0:
                        self.turn(db)
                        time.sleep(0.1)
            except psycopg.OperationalError as error:
                if not self.storm.crashing:
                    self.notes("trouble", op="factory", message=str(error))
                time.sleep(0.2)
            except psycopg.Error as error:
                self.notes("trouble", op="factory", message=str(error))


class Storm:
    def __init__(self, options):
        self.options = options
        self.folder = options.folder
        self.histories = f"{self.folder}/histories"
        self.sockets = tempfile.mkdtemp(prefix="fleet")
        self.random = random.Random(options.seed)
        self.phase = multiprocessing.Value("i", 0)
        self.tally = multiprocessing.Queue()
        self.counts = collections.Counter()
        self.counted = {}
        self.processes = []
        self.server = None
        self.crashing = False

    # --- the server ----------------------------------------------------------

    def begin_server(self):
        os.makedirs(self.histories)
        server = soak.Server(self, 1)
        server.run("initdb", "-D", server.data, "-U", "postgres", "-A", "trust", "-N", "--no-locale", "-E", "UTF8")
        with open(self.options.conf, encoding="utf-8") as file:
            server.configure(file.read() + SETTINGS)
        server.start()
        self.server = server
        with server.connect() as db, open(f"{HERE}/fleet.sql", encoding="utf-8") as file:
            db.execute("CREATE EXTENSION reconcile")
            db.execute(file.read())
            self.set(db, STORM)
            for n in range(self.options.hosts):
                role = f"fleet_{n:02}"
                db.execute(f"CREATE ROLE {role} LOGIN")
                db.execute("SELECT reconcile.register_host(%s, %s), reconcile.grant_access(%s, 'place')", (f"h{n:02}", role, role))
            db.execute("""SELECT count(*) FROM generate_series(0, %s - 1) n, LATERAL reconcile.create_session('t' || n %% %s, 's' || n,
                'agent', 'pooled', 'made', 'r' || n %% 2)""", (self.options.sessions, TENANTS))

    def set(self, db, changes):
        db.execute("SELECT reconcile.set_placement(%s)", (json.dumps(changes),))

    def crash(self):
        say("the server crashes")
        self.crashing = True
        self.server.stop("immediate")
        self.server.start()
        self.counts["crashes of the server"] += 1
        soak.until("answers", self.server.answers)
        self.crashing = False

    # --- counts --------------------------------------------------------------

    def all_counts(self):
        while not self.tally.empty():
            number, counts = self.tally.get()
            self.counted[number] = counts
        total = collections.Counter(self.counts)
        for counts in self.counted.values():
            total.update(counts)
        return total

    def lacking(self):
        counts = self.all_counts()
        return {what: least for what, least in ENOUGH.items() if counts[what] < least}

    def progress(self, since):
        counts = self.all_counts()
        faults = sum(n for what, n in counts.items() if what.startswith("fault: "))
        say(f"{time.monotonic() - since:.0f} s: {counts['accept: accepted']} acceptances, {counts['settle: settled']} commands settled,"
            f" {faults} faults, {counts['statements']} statements")

    # --- the run -------------------------------------------------------------

    def sample(self, notes):
        """What the server counts as placed on its hosts, at this moment, is what it has placed there."""
        self.counts["samples of what is reserved"] += 1
        if (wrong := self.server.value("SELECT count(*) FROM fleet.miscounted")) > 0:
            notes("trouble", op="driver", message=f"{wrong} targets have reserved something else than their offers")

    def storm(self):
        began = shown = sampled = time.monotonic()
        crashes = [began + self.options.seconds * (n + 1) / (self.options.crashes + 1) for n in range(self.options.crashes)]
        notes = Notes(f"{self.histories}/factory.jsonl")
        factory = threading.Thread(target=Factory(self, notes).run)
        factory.start()
        while (now := time.monotonic()) < began + self.options.seconds or (self.lacking() and now < began + DEADLINE):
            if crashes and now > crashes[0]:
                crashes.pop(0)
                self.crash()
            if now > shown + 10:
                self.progress(began)
                shown = now
            if now > sampled + 1:
                self.sample(notes)
                sampled = now
            time.sleep(0.2)
        self.progress(began)
        for what, least in self.lacking().items():
            notes("trouble", op="driver", message=f"not {least} times: {what}")
        return notes, factory

    def homeless(self):
        return self.server.value("SELECT count(*) FROM fleet.homeless")

    def settle_down(self, notes, when, least_more):
        """Until all that a command waits for are placed; by what is still moved, not by the time."""
        best, moved = None, time.monotonic()
        while (homeless := self.homeless()) > 0:
            if best is None or homeless < best:
                best, moved = homeless, time.monotonic()
            if time.monotonic() > moved + least_more:
                break
            time.sleep(0.5)
        notes("end", homeless=homeless, when=when)
        say(f"{when}: {homeless} sessions with a command have no host")

    def run(self):
        self.begin_server()
        for number in range(PROCESSES):
            process = multiprocessing.Process(target=hosts, args=(self.options, self.server.sockets, self.phase, self.tally, number,
                                                                  f"{self.histories}/hosts-{number}.jsonl"))
            process.start()
            self.processes.append(process)
        notes, factory = self.storm()
        with self.server.connect() as db:
            self.set(db, CALM)
        self.phase.value = 1
        factory.join()
        self.settle_down(notes, "when faults have stopped", 60)
        # sessions that a command comes for while nothing is finished
        self.phase.value = 2
        with self.server.connect() as db:
            Factory(self, notes).admit_last(db)
        self.settle_down(notes, "with a command for each of many more", 60)
        self.phase.value = 3
        for process in self.processes:
            while process.is_alive():
                self.all_counts()       # it does not end before it is rid of them
                process.join(0.2)
        notes.file.close()
        self.dump()
        self.report()
        events = fleet_checker.read(self.histories)
        say(f"{fleet_checker.full(events)} lives of hosts came to be full")
        return fleet_checker.judge(events) and soak.Soak.logs_are_clean(self)

    def dump(self):
        with self.server.connect() as db, open(f"{self.histories}/truth.jsonl", "w", encoding="utf-8") as file:
            for table, query in TRUTH.items():
                with db.cursor(row_factory=psycopg.rows.dict_row) as cursor:
                    for row in cursor.execute(query):
                        row["key"] = (row.pop("tenant_id"), row.pop("session_id"))
                        file.write(json.dumps({"kind": f"truth {table}", **row}) + "\n")

    def report(self):
        counts = self.all_counts()
        for what in sorted(counts):
            say(f"{counts[what]:8} {what}")
        with self.server.connect() as db:
            sessions, epochs, most = db.execute("""SELECT count(*) FILTER (WHERE n > 0), sum(n), max(n) FROM (SELECT count(o.offer_id) AS n
                FROM reconcile.session s LEFT JOIN reconcile.session_offer o ON o.state = 'accepted'
                 AND (o.tenant_id, o.session_id) = (s.tenant_id, s.session_id) GROUP BY s.number) e""").fetchone()
            say(f"{sessions} sessions were placed, under {epochs} epochs, one of them {most} times")
            for row in db.execute("""SELECT state, coalesce(code, ''), count(*) FROM reconcile.session_offer GROUP BY 1, 2 ORDER BY 1, 2"""):
                say(f"{row[2]:8} offers {row[0]} {row[1]}")
            for row in db.execute("""SELECT state, coalesce(outcome, ''), count(*) FROM reconcile.session_command GROUP BY 1, 2 ORDER BY 1, 2"""):
                say(f"{row[2]:8} commands {row[0]} {row[1]}")

    def end(self):
        for process in self.processes:
            process.kill()
            process.join()
        if self.server is not None and self.server.running():
            self.server.stop("immediate")
        shutil.rmtree(self.sockets, ignore_errors=True)


if __name__ == "__main__":
    parser = soak.options(45)
    parser.add_argument("--hosts", type=int, default=50)
    parser.add_argument("--sessions", type=int, default=5000)
    parser.add_argument("--crashes", type=int, default=0)
    sys.exit(soak.main(parser, Storm))
