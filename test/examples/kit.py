"""What the tests of examples share: a database, clients to start, kill and watch.

scripts/run-suites sets PGHOST, PGDATABASE (new and empty) and the superuser
PGUSER, POOLER_HOST, POOLER_PORT of a pgbouncer in transaction mode, and
RECONCILE_CONF, a file with what lets a server find and preload the extension.
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
complete = False
servers = []                            # of the test, whose logs are not looked at yet


def ok(true, name):
    """Prints a TAP line; a test that fails ends the run."""
    global tests
    tests += 1
    print(f"{'ok' if true else 'not ok'} {tests} - {name}", flush=True)
    if not true:
        sys.exit(1)


def failed():
    """For what is called at the end."""
    return not complete


def done():
    global complete
    while servers:
        server = servers.pop()
        server.stop("fast")
        ok(server.log_as_expected(), "the log of the server has nothing unexpected")
    print(f"1..{tests}", flush=True)
    complete = True


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
    """A program in a process group of its own, which is killed as one. Several may write to one log."""

    def __init__(self, command, folder, log=None, **environment):
        self.log = log or tempfile.TemporaryFile()
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
        # not read(): the program writes at the place that we would move
        return os.pread(self.log.fileno(), os.fstat(self.log.fileno()).st_size, 0).decode()

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
        self.folder = tempfile.mkdtemp(prefix="s")
        self.data = f"{self.folder}/data"
        subprocess.run(["initdb", "-D", self.data, "-U", "postgres", "-A", "trust", "-N", "--no-locale", "-E", "UTF8"],
                       check=True, stdout=subprocess.DEVNULL)
        with open(f"{self.data}/postgresql.conf", "a", encoding="utf8") as conf:
            with open(os.environ["RECONCILE_CONF"], encoding="utf8") as found:
                conf.write(found.read())
            # lines of this shape are what ServerLog.pm reads
            for name, value in (("unix_socket_directories", self.folder), ("listen_addresses", ""), ("fsync", "off"),
                                ("max_worker_processes", "24"),
                                ("log_line_prefix", "%m [%p] %q%a ")):
                conf.write(f"{name} = '{value}'\n")
        os.environ.update(PGHOST=self.folder, PGDATABASE="postgres")
        atexit.register(self.remove)
        servers.append(self)
        self.start()

    def ctl(self, *arguments):
        subprocess.run(["pg_ctl", "-D", self.data, "-l", f"{self.folder}/log", "-w", "-s", *arguments],
                       check=True, stdout=subprocess.DEVNULL)

    def start(self):
        self.ctl("start")

    def stop(self, mode):
        self.ctl("-m", mode, "stop")

    def log_as_expected(self):
        """Prints what is not."""
        return not subprocess.run(["perl", "-I", f"{HERE}/../tap", "-MServerLog", "-e", "exit ServerLog::report(@ARGV)",
                                   f"{self.folder}/log", f"{HERE}/../expected_log"], check=False).returncode

    def remove(self):
        if self in servers:
            # the test has failed: the log may say why
            self.log_as_expected()
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
