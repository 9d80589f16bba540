//! The pair of publications of a unit, and which rows the source filters by itself.
//!
//! `_ins` publishes inserts, `_mut` updates, deletes and truncates. They are two because a filter
//! on updates and deletes looks at the old row, of which the log has only the replica identity:
//! a filter on any other column would make the owner's own updates fail. An insert has its whole
//! row, so there every filter that can be written down may be used.
//!
//! A filter costs the walsender time for each id and each row, so long lists of ids become a range
//! or nothing: what the source does not filter, the mover does.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use monarch_config::{Graph, Scope as Edge};
use monarch_model::{Lsn, TableName, names};
use tokio::time::{Instant, sleep};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::PgLsn;
use tokio_postgres::{Client, GenericClient};

use crate::catalog::{Catalog, Relation};
use crate::digest::TextDigest;
use crate::scope::{Scope, ScopeError, Term};
use crate::sql::{qualified, quote_ident, quote_literal};
use crate::{Doing, Error, Unit};

/// The longest list of ids that is worth a filter: decoding slows down with each.
pub const LIST_IDS_MAX: usize = 500;

/// How long one try waits for a lock that the owner's own DDL holds.
const LOCK_WAIT: Duration = Duration::from_secs(2);
/// How often it is tried.
const TRIES: u32 = 8;
/// The pause after the first try; it doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// The publications of a unit, decided and not yet made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Inserts.
    pub inserts: Publication,
    /// Updates, deletes and truncates.
    pub mutations: Publication,
}

/// One publication.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Publication {
    /// Its name.
    pub name: String,
    /// What it publishes, as the option `publish` takes it.
    pub publish: &'static str,
    /// Its tables, parents first.
    pub members: Vec<Member>,
}

/// A table of a publication.
#[derive(Clone, PartialEq, Eq)]
pub struct Member {
    /// The table.
    pub table: TableName,
    /// Which rows the source keeps back.
    pub choice: Choice,
    /// The row filter; none if all rows are published.
    filter: Option<String>,
}

/// Which rows the source keeps back by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// All but those that name the organization.
    Organization,
    /// All but those that name one of so many static ids.
    List {
        /// How many.
        ids_total: usize,
    },
    /// All but those between the least and the greatest static id.
    Range,
    /// None.
    Nothing(WhyUnfiltered),
}

/// Why a table is published whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhyUnfiltered {
    /// A dynamic parent scopes it, whose ids change.
    DynamicParent,
    /// The replica identity does not cover the scope column.
    NotInIdentity,
    /// The scope column's type or collation is not built in, or the column is generated.
    ColumnType,
    /// It scopes other tables. A filter turns the UPDATE that brings a row in into an insert, and
    /// the mover must tell a parent that is new from one that brings children.
    ScopesOthers,
    /// There are too many static ids, and they have no order that a filter could use.
    TooManyIds,
}

/// Publications were not planned, made or dropped.
#[derive(Debug, thiserror::Error)]
pub enum PublicationError {
    /// A table cannot be scoped.
    #[error("plan the publications")]
    Scope(#[from] ScopeError),
    /// Publishing the table would make its owner's updates and deletes fail.
    #[error(
        "{table} or a partition of it has no replica identity: publishing it would make every \
         update and delete on it fail"
    )]
    NoReplicaIdentity {
        /// The table.
        table: TableName,
    },
    /// Publishing the table would make its owner's updates and deletes fail.
    #[error(
        "a generated column is of the replica identity of {table} or of a partition of it: from \
         Postgres 18 on, publishing it would make every update and delete on it fail"
    )]
    GeneratedIdentity {
        /// The table.
        table: TableName,
    },
    /// The owner's DDL or a vacuum held a lock through every try.
    #[error("{doing}: no lock within {TRIES} tries")]
    Locked {
        /// What was being done.
        doing: &'static str,
        /// The last refusal.
        #[source]
        source: Error,
    },
    /// What was made or dropped was looked for, and is not as it should be.
    #[error("publication {name} is not what was {done}: somebody else changed it")]
    NotAsMade {
        /// The publication.
        name: String,
        /// Whether it was made or dropped.
        done: &'static str,
    },
    /// The standby does not replay the primary's log.
    #[error("the standby did not replay up to {until} within {} s", .timeout.as_secs())]
    StandbyBehind {
        /// The position that was waited for.
        until: Lsn,
        /// For how long.
        timeout: Duration,
    },
    /// The database did not do what it was asked.
    #[error(transparent)]
    Asked(#[from] Error),
}

