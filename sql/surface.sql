--
-- The public surface (P11): what every function takes and gives, how it may be
-- planned, whose path it runs with, who may call it, and that it says so.
--
-- A change here is a change of what users rely on.
\pset format unaligned

-- name, arguments with defaults, result
SELECT p.proname || '(' || pg_get_function_arguments(p.oid) || ')' ||
       coalesce(' RETURNS ' || pg_get_function_result(p.oid), '') AS function
  FROM pg_proc p
 WHERE p.pronamespace = 'reconcile'::regnamespace
 ORDER BY p.proname COLLATE "C", p.oid;

-- kind, language, volatility, parallel safety, SECURITY DEFINER, settings, who may call it besides the owner
SELECT p.proname, p.prokind AS kind, l.lanname AS language, p.provolatile AS volatile, p.proparallel AS parallel, p.prosecdef AS definer,
       array_to_string(p.proconfig, ', ') AS settings,
       (SELECT string_agg(CASE WHEN a.grantee = 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END, ', ')
          FROM aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a WHERE a.grantee <> p.proowner) AS others
  FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang
 WHERE p.pronamespace = 'reconcile'::regnamespace
 ORDER BY p.proname COLLATE "C", p.oid;

-- A function without a search path of its own is in this list, with its reason; nothing in the list is without need
WITH excused (proname, reason) AS (VALUES
    ('create_loop', 'resolves the names in its arguments with the caller''s path; its own SQL is fully qualified'),
    ('alter_loop', 'resolves the names in its arguments with the caller''s path; its own SQL is fully qualified'),
    ('enqueue', 'hot; its own SQL is fully qualified'),
    ('enqueue_many', 'hot; its own SQL is fully qualified'),
    ('watch_trigger', 'hot; runs no SQL'),
    ('watch_ddl', 'finds tables by the names in the user''s command; runs no SQL'),
    ('fence_trigger', 'hot; its own SQL is fully qualified'),
    ('fence_ddl', 'finds tables by the names in the user''s command; runs no SQL'),
    ('apply_fenced', 'hot; its own SQL is fully qualified'),
    ('fenced_write', 'hot; its own SQL is fully qualified'),
    ('fenced_epoch', 'hot; runs no SQL'),
    ('json_merge_patch', 'pure; runs no SQL'),
    ('current_run', 'hot; runs no SQL'),
    ('permanent_error', 'hot; runs no SQL'),
    ('accept_command', 'hot; its own SQL is fully qualified'),
    ('claim_commands', 'hot; its own SQL is fully qualified'),
    ('acknowledge_command', 'hot; its own SQL is fully qualified'),
    ('complete_command', 'hot; its own SQL is fully qualified'),
    ('report_observed', 'hot; its own SQL is fully qualified'),
    ('desired_state_of', 'hot; its own SQL is fully qualified'),
    ('desired_states_since', 'hot; its own SQL is fully qualified'),
    ('effective_state', 'hot; its own SQL is fully qualified'),
    ('may_read_command', 'hot, for each row that is read; its own SQL is fully qualified'),
    ('register_action', 'resolves the name in its argument with the caller''s path; its own SQL is fully qualified'),
    ('set_authorizer', 'resolves the name in its argument with the caller''s path; its own SQL is fully qualified'),
    ('run_entity', 'runs the loop''s function with the path of a new session; its own SQL is fully qualified'),
    ('drain_loop', 'commits, which SET forbids; its own SQL is fully qualified'),
    ('wait_idle', 'commits, which SET forbids; its own SQL is fully qualified'),
    ('decide', 'pure; runs no SQL'),
    ('run_loop', 'commits, which SET forbids; sets the path in each transaction that it opens')
), bare AS (
    SELECT p.proname FROM pg_proc p
     WHERE p.pronamespace = 'reconcile'::regnamespace
       AND NOT EXISTS (SELECT FROM unnest(p.proconfig) c WHERE c = 'search_path=pg_catalog, pg_temp')
)
SELECT coalesce(b.proname, e.proname) AS unexplained
  FROM bare b FULL JOIN excused e ON e.proname = b.proname
 WHERE b.proname IS NULL OR e.proname IS NULL
 ORDER BY 1;

