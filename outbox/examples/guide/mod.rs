//! What the guide's programs share: a database to try things in, and the application's categories.
//!
//! `OUTBOX_DSN` names a database of yours; without it a server is started, and ends with the program.

#![allow(dead_code, reason = "each program uses some of it")]

use anyhow::{Context, Result};
use monarch_harness::{Cluster, ClusterOptions, PgVersion, fresh_name};
use monarch_outbox::{Cell, Control, MappingTables, OptionTable, Table, TombstoneTable};
use tokio_postgres::{Client, NoTls};

monarch_outbox::categories! {
    /// What our service tells others.
    pub enum Category in Scope {
        /// An organization and what belongs to it: one queue an organization.
        Organization = 0, shard(organization_id), switch("outbox.disabled_organizations") {
            /// The organization itself.
            OrganizationUpdate = 2,
            /// A member.
            MemberUpdate = 3,
            /// No longer in use; the number is never used again.
            AuthProviderDisabled = 20 retired,
        }
        /// A user.
        User = 1, shard(user_id), switch("outbox.disabled_users") {
            /// A setting of a user.
            SettingUpdate = 4,
        }
        /// A log in which every entry counts: its failures hold up nothing else.
        AuditLog = 3 {
            /// An entry.
            AuditLogEvent = 5,
        }
    }
}

/// A database, and the server that it is on if it is ours.
pub(crate) struct Database {
    dsn: String,
    /// Ends with the program.
    cluster: Option<Cluster>,
}

impl Database {
    /// The tables of the guide, in a database that is thrown away.
    pub(crate) async fn new() -> Result<Self> {
        let database = match std::env::var("OUTBOX_DSN") {
            Ok(dsn) => Self { dsn, cluster: None },
            Err(_) => {
                let cluster = Cluster::start(ClusterOptions::new(PgVersion::V16)).await?;
                let dsn = cluster.create_database(&fresh_name("guide")).await?;
                Self {
                    dsn,
                    cluster: Some(cluster),
                }
            }
        };
        let client = database.connect().await?;
        Table::<Cell>::default().create(&client).await?;
        Table::<Control>::default().create(&client).await?;
        TombstoneTable::<Cell>::default().create(&client).await?;
        TombstoneTable::<Control>::default().create(&client).await?;
        OptionTable::default().create(&client).await?;
        client.batch_execute(TABLES).await?;
        Ok(database)
    }

    /// A connection of one's own.
    pub(crate) async fn connect(&self) -> Result<Client> {
        let (client, connection) = tokio_postgres::connect(&self.dsn, NoTls)
            .await
            .context("connect to the database of the guide")?;
        tokio::spawn(connection);
        Ok(client)
    }
}

/// Control's outbox, and where it finds an organization's cell.
pub(crate) fn control() -> Table<Control> {
    Table::default().cells(MappingTables)
}

/// The application's tables. A real one has them in two databases, a cell's and control's.
const TABLES: &str = "
    create table if not exists member
        (id bigserial primary key, organization_id bigint not null, name text not null);
    create table if not exists member_mapping
        (member_id bigint primary key, organization_id bigint not null, name text not null);
    create table if not exists setting
        (id bigserial primary key, user_id bigint not null, value text not null);
    create table if not exists setting_copy
        (cell text, setting_id bigint, value text not null, primary key (cell, setting_id));
    create table if not exists note
        (id bigserial primary key, user_id bigint not null, text text not null);
    create table if not exists sentry_organizationmapping
        (organization_id bigint primary key, region_name varchar(48) not null);
    create table if not exists sentry_organizationmembermapping
        (organization_id bigint not null, user_id bigint not null);";
