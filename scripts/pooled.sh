# shellcheck shell=bash disable=SC2154 # what run-suites sets
#
# The suite "pooled" of run-suites, which sources it: regress, isolation and
# pgTAP once more, through pgbouncer in transaction mode with four connections
# to the server, of which each transaction gets the next one. The isolation tester
# needs a pgbouncer that knows prepared statements in this mode, from 1.21 on,
# and so another Debian than that of PostgreSQL 15.
#
# test/pooled/exclude lists what can have no meaning behind a pooler.

POOLER_PORT=6432
POOLER_SIZE=4
POOLER_PID=

pooler_start() {
    local out=$WORKDIR/pooled tries

    mkdir -p "$out"
    # those of the examples, too
    printf '"%s" ""\n' postgres fleet_worker cron_worker host_1 host_2 >"$out/users"
    cat >"$out/pgbouncer.ini" <<END
[databases]
* = host=$SOCKETS port=5432

[pgbouncer]
unix_socket_dir = $out
listen_port = $POOLER_PORT
auth_type = trust
auth_file = $out/users
admin_users = postgres
logfile = $out/pgbouncer.log
pool_mode = transaction
default_pool_size = $POOLER_SIZE
max_db_connections = $POOLER_SIZE
server_round_robin = 1
server_idle_timeout = 0
END
    [[ $VERSION == 15 ]] || say 'max_prepared_statements = 100' >>"$out/pgbouncer.ini"
    pgbouncer -q "$out/pgbouncer.ini" </dev/null >"$out/pgbouncer.out" 2>&1 &
    POOLER_PID=$!
    for ((tries = 0; tries < 100; tries++)); do
        pooled_psql pgbouncer -c 'SHOW VERSION' >"$out/version" 2>&1 && return
        sleep 0.1
    done
    cat "$out/version" "$out/pgbouncer.out" "$out/pgbouncer.log" >&2
    return 1
}

pooler_stop() {
    [[ -n $POOLER_PID ]] || return 0
    kill -INT "$POOLER_PID" 2>/dev/null || true
    wait "$POOLER_PID" 2>/dev/null || true
    POOLER_PID=
}

# pooled_psql DATABASE ARGUMENT...
pooled_psql() {
    "$BINDIR/psql" -h "$WORKDIR/pooled" -p "$POOLER_PORT" -U postgres -X -q -A -t -v ON_ERROR_STOP=1 -d "$@"
}

# Makes the database $1, and opens all connections of its pool: clients that
# come together wait until they are as many as it may have.
pooled_database() {
    local psql=("$BINDIR/psql" -h "$SOCKETS" -U postgres -X -q -v ON_ERROR_STOP=1) client clients=()

    "${psql[@]}" -d postgres -c "CREATE DATABASE $1 TEMPLATE template0" &&
        "${psql[@]}" -d "$1" -c 'CREATE EXTENSION reconcile' || return
    for ((client = 0; client < POOLER_SIZE; client++)); do
        pooled_psql "$1" -c "
            SET LOCAL statement_timeout = '30 s';
            DO 'BEGIN
                    WHILE (SELECT count(*) FROM pg_stat_activity
                            WHERE datname = current_database() AND backend_type = ''client backend'') < $POOLER_SIZE LOOP
                        PERFORM pg_stat_clear_snapshot(), pg_sleep(0.01);
                    END LOOP;
                END'" 2>/dev/null &
        clients+=($!)
    done
    wait "${clients[@]}"
}

# pooled_schedule SUITE SCHEDULE: without what is excluded
pooled_schedule() {
    local out=$WORKDIR/pooled/$1.schedule

    scheduled "$2" | grep -vxF -f <(sed -n "s/^$1 \([a-z0-9_]*\):.*/\1/p" "$SOURCE/test/pooled/exclude") |
        sed 's/^/test: /' >"$out"
    say "$out"
}

# Sets what the isolation tester needs to find its sessions' servers.
pooled_isolation_sessions() {
    local spec

    {
        say 'CREATE SCHEMA pooled; CREATE TABLE pooled.session (spec text, place int, name text);'
        for spec in "$SOURCE"/test/isolation/specs/*.spec; do
            sed -n 's/^session[[:space:]]*"\{0,1\}\([A-Za-z0-9_]*\).*/\1/p' "$spec" | awk -v spec="$(basename "$spec" .spec)" \
                '{ printf "INSERT INTO pooled.session VALUES (\047%s\047, %d, \047%s\047);\n", spec, NR, $1 }'
        done
        cat "$SOURCE/test/pooled/isolation.sql"
    } >"$WORKDIR/pooled/isolation.sql"
    "$BINDIR/psql" -h "$SOCKETS" -U postgres -X -q -v ON_ERROR_STOP=1 -d "$1" -f "$WORKDIR/pooled/isolation.sql"
}

# The database's pool has its four connections to the server, and no fifth.
pooled_servers() {
    local servers

    servers=$(pooled_psql pgbouncer -F ' ' -c 'SHOW SERVERS' | awk -v database="$1" '$3 == database' | wc -l)
    if ((servers != POOLER_SIZE)); then
        say "$1 has $servers connections to the server, not $POOLER_SIZE"
        count pooled 0 1 0
    fi
}

# pooled_wanted FOLDER EXTENSION: of the names given with --only, those of this
# kind; true if there is one, or if all are wanted.
pooled_wanted() {
    local name

    ((${#ASKED[@]})) || return 0
    ONLY=()
    for name in "${ASKED[@]}"; do
        [[ ! -f $SOURCE/$1/$name.$2 ]] || ONLY+=("$name")
    done
    ((${#ONLY[@]}))
}

run_pooled() {
    local ASKED=("${ONLY[@]}")
    local options=(--host="$WORKDIR/pooled" --port="$POOLER_PORT" --use-existing)

    if ! pooler_start || ! pooled_database reconcile_pooled_regress || ! pooled_database reconcile_pooled_isolation ||
        ! pooled_isolation_sessions reconcile_pooled_isolation; then
        count pooled 0 1 0
        pooler_stop
        return
    fi
    if pooled_wanted sql sql; then
        run_pg_regress pooled_regress "$PGXS_TEST/regress/pg_regress" "$SOURCE" \
            "$(pooled_schedule regress "$SOURCE/sql/schedule")" "${options[@]}" --launcher="$SOURCE/test/pooled/psql"
        pooled_servers reconcile_pooled_regress
    fi
    if pooled_wanted test/isolation/specs spec; then
        run_pg_regress pooled_isolation "$PGXS_TEST/isolation/pg_isolation_regress" "$SOURCE/test/isolation" \
            "$(pooled_schedule isolation "$SOURCE/test/isolation/schedule")" "${options[@]}"
        pooled_servers reconcile_pooled_isolation
    fi
    if pooled_wanted test/pgtap sql; then
        run_pgtap pooled_pgtap "$WORKDIR/pooled" "$POOLER_PORT"
    fi
    pooler_stop
}