impl fmt::Debug for Member {
    /// The filter holds ids, which are row values.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.table, self.choice)
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Choice::Organization => f.write_str("rows of the organization"),
            Choice::List { ids_total } => write!(f, "rows of {ids_total} static ids"),
            Choice::Range => f.write_str("rows between the least and the greatest static id"),
            Choice::Nothing(why) => write!(f, "all rows: {why}"),
        }
    }
}

impl fmt::Display for WhyUnfiltered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            WhyUnfiltered::DynamicParent => "scoped by a dynamic parent",
            WhyUnfiltered::NotInIdentity => "the replica identity lacks the scope column",
            WhyUnfiltered::ColumnType => "the scope column's type cannot be filtered",
            WhyUnfiltered::ScopesOthers => "it scopes other tables",
            WhyUnfiltered::TooManyIds => "too many static ids",
        })
    }
}

impl Plan {
    /// Both publications.
    pub fn publications(&self) -> [&Publication; 2] {
        [&self.inserts, &self.mutations]
    }

    /// The names of both, for the options of the stream.
    pub fn names(&self) -> [&str; 2] {
        [&self.inserts.name, &self.mutations.name]
    }
}

impl Publication {
    /// The statement that makes it.
    pub fn statement(&self) -> String {
        let members: Vec<String> = self.members.iter().map(Member::clause).collect();
        let tables = if members.is_empty() {
            String::new()
        } else {
            format!(" for table {}", members.join(", "))
        };
        format!(
            "create publication {}{tables} with (publish = '{}', publish_via_partition_root = true)",
            quote_ident(&self.name),
            self.publish
        )
    }

    /// What marks a publication as made by exactly this plan.
    fn mark(&self) -> String {
        format!("monarch {}", TextDigest::of(&self.statement()))
    }

    fn tables(&self) -> BTreeSet<&TableName> {
        self.members.iter().map(|member| &member.table).collect()
    }
}

impl Member {
    fn clause(&self) -> String {
        match &self.filter {
            Some(filter) => format!("{} where ({filter})", qualified(&self.table)),
            None => qualified(&self.table),
        }
    }
}

/// Decides the publications of a unit. Refuses a table whose owner's writes they would break.
pub fn plan(
    unit: &Unit,
    graph: &Graph,
    scope: &Scope,
    catalog: &Catalog,
) -> Result<Plan, PublicationError> {
    let prefix = unit.prefix();
    let mut inserts = Vec::new();
    let mut mutations = Vec::new();
    for configured in graph.walk(&unit.store) {
        let table = &configured.name;
        let relation = catalog
            .relation(table)
            .ok_or_else(|| ScopeError::MissingTable {
                table: table.clone(),
            })?;
        if relation.lacks_identity() {
            return Err(PublicationError::NoReplicaIdentity {
                table: table.clone(),
            });
        }
        if catalog.refuses_published(relation) {
            return Err(PublicationError::GeneratedIdentity {
                table: table.clone(),
            });
        }
        let term = scope.term(table)?;
        inserts.push(member(table, filter(term)));
        let is_spine = configured.is_static || configured.scope == Edge::Root;
        mutations.push(member(
            table,
            if graph.has_children(table) && !is_spine {
                (Choice::Nothing(WhyUnfiltered::ScopesOthers), None)
            } else {
                covered(relation, term)
            },
        ));
    }
    Ok(Plan {
        inserts: Publication {
            name: names::insert_publication(&prefix),
            publish: "insert",
            members: inserts,
        },
        mutations: Publication {
            name: names::mutation_publication(&prefix),
            publish: "update, delete, truncate",
            members: mutations,
        },
    })
}

fn member(table: &TableName, (choice, filter): (Choice, Option<String>)) -> Member {
    Member {
        table: table.clone(),
        choice,
        filter,
    }
}

