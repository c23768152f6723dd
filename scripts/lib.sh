# shellcheck shell=bash
#
# What scripts/test, scripts/demo and scripts/bench share: packages, a private
# copy of the checkout, a build into a folder of its own, and a throw-away
# cluster on it. Nothing here touches a cluster or a PostgreSQL installation of
# the machine; each caller works below one temporary folder.
#
# Source it; it sets no traps and starts nothing by itself.

# The server refuses to run as root, so all but installing packages is done as
# this user, whom Debian's server package creates.
# shellcheck disable=SC2034 # read by the scripts that source this
TEST_USER=postgres

say() {
    printf '%s\n' "$*"
}

die() {
    printf '%s: %s\n' "${0##*/}" "$*" >&2
    exit 1
}

# Starts the calling script anew under sudo unless it is root already. Call it
# as: need_root "$@"
need_root() {
    [[ $EUID -eq 0 ]] && return
    command -v sudo >/dev/null || die "run this as root, or install sudo"
    exec sudo -- "$0" "$@"
}

# Installs those of the named Debian packages that are missing. Asks dpkg
# first, so that the second run needs neither network nor time.
install_packages() {
    local package missing=()

    for package in "$@"; do
        [[ $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) == installed ]] ||
            missing+=("$package")
    done
    ((${#missing[@]})) || return 0

    say "installing: ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    # Another process may hold dpkg's lock on a machine that has just started.
    apt-get update -qq
    without_services apt-get install -y -qq --no-install-recommends -o DPkg::Lock::Timeout=300 \
        "${missing[@]}" </dev/null >/dev/null
    # Programs that are wanted here, of packages that would also be services
    # from the next start of the machine on.
    for package in "${missing[@]}"; do
        case $package in
            pgbouncer | prometheus) update-rc.d "$package" disable >/dev/null ;;
        esac
    done
}

# Runs a command during which Debian's packages start no service, unless the
# machine has a policy of its own. The policy goes however the command ends.
without_services() (
    policy=/usr/sbin/policy-rc.d

    if [[ ! -e $policy ]]; then
        trap 'rm -f "$policy"' EXIT
        printf '#!/bin/sh\nexit 101\n' >"$policy"
        chmod 755 "$policy"
    fi
    "$@"
)

# Copies the checkout $1 to the new folder $2: what git knows and what it does
# not know yet, but no build products. Works on an unpacked archive, too.
copy_checkout() {
    local from=$1 to=$2

    mkdir -p "$to"
    if git -c safe.directory='*' -C "$from" rev-parse --git-dir >/dev/null 2>&1; then
        # A file that was deleted but not yet committed is still listed.
        git -c safe.directory='*' -C "$from" ls-files -z --cached --others --exclude-standard |
            (cd "$from" && while IFS= read -r -d '' name; do
                [[ -e $name || -L $name ]] && printf '%s\0' "$name"
            done; true) |
            tar -C "$from" --null --no-recursion -T - -c | tar -C "$to" -x
    else
        tar -C "$from" --exclude='*.o' --exclude='*.so' -c . | tar -C "$to" -x
    fi
}

# in_private_copy PACKAGES [RESULT FILE]...: the outer half of a script that
# measures. As root it installs the packages (a list in one word) and starts the
# script that called it once more, as TEST_USER, from a copy of its checkout
# $here in a temporary folder, with its arguments $arguments and "--inner
# FOLDER". Each RESULT in that folder is copied to FILE; the rest goes, unless
# $keep is set when the script ends.
in_private_copy() {
    local packages=$1 dir

    shift
    # shellcheck disable=SC2154 # the caller's
    need_root "${arguments[@]}"
    # shellcheck disable=SC2086 # a list
    install_packages $packages
    dir=$(mktemp -d "/tmp/reconcile-${0##*/}.XXXXXX")
    # shellcheck disable=SC2064,SC2154 # the folder is known now, and $keep the caller's
    trap "kill_servers_below '$dir'
        if [[ -n \${keep:-} ]]; then say 'kept: $dir'; else rm -rf '$dir'; fi" EXIT
    # shellcheck disable=SC2154 # the caller's
    copy_checkout "$here" "$dir/source"
    chown -R "$TEST_USER" "$dir"
    runuser -u "$TEST_USER" -- bash "$dir/source/scripts/${0##*/}" "${arguments[@]}" --inner "$dir"
    while (($#)); do
        cp "$dir/$1" "$2"
        shift 2
    done
}

# build_extension SOURCE BUILD DESTDIR PG_CONFIG CC [VARIABLE=VALUE...]: compiles
# in BUILD (which may be SOURCE) and installs below DESTDIR; an empty DESTDIR
# installs nothing. The variables are for make.
build_extension() {
    local source=$1 build=$2 destdir=$3 pg_config=$4 cc=$5
    local make=(make -s -O)

    # Run in its own folder, so that PGXS takes it as an in-place build.
    [[ $source == "$build" ]] || make+=(-f "$source/Makefile")
    make+=("PG_CONFIG=$pg_config" "CC=$cc" "${@:6}")

    mkdir -p "$build"
    (cd "$build" && "${make[@]}" -j "$(nproc)" all) || return
    [[ -n $destdir ]] || return 0
    (cd "$build" && "${make[@]}" install "DESTDIR=$destdir" >/dev/null)
}

# Prints the settings by which a server finds the extension below DESTDIR $1,
# for the server of pg_config $2. Debian's patch adds extension_destdir up to
# 17; from 18 PostgreSQL has a setting of its own.
private_install_conf() {
    local destdir=$1 pg_config=$2
    local sharedir pkglibdir

    sharedir=$("$pg_config" --sharedir)
    pkglibdir=$("$pg_config" --pkglibdir)
    # Not grep -q: it would break the pipe, which counts as a failure.
    if "$("$pg_config" --bindir)/postgres" --describe-config | grep '^extension_control_path' >/dev/null; then
        say "extension_control_path = '$destdir$sharedir:\$system'"
    else
        say "extension_destdir = '$destdir'"
    fi
    say "dynamic_library_path = '$destdir$pkglibdir:\$libdir'"
    say "shared_preload_libraries = 'reconcile'"
}

# cluster_start DATA SOCKETS LOG DESTDIR PG_CONFIG [CONF-FILE]: makes a cluster
# in the folder DATA, reachable only by its socket in the folder SOCKETS, with
# the extension preloaded, and starts it. Clusters in other folders may run
# beside it on the same port number, as they share no socket folder.
cluster_start() {
    local data=$1 sockets=$2 log=$3 destdir=$4 pg_config=$5 conf=${6:-}
    local bindir

    bindir=$("$pg_config" --bindir)
    mkdir -p "$sockets"
    "$bindir/initdb" -D "$data" -U postgres -A trust -N --no-locale -E UTF8 >"$log.initdb" 2>&1 ||
        { cat "$log.initdb" >&2; return 1; }
    {
        private_install_conf "$destdir" "$pg_config"
        say "unix_socket_directories = '$sockets'"
        say "listen_addresses = ''"
        # A crash of the machine loses nothing that anybody wants.
        say "fsync = off"
        # test/tap/ServerLog.pm reads lines of this shape.
        say "log_line_prefix = '%m [%p] %q%a '"
        [[ -z $conf || ! -f $conf ]] || cat "$conf"
    } >>"$data/postgresql.conf"

    "$bindir/pg_ctl" -D "$data" -l "$log" -w -s start ||
        { tail -n 40 "$log" >&2; return 1; }
}

# cluster_stop DATA PG_CONFIG [MODE]
cluster_stop() {
    local data=$1 pg_config=$2 mode=${3:-fast}

    [[ -f $data/postmaster.pid ]] || return 0
    "$("$pg_config" --bindir)/pg_ctl" -D "$data" -m "$mode" -w -s stop
}

# Ends whatever servers still run below the folder $1, if a script was ended
# before it could stop them. A postmaster writes its pid and folder to a file
# there; a pid that was since given to something else has another folder.
kill_servers_below() {
    local file pid

    [[ -d $1 ]] || return 0
    while IFS= read -r file; do
        read -r pid <"$file" || continue
        if [[ $(readlink "/proc/$pid/cwd") == "$(readlink -f "${file%/*}")" ]]; then
            kill -QUIT "$pid" 2>/dev/null || true
        fi
    done < <(find "$1" -name postmaster.pid -type f 2>/dev/null)
}
