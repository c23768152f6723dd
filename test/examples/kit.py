"""What the tests of examples share: a database, clients to start, kill and watch.

scripts/run-suites sets PGHOST, PGDATABASE (new and empty) and the superuser
PGUSER, and POOLER_HOST, POOLER_PORT of a pgbouncer in transaction mode.
"""

import atexit
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import psycopg

import proxy

DEADLINE = 60                           # seconds for anything that is awaited
HERE = os.path.dirname(os.path.abspath(__file__))
EXAMPLES = os.path.join(HERE, "..", "..", "examples")

tests = 0


def ok(true, name):
    """Prints a TAP line; a test that fails ends the run."""
    global tests
    tests += 1
    print(f"{'ok' if true else 'not ok'} {tests} - {name}", flush=True)
    if not true:
        sys.exit(1)


def done():
    print(f"1..{tests}", flush=True)


def same(got, expected, name):
    if got != expected:
        print(f"# got {got!r}, expected {expected!r}", flush=True)
    ok(got == expected, name)


def database():
    return psycopg.connect(autocommit=True)


def psql(*arguments):
    subprocess.run(["psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-o", os.devnull, *arguments], check=True)


def until(what, condition):
    end = time.monotonic() + DEADLINE
    while not condition():
        if time.monotonic() > end:
            ok(False, f"{what} within {DEADLINE} s")
        time.sleep(0.02)


class Client:
    """A program in a process group of its own, which is killed as one."""

    def __init__(self, command, folder, **environment):
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen(command, cwd=folder, env={**os.environ, **environment}, stdin=subprocess.DEVNULL,
                                        stdout=self.log, stderr=subprocess.STDOUT, start_new_session=True)

    def signal(self, number):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def kill(self):
        self.signal(signal.SIGKILL)

    def running(self):
        return self.process.poll() is None

    def output(self):
        self.log.seek(0)
        return self.log.read().decode()

    def terminate(self):
        """Asks it to end, and returns its exit code."""
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(DEADLINE)
        except subprocess.TimeoutExpired:
            code = "still running"
        if code != 0:
            print("# " + self.output().replace("\n", "\n# "))
            self.kill()
        return code


class Server:
    """A server of its own, with the extension, to be stopped and started; what follows connects to it."""

    def __init__(self):
        with database() as shared:
            found = [(name, shared.execute(f"SHOW {name}").fetchone()[0])
                     for name in ("extension_destdir", "dynamic_library_path", "shared_preload_libraries")]
        self.folder = tempfile.mkdtemp(prefix="s")
        self.data = f"{self.folder}/data"
        subprocess.run(["initdb", "-D", self.data, "-U", "postgres", "-A", "trust", "-N", "--no-locale", "-E", "UTF8"],
                       check=True, stdout=subprocess.DEVNULL)
        with open(f"{self.data}/postgresql.conf", "a", encoding="ascii") as conf:
            for name, value in [*found, ("unix_socket_directories", self.folder), ("listen_addresses", ""), ("fsync", "off")]:
                conf.write(f"{name} = '{value}'\n")
        os.environ.update(PGHOST=self.folder, PGDATABASE="postgres")
        atexit.register(self.remove)
        self.start()

    def ctl(self, *arguments):
        subprocess.run(["pg_ctl", "-D", self.data, "-l", f"{self.folder}/log", "-w", "-s", *arguments],
                       check=True, stdout=subprocess.DEVNULL)

    def start(self):
        self.ctl("start")

    def stop(self, mode):
        self.ctl("-m", mode, "stop")

    def remove(self):
        if os.path.exists(f"{self.data}/postmaster.pid"):
            self.stop("immediate")
        shutil.rmtree(self.folder)


def proxies(name="proxy"):
    """A proxy to the server, and one to the pooler; its folder is the host for clients.

    Beside each, the host "free" leads there without a proxy's tricks.
    """
    found = {}
    for how, host, port in (("directly", os.environ["PGHOST"], 5432),
                            ("through pgbouncer", os.environ["POOLER_HOST"], os.environ["POOLER_PORT"])):
        folder = tempfile.mkdtemp(prefix="p")
        proxy.Proxy(f"{folder}/free", host, port)
        found[how] = (f"{folder}/{name}", proxy.Proxy(f"{folder}/{name}", host, port))
    return found
