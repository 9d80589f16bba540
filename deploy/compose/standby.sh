#!/usr/bin/env bash
# Copies the primary once and follows it: Monarch decodes here, and the primary keeps what it needs.
set -euo pipefail
export PGDATA=/var/lib/postgresql/data/standby
if [ ! -s "$PGDATA/PG_VERSION" ]; then
  pg_basebackup --host source-primary --username postgres --pgdata "$PGDATA" \
    --write-recovery-conf --slot standby
fi
exec postgres -c hot_standby_feedback=on -c wal_level=logical -c max_replication_slots=20 \
  -c max_wal_senders=20 -c max_slot_wal_keep_size=4GB
