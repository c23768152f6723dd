"""Drives the leaders of examples/cron-leader, two at a time: cron_leader.py COMMAND...

P5, P6 from outside: one leads, another takes over when it is killed, and what a
leader sends after that is refused.
"""

import signal
import sys

import kit

folder, command = f"{kit.EXAMPLES}/cron-leader", sys.argv[1:]

kit.psql("-f", f"{folder}/setup.sql")
db = kit.database()


def leader(host, ttl="1.2"):
    return kit.Client(command, folder, PGHOST=host, PGPORT="5432", PGUSER="cron_worker", CRON_TTL=ttl, CRON_EVERY="0.2")


def value(statement):
    return db.execute(statement).fetchone()[0]


def epoch():
    return value("SELECT coalesce(max(epoch), 0) FROM reconcile.leases WHERE reconciler_id = 'nightly'")


def reports(of_epoch):
    return value(f"SELECT count(*) FROM nightly.report WHERE epoch = {of_epoch}")


def leads(client, of_epoch, name):
    """Two reports at this epoch, the second after a renewal."""
    kit.until(name, lambda: reports(of_epoch) >= 2)
    kit.ok(f"leader at epoch {of_epoch}" in client.output(), name)


def stale_write(how, host, proxy):
    """The leader is held up before bind_lease until another has taken over."""
    before = epoch()
    old = leader(host)
    leads(old, before + 1, f"{how}: the first leads")
    proxy.hold = b"bind_lease"
    kit.until("held", proxy.held.is_set)
    written = reports(before + 1)
    new = leader(host.replace("/held", "/free"))
    leads(new, before + 2, f"{how}: another takes over")
    # a report would be due now, if nothing but that were looked at
    new.signal(signal.SIGSTOP)
    kit.until("due", lambda: value("SELECT max(made_at) < clock_timestamp() - interval '0.2 s' FROM nightly.report"))
    proxy.hold = None
    proxy.go_on.set()
    kit.until("refused", lambda: "not the leader any more" in old.output())
    kit.same(reports(before + 1), written, f"{how}: what the first sent late is refused")

    new.kill()
    leads_again = before + 3
    kit.until("a third term", lambda: reports(leads_again) >= 2)
    kit.ok(f"leader at epoch {leads_again}" in old.output(), f"{how}: the first leads again when the other is killed")
    kit.same(old.terminate(), 0, f"{how}: SIGTERM ends it")
    kit.same(value("SELECT end_reason FROM reconcile.lease_history WHERE epoch = %d" % leads_again), "released",
             f"{how}: and gives the lease back")
    proxy.held.clear()
    proxy.go_on.clear()


def cut_connection(how, host, proxy):
    before = epoch()
    client = leader(host, ttl="60")
    leads(client, before + 1, f"{how}: it leads")
    for number in range(1, 7):
        proxy.arm(number, lambda: None)
        kit.until("cut", proxy.fired.is_set)
        written = reports(before + 1)
        kit.until("goes on", lambda: reports(before + 1) > written)
    proxy.disarm()
    kit.same(epoch(), before + 1, f"{how}: the term outlives its connections")
    kit.same(client.terminate(), 0, f"{how}: SIGTERM ends it")


def killed(how, host, proxy):
    for number in range(1, 7):
        before = epoch()
        first = leader(host)
        proxy.arm(number, first.kill)
        kit.until("killed", proxy.fired.is_set)
        kit.ok(first.process.wait(kit.DEADLINE) == -signal.SIGKILL, f"{how}: killed after statement {number}")
        proxy.disarm()
        granted = epoch()
        second = leader(host)
        leads(second, granted + 1, f"{how}: the next one leads, granted were {granted - before}")
        kit.same(second.terminate(), 0, f"{how}: SIGTERM ends it")


hosts = kit.proxies("held")
for how, (host, proxy) in hosts.items():
    stale_write(how, host, proxy)
cut_connection("directly", *hosts["directly"])
killed("through pgbouncer", *hosts["through pgbouncer"])
kit.same(value("""SELECT count(*) FROM (SELECT epoch < lag(epoch) OVER w OR made_at < lag(made_at) OVER w + '0.2 s' AS wrong
                    FROM nightly.report WINDOW w AS (ORDER BY report)) r WHERE wrong"""), 0,
         "reports have rising epochs, and never came before their time")
kit.done()
