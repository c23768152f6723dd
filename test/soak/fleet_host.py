"""A host of the simulated fleet: what it does, what goes wrong, and what it believes.

Each host has a connection of its own, under a role of its own. It notes from when to
when, by its own clock, it took each session for its own; a session is its own from the
answer to its acceptance on, for as long as it was told, counted from when it asked.
"""

import json
import os
import random
import socket
import time
import uuid

import psycopg

CODES = ("epoch_mismatch", "runtime_mismatch", "no_capacity", "not_admitting", "releasing", "runtime_unavailable", None)

PUBLISH = """SELECT outcome, generation FROM reconcile.publish_host_target(%s, %s, 'agent', %s, 'pooled', %s,
    'cross_tenant_isolated', %s, %s, '1 min', seen_offer => %s)"""
BEAT = """SELECT outcome, tenant_id, session_id, extract(epoch FROM remaining)::float8
    FROM reconcile.heartbeat_host(%s, %s, %s, %s, '1 min', %s)"""
FETCH = """SELECT offer_id, host_generation, tenant_id, session_id, extract(epoch FROM remaining)::float8 FROM reconcile.fetch_offers(%s)"""
ACCEPT = """SELECT o.id, a.outcome, a.epoch, extract(epoch FROM a.remaining)::float8
    FROM unnest(%s::bigint[], %s::text[]) o (id, token), LATERAL reconcile.accept_offer(o.id, %s, o.token) a"""
REFUSE = "SELECT reconcile.refuse_offer(o.id, o.code) FROM unnest(%s::bigint[], %s::text[]) o (id, code)"
WORK = """SELECT s.t, s.s, c.command_id, c.state, c.revision, c.claim_epoch, c.attempt_id, c.attempt_epoch
    FROM unnest(%s::text[], %s::text[]) s (t, s), LATERAL reconcile.session_commands(s.t, s.s, 0, 1000) c
    WHERE c.state IN ('pending', 'claimed', 'applying')"""
CLAIM = """SELECT k.n, c.outcome, c.revision FROM unnest(%s::text[], %s::text[], %s::text[], %s::bigint[], %s::text[], %s::bigint[])
    WITH ORDINALITY k (t, s, c, e, o, r, n), LATERAL reconcile.claim_session_command(k.t, k.s, k.c, k.e, k.o, k.r, '10 s') c"""
BEGIN = """SELECT k.n, c.outcome, c.revision FROM unnest(%s::text[], %s::text[], %s::text[], %s::bigint[], %s::text[], %s::bigint[], %s::text[])
    WITH ORDINALITY k (t, s, c, e, o, r, a, n), LATERAL reconcile.begin_attempt(k.t, k.s, k.c, k.e, k.o, k.r, k.a) c"""
APPLY = """SELECT k.n, fleet.apply(k.t, k.s, k.c, k.a, k.e, %s) FROM unnest(%s::text[], %s::text[], %s::text[], %s::text[], %s::bigint[])
    WITH ORDINALITY k (t, s, c, a, e, n)"""
WAS_DONE = """SELECT k.n, fleet.was_done(k.t, k.s, k.c, k.e) FROM unnest(%s::text[], %s::text[], %s::text[], %s::bigint[])
    WITH ORDINALITY k (t, s, c, e, n)"""
SETTLE = """SELECT k.n, c.outcome, c.revision FROM unnest(%s::text[], %s::text[], %s::text[], %s::bigint[], %s::text[], %s::bigint[], %s::text[], %s::text[])
    WITH ORDINALITY k (t, s, c, e, o, r, a, k, n), LATERAL reconcile.settle_attempt(k.t, k.s, k.c, k.e, k.o, k.r, k.a, k.k) c"""
POINT = """SELECT k.n, p.outcome FROM unnest(%s::text[], %s::text[], %s::bigint[], %s::text[])
    WITH ORDINALITY k (t, s, e, o, n), LATERAL reconcile.set_pointer(k.t, k.s, 'active_continuation', k.e, k.o, k.e, 'at ' || k.e) p"""
REPORT = """SELECT k.n, p.outcome FROM unnest(%s::text[], %s::text[], %s::bigint[], %s::text[])
    WITH ORDINALITY k (t, s, e, o, n), LATERAL reconcile.update_host_state(k.t, k.s, k.e, k.o, 'running', 'resident', k.e) p"""
