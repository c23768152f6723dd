--
-- Bad input to the functions of section 3: SQLSTATE, the argument's name, a hint, and nothing changed (P12).
--
CREATE FUNCTION refused(statement text, OUT code text, OUT message text, OUT hint text) LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE statement;
    code := 'accepted';
EXCEPTION WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS code = RETURNED_SQLSTATE, message = MESSAGE_TEXT, hint = PG_EXCEPTION_HINT;
END $$;
CREATE TABLE cases (n int GENERATED ALWAYS AS IDENTITY, call text);
SELECT reconcile.create_loop('bad_loop', lease_ttl => '10 s');
CREATE TABLE bad_table (id text, note text);

-- create_loop: the name (8.1: 21, 23)
INSERT INTO cases (call) VALUES
    ('create_loop(NULL)'), ('create_loop('''')'), ('create_loop(''9lead'')'), ('create_loop(''Upper'')'), ('create_loop(''with-dash'')'),
    ('create_loop(''a.b'')'), ('create_loop(''a b'')'), ('create_loop(''a|b'')'), ('create_loop(''a=b'')'),
    ('create_loop(repeat(''x'', 49))'), ('create_loop(E''a\nb'')');
-- and its options
INSERT INTO cases (call) SELECT format('create_loop(''bad_x'', %s)', option) FROM unnest(ARRAY[
    'concurrency => NULL', 'concurrency => 0', 'concurrency => -1', 'concurrency => 1025',
    'backoff_base => NULL', 'backoff_base => ''0''', 'backoff_base => ''-1 s''', 'backoff_base => ''999 us''', 'backoff_base => ''1 month''',
    'backoff_base => ''367 days''', 'backoff_base => ''1 year''',
    'backoff_max => NULL', 'backoff_max => ''0''', 'backoff_max => ''1 ms''',
    'backoff_jitter => NULL', 'backoff_jitter => -0.1', 'backoff_jitter => 1.1', 'backoff_jitter => ''NaN''', 'backoff_jitter => ''Infinity''',
    'max_attempts => 0', 'max_attempts => -5',
    'default_requeue => ''0''', 'default_requeue => ''-1 s''', 'default_requeue => ''1 month''',
    'timeout => ''0''', 'timeout => ''-1 s''', 'timeout => ''100 us''', 'timeout => ''400 days''',
    'lease_ttl => ''0''', 'lease_ttl => ''999 us''', 'lease_ttl => ''-1 s''',
    'renew_every => ''1 s''', 'renew_every => ''6 s'', lease_ttl => ''10 s''', 'renew_every => ''0'', lease_ttl => ''10 s''',
    'repository => ''f''', 'resync_every => ''0''', 'resync_every => ''367 d''', 'lister => ''f''',
    'enabled => NULL', 'if_exists => NULL', 'if_exists => ''maybe''', 'if_exists => ''''',
    'owner => ''regress_nobody_of_this_name''', 'reconciler => ''''', 'reconciler => ''no_such_function''', 'reconciler => ''f(''',
    'reconciler => ''"unclosed''', 'reconciler => ''a..b''']) AS option;
-- what is legal at the edge is accepted
INSERT INTO cases (call) SELECT format('create_loop(''bad_ok'', if_exists => ''replace'', %s)', option) FROM unnest(ARRAY[
    'concurrency => 1024', 'backoff_base => ''1 ms'', backoff_max => ''366 days''', 'backoff_jitter => 1', 'max_attempts => 1',
    'lease_ttl => ''1.5 ms''', 'lease_ttl => ''10 s'', renew_every => ''5 s''', 'default_requeue => NULL']) AS option;
INSERT INTO cases (call) VALUES ('create_loop(''_'')'), ('create_loop(repeat(''y'', 48))'), ('create_loop(''a1_b2'')');
-- alter_loop
INSERT INTO cases (call) SELECT format('alter_loop(''bad_loop'', %s)', changes) FROM unnest(ARRAY[
    'NULL', '''[]''', '''3''', '''null''', '''"x"''', '''{"colour": "red"}''', '''{"loop_name": "x"}''', '''{"if_exists": "keep"}''', '''{"paused": true}''',
    '''{"concurrency": "4"}''', '''{"concurrency": 1.5}''', '''{"concurrency": 1e20}''', '''{"concurrency": 3000000000}''', '''{"concurrency": null}''',
    '''{"concurrency": 0}''', '''{"concurrency": [1]}''', '''{"timeout": 5}''', '''{"timeout": "soon"}''', '''{"timeout": "1 month"}''', '''{"timeout": "99999999999999 years"}''',
    '''{"timeout": {}}''', '''{"enabled": "true"}''', '''{"enabled": 1}''', '''{"enabled": null}''', '''{"backoff_jitter": "0.5"}''', '''{"backoff_jitter": 2}''',
    '''{"backoff_jitter": 1e400}''', '''{"backoff_base": "1 h"}''', '''{"backoff_base": null}''', '''{"reconciler": 1}''', '''{"reconciler": "no_such_function"}''', '''{"owner": 1}''',
    '''{"owner": "regress_nobody_of_this_name"}''', '''{"renew_every": "6 s"}''', '''{"lease_ttl": null, "renew_every": "1 s"}''', '''{"resync_every": "1 month"}''']) AS changes;
