"""Drives examples/partition-keeper: policies change, workers are ended in the middle."""

import kit

kit.psql("-f", f"{kit.EXAMPLES}/partition-keeper/keeper.sql")
db = kit.database()


def value(statement):
    return db.execute(statement).fetchone()[0]


def partitions(table="measurement"):
    return value(f"SELECT count(*) FROM keeper.partition WHERE parent = '{table}'::regclass")


db.execute("CREATE TABLE measurement (at timestamptz NOT NULL, value float8 DEFAULT 0) PARTITION BY RANGE (at)")
db.execute("INSERT INTO keeper.policy VALUES ('public.measurement', 'day', 7)")
kit.until("partitions", lambda: partitions() == 8)
kit.same(value("SELECT max(upper) - min(lower) = '8 days' AND min(lower) <= now() AND max(upper) > now() + '7 days' FROM keeper.partition"),
         True, "a policy makes today's partition and those of the next seven days")
db.execute("INSERT INTO measurement SELECT now() + interval '1 day' * n FROM generate_series(0, 7) n")
kit.ok(True, "rows of the coming week have a partition")
kit.same(value("SELECT due_at = date_trunc('day', now(), 'UTC') + '1 day' FROM (SELECT date_trunc('second', due_at + '0.5 s') AS due_at "
               "FROM reconcile.work WHERE entity_id = 'public.measurement') w"), True, "the next look is when the next partition begins")

db.execute("""SELECT keeper.add('measurement', today - interval '1 day' * n, today - interval '1 day' * (n - 1))
                FROM generate_series(1, 20) n, date_trunc('day', now(), 'UTC') today""")
# of the 20 days before today, those that ended less than 10 days before today
RETAIN = "UPDATE keeper.policy SET retention = now() - date_trunc('day', now(), 'UTC') + interval '1 h' + interval '1 day' * "
db.execute(RETAIN + "10")
kit.until("dropped", lambda: partitions() == 8 + 11)
kit.same(value("SELECT bool_and(upper > now() - retention) FROM keeper.partition, keeper.policy"), True, "what is past retention is dropped")

with kit.database() as reader:
    with reader.transaction():
        reader.execute("SELECT FROM measurement")
        db.execute(RETAIN + "5")
        kit.until("refused", lambda: value("SELECT count(*) FROM reconcile.work WHERE last_sqlstate = '55P03'") == 1)
        kit.same(partitions(), 8 + 11, "a reader of the table is not waited for")
kit.until("dropped later", lambda: partitions() == 8 + 6)
kit.ok(True, "and it is done when he is gone")

db.execute("INSERT INTO keeper.policy VALUES ('public.nothing', 'day')")
kit.until("dead", lambda: value("SELECT count(*) FROM reconcile.dead_letters WHERE last_error = 'there is no table public.nothing'") == 1)
kit.ok(True, "a policy without a table is dead")
db.execute("DELETE FROM keeper.policy WHERE parent = 'public.nothing'")

for n in range(20):
    db.execute(f"CREATE TABLE many_{n} (at timestamptz NOT NULL) PARTITION BY RANGE (at)")
db.execute("INSERT INTO keeper.policy SELECT 'public.many_' || n, 'hour', 30 FROM generate_series(0, 19) n")
for n in range(20):
    kit.until("partitions", lambda: partitions(f"many_{n}") > 0)
    db.execute("SELECT pg_terminate_backend(pid) FROM reconcile.workers WHERE kind = 'executor' AND database = current_database()")
for n in range(20):
    kit.until("all partitions", lambda: partitions(f"many_{n}") == 31)
kit.ok(True, "ending the workers again and again leaves no table without its partitions")

db.execute("SET session_replication_role = replica")
db.execute("CREATE TABLE unseen (at timestamptz NOT NULL) PARTITION BY RANGE (at)")
db.execute("INSERT INTO keeper.policy VALUES ('public.unseen', 'month', 2)")
db.execute("RESET session_replication_role")
db.execute("""SELECT reconcile.alter_loop('partitions', '{"resync_every": "100 ms"}')""")
kit.until("partitions", lambda: partitions("unseen") == 3)
kit.ok(True, "the resync finds a policy that no trigger has seen")
kit.done()
