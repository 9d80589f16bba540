//! The fleet in miniature does what moves are judged by: were its writers or its eyes wrong, no
//! test of a move would say anything.

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result};
use monarch_demo::observe::{Whose, by_store, census, leftovers, total};
use monarch_demo::{
    ControlPlane, Fleet, Hosts, Organization, Traffic, number_on, populate, tables,
};
use monarch_harness::{PgVersion, shared};
use tempfile::TempDir;

const EVIL_CORP: Organization = Organization::EVIL_CORP;
const OTHER: Organization = Organization::OTHER;

async fn fleet(folder: &TempDir) -> Result<Fleet> {
    let cluster = shared::cluster(PgVersion::V15).await;
    let hosts = Hosts {
        main: cluster,
        standby: None,
        side: cluster,
        sink: cluster,
        ledger: cluster,
    };
    let fleet = Fleet::make(&hosts, folder.path()).await?;
    for organization in [EVIL_CORP, OTHER] {
        populate(&fleet.source, &organization, 300).await?;
        fleet.control.settle(organization.id, "us1")?;
    }
    number_on(&fleet.source).await?;
    populate(&fleet.sink, &Organization::AT_HOME, 300).await?;
    Ok(fleet)
}

/// A table without rows of the organization, or without writers, would prove nothing.
#[tokio::test]
async fn every_table_has_rows_of_every_organization() -> Result<()> {
    let folder = TempDir::new()?;
    let fleet = fleet(&folder).await?;
    let homes = [
        (&fleet.source, EVIL_CORP),
        (&fleet.source, OTHER),
        (&fleet.sink, Organization::AT_HOME),
    ];
    for (cell, organization) in homes {
        let rows = census(cell, &tables(&organization), Whose::Theirs).await?;
        assert_eq!(
            rows.values()
                .map(std::collections::BTreeMap::len)
                .sum::<usize>(),
            15
        );
        for (table, rows) in rows.values().flatten() {
            assert!(rows.count > 0, "{} has no {table}", organization.slug);
        }
    }
    Ok(())
}

/// What the writers say they did is what the databases have; and the eyes see each of it.
#[tokio::test]
async fn the_tally_of_the_writers_agrees_with_the_rows() -> Result<()> {
    let folder = TempDir::new()?;
    let fleet = fleet(&folder).await?;
    let count =
        async |organization| census(&fleet.source, &tables(organization), Whose::Theirs).await;
    let (evil, other) = (count(&EVIL_CORP).await?, count(&OTHER).await?);
    let traffic = Traffic::start(&fleet, &EVIL_CORP, Duration::from_millis(1)).await?;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let tallies = traffic.stop().await?;
    let after = count(&EVIL_CORP).await?;
    for (store, rows) in by_store(&after) {
        let before = &by_store(&evil)[&store];
        assert_eq!(rows.count - before.count, tallies[&store].growth, "{store}");
        assert!(tallies[&store].transactions > 0, "{store}: {tallies:?}");
        assert_ne!(rows.digest, before.digest, "{store}");
    }
    for (table, rows) in after
        .values()
        .flatten()
        .filter(|(name, _)| *name != "organization")
    {
        let untouched = evil
            .values()
            .flatten()
            .any(|(t, r)| t == table && r == rows);
        assert!(!untouched || table == "team", "nobody wrote to {table}");
    }
    assert_eq!(count(&OTHER).await?, other, "the neighbour was written to");
    Ok(())
}

/// Rows of one organization and of all the others are all there are.
#[tokio::test]
async fn a_row_is_theirs_or_the_others() -> Result<()> {
    let folder = TempDir::new()?;
    let fleet = fleet(&folder).await?;
    let tables = tables(&EVIL_CORP);
    let whole = census(&fleet.source, &tables, Whose::Theirs).await;
    let parts = total(&whole?) + total(&census(&fleet.source, &tables, Whose::Others).await?);
    let mut all = 0;
    for table in &tables {
        let client = fleet.source.place_of(&table.store)?.connect().await?;
        let query = format!("select count(*) from {}", table.name);
        all += client.query_one(&query, &[]).await?.get::<_, i64>(0);
    }
    assert_eq!(parts, all);
    Ok(())
}

