# shellcheck shell=bash
#
# The server of scripts/test --cassert, which sources it: Debian's PostgreSQL 15
# from its source package, with the assertions on, in $CACHE/cassert. Made when
# first needed, in some minutes, and kept.

CASSERT_PACKAGES=(dpkg-dev gcc make libc6-dev bison flex perl libipc-run-perl)
CASSERT_CONFIGURE=(--enable-cassert --enable-debug --enable-tap-tests --without-readline
    --without-zlib --with-system-tzdata=/usr/share/zoneinfo CFLAGS='-O1 -fno-omit-frame-pointer')

# apt_source FOLDER PACKAGE: the unpacked source, with Debian's patches, below
# FOLDER. The machine's own list of sources stays as it is.
apt_source() {
    local folder=$1 package=$2
    local options=(-o "Dir::Etc::sourcelist=$folder/sources.list" -o Dir::Etc::sourceparts=-
        -o "Dir::State::lists=$folder/lists" -o APT::Sandbox::User=root -qq)

    mkdir -p "$folder/lists/partial"
    cat >"$folder/sources.list" <<'END'
deb-src http://deb.debian.org/debian bookworm main
deb-src http://deb.debian.org/debian bookworm-updates main
deb-src http://deb.debian.org/debian-security bookworm-security main
END
    apt-get "${options[@]}" update
    # a mirror may lack the sources of updates
    (cd "$folder" && { apt-get "${options[@]}" source "$package" || apt-get "${options[@]}" source "$package/bookworm"; }) \
        </dev/null >"$folder/source.log" 2>&1 || { cat "$folder/source.log" >&2; return 1; }
}

# What the suites use of other Debian packages; modules of one major version fit.
cassert_copy_extensions() {
    local pg_config=$1 name sharedir

    sharedir=$("$pg_config" --sharedir)
    for name in pgtap pg_cron; do
        cp -p /usr/share/postgresql/15/extension/"$name"* "$sharedir/extension/"
    done
    cp -p /usr/lib/postgresql/15/lib/pg_cron.so "$("$pg_config" --pkglibdir)/"
}

# Sets CASSERT_PG_CONFIG.
ensure_cassert_server() {
    # Debian's patches put the modules of a server without "postgres" in its path
    # into /usr/lib. Built as a user who may not write there.
    local root=$CACHE/cassert prefix=$CACHE/cassert/postgresql partial source stamp

    CASSERT_PG_CONFIG=$prefix/bin/pg_config
    # one that is there is whole: the stamp is written last
    stamp="${CASSERT_CONFIGURE[*]} pg_walinspect"
    mkdir -p "$CACHE"
    exec 9>"$CACHE/cassert.lock"
    flock 9
    if [[ ! -f $root/stamp || $(<"$root/stamp") != "$stamp" ]]; then
        install_packages "${CASSERT_PACKAGES[@]}"
        say "building a server with assertions in $root (once)"
        partial=$(mktemp -d "$CACHE/cassert.partial.XXXXXX")
        WORKDIRS+=("$partial")
        rm -rf "$root"
        mkdir -p "$prefix"
        apt_source "$partial" postgresql-15
        source=$(find "$partial" -mindepth 1 -maxdepth 1 -type d -name 'postgresql-15-*')
        chown -R "$TEST_USER" "$partial" "$prefix"
        chmod 755 "$partial"
        # shellcheck disable=SC2016 # expanded by the inner shell
        run_child runuser -u "$TEST_USER" -- bash -ec '
            cd "$1" && prefix=$2 && shift 2
            exec >../build.log 2>&1
            ./configure -q --prefix="$prefix" "$@"
            make -s -j "$(nproc)" all
            make -s install
            make -s -C contrib/pg_walinspect install
            touch ../built' build "$source" "$prefix" "${CASSERT_CONFIGURE[@]}"
        if [[ ! -f $partial/built ]]; then
            tail -n 40 "$partial/build.log" >&2
            return 1
        fi
        cassert_copy_extensions "$CASSERT_PG_CONFIG"
        printf '%s' "$stamp" >"$root/stamp"
    fi
    exec 9>&-
}
