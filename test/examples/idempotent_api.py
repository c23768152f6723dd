"""Drives examples/idempotent-api: what a key has done is done once, or is unknown.

Replies are dropped, the API is killed between a request and its reply, workers
are killed before and after they act, and PostgreSQL is stopped immediate, while
clients go on.
"""

import atexit
import contextlib
import http.client
import json
import os
import signal
import socket
import tempfile
import threading

import psycopg

import kit
import proxy

FOLDER = f"{kit.EXAMPLES}/idempotent-api"
OURS = tempfile.mkdtemp(prefix="i")
LEDGER = f"{OURS}/ledger"
API = f"{OURS}/api"                     # its socket, which nobody else can take while there is no API
gone = []                               # names of workers


class Wire:
    """Between clients and the API: drops every fifth reply, and may do something between a request and its reply."""

    def __init__(self):
        self.replies, self.dropped, self.action = 0, 0, None
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            client, _ = self.listener.accept()
            threading.Thread(target=self.connection, args=(client,), daemon=True).start()

    def connection(self, client):
        api = socket.socket(socket.AF_UNIX)
        try:
            api.connect(API)
        except OSError:
            client.close()
            return
        for source, target, passes in ((client, api, self.asked), (api, client, self.answered)):
            threading.Thread(target=self.pass_on, args=(source, target, passes), daemon=True).start()

    def pass_on(self, source, target, passes):
        try:
            while (data := source.recv(65536)) and passes(data):
                target.sendall(data)
        except OSError:
            pass
        for end in (source, target):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def asked(self, data):
        action = self.action
        if data.startswith(b"POST") and action is not None:
            self.action = None
            # the request is on its way, and the reply is not
            threading.Timer(0.002, action).start()
        return True

    def answered(self, _):
        self.replies += 1
        if self.replies % 5 == 0:
            self.dropped += 1
            return False
        return True


def client_of(*command, **environment):
    started = kit.Client(["node", *command], FOLDER, LEDGER=LEDGER, **environment)
    atexit.register(lambda: started.running() and started.kill())
    return started


def listening():
    with socket.socket(socket.AF_UNIX) as tried:
        return tried.connect_ex(API) == 0


def start_api():
    # one that was killed has left it
    with contextlib.suppress(FileNotFoundError):
        os.unlink(API)
    started = client_of("api.mjs", API_PORT=API, API_TIMEOUT=str(kit.DEADLINE))
    kit.until("the API listens", listening)
    return started


def start_worker(**environment):
    started = client_of("worker.mjs", **{"CHARGE_POLL": "0.05", "CHARGE_TAKES": "0.05", **environment})
    kit.until("a worker says its name", started.output)
    return started


def end_claims():
    """Of workers that are gone: nobody waits for them. One may be on its way still, for the next call."""
    with kit.database() as db:
        db.execute("UPDATE reconcile.command SET claim_expires_at = now() WHERE status = 'dispatched' AND claimant = ANY (%s)", [gone])


def is_gone(worker):
    gone.append(worker.output().split()[1])
    end_claims()


def kill_worker(worker):
    worker.kill()
    worker.process.wait(kit.DEADLINE)
    is_gone(worker)


def request(method, path, key=None, body=None, token="token-acme"):
    connection = http.client.HTTPConnection("localhost")
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.settimeout(kit.DEADLINE)
    connection.sock.connect(API)
    headers = {"Authorization": f"Bearer {token}"} | ({} if key is None else {"Idempotency-Key": key})
    connection.request(method, path, None if body is None else json.dumps(body), headers)
    reply = connection.getresponse()
    return reply.status, json.loads(reply.read())


def post(key, amount=100, **others):
    return request("POST", "/charges", key, {"invoice": "one", "amount": amount}, **others)


def rows(statement):
    with kit.database() as db:
        return db.execute(statement).fetchall()


def ledger():
    if not os.path.exists(LEDGER):
        return []
    with open(LEDGER, encoding="utf8") as file:
        return [json.loads(line)["id"] for line in file]


def charged(more):
    before = len(ledger())
    kit.until(f"{more} more are charged", lambda: len(ledger()) >= before + more)


kit.psql("-c", "SELECT 1")
server = kit.Server()
kit.psql("-f", f"{FOLDER}/setup.sql")
api = start_api()

# ----------------------------------------------------------------------
# what the API answers

status, first = post("k1")
kit.same(status, 202, "a charge is admitted")
kit.same(post("k1"), (202, first), "the same again gets the same answer")
kit.same(post("k1", 200)[0], 409, "another with its key does not")
kit.same(post("k1", token="token-globex")[0], 202, "another tenant's keys are its own")
kit.same(request("GET", first["href"])[1]["status"], "pending", "nobody has carried it out")
kit.same(request("GET", first["href"], token="token-globex")[0], 404, "another tenant does not see it")
kit.same(post("k2", token="nobody")[0], 401, "who is unknown is refused")
kit.same([post(None)[0], post(" ")[0], post("k2", -1)[0], post("k2", "1")[0], post("k2" * 200)[0]], [400] * 5,
         "and what is wrong")
with kit.database() as db:
    # as prune_commands() leaves it of a command that is old enough
    db.execute("""INSERT INTO reconcile.command_tombstone SELECT tenant_id, 'old', 'old', sha256('')::bytea, 1, 'succeeded', NULL,
                  NULL, now(), now() FROM reconcile.command WHERE idempotency_key = 'k1' AND tenant_id = 'acme'""")
kit.same(post("old")[0], 410, "a key is gone with its charge, and does not charge again")
with psycopg.connect(user="api_acme") as db:
    kit.same(db.execute("""SELECT outcome FROM reconcile.accept_command('globex', 'k', 'charge', 'invoice', 'one', 'why')""").fetchone()[0],
             "denied", "the role of a tenant gives no command for another")

