"""Drives a host of examples/host-agent-*: host_agent.py FOLDER COMMAND...

Whatever is lost, killed, paused or restarted: no session is on two hosts, each
command is applied once or told of, and nothing is taken twice.
"""

import atexit
import collections
import glob
import itertools
import json
import os
import signal
import sys
import tempfile

import kit
import proxy

folder, command = f"{kit.EXAMPLES}/{sys.argv[1]}", sys.argv[2:]
SETUP = f"{kit.EXAMPLES}/placement-fleet/setup.sql"
OURS = tempfile.mkdtemp(prefix="h")
LOG = f"{OURS}/log"
APPLIED = "SELECT count(*) FROM reconcile.session_command WHERE state IN ('applied', 'rejected')"

# what they have said, where the test has failed
atexit.register(lambda: kit.failed() and print("# " + "\n# ".join(said()[-60:])))
names = (f"s{n}" for n in itertools.count())
log = open(LOG, "a+b", buffering=0)     # of all hosts: its order is that of what happened


def agent(role, host, **settings):
    """Says much more often than it must that it is there."""
    started = kit.Client(command, folder, log, **{"PGUSER": role, "PGHOST": host, "PGPORT": "5432", "AGENT_STATE": f"{OURS}/state",
                                               "AGENT_POLL": "0.1", "AGENT_HEARTBEAT": "1", "AGENT_WORK": "0.01", "AGENT_CAPACITY": "50",
                                               **settings})
    atexit.register(started.kill)
    return started


def said(line=None):
    with open(LOG, encoding="utf8") as lines:
        return [one for one in lines.read().split("\n") if line is None or one.startswith(line)]


def note(line):
    log.write(f"{line}\n".encode())


def rows(statement, *values):
    with kit.database() as db:
        answer = db.execute(statement, values)
        return answer.fetchall() if answer.description else []


def value(statement, *values):
    return rows(statement, *values)[0][0]


def configure(**changes):
    rows("SELECT reconcile.set_placement(%s::jsonb)", json.dumps(changes))


def session():
    name = next(names)
    rows("SELECT reconcile.create_session('t', %s, 'room', 'pooled', 'create', 'v1')", name)
    return name


def send(name, text):
    rows("SELECT reconcile.admit_session_command('t', %s, %s, 'input', 'x', apply_deadline_in => '1 h')", name, text)


def new_session(text="first"):
    name = session()
    send(name, text)
    return name


def state(name, text="first"):
    return value("SELECT state FROM reconcile.session_command WHERE session_id = %s AND command_id = %s", name, text)


def epoch(name):
    return value("SELECT coalesce(max(epoch), 0) FROM reconcile.session_offer WHERE session_id = %s", name)


def owner(name):
    return rows("SELECT owner, host_id FROM reconcile.sessions WHERE session_id = %s", name)[0]


def ready(role):
    kit.until(f"{role} is there", lambda: rows("SELECT 1 FROM reconcile.host_targets WHERE host_id = %s AND state = 'accepting'", role))


def ended(client, role, name):
    kit.same(client.terminate(), 0, f"SIGTERM ends it {name}")
    kit.same((rows("SELECT session_id FROM reconcile.sessions WHERE host_id = %s AND owner = 'live'", role),
              value("SELECT state FROM reconcile.host_targets WHERE host_id = %s", role)), ([], "withdrawn"), f"with all let go {name}")


def kill(client, role):
    client.kill()
    note(f"{role} killed")


def journals():
    """Commands that were applied, by what counts in the files of their sessions."""
    found = collections.Counter()
    for file in glob.glob(f"{OURS}/state/*"):
        highest = 0
        with open(file, encoding="utf8") as lines:
            for line in lines:
                number, _, what, text = line.rstrip("\n").split("\t")
                if int(number) >= highest:
                    highest = int(number)
                    if what == "applied":
                        found[(file.rsplit("@")[-1], text)] += 1
    return found


