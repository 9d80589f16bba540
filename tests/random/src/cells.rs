//! The databases of one move: made for it, filled, read row by row, and dropped.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};
use monarch_harness::{Cluster, PASSWORD, PgVersion, fresh_name};
use tokio_postgres::{Client, NoTls};

use crate::model::{Key, Op, State};
use crate::schema::{Schema, Side, quoted};
use crate::sql::statements;

/// One side of a move.
#[derive(Debug)]
pub struct Cell {
    side: Side,
    /// How to reach its databases, as the superuser.
    pub dsns: Vec<String>,
    /// How a mover reaches them.
    pub movers: Vec<String>,
    /// The role of the movers, if it is one of their own.
    role: Option<String>,
}

/// Who a mover is on a side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Who {
    /// The superuser.
    Superuser,
    /// The owner of the tables, who may keep triggers and foreign keys from acting where that can
    /// be granted.
    Owner,
}

/// A row as the database prints it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Printed {
    /// Its key, column by column.
    pub key: Vec<String>,
    /// Its scope column.
    pub tie: Option<String>,
    /// All of its columns, by name.
    pub columns: String,
}

/// All rows of all tables, each table's in order.
pub type Dump = Vec<Vec<Printed>>;

impl Cell {
    /// Makes databases with the schema on a server.
    ///
    /// # Errors
    ///
    /// When the server refuses.
    pub async fn make(cluster: &Cluster, schema: &Schema, side: Side, who: Who) -> Result<Self> {
        let name = fresh_name(match side {
            Side::Source => "random",
            Side::Sink => "random_sink",
        });
        let mut dsns = Vec::new();
        for at in 0..schema.databases(side) {
            dsns.push(cluster.create_database(&format!("{name}_{at}")).await?);
        }
        let role = match who {
            Who::Superuser => None,
            Who::Owner => Some(owner(cluster, side).await?),
        };
        Self::on(dsns, schema, side, role).await
    }

    /// Makes the schema in databases that are there, and empty; a role of the movers owns it.
    async fn on(
        dsns: Vec<String>,
        schema: &Schema,
        side: Side,
        role: Option<String>,
    ) -> Result<Self> {
        let as_mover = |dsn: &String| match &role {
            Some(role) => dsn
                .replace("user=postgres", &format!("user={role}"))
                .replace(PASSWORD, "mover"),
            None => dsn.clone(),
        };
        let cell = Self {
            side,
            movers: dsns.iter().map(as_mover).collect(),
            dsns,
            role,
        };
        for at in 0..schema.databases(side) {
            let ddl = format!("{}{}", cell.handed_over(at).await?, schema.ddl(side, at));
            let client = cell.client(at).await?;
            client
                .batch_execute(&ddl)
                .await
                .with_context(|| format!("make the schema\n{ddl}"))?;
        }
        Ok(cell)
    }

    /// What makes the movers' role the owner of a database and of all that is made in it next.
    async fn handed_over(&self, database: usize) -> Result<String> {
        let Some(role) = &self.role else {
            return Ok(String::new());
        };
        let client = self.client(database).await?;
        let name = client.query_one("select current_database()", &[]).await?;
        let name: String = name.get(0);
        let standby = "do $$ begin
            if current_setting('server_version_num')::int >= 160000 then
              grant execute on function pg_catalog.pg_log_standby_snapshot() to public;
            end if; end $$;";
        Ok(format!(
            "{standby} alter database \"{name}\" owner to {role}; set role {role};\n"
        ))
    }

    /// A session as the superuser.
    ///
    /// # Errors
    ///
    /// When the server does not accept it.
    pub async fn client(&self, database: usize) -> Result<Client> {
        let (client, connection) = tokio_postgres::connect(&self.dsns[database], NoTls)
            .await
            .context("connect to a database of the move")?;
        // Its errors reach whoever uses the client.
        tokio::spawn(connection);
        Ok(client)
    }

