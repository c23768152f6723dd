-- views.sql: what operators see of loops and their work
--
-- Each view first asks, once for a loop, whether the caller may observe it and
-- whether he may see error texts.  The clock is read once for a query, and not
-- before the marks of this transaction were made.

CREATE VIEW reconcile.work WITH (security_barrier) AS
WITH visible AS MATERIALIZED (
    SELECT l.loop_name, reconcile.may_see_errors(l.loop_name) AS may_see_errors
      FROM reconcile.loop l
     WHERE reconcile.may_observe(l.loop_name)
), clock AS MATERIALIZED (
    SELECT pg_catalog.clock_timestamp() AS now
), marked AS MATERIALIZED (
    SELECT m.loop_name, m.entity_id,
           pg_catalog.min(m.due_at) FILTER (WHERE m.kind <> 'c') AS due_at,
           pg_catalog.min(m.due_at) FILTER (WHERE m.kind = 'c') AS deadline,
           pg_catalog.bool_or(m.kind = 't') AS triggered,
           pg_catalog.max(m.made_at) FILTER (WHERE m.kind IN ('l', 'b')) AS ran_at
      FROM reconcile.mark m
      LEFT JOIN reconcile.entity e
             ON m.kind = 'c' AND e.loop_name = m.loop_name AND e.entity_id = m.entity_id AND e.claim_epoch = m.number
     -- the deadline of a claim that was reported says nothing
     WHERE m.kind <> 'c' OR e.claim_epoch IS NOT NULL
     GROUP BY m.loop_name, m.entity_id
), running AS MATERIALIZED (
    SELECT r.loop_name, r.entity_id, pg_catalog.max(r.started_at) AS started_at
      FROM (SELECT n.loop_name, n.entity_id, n.started_at FROM reconcile.running() n
            UNION ALL
            SELECT e.loop_name, e.entity_id, e.claimed_at
              FROM reconcile.entity e
              JOIN reconcile.loop l ON l.loop_name = e.loop_name
              CROSS JOIN clock c
              LEFT JOIN reconcile.standing_lease t ON t.reconciler_id = e.loop_name
             WHERE e.claim_expires_at > c.now
               AND (l.lease_ttl_ms IS NULL OR (t.epoch = e.claim_lease_epoch AND t.expires_at > c.now))) r
     GROUP BY r.loop_name, r.entity_id
), known AS (
    SELECT m.loop_name, m.entity_id FROM marked m
    UNION SELECT e.loop_name, e.entity_id FROM reconcile.entity e WHERE e.died_of IS NOT NULL
    UNION SELECT r.loop_name, r.entity_id FROM running r
), judged AS (
    SELECT v.loop_name, k.entity_id, COALESCE(m.due_at, CASE WHEN r.loop_name IS NULL THEN m.deadline END) AS due_at,
           v.may_see_errors, e.failures, e.last_error, e.last_sqlstate,
           GREATEST(e.last_failed_at, e.claimed_at, m.ran_at, r.started_at) AS last_run_at,
           CASE
               WHEN r.loop_name IS NOT NULL THEN 'running'
               -- a fresh trigger will run it, unless it died of crashes
               WHEN e.died_of IS NOT NULL AND (e.died_of = 'crash' OR m.triggered IS NOT TRUE) THEN 'dead'
               WHEN LEAST(m.due_at, m.deadline) <= c.now THEN 'ready'
               WHEN e.failures > 0 THEN 'retrying'
               ELSE 'waiting'
           END AS state
      FROM visible v
      JOIN known k ON k.loop_name = v.loop_name
      CROSS JOIN clock c
      LEFT JOIN marked m ON m.loop_name = k.loop_name AND m.entity_id = k.entity_id
      LEFT JOIN reconcile.entity e ON e.loop_name = k.loop_name AND e.entity_id = k.entity_id
      LEFT JOIN running r ON r.loop_name = k.loop_name AND r.entity_id = k.entity_id
)
SELECT j.loop_name COLLATE "default" AS loop_name,
       j.entity_id COLLATE "default" AS entity_id,
       j.state,
       CASE WHEN j.state <> 'dead' THEN j.due_at END AS due_at,
       COALESCE(j.failures, 0) AS failures,
       CASE WHEN j.may_see_errors THEN j.last_error END AS last_error,
       j.last_sqlstate,
       j.last_run_at
  FROM judged j;
COMMENT ON VIEW reconcile.work IS
'Entities that wait, run or are dead, of the loops that the caller may observe; state is ready, running, waiting, retrying or dead. last_error needs "operate", or is for the loop''s owner.';