def cut_after_each_statement(how, host, cut):
    """Also while it ends. What has a token and an epoch by then has no other."""
    for number in itertools.count(1):
        found = [new_session() for _ in range(2)]
        cut.arm(number, lambda: None)       # the proxy closes the connection
        client = agent("host_1", host)
        kit.until("all applied", lambda: [state(one) for one in found] == ["applied"] * 2)
        ended(client, "host_1", f"when the connection is cut at statement {number} {how}")
        kit.same([epoch(one) for one in found], [1, 1], "each was accepted once")
        if not cut.disarm():
            break
    kit.ok(number > 20, f"all {number - 1} statements were tried")


def ended_when_begun(host, cut):
    """SIGTERM comes when an attempt was begun, whose answer is lost: it is made and settled."""
    client = agent("host_1", host)
    ready("host_1")
    cut.arm(1, lambda: client.process.send_signal(signal.SIGTERM), b"begin_attempt")
    name = new_session()
    kit.same((client.process.wait(kit.DEADLINE), state(name), owner(name)[0]), (0, "applied", "released"), "SIGTERM leaves nothing that was begun")
    cut.disarm()


def killed_at(role, host, at, before, text):
    """Kills a host before or after it says text; another one gets the session."""
    cut = proxy.Proxy(f"{OURS}/{at}", host)
    client = agent(role, f"{OURS}/{at}", AGENT_CAPACITY="100")
    ready(role)
    if before:
        cut.hold = text
    else:
        cut.arm(1, lambda: kill(client, role), text)
    found = new_session()
    if before:
        kit.until("it is about to say so", cut.held.is_set)
        kill(client, role)
    kit.ok(client.process.wait(kit.DEADLINE) == -signal.SIGKILL, f"killed {at}")
    return found


def is_refused(role, name):
    """What somebody says at the epoch before."""
    old, token = rows("SELECT epoch, token FROM reconcile.session_offer WHERE session_id = %s AND host_id = %s AND epoch IS NOT NULL",
                      name, role)[-1]
    with kit.psycopg.connect(user=role, autocommit=True) as db:
        answers = [db.execute(f"SELECT outcome FROM reconcile.{call}", (name, old, token)).fetchone()[0]
                   for call in ("update_host_state('t', %s, %s, %s, 'running', 'resident', 9)",
                                "release_session('t', %s, %s, %s)")]
    kit.ok(set(answers) <= {"epoch", "lease_lost", "not_found"}, f"what it would say at epoch {old} is refused: {', '.join(answers)}")


def killed(host):
    """Another one has the session when the lease is over, and knows what was done."""
    configure(session_ttl="6 s")
    other = agent("host_2", host)
    ready("host_2")
    for at, before, text, outcome, counted in (
            ("after it has accepted", False, b"accept_offer", "applied", 1),
            ("after it has begun", False, b"begin_attempt", "rejected", 0),
            ("before it has settled", True, b"settle_attempt", "applying", 1),
            ("after it has settled", False, b"settle_attempt", "applied", 1)):
        name = killed_at("host_1", host, at.replace(" ", "_"), before, text)
        send(name, "late")
        kit.until(f"another has it, {at}", lambda: owner(name) == ("live", "host_2") and state(name, "late") == "applied")
        kit.same((state(name), epoch(name), journals()[(name, "first")]), (outcome, 2, counted),
                 f"{at}: what was begun is {outcome}, and was applied {counted} times")
        if outcome == "applying":
            kit.ok(said(f"host_2 unsettled t/{name} epoch 2 first"), "and that is told")
        is_refused("host_1", name)
    ended(other, "host_2", "after the others were killed")


def paused(host):
    """One that comes back finds that its time is over, and what it does then does not count."""
    old = agent("host_1", host, AGENT_WORK="1")
    ready("host_1")
    name = new_session()
    kit.until("begun", lambda: state(name) == "applying")
    old.signal(signal.SIGSTOP)
    note("host_1 paused")
    new = agent("host_2", host)
    kit.until("another has it", lambda: state(name) == "rejected")
    old.signal(signal.SIGCONT)
    kit.until("it stops", lambda: said(f"host_1 stopped t/{name} epoch 1"))
    send(name, "second")
    kit.until("the other goes on", lambda: state(name, "second") == "applied")
    kit.same((owner(name), epoch(name), journals()[(name, "first")]), (("live", "host_2"), 2, 0), "what a paused host did late does not count")
    is_refused("host_1", name)
    ended(old, "host_1", "that was paused")
    ended(new, "host_2", "that went on")


