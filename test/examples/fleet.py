"""Drives a worker of examples/fleet-*: fleet.py FOLDER COMMAND...

P1, P3 from outside: a worker that is killed, or loses its connection, after any
of its statements loses no device and does none twice.
"""

import signal
import sys

import kit

folder, command = f"{kit.EXAMPLES}/{sys.argv[1]}", sys.argv[2:]

kit.psql("-f", f"{kit.EXAMPLES}/fleet-outside/setup.sql")
db = kit.database()
# a claim that ran out is a failure, and we do not want to wait for the next look
db.execute("""SELECT reconcile.alter_loop('firmware', '{"backoff_base": "5 ms", "backoff_max": "50 ms"}')""")
devices = 0


def worker(host, **settings):
    return kit.Client(command, folder, **{"PGHOST": host, "PGPORT": "5432", "PGUSER": "fleet_worker", "FLEET_TTL": "2",
                                          "FLEET_POLL": "0.1", "FLEET_INSTALL": "0.01", **settings})


def add(number):
    global devices
    db.execute("INSERT INTO firmware.device SELECT 'device ''' || n, 'v1' FROM generate_series(%s::int, %s::int) n",
               (devices + 1, devices + number))
    devices += number


def value(statement):
    return db.execute(statement).fetchone()[0]


def idle():
    return value("SELECT count(*) FROM reconcile.work") == 0


def check(name):
    """Each device was done, and once."""
    kit.until(f"all done {name}", idle)
    kit.same(value("SELECT count(*) FROM firmware.device WHERE reported IS DISTINCT FROM desired"), 0, f"nothing is lost {name}")
    kit.same(db.execute("SELECT count(*), count(DISTINCT device_id) FROM firmware.installed").fetchone(), (devices, devices),
             f"nothing is done twice {name}")


def killed_after_each_statement(how, host, proxy):
    number = 1
    while True:
        add(2)
        client = worker(host)
        proxy.arm(number, client.kill)
        kit.until("killed or done", lambda: proxy.fired.is_set() or idle())
        if not proxy.disarm():
            break
        kit.ok(client.process.wait(kit.DEADLINE) == -signal.SIGKILL, f"killed after statement {number} {how}")
        client = worker(host)
        kit.until("begun", lambda: proxy.seen > 0)
        check(f"when killed after statement {number} {how}")
        kit.same(client.terminate(), 0, "SIGTERM ends it")
        number += 1
    kit.ok(number > 10, f"all {number - 1} statements were tried")
    kit.same(client.terminate(), 0, "SIGTERM ends it")


def cut_after_each_statement(how, host, proxy):
    client = worker(host)
    number = 1
    while True:
        proxy.arm(number, lambda: None)     # the proxy closes the connection
        add(2)
        kit.until("cut or done", lambda: proxy.fired.is_set() or idle())
        if not proxy.disarm():
            break
        check(f"when the connection is cut at statement {number} {how}")
        number += 1
    kit.ok(number > 10, f"all {number - 1} statements were tried")
    kit.until("connected again", lambda: proxy.seen > 0)
    kit.same(client.terminate(), 0, "it lives on, until SIGTERM")


def long_work(host):
    add(1)
    client = worker(host, FLEET_INSTALL="2")
    check("when it takes longer than the time to live")
    kit.same(value("SELECT count(DISTINCT claim_epoch) FROM firmware.installed WHERE device_id = 'device ''' || %d" % devices), 1,
             "one claim was extended")
    add(1)
    kit.until("begun", lambda: value("SELECT count(*) FROM reconcile.work WHERE state = 'running'") == 1)
    kit.same(client.terminate(), 0, "SIGTERM in the middle of it")
    kit.ok(idle(), "the device in hand was finished")


def paused(host):
    """Another worker does the work of one that is stopped; that one is refused."""
    add(1)
    old = worker(host, FLEET_INSTALL="0.3")
    kit.until("begun", lambda: value("SELECT count(*) FROM reconcile.work WHERE state = 'running'") == 1)
    old.signal(signal.SIGSTOP)
    claimed = value("SELECT max(claim_epoch) FROM reconcile.entity")
    new = worker(host, FLEET_INSTALL="2")
    kit.until("taken over", lambda: value(f"SELECT count(*) FROM reconcile.entity WHERE claim_epoch > {claimed}") == 1)
    old.signal(signal.SIGCONT)
    kit.until("refused", lambda: "not ours any more" in old.output())
    kit.ok(not idle(), "a worker that was paused is refused while another is at work")
    check("when it comes back")
    kit.same((old.terminate(), new.terminate()), (0, 0), "both go on")


hosts = kit.proxies()
killed_after_each_statement("through pgbouncer", *hosts["through pgbouncer"])
cut_after_each_statement("directly", *hosts["directly"])
host, _ = hosts["directly"]
long_work(host)
paused(host)
kit.done()
