# Who may do what (P11): which function is whose, on which scope; that a right
# that is taken back counts at once; that no code of a caller runs with rights
# of ours; what a run in a session cannot get at; who sees error texts.

use strict;
use warnings;

use LoopTest;
use PostgreSQL::Test::Utils;
use ReconcileTest;
use Test::More;

my $version = $ENV{RECONCILE_PG_VERSION};
my $node = new_node('main', conf => "max_worker_processes = 16\nreconcile.max_workers = 2\nreconcile.databases = 'engine'\n");
prepare($node);

# answers(ROLE, CALL...): what each call of the role comes to, and nothing of it
# stays: 'allowed', or the SQLSTATE of its refusal with the message.
sub answers
{
	my ($role, @calls) = @_;
	my $table = join(', ', map { my $n = $_; "($n, \$call\$$calls[$n]\$call\$)" } 0 .. $#calls);

	return split /\n/, sql($node, "SET SESSION AUTHORIZATION $role; SELECT app.answer(call) FROM (VALUES $table) c (n, call) ORDER BY n");
}

sql($node, q{
	CREATE FUNCTION app.answer(call text) RETURNS text LANGUAGE plpgsql AS $$
	BEGIN
		EXECUTE call;
		RAISE 'undo' USING ERRCODE = 'UNDO0';
	EXCEPTION WHEN OTHERS THEN
		-- that there is no such claim says who has the right
		RETURN CASE WHEN SQLSTATE IN ('UNDO0', 'RC017') THEN 'allowed' ELSE SQLSTATE || ' ' || SQLERRM END;
	END $$;
});

# ----------------------------------------------------------------------
note 'each function is in one row of this table';

# name => [ whose, a call on the reconciler id ID ].  Whose: a capability; PUBLIC;
# or nobody but the owner of the schema and superusers.
my %function = (
	enqueue => [ 'trigger', q{SELECT reconcile.enqueue('ID', 'e')} ],
	enqueue_many => [ 'trigger', q{SELECT reconcile.enqueue_many('ID', '{e}')} ],
	acquire_lease => [ 'lease', q{SELECT reconcile.acquire_lease('ID', 'h')} ],
	try_acquire_lease => [ 'lease', q{SELECT reconcile.try_acquire_lease('ID', 'h')} ],
	renew_lease => [ 'lease', q{SELECT reconcile.renew_lease('ID', 'h', 1)} ],
	renew_leases => [ 'lease', q{SELECT reconcile.renew_leases('h', '{ID}', '{1}')} ],
	release_lease => [ 'lease', q{SELECT reconcile.release_lease('ID', 'h', 1)} ],
	bind_lease => [ 'lease', q{SELECT reconcile.bind_lease('ID', 'h', 1)} ],
	apply_fenced => [ 'fence', q{SELECT reconcile.apply_fenced('ID', 'e', 0, '{}')} ],
	apply_fenced_many => [ 'fence', q{SELECT reconcile.apply_fenced_many('ID', '{e}', 0, '{"{}"}')} ],
	force_release_lease => [ 'operate', q{SELECT reconcile.force_release_lease('ID', 1, 'why')} ],
	pause_loop => [ 'operate', q{SELECT reconcile.pause_loop('ID')} ],
	resume_loop => [ 'operate', q{SELECT reconcile.resume_loop('ID')} ],
	revive => [ 'operate', q{SELECT reconcile.revive('ID', 'e')} ],
	forget => [ 'operate', q{SELECT reconcile.forget('ID', 'e')} ],
	create_loop => [ 'define', q{SELECT reconcile.create_loop('ID', if_exists => 'replace')} ],
	alter_loop => [ 'define', q{SELECT reconcile.alter_loop('ID', '{"concurrency": 2}')} ],
	drop_loop => [ 'define', q{SELECT reconcile.drop_loop('ID')} ],
	watch => [ 'define', q{SELECT reconcile.watch('ID', 'app.of_define', 'id')} ],
	unwatch => [ 'define', q{SELECT reconcile.unwatch('ID', 'app.of_define')} ],
	attach_fence => [ 'define', q{SELECT reconcile.attach_fence('app.guarded_ID', 'ID', 'id')} ],
	detach_fence => [ 'define', q{SELECT reconcile.detach_fence('app.guarded_ID')} ],
	override_fence => [ 'operate', q{SELECT reconcile.override_fence('app.guarded_ID', 'why')} ],
	claim_work => [ 'work', q{SELECT count(*) FROM reconcile.claim_work('ID', 'h')} ],
	extend_work => [ 'work', q{SELECT count(*) FROM reconcile.extend_work('ID', '{e}', '{1}')} ],
	complete_work => [ 'work', q{SELECT reconcile.complete_work('ID', 'e', 1)} ],
	complete_works => [ 'work', q{SELECT count(*) FROM reconcile.complete_works('ID', '{e}', '{1}')} ],
	fail_work => [ 'work', q{SELECT reconcile.fail_work('ID', 'e', 1, 'x')} ],
	next_due => [ 'work', q{SELECT reconcile.next_due('ID')} ],
	# who may operate a loop has it, for his own loops
	run_loop => [ 'operate', q{CALL reconcile.run_loop('ID')} ],
	run_entity => [ 'operate', q{SELECT reconcile.run_entity('ID', 'e')} ],
	drain_loop => [ 'operate', q{CALL reconcile.drain_loop('ID')} ],
	cancel_run => [ 'operate', q{SELECT reconcile.cancel_run('ID', 'e')} ],
	revive_all => [ 'operate', q{SELECT reconcile.revive_all('ID')} ],
	# of the loops that the caller may operate: see sql/operate
	resume_all => ['operate'],
	# on all reconciler ids: see sql/incarnation
	bump_incarnation => ['operate'],
	incarnation => ['PUBLIC'],
	here => ['PUBLIC'],
	wait_idle => [ 'observe', q{CALL reconcile.wait_idle('ID')} ],
	explain => [ 'observe', q{SELECT reconcile.explain('ID', 'e')} ],
	schedule_loops => ['nobody'],
	unschedule_loops => ['nobody'],
	permanent_error => ['PUBLIC'],
	current_run => ['PUBLIC'],
	fenced_epoch => ['PUBLIC'],
	fenced_write => ['PUBLIC'],
	may_observe => ['PUBLIC'],
	may_see_errors => ['PUBLIC'],
	running => ['PUBLIC'],
	worker_list => ['PUBLIC'],
	loop_counts => ['PUBLIC'],
	recent_runs => ['PUBLIC'],
	health_checks => ['PUBLIC'],
	# these show the ids in the caller's scope, and refuse nobody
	metrics => ['observe'],
	metrics_text => ['observe'],
	grant_access => [ 'nobody', q{SELECT reconcile.grant_access('cap_trigger', 'trigger', 'ID')} ],
	revoke_access => [ 'nobody', q{SELECT reconcile.revoke_access('cap_trigger', 'trigger', 'ID')} ],
	capability_functions => ['nobody'],
	json_merge_patch => ['PUBLIC'],
	rows_changed => ['nobody'],
	grants_changed => ['nobody'],
	watch_trigger => ['nobody'],
	watch_ddl => ['nobody'],
	watch_triggers => ['nobody'],
	watch_problems => ['nobody'],
	fence_trigger => ['nobody'],
	fence_ddl => ['nobody'],
	fence_triggers => ['nobody'],
	fence_problems => ['nobody'],
	entity_once => ['nobody'],
	dead_changed => ['nobody'],
	# on tenants, of which each asks for itself: see sql/journal_rights
	(map { $_ => ['command'] } qw(accept_command claim_commands acknowledge_command complete_command cancel_command resolve_command
		explain_command desired_state_of desired_states_since effective_state report_observed audit_access audit_verify
		set_command_retention prune_commands)),
	# on all reconciler ids
	sweep_commands => ['operate'],
	register_action => ['define'],
	# on all reconciler ids, or, of a host, for its own: see sql/placement_rights
	(map { $_ => ['place'] } qw(create_session get_session update_desired_state update_host_state placement_intent acquire_claim release_claim get_claim
		admit_session_command claim_session_command begin_attempt settle_attempt reject_session_command session_commands due_session_commands
		set_pointer clear_pointer get_pointer publish_host_target drain_host_target heartbeat_host compatible_hosts owner_of
		fetch_offers accept_offer refuse_offer release_session fetch_intents report_workload request_drain report_drained
		may_delete_workload record_termination get_termination control_shards place_session explain_placement place_entity sweep_claims)),
	(map { $_ => ['operate'] } qw(register_host unregister_host force_release_session set_placement sweep_pending sweep_deadlines sweep_host_targets sweep_offers
		sweep_entity sweep_names)),
	(map { $_ => ['PUBLIC'] } qw(decide workload_identity placement_key revive_key control_shard_of may_place my_hosts)),
	(map { $_ => ['nobody'] } qw(schedule_sweeps unschedule_sweeps keep_marks)),
	next_desired_state => ['PUBLIC'],
	may_read_command => ['PUBLIC'],
	builtin_actions => ['nobody'],
	journal_relations => ['nobody'],
	skip_row => ['nobody'],
	keep_row => ['nobody'],
	grant_command => [ 'nobody', q{SELECT reconcile.grant_command('cap_trigger', 't', 'drain')} ],
	revoke_command => [ 'nobody', q{SELECT reconcile.revoke_command('cap_trigger', 't', 'drain')} ],
	set_authorizer => [ 'nobody', q{SELECT reconcile.set_authorizer(NULL)} ]);
my @capabilities = qw(observe trigger lease fence work command place operate define);

is(sql($node, q{SELECT string_agg(DISTINCT proname, ' ' ORDER BY proname) FROM pg_proc WHERE pronamespace = 'reconcile'::regnamespace}),
	join(' ', sort keys %function), 'all of them are here');

# The functions that a role has EXECUTE on.
sub executable
{
	my ($role) = @_;
	return sql($node, qq{SELECT string_agg(DISTINCT p.proname, ' ' ORDER BY p.proname) FROM pg_proc p
		WHERE p.pronamespace = 'reconcile'::regnamespace AND has_function_privilege('$role', p.oid, 'EXECUTE')});
}

# Those of the given owners in the table.
sub owned_by
{
	my (@whose) = @_;
	return join(' ', sort grep { my $f = $_; grep { $function{$f}[0] eq $_ } @whose } keys %function);
}

sql($node, 'CREATE ROLE loop_owner; CREATE ROLE stranger');
sql($node, "CREATE ROLE cap_$_; SELECT reconcile.grant_access('cap_$_', '$_', 'one')") for @capabilities;
is(executable('stranger'), owned_by('PUBLIC'), 'PUBLIC has EXECUTE on its own and no others');
for my $capability (@capabilities)
{
	# the owner of a loop has all rights on it, and gets them with "define"
	my @opens = $capability eq 'define' ? @capabilities : ($capability);
	is(executable("cap_$capability"), owned_by('PUBLIC', @opens), "$capability gives EXECUTE on its functions and no others");
}
is(sql($node, q{SELECT c.relname FROM pg_class c WHERE c.relnamespace = 'reconcile'::regnamespace AND c.relkind IN ('r', 'S')
	AND (has_table_privilege('stranger', c.oid, 'SELECT, INSERT, UPDATE, DELETE, TRUNCATE') OR has_any_column_privilege('stranger', c.oid, 'SELECT, INSERT, UPDATE'))}),
	'command_action', 'no table of ours can be read or written, but that of the actions');
is(sql($node, q{SELECT has_table_privilege('stranger', 'reconcile.command_action', 'INSERT, UPDATE, DELETE, TRUNCATE') OR has_any_column_privilege('stranger', 'reconcile.command_action', 'INSERT, UPDATE')}),
	'f', 'which is not written');

# ----------------------------------------------------------------------
note 'EXECUTE is not the right: each function asks for its capability on its reconciler id';

sql($node, q{
	CREATE TABLE app.of_define (id text);
	ALTER TABLE app.of_define OWNER TO cap_define;
	GRANT EXECUTE ON ALL ROUTINES IN SCHEMA reconcile TO PUBLIC;
	GRANT USAGE ON SCHEMA app TO PUBLIC;
});
for my $id (qw(one two))
{
	sql($node, qq{
		SELECT reconcile.create_loop('$id', enabled => false);
		SELECT reconcile.acquire_lease('$id', 'h', '1 h');
		SELECT reconcile.watch('$id', 'app.of_define', 'id');
		CREATE TABLE app.guarded_$id (id text, last_epoch bigint NOT NULL);
		ALTER TABLE app.guarded_$id OWNER TO cap_define;
		SELECT reconcile.attach_fence('app.guarded_$id', '$id', 'id');
	});
}
for my $capability (@capabilities, 'none')
{
	my $role = $capability eq 'none' ? 'stranger' : "cap_$capability";
	my @names = sort grep { defined $function{$_}[1] } keys %function;
	my @wrong;

	for my $id (qw(one two))
	{
		my @calls = map { $function{$_}[1] =~ s/ID/$id/gr } @names;
		my @found = answers($role, @calls);
		for my $n (0 .. $#names)
		{
			my $expected = qr/^42501 permission denied for reconciler "$id"$/;
			# a procedure that commits is called in no block
			$expected = $function{ $names[$n] }[1] =~ /^CALL/ ? qr/^2D000/ : qr/^allowed$/ if $id eq 'one' && $function{ $names[$n] }[0] eq $capability;
			$expected = qr/^42501 permission denied to grant access$/ if $function{ $names[$n] }[0] eq 'nobody';
			$expected = qr/^42501 must be owner of loop "$id" to run it$/ if $names[$n] =~ /^run_/;
			push @wrong, "$calls[$n]: " . ($found[$n] // 'nothing') unless defined $found[$n] && $found[$n] =~ $expected;
		}
	}
	is(join("\n", @wrong), '', "$capability opens its functions, on its reconciler id, and no others");
}
sql($node, q{
	REVOKE EXECUTE ON ALL ROUTINES IN SCHEMA reconcile FROM PUBLIC;
	GRANT EXECUTE ON ROUTINE reconcile.here, reconcile.incarnation, reconcile.may_observe, reconcile.may_see_errors, reconcile.running, reconcile.worker_list,
		reconcile.loop_counts, reconcile.recent_runs, reconcile.health_checks,
		reconcile.current_run, reconcile.fenced_epoch, reconcile.fenced_write, reconcile.permanent_error TO PUBLIC;
	SELECT reconcile.drop_loop('one');
	SELECT reconcile.drop_loop('two');
	DROP TABLE app.guarded_one, app.guarded_two;
});

# ----------------------------------------------------------------------
note 'the owner of a loop, and of another';

sql($node, q{
	CREATE ROLE heir; GRANT loop_owner TO heir;
	CREATE ROLE neighbour;
	SELECT reconcile.grant_access('loop_owner', 'define', 'his');
	SELECT reconcile.grant_access('neighbour', 'define', 'other');
	SET SESSION AUTHORIZATION loop_owner;
	SELECT reconcile.create_loop('his', enabled => false);
	RESET SESSION AUTHORIZATION;
	SET SESSION AUTHORIZATION neighbour;
	SELECT reconcile.create_loop('other', enabled => false);
	RESET SESSION AUTHORIZATION;
	SELECT reconcile.revoke_access('loop_owner', 'define', 'his');
});
my @his = map { my $call = $function{$_}[1]; [ $_, $call ] } grep { defined $function{$_}[1] && $function{$_}[0] !~ /nobody/ && !/lease|watch|_fence$/ } sort keys %function;
for my $role (qw(loop_owner heir))
{
	is(join("\n", grep { !/^(?:allowed|2D000 .*)$/ } answers($role, map { $_->[1] =~ s/ID/his/gr } grep { $_->[0] !~ /^run_/ } @his)), '',
		"$role has all rights on his loop, without a grant");
	is(join("\n", grep { !/^42501 (?:permission denied for reconciler "other"|must be owner of loop "other" to run it)$/ }
			answers($role, map { $_->[1] =~ s/ID/other/gr } @his)), '', 'and none on that of another');
}
my ($run_by_owner) = answers('loop_owner', q{CALL reconcile.run_loop('his')});
like($run_by_owner, qr/^2D000/, 'he may run it himself, but in no block');
my ($run_by_heir) = answers('heir', q{CALL reconcile.run_loop('his')});
like($run_by_heir, qr/^42501/, 'a member of his role may not');
my ($run_by_superuser) = answers('postgres', q{CALL reconcile.run_loop('his')});
like($run_by_superuser, qr/^42501/, 'nor may a superuser, as whom it would run');

# ----------------------------------------------------------------------
note 'a right that is taken back counts for the next statement of an open session';

sql($node, q{
	CREATE ROLE caller; CREATE ROLE team; CREATE ROLE boss SUPERUSER;
	GRANT EXECUTE ON FUNCTION reconcile.enqueue, reconcile.pause_loop, reconcile.resume_loop TO caller, boss;
	SELECT reconcile.create_loop('work', enabled => false);
});
my $session = $node->background_psql('postgres', on_error_stop => 0);
$session->query('SET SESSION AUTHORIZATION caller');
sub in_session
{
	my ($call) = @_;
	$session->{stderr} = '';
	my $result = $session->query("SELECT app.answer(\$\$$call\$\$)");
	return $result =~ /^allowed/ ? 'allowed' : $result =~ /^42501 permission denied for reconciler/ ? 'refused' : $result;
}
my $enqueue = q{SELECT reconcile.enqueue('work', 'e')};

# [ how it is given, how it is taken away, what was done ]
my $inherit_off = $version >= 16 ? 'GRANT team TO caller WITH INHERIT FALSE' : 'ALTER ROLE caller NOINHERIT';
my $inherit_on = $version >= 16 ? 'GRANT team TO caller WITH INHERIT TRUE' : 'ALTER ROLE caller INHERIT';
for my $case (
	[ q{SELECT reconcile.grant_access('caller', 'trigger')}, q{SELECT reconcile.revoke_access('caller', 'trigger')}, 'a grant is revoked' ],
	[ q{SELECT reconcile.grant_access('caller', 'trigger', 'work')}, q{SELECT reconcile.revoke_access('caller', 'trigger', 'work')}, 'one on this id alone is revoked' ],
	[ q{SELECT reconcile.grant_access('team', 'trigger'); GRANT team TO caller}, 'REVOKE team FROM caller', 'the membership in a role that has it is revoked' ],
	[ 'GRANT team TO caller', $inherit_off, 'the membership inherits no more' ],
	[ $inherit_on, 'ALTER ROLE team RENAME TO crew', 'the role that has it is renamed' ],
	[ 'ALTER ROLE crew RENAME TO team', q{SELECT reconcile.revoke_access('team', 'trigger')}, 'the grant of that role is revoked' ],
	[ q{SELECT reconcile.grant_access('team', 'trigger')}, 'DROP OWNED BY team; DROP ROLE team', 'the role that has it is dropped' ],
	[ q{SELECT reconcile.alter_loop('work', '{"owner": "caller"}')}, q{SELECT reconcile.alter_loop('work', '{"owner": "postgres"}')}, 'the loop gets another owner' ],
	[ q{SELECT reconcile.alter_loop('work', '{"owner": "caller"}')},
		q{BEGIN; SELECT reconcile.drop_loop('work'); SELECT reconcile.create_loop('work', enabled => false); COMMIT}, 'the loop is made anew by another' ],
	[ 'ALTER ROLE caller SUPERUSER', 'ALTER ROLE caller NOSUPERUSER', 'a superuser is none any more' ])
{
	my ($give, $take, $name) = @$case;
	sql($node, $give);
	is(in_session($enqueue), 'allowed', "given, to be taken back thus: $name");
	is(in_session($enqueue), 'allowed', 'and again');
	sql($node, $take);
	is(in_session($enqueue), 'refused', "refused: $name");
}

# In one transaction, too.
for my $case (
	[ q{SELECT reconcile.grant_access('caller', 'trigger')}, q{SELECT reconcile.revoke_access('caller', 'trigger')}, 'a grant is revoked' ],
	[ q{CREATE ROLE team; SELECT reconcile.grant_access('team', 'trigger'); GRANT team TO caller}, 'REVOKE team FROM caller', 'a membership is revoked' ],
	[ 'GRANT team TO caller', 'DROP OWNED BY team; DROP ROLE team', 'the role that has it is dropped' ],
	[ q{SELECT reconcile.alter_loop('work', '{"owner": "caller"}')}, q{SELECT reconcile.alter_loop('work', '{"owner": "postgres"}')}, 'the loop gets another owner' ])
{
	my ($give, $take, $name) = @$case;
	sql($node, $give);
	$session->query('BEGIN');
	is(in_session($enqueue), 'allowed', "given, in a transaction, to be taken back thus: $name");
	sql($node, $take);
	is(in_session($enqueue), 'refused', "refused in the same transaction: $name");
	$session->query('ROLLBACK');
}

# A role of the same name is another one.
sql($node, q{
	CREATE ROLE team;
	GRANT EXECUTE ON FUNCTION reconcile.enqueue TO team;
	GRANT team TO caller;
});
is(sql($node, q{SELECT count(*) FROM reconcile.access_grant WHERE role_name = 'team'}), 1, 'the grant of a role that was dropped is still there');
is(in_session($enqueue), 'refused', 'a new role of its name inherits nothing of it');
sql($node, q{SELECT reconcile.grant_access('team', 'trigger')});
is(in_session($enqueue), 'allowed', 'until it is granted to it');
sql($node, q{REVOKE team FROM caller; SELECT reconcile.revoke_access('team', 'trigger')});

# What is kept for one capability, id or role is not taken for another.
sql($node, q{SELECT reconcile.grant_access('caller', 'trigger', 'work'); SELECT reconcile.create_loop('work_2', enabled => false)});
is(in_session($enqueue), 'allowed', 'a right on one id');
is(in_session(q{SELECT reconcile.enqueue('work_2', 'e')}), 'refused', 'is none on another');
is(in_session(q{SELECT reconcile.pause_loop('work')}), 'refused', 'nor another right on the same');
$session->query('RESET SESSION AUTHORIZATION; SET SESSION AUTHORIZATION stranger');
is(in_session(q{SELECT reconcile.may_observe('work')}), 'allowed', 'a stranger may ask what he may see');
is($session->query(q{SELECT reconcile.may_observe('work')}), 'f', 'which is nothing');
sql($node, q{GRANT EXECUTE ON FUNCTION reconcile.enqueue TO stranger});
is(in_session($enqueue), 'refused', 'and has not what the role before him in this session had');

sql($node, q{SELECT reconcile.grant_access('stranger', 'observe', 'work')});
is($session->query(q{SELECT string_agg(loop_name, ' ') FROM reconcile.loops}), 'work', 'an observer sees the loops in his scope');
sql($node, q{SELECT reconcile.revoke_access('stranger', 'observe', 'work')});
is($session->query(q{SELECT count(*) FROM reconcile.loops}), '0', 'and none once that is taken back');
$session->quit;

# ----------------------------------------------------------------------
note q{nothing of the caller runs with our rights};

# Wherever an event trigger finds a function by the search path, it must not
# find the caller's while we act as the owner of the schema.
sql($node, q{
	CREATE ROLE trickster; CREATE ROLE puppet; CREATE ROLE puppet_2;
	GRANT puppet, puppet_2 TO trickster;
	ALTER ROLE puppet LOGIN; ALTER ROLE puppet_2 LOGIN; ALTER ROLE trickster LOGIN;
	SELECT reconcile.grant_access('trickster', 'define');
	CREATE SCHEMA trick AUTHORIZATION trickster;
	CREATE TABLE app.fired (tag text, as_role name DEFAULT current_user, path text DEFAULT current_setting('search_path'));
	GRANT INSERT ON app.fired TO PUBLIC;
	CREATE FUNCTION app.on_ddl() RETURNS event_trigger LANGUAGE plpgsql AS $$
	BEGIN
		INSERT INTO app.fired (tag) VALUES (upper(tg_tag));
	END $$;
	CREATE EVENT TRIGGER on_ddl ON ddl_command_end EXECUTE FUNCTION app.on_ddl();
	CREATE EVENT TRIGGER on_drop ON sql_drop EXECUTE FUNCTION app.on_ddl();

	SET SESSION AUTHORIZATION trickster;
	CREATE TABLE trick.ran (as_role name);
	GRANT USAGE ON SCHEMA trick TO PUBLIC;
	GRANT INSERT ON trick.ran TO PUBLIC;
	CREATE TABLE trick.thing (id text);
	CREATE FUNCTION trick.upper(value text) RETURNS text LANGUAGE plpgsql AS $$
	BEGIN
		INSERT INTO trick.ran VALUES (current_user);
		RETURN value;
	END $$;
});
sql($node, q{TRUNCATE app.fired});
is(sql($node, q{
	SET SESSION AUTHORIZATION trickster;
	SET search_path = trick, pg_catalog;
	SELECT reconcile.create_loop('trick', owner => 'puppet', enabled => false);
	SELECT reconcile.alter_loop('trick', '{"owner": "puppet_2"}');
	SELECT reconcile.watch('trick', 'trick.thing', 'id');
	SELECT reconcile.watch('trick', 'trick.thing', 'id');
	SELECT reconcile.unwatch('trick', 'trick.thing');
	SELECT reconcile.watch('trick', 'trick.thing', 'id');
	SELECT reconcile.drop_loop('trick');
	SHOW search_path;
}) =~ /(\S.*)\z/ ? $1 : '', 'trick, pg_catalog', q{the caller's search path is what it was after each call});
cmp_ok(sql($node, q{SELECT count(*) FROM app.fired WHERE tag = 'GRANT'}), '>', 20, 'event triggers fired at our GRANTs');
is(sql($node, q{SELECT DISTINCT as_role FROM trick.ran WHERE as_role <> 'trickster'}), '', q{none of them called the caller's function as anybody but him});
is(sql($node, q{SELECT DISTINCT path FROM app.fired WHERE as_role <> 'trickster' AND path <> 'pg_catalog, pg_temp'}), '', 'as whoever we act, the path is fixed');
sql($node, q{DROP EVENT TRIGGER on_ddl; DROP EVENT TRIGGER on_drop});

# ----------------------------------------------------------------------
note q{a run in a session cannot get at what the session could be};

# Deferred triggers and cursors WITH HOLD run at COMMIT.
sql($node, q{
	CREATE ROLE actor LOGIN;
	SELECT reconcile.grant_access('actor', 'define');
	CREATE TABLE app.tried (place text, command text, answer text, as_role name DEFAULT current_user, super text DEFAULT current_setting('is_superuser'));
	CREATE TABLE app.late (entity text);
	GRANT ALL ON app.tried, app.late TO PUBLIC;
	-- tries all ways back to the session's own user, and notes what each came to
	CREATE FUNCTION app.escape(place text) RETURNS int LANGUAGE plpgsql AS $$
	DECLARE
		command text;
		said text;
	BEGIN
		FOREACH command IN ARRAY ARRAY['RESET ROLE', 'SET ROLE NONE', 'SET ROLE postgres', 'SET LOCAL ROLE postgres',
			'SET SESSION AUTHORIZATION DEFAULT', 'RESET SESSION AUTHORIZATION', 'SET SESSION AUTHORIZATION postgres',
			'SELECT set_config(''role'', ''none'', true)', 'SELECT set_config(''role'', ''postgres'', false)',
			'SELECT set_config(''session_authorization'', ''postgres'', false)', 'SELECT app.as_nobody()', 'ALTER ROLE actor SUPERUSER'] LOOP
			BEGIN
				said := 'done';
				EXECUTE command;
			EXCEPTION WHEN OTHERS THEN
				said := SQLSTATE;
			END;
			INSERT INTO app.tried (place, command, answer) VALUES (place, command, said);
		END LOOP;
		RETURN 1;
	END $$;
	CREATE FUNCTION app.as_nobody() RETURNS void LANGUAGE sql SET role = 'none' AS $$ INSERT INTO app.tried (place) VALUES ('within') $$;
	CREATE FUNCTION app.late() RETURNS trigger LANGUAGE plpgsql AS $$
	BEGIN
		PERFORM app.escape('deferred trigger');
		IF NEW.entity = 'fails late' THEN RAISE 'at COMMIT'; END IF;
		RETURN NULL;
	END $$;
	CREATE CONSTRAINT TRIGGER late AFTER INSERT ON app.late
		DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION app.late();

	SET SESSION AUTHORIZATION actor;
	CREATE FUNCTION app.act(entity text) RETURNS interval LANGUAGE plpgsql AS $$
	BEGIN
		IF entity = 'cursor' THEN
			EXECUTE 'DECLARE held CURSOR WITH HOLD FOR SELECT app.escape(''held cursor'')';
		ELSIF entity IN ('deferred', 'fails late') THEN
			INSERT INTO app.late VALUES (entity);
		ELSIF entity = 'fails' THEN
			RAISE 'on purpose';
		ELSIF entity = 'catches' THEN
			BEGIN RAISE 'on purpose'; EXCEPTION WHEN OTHERS THEN NULL; END;
			PERFORM app.escape('after an exception');
		ELSE
			PERFORM app.escape('run');
		END IF;
		RETURN NULL;
	END $$;
	SELECT reconcile.create_loop('act', 'app.act', default_requeue => NULL, backoff_base => '1 h', backoff_max => '1 h');
	SELECT reconcile.enqueue('act', e) FROM unnest('{a,deferred,cursor,catches,fails,after a failure,fails late,after a failed commit}'::text[]) e;
});
is(sql($node, q{SET ROLE actor; CALL reconcile.run_loop('act'); SELECT current_user, session_user; RESET ROLE; SELECT current_user}),
	"actor|postgres\npostgres", 'after run_loop() the session is what it was');
is(sql($node, q{SELECT string_agg(entity_id, ', ' ORDER BY entity_id) FROM reconcile.work WHERE loop_name = 'act'}),
	'fails, fails late', 'all has run, and what was to fail failed');
is(sql($node, q{SELECT place, count(*) FROM app.tried GROUP BY place ORDER BY place}),
	"after an exception|12\ndeferred trigger|12\nheld cursor|12\nrun|36", 'each place tried all ways');
is(sql($node, q{SELECT DISTINCT place, command, answer FROM app.tried WHERE answer <> '42501'}), '', 'each of them is refused');
is(sql($node, q{SELECT DISTINCT as_role, super FROM app.tried}), 'actor|off', q{and leaves it the loop's owner});
is(sql($node, q{SELECT rolsuper FROM pg_roles WHERE rolname = 'actor'}), 'f', 'who has won nothing');

# It runs the caller's loops, as the catalogue has them at each run.
sql($node, q{
	CREATE ROLE successor LOGIN;
	GRANT successor TO actor;
	CREATE TABLE app.handed (entity text, as_role name DEFAULT current_user);
	GRANT ALL ON app.handed TO PUBLIC;
	CREATE FUNCTION app.hand_over(entity text) RETURNS void LANGUAGE plpgsql AS $$
	BEGIN
		INSERT INTO app.handed VALUES (entity);
		PERFORM reconcile.alter_loop('handed', '{"owner": "successor"}');
	END $$;
	SET SESSION AUTHORIZATION actor;
	SELECT reconcile.create_loop('handed', 'app.hand_over', default_requeue => NULL);
	SELECT reconcile.enqueue('handed', e) FROM unnest('{a,b}'::text[]) e;
});
sql($node, q{SET SESSION AUTHORIZATION actor; CALL reconcile.run_loop('handed')});
is(sql($node, q{SELECT * FROM app.handed}), 'a|actor', 'a loop that a run gives to another role is run no further');
is(sql($node, q{SET SESSION AUTHORIZATION successor; CALL reconcile.run_loop('handed'); SELECT * FROM app.handed}), "a|actor\nb|successor", 'but by its new owner');

# ----------------------------------------------------------------------
note 'error texts are for the owner and for "operate"';

sql($node, q{
	CREATE ROLE watcher; CREATE ROLE operator; CREATE ROLE understudy; GRANT actor TO understudy;
	SELECT reconcile.grant_access(r, 'observe', 'secretive') FROM unnest('{watcher,operator}'::name[]) r;
	SELECT reconcile.grant_access('operator', 'operate', 'secretive');
	CREATE FUNCTION app.tell(what text) RETURNS boolean LANGUAGE plpgsql COST 0.0001 AS
		$$ BEGIN IF what LIKE '%secret %' THEN RAISE 'told'; END IF; RETURN true; END $$;
	SET SESSION AUTHORIZATION actor;
	CREATE FUNCTION app.fail(entity text) RETURNS void LANGUAGE plpgsql AS $$
	BEGIN
		IF entity = 'dies' THEN PERFORM reconcile.permanent_error('a secret of it'); END IF;
		RAISE 'a secret of it';
	END $$;
	SELECT reconcile.create_loop('secretive', 'app.fail', backoff_base => '1 h', backoff_max => '1 h');
	SELECT reconcile.enqueue_many('secretive', '{dies,fails}');
});
sql($node, q{SET SESSION AUTHORIZATION actor; CALL reconcile.run_loop('secretive')});
my $all = q{SELECT 'work', entity_id, state, last_sqlstate, last_error FROM reconcile.work WHERE loop_name = 'secretive'
	UNION ALL SELECT 'dead_letters', entity_id, 'dead', last_sqlstate, last_error FROM reconcile.dead_letters WHERE loop_name = 'secretive' ORDER BY 1, 2};
is(sql($node, "SET SESSION AUTHORIZATION $_; $all"),
	"dead_letters|dies|dead|RC004|a secret of it\nwork|dies|dead|RC004|a secret of it\nwork|fails|retrying|P0001|a secret of it", "$_ sees them")
  for qw(actor understudy operator postgres);
is(sql($node, "SET SESSION AUTHORIZATION watcher; $all"),
	"dead_letters|dies|dead|RC004|\nwork|dies|dead|RC004|\nwork|fails|retrying|P0001|", 'an observer sees that there was an error, and its SQLSTATE');
is(sql($node, "SET SESSION AUTHORIZATION stranger; $all"), '', 'a stranger sees nothing');
for my $role (qw(watcher stranger))
{
	is(sql($node, "SET SESSION AUTHORIZATION $role; SELECT count(*) FROM reconcile.$_ v WHERE app.tell(v::text) AND app.tell(last_error)"),
		$role eq 'stranger' ? 0 : $_ eq 'work' ? 2 : 1, "nor does a cheap function of a $role get at them in $_")
	  for qw(work dead_letters);
}

# ----------------------------------------------------------------------
note 'a plan with parallel workers breaks none of the functions and views';

# Only this database has an engine, and so runs in flight that are asked for.
$node->safe_psql('postgres', 'CREATE DATABASE engine');
my $engine = [ $node, 'engine' ];
sql($engine, 'CREATE EXTENSION reconcile');
prepare($engine);
make_loop($engine, 'held', options => q{lease_ttl => '1 h'});
sql($engine, q{
	SELECT reconcile.grant_access('watcher', 'observe');
	CREATE TABLE app.many AS SELECT n, 'held' AS loop_name FROM generate_series(1, 2000) n;
	GRANT SELECT ON app.many TO PUBLIC;
	ANALYZE app.many;
});
my $gate = close_gate($engine, 'held');
enqueue($engine, 'held', 'a');
wait_held($engine, 'held', 1);
my $force = $version >= 16 ? 'debug_parallel_query' : 'force_parallel_mode';
my $parallel = "SET SESSION AUTHORIZATION watcher; SET $force = on; SET min_parallel_table_scan_size = 0; SET parallel_setup_cost = 0;
	SET parallel_tuple_cost = 0; SET max_parallel_workers_per_gather = 2;";
like(sql($engine, "$parallel EXPLAIN SELECT count(*) FROM app.many"), qr/Gather/, 'a scan of a table has parallel workers');
is(sql($engine, "$parallel SELECT count(*) FROM app.many m, reconcile.running() r"), 2000, 'beside running()');
is(sql($engine, "$parallel SELECT count(*) FROM app.many m JOIN reconcile.running() r USING (loop_name) WHERE m.n % 2 = 0"), 1000, 'joined with it');
is(sql($engine, "$parallel SELECT count(*) FROM app.many m, generate_series(1, 2), reconcile.running() r"), 4000, 'and with more');
cmp_ok(sql($engine, "$parallel SELECT count(*) FROM app.many m, reconcile.worker_list() w"), '>=', 6000, 'beside worker_list()');
is(sql($engine, "$parallel SELECT count(*) FROM app.many WHERE reconcile.may_observe(loop_name)"), 2000, 'may_observe() on its rows');
is(sql($engine, "$parallel SELECT count(*) FROM app.many WHERE NOT reconcile.may_see_errors(loop_name)"), 2000, 'may_see_errors()');
is(sql($engine, "$parallel SELECT count(*) FROM app.many m LEFT JOIN reconcile.current_run() c USING (loop_name) WHERE c.epoch IS NULL AND reconcile.fenced_epoch(loop_name) IS NULL"),
	2000, 'current_run() and fenced_epoch()');
for my $view (split /\n/, sql($engine, q{SELECT relname FROM pg_class WHERE relnamespace = 'reconcile'::regnamespace AND relkind = 'v'
	AND has_table_privilege('watcher', oid, 'SELECT') ORDER BY 1}))
{
	my $rows = sql($engine, "SET SESSION AUTHORIZATION watcher; SELECT count(*) FROM reconcile.$view");
	is(sql($engine, "$parallel SELECT count(*) FROM app.many m, reconcile.$view v"), 2000 * $rows, "the view $view");
}
$gate->open;
wait_quiet($engine, 'held');

finish();