def restart(server):
    """They go on, at their epochs, with what they have."""
    configure(session_ttl="5 min")
    hosts = [agent(role, server.folder) for role in ("host_1", "host_2")]
    for role in ("host_1", "host_2"):
        ready(role)
    found = [new_session() for _ in range(6)]
    kit.until("all applied", lambda: {state(one) for one in found} == {"applied"})
    for number in range(2):
        text = f"again {number}"
        for one in found:
            send(one, text)
        server.stop("immediate")
        server.start()
        kit.until("all applied", lambda: {state(one, text) for one in found} == {"applied"})
    kit.same(({epoch(one) for one in found}, {owner(one)[0] for one in found}), ({1}, {"live"}), "sessions outlive the server")
    for client, role in zip(hosts, ("host_1", "host_2")):
        ended(client, role, "after the server was restarted")
    configure(session_ttl="6 s")


def hinted(server):
    """With notifications nobody need poll."""
    rows("ALTER SYSTEM SET reconcile.notify = on")
    rows("SELECT pg_reload_conf()")
    client = agent("host_1", server.folder, AGENT_POLL="3600", AGENT_HEARTBEAT="250")
    ready("host_1")
    name = new_session()
    kit.until("it is told of the offer and of the command", lambda: state(name) == "applied")
    send(name, "second")
    kit.until("and of the next one", lambda: state(name, "second") == "applied")
    ended(client, "host_1", "that does not poll")


def superseded(server):
    """Two processes of one host: the later one is the host."""
    old = agent("host_1", server.folder)
    ready("host_1")
    name = new_session()
    kit.until("applied", lambda: state(name) == "applied")
    new = agent("host_1", server.folder)
    kit.until("the first one ends", lambda: not old.running())
    kit.ok(old.process.returncode == 1 and said(f"host_1 stopped t/{name} epoch 1: generation"), "an earlier process of the host stops what it has")
    send(name, "second")
    kit.until("the later one has it", lambda: state(name, "second") == "applied")
    kit.same((owner(name), epoch(name)), (("live", "host_1"), 2), "which the later one gets")
    ended(new, "host_1", "that is the later one")


def lives():
    """By what they have printed, in its order: a session is started where it was stopped, or its host killed or paused."""
    holders, epochs, wrong = {}, {}, []
    for line in said():
        host, what, name, _, number, *_ = line.rstrip(":").split(" ") + [""] * 4
        if what in ("killed", "paused"):
            holders = {one: holder for one, holder in holders.items() if holder[0] != host}
        elif what == "started":
            if name in holders or int(number) <= epochs.get(name, 0):
                wrong.append(line)
            holders[name], epochs[name] = (host, number), int(number)
        elif what == "stopped" and holders.get(name) == (host, number.rstrip(":")):
            del holders[name]
    return wrong, len(epochs)


# through the pooler, on the server that all examples share
kit.psql("-f", SETUP)
configure(session_ttl="5 min")
pooled = kit.proxies()["through pgbouncer"]
cut_after_each_statement("through pgbouncer", *pooled)
ended_when_begun(*pooled)

server = kit.Server()
os.environ["PGUSER"] = "postgres"
kit.psql("-f", SETUP)
names = (f"r{n}" for n in itertools.count())
killed(server.folder)
paused(server.folder)
restart(server)
superseded(server)
if "node" in command:
    hinted(server)

wrong, number = lives()
kit.same(wrong, [], f"none of {number} sessions was on two hosts")
found = journals()
kit.same([one for one, times in found.items() if times > 1], [], f"none of {len(found)} commands was applied twice")
done = {tuple(one) for one in rows("SELECT session_id, command_id FROM reconcile.session_command WHERE state = 'applied'")}
unsettled = {tuple(one) for one in rows("SELECT session_id, command_id FROM reconcile.session_command WHERE state = 'applying'")}
kit.same({one for one in found if one[0][0] == "r"}, done | unsettled, "what was applied is what the database says, or is told of")
kit.done()
