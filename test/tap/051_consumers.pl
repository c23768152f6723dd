# Consumers of loops, as control planes have them (scenarios 145 to 152, 154 and
# 157 of the loop contract): a sweep over commands, a producer of commands for
# certificates that are about to expire, a renewal under a fence, a device that
# ages. Each ignores the entity and sweeps, for the entity ''; without workers, so
# that a pulse is an enqueue and a run_loop().

use strict;
use warnings;

use LoopTest;
use PostgreSQL::Test::Utils;
use ReconcileTest;
use Test::More;

my $node = new_node('main', preload => 0);

# pulse(LOOP): one tick of it. What the loop has to say of it: nothing after a
# success that asks for nothing, else state and SQLSTATE.
sub pulse
{
	my ($loop) = @_;
	sql($node, "SELECT reconcile.enqueue('$loop', ''); CALL reconcile.run_loop('$loop')");
	return sql($node, "SELECT concat_ws(' ', state, last_sqlstate) FROM reconcile.work WHERE loop_name = '$loop'");
}

# ----------------------------------------------------------------------
note 'commands that nobody answered in time (145 to 147)';

sql($node, q{
	CREATE SCHEMA app;
	CREATE TABLE app.command (
		id text PRIMARY KEY,
		device text NOT NULL,
		epoch int NOT NULL DEFAULT 1,
		expires_at timestamptz NOT NULL,
		status text NOT NULL DEFAULT 'active' CHECK (status IN ('active', 'done', 'expired')));
	CREATE UNIQUE INDEX ON app.command (device, epoch) WHERE status = 'active';
	CREATE TABLE app.pulse (loop_name text, at timestamptz DEFAULT clock_timestamp());

	CREATE FUNCTION app.sweep_commands(entity_id text) RETURNS interval LANGUAGE plpgsql AS $$
	BEGIN
		INSERT INTO app.pulse VALUES ('commands');
		UPDATE app.command SET status = 'expired' WHERE status = 'active' AND expires_at <= clock_timestamp();
		RETURN NULL;
	END $$;
	SELECT reconcile.create_loop('commands', 'app.sweep_commands', default_requeue => NULL, backoff_base => '1 h', backoff_max => '1 h');
	INSERT INTO app.command VALUES ('overdue', 'd1', 1, now() - interval '1 s', 'active'), ('young', 'd2', 1, now() + interval '1 h', 'active'), ('done', 'd3', 1, now() - interval '1 h', 'done')});

is(pulse('commands'), '', 'a pulse is a success');
is(sql($node, q{SELECT string_agg(id || ' ' || status, ', ' ORDER BY id) FROM app.command}), 'done done, overdue expired, young active', 'and expires what is overdue, and only that (146)');
is(pulse('commands'), '', 'a second one finds nothing to do');
is(sql($node, q{SELECT count(*) FROM app.pulse}), 2, 'two pulses are two runs: an empty sweep does not call itself (147, 157)');
is(sql($node, q{SELECT count(*) FROM reconcile.mark}), 0, 'and nothing waits');

sql($node, q{INSERT INTO app.command VALUES ('direct', 'd4', 1, now() - interval '1 s'); SELECT app.sweep_commands('whatever')});
is(sql($node, q{SELECT status FROM app.command WHERE id = 'direct'}), 'expired', 'called as a function it does the same, whatever the entity (145)');

sql($node, q{ALTER TABLE app.command RENAME TO command_away});
is(pulse('commands'), 'retrying 42P01', 'a scan that fails is transient (145)');
sql($node, q{ALTER TABLE app.command_away RENAME TO command;
	INSERT INTO app.command VALUES ('late', 'd5', 1, now() - interval '1 s');
	CREATE FUNCTION app.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'cannot acknowledge'; END $$;
	CREATE TRIGGER refuse BEFORE UPDATE ON app.command FOR EACH ROW EXECUTE FUNCTION app.refuse()});
is(pulse('commands'), 'retrying P0001', 'so is an acknowledgement that fails (145)');
sql($node, q{DROP TRIGGER refuse ON app.command});
is(pulse('commands'), '', 'when it works again the next pulse does it');
is(sql($node, q{SELECT status FROM app.command WHERE id = 'late'}), 'expired', 'all of it');
session_fails($node, '22023', q{SELECT reconcile.create_loop('bad', 'app.refuse')}, 'what is no reconciler does not become one (145)');
sql($node, q{DELETE FROM app.command});

# ----------------------------------------------------------------------
note 'a command for each certificate that is about to expire (148 to 151)';