fn covered(relation: &Relation, term: &Term) -> (Choice, Option<String>) {
    let (choice, filter) = filter(term);
    if filter.is_some() && !relation.identity_covers(&term.column().name) {
        return (Choice::Nothing(WhyUnfiltered::NotInIdentity), None);
    }
    (choice, filter)
}

fn filter(term: &Term) -> (Choice, Option<String>) {
    let unfiltered = |why| (Choice::Nothing(why), None);
    let column = term.column();
    match term {
        Term::Within { .. } => unfiltered(WhyUnfiltered::DynamicParent),
        _ if !column.can_filter() => unfiltered(WhyUnfiltered::ColumnType),
        Term::Equals { .. } => (Choice::Organization, term.comparison()),
        Term::Among { ids, .. } if ids.len() <= LIST_IDS_MAX => {
            let ids_total = ids.len();
            (Choice::List { ids_total }, term.comparison())
        }
        Term::Among { ids, .. } => match range(ids) {
            Some((least, greatest)) => {
                let name = quote_ident(&column.name);
                let filter = format!(
                    "{name} >= {}::{key_type} and {name} <= {}::{key_type}",
                    quote_literal(&least.to_string()),
                    quote_literal(&greatest.to_string()),
                    key_type = column.key_type
                );
                (Choice::Range, Some(filter))
            }
            None => unfiltered(WhyUnfiltered::TooManyIds),
        },
    }
}

/// Only integers: the order of other types may hang on a collation.
fn range(ids: &BTreeSet<String>) -> Option<(i64, i64)> {
    let numbers: Option<Vec<i64>> = ids.iter().map(|id| id.parse().ok()).collect();
    let numbers = numbers?;
    Some((*numbers.iter().min()?, *numbers.iter().max()?))
}

/// Makes the publications of `plan` on the primary. What is already there as planned stays; what
/// is there under the same name otherwise, from a plan with other ids, is replaced.
pub async fn ensure(primary: &mut Client, plan: &Plan) -> Result<(), PublicationError> {
    let doing = "make the publications";
    let missing: Vec<&Publication> = not_as_planned(primary, plan).await?;
    if missing.is_empty() {
        return Ok(());
    }
    let mut statements = String::new();
    for publication in missing {
        let name = quote_ident(&publication.name);
        statements.push_str(&format!(
            "drop publication if exists {name}; {}; comment on publication {name} is {};",
            publication.statement(),
            quote_literal(&publication.mark())
        ));
    }
    patiently(primary, doing, &statements).await?;
    match not_as_planned(primary, plan).await?.first() {
        None => Ok(()),
        Some(publication) => Err(PublicationError::NotAsMade {
            name: publication.name.clone(),
            done: "made",
        }),
    }
}

async fn not_as_planned<'a>(
    primary: &Client,
    plan: &'a Plan,
) -> Result<Vec<&'a Publication>, Error> {
    let doing = "look at the publications";
    let mut differ = Vec::new();
    for publication in plan.publications() {
        let rows = primary
            .query(
                "select pg_catalog.obj_description(p.oid, 'pg_publication'), n.nspname, c.relname
                 from pg_catalog.pg_publication p
                 left join pg_catalog.pg_publication_rel r on r.prpubid = p.oid
                 left join pg_catalog.pg_class c on c.oid = r.prrelid
                 left join pg_catalog.pg_namespace n on n.oid = c.relnamespace
                 where p.pubname = $1",
                &[&publication.name],
            )
            .await
            .doing(doing)?;
        let mut tables = BTreeSet::new();
        let mut marked = !rows.is_empty();
        for row in rows {
            let mark: Option<String> = row.try_get(0).doing(doing)?;
            marked &= mark == Some(publication.mark());
            let schema: Option<String> = row.try_get(1).doing(doing)?;
            let name: Option<String> = row.try_get(2).doing(doing)?;
            tables.extend(schema.zip(name));
        }
        let planned = publication
            .tables()
            .into_iter()
            .map(|table| (table.schema().to_owned(), table.relation().to_owned()));
        if !marked || tables != planned.collect() {
            differ.push(publication);
        }
    }
    Ok(differ)
}

