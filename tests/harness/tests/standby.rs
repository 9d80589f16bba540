//! A standby follows its primary, and can be decoded from where Postgres allows it.

use anyhow::{Context, Result};
use monarch_harness::{Cluster, ClusterOptions, PgVersion, Standby};

/// Made from a running primary, of the oldest kind, of Debian's build and of the newest.
#[tokio::test]
async fn a_standby_replays_what_the_primary_commits() -> Result<()> {
    for version in [PgVersion::V14, PgVersion::V15, PgVersion::V18] {
        let primary = Cluster::start(ClusterOptions::new(version)).await?;
        let client = primary.admin("postgres").await?;
        client
            .batch_execute("create table before as select generate_series(1, 1000) n")
            .await?;
        let standby = Standby::of(&primary).await?;
        client
            .batch_execute("create table after as select 1 n")
            .await?;
        standby.catch_up(&primary).await?;

        let reader = standby.admin("postgres").await?;
        let rows =
            "select pg_is_in_recovery(), (select count(*) from before) + count(*) from after";
        let row = reader.query_one(rows, &[]).await?;
        assert_eq!(
            (row.get::<_, bool>(0), row.get::<_, i64>(1)),
            (true, 1001),
            "{version}"
        );

        let feedback = "select active and xmin is not null from pg_replication_slots \
                        where slot_name = $1";
        let fed = async || -> Result<Option<bool>> {
            Ok(client.query_one(feedback, &[&standby.slot()]).await?.get(0))
        };
        while fed().await? != Some(true) {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    }
    Ok(())
}

/// Decoding on a standby waits for a record of running transactions, which a quiet primary has to
/// be asked for.
#[tokio::test]
async fn a_standby_of_16_is_decoded_from() -> Result<()> {
    let primary = Cluster::start(ClusterOptions::new(PgVersion::V16)).await?;
    let standby = Standby::of(&primary).await?;
    let reader = standby.admin("postgres").await?;
    let made = tokio::spawn(async move {
        let query = "select lsn::text from pg_create_logical_replication_slot('s', 'pgoutput')";
        reader
            .query_one(query, &[])
            .await
            .context("make a slot on the standby")
    });
    let client = primary.admin("postgres").await?;
    while !made.is_finished() {
        client
            .batch_execute("select pg_log_standby_snapshot()")
            .await?;
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    assert!(!made.await??.get::<_, String>(0).is_empty());
    Ok(())
}
