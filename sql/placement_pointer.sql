--
-- Pointers of sessions (contract 9.1; scenarios N1 to N5).
--
\set VERBOSITY terse
SET client_min_messages = warning;
CREATE SCHEMA pointer_test;
SET search_path = pointer_test;
\getenv source PG_ABS_SRCDIR
\set placement :source '/sql/include/placement.sql'
\i :placement
INSERT INTO reconcile.host VALUES ('hp', current_user::regrole, current_user, now());
SELECT outcome FROM reconcile.create_session('t-p', 's', 'a', 'pooled', 'c');

-- never set; a clear of none mints none, also by who has the session
SELECT * FROM reconcile.get_pointer('t-p', 's', 'workspace_checkpoint');
SELECT * FROM reconcile.get_pointer('t-p', 'none', 'workspace_checkpoint');
SELECT give('t-p', 's', 'hp', 5, 'tok5');
SELECT * FROM reconcile.clear_pointer('t-p', 's', 'workspace_checkpoint', 5, 'tok5');
-- who has the session not
SELECT outcome FROM reconcile.set_pointer('t-p', 's', 'workspace_checkpoint', 5, 'wrong', 1, 'o');
SELECT outcome FROM reconcile.set_pointer('t-p', 's', 'workspace_checkpoint', 6, 'tok5', 1, 'o');
SELECT outcome FROM reconcile.set_pointer('t-p', 'none', 'workspace_checkpoint', 5, 'tok5', 1, 'o');
SELECT count(*) FROM reconcile.session_pointer WHERE tenant_id = 't-p';

-- N1: made, replaced; an equal sequence and an equal epoch are good (N2)
SELECT outcome, epoch, sequence, updated_at <= clock_timestamp() AS now FROM reconcile.set_pointer('t-p', 's', 'workspace_checkpoint', 5, 'tok5', 0, 'o0');
SELECT outcome, epoch, sequence FROM reconcile.set_pointer('t-p', 's', 'workspace_checkpoint', 5, 'tok5', 3, 'o3');
SELECT outcome, epoch, sequence FROM reconcile.set_pointer('t-p', 's', 'workspace_checkpoint', 5, 'tok5', 3, 'again');
SELECT outcome, epoch, sequence FROM reconcile.set_pointer('t-p', 's', 'workspace_checkpoint', 5, 'tok5', 2, 'older');
SELECT outcome, epoch, sequence, target FROM reconcile.get_pointer('t-p', 's', 'workspace_checkpoint');
-- roles are apart
SELECT outcome FROM reconcile.get_pointer('t-p', 's', 'runtime_checkpoint');
SELECT outcome, sequence FROM reconcile.set_pointer('t-p', 's', 'runtime_checkpoint', 5, 'tok5', 1, 'r1');

-- a later holder: the one before has lost its lease, and is behind by its epoch once the later one has written
SELECT give('t-p', 's', 'hp', 8, 'tok8');
SELECT outcome, epoch, sequence FROM reconcile.set_pointer('t-p', 's', 'workspace_checkpoint', 5, 'tok5', 9, 'late');
-- lease_lost comes before the sequence
SELECT outcome FROM reconcile.set_pointer('t-p', 's', 'workspace_checkpoint', 5, 'tok5', 1, 'late');
-- N2: a higher epoch does not turn the sequence back
SELECT outcome, epoch, sequence FROM reconcile.set_pointer('t-p', 's', 'workspace_checkpoint', 8, 'tok8', 2, 'back');
SELECT outcome, epoch, sequence FROM reconcile.set_pointer('t-p', 's', 'workspace_checkpoint', 8, 'tok8', 4, 'o4');
-- N1: stale in both ways, and without a lease: the epoch is told
SELECT outcome, epoch, sequence FROM reconcile.set_pointer('t-p', 's', 'workspace_checkpoint', 5, 'tok5', 1, 'late');
SELECT outcome, epoch, sequence FROM reconcile.clear_pointer('t-p', 's', 'workspace_checkpoint', 5, 'tok5');

