//! Real servers for tests: Postgres clusters and Temporal, started and stopped by process id.
