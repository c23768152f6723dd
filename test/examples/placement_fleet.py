"""Drives examples/placement-fleet: an agent that is killed has its sessions placed
elsewhere, one that is ended lets them go, and all goes on.
"""

import collections
import os
import re
import signal
import tempfile

import kit

FOLDER = f"{kit.EXAMPLES}/placement-fleet"
SESSIONS = 6
two_each = collections.Counter({f"room-{n}": 2 for n in range(1, SESSIONS + 1)})

kit.psql("-c", "SELECT 1")
kit.Server()
kit.psql("-f", f"{FOLDER}/setup.sql")
db = kit.database()
run = tempfile.mkdtemp(prefix="f")
fleet = kit.Client(["./fleet", "--agents", "3", "--sessions", str(SESSIONS)], FOLDER, FLEET_RUN=run,
                   AGENT_CAPACITY=str(SESSIONS))


def owners():
    return dict(db.execute("SELECT session_id, host_id FROM reconcile.sessions WHERE owner = 'live'").fetchall())


def group(host):
    return int(re.findall(rf"{host} +started, in (?:node|psql), as the process group (\d+)", fleet.output())[-1])


def in_state(state):
    return db.execute("SELECT session_id, command_id FROM reconcile.session_command WHERE state = %s", (state,)).fetchall()


def goes_on(name):
    """All sessions do: by then each owner has looked at what was begun before it."""
    before = collections.Counter(session for session, _ in in_state("applied"))
    kit.until("commands are applied", lambda: collections.Counter(session for session, _ in in_state("applied")) >= before + two_each)
    kit.ok(True, name)


def told():
    """Commands that no host can settle any more. Each owner tells of it."""
    return {found for one in os.listdir(run) if one.endswith(".log")
            for found in re.findall(r" unsettled fleet/(\S+) epoch \d+ (\S+):", open(f"{run}/{one}", encoding="utf8").read())}


try:
    kit.until("all are placed", lambda: len(owners()) == SESSIONS)
    goes_on("sessions are placed, and carry out commands")
    for host in ("host_1", "host_2"):
        # it may be that this one has none
        theirs = [session for session, at in owners().items() if at == host]
        print(f"# {host} has {len(theirs)} sessions")
        os.killpg(group(host), signal.SIGKILL)
        kit.until("they are elsewhere", lambda: len(owners()) == SESSIONS and host not in owners().values())
        kit.until("it is told", lambda: all(re.search(rf"{session} +{host} at epoch \d+ -> host_\d at epoch \d+", fleet.output()) for session in theirs))
        kit.until("and of the host", lambda: re.search(rf"{host} +ended with 137", fleet.output()))
        kit.ok(True, f"{host} is killed, and its sessions move")
        goes_on("and go on")
    kit.same(fleet.terminate(), 0, "SIGTERM ends the fleet")
    kit.same(owners(), {}, "and all sessions are let go")
    kit.same(set(in_state("applying")), told(), "each command that was begun is settled, or told of")
finally:
    if fleet.running():
        for one in re.findall(r"process group (\d+)", fleet.output()):
            try:
                os.killpg(int(one), signal.SIGKILL)
            except ProcessLookupError:
                pass
        fleet.kill()
kit.done()