-- N3: cleared, it keeps its marks; again, nothing is written
SELECT outcome, epoch, sequence FROM reconcile.clear_pointer('t-p', 's', 'workspace_checkpoint', 8, 'tok8');
SELECT outcome, epoch, sequence, target FROM reconcile.get_pointer('t-p', 's', 'workspace_checkpoint');
CREATE TABLE before AS SELECT p.xmin || ' ' || p.ctid AS version FROM reconcile.session_pointer p WHERE tenant_id = 't-p' AND role = 'workspace_checkpoint';
SELECT outcome, epoch, sequence FROM reconcile.clear_pointer('t-p', 's', 'workspace_checkpoint', 8, 'tok8');
SELECT p.xmin || ' ' || p.ctid = b.version AS nothing_written FROM before b, reconcile.session_pointer p WHERE tenant_id = 't-p' AND role = 'workspace_checkpoint';
SELECT outcome, sequence FROM reconcile.set_pointer('t-p', 's', 'workspace_checkpoint', 8, 'tok8', 3, 'older');
-- a later holder raises the epoch of what is cleared, and fences those in between
SELECT give('t-p', 's', 'hp', 11, 'tok11');
SELECT outcome, epoch, sequence FROM reconcile.clear_pointer('t-p', 's', 'workspace_checkpoint', 11, 'tok11');
SELECT outcome, epoch FROM reconcile.set_pointer('t-p', 's', 'workspace_checkpoint', 8, 'tok8', 9, 'late');
-- by what was never written, no epoch is known: the lease refuses
SELECT outcome, epoch FROM reconcile.set_pointer('t-p', 's', 'active_continuation', 8, 'tok8', 9, 'late');
SELECT lapse('t-p', 's');
SELECT outcome, epoch FROM reconcile.set_pointer('t-p', 's', 'workspace_checkpoint', 11, 'tok11', 9, 'late');
SELECT outcome, epoch FROM reconcile.clear_pointer('t-p', 's', 'runtime_checkpoint', 11, 'tok11');
SELECT outcome, epoch, target FROM reconcile.get_pointer('t-p', 's', 'runtime_checkpoint');

-- N5: what the host says of the checkpoint is its own
SELECT checkpoint_seq, observed_revision FROM reconcile.get_session('t-p', 's');

-- N4 and the fields
SELECT c.call, r.code, r.field, r.problem
  FROM (VALUES (1, $$set_pointer('t-p', 's', 'elsewhere', 11, 'tok11', 9, 'o')$$), (2, $$set_pointer('t-p', 's', NULL, 0, 'tok11', 9, 'o')$$),
               (3, $$set_pointer('t-p', 's', 'workspace_checkpoint', 0, 'tok11', 9, 'o')$$), (4, $$set_pointer('t-p', 's', 'workspace_checkpoint', 11, 'tok11', -1, 'o')$$),
               (5, $$set_pointer('t-p', 's', 'workspace_checkpoint', 11, 'tok11', 9, NULL)$$), (6, $$set_pointer('t-p', 's', 'workspace_checkpoint', 11, 'tok11', 9, '')$$),
               (7, $$set_pointer('t-p', 's', 'workspace_checkpoint', 11, 'tok11', 9, repeat('o', 1025))$$), (8, $$clear_pointer('t-p', 's', 'workspace_checkpoint', 0, 'tok11')$$),
               (9, $$clear_pointer('t-p', 's', 'workspace_checkpoint', 11, NULL)$$), (10, $$get_pointer('t-p', 's', 'elsewhere')$$)) c (n, call),
       field_refusal('SELECT * FROM reconcile.' || c.call) r ORDER BY c.n;

-- the marks stay, whoever tries
SELECT c.call, r.code, r.message
  FROM (VALUES (1, $$UPDATE reconcile.session_pointer SET lease_epoch = 1 WHERE tenant_id = 't-p'$$), (2, $$UPDATE reconcile.session_pointer SET sequence = 0 WHERE tenant_id = 't-p' AND sequence > 0$$),
               (3, $$DELETE FROM reconcile.session_pointer WHERE tenant_id = 't-p'$$), (4, $$TRUNCATE reconcile.session_pointer$$)) c (n, call), field_refusal(c.call) r ORDER BY c.n;

-- who may see a pointer is who may see the session
CREATE ROLE pointer_test_nobody;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA reconcile TO pointer_test_nobody;
SET ROLE pointer_test_nobody;
SELECT outcome FROM reconcile.get_pointer('t-p', 's', 'runtime_checkpoint');
SELECT outcome FROM reconcile.set_pointer('t-p', 's', 'runtime_checkpoint', 11, 'tok11', 9, 'o');
RESET ROLE;
DROP OWNED BY pointer_test_nobody;
DROP ROLE pointer_test_nobody;
DELETE FROM reconcile.host WHERE host_id = 'hp';
SELECT clean('t-p');
DROP SCHEMA pointer_test CASCADE;