    /// Inserts rows, parents first.
    ///
    /// # Errors
    ///
    /// When the server refuses.
    pub async fn fill(&self, schema: &Schema, rows: &State) -> Result<()> {
        for database in 0..schema.databases(self.side) {
            let mut sql = String::from("begin;");
            for (table, rows) in rows.tables.iter().enumerate() {
                let here = schema.stores[schema.tables[table].store].on(self.side) == database;
                if here && !rows.is_empty() {
                    let rows = rows.iter().map(|(key, row)| (key.clone(), *row)).collect();
                    sql.push_str(&statements(schema, &Op::Insert { table, rows }));
                }
            }
            sql.push_str("commit; analyze;");
            let client = self.client(database).await?;
            client
                .batch_execute(&sql)
                .await
                .context("fill the databases")?;
        }
        Ok(())
    }

    /// Reads every row.
    ///
    /// # Errors
    ///
    /// When the server refuses.
    pub async fn dump(&self, schema: &Schema) -> Result<Dump> {
        self.read(schema, "").await
    }

    /// Reads the rows that have this label.
    ///
    /// # Errors
    ///
    /// When the server refuses.
    pub async fn labelled(&self, schema: &Schema, label: u32) -> Result<Dump> {
        self.read(
            schema,
            &format!("where label = {}", crate::sql::label(label)),
        )
        .await
    }

    async fn read(&self, schema: &Schema, which: &str) -> Result<Dump> {
        let mut clients = Vec::new();
        for database in 0..schema.databases(self.side) {
            clients.push(self.client(database).await?);
        }
        let mut dump = Dump::new();
        for table in &schema.tables {
            let client = &clients[schema.stores[table.store].on(self.side)];
            let key: Vec<String> = table
                .key
                .iter()
                .map(|(name, _)| format!("{}::text", quoted(name)))
                .collect();
            let tie = match &table.edge {
                Some(edge) => format!("{}::text", quoted(&edge.column)),
                None => "null::text".to_owned(),
            };
            let query = format!(
                "select array[{}], {tie}, row({})::text from {} {which}",
                key.join(", "),
                table.columns().join(", "),
                table.sql_name()
            );
            let rows = client.query(&query, &[]).await.context("read the rows")?;
            let mut rows: Vec<Printed> = rows
                .iter()
                .map(|row| Printed {
                    key: row.get(0),
                    tie: row.get(1),
                    columns: row.get(2),
                })
                .collect();
            rows.sort();
            dump.push(rows);
        }
        Ok(dump)
    }

    /// Drops the databases, whoever is still connected.
    ///
    /// # Errors
    ///
    /// When the server refuses.
    pub async fn drop(self, cluster: &Cluster) -> Result<()> {
        let admin = cluster.admin("postgres").await?;
        for at in 0..self.dsns.len() {
            let name: String = {
                let client = self.client(at).await?;
                client
                    .query_one("select current_database()", &[])
                    .await?
                    .get(0)
            };
            admin
                .batch_execute(&format!("drop database \"{name}\" with (force)"))
                .await
                .with_context(|| format!("drop {name}"))?;
        }
        if let Some(role) = &self.role {
            admin
                .batch_execute(&format!("drop owned by {role}; drop role {role}"))
                .await
                .with_context(|| format!("drop {role}"))?;
        }
        Ok(())
    }
}

/// Makes a role for movers that is no superuser.
async fn owner(cluster: &Cluster, side: Side) -> Result<String> {
    let role = fresh_name("mover");
    let replication = match side {
        Side::Source => " replication",
        Side::Sink => "",
    };
    let mut sql = format!("create role {role} login{replication} password 'mover';");
    if side == Side::Sink && cluster.version() > PgVersion::V14 {
        sql.push_str(&format!(
            "grant set on parameter session_replication_role to {role};"
        ));
    }
    let admin = cluster.admin("postgres").await?;
    admin.batch_execute(&sql).await.context("make a role")?;
    Ok(role)
}