sql($node, q{
	CREATE TABLE app.cert (device text PRIMARY KEY, epoch int NOT NULL DEFAULT 1, expires_at timestamptz NOT NULL);
	-- the id says what it is for, so that a second one is the same
	CREATE FUNCTION app.produce(entity_id text) RETURNS interval LANGUAGE plpgsql AS $$
	DECLARE
		cert app.cert;
		failed text;
	BEGIN
		FOR cert IN SELECT * FROM app.cert WHERE expires_at <= clock_timestamp() + interval '30 days' ORDER BY device LOOP
			BEGIN
				INSERT INTO app.command SELECT format('rotate/%s/%s/%s', cert.device, cert.epoch, count(c.id)), cert.device, cert.epoch, clock_timestamp() + interval '36 h'
					FROM app.command c WHERE c.device = cert.device AND c.epoch = cert.epoch AND c.status = 'expired'
					ON CONFLICT DO NOTHING;
			EXCEPTION WHEN raise_exception THEN
				failed := coalesce(failed, SQLERRM);
			END;
		END LOOP;
		IF failed IS NOT NULL THEN RAISE '%', failed; END IF;
		RETURN NULL;
	END $$;
	SELECT reconcile.create_loop('producer', 'app.produce', default_requeue => NULL, backoff_base => '1 h', backoff_max => '1 h');
	INSERT INTO app.cert VALUES ('near', 1, now() + interval '10 days'), ('far', 1, now() + interval '300 days')});

sub commands
{
	return sql($node, q{SELECT string_agg(id || ' ' || status, ', ' ORDER BY id) FROM app.command});
}

is(pulse('producer'), '', 'a pulse');
is(commands(), 'rotate/near/1/0 active', 'makes one command for the certificate that is near its end, none for the other');
is(sql($node, q{SELECT abs(extract(epoch FROM expires_at - now() - interval '36 h')) < 60 FROM app.command}), 't', 'with a deadline');
pulse('producer') for 1 .. 3;
is(commands(), 'rotate/near/1/0 active', 'three more, while the device is away, make no other (149)');
sql($node, q{UPDATE app.command SET expires_at = now() - interval '1 s'});
is(pulse('commands'), '', 'the command expires');
pulse('producer') for 1 .. 2;
is(commands(), 'rotate/near/1/0 expired, rotate/near/1/1 active', 'and is followed by one (149)');
sql($node, q{UPDATE app.command SET status = 'done' WHERE status = 'active'});
pulse('producer');
is(commands(), 'rotate/near/1/0 expired, rotate/near/1/1 done', 'a completion that was lost: the certificate is still near its end, and its command done');
sql($node, q{DELETE FROM app.command WHERE status = 'done'});
pulse('producer');
is(commands(), 'rotate/near/1/0 expired, rotate/near/1/1 active', 'the next pulse drives it again (151)');
sql($node, q{UPDATE app.command SET status = 'done' WHERE status = 'active'; UPDATE app.cert SET epoch = 2, expires_at = now() + interval '1 year' WHERE device = 'near'});
pulse('producer') for 1 .. 2;
is(sql($node, q{SELECT count(*) FROM app.command WHERE status = 'active'}), 0, 'when it is renewed nothing is asked any more (150)');

sql($node, q{DELETE FROM app.command; DELETE FROM app.cert;
	INSERT INTO app.cert SELECT 'd' || lpad(n::text, 2, '0'), 7, now() FROM generate_series(1, 12) n;
	CREATE FUNCTION app.refuse_one() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF NEW.device = 'd05' THEN RAISE 'cannot emit'; END IF; RETURN NEW; END $$;
	CREATE TRIGGER refuse BEFORE INSERT ON app.command FOR EACH ROW EXECUTE FUNCTION app.refuse_one()});
is(pulse('producer'), 'retrying P0001', 'one of twelve that fails fails the sweep');
is(sql($node, q{SELECT count(*) FROM app.command}), 0, 'which is one commit: nothing of it is there');
sql($node, q{DROP TRIGGER refuse ON app.command});
is(pulse('producer'), '', 'the next');
is(sql($node, q{SELECT count(*), count(DISTINCT id) FILTER (WHERE id ~ '^rotate/d\d\d/7/0$') FROM app.command}), '12|12', 'makes all twelve, with the ids of their epoch (148)');

# ----------------------------------------------------------------------
note 'renewal under a fence (152)';

