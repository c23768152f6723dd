-- claim.sql: outside workers

-- Claims are numbered in the order in which they are made, in all loops.
CREATE SEQUENCE reconcile.claim_epoch AS bigint;
COMMENT ON SEQUENCE reconcile.claim_epoch IS 'Epochs of claims.';
SELECT pg_catalog.pg_extension_config_dump('reconcile.claim_epoch', '');

CREATE FUNCTION reconcile.claim_work(loop_name text, holder_id text, max_items int DEFAULT 1, ttl interval DEFAULT '30 s')
    RETURNS TABLE (entity_id text, claim_epoch bigint, lease_epoch bigint, attempt int, expires_at timestamptz, remaining interval)
    LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 10 SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_claim_work';
COMMENT ON FUNCTION reconcile.claim_work(text, text, int, interval) IS
'Gives up to max_items (1 to 1000) due entities of the loop to an outside worker for ttl, each as an attempt with an epoch of its own; act after COMMIT, and report with complete_work or fail_work in a later transaction. No row: nothing is due, or the loop is paused. 22004, 22023 bad argument; 0A000 above READ COMMITTED; 42501 no right; 42704 no such loop; RC002 the loop has a lease and holder_id does not hold it.';

CREATE FUNCTION reconcile.extend_work(loop_name text, entity_ids text[], claim_epochs bigint[], ttl interval DEFAULT '30 s')
    RETURNS TABLE (ord int, entity_id text, extended boolean, remaining interval)
    LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 10 SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_extend_work';
COMMENT ON FUNCTION reconcile.extend_work(text, text[], bigint[], interval) IS
'Gives live claims (at most 10000) another deadline, ttl from now; false for one that ran out or is another''s by now: stop its work. 22004, 22023, 2202E bad argument; 42501 no right; 42704 no such loop.';

CREATE FUNCTION reconcile.complete_work(loop_name text, entity_id text, claim_epoch bigint, requeue_after interval DEFAULT NULL) RETURNS void
    LANGUAGE c VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_complete_work';
COMMENT ON FUNCTION reconcile.complete_work(text, text, bigint, interval) IS
'Reports that a claim''s work succeeded, in the transaction of its writes and after them; looked at again after requeue_after (NULL or 0: the loop''s default). Triggers of the entity that this transaction made are dropped. 22004, 22023 bad argument; 42501 no right; 42704 no such loop; RC016 the claim was made in this transaction; RC017 the claim ran out or is another''s.';

CREATE FUNCTION reconcile.complete_works(loop_name text, entity_ids text[], claim_epochs bigint[], requeue_after interval[] DEFAULT NULL)
    RETURNS TABLE (ord int, entity_id text, completed boolean)
    LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 10 SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_complete_works';
COMMENT ON FUNCTION reconcile.complete_works(text, text[], bigint[], interval[]) IS
'complete_work for many (at most 10000), with completed = false instead of RC017: what was written for such a one must be undone. 22004, 22023, 2202E bad argument; 42501 no right; 42704 no such loop; RC016 a claim was made in this transaction.';

CREATE FUNCTION reconcile.fail_work(loop_name text, entity_id text, claim_epoch bigint, error text, permanent boolean DEFAULT false, retry_after interval DEFAULT NULL) RETURNS void
    LANGUAGE c VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_fail_work';
COMMENT ON FUNCTION reconcile.fail_work(text, text, bigint, text, boolean, interval) IS
'Reports that a claim''s work failed, with an error text (4 kB are kept): looked at again after retry_after or the loop''s backoff, or dead where it is permanent or was the last attempt. 22004, 22023 bad argument; 42501 no right; 42704 no such loop; RC016 the claim was made in this transaction; RC017 the claim ran out or is another''s.';

CREATE FUNCTION reconcile.next_due(loop_name text) RETURNS interval
    LANGUAGE c VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_next_due';
COMMENT ON FUNCTION reconcile.next_due(text) IS
'How long until claim_work can find something in the loop: 0 now, NULL nothing waits, or the loop is paused; a new trigger comes before that. 22004, 22023 bad argument; 42501 no right; 42704 no such loop.';
