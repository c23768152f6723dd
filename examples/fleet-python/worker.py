#!/usr/bin/python3
"""Installs firmware on devices that the loop "firmware" hands out.

Ends on SIGTERM and SIGINT, with the device in hand finished.
"""

import os
import signal
import socket
import sys
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import psycopg

LOOP = "firmware"
HOLDER = f"{socket.gethostname()}/{uuid.uuid4()}"
TTL = float(os.environ.get("FLEET_TTL", 30))
POLL = float(os.environ.get("FLEET_POLL", 5))
INSTALL = float(os.environ.get("FLEET_INSTALL", 0.2))

stopping = threading.Event()


class StaleClaim(Exception):
    """The claim is not ours any more."""


def log(message):
    print(message, file=sys.stderr, flush=True)


# --- the connection ----------------------------------------------------------


def is_answer(error):
    """Did the server answer, or do we not know what became of the statement?"""
    return error.sqlstate is not None and error.sqlstate[:2] not in ("08", "53") and error.sqlstate[:3] != "57P"


class Database:
    """A connection that is made anew when it is lost.

    All that is done here may be sent again: a claim whose answer was lost
    expires, and a completion that had committed is refused with RC017.
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
                if error.sqlstate == "RC017":
                    raise StaleClaim from error
                if is_answer(error):
                    raise
                log(f"connection lost: {error}")
                self.connection.close()
                self.connection = None

    def row(self, statement, *values):
        return self.retrying(lambda connection: connection.execute(statement, values).fetchone())

    def transaction(self, *statements):
        def all_of_them(connection):
            with connection.transaction():
                for statement, values in statements:
                    connection.execute(statement, values)

        self.retrying(all_of_them)


# --- the work ----------------------------------------------------------------


def install(device_id, version, epoch, lost):
    """Stands for the call to the device, which stops when the claim is lost.

    A real device would compare the epoch with the highest that it has seen.
    """
    if lost.wait(INSTALL):
        raise RuntimeError("the claim was lost")


def while_extending(database, entity_id, epoch, deadline, job):
    """Does the job, in a thread, while the claim is extended.

    When it cannot be extended in time, the job's event is set.
    """
    lost = threading.Event()
    with ThreadPoolExecutor(max_workers=1) as executor:
        running = executor.submit(job, lost)
        timer = None
        try:
            while True:
                if timer is not None:
                    timer.cancel()
                timer = threading.Timer(deadline - time.monotonic(), lost.set)
                timer.start()
                try:
                    return running.result(timeout=TTL / 3)
                except TimeoutError:
                    if running.done():
                        raise
                sent = time.monotonic()
                extended, = database.row("SELECT extended FROM reconcile.extend_work(%s, %s, %s, %s)",
                                         LOOP, [entity_id], [epoch], timedelta(seconds=TTL))
                if not extended:
                    raise StaleClaim
                deadline = sent + TTL
        finally:
            timer.cancel()
            if not running.done():
                lost.set()


def work(database, entity_id, epoch, deadline):
    device = database.row("SELECT desired, reported FROM firmware.device WHERE device_id = %s", entity_id)
    statements = []
    if device is not None and device[0] != device[1]:
        desired = device[0]
        try:
            while_extending(database, entity_id, epoch, deadline,
                            lambda lost: install(entity_id, desired, epoch, lost))
        except (OSError, RuntimeError) as error:
            database.row("SELECT reconcile.fail_work(%s, %s, %s, %s)", LOOP, entity_id, epoch, str(error))
            return
        statements = [
            ("UPDATE firmware.device SET reported = %s WHERE device_id = %s", (desired, entity_id)),
            ("INSERT INTO firmware.installed (device_id, version, claim_epoch, holder) VALUES (%s, %s, %s, %s)",
             (entity_id, desired, epoch, HOLDER)),
        ]
    database.transaction(*statements,
                         ("SELECT reconcile.complete_work(%s, %s, %s)", (LOOP, entity_id, epoch)))


def main():
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, lambda *_: stopping.set())

    database = Database()
    while not stopping.is_set():
        sent = time.monotonic()
        claim = database.row("SELECT entity_id, claim_epoch FROM reconcile.claim_work(%s, %s, 1, %s)",
                             LOOP, HOLDER, timedelta(seconds=TTL))
        if claim is None:
            due, = database.row("SELECT extract(epoch FROM reconcile.next_due(%s))::float8", LOOP)
            stopping.wait(POLL if due is None else min(due, POLL))
            continue
        entity_id, epoch = claim
        try:
            work(database, entity_id, epoch, sent + TTL)
        except StaleClaim:
            log(f"{entity_id}: claim {epoch} is not ours any more")


main()
