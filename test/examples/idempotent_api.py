"""Drives examples/idempotent-api: what a key has done is done once, or is unknown.

Replies are dropped, the API is killed between a request and its reply, workers
are killed before and after they act, and PostgreSQL is stopped immediate, while
clients go on.
"""

import atexit
import http.client
import json
import os
import signal
import socket
import subprocess
import tempfile
import threading

import psycopg

import kit
import proxy

ACME, GLOBEX = 120, 20                  # charges
FOLDER = f"{kit.EXAMPLES}/idempotent-api"
LEDGER = f"{tempfile.mkdtemp(prefix='l')}/ledger"


class Wire:
    """Between clients and the API: drops every fifth reply, and may do something between a request and its reply."""

    def __init__(self, api_port):
        self.api_port, self.replies, self.dropped, self.action = api_port, 0, 0, None
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            client, _ = self.listener.accept()
            threading.Thread(target=self.connection, args=(client,), daemon=True).start()

    def connection(self, client):
        try:
            api = socket.create_connection(("127.0.0.1", self.api_port))
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


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as found:
        return found.getsockname()[1]


def start_api():
    started = client_of("api.mjs", API_PORT=str(API_PORT))
    kit.until("the API listens", lambda: not socket.socket().connect_ex(("127.0.0.1", API_PORT)))
    return started


def start_worker(**environment):
    return client_of("worker.mjs", **{"CHARGE_TTL": "3", "CHARGE_POLL": "0.05", "CHARGE_TAKES": "0.03", **environment})


def request(method, path, key=None, body=None, token="token-acme"):
    connection = http.client.HTTPConnection("127.0.0.1", API_PORT, timeout=kit.DEADLINE)
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
API_PORT = free_port()
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
        kit.until("the request waits", lambda: rows("SELECT FROM pg_locks WHERE NOT granted"))
        api.signal(signal.SIGTERM)
        kit.until("no new ones are taken", lambda: socket.socket().connect_ex(("127.0.0.1", API_PORT)))
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
# clients go on, whatever is killed

wire = Wire(API_PORT)
url = f"http://127.0.0.1:{wire.port}"
clients = [client_of("client.mjs", "1", str(ACME), API_URL=url),
           client_of("client.mjs", "1", str(GLOBEX), API_URL=url, API_TOKEN="token-globex")]

# one is killed after its claim, one after its act; both with their charge in hand
slow = start_worker(CHARGE_TAKES="3600", CHARGE_TTL="1")
kit.until("one has claimed", lambda: rows("SELECT FROM reconcile.commands WHERE status = 'dispatched'"))
slow.kill()
holding = proxy.Proxy(f"{os.path.dirname(LEDGER)}/p", server.folder)
holding.hold = b"complete_command"
reporting = start_worker(PGHOST=f"{os.path.dirname(LEDGER)}/p", CHARGE_TTL="1")
kit.until("one has acted", holding.held.is_set)
reporting.kill()

workers = [start_worker(), start_worker()]
for _ in range(3):
    charged(5)
    killed, wire.action = api, api.kill
    kit.ok(killed.process.wait(kit.DEADLINE) == -signal.SIGKILL, "the API is killed between a request and its reply")
    api = start_api()
    charged(5)
    server.stop("immediate")
    server.start()
    kit.ok(all(one.running() for one in workers), "PostgreSQL is stopped immediate, and the workers go on")
    charged(1)
    workers.pop(0).kill()
    workers.append(start_worker())

kit.same([one.process.wait(kit.DEADLINE) for one in clients], [0, 0], "the clients have all their answers")
kit.until("nothing is left", lambda: not rows("SELECT FROM reconcile.commands WHERE completed_at IS NULL"))
kit.same([one.terminate() for one in workers], [0, 0], "SIGTERM ends the workers")

# ----------------------------------------------------------------------
# what became of them

for one in clients:
    print("# client: " + one.output().splitlines()[-1])
print(f"# {wire.dropped} replies were dropped")
# k1 of both tenants, k3 and k4 were admitted by hand
kit.same(rows("SELECT count(*), count(DISTINCT (tenant_id, idempotency_key)) FROM reconcile.commands"),
         [(ACME + GLOBEX + 4, ACME + GLOBEX + 4)], "each key is one command")
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
kit.same(dict(rows("SELECT command_id, effective_status FROM reconcile.commands WHERE status = 'unknown' AND effective_status <> 'unknown'"))
         | {one: "succeeded" for one in known}, {one: "succeeded" for one in acts} | {one: "not_executed" for one in unknown if one not in acts},
         "and are known now")
again = client_of("client.mjs", "1", str(ACME), API_URL=url)
worker = start_worker()
kit.same((again.process.wait(kit.DEADLINE), len(ledger())), (0, len(acts)), "a client that asks for all of it again charges nothing")
kit.same([worker.terminate(), api.terminate()], [0, 0], "SIGTERM ends the last ones")
kit.same(rows("SELECT outcome FROM unnest('{acme,globex}'::text[]) t, reconcile.audit_verify(t)"), [("ok",), ("ok",)],
         "the audit is what was written")
kit.done()
