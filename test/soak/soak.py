#!/usr/bin/python3
"""Random clients on servers that crash and are promoted, judged by checker.py; see scripts/soak.

    soak.py --bindir DIR --conf FILE --folder DIR [--seconds N] [--seed N]

--conf has the settings by which a server finds and preloads the extension. All
that is made lies in the folder, and the sockets in a temporary one.
"""

import argparse
import contextlib
import glob
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import psycopg

import checker
import history

HERE = os.path.dirname(os.path.abspath(__file__))
CLIENTS = 9
ROUND = 30                              # seconds until a promotion
DEADLINE = 120                          # seconds for anything that is awaited

# An asynchronous commit is lost by any crash that comes soon.
SETTINGS = """
listen_addresses = ''
fsync = off
wal_writer_delay = '10 s'
track_commit_timestamp = on
max_wal_senders = 5
max_worker_processes = 16
wal_keep_size = '512 MB'
wal_retrieve_retry_interval = '200 ms'
deadlock_timeout = '200 ms'
autovacuum_naptime = '10 s'
restart_after_crash = on
log_line_prefix = '%m [%p] %q%a '
log_error_verbosity = verbose
reconcile.fence_grace = '500 ms'
"""

# What no server may log. Killed by 9 are those that we kill.
TROUBLE = re.compile(r"PANIC:|TRAP:|XX\d{3}:|Sanitizer|runtime error:|was terminated by signal (?!9:)")

TRUTH = {
    "log": """SELECT *, extract(epoch FROM pg_xact_commit_timestamp(xmin))::float8 AS committed FROM soak.log""",
    "granted": """SELECT *, extract(epoch FROM pg_xact_commit_timestamp(xmin))::float8 AS committed FROM soak.granted""",
    "history": """SELECT reconciler_id AS id, epoch, holder_id AS holder, end_reason,
                         extract(epoch FROM acquired_at)::float8 AS acquired, extract(epoch FROM ended_at)::float8 AS ended
                    FROM reconcile.lease_history""",
    "state": """SELECT 'resource' AS kind, reconciler_id AS id, entity_id AS entity, last_epoch AS epoch, revision,
                       state ->> 'w' AS write_id FROM reconcile.resources
                UNION ALL SELECT 'table', 'alpha', entity_id, last_epoch, revision, value FROM soak.alpha WHERE revision > 0
                UNION ALL SELECT 'table', 'beta', entity_id, last_epoch, revision, value FROM soak.beta WHERE revision > 0
                UNION ALL SELECT 'table', 'gamma', entity_id, last_epoch, revision, value FROM soak.gamma WHERE revision > 0""",
}


def say(text):
    print(f"# {text}", flush=True)


def until(what, condition):
    end = time.monotonic() + DEADLINE
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {DEADLINE} s")
        time.sleep(0.05)


class Server:
    def __init__(self, soak, number):
        self.name = f"s{number}"
        self.bindir = soak.options.bindir
        self.data = f"{soak.folder}/{self.name}"
        self.log = f"{soak.folder}/{self.name}.log"
        self.sockets = f"{soak.sockets}/{self.name}"
        self.dead = f"{soak.sockets}/{self.name}-dead"  # where no client finds it
        os.mkdir(self.sockets)
        os.mkdir(self.dead)

    def run(self, program, *arguments):
        subprocess.run([f"{self.bindir}/{program}", *arguments], check=True, stdin=subprocess.DEVNULL,
                       stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)

    def configure(self, text, name="postgresql.conf"):
        with open(f"{self.data}/{name}", "a", encoding="utf-8") as file:
            file.write(text)

    def start(self, sockets=None):
        self.run("pg_ctl", "-D", self.data, "-l", self.log, "-o", f"-k {sockets or self.sockets}", "-w", "-t", "120", "start")

    def stop(self, mode):
        self.run("pg_ctl", "-D", self.data, "-m", mode, "-w", "-t", "120", "stop")

    def running(self):
        return os.path.exists(f"{self.data}/postmaster.pid")

    def connect(self, sockets=None):
        return psycopg.connect(host=sockets or self.sockets, port=5432, user="postgres", dbname="postgres",
                               application_name="driver", autocommit=True)

    def value(self, statement, *values):
        with self.connect() as connection:
            row = connection.execute(statement, values).fetchone()
            return row[0] if row else None

    def has(self, function):
        return self.value("SELECT count(*) > 0 FROM pg_proc"
                          " WHERE pronamespace = 'reconcile'::regnamespace AND proname = %s", function)

    def answers(self):
        with contextlib.suppress(psycopg.OperationalError):
            return self.value("SELECT true")
        return False