CREATE VIEW reconcile.dead_letters WITH (security_barrier) AS
WITH visible AS MATERIALIZED (
    SELECT l.loop_name, reconcile.may_see_errors(l.loop_name) AS may_see_errors
      FROM reconcile.loop l
     WHERE reconcile.may_observe(l.loop_name)
)
SELECT e.loop_name COLLATE "default" AS loop_name,
       e.entity_id COLLATE "default" AS entity_id,
       e.failures,
       CASE WHEN v.may_see_errors THEN e.last_error END AS last_error,
       e.last_sqlstate,
       e.last_failed_at AS died_at
  FROM visible v
  JOIN reconcile.entity e ON e.loop_name = v.loop_name
 WHERE e.died_of IS NOT NULL;
COMMENT ON VIEW reconcile.dead_letters IS
'Entities that no run will look at before revive() or a fresh trigger, with the last error; of the loops that the caller may observe.';

CREATE VIEW reconcile.loops WITH (security_barrier) AS
WITH visible AS MATERIALIZED (
    SELECT l.* FROM reconcile.loop l WHERE reconcile.may_observe(l.loop_name)
), here AS MATERIALIZED (
    SELECT h.home FROM reconcile.here() h
), clock AS MATERIALIZED (
    SELECT pg_catalog.clock_timestamp() AS now
), shown AS MATERIALIZED (
    -- what the dispatcher has in memory
    SELECT * FROM reconcile.loop_counts()
), counted AS MATERIALIZED (
    -- read from the marks only where there is a loop that no dispatcher has
    SELECT w.loop_name,
           pg_catalog.count(*) FILTER (WHERE w.state = 'ready') AS ready,
           pg_catalog.count(*) FILTER (WHERE w.state = 'running') AS running,
           pg_catalog.count(*) FILTER (WHERE w.state = 'waiting') AS waiting,
           pg_catalog.count(*) FILTER (WHERE w.state = 'retrying') AS retrying,
           pg_catalog.min(w.due_at) FILTER (WHERE w.state = 'ready') AS oldest_due_at
      FROM reconcile.work w
     WHERE EXISTS (SELECT FROM visible v LEFT JOIN shown s ON s.loop_name = v.loop_name WHERE s.loop_name IS NULL)
     GROUP BY w.loop_name
)
SELECT v.loop_name COLLATE "default" AS loop_name,
       pg_catalog.pg_get_userbyid(v.owner) AS owner,
       v.reconciler,
       v.lister,
       v.resync_every_ms * interval '1 ms' AS resync_every,
       v.default_requeue_ms * interval '1 ms' AS default_requeue,
       v.concurrency,
       v.backoff_base_ms * interval '1 ms' AS backoff_base,
       v.backoff_max_ms * interval '1 ms' AS backoff_max,
       v.backoff_jitter,
       v.max_attempts,
       v.timeout_ms * interval '1 ms' AS timeout,
       v.lease_ttl_ms * interval '1 ms' AS lease_ttl,
       v.renew_every_ms * interval '1 ms' AS renew_every,
       v.repository,
       v.enabled,
       v.paused OR v.home <> h.home AS paused,
       t.epoch AS leader_epoch,
       t.holder_id COLLATE "default" AS leader,
       COALESCE(s.ready, n.ready, 0) AS ready,
       COALESCE(s.running, n.running, 0) AS running,
       COALESCE(s.waiting, n.waiting, 0) AS waiting,
       COALESCE(s.retrying, n.retrying, 0) AS retrying,
       COALESCE(s.dead, (SELECT pg_catalog.count(*) FROM reconcile.entity e
                          WHERE e.loop_name = v.loop_name AND e.died_of IS NOT NULL)) AS dead,
       CASE WHEN s.loop_name IS NULL THEN GREATEST(c.now - n.oldest_due_at, interval '0')
            ELSE GREATEST(pg_catalog.clock_timestamp() - s.oldest_due_at, interval '0') END AS oldest_due_age
  FROM visible v
 CROSS JOIN here h
 CROSS JOIN clock c
  LEFT JOIN shown s ON s.loop_name = v.loop_name
  LEFT JOIN counted n ON n.loop_name = v.loop_name AND s.loop_name IS NULL
  LEFT JOIN reconcile.standing_lease t ON t.reconciler_id = v.loop_name AND t.expires_at > c.now;
COMMENT ON VIEW reconcile.loops IS
'Loops that the caller may observe: their options, the live term of their lease, how many entities are in each state, and how long the oldest has been due.';