sql($node, q{
	CREATE TABLE app.managed (tenant text, device text, state text NOT NULL DEFAULT 'active', epoch int NOT NULL DEFAULT 1, due_at timestamptz NOT NULL DEFAULT now(),
		csr text NOT NULL DEFAULT 'csr', PRIMARY KEY (tenant, device));
	CREATE TABLE app.policy (name text PRIMARY KEY, answer text NOT NULL);
	CREATE TABLE app.signed (tenant text, device text, epoch int, lease_epoch bigint);
	INSERT INTO app.policy VALUES ('authorize', 'allow'), ('sign', 'ok');

	CREATE FUNCTION app.renew(entity_id text) RETURNS interval LANGUAGE plpgsql AS $$
	DECLARE
		cert app.managed;
		n int := 0;
		authorize text := (SELECT answer FROM app.policy WHERE name = 'authorize');
	BEGIN
		IF reconcile.fenced_epoch() IS NULL THEN
			PERFORM reconcile.permanent_error('this loop must have a lease');
		END IF;
		FOR cert IN SELECT * FROM app.managed WHERE due_at <= clock_timestamp() AND state = 'active' ORDER BY tenant, device LIMIT 3 LOOP
			n := n + 1;
			CONTINUE WHEN cert.tenant = '' OR cert.csr !~ '^csr' OR authorize = 'deny';
			IF authorize = 'down' THEN RAISE 'cannot authorize'; END IF;
			IF (SELECT answer FROM app.policy WHERE name = 'sign') <> 'ok' THEN RAISE 'cannot sign'; END IF;
			PERFORM reconcile.fenced_write(cert.tenant || '|' || cert.device, jsonb_build_object('epoch', cert.epoch + 1));
			INSERT INTO app.signed VALUES (cert.tenant, cert.device, cert.epoch + 1, reconcile.fenced_epoch());
			UPDATE app.managed m SET epoch = cert.epoch + 1, due_at = clock_timestamp() + interval '60 days'
				WHERE m.tenant = cert.tenant AND m.device = cert.device;
		END LOOP;
		RETURN CASE WHEN n = 3 THEN interval '1 s' END;
	END $$;
	SELECT reconcile.create_loop('renewal', 'app.renew', default_requeue => NULL, backoff_base => '1 h', backoff_max => '1 h', lease_ttl => '1 h');
	SELECT reconcile.create_loop('unleased', 'app.renew', default_requeue => NULL)});

sub managed
{
	my (@rows) = @_;
	sql($node, 'TRUNCATE app.managed, app.signed; INSERT INTO app.managed (tenant, device, state, due_at, csr) VALUES ' . join ', ', @rows);
	return;
}

sub signed
{
	return sql($node, q{SELECT string_agg(concat_ws(' ', tenant, device, epoch), ', ' ORDER BY tenant, device) FROM app.signed});
}

sub policy
{
	my ($name, $answer) = @_;
	sql($node, "UPDATE app.policy SET answer = '$answer' WHERE name = '$name'");
	return;
}

managed(q{('t1', 'a', 'active', now(), 'csr')});
is(pulse('unleased'), 'dead RC004', 'without a lease it fails closed');
is(signed(), '', 'and signs nothing');
is(pulse('renewal'), '', 'with one it renews');
is(signed(), 't1 a 2', 'to the next epoch');
is(sql($node, q{SELECT m.epoch, r.state, r.last_epoch = s.lease_epoch FROM app.managed m, app.signed s, reconcile.resources r WHERE r.entity_id = 't1|a'}),
	'2|{"epoch": 2}|t', 'row, effect and fenced state in one commit');
is(pulse('renewal'), '', 'what is not due any more');
is(signed(), 't1 a 2', 'is left alone');

managed(q{('t1', 'a', 'active', now(), 'csr')});
policy('sign', 'down');
is(pulse('renewal'), 'retrying P0001', 'a signer that fails is transient');
is(sql($node, q{SELECT epoch FROM app.managed}) . signed(), '1', 'and leaves the certificate as it is');
policy('sign', 'ok');
policy('authorize', 'down');
is(pulse('renewal'), 'retrying P0001', 'so is an authorizer that is away');
policy('authorize', 'deny');
is(pulse('renewal') . signed(), '', 'one that denies is no error, and nothing is signed');
policy('authorize', 'allow');
is(pulse('renewal') . signed(), 't1 a 2', 'when all is well it is renewed');