with kit.database() as db:
    answers = []
    with db.transaction():
        db.execute("LOCK TABLE reconcile.command")
        asking = threading.Thread(target=lambda: answers.append(post("k3")[0]))
        asking.start()
        kit.until("the request waits", lambda: rows("SELECT FROM pg_stat_activity WHERE usename = 'api_acme' AND wait_event_type = 'Lock'"))
        api.signal(signal.SIGTERM)
        kit.until("no new ones are taken", lambda: not listening())
        kit.ok(api.running() and not answers, "SIGTERM waits for the request in hand")
    asking.join(kit.DEADLINE)
kit.same((answers, api.process.wait(kit.DEADLINE)), ([202], 0), "which is answered, and the API ends")

api = start_api()
kit.same(post("k4")[0], 202, "another goes on")
server.stop("immediate")
kit.same(post("k4")[0], 503, "without PostgreSQL nothing is known")
server.start()
kit.until("the same answer again", lambda: post("k4")[0] == 202)

# ----------------------------------------------------------------------
# clients go on, whatever is killed, until they are told to end

wire = Wire()
url = f"http://127.0.0.1:{wire.port}"
clients = [client_of("client.mjs", "1", "1000000", API_URL=url, API_TOKEN=token) for token in ("token-acme", "token-globex")]

# one is killed after its claim, one after its act; both with their charge in hand
slow = start_worker(CHARGE_TAKES="3600")
kit.until("one has claimed", lambda: rows("SELECT FROM reconcile.commands WHERE dispatched_at IS NOT NULL"))
kill_worker(slow)
holding = proxy.Proxy(f"{OURS}/p", server.folder)
holding.hold = b"complete_command"
reporting = start_worker(PGHOST=f"{OURS}/p")
kit.until("one has acted", holding.held.is_set)
kill_worker(reporting)

workers = [start_worker(), start_worker()]
for _ in range(3):
    charged(5)
    wire.action = api.kill
    kit.ok(api.process.wait(kit.DEADLINE) == -signal.SIGKILL, "the API is killed between a request and its reply")
    api = start_api()
    charged(5)
    server.stop("immediate")
    server.start()
    kit.ok(all(one.running() for one in workers), "PostgreSQL is stopped immediate, and the workers go on")
    charged(1)
    kill_worker(workers.pop(0))
    workers.append(start_worker())

kit.until("each client has answers", lambda: all(one.output() for one in clients))
for one in clients:
    one.signal(signal.SIGTERM)
kit.same([one.terminate() for one in workers], [0, 0], "SIGTERM ends the workers")
# what was claimed for them while PostgreSQL was stopped, they may never have learnt of
for one in workers:
    is_gone(one)
worker = start_worker()
kit.until("they have all of them", lambda: end_claims() or not any(one.running() for one in clients))
kit.same([one.process.poll() for one in clients], [0, 0], "the clients have all their answers")
kit.until("nothing is left", lambda: end_claims() or not rows("SELECT FROM reconcile.commands WHERE completed_at IS NULL"))

# ----------------------------------------------------------------------
# what became of them

answered = []
for one in clients:
    *invoices, counts = one.output().splitlines()
    answered.append(len(invoices))
    print(f"# client: {counts}")
print(f"# {wire.dropped} replies were dropped")
# k1 of both tenants, k3 and k4 were admitted by hand
kit.same(rows("SELECT count(*), count(DISTINCT (tenant_id, idempotency_key)) FROM reconcile.commands"),
         [(sum(answered) + 4, sum(answered) + 4)], "each key is one command")
acts = ledger()
kit.same(sorted(one for one in set(acts) if acts.count(one) > 1)[:5], [], "nothing is charged twice")
unknown = {one: name for one, name in rows("SELECT command_id, target_name FROM reconcile.commands WHERE effective_status = 'unknown'")}
known = {one for (one,) in rows("SELECT command_id FROM reconcile.commands WHERE effective_status = 'succeeded'")}
others = rows("SELECT target_name, effective_status, failure FROM reconcile.commands WHERE effective_status NOT IN ('succeeded', 'unknown')")
print(f"# {len(known)} succeeded, {len(unknown)} unknown: {', '.join(sorted(unknown.values()))}; {len(acts)} entries in the ledger")
# on a machine that stood still for so long
kit.ok(all(failure == "too_late" for _, _, failure in others), "each is charged, or its outcome is unknown")
kit.ok(known <= set(acts) and set(acts) <= known | set(unknown), "what is known is in the ledger, and nothing else but what is unknown")
kit.ok(len(unknown) >= 2 and set(acts) & set(unknown) and set(unknown) - set(acts),
       "unknown are one that was charged, and one that was not")

client = client_of("resolve.mjs")
kit.same(client.process.wait(kit.DEADLINE), 0, "they are looked up in the ledger")
found = dict(rows("SELECT command_id, effective_status FROM reconcile.commands"))
kit.same({one: found[one] for one in unknown}, {one: "succeeded" if one in acts else "not_executed" for one in unknown}, "and are known now")
again = client_of("client.mjs", "1", str(answered[0]), API_URL=url)
kit.same((again.process.wait(kit.DEADLINE), len(ledger())), (0, len(acts)), "a client that asks for all of it again charges nothing")
kit.same([worker.terminate(), api.terminate()], [0, 0], "SIGTERM ends the last ones")
kit.same(rows("SELECT outcome FROM unnest('{acme,globex}'::text[]) t, reconcile.audit_verify(t)"), [("ok",), ("ok",)],
         "the audit is what was written")
kit.done()
