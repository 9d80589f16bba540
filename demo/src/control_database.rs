//! The control database in miniature, and what the cells have heard from it.
//!
//! A cell is told of a routing by a row in each of its databases. A writer looks at the one beside its
//! own rows, inside its transaction, after its first write: either the transaction holds a lock on a
//! moved table before the fence is there, and the drain waits for it, or it sees the fence and rolls
//! back.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use monarch_harness::{Cluster, fresh_name};
use monarch_outbox::{Control, Table};
use tokio_postgres::Client;

use crate::Cell;
use crate::fleet::connect;

/// Where each organization lives.
const SCHEMA: &str = include_str!("../schema/control.sql");

/// A database that says where each organization lives.
#[derive(Debug, Clone)]
pub struct ControlDatabase {
    database: String,
    dsn: String,
}

/// What a database of a cell has been told of an organization.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Known {
    /// The cell that it lives in.
    pub cell: String,
    /// Whether its writes are held back.
    pub fenced: bool,
    /// How often its routing was changed.
    pub version: i64,
}

impl ControlDatabase {
    pub(crate) async fn make(cluster: &Cluster) -> Result<Self> {
        let database = fresh_name("control");
        let dsn = cluster.create_database(&database).await?;
        let made = Self { database, dsn };
        let client = made.connect().await?;
        let schema = client.batch_execute(SCHEMA).await;
        schema.context("make the schema of the control database")?;
        let outbox = Table::<Control>::default();
        let made_outbox = outbox.create(&client).await;
        made_outbox.context("make the outbox of the control database")?;
        Ok(made)
    }

    /// A connection as the superuser.
    ///
    /// # Errors
    ///
    /// When the server does not accept it.
    pub async fn connect(&self) -> Result<Client> {
        connect(&self.dsn, &self.database).await
    }

    /// How to reach it.
    #[must_use]
    pub fn dsn(&self) -> &str {
        &self.dsn
    }

    /// Lets an organization live in a cell.
    ///
    /// # Errors
    ///
    /// When the database refuses.
    pub async fn settle(&self, organization: i64, cell: &str) -> Result<()> {
        const SETTLE: &str = "
            insert into sentry_organizationmapping (organization_id, region_name) values ($1, $2)";
        let client = self.connect().await?;
        let settled = client.execute(SETTLE, &[&organization, &cell]).await;
        settled.context("settle an organization").map(drop)
    }

    /// The cell that the routing names.
    ///
    /// # Errors
    ///
    /// When the organization was never [settled](Self::settle).
    pub async fn cell_of(&self, organization: i64) -> Result<String> {
        const CELL: &str =
            "select region_name from sentry_organizationmapping where organization_id = $1";
        let client = self.connect().await?;
        let row = client.query_one(CELL, &[&organization]).await;
        Ok(row.context("read where an organization lives")?.get(0))
    }

    /// Writes a message about an organization for a cell, as an application does.
    ///
    /// # Errors
    ///
    /// When the database refuses, as it does while the organization is fenced.
    pub async fn write(&self, organization: i64, cell: &str) -> Result<()> {
        const MEMBER: &str = "
            insert into sentry_controloutbox
                (region_name, shard_scope, shard_identifier, category, object_identifier)
            values ($2, 0, $1, 3, 7)";
        let client = self.connect().await?;
        let written = client.execute(MEMBER, &[&organization, &cell]).await;
        written.context("write a message").map(drop)
    }

    /// How many of an organization's messages wait, by the cell that they are for.
    ///
    /// # Errors
    ///
    /// When the database does not answer.
    pub async fn waiting(&self, organization: i64) -> Result<BTreeMap<String, i64>> {
        const WAITING: &str = "
            select region_name, count(*) from sentry_controloutbox
            where shard_scope = 0 and shard_identifier = $1 group by region_name";
        let client = self.connect().await?;
        let rows = client.query(WAITING, &[&organization]).await;
        let rows = rows.context("count the messages that wait")?;
        Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
    }

    /// The part of `fleet.yaml` that names it.
    pub(crate) fn yaml(&self) -> String {
        format!("control:\n  dsn: {}\n", self.dsn)
    }
}

/// What each database of a cell has been told of an organization; nothing where it was told nothing.
///
/// # Errors
///
/// When a database does not answer.
pub async fn known_in(cell: &Cell, organization: i64) -> Result<BTreeMap<String, Option<Known>>> {
    const KNOWN: &str = "
        select cell, fenced, version from monarch_routing.organization where organization_id = $1";
    let mut known = BTreeMap::new();
    for place in &cell.places {
        let client = place.connect().await?;
        let row = client.query_opt(KNOWN, &[&organization]).await;
        let row = row.with_context(|| format!("ask {} of the routing", place.database))?;
        let told = row.map(|row| Known {
            cell: row.get(0),
            fenced: row.get(1),
            version: row.get(2),
        });
        known.insert(place.database.clone(), told);
    }
    Ok(known)
}

/// How many messages about an organization a cell has for control, in all its databases that have an
/// outbox.
///
/// # Errors
///
/// When a database does not answer.
pub async fn told_by(cell: &Cell, organization: i64) -> Result<i64> {
    const HAS_OUTBOX: &str = "select to_regclass('sentry_regionoutbox') is not null";
    const TOLD: &str = "
        select count(*) from sentry_regionoutbox where shard_scope = 0 and shard_identifier = $1";
    let mut told = 0;
    for place in &cell.places {
        let client = place.connect().await?;
        let has_outbox: bool = client.query_one(HAS_OUTBOX, &[]).await?.get(0);
        if has_outbox {
            let row = client.query_one(TOLD, &[&organization]).await;
            told += row.context("count what a cell tells")?.get::<_, i64>(0);
        }
    }
    Ok(told)
}