class Soak:
    def __init__(self, options):
        self.options = options
        self.folder = options.folder
        self.histories = f"{self.folder}/histories"
        self.sockets = tempfile.mkdtemp(prefix="soak")
        self.random = random.Random(options.seed)
        self.writer = None
        self.servers = []
        self.clients = {}               # processes by number
        self.lives = 0
        self.stopped = {}               # what we have stopped: pid to what it is, and when it goes on
        self.guard = False

    # --- servers -------------------------------------------------------------

    def first_server(self):
        server = Server(self, 1)
        server.run("initdb", "-D", server.data, "-U", "postgres", "-A", "trust", "-N", "--no-locale", "-E", "UTF8")
        with open(self.options.conf, encoding="utf-8") as file:
            server.configure(file.read() + SETTINGS)
        server.start()
        with open(f"{HERE}/setup.sql", encoding="utf-8") as file, server.connect() as connection:
            connection.execute(file.read())
        self.guard = server.has("attach_fence")
        if self.guard:
            for lease in ("alpha", "beta", "gamma"):
                server.value(f"SELECT reconcile.attach_fence('soak.{lease}', '{lease}', 'entity_id')::text")
        self.note("setup", seed=self.options.seed, server=server.name, incarnation=server.has("incarnation"), guard=self.guard)
        self.servers.append(server)
        self.point_to(server)

    def point_to(self, server):
        """Where clients connect from now on."""
        path = f"{self.histories}/primary"
        with open(f"{path}.new", "w", encoding="utf-8") as file:
            json.dump({"server": server.name, "host": server.sockets, "guard": self.guard}, file)
        os.rename(f"{path}.new", path)

    def note(self, op, **facts):
        event = self.writer.invoke(op, **facts)
        return self.writer.complete(event, "ok")

    def make_standby(self, primary, mode):
        standby = Server(self, len(self.servers) + 1)
        standby.run("pg_basebackup", "-h", primary.sockets, "-p", "5432", "-U", "postgres", "-D", standby.data,
                    "-X", "stream", "-R", "-c", "fast")
        standby.start()
        self.set_synchronous(primary, mode == "sync")
        self.settle(primary, standby, mode)
        return standby

    def set_synchronous(self, server, on):
        server.configure(f"synchronous_standby_names = '{'*' if on else ''}'\n")
        server.value("SELECT pg_reload_conf()")

    def settle(self, primary, standby, mode):
        """The standby has all that was committed before, and is waited for if it is to be."""
        until("the standby streams", lambda: mode == primary.value(
            "SELECT sync_state FROM pg_stat_replication WHERE state = 'streaming'"))
        mark = self.writer.invoke("caught_up", server=primary.name, standby=standby.name)
        primary.value("INSERT INTO soak.tick DEFAULT VALUES RETURNING true")
        reached = primary.value("SELECT pg_current_wal_lsn()")
        until("the standby has caught up", lambda: standby.value("SELECT pg_last_wal_receive_lsn() >= %s", reached))
        self.writer.complete(mark, "ok")

    def await_grant(self, server, since):
        """Somebody was granted a lease after that wall clock time; meanwhile it goes on."""
        until("a grant", lambda: self.chaos(0.2) or
              server.value("SELECT count(*) > 0 FROM reconcile.lease_history WHERE acquired_at > to_timestamp(%s)", since))

    # --- clients -------------------------------------------------------------

    def start_client(self, number):
        self.lives += 1
        with open(f"{self.folder}/client-{number}.err", "ab") as errors:
            self.clients[number] = subprocess.Popen(
                [sys.executable, f"{HERE}/client.py", self.histories, str(number), str(self.lives), str(self.options.seed)],
                stdin=subprocess.DEVNULL, stdout=errors, stderr=errors)

    def look_after_clients(self):
        for number, process in self.clients.items():
            if process.poll() is not None:
                with open(f"{self.folder}/client-{number}.err", encoding="utf-8") as errors:
                    raise ChildProcessError(f"client {number} ended: {errors.read()}")

    def kill_client(self):
        number = self.random.choice(list(self.clients))
        self.clients[number].kill()
        self.clients[number].wait()
        self.stopped.pop(self.clients[number].pid, None)
        self.note("killed", client_killed=number)
        self.start_client(number)

    def backends(self, server):
        with contextlib.suppress(psycopg.OperationalError), server.connect() as connection:
            return [pid for pid, in connection.execute(
                "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'soak%' ORDER BY state <> 'active'")]
        return []

    def pause(self, what, pid, seconds):
        if pid in self.stopped:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            self.stopped[pid] = what, time.monotonic() + seconds
            self.note("pause", what=what, seconds=seconds)

    def resume(self, *kinds):
        """Lets go on whose time it is, and all of these kinds."""
        for pid, (what, due) in list(self.stopped.items()):
            if what in kinds or due <= time.monotonic():
                del self.stopped[pid]
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    # --- what happens to them ------------------------------------------------

    def chaos(self, seconds):
        """Pauses clients and backends, and kills a client now and then."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.resume()
            self.look_after_clients()
            dice = self.random.random()
            if dice < 0.12:
                process = self.clients[self.random.choice(list(self.clients))]
                self.pause("client", process.pid, self.random.uniform(0.2, 2.5))
            elif dice < 0.15:
                for pid in self.backends(self.servers[-1])[:1]:
                    self.pause("backend", pid, self.random.uniform(0.2, 1.5))
            elif dice < 0.16:
                self.kill_client()
            time.sleep(0.1)

    def crash(self, how, server):
        """Kills a backend, or stops the server at once; most of the time right after an asynchronous grant."""
        lazy = f"{self.histories}/lazy"
        watcher = server.connect()
        if self.random.random() < 0.7:
            with open(lazy, "w", encoding="utf-8"):
                pass
            self.chaos(self.random.uniform(0.3, 1.2))
            self.watch_for_grant(watcher)
            # who sleeps does not hear that his renewal was lost
            for process in self.random.sample(list(self.clients.values()), CLIENTS // 2):
                self.pause("client", process.pid, self.random.uniform(1, 4))
        pids = self.backends(server)
        event = self.writer.invoke("crash", how=how, server=server.name)
        if how == "kill":
            try:
                os.kill(self.random.choice(pids or [watcher.info.backend_pid]), signal.SIGKILL)
            except ProcessLookupError:  # it has ended meanwhile
                os.kill(watcher.info.backend_pid, signal.SIGKILL)
            self.resume("backend")
            with contextlib.suppress(psycopg.OperationalError):
                while True:
                    watcher.execute("SELECT pg_sleep(0.02)")
        else:
            server.stop("immediate")
            self.resume("backend")
            time.sleep(self.random.random())
            server.start()
        watcher.close()
        until("the server is back", server.answers)
        self.writer.complete(event, "ok")
        if os.path.exists(lazy):
            os.unlink(lazy)
        self.await_grant(server, event["w1"])

    @staticmethod
    def watch_for_grant(watcher):
        """Returns when somebody has just been granted a lease, but soon in any case."""
        newest = "SELECT max(acquired_at) FROM reconcile.lease_history"
        before, end = watcher.execute(newest).fetchone(), time.monotonic() + 2
        while watcher.execute(newest).fetchone() == before and time.monotonic() < end:
            time.sleep(0.005)

    def promote(self, primary, standby, mode, split):
        if mode == "async":
            # what the last moments bring is lost
            standby.configure("primary_conninfo = ''\n", "postgresql.auto.conf")
            standby.value("SELECT pg_reload_conf()")
            until("cut off", lambda: standby.value("SELECT count(*) FROM pg_stat_wal_receiver") == 0)
            self.chaos(self.random.uniform(0.3, 1.5))
        event = self.writer.invoke("promote", **{"from": primary.name}, server=standby.name, mode=mode, split=split)
        if not split:
            primary.stop("immediate")
            self.resume("backend")
        standby.run("pg_ctl", "-D", standby.data, "-w", "-t", "120", "promote")
        self.set_synchronous(standby, False)
        self.servers.append(standby)
        self.point_to(standby)
        self.writer.complete(event, "ok")
        if split:
            self.chaos(self.random.uniform(0.3, 2))
            primary.stop("immediate")
            self.resume("backend")
        self.await_grant(standby, event["w1"])

    def round(self, number, seconds):
        primary = self.servers[-1]
        mode = ("sync", "async")[number % 2]
        # each mode in turn both ways; the first asynchronous promotion leaves the old primary running
        split = (number // 2 + number) % 2 == 1
        end = time.monotonic() + seconds
        say(f"{primary.name}: {mode} standby, then promoted{' beside its primary' if split else ''}")
        self.chaos(seconds / 10)
        standby = self.make_standby(primary, mode)
        crashes = ["kill", "stop"]
        self.random.shuffle(crashes)
        for n, how in enumerate(crashes):
            self.chaos(max(0, (end - time.monotonic()) / (len(crashes) - n + 1)))
            self.crash(how, primary)
            self.settle(primary, standby, mode)
        self.chaos(max(0, end - time.monotonic()))
        self.settle(primary, standby, mode)
        self.promote(primary, standby, mode, split)

    def dump(self, server):
        """What a server holds, after a crash and with no client."""
        if server.running():
            server.stop("immediate")
        server.start(server.dead)
        path = f"{self.histories}/truth-{server.name}.jsonl"
        with server.connect(server.dead) as connection, open(path, "w", encoding="utf-8") as file:
            for table, statement in TRUTH.items():
                cursor = connection.execute(statement)
                names = [column.name for column in cursor.description]
                for row in cursor:
                    file.write(json.dumps({"server": server.name, "table": table, **dict(zip(names, row))}) + "\n")
        server.stop("immediate")

    def stop_clients(self):
        self.resume("client", "backend")
        for process in self.clients.values():
            process.terminate()
        for process in self.clients.values():
            process.wait(DEADLINE)

    def run(self):
        os.makedirs(self.histories)
        self.writer = history.Writer(f"{self.histories}/driver.jsonl", client="driver")
        self.first_server()
        for number in range(CLIENTS):
            self.start_client(number)
        rounds = max(2, round(self.options.seconds / ROUND))
        for number in range(rounds):
            self.round(number, self.options.seconds / rounds)
        self.chaos(2)
        self.stop_clients()
        say("reading what the servers hold")
        for server in self.servers:
            self.dump(server)
        return checker.judge(self.histories) and self.logs_are_clean()

    def logs_are_clean(self):
        clean = True
        for path in sorted(glob.glob(f"{self.folder}/s*.log")):
            with open(path, encoding="utf-8", errors="replace") as log:
                for line in log:
                    if TROUBLE.search(line):
                        print(f"{os.path.basename(path)}: {line}", end="")
                        clean = False
        return clean

    def end(self):
        """Whatever happened, nothing of ours goes on."""
        self.resume("client", "backend")
        for process in self.clients.values():
            process.kill()
            process.wait()
        for data in glob.glob(f"{self.folder}/s*/postmaster.pid"):
            subprocess.run([f"{self.options.bindir}/pg_ctl", "-D", os.path.dirname(data), "-m", "immediate", "-w", "stop"],
                           check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        shutil.rmtree(self.sockets, ignore_errors=True)


def options(seconds):
    """What each of these programs is told, without what is its own."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--bindir", required=True)
    parser.add_argument("--conf", required=True)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--seconds", type=float, default=seconds)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10 ** 6))
    return parser


def main(parser, program):
    """Runs it to its end, and keeps the histories where it found something."""
    told = parser.parse_args()
    say(f"seed {told.seed}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    run = program(told)
    good = False
    try:
        good = run.run()
    finally:
        run.end()
        if not good:
            print(f"histories: {run.histories}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(options(60), Soak))
