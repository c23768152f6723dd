--
-- What health and metrics tell of placement: sessions that find no host with room, offers that nobody ends; to who may observe all.
--
\set VERBOSITY terse
SET client_min_messages = warning;
BEGIN;
-- what others have left
DELETE FROM reconcile.session_search;
DELETE FROM reconcile.session_offer WHERE state = 'offered';
CREATE SCHEMA place_sight;
SET search_path = place_sight;
\getenv source PG_ABS_SRCDIR
\set hosts :source '/sql/include/hosts.sql'
\i :hosts
CREATE ROLE place_sight_some;
CREATE ROLE place_sight_all;
SELECT reconcile.grant_access('place_sight_some', 'observe', 'placement'), reconcile.grant_access('place_sight_all', 'observe');
GRANT USAGE ON SCHEMA place_sight TO PUBLIC;
CREATE FUNCTION seen(OUT waiting float8, OUT overdue float8, OUT health text) LANGUAGE sql AS $$
    SELECT (SELECT value FROM reconcile.metrics() WHERE name = 'reconcile_sessions_waiting'), (SELECT value FROM reconcile.metrics() WHERE name = 'reconcile_offers_overdue'),
           (SELECT string_agg(status || ': ' || detail, '; ' ORDER BY detail) FROM reconcile.health WHERE check_name = 'placement');
$$;
CREATE FUNCTION add(session text) RETURNS text LANGUAGE sql AS $$
    SELECT c.outcome || ' ' || a.outcome FROM reconcile.create_session('t-sight', session, 'agent', 'pooled', 'made', 'rt') c,
           LATERAL reconcile.admit_session_command('t-sight', session, 'do', 'input', 'x', apply_deadline_in => CASE WHEN c.outcome <> '' THEN interval '1 h' END) a;
$$;
CREATE FUNCTION place(session text) RETURNS text LANGUAGE sql AS $$
    SELECT outcome FROM reconcile.place_session('t-sight', session);
$$;
SELECT * FROM seen();
-- what waits is counted at once, and found after a minute
SELECT add(s), place(s) FROM unnest('{a,b,c}'::text[]) s;
SELECT * FROM seen();
UPDATE reconcile.session_search SET waits_since = waits_since - interval '61 s' WHERE tenant_id = 't-sight' AND session_id IN ('a', 'b');
SELECT * FROM seen();
-- one whose commands are over waits for nothing
SELECT outcome FROM reconcile.reject_session_command('t-sight', 'a', 'do', NULL, NULL, 1);
SELECT * FROM seen();
SET ROLE place_sight_all;
SELECT * FROM seen();
SET ROLE place_sight_some;
SELECT * FROM seen();
RESET ROLE;
-- who was asked does not wait; and an offer is overdue a minute after its end
SELECT reconcile.register_host('sight-h', current_user), (publish('sight-h', 1, 5)).outcome;
SELECT place(s) FROM unnest('{b,c}'::text[]) s;
SELECT * FROM seen();
UPDATE reconcile.session_offer SET expires_at = clock_timestamp() - interval '50 s', made_at = made_at - interval '2 min' WHERE tenant_id = 't-sight';
SELECT * FROM seen();
UPDATE reconcile.session_offer SET expires_at = clock_timestamp() - interval '61 s' WHERE tenant_id = 't-sight' AND session_id = 'b';
SELECT * FROM seen();
SELECT place('b');
SELECT * FROM seen();

ROLLBACK;
RESET client_min_messages;
