//! What one database says of the tables of a store.
//!
//! Everything that decides by a table's shape (column lists, predicates, row filters, findings)
//! reads it from here, once, so that two decisions of one run never rest on two looks.

mod fingerprint;
mod query;
mod relation;

use std::collections::BTreeMap;

use monarch_config::Table;
use monarch_model::TableName;
use tokio_postgres::GenericClient;

pub use fingerprint::Fingerprint;
pub use relation::{
    Column, Generated, Identity, Leaf, ParentEdge, Relation, RelationKind, ReplicaIdentity,
    RowSecurity, UniqueIndex, UserType,
};

use crate::Result;

/// The tables of one store as one database has them.
#[derive(Debug, Clone, Default)]
pub struct Catalog {
    relations: BTreeMap<TableName, Relation>,
    missing: Vec<TableName>,
    /// The server's major version.
    major: i32,
}

/// The first major version that refuses updates of a published row whose old values the log could
/// not hold whole.
const WHOLE_IDENTITY_SINCE: i32 = 18;

impl Catalog {
    /// The table of that name; none if the database lacks it.
    pub fn relation(&self, table: &TableName) -> Option<&Relation> {
        self.relations.get(table)
    }

    /// The tables that are there, by name.
    pub fn relations(&self) -> impl Iterator<Item = &Relation> {
        self.relations.values()
    }

    /// The tables that were asked for and are not there, in the order they were asked for.
    pub fn missing(&self) -> &[TableName] {
        &self.missing
    }

    /// Whether the server would refuse the owner's updates and deletes of `relation` once it is
    /// published, because a generated column, which is never published, is of its replica identity.
    pub fn refuses_published(&self, relation: &Relation) -> bool {
        self.major >= WHOLE_IDENTITY_SINCE && relation.has_generated_identity()
    }

    /// Whether the edge that ties the table to a dynamic parent is a foreign key that the database
    /// enforces.
    pub fn is_held(&self, table: &TableName) -> bool {
        let edge = self.relation(table).and_then(|found| found.edge.as_ref());
        edge.is_some_and(|edge| edge.enforced)
    }

    /// What must not change while a unit streams.
    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint::of(self)
    }
}

/// Reads what the database of `client` says of `tables`. A table that is missing is no error: it
/// is listed.
///
/// Type names are printed as the session's `search_path` has them: compare two databases only
/// through sessions with the same one.
pub async fn load<C: GenericClient + Sync>(client: &C, tables: &[&Table]) -> Result<Catalog> {
    let mut relations = query::relations(client, tables).await?;
    query::leaves(client, &mut relations).await?;
    query::columns(client, &mut relations).await?;
    query::types(client, &mut relations).await?;
    query::indexes(client, &mut relations).await?;
    query::edges(client, tables, &mut relations).await?;
    let major = query::major(client).await?;
    let missing = tables
        .iter()
        .map(|table| &table.name)
        .filter(|name| !relations.contains_key(name))
        .cloned()
        .collect();
    Ok(Catalog {
        relations,
        missing,
        major,
    })
}
