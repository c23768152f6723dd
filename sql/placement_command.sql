--
-- Commands for sessions (contract 7; scenarios L, M12, M13, M16).
--
\set VERBOSITY terse
SET client_min_messages = warning;
CREATE SCHEMA command_test;
SET search_path = command_test;
\getenv source PG_ABS_SRCDIR
\set placement :source '/sql/include/placement.sql'
\i :placement
SET lock_timeout = '30 s';
INSERT INTO reconcile.host VALUES ('hm', current_user::regrole, current_user, now());
SELECT outcome FROM reconcile.create_session('t-m', 's', 'a', 'pooled', 'c');

--
-- Admission (7.3, L21)
--
SELECT * FROM reconcile.admit_session_command('t-m', 'none', 'c', 'input', '\x01');
SELECT outcome, accepted_order, runtime_command_id ~ '^[0-9a-z]{26}$' AS minted, state, revision, apply_deadline > clock_timestamp() + '4 min' AS deadline, field
  FROM reconcile.admit_session_command('t-m', 's', 'c1', 'input', 'payload', requires => '{b,a,b}');
-- who says no deadline has the horizon of the settings; what remains of it comes with it, also to who asks again
SELECT c.outcome, c.apply_deadline - s.accepted_at AS deadline, c.remaining BETWEEN '4 min' AND '5 min' AS remaining
  FROM reconcile.session_command s, reconcile.admit_session_command('t-m', 's', 'c1', 'input', 'payload', requires => '{a,b}') c WHERE s.tenant_id = 't-m';
CREATE TABLE first AS SELECT runtime_command_id, apply_deadline FROM reconcile.session_command WHERE tenant_id = 't-m' AND command_id = 'c1';
-- the same one again: the first one's id and times, whatever was sent; requires are a set
SELECT outcome, accepted_order, c.runtime_command_id = f.runtime_command_id AS id, c.apply_deadline = f.apply_deadline AS deadline
  FROM first f, reconcile.admit_session_command('t-m', 's', 'c1', 'input', 'payload', apply_deadline_in => '1 h', requires => '{a,b}', runtime_command_id => 'mine') c;
-- another payload, kind or requirement is another command; nothing of the first is told
SELECT * FROM reconcile.admit_session_command('t-m', 's', 'c1', 'input', 'payloae', requires => '{a,b}');
SELECT * FROM reconcile.admit_session_command('t-m', 's', 'c1', 'input', 'longer payload', requires => '{a,b}');
SELECT * FROM reconcile.admit_session_command('t-m', 's', 'c1', 'other', 'payload', requires => '{a,b}');
SELECT * FROM reconcile.admit_session_command('t-m', 's', 'c1', 'input', 'payload', requires => '{a}');
-- two that differ: the first member is told
SELECT outcome, field FROM reconcile.admit_session_command('t-m', 's', 'c1', 'other', 'payloae');
-- the payload may be elsewhere: what it is, is its digest and size
SELECT outcome, accepted_order FROM reconcile.admit_session_command('t-m', 's', 'c1', 'input', payload_reference => 'object/1', payload_digest => sha256('payload'), payload_size => 7, requires => '{a,b}');
SELECT outcome, accepted_order, runtime_command_id FROM reconcile.admit_session_command('t-m', 's', 'c2', 'input', payload_reference => 'object/2', payload_digest => sha256('big'), payload_size => 10000000000, runtime_command_id => 'rt-2');
-- an empty payload is one; the same id in another session is another command
SELECT outcome, accepted_order FROM reconcile.admit_session_command('t-m', 's', 'c3', 'input', '');
SELECT count(*) FROM reconcile.create_session('t-m', 's2', 'a', 'pooled', 'c');
SELECT outcome, accepted_order FROM reconcile.admit_session_command('t-m', 's2', 'c1', 'other', 'x');
-- an order is that of the last command and one more: the session's row is not written, however many there are
CREATE FUNCTION version_of(session text) RETURNS text LANGUAGE sql AS $$ SELECT s.xmin || ' ' || s.ctid FROM reconcile.session s WHERE tenant_id = 't-m' AND session_id = session $$;
SELECT version_of('s2') AS version \gset
BEGIN;
SELECT min(accepted_order), max(accepted_order), count(DISTINCT accepted_order), bool_and(accepted_order = g + 1) AS in_order
  FROM generate_series(1, 1000) g, reconcile.admit_session_command('t-m', 's2', 'many' || g, 'input', 'x');
COMMIT;
SELECT version_of('s2') = :'version' AS nothing_written;
-- what is aborted takes no place in the order
BEGIN;
SELECT outcome, accepted_order FROM reconcile.admit_session_command('t-m', 's', 'c4', 'input', 'x');
ROLLBACK;
SELECT outcome, accepted_order FROM reconcile.admit_session_command('t-m', 's', 'c5', 'input', 'x');
SELECT outcome FROM reconcile.admit_session_command('t-m', 's', repeat('c', 256), repeat('k', 256), decode(repeat('00', 65536), 'hex'));
-- in order, behind the last one that was read (7.9)
SELECT accepted_order, left(command_id, 4) AS command_id, left(kind, 5) AS kind, length(payload) AS payload, payload_reference, payload_size, requires, state, revision
  FROM reconcile.session_commands('t-m', 's');
SELECT accepted_order, payload_digest = sha256('payload') AS digest, remaining BETWEEN '1 min' AND '5 min' AS remaining, claim_remaining FROM reconcile.session_commands('t-m', 's', 0, 1);
SELECT accepted_order, runtime_command_id FROM reconcile.session_commands('t-m', 's', 1, 1);
SELECT count(*) FROM reconcile.session_commands('t-m', 's', 5);
SELECT count(*) FROM reconcile.session_commands('t-m', 'none');
SELECT pending_commands FROM reconcile.get_session('t-m', 's');