-- None is SECURITY DEFINER; all in C are ours; each object of ours says what it is for
SELECT p.proname AS definer FROM pg_proc p WHERE p.pronamespace = 'reconcile'::regnamespace AND p.prosecdef;
SELECT p.proname AS wrong_symbol FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang
 WHERE p.pronamespace = 'reconcile'::regnamespace AND l.lanname = 'c' AND p.prosrc <> 'reconcile_' || p.proname;
SELECT pg_describe_object(d.classid, d.objid, 0) AS no_comment
  FROM pg_depend d JOIN pg_extension e ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid AND d.deptype = 'e'
 WHERE e.extname = 'reconcile'
   AND NOT EXISTS (SELECT FROM pg_description c WHERE c.classoid = d.classid AND c.objoid = d.objid AND c.objsubid = 0)
   -- from 17 on also the types of rows and arrays
   AND NOT EXISTS (SELECT FROM pg_type t LEFT JOIN pg_class r ON r.oid = t.typrelid
                    WHERE d.classid = 'pg_type'::regclass AND t.oid = d.objid AND (t.typarray = 0 OR r.relkind <> 'c'))
 ORDER BY 1;

-- Views that users read, everybody or who is granted commands: their columns; ids have the default collation, so that a
-- join uses the user's index; what a row shows is behind a barrier, or is the caller's own by the policies of the tables
CREATE VIEW shown AS
SELECT c.oid, c.relname, c.reloptions FROM pg_class c
 WHERE c.relnamespace = 'reconcile'::regnamespace AND c.relkind = 'v'
   AND (has_table_privilege('public', c.oid, 'SELECT')
        OR c.oid IN (SELECT r.relation::regclass FROM unnest('{view,audit_view}'::text[]) p, reconcile.journal_relations(p) r));
SELECT c.relname || ' (' || string_agg(a.attname || ' ' || format_type(a.atttypid, a.atttypmod), ', ' ORDER BY a.attnum) || ')' AS view
  FROM shown c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
 GROUP BY c.relname ORDER BY c.relname COLLATE "C";
SELECT c.relname, a.attname AS not_default_collation
  FROM shown c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
 WHERE a.atttypid = 'text'::regtype AND a.attcollation <> 'default'::regcollation
 ORDER BY 1, 2;
SELECT c.relname AS no_security_barrier FROM shown c
 WHERE NOT coalesce(c.reloptions, '{}') && '{security_barrier=true,security_invoker=true}';
DROP VIEW shown;

-- Tables: nobody but the owner, and everybody what can be commanded; no column of type oid, and of the reg* types only regclass and regrole
SELECT c.relname, a.grantee::regrole, a.privilege_type
  FROM pg_class c, aclexplode(c.relacl) a
 WHERE c.relnamespace = 'reconcile'::regnamespace AND c.relkind IN ('r', 'S') AND a.grantee <> c.relowner;
SELECT c.relname, a.attname, format_type(a.atttypid, a.atttypmod) AS not_dumpable
  FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
 WHERE c.relnamespace = 'reconcile'::regnamespace AND c.relkind = 'r'
   AND a.atttypid = ANY (ARRAY['oid', 'regproc', 'regprocedure', 'regoper', 'regoperator', 'regtype', 'regnamespace', 'regconfig', 'regdictionary', 'regcollation']::regtype[]);

-- A table without a primary key has REPLICA IDENTITY FULL, so that no publication refuses its deletes
SELECT c.relname AS no_identity FROM pg_class c
 WHERE c.relnamespace = 'reconcile'::regnamespace AND c.relkind = 'r' AND c.relreplident <> 'f'
   AND NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary);

-- Triggers of our own tables, and whether they fire: always (A), or not in every mode of replication (O, R), or never (D)
SELECT t.tgname, t.tgrelid::regclass AS of_table, t.tgenabled
  FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
 WHERE c.relnamespace = 'reconcile'::regnamespace AND NOT t.tgisinternal
 ORDER BY c.relname COLLATE "C", t.tgname COLLATE "C";

-- What pg_dump does not save: how far sweeps came
SELECT c.relname AS not_dumped
  FROM pg_class c JOIN pg_extension e ON e.extname = 'reconcile'
 WHERE c.relnamespace = 'reconcile'::regnamespace AND c.relkind IN ('r', 'S') AND NOT c.oid = ANY (e.extconfig)
 ORDER BY c.relname COLLATE "C";