managed(map { "('t1', '$_', '$_', now(), 'csr')" } qw(pending issuing revoked suspended retired failed deleted));
is(pulse('renewal') . signed(), '', 'seven states that are not renewed');
managed(q{('t1', 'a', 'active', now() + interval '1 day', 'csr')}, q{('t1', 'old', 'active', now() - interval '1 year', 'csr')});
is(pulse('renewal') . signed(), 't1 old 2', 'one that is not due is left, one that is long past is recovered');
managed(q{('t1', 'same', 'active', now(), 'csr')}, q{('t2', 'same', 'active', now(), 'csr')});
is(pulse('renewal') . signed(), 't1 same 2, t2 same 2', 'two tenants with a device of one name');
managed(q{('', 'a', 'active', now(), 'csr')}, q{('t1', 'a', 'active', now(), 'junk')});
is(pulse('renewal') . signed(), '', 'a tenant without a name, and a request that is corrupt, are passed over');
sql($node, 'ALTER TABLE app.managed RENAME TO managed_away');
is(pulse('renewal'), 'retrying 42704', 'a scan that fails is tried again');
sql($node, 'ALTER TABLE app.managed_away RENAME TO managed');

managed(map { "('t1', 'n$_', 'active', now(), 'csr')" } 1 .. 7);
is(pulse('renewal'), 'waiting', 'a full batch of three asks to be looked at again');
is(sql($node, q{SELECT count(*), (SELECT round(extract(epoch FROM due_at - made_at)) FROM reconcile.mark) FROM app.signed}), '3|1', 'in a second');
is(pulse('renewal'), 'waiting', 'the next');
is(pulse('renewal'), '', 'and the last, which is not full, ends it');
is(sql($node, q{SELECT count(*), count(DISTINCT device) FROM app.signed}), '7|7', 'each was renewed once');

# A leader who sleeps, while another takes over and does the work; then he wakes.
managed(q{('t1', 'a', 'active', now(), 'csr')});
sql($node, q{DELETE FROM reconcile.resource; DO $$ BEGIN WHILE EXISTS (SELECT FROM reconcile.leases WHERE reconciler_id = 'renewal' AND live) LOOP END LOOP; END $$});
my $zombie = sql($node, q{SELECT epoch FROM reconcile.acquire_lease('renewal', 'zombie', '5 ms')});
sql($node, q{DO $$ BEGIN WHILE (SELECT live FROM reconcile.leases WHERE reconciler_id = 'renewal') LOOP END LOOP; END $$});
is(pulse('renewal') . signed(), 't1 a 2', 'the successor of a sleeping leader renews');
is(sql($node, qq{SELECT reconcile.apply_fenced('renewal', 't1|a', $zombie, '{"epoch": 666}')}), 'f', 'whose late write is refused');
session_fails($node, 'RC002', qq{SELECT reconcile.bind_lease('renewal', 'zombie', $zombie)}, 'as is his transaction');
is(sql($node, q{SELECT state, revision FROM reconcile.resources WHERE entity_id = 't1|a'}), '{"epoch": 2}|1', 'exactly one effect');

# ----------------------------------------------------------------------
note 'a device that ages (154)';

sql($node, q{
	CREATE TABLE app.aging (id text PRIMARY KEY, seen_at timestamptz NOT NULL, state text NOT NULL DEFAULT 'online');
	CREATE FUNCTION app.age(entity_id text) RETURNS interval LANGUAGE sql AS $$
		DELETE FROM app.aging WHERE seen_at <= now() - interval '180 days';
		UPDATE app.aging a SET state = s.state
		  FROM (SELECT id, CASE WHEN seen_at > now() - interval '1 h' THEN 'online' WHEN seen_at > now() - interval '30 days' THEN 'offline'
		               WHEN seen_at > now() - interval '90 days' THEN 'dormant' ELSE 'recycled' END FROM app.aging) s (id, state)
		 WHERE s.id = a.id AND s.state <> a.state;
		SELECT NULL::interval;
	$$;
	SELECT reconcile.create_loop('aging', 'app.age', default_requeue => NULL);
	INSERT INTO app.aging SELECT days || ' days', now() - interval '1 day' * days FROM unnest(ARRAY[0, 1, 29, 31, 89, 91, 179, 181, 1000]) days});
my $states = '';
for my $sweep (1 .. 3)
{
	is(pulse('aging'), '', "sweep $sweep");
	is(sql($node, q{SELECT string_agg(concat_ws(' ', split_part(id, ' ', 1), state), ', ' ORDER BY seen_at DESC) FROM app.aging}),
		'0 online, 1 offline, 29 offline, 31 dormant, 89 dormant, 91 recycled, 179 recycled', 'each is at the step of its age, in one sweep');
}
is(sql($node, q{SELECT count(DISTINCT xmin::text) FROM app.aging WHERE state <> 'online'}), 1, 'and later sweeps wrote nothing');

finish();