/// Which rows of a dump are the organization's, found by walking up the printed scope columns.
#[must_use]
pub fn ours(schema: &Schema, dump: &Dump, org: &str) -> Vec<Vec<bool>> {
    let mut ids: Vec<BTreeMap<&str, bool>> = Vec::new();
    let mut ours = Vec::new();
    for (table, rows) in schema.tables.iter().zip(dump) {
        let is_ours = |row: &Printed| match (&table.edge, &row.tie) {
            (None, _) => row.key == [org],
            (Some(edge), Some(tie)) => ids[edge.parent].get(tie.as_str()) == Some(&true),
            (Some(_), None) => false,
        };
        let found: Vec<bool> = rows.iter().map(is_ours).collect();
        let keys = rows.iter().map(|row| row.key[0].as_str());
        ids.push(keys.zip(found.iter().copied()).collect());
        ours.push(found);
    }
    ours
}

/// The rows of a dump that are, or are not, the organization's.
#[must_use]
pub fn part(dump: &Dump, ours: &[Vec<bool>], wanted: bool) -> Dump {
    let of = |(rows, ours): (&Vec<Printed>, &Vec<bool>)| {
        let rows = rows.iter().zip(ours).filter(|(_, ours)| **ours == wanted);
        rows.map(|(row, _)| row.clone()).collect()
    };
    dump.iter().zip(ours).map(of).collect()
}

/// The rows of both.
#[must_use]
pub fn together(one: &Dump, other: &Dump) -> Dump {
    let both = |(one, other): (&Vec<Printed>, &Vec<Printed>)| {
        let mut rows: Vec<Printed> = one.iter().chain(other).cloned().collect();
        rows.sort();
        rows
    };
    one.iter().zip(other).map(both).collect()
}

/// Fails unless both have the same rows; says which are missing and which are too many.
///
/// # Errors
///
/// As said.
pub fn assert_same(schema: &Schema, what: &str, found: &Dump, expected: &Dump) -> Result<()> {
    let mut told = Vec::new();
    for (table, (found, expected)) in schema.tables.iter().zip(found.iter().zip(expected)) {
        let lacks = expected
            .iter()
            .filter(|row| found.binary_search(row).is_err());
        told.extend(lacks.map(|row| format!("{} lacks {}", table.sql_name(), short(row))));
        let extra = found
            .iter()
            .filter(|row| expected.binary_search(row).is_err());
        told.extend(extra.map(|row| format!("{} has {}", table.sql_name(), short(row))));
        if found.len() != expected.len() {
            let (found, expected) = (found.len(), expected.len());
            told.push(format!(
                "{}: {found} rows, not {expected}",
                table.sql_name()
            ));
        }
    }
    ensure!(told.is_empty(), "{what}:\n  {}", told.join("\n  "));
    Ok(())
}

fn short(row: &Printed) -> String {
    let columns: String = row.columns.chars().take(200).collect();
    format!("{:?} tied to {:?}: {columns}", row.key, row.tie)
}

/// Fails unless the source's rows are those that the generator thinks they are: else it would know
/// nothing of what a move may fail of.
///
/// # Errors
///
/// As said.
pub fn assert_known(schema: &Schema, dump: &Dump, state: &State) -> Result<()> {
    for (at, (table, rows)) in schema.tables.iter().zip(dump).enumerate() {
        let print = |key: &Key| -> Vec<String> {
            let columns = table.key.iter().zip(key);
            columns.map(|((_, kind), &n)| kind.text(n)).collect()
        };
        let kind = table
            .edge
            .as_ref()
            .map(|edge| schema.tables[edge.parent].key[0].1);
        let known: BTreeMap<Vec<String>, Option<String>> = state.tables[at]
            .iter()
            .map(|(key, row)| (print(key), row.tie.zip(kind).map(|(n, kind)| kind.text(n))))
            .collect();
        let found: BTreeMap<Vec<String>, Option<String>> = rows
            .iter()
            .map(|row| (row.key.clone(), row.tie.clone()))
            .collect();
        if known != found {
            bail!(
                "the generator lost track of {}: {known:?} {found:?}",
                table.sql_name()
            );
        }
    }
    Ok(())
}