RELEASE = """SELECT k.n, r.outcome FROM unnest(%s::text[], %s::text[], %s::bigint[], %s::text[])
    WITH ORDINALITY k (t, s, e, o, n), LATERAL reconcile.release_session(k.t, k.s, k.e, k.o) r"""
DRAIN = "SELECT outcome FROM reconcile.drain_host_target(%s, %s, 'agent', %s, 'pooled')"

# What becomes of a statement, and of the host; after "undone" and "terminated" it knows that nothing has happened.
FAULTS = ("dies", "dies uncommitted", "dies unread", "loses the answer", "undone", "terminated", "pauses")
OPS = {"publish": 1, "beat": 4, "fetch": 1, "accept": 6, "refuse": 1, "work": 1, "claim": 2, "begin": 3, "apply": 2, "settle": 3,
       "point": 1, "report": 1, "release": 3, "drain": 1}
GOOD = ("renewed", "accepted", "repeated", "claimed", "begun", "settled", "written")


class Died(Exception):
    """The process is gone, with all that it knew."""


class Lost(Exception):
    """There is no answer: it may have happened."""


class Undone(Exception):
    """It did not happen."""


class Held:
    def __init__(self, key, epoch, token, offer, since, until, over):
        self.key, self.epoch, self.token, self.offer = key, epoch, token, offer
        self.since = since
        self.until = until              # we take it for ours so long
        self.over = over                # it is nobody's from then on, unless it was renewed


