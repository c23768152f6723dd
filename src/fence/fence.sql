-- fence.sql: fenced writes, and the state that they make

CREATE TABLE reconcile.resource (
    reconciler_id text COLLATE "C" NOT NULL,
    entity_id     text COLLATE "C" NOT NULL,
    last_epoch    bigint NOT NULL CHECK (last_epoch >= 0),
    revision      bigint NOT NULL,
    state         jsonb NOT NULL,
    updated_at    timestamptz NOT NULL,
    PRIMARY KEY (reconciler_id, entity_id)
) USING heap WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05);
COMMENT ON TABLE reconcile.resource IS
'What fenced writes made of each entity, the highest epoch that wrote it, and how many did.';
SELECT pg_catalog.pg_extension_config_dump('reconcile.resource', '');

CREATE FUNCTION reconcile.json_merge_patch(state jsonb, mutation jsonb) RETURNS jsonb
    LANGUAGE c IMMUTABLE PARALLEL SAFE
    AS 'MODULE_PATHNAME', 'reconcile_json_merge_patch';
COMMENT ON FUNCTION reconcile.json_merge_patch(jsonb, jsonb) IS
'What an RFC 7396 merge patch makes of a state (NULL: an empty object). 22004 no mutation; 22023 it is nested deeper than 64 levels.';

-- No SET clause on the three hot ones: their C is fully qualified.
CREATE FUNCTION reconcile.apply_fenced(reconciler_id text, entity_id text, epoch bigint, mutation jsonb)
    RETURNS boolean
    LANGUAGE c VOLATILE PARALLEL UNSAFE
    AS 'MODULE_PATHNAME', 'reconcile_apply_fenced';
COMMENT ON FUNCTION reconcile.apply_fenced(text, text, bigint, jsonb) IS
'Merges the mutation (RFC 7396; at most 1 MiB, 64 levels) into the entity''s state if no higher epoch was seen; false, without effect, when the epoch is stale or its term has lapsed. RC005 the epoch was never granted; 53400 over 1,000 leases; 22004, 22023 bad argument; 42501 no right; 25006 on a standby.';

CREATE FUNCTION reconcile.apply_fenced_many(reconciler_id text, entity_ids text[], epoch bigint, mutations jsonb[])
    RETURNS TABLE (ord int, entity_id text, accepted boolean)
    LANGUAGE c VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_apply_fenced_many';
COMMENT ON FUNCTION reconcile.apply_fenced_many(text, text[], bigint, jsonb[]) IS
'Does what apply_fenced does for up to 10,000 pairs of entity and mutation at one epoch, one row for each in the order given (ord from 1); an entity that comes twice gets its mutations in that order. 22004 NULL or a NULL element; 2202E unequal lengths or more than one dimension; others as apply_fenced.';

CREATE FUNCTION reconcile.bind_lease(reconciler_id text, holder_id text, epoch bigint) RETURNS void
    LANGUAGE c VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_bind_lease';
COMMENT ON FUNCTION reconcile.bind_lease(text, text, bigint) IS
'Binds this transaction to a live term: what it commits comes before the next term''s grant. RC002 the term is over or not the caller''s; 53400 over 1,000 leases; 22004, 22023 bad argument; 42501 no right; 25006 on a standby.';

CREATE FUNCTION reconcile.fenced_epoch(reconciler_id text DEFAULT NULL) RETURNS bigint
    LANGUAGE c VOLATILE PARALLEL UNSAFE
    AS 'MODULE_PATHNAME', 'reconcile_fenced_epoch';
COMMENT ON FUNCTION reconcile.fenced_epoch(text) IS
'The epoch that this transaction is bound to, NULL when it is not; without an argument that of the run, or of the only lease bound. 22023 bad argument, or several are bound.';

CREATE FUNCTION reconcile.fenced_write(entity_id text, mutation jsonb) RETURNS void
    LANGUAGE c VOLATILE PARALLEL UNSAFE
    AS 'MODULE_PATHNAME', 'reconcile_fenced_write';
COMMENT ON FUNCTION reconcile.fenced_write(text, jsonb) IS
'Merges the mutation (RFC 7396; at most 1 MiB, 64 levels) into the entity''s state under the bound epoch. RC006 no lease, or no single one, is bound; RC003 the epoch is stale; 22004, 22023 bad argument; 25006 on a standby.';

CREATE VIEW reconcile.resources WITH (security_barrier) AS
    SELECT r.reconciler_id COLLATE "default" AS reconciler_id,
           r.entity_id COLLATE "default" AS entity_id,
           r.last_epoch, r.revision, r.state, r.updated_at
      FROM reconcile.resource r
     WHERE reconcile.may_observe(r.reconciler_id);
COMMENT ON VIEW reconcile.resources IS
'What fenced writes made of each entity of the reconciler ids that the caller may observe.';
