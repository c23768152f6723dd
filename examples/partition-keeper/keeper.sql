-- As a superuser, or as a role that has "define" on the id "partitions", may
-- create schemas, and owns the tables that it will keep.

CREATE EXTENSION IF NOT EXISTS reconcile;
CREATE SCHEMA keeper;

-- Which tables to keep. Each is partitioned by RANGE of one timestamptz column.
CREATE TABLE keeper.policy (
    parent    text PRIMARY KEY,                 -- 'app.measurement'
    unit      text NOT NULL CHECK (unit IN ('hour', 'day', 'week', 'month')),
    ahead     int NOT NULL DEFAULT 3 CHECK (ahead BETWEEN 1 AND 1000),   -- partitions after the current one
    retention interval CHECK (retention > '0')  -- drop what is older; NULL: keep everything
);

-- The partitions that there are, with their bounds.
CREATE VIEW keeper.partition AS
SELECT i.inhparent::regclass AS parent, i.inhrelid::regclass AS partition,
       substring(bound FROM $$FROM \('([^']+)'\)$$)::timestamptz AS lower,
       substring(bound FROM $$TO \('([^']+)'\)$$)::timestamptz AS upper
  FROM pg_inherits i
  JOIN pg_class c ON c.oid = i.inhrelid AND c.relispartition
 CROSS JOIN LATERAL pg_get_expr(c.relpartbound, c.oid) bound;

-- Brings one table to its policy, and returns when to look again: when the next
-- partition begins. It looks at what is there, so it may run at any time.
CREATE FUNCTION keeper.keep(entity text) RETURNS interval LANGUAGE plpgsql AS $$
DECLARE
    policy    keeper.policy;
    kept      regclass;
    step      interval;
    this_one  timestamptz;
    next_one  timestamptz;
    wanted    timestamptz;
    partition regclass;
BEGIN
    SELECT * INTO policy FROM keeper.policy p WHERE p.parent = entity;
    IF NOT FOUND THEN
        RETURN NULL;                            -- no policy any more: leave the table as it is
    END IF;
    kept := to_regclass(policy.parent);
    IF kept IS NULL THEN
        PERFORM reconcile.permanent_error(format('there is no table %s', policy.parent));
    END IF;
    step := format('1 %s', policy.unit);
    this_one := date_trunc(policy.unit, now(), 'UTC');
    next_one := (this_one AT TIME ZONE 'UTC' + step) AT TIME ZONE 'UTC';

    -- Behind our lock would wait everybody who wants the table: rather fail, and
    -- try again after the loop's backoff.
    SET LOCAL lock_timeout = '1 s';

    FOR wanted IN
        SELECT g AT TIME ZONE 'UTC'
          FROM generate_series(this_one AT TIME ZONE 'UTC', this_one AT TIME ZONE 'UTC' + policy.ahead * step, step) g
    LOOP
        CONTINUE WHEN EXISTS (SELECT FROM keeper.partition p
                               WHERE p.parent = kept AND wanted >= p.lower AND wanted < p.upper);
        PERFORM keeper.add(kept, wanted, (wanted AT TIME ZONE 'UTC' + step) AT TIME ZONE 'UTC');
    END LOOP;

    FOR partition IN
        SELECT p.partition FROM keeper.partition p
         WHERE p.parent = kept AND p.upper <= now() - policy.retention ORDER BY p.upper
    LOOP
        EXECUTE format('DROP TABLE %s', partition);
    END LOOP;

    RETURN next_one - now();
END
$$;

-- Made first and attached then, which takes a weaker lock on the parent than
-- CREATE TABLE ... PARTITION OF.
CREATE FUNCTION keeper.add(parent regclass, lower timestamptz, upper timestamptz) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    schema_name name;
    table_name  name;
    partition   text;
BEGIN
    SELECT n.nspname, c.relname INTO schema_name, table_name
      FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = parent;
    partition := format('%I.%I', schema_name, table_name || to_char(lower AT TIME ZONE 'UTC', '_YYYYMMDD_HH24'));
    EXECUTE format('CREATE TABLE %s (LIKE %s INCLUDING DEFAULTS INCLUDING CONSTRAINTS)', partition, parent);
    EXECUTE format('ALTER TABLE %s ATTACH PARTITION %s FOR VALUES FROM (%L) TO (%L)', parent, partition, lower, upper);
END
$$;

-- For the resync: all tables that have a policy.
CREATE FUNCTION keeper.tables() RETURNS SETOF text LANGUAGE sql AS 'SELECT parent FROM keeper.policy';

SELECT reconcile.create_loop('partitions', 'keeper.keep', lister => 'keeper.tables', resync_every => '1 h',
                             default_requeue => NULL, backoff_base => '1 s', backoff_max => '5 min', timeout => '1 min');
SELECT reconcile.watch('partitions', 'keeper.policy', 'parent');
