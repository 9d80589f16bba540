#!/usr/bin/env bash
# Lets the standby and Monarch connect for replication, and gives the standby a slot of its own.
set -euo pipefail
echo "host replication all all scram-sha-256" >> "$PGDATA/pg_hba.conf"
psql --username postgres --command "select pg_create_physical_replication_slot('standby')"