/// A fenced organization's writers stand still, its neighbour's do not; afterwards both go on.
#[tokio::test]
async fn a_fence_holds_the_writers_of_one_organization() -> Result<()> {
    let folder = TempDir::new()?;
    let fleet = fleet(&folder).await?;
    let count =
        async |organization| census(&fleet.source, &tables(organization), Whose::Theirs).await;
    let pace = Duration::from_millis(1);
    let evil = Traffic::start(&fleet, &EVIL_CORP, pace).await?;
    let other = Traffic::start(&fleet, &OTHER, pace).await?;
    assert_eq!(order(&fleet.control, "fence", "us1", "us2", "m/1")?, 0);
    until_older_transactions_end(&fleet).await?;
    let (fenced, busy) = (count(&EVIL_CORP).await?, count(&OTHER).await?);
    while count(&OTHER).await? == busy {}
    assert_eq!(count(&EVIL_CORP).await?, fenced);
    assert_eq!(order(&fleet.control, "unfence", "us1", "us2", "m/1")?, 0);
    while count(&EVIL_CORP).await? == fenced {}
    evil.stop().await?;
    other.stop().await?;
    Ok(())
}

/// A transaction that was past its check when the fence went up may still commit, as in a real
/// application.
async fn until_older_transactions_end(fleet: &Fleet) -> Result<()> {
    const OLDER: &str = "
        select count(*) from pg_stat_activity
        where datname = current_database() and application_name = 'writer of evil-corp'
          and xact_start < $1::text::timestamptz";
    for place in &fleet.source.places {
        let client = place.connect().await?;
        let now: String = client.query_one("select now()::text", &[]).await?.get(0);
        while client.query_one(OLDER, &[&now]).await?.get::<_, i64>(0) > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    Ok(())
}

/// The promises that Monarch needs of a control plane: compare-and-swap, tokens that can be
/// revoked, and the same answer when asked again.
#[test]
fn the_control_plane_keeps_its_word() -> Result<()> {
    let folder = TempDir::new()?;
    let plane = ControlPlane::new(folder.path().join("control"))?;
    plane.settle(1, "us1")?;
    let order = |action, token| order(&plane, action, "us1", "us2", token);
    assert_eq!(order("flip", "m/1")?, 3, "not fenced");
    for _ in 0..2 {
        assert_eq!(order("fence", "m/1")?, 0);
    }
    assert_eq!(order("fence", "another/1")?, 3);
    assert_eq!(order("unfence", "another/1")?, 0);
    assert!(plane.is_fenced(1), "another's fence was lifted");
    for _ in 0..2 {
        assert_eq!(order("unfence", "m/1")?, 0);
    }
    assert!(plane.may_write(1, "us1")?);
    assert_eq!(order("fence", "m/1")?, 3, "revoked");
    assert_eq!(order("flip", "m/1")?, 3, "revoked");
    assert_eq!(plane.cell_of(1)?, "us1");
    assert_eq!(order("fence", "m/2")?, 0);
    for _ in 0..2 {
        assert_eq!(order("flip", "m/2")?, 0);
    }
    assert_eq!(plane.cell_of(1)?, "us2");
    assert!(plane.may_write(1, "us2")? && !plane.may_write(1, "us1")?);
    assert_eq!(order("fence", "m/3")?, 3, "it lives elsewhere");
    Ok(())
}

/// Each kind of thing that a move may leave behind is seen.
#[tokio::test]
async fn what_is_left_behind_is_seen() -> Result<()> {
    let folder = TempDir::new()?;
    let fleet = fleet(&folder).await?;
    assert_eq!(leftovers(&fleet.source).await?, Vec::<String>::new());
    let place = fleet.source.place_of("default")?;
    let client = place.connect().await?;
    client
        .batch_execute(
            "set application_name = 'monarch_org_1_default_0_e1';
             create publication monarch_test for table project;
             create schema monarch;
             create table monarch.unit as select 1 n;",
        )
        .await?;
    let slot = format!("monarch_{}", place.database);
    client
        .execute(
            "select pg_create_logical_replication_slot($1, 'pgoutput')",
            &[&slot],
        )
        .await?;
    let found = leftovers(&fleet.source).await?;
    client
        .execute("select pg_drop_replication_slot($1)", &[&slot])
        .await?;
    for word in [
        "slot monarch_",
        "publication monarch_test",
        "client backend",
        "1 rows in monarch.unit",
    ] {
        assert!(
            found.iter().any(|line| line.contains(word)),
            "{word}: {found:?}"
        );
    }
    assert_eq!(found.len(), 4, "{found:?}");
    Ok(())
}

fn order(plane: &ControlPlane, action: &str, from: &str, to: &str, token: &str) -> Result<i32> {
    let mut script = Command::new(plane.folder().join("routing"))
        .arg(action)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()?;
    let order = format!(
        r#"{{"action":"{action}","organization":"1","from":"{from}","to":"{to}","move_token":"{token}"}}"#
    );
    script
        .stdin
        .take()
        .context("a pipe")?
        .write_all(order.as_bytes())?;
    script.wait()?.code().context("an exit code")
}
