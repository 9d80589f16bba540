//! The static spine: the ids of the root and the static tables, which may not change during a move.
//!
//! They are read once, before anything is made, and recorded. The store that holds them compares
//! them again in its own exported snapshot, and its stream guards them from there: there is no gap
//! in which a project could slip in.

use std::collections::{BTreeMap, BTreeSet};

use monarch_config::{Graph, Scope as Edge, Table};
use monarch_model::{OrgId, StoreName, TableName};
use tokio_postgres::GenericClient;

use crate::catalog;
use crate::digest::TextDigest;
use crate::scope::{Scope, ScopeError};
use crate::sql::{qualified, quote_ident};
use crate::{Doing, Error};

/// The organization's ids of each table of the spine, as Postgres prints them.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Spine {
    tables: BTreeMap<TableName, BTreeSet<String>>,
}

/// The spine could not be read, or is not what was recorded.
#[derive(Debug, thiserror::Error)]
pub enum SpineError {
    /// The database did not answer.
    #[error("read the static spine")]
    Read(#[from] Error),
    /// The tables of the spine cannot be scoped.
    #[error("read the static spine")]
    Scope(#[from] ScopeError),
    /// The root table has no row with the organization's key.
    #[error("{table} has no row of this organization")]
    NoSuchOrganization {
        /// The root table.
        table: TableName,
    },
    /// No connection was given for a store that holds a part of the spine.
    #[error("read the static spine: no connection to store {store}")]
    NoClient {
        /// The store.
        store: StoreName,
    },
    /// Ids have come or gone since the spine was recorded.
    #[error("the static spine changed: {table} has {appeared} ids more and lacks {gone}")]
    StaticSpineChanged {
        /// The first table, parents first, whose ids differ.
        table: TableName,
        /// How many ids are there that were not recorded.
        appeared: usize,
        /// How many recorded ids are no longer there.
        gone: usize,
    },
}

impl std::fmt::Debug for Spine {
    /// Ids are row values: they are counted, not printed.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_map()
            .entries(
                self.tables
                    .iter()
                    .map(|(table, ids)| (table.as_str(), ids.len())),
            )
            .finish()
    }
}

impl Spine {
    /// A spine as it was recorded.
    pub fn from_ids(tables: BTreeMap<TableName, BTreeSet<String>>) -> Self {
        Self { tables }
    }

    /// The ids of one table; none if the table is not of the spine.
    pub fn ids(&self, table: &TableName) -> Option<&BTreeSet<String>> {
        self.tables.get(table)
    }

    /// Every table of the spine with its ids.
    pub fn tables(&self) -> impl Iterator<Item = (&TableName, &BTreeSet<String>)> {
        self.tables.iter()
    }

    /// SHA-256 of all tables and ids in hexadecimal digits: what payloads carry instead of ids.
    pub fn digest(&self) -> String {
        let mut digest = TextDigest::default();
        for (table, ids) in &self.tables {
            digest.add(table.as_str());
            digest.add(&ids.len().to_string());
            for id in ids {
                digest.add(id);
            }
        }
        digest.finish()
    }
}

/// Reads the whole spine, parents first, each table from the database of its store.
pub async fn read<C: GenericClient + Sync>(
    clients: &BTreeMap<StoreName, &C>,
    graph: &Graph,
    org: &OrgId,
) -> Result<Spine, SpineError> {
    let mut spine = Spine::default();
    for table in graph.spine() {
        let client = clients
            .get(&table.store)
            .ok_or_else(|| SpineError::NoClient {
                store: table.store.clone(),
            })?;
        let ids = read_table(*client, graph, table, org, &spine).await?;
        spine.tables.insert(table.name.clone(), ids);
    }
    Ok(spine)
}

/// Compares what `client` sees of the spine's tables in `store` with what was recorded.
pub async fn compare<C: GenericClient + Sync>(
    client: &C,
    graph: &Graph,
    store: &StoreName,
    org: &OrgId,
    recorded: &Spine,
) -> Result<(), SpineError> {
    let nothing = BTreeSet::new();
    for table in graph.spine() {
        if table.store != *store {
            continue;
        }
        let seen = read_table(client, graph, table, org, recorded).await?;
        let was = recorded.ids(&table.name).unwrap_or(&nothing);
        if seen != *was {
            return Err(SpineError::StaticSpineChanged {
                table: table.name.clone(),
                appeared: seen.difference(was).count(),
                gone: was.difference(&seen).count(),
            });
        }
    }
    Ok(())
}

async fn read_table<C: GenericClient + Sync>(
    client: &C,
    graph: &Graph,
    table: &Table,
    org: &OrgId,
    parents: &Spine,
) -> Result<BTreeSet<String>, SpineError> {
    let chain = chain(graph, table);
    let seen = catalog::load(client, &chain).await?;
    let scope = Scope::of(&chain, graph, org, parents, &seen)?;
    let predicate = scope.predicate(&table.name, "t")?;
    let key = table.primary_key.first().map_or("", String::as_str);
    let statement = format!(
        "select t.{}::text from {} as t where {predicate}",
        quote_ident(key),
        qualified(&table.name)
    );
    let doing = || format!("read the ids of {}", table.name);
    let rows = client.query(&statement, &[]).await.doing(doing())?;
    let mut ids = BTreeSet::new();
    for row in rows {
        ids.insert(row.try_get::<_, String>(0).doing(doing())?);
    }
    if table.scope == Edge::Root && ids.is_empty() {
        return Err(SpineError::NoSuchOrganization {
            table: table.name.clone(),
        });
    }
    Ok(ids)
}

/// The table and its dynamic parents, which live in the same store.
fn chain<'a>(graph: &'a Graph, table: &'a Table) -> Vec<&'a Table> {
    let mut chain = vec![table];
    let mut next = Some(table);
    while let Some(Edge::ByDynamic { parent, .. }) = next.map(|table| &table.scope) {
        next = graph.table(parent);
        chain.extend(next);
    }
    chain
}
