//! Everything Monarch asks of Postgres, and nothing of Temporal.
