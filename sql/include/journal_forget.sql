-- The triggers of what is final off ('DISABLE'), and as they were.
CREATE TABLE journal_trigger (of_table regclass, name name, state text);
CREATE FUNCTION journal_triggers(state text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    t journal_trigger;
BEGIN
    IF state = 'DISABLE' THEN
        INSERT INTO journal_trigger
        SELECT tgrelid::regclass, tgname, CASE tgenabled WHEN 'A' THEN 'ENABLE ALWAYS' WHEN 'R' THEN 'ENABLE REPLICA' WHEN 'O' THEN 'ENABLE' ELSE 'DISABLE' END
          FROM pg_trigger WHERE tgfoid = 'reconcile.keep_row()'::regprocedure;
    END IF;
    FOR t IN SELECT * FROM journal_trigger LOOP
        EXECUTE format('ALTER TABLE %s %s TRIGGER %I', t.of_table, CASE state WHEN 'DISABLE' THEN state ELSE t.state END, t.name);
    END LOOP;
    IF state <> 'DISABLE' THEN
        DELETE FROM journal_trigger;
    END IF;
END $$;

-- Nothing of these tenants is left.
CREATE FUNCTION journal_forget(VARIADIC tenants text[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    c record;
BEGIN
    PERFORM journal_triggers('DISABLE');
    FOR c IN SELECT a.attrelid::regclass AS of_table FROM pg_attribute a JOIN pg_class t ON t.oid = a.attrelid
              WHERE a.attname = 'tenant_id' AND t.relkind = 'r' AND t.relnamespace = 'reconcile'::regnamespace
                AND t.relname <> 'command_sweep_cursor' LOOP
        EXECUTE format('DELETE FROM %s WHERE tenant_id = ANY ($1)', c.of_table) USING tenants;
    END LOOP;
    PERFORM journal_triggers('ENABLE');
END $$;
