//! What tests of Monarch rely on when they start, kill and pause clusters.

use anyhow::Result;
use monarch_harness::{Cluster, ClusterOptions, PgVersion, fresh_name, shared};
use tokio_postgres::error::SqlState;

async fn number(cluster: &Cluster, database: &str, query: &str) -> Result<i32> {
    Ok(cluster
        .admin(database)
        .await?
        .query_one(query, &[])
        .await?
        .get(0))
}

/// Each version is really the one asked for, and can be decoded from.
#[tokio::test]
async fn every_version_starts_and_decodes() -> Result<()> {
    for version in PgVersion::ALL {
        let cluster = shared::cluster(version).await;
        let database = fresh_name("decodes");
        cluster.create_database(&database).await?;
        let found = "select current_setting('server_version_num')::int / 10000";
        assert_eq!(
            number(cluster, &database, found).await?,
            i32::try_from(version.major())?
        );
        let slot = fresh_name("slot");
        cluster
            .admin(&database)
            .await?
            .batch_execute(&format!(
                "select pg_create_logical_replication_slot('{slot}', 'pgoutput');
                 select pg_drop_replication_slot('{slot}')"
            ))
            .await?;
    }
    Ok(())
}

/// A commit that a client was told of survives a crash of the server.
#[tokio::test]
async fn a_killed_cluster_comes_back_with_its_commits() -> Result<()> {
    let cluster = Cluster::start(ClusterOptions::new(PgVersion::V16)).await?;
    let client = cluster.admin("postgres").await?;
    client
        .batch_execute("create table kept as select 7 as n")
        .await?;
    let port = cluster.port();

    cluster.kill_9().await?;
    assert_eq!(cluster.pid(), None);
    assert!(
        client.simple_query("select 1").await.is_err(),
        "no backend survives"
    );
    assert!(cluster.admin("postgres").await.is_err());

    cluster.restart().await?;
    assert_eq!(cluster.port(), port);
    assert_eq!(number(&cluster, "postgres", "select n from kept").await?, 7);
    Ok(())
}

/// A paused server answers nobody, and goes on where it stood.
#[tokio::test]
async fn a_paused_cluster_answers_once_resumed() -> Result<()> {
    let cluster = Cluster::start(ClusterOptions::new(PgVersion::V18)).await?;
    let client = cluster.admin("postgres").await?;
    cluster.pause()?;
    let answer = tokio::spawn(async move { client.query_one("select 8", &[]).await });
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    assert!(!answer.is_finished());
    cluster.resume()?;
    assert_eq!(answer.await??.get::<_, i32>(0), 8);
    Ok(())
}

/// Settings and hba lines of a test win over the harness's own.
#[tokio::test]
async fn a_cluster_is_as_the_test_asks() -> Result<()> {
    let options = ClusterOptions::new(PgVersion::V15)
        .setting("max_replication_slots = 1")
        .hba("host all outcast 127.0.0.1/32 reject");
    let cluster = Cluster::start(options).await?;
    let slots = "select current_setting('max_replication_slots')::int";
    assert_eq!(number(&cluster, "postgres", slots).await?, 1);

    let admin = cluster.admin("postgres").await?;
    admin
        .batch_execute("create role outcast login password 'x'")
        .await?;
    let dsn = cluster
        .dsn("postgres")
        .replace("user=postgres", "user=outcast");
    let refused = tokio_postgres::connect(&dsn, tokio_postgres::NoTls).await;
    let code = refused.err().and_then(|error| error.code().cloned());
    assert_eq!(code, Some(SqlState::INVALID_AUTHORIZATION_SPECIFICATION));
    Ok(())
}