INSERT INTO cases (call) VALUES ('alter_loop(NULL, ''{}'')'), ('alter_loop(''Bad'', ''{}'')'), ('alter_loop(''bad_none'', ''{}'')');
-- functions of a loop's name
INSERT INTO cases (call) SELECT format('%s(%s)', f, arg) FROM unnest(ARRAY['drop_loop', 'pause_loop', 'resume_loop']) AS f,
    unnest(ARRAY['NULL', '''''', '''No''', '''bad_none''']) AS arg;
-- enqueue, enqueue_many
INSERT INTO cases (call) VALUES
    ('enqueue(NULL, ''e'')'), ('enqueue(''No'', ''e'')'), ('enqueue(''bad_none'', ''e'')'), ('enqueue(''bad_loop'', NULL)'), ('enqueue(''bad_loop'', repeat(''x'', 513))'),
    ('enqueue(''bad_loop'', ''e'', NULL)'), ('enqueue(''bad_loop'', ''e'', ''-1 s'')'), ('enqueue(''bad_loop'', ''e'', ''1 month'')'), ('enqueue(''bad_loop'', ''e'', ''367 days'')'),
    ('enqueue(''bad_loop'', ''e'', ''10 us'')'),
    ('enqueue_many(NULL, ''{e}'')'), ('enqueue_many(''bad_none'', ''{e}'')'), ('enqueue_many(''bad_loop'', NULL)'), ('enqueue_many(''bad_loop'', ''{e,NULL}'')'),
    ('enqueue_many(''bad_loop'', ''{{a},{b}}'')'), ('enqueue_many(''bad_loop'', ARRAY[''e'', repeat(''x'', 513)])'), ('enqueue_many(''bad_loop'', ''{e}'', NULL)'),
    ('enqueue_many(''bad_loop'', ''{e}'', ''-1 s'')'), ('enqueue_many(''bad_loop'', ''{e}'', spread => NULL)'), ('enqueue_many(''bad_loop'', ''{e}'', spread => ''1 year'')'),
    ('enqueue_many(''bad_loop'', array_fill(''e''::text, ARRAY[1000001]))');
-- revive, forget
INSERT INTO cases (call) SELECT format('%s(%s)', f, args) FROM unnest(ARRAY['revive', 'forget']) AS f,
    unnest(ARRAY['NULL, ''e''', '''bad_loop'', NULL', '''No'', ''e''', '''bad_none'', ''e''', '''bad_loop'', repeat(''x'', 513)']) AS args;
-- watch, unwatch
INSERT INTO cases (call) VALUES
    ('watch(NULL, ''bad_table'', ''id'')'), ('watch(''No'', ''bad_table'', ''id'')'), ('watch(''bad_none'', ''bad_table'', ''id'')'), ('watch(''bad_loop'', NULL, ''id'')'),
    ('watch(''bad_loop'', ''bad_none'', ''id'')'), ('watch(''bad_loop'', ''bad_table'', NULL)'), ('watch(''bad_loop'', ''bad_table'', ''none'')'), ('watch(''bad_loop'', ''bad_table'', '''')'),
    ('watch(''bad_loop'', ''bad_table'', ''id'', ''{}'')'), ('watch(''bad_loop'', ''bad_table'', ''id'', ''{NULL}'')'), ('watch(''bad_loop'', ''bad_table'', ''id'', ''{{id},{note}}'')'),
    ('watch(''bad_loop'', ''bad_table'', ''id'', ''{none}'')'), ('watch(''bad_loop'', ''bad_table'', ''id'', ''{ctid}'')'),
    ('unwatch(NULL, ''bad_table'')'), ('unwatch(''bad_none'', ''bad_table'')'), ('unwatch(''bad_loop'', NULL)'), ('unwatch(''bad_loop'', ''bad_table'')'),
    ('permanent_error(NULL)');

SELECT c.call, r.* FROM cases c, LATERAL refused('SELECT reconcile.' || c.call) r ORDER BY c.n;

-- infinite intervals exist since 17, and are no intervals before
SELECT (refused($$SELECT reconcile.create_loop('bad_x', timeout => 'infinity')$$)).code IN ('22023', '22007') AS refused;
SELECT (refused($$SELECT reconcile.enqueue('bad_loop', 'e', '-infinity')$$)).code IN ('22023', '22007') AS refused;
SELECT (refused($$SELECT reconcile.alter_loop('bad_loop', '{"timeout": "infinity"}')$$)).code;

-- nothing writes in a read-only transaction
BEGIN READ ONLY;
SELECT call, r.code, r.message, r.hint
  FROM unnest(ARRAY['create_loop(''bad_x'')', 'alter_loop(''bad_loop'', ''{}'')', 'drop_loop(''bad_loop'')', 'pause_loop(''bad_loop'')',
                    'resume_loop(''bad_loop'')', 'enqueue(''bad_loop'', ''e'')', 'enqueue_many(''bad_loop'', ''{e}'')', 'revive(''bad_loop'', ''e'')',
                    'forget(''bad_loop'', ''e'')', 'watch(''bad_loop'', ''bad_table'', ''id'')', 'unwatch(''bad_loop'', ''bad_table'')']) AS call,
       LATERAL refused('SELECT reconcile.' || call) r;
COMMIT;

-- nothing was changed by what was refused
SELECT loop_name, concurrency, timeout, lease_ttl, renew_every, enabled FROM reconcile.loops ORDER BY loop_name;
SELECT count(*) FROM reconcile.mark;
SELECT count(*) FROM pg_trigger WHERE tgrelid = 'bad_table'::regclass;
SELECT reconcile.drop_loop(loop_name) FROM reconcile.loops;
DROP TABLE bad_table, cases;
DROP FUNCTION refused;
