#!/usr/bin/python3
"""A random client of the history check: client.py FOLDER NUMBER LIFE SEED

It acquires leases, renews, releases and writes under their fences, also when it
should not, and writes down what it sent and what it was told. It ends on
SIGTERM.
"""

import json
import os
import random
import signal
import sys
import time

import psycopg

import history

LEASES = ("alpha", "beta", "gamma")
ENTITIES = ("e1", "e2", "e3", "e4")
TOKEN = "SELECT holder_id, epoch, extract(epoch FROM expires_at)::float8 FROM reconcile."

stopping = False


class Undone(Exception):
    """The transaction was rolled back because we wanted it so."""


class Term:
    def __init__(self, lease, holder, epoch, ttl):
        self.id, self.holder, self.epoch, self.ttl = lease, holder, epoch, ttl


class Client:
    def __init__(self, folder, number, life, seed):
        self.folder, self.name = folder, f"c{number}-{life}"
        self.random = random.Random(f"{seed} {number} {life}")
        self.writer = history.Writer(f"{folder}/client-{number}-{life}.jsonl", client=self.name)
        self.connection = None
        self.server = None
        self.guard = False
        self.asynchronous = False       # of this session
        self.held = {}                  # terms that we believe we have, by id
        self.past = []                  # and some that we had

    # --- the connection ------------------------------------------------------

    def connect(self):
        while not stopping:
            with open(f"{self.folder}/primary", encoding="utf-8") as file:
                primary = json.load(file)
            try:
                self.connection = psycopg.connect(host=primary["host"], port=5432, user="postgres", dbname="postgres",
                                                  application_name=f"soak {self.name}", autocommit=True, connect_timeout=5)
            except psycopg.OperationalError:
                time.sleep(0.05 + 0.1 * self.random.random())
                continue
            self.server, self.guard, self.asynchronous = primary["server"], primary["guard"], False
            return

    def execute(self, statement, *values):
        return self.connection.execute(statement, values)

    def row(self, statement, *values):
        return self.execute(statement, *values).fetchone()

    def is_lost(self, error):
        """Is there no answer, so that what was under way may or may not have happened?"""
        return self.connection.closed or error.sqlstate is None or error.sqlstate[:2] == "08" or error.sqlstate[:3] == "57P"

    def choose_durability(self):
        """Commits are asynchronous now and then, and all of them shortly before some crashes."""
        asynchronous = self.is_lazy() or self.chance(0.15)
        if asynchronous != self.asynchronous:
            self.execute(f"SET synchronous_commit = {'off' if asynchronous else 'on'}")
            self.asynchronous = asynchronous

    def is_lazy(self):
        return os.path.exists(f"{self.folder}/lazy")

    def chance(self, probability):
        return self.random.random() < probability

    def hold(self, seconds):
        time.sleep(seconds * self.random.random())

    # --- events --------------------------------------------------------------

    def attempt(self, op, work, **facts):
        """Calls work(event), which returns (outcome, facts), and notes what became of it."""
        self.choose_durability()
        event = self.writer.invoke(op, server=self.server, sync=not self.asynchronous, **facts)
        event["sent"] = False           # may the server have committed?
        try:
            outcome, more = work(event)
        except Undone:
            outcome, more = "rolled back", {}
        except psycopg.Error as error:
            if self.is_lost(error):
                outcome = "unknown" if event["sent"] else "failed"
                self.connection.close()
            else:
                outcome = {"RC001": "refused", "RC002": "lost"}.get(error.sqlstate, "failed")
                self.finish()
            more = {"sqlstate": error.sqlstate}
            if error.sqlstate is not None and error.sqlstate[:2] in ("XX", "42"):
                self.trouble(error)
        del event["sent"]
        self.writer.complete(event, outcome, **more)
        return event

    def finish(self):
        """Leaves the failed transaction, if there is one."""
        try:
            if self.connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
                self.execute("ROLLBACK")
        except psycopg.Error:
            self.connection.close()

    def trouble(self, error):
        event = self.writer.invoke("trouble", what=str(error))
        self.writer.complete(event, "ok")

    def begin(self, isolation=""):
        self.execute(f"BEGIN {isolation}")

    def commit(self, event):
        event["commit"] = history.clock()[0]
        event["sent"] = True
        self.execute("COMMIT")

    # --- leases --------------------------------------------------------------

    def acquire(self):
        free = [lease for lease in LEASES if lease not in self.held]
        if not free:
            return
        lease = self.random.choice(free)
        before = [term.holder for term in self.past if term.id == lease]
        if before and self.chance(0.15):
            holder = self.random.choice(before)         # the same one again, after a gap
        elif self.chance(0.15):
            holder = None
        else:
            holder = f"{self.name}-{self.writer.count}"
        ttl = self.random.uniform(0.2, 1.2) + 2 * self.is_lazy()
        wait = self.random.uniform(0, 0.6) if self.chance(0.5) else None
        # the grant notes itself in its transaction; or it is a statement of its own
        noted, undo = self.chance(0.7), self.chance(0.05)

        def work(event):
            if noted or undo:
                self.begin()
            event["sent"] = not (noted or undo)
            if wait is None:
                token = self.row(TOKEN + "try_acquire_lease(%s, %s, make_interval(secs => %s))", lease, holder, ttl)
            else:
                token = self.row(TOKEN + "acquire_lease(%s, %s, make_interval(secs => %s), make_interval(secs => %s))",
                                 lease, holder, ttl, wait)
            if token[1] is None:
                self.finish()
                return "refused", {}
            if noted:
                self.execute("INSERT INTO soak.granted VALUES (%s, %s, %s)", lease, token[1], token[0])
            if noted and self.chance(0.1):
                self.hold(0.5)
            if undo:
                self.finish()
                raise Undone
            if noted:
                self.commit(event)
            return "ok", {"holder": token[0], "epoch": token[1], "expires": token[2]}

        event = self.attempt("acquire", work, id=lease, holder=holder, ttl=ttl)
        if event["outcome"] == "ok":
            self.held[lease] = Term(lease, event["holder"], event["epoch"], ttl)

    def reacquire(self, term):
        """The holder asks again: the same term, longer or shorter, or a new one where it was over."""
        ttl = self.random.uniform(0.2, 3)

        def work(event):
            event["sent"] = True
            token = self.row(TOKEN + "try_acquire_lease(%s, %s, make_interval(secs => %s))", term.id, term.holder, ttl)
            if token[1] is None:
                return "refused", {}
            return "ok", {"epoch": token[1], "expires": token[2]}

        event = self.attempt("reacquire", work, id=term.id, holder=term.holder, ttl=ttl, epoch=term.epoch)
        if event["outcome"] == "refused":
            self.give_up(term)
        elif event["outcome"] == "ok" and event["epoch"] != term.epoch:
            self.past.append(term)
            self.held[term.id] = Term(term.id, term.holder, event["epoch"], ttl)
        else:
            # that of a renewal without one, if it was not lost
            term.ttl = ttl if event["outcome"] == "ok" else min(term.ttl, ttl)

    def renew(self, term):
        ttl = self.random.uniform(0.2, 4) if self.chance(0.2) else None
        many, block = self.chance(0.2), self.chance(0.05)

        def work(event):
            if block:
                self.begin()
            event["sent"] = not block
            if many:
                renewed, expires = self.row(
                    "SELECT renewed, extract(epoch FROM expires_at)::float8"
                    " FROM reconcile.renew_leases(%s, ARRAY[%s], ARRAY[%s]::bigint[], make_interval(secs => %s))",
                    term.holder, term.id, term.epoch, ttl)
                if not renewed:
                    self.finish()
                    return "lost", {}
            else:
                expires = self.row(TOKEN + "renew_lease(%s, %s, %s, make_interval(secs => %s))",
                                   term.id, term.holder, term.epoch, ttl)[2]
            if block:
                self.hold(term.ttl)
                self.commit(event)
            return "ok", {"expires": expires}

        event = self.attempt("renew", work, id=term.id, holder=term.holder, epoch=term.epoch, ttl=ttl or term.ttl)
        if event["outcome"] == "lost":
            self.give_up(term)

    def release(self, term):
        def work(event):
            event["sent"] = True
            freed, = self.row("SELECT reconcile.release_lease(%s, %s, %s)", term.id, term.holder, term.epoch)
            return ("ok" if freed else "lost"), {}

        self.attempt("release", work, id=term.id, holder=term.holder, epoch=term.epoch)
        self.give_up(term)

    def force(self):
        def work(event):
            event["sent"] = True
            freed, = self.row("SELECT reconcile.force_release_lease(%s, %s, 'soak')", lease, epoch)
            return ("ok" if freed else "refused"), {}

        lease = self.random.choice(LEASES)
        found = self.row("SELECT epoch FROM reconcile.leases WHERE reconciler_id = %s AND live", lease)
        if found is not None:
            epoch, = found
            self.attempt("force", work, id=lease, epoch=epoch)

    def give_up(self, term):
        if self.held.get(term.id) is term:
            del self.held[term.id]
        if term not in self.past:
            self.past.append(term)
            del self.past[:-6]

    # --- writes --------------------------------------------------------------

    def write(self, term):
        if self.chance(0.15):
            self.write_alone(term)
            return
        bound = self.chance(0.6)
        late = self.chance(0.1)         # stays open beyond the term
        facts = {"id": term.id, "holder": term.holder, "epoch": term.epoch, "bound": bound, "writes": [], "late": late}

        def work(event):
            if self.chance(0.25):
                self.begin("ISOLATION LEVEL REPEATABLE READ")
                if self.chance(0.4):
                    # with a snapshot of the term, it may write when that is over
                    self.execute("SELECT FROM soak.granted LIMIT 1")
                    self.hold(1.5 * term.ttl)
            else:
                self.begin()
            if bound:
                self.execute("SELECT reconcile.bind_lease(%s, %s, %s)", term.id, term.holder, term.epoch)
            for _ in range(self.random.randint(1, 3)):
                if self.chance(0.3):
                    self.in_savepoint(event, term, bound)
                else:
                    self.write_once(event, term, bound)
                if self.chance(0.2):
                    self.hold(0.2)
            if late:
                time.sleep(term.ttl + 0.3 * self.random.random())
            if self.chance(0.1):
                for write in event["writes"]:
                    write["kept"] = False
                self.finish()
                raise Undone
            self.commit(event)
            return "ok", {}

        event = self.attempt("write", work, **facts)
        if event["outcome"] == "lost":
            self.give_up(term)

    def write_alone(self, term):
        """A statement that is a transaction."""
        entity = self.random.choice(ENTITIES)

        def work(event):
            write = self.new_write(event, "apply_fenced", entity)
            write["kept"] = event["sent"] = True        # unless we hear otherwise
            write["accepted"], = self.row("SELECT soak.apply(%s, %s, %s, %s)", term.id, entity, term.epoch, write["w"])
            write["kept"] = write["accepted"]
            return "ok", {}

        self.attempt("write", work, id=term.id, holder=term.holder, epoch=term.epoch, writes=[])

    def in_savepoint(self, event, term, bound):
        self.execute("SAVEPOINT s")
        first = len(event["writes"])
        self.write_once(event, term, bound)
        if self.chance(0.5):
            self.execute("ROLLBACK TO s")
            event["undone"] = event.get("undone", 0) + 1
            for write in event["writes"][first:]:
                write["kept"] = False
        self.execute("RELEASE s")

    def new_write(self, event, how, entity):
        write = {"w": f"{self.name}/{event['n']}/{len(event['writes'])}", "how": how, "entity": entity,
                 "accepted": False, "kept": False, "t0": history.clock()[0]}
        event["writes"].append(write)
        return write

    def write_once(self, event, term, bound):
        how = self.random.choice(("fenced_write", "table") if bound and self.chance(0.7) else ("apply_fenced", "apply_fenced_many"))
        if how == "apply_fenced_many":
            self.write_many(event, term)
            return
        entity = self.random.choice(ENTITIES)
        write = self.new_write(event, how, entity)
        state = json.dumps({"w": write["w"]})
        if how == "apply_fenced":
            write["accepted"], = self.row("SELECT reconcile.apply_fenced(%s, %s, %s, %s)", term.id, entity, term.epoch, state)
        elif how == "fenced_write":
            self.execute("SELECT reconcile.fenced_write(%s, %s)", entity, state)
            write["accepted"] = True
        else:
            self.execute(f"UPDATE soak.{term.id} SET revision = revision + 1, value = %s"
                         f"{'' if self.guard else ', last_epoch = reconcile.fenced_epoch()'} WHERE entity_id = %s",
                         write["w"], entity)
            write["accepted"] = True
        self.note(write, term)

    def write_many(self, event, term):
        entities = self.random.sample(ENTITIES, self.random.randint(1, len(ENTITIES)))
        writes = [self.new_write(event, "apply_fenced_many", entity) for entity in entities]
        rows = self.execute("SELECT accepted FROM reconcile.apply_fenced_many(%s, %s, %s, %s::jsonb[]) ORDER BY ord",
                            term.id, entities, term.epoch, [json.dumps({"w": write["w"]}) for write in writes]).fetchall()
        for write, (accepted,) in zip(writes, rows):
            write["accepted"] = accepted
            self.note(write, term)

    def note(self, write, term):
        if not write["accepted"]:
            return
        kind = "table" if write["how"] == "table" else "resource"
        self.execute("SELECT soak.note(%s, %s, %s, %s, %s)", kind, term.id, write["entity"], term.epoch, write["w"])
        write["kept"] = True

    # --- what must fail ------------------------------------------------------

    def probe(self):
        """A write with no binding, with one that was rolled back, or with an epoch that was never granted."""
        lease = self.random.choice(LEASES)
        term = self.held.get(lease)
        probes = ["unminted"] + ["unguarded"] * self.guard + ["rolled back"] * (term is not None)
        what = self.random.choice(probes)
        expected = {"unminted": "RC005"}.get(what, "RC006")

        def work(event):
            self.begin()
            if what == "rolled back":
                self.execute("SAVEPOINT s")
                self.execute("SELECT reconcile.bind_lease(%s, %s, %s)", lease, term.holder, term.epoch)
                self.execute("ROLLBACK TO s")
            try:
                if what == "unminted":
                    self.execute("SELECT reconcile.apply_fenced(%s, 'e1', %s, '{}')", lease, 2 ** 60)
                elif what == "unguarded":
                    self.execute(f"UPDATE soak.{lease} SET value = 'unguarded' WHERE entity_id = 'e1'")
                else:
                    self.execute("SELECT reconcile.fenced_write('e1', '{}')")
            except psycopg.Error as error:
                if error.sqlstate != expected:
                    raise
                self.finish()
                return "ok", {}
            self.finish()
            return "accepted", {}

        self.attempt("probe", work, what=what, id=lease)

    # -------------------------------------------------------------------------

    def turn(self):
        self.choose_durability()
        if self.chance(0.02):
            self.probe()
        elif self.chance(0.01):
            self.force()
        elif self.past and self.chance(0.15):
            act, = self.random.choices((self.write, self.renew, self.release), (8, 1, 1))
            act(self.random.choice(self.past))                  # late
        elif not self.held or self.chance(0.2):
            self.acquire()
        else:
            term = self.random.choice(list(self.held.values()))
            # what a crash may lose is what comes shortly before it
            weights = (4, 4, 4, 4) if self.is_lazy() else (10, 5, 1, 1)
            act, = self.random.choices((self.write, self.renew, self.reacquire, self.release), weights)
            act(term)

    def run(self):
        while not stopping:
            if self.connection is None or self.connection.closed:
                self.connect()
                continue
            try:
                self.turn()
            except psycopg.Error:
                # between two attempts
                self.connection.close()
            time.sleep(0.03 * self.random.random())


def stop(*_):
    global stopping
    stopping = True


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, stop)
    Client(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4]).run()