SELECT c.call, r.code, r.field, r.problem
  FROM (VALUES (1, $$admit_session_command('t-m', 's', '', 'k', 'x')$$), (2, $$admit_session_command('t-m', 's', 'x', repeat('k', 257), 'x')$$),
               (3, $$admit_session_command('t-m', 's', 'x', 'k')$$), (4, $$admit_session_command('t-m', 's', 'x', 'k', 'x', 'ref')$$),
               (5, $$admit_session_command('t-m', 's', 'x', 'k', decode(repeat('00', 65537), 'hex'))$$), (6, $$admit_session_command('t-m', 's', 'x', 'k', payload_reference => 'r')$$),
               (7, $$admit_session_command('t-m', 's', 'x', 'k', payload_reference => 'r', payload_digest => '\x01', payload_size => 1)$$),
               (8, $$admit_session_command('t-m', 's', 'x', 'k', payload_reference => 'r', payload_digest => sha256(''))$$),
               (9, $$admit_session_command('t-m', 's', 'x', 'k', payload_reference => '', payload_digest => sha256(''), payload_size => 0)$$),
               (10, $$admit_session_command('t-m', 's', 'x', 'k', payload_reference => 'r', payload_digest => sha256(''), payload_size => -1)$$),
               (11, $$admit_session_command('t-m', 's', 'x', 'k', 'x', payload_size => 1)$$), (12, $$admit_session_command('t-m', 's', 'x', 'k', 'x', apply_deadline_in => '0')$$),
               (13, $$admit_session_command('t-m', 's', 'x', 'k', 'x', apply_deadline_in => '367 days')$$), (14, $$admit_session_command('t-m', 's', 'x', 'k', 'x', requires => '{""}')$$),
               (15, $$session_commands('t-m', 's', -1)$$), (16, $$session_commands('t-m', 's', 0, 0)$$), (17, $$session_commands('t-m', 's', 0, 1001)$$)) c (n, call),
       field_refusal('SELECT * FROM reconcile.' || c.call) r ORDER BY c.n;
SELECT clean('t-m');

