#!/usr/bin/python3
"""Makes a report each minute, while it is the leader.

Gives the lease back on SIGTERM and SIGINT.
"""

import os
import signal
import socket
import sys
import threading
import time
import uuid
from datetime import timedelta

import psycopg

LEASE = "nightly"
HOLDER = f"{socket.gethostname()}/{uuid.uuid4()}"
TTL = float(os.environ.get("CRON_TTL", 15))
EVERY = float(os.environ.get("CRON_EVERY", 60))

stopping = threading.Event()


def log(message):
    print(message, file=sys.stderr, flush=True)


# --- the connection ----------------------------------------------------------


def is_answer(error):
    """Did the server answer, or do we not know what became of the statement?"""
    return error.sqlstate is not None and error.sqlstate[:2] not in ("08", "53") and error.sqlstate[:3] != "57P"


class Database:
    """A connection that is made anew when it is lost.

    All that is done here may be sent again: to acquire what we hold changes no
    epoch, and a report that was made already is not due.
    """

    def __init__(self):
        self.connection = None

    def connect(self):
        pause = 0.1
        while True:
            try:
                return psycopg.connect(autocommit=True, prepare_threshold=None)
            except psycopg.OperationalError as error:
                if stopping.is_set():
                    raise
                log(f"no connection: {error}")
            stopping.wait(pause)
            pause = min(2 * pause, 30)

    def retrying(self, work):
        """Calls work(connection), and again with another one while that is lost."""
        while True:
            if self.connection is None:
                self.connection = self.connect()
            try:
                return work(self.connection)
            except psycopg.Error as error:
                if is_answer(error):
                    raise
                log(f"connection lost: {error}")
                self.connection.close()
                self.connection = None

    def value(self, statement, *values):
        return self.retrying(lambda connection: connection.execute(statement, values).fetchone()[0])


# --- the leader --------------------------------------------------------------


class Leader:
    def __init__(self, database):
        self.database = database
        self.epoch = None               # of the term that we hold, as far as we know
        self.deadline = 0

    def acquire_or_renew(self):
        sent = time.monotonic()
        if self.epoch is None:
            self.epoch = self.database.value("SELECT epoch FROM reconcile.try_acquire_lease(%s, %s, %s)",
                                             LEASE, HOLDER, timedelta(seconds=TTL))
            if self.epoch is None:
                return
            log(f"leader at epoch {self.epoch}")
        else:
            self.database.value("SELECT epoch FROM reconcile.renew_lease(%s, %s, %s)", LEASE, HOLDER, self.epoch)
        self.deadline = sent + TTL

    def report(self):
        def write(connection):
            with connection.transaction():
                connection.execute("SELECT reconcile.bind_lease(%s, %s, %s)", (LEASE, HOLDER, self.epoch))
                connection.execute(
                    """INSERT INTO nightly.report (leader, epoch, tables)
                       SELECT %s, %s, count(*) FROM pg_class
                       HAVING NOT EXISTS (SELECT FROM nightly.report WHERE made_at > clock_timestamp() - %s::interval)""",
                    (HOLDER, self.epoch, timedelta(seconds=EVERY)))

        self.database.retrying(write)

    def step(self):
        try:
            self.acquire_or_renew()
            if self.epoch is not None and time.monotonic() < self.deadline:
                self.report()
        except psycopg.Error as error:
            if error.sqlstate not in ("RC002", "RC003"):
                raise
            log(f"not the leader any more: {error}")
            self.epoch = None

    def release(self):
        if self.epoch is not None:
            self.database.value("SELECT reconcile.release_lease(%s, %s, %s)", LEASE, HOLDER, self.epoch)


def main():
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, lambda *_: stopping.set())

    leader = Leader(Database())
    while not stopping.is_set():
        leader.step()
        stopping.wait(min(TTL / 3, EVERY))
    leader.release()


main()
