"""Drives examples/from-skip-locked there and back, while producers and old workers are at it.

Each step is also tried with a psql that is killed after each of its statements.
"""

import random
import subprocess
import threading

import kit
import psycopg

folder = f"{kit.EXAMPLES}/from-skip-locked"
kit.psql("-f", f"{folder}/0-before.sql")
db = kit.database()
db.execute("INSERT INTO app.device SELECT 'd' || n, 0 FROM generate_series(1, 50) n")

stop = threading.Event()
workers_rest = threading.Event()
failures = []


def producer():
    with kit.database() as connection:
        while not stop.is_set():
            device = f"d{random.randint(1, 50)}"
            try:
                with connection.transaction():
                    connection.execute("UPDATE app.device SET desired = desired + 1 WHERE device_id = %s", (device,))
                    connection.execute("INSERT INTO app.job (device_id) VALUES (%s)", (device,))
            except psycopg.Error as error:
                failures.append(error)
            stop.wait(0.005)


def old_worker():
    with kit.database() as connection:
        while not stop.is_set():
            if workers_rest.is_set() or not connection.execute("SELECT app.work_one()").fetchone()[0]:
                stop.wait(0.02)


def value(statement):
    return db.execute(statement).fetchone()[0]


def step(name, applied):
    """Applies it, with a psql that dies after its first statement, then one after its second, and so on."""
    number = 1
    while not value(f"SELECT {applied}"):
        client = kit.Client(["psql", "-X", "-q", "-1", "-v", "ON_ERROR_STOP=1", "-f", f"{folder}/{name}.sql"], folder,
                            PGHOST=host, PGPORT="5432")
        proxy.arm(number, client.kill)
        if client.process.wait(kit.DEADLINE) > 0:
            print(client.output())
            kit.ok(False, name)
        number += 1
    kit.ok(number > 2, f"{name} is applied, by the last of {number - 1}")


def goes_on(by, name):
    """More is done, by whom it should be."""
    before = value(f"SELECT count(*) FROM app.done WHERE by = '{by}'")
    kit.until("progress", lambda: value(f"SELECT count(*) FROM app.done WHERE by = '{by}'") > before + 50)
    kit.ok(True, name)


WATCHED = "EXISTS (SELECT FROM pg_trigger WHERE tgrelid = 'app.device'::regclass AND tgname = 'reconcile_device_upd')"
JOINED = "EXISTS (SELECT FROM pg_namespace WHERE nspname = 'reconcile') AND to_regproc('app.queued') IS NOT NULL"
VIEW = "to_regclass('app.old_job') IS NOT NULL"

host, proxy = kit.proxies()["directly"]
threads = [threading.Thread(target=target, daemon=True) for target in (producer, producer, old_worker, old_worker)]
for thread in threads:
    thread.start()
goes_on("old worker", "before")
for way in ("there", "there again"):
    step("1-loop", JOINED)
    goes_on("loop", f"the loop works beside the old workers, {way}")
    workers_rest.set()
    goes_on("loop", f"and without them, {way}")
    step("2-producers", VIEW)
    goes_on("loop", f"old producers insert into the view, {way}")
    step("3-devices", WATCHED)
    goes_on("loop", f"devices are watched, {way}")
    if way == "there":
        step("3-undo", f"NOT {WATCHED}")
        step("2-undo", f"NOT {VIEW}")
        goes_on("loop", "the view is a table again")
        workers_rest.clear()
        step("1-undo", f"NOT ({JOINED})")
        goes_on("old worker", "back with the old workers")

stop.set()
for thread in threads:
    thread.join()
kit.until("all done", lambda: value("SELECT count(*) FROM app.device WHERE reported <> desired") == 0)
kit.ok(True, "nothing is lost")
kit.same(value("SELECT count(*) FROM (SELECT FROM app.done GROUP BY device_id, version HAVING count(*) > 1) twice"), 0, "nothing is done twice")
kit.same(failures, [], "no producer had an error")
kit.done()