class Host:
    def __init__(self, number, fleet, note):
        self.id, self.role = f"h{number:02}", f"fleet_{number:02}"
        self.fleet, self.note = fleet, note
        self.random = random.Random(f"{fleet.seed} {number}")
        self.runtime = f"r{number % 2}"
        self.generation, self.capacity = 0, 0
        self.connection = None
        self.held = {}                  # sessions by key
        self.unanswered = {}            # offers that we have accepted, and do not know whether we have
        self.doubtful = set()           # those of them whose answer was lost
        self.letting_go = []
        self.known = 0
        self.counts = fleet.counts
        self.fault = None
        self.next_fault = time.time() + self.random.expovariate(1 / fleet.calm)

    # --- statements ----------------------------------------------------------

    def connect(self):
        while self.connection is None or self.connection.closed:
            try:
                self.connection = psycopg.connect(host=self.fleet.host, port=5432, user=self.role, dbname="postgres", autocommit=True)
                self.connection.execute("SET lock_timeout = '60 s'")
            except psycopg.OperationalError:
                if self.fleet.phase() == "over":
                    raise
                time.sleep(0.2)

    def cut(self):
        """As if the network, or the process, were gone: no word to the server."""
        try:
            with socket.socket(fileno=os.dup(self.connection.pgconn.socket)) as wire:
                wire.shutdown(socket.SHUT_RDWR)
        except (OSError, psycopg.Error):
            pass
        self.connection.close()

    def send_unread(self, statement, values):
        text = psycopg.ClientCursor(self.connection).mogrify(statement, values)
        self.connection.pgconn.send_query(text.encode())
        while self.connection.pgconn.flush():
            time.sleep(0.001)

    def due_fault(self, op):
        if self.fleet.phase() != "storm":
            return None
        if self.fault is None and time.time() >= self.next_fault:
            (op,) = self.random.choices(list(OPS), OPS.values())
            self.fault = (op, self.random.choice(FAULTS), time.time() + 3)
        if self.fault is None or (self.fault[0] != op and time.time() < self.fault[2]):
            return None
        fault = self.fault[1]
        self.fault = None
        self.next_fault = time.time() + self.random.expovariate(1 / self.fleet.calm)
        self.counts[f"fault: {fault}"] += 1
        self.counts[f"fault at {op}"] += 1
        return fault

    def do(self, op, statement, *values):
        self.connect()
        fault = self.due_fault(op)
        self.counts["statements"] += 1
        try:
            if fault == "dies":
                self.cut()
                raise Died
            if fault == "dies unread":
                self.send_unread(statement, values)
                self.cut()
                raise Died
            if fault == "loses the answer":
                self.send_unread(statement, values)
                self.cut()
                raise Lost
            if fault in ("dies uncommitted", "undone", "terminated"):
                with self.connection.cursor() as cursor:
                    cursor.execute("BEGIN")
                    cursor.execute(statement, values)
                if fault == "dies uncommitted":
                    self.cut()
                    raise Died
                if fault == "undone":
                    self.connection.execute("ROLLBACK")
                else:
                    self.terminate()
                raise Undone
            if fault == "pauses":
                self.pause()
            self.asked = time.time()
            return self.connection.execute(statement, values).fetchall()
        except psycopg.Error as error:
            if self.connection.closed or self.connection.broken or error.sqlstate is None or error.sqlstate[:2] in ("08", "57"):
                self.connection.close()
                raise Lost from error
            self.note("trouble", host=self.id, op=op, sqlstate=error.sqlstate, message=str(error))
            self.connection.close()
            raise Undone from error

    def terminate(self):
        pid = self.connection.info.backend_pid
        with psycopg.connect(host=self.fleet.host, port=5432, user=self.role, dbname="postgres", autocommit=True) as other:
            other.execute("SELECT pg_terminate_backend(%s, 10000)", (pid,))
        self.connection.close()

    def pause(self):
        """Until all is over that we know the end of; then we go on as if nothing had been."""
        end = max([held.over for held in self.held.values() if held.over < time.time() + 60], default=time.time() + 1)
        time.sleep(max(end - time.time(), 0) + 0.1)

    # --- what we have --------------------------------------------------------

    def tell(self, op, outcome, over=None):
        """Notes what became of an act, and whether it came after the end."""
        self.counts[f"{op}: {outcome}"] += 1
        if over is not None and over + 0.05 < self.asked:
            self.counts[f"late {op}"] += 1
            if outcome in GOOD and op != "apply":
                self.note("late", host=self.id, op=op, outcome=outcome, over=over, asked=self.asked)

    def lose(self, held, at):
        self.note("had", host=self.id, generation=self.generation, key=held.key, epoch=held.epoch, token=held.token,
                  since=held.since, until=min(held.until, at))
        self.held.pop(held.key, None)

    def keep_the_clock(self):
        for held in list(self.held.values()):
            if held.until <= time.time():
                self.counts["ran out by its clock"] += 1
                self.lose(held, held.until)

    def ours(self, number):
        now = time.time()
        ours = [held for held in self.held.values() if held.until > now]
        return sorted(self.random.sample(ours, min(number, len(ours))), key=lambda held: held.key)

    def seen(self):
        """The last offer that what we count takes account of: of those behind it an acceptance may be under way."""
        return min([self.known, *(offer - 1 for offer in self.unanswered)])

    # --- what we do ----------------------------------------------------------

    def begin(self):
        self.generation += 1
        self.capacity = self.random.randint(*self.fleet.capacity)
        self.note("life", host=self.id, generation=self.generation, capacity=self.capacity, at=time.time())
        # whatever was accepted before, we have not
        self.publish(None)

    def publish(self, seen):
        while True:
            try:
                ((outcome, generation),) = self.do("publish", PUBLISH, self.id, self.generation, self.runtime, f"wss://{self.id}:1",
                                                   True, self.capacity - len(self.held), seen)
            except (Lost, Undone):
                continue
            if outcome != "published":
                self.note("trouble", host=self.id, op="publish", message=f"{outcome} {generation}")
            return

    def beat(self, accepting=True):
        self.keep_the_clock()
        offered = [{"agent_id": "agent", "runtime_compatibility_id": self.runtime, "placement": "pooled",
                    "endpoint": f"wss://{self.id}:1", "isolation_class": "cross_tenant_isolated", "accepting": accepting,
                    "available_capacity": max(self.capacity - len(self.held), 0)}]
        listed = list(self.held.values())
        beats = [{"tenant_id": held.key[0], "session_id": held.key[1], "epoch": held.epoch, "token": held.token} for held in listed]
        try:
            rows = self.do("beat", BEAT, self.id, self.generation, json.dumps(offered), json.dumps(beats), self.seen())
        except Lost:
            for held in listed:
                held.over = float("inf")
            return
        except Undone:
            return
        now = time.time()
        if rows[0][0] != "renewed":
            self.note("trouble", host=self.id, op="beat", message=str(rows[0]))
            return
        stop = {(row[1], row[2]): row[0] for row in rows[1:]}
        for held in listed:
            why = stop.get(held.key)
            self.tell("beat", why or "renewed", held.over)
            if why:
                self.lose(held, now)
                continue
            if held.until < now:        # for a moment we had stopped it
                self.lose(held, held.until)
                self.held[held.key], held.since = held, now
            held.until, held.over = self.asked + rows[0][3], now + rows[0][3]
        self.last_beat = now

    def answer_offers(self):
        try:
            rows = self.do("fetch", FETCH, self.fleet.batch)
        except (Lost, Undone):
            return
        now = time.time()
        refused, taken = {}, dict(self.unanswered)
        for offer, generation, tenant, session, remaining in sorted(rows, key=lambda row: row[2:4]):
            if offer in taken:
                continue
            chance = self.random.random() if self.fleet.phase() == "storm" else 1
            if chance < 0.06:
                refused[offer] = self.random.choice(CODES)
            elif generation < self.generation and len(self.held) + len(taken) >= self.capacity:
                refused[offer] = "no_capacity"  # an earlier life had more room
            elif chance > 0.08:
                taken[offer] = ((tenant, session), uuid.uuid4().hex, now + remaining)
            else:
                self.counts["left to lapse"] += 1
        self.accept(taken)
        if refused:
            codes = list(refused.values())
            try:
                for (outcome,), code in zip(self.do("refuse", REFUSE, list(refused), codes), codes):
                    self.tell("refuse", outcome)
                    self.counts[f"refused with {code}"] += 1
            except (Lost, Undone):
                pass
        return len(rows)

    def accept(self, taken):
        if not taken:
            return
        # what was accepted is told by no list of ours before we know it
        self.unanswered.update(taken)
        known = set(taken) - self.doubtful
        # each locks a session: all of us in the same order
        taken = dict(sorted(taken.items(), key=lambda offer: offer[1][0]))
        try:
            rows = self.do("accept", ACCEPT, list(taken), [token for _, token, _ in taken.values()], self.generation)
        except Undone:
            for offer in known:
                self.unanswered.pop(offer)
            return
        except Lost:
            self.doubtful.update(taken)
            return
        now = time.time()
        for offer, outcome, epoch, remaining in rows:
            key, token, over = self.unanswered.pop(offer)
            self.tell("accept", outcome, over if offer not in self.doubtful else None)
            if offer in self.doubtful:
                self.counts[f"accept after a lost answer: {outcome}"] += 1
            self.doubtful.discard(offer)
            if outcome in ("taken", "not_found"):
                self.note("trouble", host=self.id, op="accept", message=outcome)
            if outcome not in ("accepted", "repeated"):
                continue
            if key in self.held:
                self.lose(self.held[key], now)
            self.known = max(self.known, offer)
            self.note("got", host=self.id, generation=self.generation, key=key, epoch=epoch, token=token, offer=offer, at=now)
            self.held[key] = Held(key, epoch, token, offer, now, self.asked + remaining, now + remaining)

    def columns(self, items, *names):
        return [[{"t": held.key[0], "s": held.key[1], "e": held.epoch, "o": held.token, **more}[name] for held, more in items] for name in names]

    def step(self, op, statement, items, *names):
        """One statement of several acts: each with its outcome, and the rest of its row."""
        if not items:
            return []
        items = sorted(items, key=lambda item: item[0].key)
        rows = self.do(op, statement, *self.columns(items, *names))
        for n, outcome, *_ in rows:
            self.tell(op, outcome, items[n - 1][0].over)
        return [(items[row[0] - 1], row[1], row[2:]) for row in rows]

    def work(self):
        """Claims, begins, does and settles what is to be done in some of our sessions; lets others go."""
        some = self.ours(self.fleet.batch)
        if not some:
            return
        try:
            self.work_on(some)
        except (Lost, Undone):
            pass

    def work_on(self, some):
        of = {held.key: held for held in some}
        rows = self.do("work", WORK, [key[0] for key in of], [key[1] for key in of])
        claims, begins, mine, left = [], [], [], []
        busy = set()
        for t, s, command, state, revision, claim_epoch, attempt, attempt_epoch in rows:
            held = of[t, s]
            item = (held, {"c": command, "r": revision, "a": attempt})
            busy.add(held.key)
            if state == "applying":
                (mine if attempt_epoch == held.epoch else left).append(item)
            elif state == "claimed" and claim_epoch == held.epoch:
                begins.append(item)
            else:
                claims.append(item)
        for (held, item), outcome, (revision,) in self.step("claim", CLAIM, claims, "t", "s", "c", "e", "o", "r"):
            if outcome in ("claimed", "repeated"):
                item["r"] = revision
                begins.append((held, item))
        for held, item in begins:
            item["a"] = uuid.uuid4().hex
        for (held, item), outcome, (revision,) in self.step("begin", BEGIN, begins, "t", "s", "c", "e", "o", "r", "a"):
            if outcome == "begun":
                item["r"] = revision
                mine.append((held, item))
                self.note("begun", host=self.id, key=held.key, command=item["c"], attempt=item["a"], epoch=held.epoch, at=time.time())
        # nobody acts on what is not his by his own clock
        mine = [(held, item) for held, item in mine if held.until > time.time()]
        if mine:
            done = self.do("apply", APPLY, self.id, *self.columns(mine, "t", "s", "c", "a", "e"))
            ended = []
            for n, outcome in done:
                self.tell("apply", outcome)
                if outcome in ("done", "repeated"):
                    mine[n - 1][1]["k"] = "applied"
                    ended.append(mine[n - 1])
            self.settle(ended)
        if left:
            asked = self.do("work", WAS_DONE, *self.columns(left, "t", "s", "c", "e"))
            not_done = [left[n - 1] for n, done in asked if not done]
            for _, item in not_done:
                item["k"] = "not_applied"
            self.counts["found applied, and not settled"] += len(left) - len(not_done)
            self.settle(not_done)
        if self.random.random() < 0.1:
            self.step("point", POINT, [(held, {}) for held in some], "t", "s", "e", "o")
            self.step("report", REPORT, [(held, {}) for held in some], "t", "s", "e", "o")
        self.let_go([held for held in some if held.key not in busy and self.random.random() < 0.5])

    def settle(self, items):
        for (held, item), outcome, _ in self.step("settle", SETTLE, items, "t", "s", "c", "e", "o", "r", "a", "k"):
            if outcome == "settled":
                self.note("settled", host=self.id, key=held.key, command=item["c"], kind_of_end=item["k"], epoch=held.epoch)

    def let_go(self, some):
        now = time.time()
        for held in some:
            self.lose(held, now)        # we stop it first
            self.letting_go.append(held)
        if not self.letting_go:
            return
        try:
            for (held, _), outcome, _ in self.step("release", RELEASE, [(held, {}) for held in self.letting_go], "t", "s", "e", "o"):
                self.letting_go.remove(held)
        except (Lost, Undone):
            pass

    def drain(self):
        self.counts["fault: drains"] += 1
        self.beat(accepting=False)
        while self.held:
            self.let_go(self.ours(self.fleet.batch) or list(self.held.values()))
        for _ in range(100):
            try:
                ((outcome,),) = self.do("drain", DRAIN, self.id, self.generation, self.runtime)
                self.tell("drain", outcome)
                break
            except (Lost, Undone):
                pass
        time.sleep(self.random.random() * 2)
        self.publish(self.seen())

    # --- a life --------------------------------------------------------------

    def live(self):
        """One life: until the fleet is over."""
        self.held, self.unanswered, self.doubtful, self.letting_go, self.known = {}, {}, set(), [], 0
        self.asked = self.last_beat = 0
        self.begin()
        next_drain = time.time() + self.random.expovariate(1 / self.fleet.calm) * 3
        while self.fleet.phase() != "over":
            began = time.time()
            if began > self.last_beat + self.fleet.beat_every:
                self.beat()
            self.keep_the_clock()
            full = (self.answer_offers() or 0) >= self.fleet.batch
            self.keep_the_clock()
            if self.fleet.phase() != "hold":
                self.work()
            if self.letting_go:
                self.let_go([])
            if self.fleet.phase() == "storm" and time.time() > next_drain:
                self.drain()
                next_drain = time.time() + self.random.expovariate(1 / self.fleet.calm) * 3
            if not full:
                time.sleep(self.fleet.pace * (0.5 + self.random.random()))
        self.keep_the_clock()
        for held in list(self.held.values()):
            self.lose(held, time.time())

    def run(self):
        while self.fleet.phase() != "over":
            try:
                self.live()
            except Died:
                now = time.time()
                for held in list(self.held.values()):
                    self.lose(held, now)
                time.sleep(self.random.random() * 2)
            except psycopg.OperationalError:
                break
        if self.connection is not None:
            self.connection.close()