--
-- Steps. A command is brought to a state, and a call is made of it; each row satisfies
-- the refusal that is expected, and those that come after it.
--
SELECT outcome FROM reconcile.create_session('t-m', 's', 'a', 'pooled', 'c');
-- The epochs 3, 5 and 8 were given; 5 has the session, unless the row says otherwise.
CREATE FUNCTION hold(epoch bigint) RETURNS void LANGUAGE sql AS $$ SELECT give('t-m', 's', 'hm', epoch, 'tok' || epoch) $$;
SELECT hold(3), hold(8), hold(5);
-- A command of its own in a state; its claim is of epoch 5 and live, and its deadline is ahead.
CREATE FUNCTION make(id text, state text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    r record;
BEGIN
    SELECT * INTO STRICT r FROM reconcile.admit_session_command('t-m', 's', id, 'input', 'x', apply_deadline_in => '1 h');
    IF state <> 'pending' AND state <> 'rejected' THEN
        SELECT * INTO STRICT r FROM reconcile.claim_session_command('t-m', 's', id, 5, 'tok5', 1, '10 min');
    END IF;
    IF state NOT IN ('pending', 'claimed', 'rejected') THEN
        SELECT * INTO STRICT r FROM reconcile.begin_attempt('t-m', 's', id, 5, 'tok5', 2, 'try');
    END IF;
    IF state = 'applied' THEN
        SELECT * INTO STRICT r FROM reconcile.settle_attempt('t-m', 's', id, 5, 'tok5', 3, 'try', 'applied', 'ev', 1);
    ELSIF state = 'rejected' THEN
        SELECT * INTO STRICT r FROM reconcile.reject_session_command('t-m', 's', id, NULL, NULL, 1);
    ELSIF state = 'not_applied' THEN
        PERFORM hold(8);
        SELECT * INTO STRICT r FROM reconcile.settle_attempt('t-m', 's', id, 8, 'tok8', 3, 'try', 'not_applied');
        PERFORM hold(5);
    END IF;
END $$;
-- Time passes for it: its claim, its deadline or both are over; marks of the past are nobody's to rewrite but a test's.
CREATE FUNCTION pass(id text, what text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF what = '' THEN
        RETURN;
    END IF;
    ALTER TABLE reconcile.session_command DISABLE TRIGGER USER;
    IF what ~ 'claim' THEN
        UPDATE reconcile.session_command SET claim_expires_at = clock_timestamp() WHERE tenant_id = 't-m' AND command_id = id;
    END IF;
    IF what ~ 'deadline' THEN
        UPDATE reconcile.session_command SET accepted_at = now() - interval '2 h', apply_deadline = clock_timestamp() WHERE tenant_id = 't-m' AND command_id = id;
    END IF;
    ALTER TABLE reconcile.session_command ENABLE ALWAYS TRIGGER session_command_kept;
    ALTER TABLE reconcile.session_command ENABLE ALWAYS TRIGGER session_command_truncated;
    ALTER TABLE reconcile.session_command ENABLE ALWAYS TRIGGER session_command_settled;
END $$;
CREATE FUNCTION revision_of(id text) RETURNS bigint LANGUAGE sql AS $$ SELECT revision FROM reconcile.session_command WHERE tenant_id = 't-m' AND command_id = id $$;
CREATE FUNCTION version(id text) RETURNS text LANGUAGE sql AS $$ SELECT c.xmin || ' ' || c.ctid FROM reconcile.session_command c WHERE tenant_id = 't-m' AND command_id = id $$;
CREATE FUNCTION claim_end(id text) RETURNS timestamptz LANGUAGE sql AS $$ SELECT claim_expires_at FROM reconcile.session_command WHERE tenant_id = 't-m' AND command_id = id $$;

-- state: of the command; passed: what is over; holder: who has the session (0: its lease is over); call: on the command "ID"
CREATE TABLE step (n serial, state text, passed text DEFAULT '', holder bigint DEFAULT 5, call text, note text);
CREATE FUNCTION run(s step, OUT outcome text, OUT revision bigint, OUT state text, OUT claim_epoch bigint, OUT remains boolean, OUT field text, OUT written boolean)
LANGUAGE plpgsql AS $$
DECLARE
    id text := 'step-' || s.n;
    before text;
BEGIN
    PERFORM make(id, s.state);
    PERFORM pass(id, s.passed);
    IF s.holder = 0 THEN
        PERFORM lapse('t-m', 's');
    ELSE
        PERFORM hold(s.holder);
    END IF;
    before := version(id);
    EXECUTE 'SELECT r.outcome, r.revision, r.state, r.claim_epoch, r.remaining > ''0'', r.field FROM reconcile.' || replace(replace(s.call, 'ID', quote_literal(id)), 'REV', revision_of(id)::text) || ' r'
       INTO STRICT outcome, revision, state, claim_epoch, remains, field;
    written := version(id) <> before;
    PERFORM hold(5);
END $$;

-- claim: not_found, conflict, terminal, state, epoch, lease_lost, repeated, deadline, claim_held
INSERT INTO step (state, passed, holder, call, note) VALUES
    ('pending', '', 5, $$claim_session_command('t-m', 's', 'none', 5, 'tok5', 9)$$, 'L6: no such command'),
    ('applied', '', 5, $$claim_session_command('t-m', 's', ID, 5, 'wrong', 9)$$, 'who was never given it: before conflict, terminal'),
    ('applied', '', 0, $$claim_session_command('t-m', 's', ID, 3, 'tok3', 9)$$, 'conflict before terminal, epoch, lease_lost'),
    ('applied', '', 0, $$claim_session_command('t-m', 's', ID, 3, 'tok3', REV)$$, 'terminal before state, epoch, lease_lost'),
    ('rejected', 'deadline', 5, $$claim_session_command('t-m', 's', ID, 5, 'tok5', REV)$$, 'L17: terminal before deadline'),
    ('not_applied', '', 5, $$claim_session_command('t-m', 's', ID, 5, 'tok5', REV)$$, 'terminal'),
    ('applying', 'claim deadline', 0, $$claim_session_command('t-m', 's', ID, 3, 'tok3', REV)$$, 'L5: state before epoch, lease_lost, deadline'),
    ('applying', '', 5, $$claim_session_command('t-m', 's', ID, 5, 'tok5', REV, repeats => claim_end(ID))$$, 'state before repeated'),
    ('claimed', 'deadline', 0, $$claim_session_command('t-m', 's', ID, 3, 'tok3', REV)$$, 'L5: epoch before lease_lost, deadline, claim_held'),
    ('claimed', 'claim deadline', 3, $$claim_session_command('t-m', 's', ID, 3, 'tok3', REV)$$, 'epoch: also where the claim is over'),
    ('claimed', 'deadline', 0, $$claim_session_command('t-m', 's', ID, 5, 'tok5', REV, repeats => claim_end(ID))$$, 'lease_lost before repeated, deadline, claim_held'),
    ('claimed', 'deadline', 5, $$claim_session_command('t-m', 's', ID, 5, 'tok5', REV, repeats => claim_end(ID))$$, 'L2: repeated past the deadline, nothing written'),
    ('claimed', '', 5, $$claim_session_command('t-m', 's', ID, 5, 'tok5', REV, '1 h', claim_end(ID) AT TIME ZONE 'UTC' AT TIME ZONE 'UTC')$$, 'L2: the same instant'),
    ('claimed', 'deadline', 5, $$claim_session_command('t-m', 's', ID, 5, 'tok5', REV, '10 min')$$, 'L5: deadline before claim_held'),
    ('claimed', 'deadline', 8, $$claim_session_command('t-m', 's', ID, 8, 'tok8', REV)$$, 'deadline: also for a later holder'),
    ('claimed', 'claim deadline', 5, $$claim_session_command('t-m', 's', ID, 5, 'tok5', REV, repeats => claim_end(ID))$$, 'deadline: one that is over is not repeated'),
    ('claimed', '', 5, $$claim_session_command('t-m', 's', ID, 5, 'tok5', REV, '1 h')$$, 'L3: it is not renewed'),
    ('claimed', '', 5, $$claim_session_command('t-m', 's', ID, 5, 'tok5', REV, '1 h', claim_end(ID) + interval '1 us')$$, 'L3: of another end'),
    ('pending', 'deadline', 5, $$claim_session_command('t-m', 's', ID, 5, 'tok5', REV)$$, 'deadline: at its instant it is past'),
    ('pending', '', 5, $$claim_session_command('t-m', 's', ID, 5, 'tok5', REV, '1 h')$$, 'L1: claimed'),
    ('claimed', 'claim', 5, $$claim_session_command('t-m', 's', ID, 5, 'tok5', REV)$$, 'L4: one that is over is claimed anew'),
    ('claimed', '', 8, $$claim_session_command('t-m', 's', ID, 8, 'tok8', REV)$$, 'L4: a later holder takes a live one');
SELECT s.n, s.state AS before, s.passed, s.holder, s.note, r.* FROM step s, run(s) r ORDER BY s.n;

-- begin: not_found, conflict, terminal, state, epoch, lease_lost, claim_lost
TRUNCATE step;
INSERT INTO step (state, passed, holder, call, note) VALUES
    ('claimed', '', 5, $$begin_attempt('t-m', 's', ID, 5, 'wrong', 9, 'try')$$, 'not_found before conflict'),
    ('applied', '', 0, $$begin_attempt('t-m', 's', ID, 3, 'tok3', 9, 'try')$$, 'conflict before terminal, epoch, lease_lost'),
    ('rejected', '', 0, $$begin_attempt('t-m', 's', ID, 3, 'tok3', REV, 'try')$$, 'L8: terminal before state, lease_lost'),
    ('applied', '', 0, $$begin_attempt('t-m', 's', ID, 3, 'tok3', REV, 'try')$$, 'L8: terminal before epoch, lease_lost'),
    ('pending', '', 0, $$begin_attempt('t-m', 's', ID, 3, 'tok3', REV, 'try')$$, 'L8: state before lease_lost'),
    ('applying', 'claim', 0, $$begin_attempt('t-m', 's', ID, 3, 'tok3', REV, 'other')$$, 'L8: state before epoch, lease_lost, claim_lost'),
    ('claimed', 'claim', 0, $$begin_attempt('t-m', 's', ID, 3, 'tok3', REV, 'try')$$, 'L8: epoch before lease_lost, claim_lost'),
    ('claimed', 'claim', 0, $$begin_attempt('t-m', 's', ID, 8, 'tok8', REV, 'try')$$, 'lease_lost before claim_lost'),
    ('claimed', 'claim', 8, $$begin_attempt('t-m', 's', ID, 8, 'tok8', REV, 'try')$$, 'L8: whose claim it is before whether it is over'),
    ('claimed', 'claim deadline', 5, $$begin_attempt('t-m', 's', ID, 5, 'tok5', REV, 'try')$$, 'L8: it is over'),
    ('claimed', 'deadline', 5, $$begin_attempt('t-m', 's', ID, 5, 'tok5', REV, 'try')$$, 'a live claim has won against the deadline'),
    ('applying', '', 5, $$begin_attempt('t-m', 's', ID, 5, 'tok5', 2, 'try')$$, 'L8: whose answer was lost learns the revision');
SELECT s.n, s.state AS before, s.passed, s.holder, s.note, r.* FROM step s, run(s) r ORDER BY s.n;

-- settle: not_found, conflict, repeated, state, epoch, lease_lost, evidence
TRUNCATE step;
INSERT INTO step (state, passed, holder, call, note) VALUES
    ('applying', '', 5, $$settle_attempt('t-m', 's', ID, 5, 'wrong', 9, 'try', 'applied')$$, 'not_found before conflict'),
    ('applied', '', 0, $$settle_attempt('t-m', 's', ID, 3, 'tok3', 3, 'other', 'no_op')$$, 'L12: conflict before repeated'),
    ('applied', '', 0, $$settle_attempt('t-m', 's', ID, 3, 'tok3', REV, 'other', 'not_applied')$$, 'L12: repeated, whatever is said'),
    ('rejected', '', 5, $$settle_attempt('t-m', 's', ID, 5, 'tok5', REV, 'try', 'applied')$$, 'repeated: it was rejected'),
    ('pending', '', 0, $$settle_attempt('t-m', 's', ID, 3, 'tok3', REV, 'try', 'applied')$$, 'L12: state before lease_lost, evidence'),
    ('claimed', '', 0, $$settle_attempt('t-m', 's', ID, 3, 'tok3', REV, 'try', 'not_applied')$$, 'L12: state before epoch'),
    ('applying', '', 0, $$settle_attempt('t-m', 's', ID, 3, 'tok3', REV, 'other', 'not_applied')$$, 'epoch before lease_lost, evidence'),
    ('applying', '', 3, $$settle_attempt('t-m', 's', ID, 3, 'tok3', REV, 'try', 'not_applied')$$, 'L10: not applied, by an earlier holder'),
    ('applying', '', 0, $$settle_attempt('t-m', 's', ID, 5, 'tok5', REV, 'other', 'applied')$$, 'lease_lost before evidence'),
    ('applying', '', 8, $$settle_attempt('t-m', 's', ID, 5, 'tok5', REV, 'try', 'applied')$$, 'its holder has the session no more'),
    ('applying', '', 8, $$settle_attempt('t-m', 's', ID, 8, 'tok8', REV, 'other', 'applied', NULL, 1)$$, 'L10: another attempt before whose it is, and the event'),
    ('applying', '', 8, $$settle_attempt('t-m', 's', ID, 8, 'tok8', REV, 'try', 'applied', 'ev', NULL)$$, 'L10: applied, by a later holder'),
    ('applying', '', 8, $$settle_attempt('t-m', 's', ID, 8, 'tok8', REV, 'try', 'no_op')$$, 'L10: no effect, by a later holder'),
    ('applying', '', 5, $$settle_attempt('t-m', 's', ID, 5, 'tok5', REV, 'try', 'not_applied', 'ev', 1)$$, 'L10: not applied, by who made it'),
    ('applying', '', 5, $$settle_attempt('t-m', 's', ID, 5, 'tok5', REV, 'try', 'no_op', 'ev', 1)$$, 'L10: no effect has no event'),
    ('applying', '', 8, $$settle_attempt('t-m', 's', ID, 8, 'tok8', REV, 'try', 'not_applied', 'ev', 1)$$, 'L10: nor has what was not applied'),
    ('applying', '', 5, $$settle_attempt('t-m', 's', ID, 5, 'tok5', REV, 'try', 'applied', 'ev')$$, 'L10: an event without its sequence'),
    ('applying', '', 5, $$settle_attempt('t-m', 's', ID, 5, 'tok5', REV, 'try', 'applied', NULL, 1)$$, 'L10: a sequence without its event'),
    ('applying', '', 5, $$settle_attempt('t-m', 's', ID, 5, 'tok5', REV, 'try', 'applied', 'ev', 0)$$, 'L10: sequence 0'),
    ('applying', 'claim deadline', 5, $$settle_attempt('t-m', 's', ID, 5, 'tok5', REV, 'try', 'applied', 'ev', 7)$$, 'L9: applied, whatever the clock says'),
    ('applying', '', 5, $$settle_attempt('t-m', 's', ID, 5, 'tok5', REV, 'try', 'applied')$$, 'L10: an event need not be named'),
    ('applying', '', 5, $$settle_attempt('t-m', 's', ID, 5, 'tok5', REV, 'try', 'no_op')$$, 'L9: no effect'),
    ('applying', '', 8, $$settle_attempt('t-m', 's', ID, 8, 'tok8', REV, 'try', 'not_applied')$$, 'L9: not applied, by who came after');
SELECT s.n, s.state AS before, s.passed, s.holder, s.note, r.* FROM step s, run(s) r ORDER BY s.n;
-- L9: the attempt stays as it was, and who settled it is beside it
SELECT s.note, c.state, c.attempt_id, c.attempt_epoch, c.outcome, c.outcome_epoch, c.event_id, c.event_seq, c.settled_at IS NOT NULL AS settled
  FROM step s JOIN reconcile.session_command c ON c.tenant_id = 't-m' AND c.command_id = 'step-' || s.n
 WHERE s.note ~ 'L9|need not' ORDER BY s.n;

-- reject: not_found, conflict, repeated, terminal, state, epoch, lease_lost, claim_held
TRUNCATE step;
INSERT INTO step (state, passed, holder, call, note) VALUES
    ('pending', '', 5, $$reject_session_command('t-m', 's', ID, 5, 'wrong', 9)$$, 'not_found before conflict'),
    ('rejected', '', 0, $$reject_session_command('t-m', 's', ID, 3, 'tok3', 9)$$, 'conflict before repeated, lease_lost'),
    ('rejected', '', 0, $$reject_session_command('t-m', 's', ID, 3, 'tok3', REV)$$, 'L16: repeated'),
    ('rejected', '', 5, $$reject_session_command('t-m', 's', ID, NULL, NULL, REV)$$, 'L16: repeated'),
    ('applied', '', 0, $$reject_session_command('t-m', 's', ID, 3, 'tok3', REV)$$, 'terminal before state, epoch, lease_lost'),
    ('not_applied', '', 5, $$reject_session_command('t-m', 's', ID, NULL, NULL, REV)$$, 'terminal: an attempt that was not applied'),
    ('applying', 'claim deadline', 0, $$reject_session_command('t-m', 's', ID, 3, 'tok3', REV)$$, 'L16: state before epoch, lease_lost'),
    ('applying', '', 5, $$reject_session_command('t-m', 's', ID, 5, 'tok5', REV)$$, 'L16: nor does who made it'),
    ('applying', '', 8, $$reject_session_command('t-m', 's', ID, 8, 'tok8', REV)$$, 'L16: nor who came after'),
    ('applying', 'claim deadline', 5, $$reject_session_command('t-m', 's', ID, NULL, NULL, REV)$$, 'L16: nor a reconciler, at any time'),
    ('claimed', '', 0, $$reject_session_command('t-m', 's', ID, 3, 'tok3', REV)$$, 'L16: epoch before lease_lost, claim_held'),
    ('claimed', '', 0, $$reject_session_command('t-m', 's', ID, 8, 'tok8', REV)$$, 'lease_lost before claim_held'),
    ('claimed', 'deadline', 5, $$reject_session_command('t-m', 's', ID, NULL, NULL, REV)$$, 'L16: a live claim stands, past the deadline too'),
    ('claimed', '', 8, $$reject_session_command('t-m', 's', ID, 8, 'tok8', REV)$$, 'claim_held: it is not his'),
    ('claimed', '', 5, $$reject_session_command('t-m', 's', ID, 5, 'tok5', REV)$$, 'L16: his own, and it is kept'),
    ('claimed', 'claim', 5, $$reject_session_command('t-m', 's', ID, NULL, NULL, REV)$$, 'L16: one that is over'),
    ('pending', '', 5, $$reject_session_command('t-m', 's', ID, NULL, NULL, REV)$$, 'L16: no deadline is asked'),
    ('pending', '', 5, $$reject_session_command('t-m', 's', ID, 5, 'tok5', REV)$$, 'by who has the session');
SELECT s.n, s.state AS before, s.passed, s.holder, s.note, r.* FROM step s, run(s) r ORDER BY s.n;

-- L6, L7: what is refused before anything is read
SELECT c.call, r.code, r.field, r.problem
  FROM (VALUES (1, $$claim_session_command('t-m', 's', '', 5, 'tok5', 1)$$), (2, $$claim_session_command('t-m', 's', 'x', 0, 'tok5', 1)$$), (3, $$claim_session_command('t-m', 's', 'x', 5, NULL, 1)$$),
               (4, $$claim_session_command('t-m', 's', 'x', 5, 'tok5', 0)$$), (5, $$claim_session_command('t-m', 's', 'x', 5, 'tok5', NULL)$$), (6, $$claim_session_command('t-m', 's', 'x', 5, 'tok5', 1, NULL)$$),
               (7, $$claim_session_command('t-m', 's', 'x', 5, 'tok5', 1, '0')$$), (8, $$claim_session_command('t-m', 's', 'x', 5, 'tok5', 1, '1 h 1 ms')$$),
               (9, $$begin_attempt('t-m', 's', 'x', 5, 'tok5', 0, '')$$), (10, $$begin_attempt('t-m', 's', 'x', 5, 'tok5', 1, '')$$), (11, $$begin_attempt('t-m', 's', 'x', NULL, NULL, 1, 'a')$$),
               (12, $$settle_attempt('t-m', 's', 'x', 5, 'tok5', 0, 'a', 'applied')$$), (13, $$settle_attempt('t-m', 's', 'x', 5, 'tok5', 1, NULL, 'applied')$$),
               (14, $$settle_attempt('t-m', 's', 'x', 5, 'tok5', 1, 'a', 'unknown')$$), (15, $$settle_attempt('t-m', 's', 'x', 5, 'tok5', 1, 'a', NULL)$$), (16, $$settle_attempt('t-m', 's', 'x', 5, 'tok5', 1, 'a', 'applied', '', 1)$$),
               (17, $$reject_session_command('t-m', 's', 'x', NULL, NULL, 0)$$), (18, $$reject_session_command('t-m', 's', 'x', 0, 'tok5', 1)$$), (19, $$reject_session_command('t-m', 's', 'x', 5, NULL, 1)$$),
               (20, $$reject_session_command('t-m', 's', 'x', NULL, 'tok5', 1)$$)) c (n, call),
       field_refusal('SELECT * FROM reconcile.' || c.call) r ORDER BY c.n;

-- L15: which members go with which state, in the table itself: whoever inserts or changes a row
SELECT make('shape', 'pending');
CREATE TABLE shape (n serial, members text);
INSERT INTO shape (members) VALUES
    ($$state = 'pending', claim_epoch = 5, claim_expires_at = now()$$), ($$state = 'pending', attempt_id = 'a', attempt_epoch = 5, attempt_started_at = now()$$),
    ($$state = 'pending', settled_at = now()$$), ($$state = 'claimed'$$), ($$state = 'claimed', claim_epoch = 5$$), ($$state = 'claimed', claim_epoch = 5, claim_expires_at = now()$$),
    ($$state = 'claimed', claim_epoch = 5, claim_expires_at = now(), attempt_id = 'a', attempt_epoch = 5, attempt_started_at = now()$$), ($$state = 'applying'$$),
    ($$state = 'applying', claim_epoch = 5, claim_expires_at = now()$$), ($$state = 'applying', attempt_id = 'a', attempt_epoch = 5, attempt_started_at = now()$$),
    ($$state = 'applying', claim_epoch = 5, claim_expires_at = now(), attempt_id = 'a', attempt_epoch = 5, attempt_started_at = now()$$),
    ($$state = 'applying', claim_epoch = 5, claim_expires_at = now(), attempt_id = 'a', attempt_epoch = 6, attempt_started_at = now()$$),
    ($$state = 'applying', claim_epoch = 5, claim_expires_at = now(), attempt_id = 'a', attempt_epoch = 5, attempt_started_at = now(), outcome = 'applied', outcome_epoch = 5$$),
    ($$state = 'applied', settled_at = now()$$), ($$state = 'applied', settled_at = now(), claim_epoch = 5, claim_expires_at = now(), attempt_id = 'a', attempt_epoch = 5, attempt_started_at = now()$$),
    ($$state = 'applied', settled_at = now(), claim_epoch = 5, claim_expires_at = now(), attempt_id = 'a', attempt_epoch = 5, attempt_started_at = now(), outcome = 'applied', outcome_epoch = 5$$),
    ($$state = 'applied', settled_at = now(), claim_epoch = 5, claim_expires_at = now(), attempt_id = 'a', attempt_epoch = 5, attempt_started_at = now(), outcome = 'applied', outcome_epoch = 6$$),
    ($$state = 'applied', settled_at = now(), claim_epoch = 5, claim_expires_at = now(), attempt_id = 'a', attempt_epoch = 5, attempt_started_at = now(), outcome = 'no_op', outcome_epoch = 5$$),
    ($$state = 'applied', settled_at = now(), claim_epoch = 5, claim_expires_at = now(), attempt_id = 'a', attempt_epoch = 5, attempt_started_at = now(), outcome = 'no_op', outcome_epoch = 5, event_id = 'e', event_seq = 1$$),
    ($$state = 'applied', settled_at = now(), claim_epoch = 5, claim_expires_at = now(), attempt_id = 'a', attempt_epoch = 5, attempt_started_at = now(), outcome = 'not_applied', outcome_epoch = 6$$),
    ($$state = 'rejected', settled_at = now()$$), ($$state = 'rejected'$$), ($$state = 'rejected', settled_at = now(), claim_epoch = 5, claim_expires_at = now()$$),
    ($$state = 'rejected', settled_at = now(), claim_epoch = 5, claim_expires_at = now(), attempt_id = 'a', attempt_epoch = 5, attempt_started_at = now()$$),
    ($$state = 'rejected', settled_at = now(), claim_epoch = 5, claim_expires_at = now(), attempt_id = 'a', attempt_epoch = 5, attempt_started_at = now(), outcome = 'not_applied', outcome_epoch = 6$$),
    ($$state = 'rejected', settled_at = now(), claim_epoch = 5, claim_expires_at = now(), attempt_id = 'a', attempt_epoch = 5, attempt_started_at = now(), outcome = 'not_applied', outcome_epoch = 5$$),
    ($$state = 'rejected', settled_at = now(), claim_epoch = 5, claim_expires_at = now(), attempt_id = 'a', attempt_epoch = 5, attempt_started_at = now(), outcome = 'applied', outcome_epoch = 5$$),
    ($$state = 'gone'$$);
CREATE FUNCTION fits(statement text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE statement;
    RAISE 'undo' USING ERRCODE = 'UNDO0';
EXCEPTION WHEN check_violation THEN RETURN 'refused';
    WHEN SQLSTATE 'UNDO0' THEN RETURN 'fits';
END $$;
SELECT n, fits(format($i$INSERT INTO reconcile.session_command (tenant_id, session_id, command_id, shard, accepted_order, revision, runtime_command_id, kind, payload_digest, payload_size, payload, accepted_at, apply_deadline, %s)
                         VALUES ('t-m', 's', 'new', 0, 100000, 1, 'r', 'k', sha256(''), 0, '', now(), now() + interval '1 h', %s)$i$,
                      (SELECT string_agg(split_part(m, ' = ', 1), ', ' ORDER BY i) FROM unnest(string_to_array(members, ', ')) WITH ORDINALITY u (m, i)),
                      (SELECT string_agg(split_part(m, ' = ', 2), ', ' ORDER BY i) FROM unnest(string_to_array(members, ', ')) WITH ORDINALITY u (m, i)))) AS inserted,
       fits('UPDATE reconcile.session_command SET ' || members || $$ WHERE tenant_id = 't-m' AND command_id = 'shape'$$) AS updated, members
  FROM shape ORDER BY n;
-- and what each of the others may be
SELECT n, fits(format($i$INSERT INTO reconcile.session_command (tenant_id, session_id, command_id, shard, accepted_order, revision, runtime_command_id, kind, payload_digest, payload_size, payload, payload_reference, accepted_at, apply_deadline, state)
                         VALUES ('t-m', 's', %L, %s, %s, %s, 'r', %L, %s, %s, %s, %s, %s, now() + interval '1 h', 'pending')$i$,
                      coalesce(m ->> 'id', 'new'), coalesce(m ->> 'shard', '0'), coalesce(m ->> 'order', '100000'), coalesce(m ->> 'revision', '1'), coalesce(m ->> 'kind', 'k'), coalesce(m ->> 'digest', 'sha256('''')'),
                      coalesce(m ->> 'size', '0'), coalesce(m ->> 'payload', ''''''), coalesce(m ->> 'reference', 'NULL'), coalesce(m ->> 'accepted', 'now()'))) AS inserted, left(m::text, 60) AS members
  FROM unnest('{"{}","{\"id\": \"\"}","{\"shard\": -1}","{\"order\": 0}","{\"revision\": 0}","{\"kind\": \"\"}","{\"digest\": \"sha224(''x'')\"}","{\"size\": -1}","{\"payload\": \"NULL\"}","{\"reference\": \"''r''\"}","{\"payload\": \"NULL\", \"reference\": \"''''\"}","{\"payload\": \"NULL\", \"reference\": \"''r''\"}","{\"payload\": \"decode(repeat(''00'', 65537), ''hex'')\"}","{\"accepted\": \"now() + interval ''1 h''\"}"}'::jsonb[])
       WITH ORDINALITY v (m, n) ORDER BY n;

-- what is settled, and what an attempt was begun with, stays, whoever tries
SELECT make('kept', 'applying'), make('over', 'rejected');
SELECT c.call, r.code, r.message
  FROM (VALUES (1, $$attempt_id = 'other' WHERE command_id = 'kept'$$), (2, $$attempt_id = NULL, attempt_epoch = NULL, attempt_started_at = NULL, state = 'claimed' WHERE command_id = 'kept'$$),
               (3, $$claim_epoch = 4, attempt_epoch = 4 WHERE command_id = 'kept'$$), (4, $$accepted_order = 1000 WHERE command_id = 'kept'$$), (5, $$kind = 'x' WHERE command_id = 'kept'$$),
               (6, $$state = 'pending', settled_at = NULL WHERE command_id = 'over'$$), (7, $$revision = revision WHERE command_id = 'over'$$)) c (n, call),
       field_refusal('UPDATE reconcile.session_command SET ' || c.call || ' AND tenant_id = ''t-m''') r ORDER BY c.n;
SELECT message FROM field_refusal($$DELETE FROM reconcile.session_command WHERE tenant_id = 't-m'$$);
SELECT message FROM field_refusal($$TRUNCATE reconcile.session_command$$);

--
-- What is due, by shards (7.6; M12, M13, M16, L13)
--
SELECT clean('t-m');
SELECT count(*) FROM (VALUES ('t-m', 's'), ('t-m2', 's')) v (t, s), reconcile.create_session(t, s, 'a', 'pooled', 'c');
CREATE FUNCTION shard(t text) RETURNS int LANGUAGE sql AS $$ SELECT reconcile.control_shard_of(t, 's', reconcile.control_shards()) $$;
SELECT count(*) FROM generate_series(1, 7) g, reconcile.admit_session_command('t-m', 's', 'd' || g, 'input', 'x', apply_deadline_in => g * interval '10 min');
SELECT count(*) FROM reconcile.admit_session_command('t-m2', 's', 'elsewhere', 'input', 'x', apply_deadline_in => '10 min');
SELECT count(*) FROM reconcile.due_session_commands(shard('t-m'), '0') WHERE tenant_id LIKE 't-m%';
SELECT command_id, state FROM reconcile.due_session_commands(shard('t-m'), '25 min') WHERE tenant_id = 't-m';
SELECT shard('t-m') <> shard('t-m2') AS apart, count(*) FROM reconcile.due_session_commands(shard('t-m'), '1 h') WHERE tenant_id = 't-m2';
-- 7 rows in pages of 2, each once; what comes meanwhile within the bound is found behind, what is due after it is not
CREATE FUNCTION pages() RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE
    page text[];
    after text;
BEGIN
    SELECT array_agg(command_id), max(position) FILTER (WHERE n = 2) INTO page, after
      FROM (SELECT d.*, row_number() OVER () AS n FROM reconcile.due_session_commands(shard('t-m'), '65 min', max_items => 2) d) d;
    LOOP
        RETURN NEXT array_to_string(page, ' ');
        EXIT WHEN after IS NULL;
        IF page[1] = 'd3' THEN
            PERFORM reconcile.admit_session_command('t-m', 's', 'new', 'input', 'x', apply_deadline_in => '55 min');
        END IF;
        SELECT array_agg(command_id), max(position) FILTER (WHERE n = 2) INTO page, after
          FROM (SELECT d.*, row_number() OVER () AS n FROM reconcile.due_session_commands(shard('t-m'), after => after, max_items => 2) d) d;
    END LOOP;
END $$;
SELECT * FROM pages();
-- L13: what is applying is due still, what is settled is not
SELECT give('t-m', 's', 'hm', 5, 'tok5');
SELECT a.outcome, b.outcome, c.outcome FROM reconcile.claim_session_command('t-m', 's', 'd1', 5, 'tok5', 1) a, reconcile.begin_attempt('t-m', 's', 'd1', 5, 'tok5', a.revision, 'try') b,
       reconcile.reject_session_command('t-m', 's', 'd2', 5, 'tok5', 1) c;
SELECT command_id, state, claim_epoch, attempt_id, remaining < '35 min' AS remaining, claim_remaining < '1 min' AS claim_remaining FROM reconcile.due_session_commands(shard('t-m'), '35 min') WHERE tenant_id = 't-m';
-- M13, M16
SELECT c.call, r.code, r.field, r.problem
  FROM (VALUES (1, $$(0)$$), (2, $$(0, '1 s', 'x')$$), (3, $$(-1, '1 s')$$), (4, $$(100000, '1 s')$$), (5, $$(NULL, '1 s')$$), (6, $$(0, '-1 s')$$), (7, $$(0, '1 s', max_items => 0)$$), (8, $$(0, '1 s', max_items => 1001)$$),
               (9, $$(0, after => '')$$), (10, $$(0, after => 'garbage')$$), (11, $$(0, after => '0.1.2.61.62.6')$$), (12, $$(0, after => '0.01.2.61.62.63')$$), (13, $$(0, after => '1.1.2.61.62.63')$$),
               (14, $$(0, after => '0.1.2.61.62.63.64')$$)) c (n, call),
       field_refusal('SELECT * FROM reconcile.due_session_commands' || c.call) r ORDER BY c.n;
SELECT count(*) FROM reconcile.due_session_commands(0, after => '0.1.2.61.62.63');

--
-- Who may what
--
CREATE ROLE command_test_factory;
CREATE ROLE command_test_host;
CREATE ROLE command_test_nobody;
SELECT reconcile.grant_access('command_test_factory', 'place');
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA reconcile TO command_test_host, command_test_nobody;
GRANT USAGE ON SCHEMA command_test TO PUBLIC;
UPDATE reconcile.host SET role = 'command_test_host', role_name = 'command_test_host' WHERE host_id = 'hm';
CREATE FUNCTION calls() RETURNS TABLE (call text, answer text) LANGUAGE plpgsql AS $$
DECLARE
    r record;
BEGIN
    FOR call IN SELECT c FROM unnest(ARRAY[
        $c$admit_session_command('t-m', 's', 'd3', 'input', 'x')$c$, $c$claim_session_command('t-m', 's', 'd3', 5, 'tok5', 9)$c$, $c$begin_attempt('t-m', 's', 'd3', 5, 'tok5', 9, 'a')$c$,
        $c$settle_attempt('t-m', 's', 'd3', 5, 'tok5', 9, 'a', 'applied')$c$, $c$reject_session_command('t-m', 's', 'd3', 5, 'tok5', 9)$c$, $c$reject_session_command('t-m', 's', 'd3', NULL, NULL, 9)$c$,
        $c$session_commands('t-m', 's', 0, 1)$c$, $c$due_session_commands(0, '0')$c$]) c LOOP
        BEGIN
            answer := NULL;
            FOR r IN EXECUTE 'SELECT * FROM reconcile.' || call LOOP
                answer := to_jsonb(r) ->> CASE WHEN call ~ '^(session|due)' THEN 'command_id' ELSE 'outcome' END;
            END LOOP;
        EXCEPTION WHEN OTHERS THEN
            answer := SQLSTATE;
        END;
        RETURN NEXT;
    END LOOP;
END $$;
SET ROLE command_test_factory;
SELECT * FROM calls();
SET ROLE command_test_host;
SELECT * FROM calls();
SET ROLE command_test_nobody;
SELECT * FROM calls();
RESET ROLE;

-- an admitted command is looked at, if there is the loop for it; one that is there already is not
SELECT reconcile.create_loop('placement');
SELECT outcome FROM reconcile.admit_session_command('t-m', 's', 'looked', 'input', 'x');
SELECT outcome FROM reconcile.admit_session_command('t-m', 's', 'looked', 'input', 'x');
SELECT count(*) FROM reconcile.mark m JOIN reconcile.session s ON m.entity_id = s.number::text WHERE m.loop_name = 'placement' AND s.tenant_id = 't-m';
SELECT reconcile.drop_loop('placement');

DELETE FROM reconcile.host WHERE host_id = 'hm';
SELECT reconcile.revoke_access('command_test_factory', 'place');
DROP OWNED BY command_test_host, command_test_nobody, command_test_factory;
DROP ROLE command_test_host, command_test_nobody, command_test_factory;
SELECT clean('t-m%');
RESET lock_timeout;
DROP SCHEMA command_test CASCADE;