/// Drops both publications of the unit and looks again. Doing it again is the same.
pub async fn drop_all(primary: &mut Client, unit: &Unit) -> Result<(), PublicationError> {
    let prefix = unit.prefix();
    let names = [
        names::insert_publication(&prefix),
        names::mutation_publication(&prefix),
    ];
    if there(primary, &names).await?.is_none() {
        return Ok(());
    }
    let statements: String = names
        .iter()
        .map(|name| format!("drop publication if exists {};", quote_ident(name)))
        .collect();
    patiently(primary, "drop the publications", &statements).await?;
    match there(primary, &names).await? {
        None => Ok(()),
        Some(name) => Err(PublicationError::NotAsMade {
            name,
            done: "dropped",
        }),
    }
}

/// The unit's publications that are there.
pub async fn of_unit(primary: &Client, unit: &Unit) -> Result<Vec<String>, Error> {
    let doing = "look for the publications";
    let prefix = unit.prefix();
    let names = [
        names::insert_publication(&prefix),
        names::mutation_publication(&prefix),
    ];
    let rows = primary
        .query(
            "select pubname::text from pg_catalog.pg_publication
             where pubname = any($1::text[]) order by pubname",
            &[&names.as_slice()],
        )
        .await
        .doing(doing)?;
    rows.iter().map(|row| row.try_get(0).doing(doing)).collect()
}

/// The first of `names` that is there.
async fn there(primary: &Client, names: &[String]) -> Result<Option<String>, Error> {
    let doing = "look for the publications";
    let row = primary
        .query_opt(
            "select pubname::text from pg_catalog.pg_publication
             where pubname = any($1::text[]) order by pubname limit 1",
            &[&names],
        )
        .await
        .doing(doing)?;
    row.map(|row| row.try_get(0)).transpose().doing(doing)
}

/// Runs DDL in one transaction with a short lock timeout, again and again: a publication waits
/// behind the owner's DDL, but nothing of the owner may wait long behind us.
async fn patiently(
    primary: &mut Client,
    doing: &'static str,
    statements: &str,
) -> Result<(), PublicationError> {
    let mut pause = FIRST_PAUSE;
    let mut tries = 0;
    loop {
        tries += 1;
        match in_one_transaction(primary, doing, statements).await {
            Ok(()) => return Ok(()),
            Err(error) if !error.is(&SqlState::LOCK_NOT_AVAILABLE) => {
                return Err(error.into());
            }
            Err(source) if tries == TRIES => {
                return Err(PublicationError::Locked { doing, source });
            }
            Err(_) => sleep(pause).await,
        }
        pause *= 2;
    }
}

async fn in_one_transaction(
    primary: &mut Client,
    doing: &'static str,
    statements: &str,
) -> Result<(), Error> {
    let tx = primary.transaction().await.doing(doing)?;
    tx.batch_execute(&format!(
        "set local lock_timeout = {}; set local synchronous_commit = on; {statements}",
        LOCK_WAIT.as_millis()
    ))
    .await
    .doing(doing)?;
    tx.commit().await.doing(doing)
}

/// Waits until `standby` has replayed all that `primary` has written so far, so that what was just
/// made on the primary is there. Does nothing where both are one server's primary.
pub async fn wait_replayed<P: GenericClient + Sync, S: GenericClient + Sync>(
    primary: &P,
    standby: &S,
    timeout: Duration,
) -> Result<(), PublicationError> {
    let doing = "wait for the standby";
    let row = primary
        .query_one("select pg_current_wal_flush_lsn()", &[])
        .await
        .doing(doing)?;
    let until: PgLsn = row.try_get(0).doing(doing)?;
    let deadline = Instant::now() + timeout;
    loop {
        let row = standby
            .query_one(
                "select not pg_is_in_recovery() or pg_last_wal_replay_lsn() >= $1",
                &[&until],
            )
            .await
            .doing(doing)?;
        if row.try_get::<_, Option<bool>>(0).doing(doing)? == Some(true) {
            return Ok(());
        }
        if Instant::now() >= deadline {
            return Err(PublicationError::StandbyBehind {
                until: Lsn(until.into()),
                timeout,
            });
        }
        sleep(Duration::from_millis(50)).await;
    }
}
