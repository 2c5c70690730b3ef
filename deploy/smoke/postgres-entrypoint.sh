#!/bin/bash
# What compose.yaml needs of the official image's entry point: at the first start make the data, the user and the
# database; then be the server, as user postgres.
set -euo pipefail

as_postgres() { setpriv --reuid=999 --regid=999 --clear-groups "$@"; }

if [ ! -s "$PGDATA/PG_VERSION" ]; then
    : "${POSTGRES_PASSWORD:?must be set}"
    user=${POSTGRES_USER:-postgres}
    mkdir -p "$PGDATA"
    chown -R 999:999 /var/lib/postgresql
    chmod 700 "$PGDATA"
    password=$(umask 077 && mktemp)
    printf '%s\n' "$POSTGRES_PASSWORD" >"$password"
    chown 999 "$password"
    as_postgres initdb --username="$user" --pwfile="$password" \
        --auth-local=trust --auth-host=scram-sha-256 --encoding=UTF8 --locale=C
    rm "$password"
    echo 'host all all all scram-sha-256' >>"$PGDATA/pg_hba.conf"
    if [ "${POSTGRES_DB:-$user}" != postgres ]; then
        as_postgres pg_ctl --wait start -o "-c listen_addresses= -c unix_socket_directories=/tmp"
        as_postgres createdb --host=/tmp --username="$user" "${POSTGRES_DB:-$user}"
        as_postgres pg_ctl --wait --mode=fast stop
    fi
fi
exec setpriv --reuid=999 --regid=999 --clear-groups "$@" -c listen_addresses='*' -c unix_socket_directories=/tmp
