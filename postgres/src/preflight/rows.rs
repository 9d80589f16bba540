//! Whether the organization is where it should be, and nowhere else.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;

use futures::TryStreamExt;
use futures::future::join_all;
use monarch_config::{self as config, Graph, Table};
use monarch_model::{StoreName, chain};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row};

use super::finding::{Finding, Place};
use super::open::{Open, not_checked};
use super::ties::Ties;
use super::uniqueness::{self, Uniqueness};
use super::{Job, references};
use crate::catalog::{Column, Generated, Relation};
use crate::scope::Scope;
use crate::spine::{self, Spine};
use crate::sql::{qualified, quote_ident};
use crate::{Doing, Error, Result};

/// How many keys go to the sink at once.
const CHUNK_KEYS: usize = 10_000;

pub(super) async fn check(job: &Job<'_>, source: &[Open<'_>], sink: &[Open<'_>]) -> Vec<Finding> {
    let graph = job.graph;
    let root = graph.root();
    let Some(home) = source.iter().find(|open| open.holds(&root.store)) else {
        return Vec::new();
    };
    let place = home.place.table(&root.store, &root.name);
    let mut findings = match organization(home, job, &place).await {
        Ok(Presence::Here(findings)) => findings,
        Ok(Presence::Absent(finding)) => return vec![*finding],
        Err(error) => return vec![not_checked(&place, &error)],
    };
    let spine = match read_spine(graph, source, job).await {
        Ok(spine) => spine,
        Err(finding) => {
            findings.push(finding);
            return findings;
        }
    };
    let stores = graph.stores().filter_map(|store| {
        let holds = |open: &&Open<'_>| open.holds(&store.name);
        Some((
            &store.name,
            source.iter().find(holds)?,
            sink.iter().find(holds)?,
        ))
    });
    let found = join_all(stores.map(|(store, from, to)| one_store(job, store, from, to, &spine)));
    findings.extend(found.await.into_iter().flatten());
    findings
}

/// Whether the organization has its row.
enum Presence {
    Here(Vec<Finding>),
    Absent(Box<Finding>),
}

async fn organization(home: &Open<'_>, job: &Job<'_>, place: &Place) -> Result<Presence> {
    let root = job.graph.root();
    let column = home
        .catalog
        .relation(&root.name)
        .and_then(|relation| relation.column(root.primary_key.first()?));
    let Some(column) = column else {
        // The table's shape is told elsewhere.
        return Ok(Presence::Here(Vec::new()));
    };
    let key = quote_ident(&column.name);
    let sql = format!(
        "select t.{key}::text from {} as t where t.{key} {} $1::text::{}",
        qualified(&root.name),
        column.equals,
        column.key_type
    );
    let found = home.decoder().query_opt(&sql, &[&job.org.as_str()]).await;
    let row = match found.doing("look for the organization") {
        // Data exceptions: the text is no value of the type.
        Err(error)
            if error
                .code()
                .is_some_and(|code| code.code().starts_with("22")) =>
        {
            let finding = Finding::refuse(
                "organization-id-invalid",
                place.column(&column.name),
                format!("the organization's id is no {}", column.type_name),
                "The organization cannot be told",
            );
            return Ok(Presence::Absent(Box::new(finding)));
        }
        found => found?,
    };
    let Some(row) = row else {
        let finding = Finding::refuse(
            "organization-not-found",
            place.clone(),
            "there is no row of this organization",
            "There is nothing to move",
        );
        return Ok(Presence::Absent(Box::new(
            finding.mend("check the id, and the cell that it lives in"),
        )));
    };
    let printed: String = row.try_get(0).doing("look for the organization")?;
    let other_spelling = (printed != job.org.as_str()).then(|| {
        Finding::info(
            "organization-id-spelling",
            place.column(&column.name),
            format!("the server writes the organization's id as {printed}"),
            "Moves, slots and searches go by that spelling",
        )
    });
    Ok(Presence::Here(other_spelling.into_iter().collect()))
}

async fn read_spine(
    graph: &Graph,
    source: &[Open<'_>],
    job: &Job<'_>,
) -> std::result::Result<Spine, Finding> {
    let clients: BTreeMap<StoreName, &Client> = source
        .iter()
        .flat_map(|open| {
            let stores = open.database.stores.iter().cloned();
            stores.map(|store| (store, &**open.decoder()))
        })
        .collect();
    spine::read(&clients, graph, job.org)
        .await
        .map_err(|error| {
            Finding::refuse(
                "not-checked",
                Place {
                    cell: Some(job.from.clone()),
                    ..Place::default()
                },
                format!("the static spine cannot be read: {}", chain(&error)),
                "Which rows are the organization's is not known",
            )
        })
}

async fn one_store(
    job: &Job<'_>,
    store: &StoreName,
    from: &Open<'_>,
    to: &Open<'_>,
    spine: &Spine,
) -> Vec<Finding> {
    let scopes = |open: &Open<'_>| Scope::new(job.graph, store, job.org, spine, &open.catalog);
    let (theirs, ours) = match (scopes(from), scopes(to)) {
        (Ok(theirs), Ok(ours)) => (theirs, ours),
        // A table or column is missing, which is told as such.
        _ => return Vec::new(),
    };
    let ties = Ties {
        graph: job.graph,
        from,
        scope: &theirs,
        spine,
        accepted: job.accept_disagreeing_edges,
    };
    let mut findings = Vec::new();
    for table in job.graph.walk(store) {
        let pair = Pair {
            graph: job.graph,
            is_held: to.catalog.is_held(&table.name),
            table,
            from,
            to,
            theirs: &theirs,
            ours: &ours,
        };
        match pair.check(job.limits.compared_keys).await {
            Ok(found) => findings.extend(found),
            Err(error) => findings.push(not_checked(&pair.place(), &error)),
        }
        match ties.check(table).await {
            Ok(found) => findings.extend(found),
            Err(error) => findings.push(not_checked(&pair.place(), &error)),
        }
    }
    findings
}

/// One table on both sides.
struct Pair<'a> {
    graph: &'a Graph,
    table: &'a Table,
    /// Whether a foreign key of the sink ties each of its rows to a parent.
    is_held: bool,
    from: &'a Open<'a>,
    to: &'a Open<'a>,
    theirs: &'a Scope,
    ours: &'a Scope,
}

impl Pair<'_> {
    fn place(&self) -> Place {
        self.to.place.table(&self.table.store, &self.table.name)
    }

    async fn check(&self, limit: u64) -> Result<Vec<Finding>> {
        let catalogs = (&self.from.catalog, &self.to.catalog);
        let name = &self.table.name;
        let (Some(source), Some(sink)) = (catalogs.0.relation(name), catalogs.1.relation(name))
        else {
            return Ok(Vec::new());
        };
        if self.sink_holds_some().await? {
            let finding = Finding::refuse(
                "sink-holds-organization",
                self.place(),
                "rows of the organization are on the sink already",
                "Whose they are and what they hold is not known: they are not written over",
            );
            return Ok(vec![finding.mend(
                "see first where the organization lives: if routing names the sink, these are its \
                 live rows, and --from and --to are to be exchanged; if an earlier move left \
                 them (monarch move list), end it with monarch move abort; nothing else is safe \
                 to delete",
            )]);
        }
        let mut findings = Vec::new();
        for columns in self.unique_columns(source, sink) {
            findings.extend(self.taken(&columns, sink, limit).await?);
        }
        for unique in uniqueness::read(self.to, sink).await? {
            findings.extend(self.clashes(&unique, (source, sink), limit).await?);
        }
        findings.extend(self.nulls(source, sink).await?);
        findings.extend(self.strays(sink, limit).await?);
        let (sides, theirs) = ((self.from, self.to), predicate(self.theirs, self.table)?);
        findings.extend(references::check(self.table, sides, &theirs, limit).await?);
        Ok(findings)
    }

    async fn sink_holds_some(&self) -> Result<bool> {
        let doing = || {
            format!(
                "look for the organization in {} on the sink",
                self.table.name
            )
        };
        let sql = format!(
            "select exists (select from {} as t where {})",
            qualified(&self.table.name),
            predicate(self.ours, self.table)?
        );
        let row = self.to.primary.query_one(&sql, &[]).await.doing(doing())?;
        row.try_get(0).doing(doing())
    }

    /// The column lists that the sink holds unique in all rows: the manifest's key first.
    fn unique_columns(&self, source: &Relation, sink: &Relation) -> Vec<Vec<String>> {
        let mut seen = BTreeSet::new();
        let key = self.table.primary_key.clone();
        let others = sink
            .unique_indexes
            .iter()
            .filter(|index| !index.partial && !index.on_expression && index.valid)
            .map(|index| index.columns.clone());
        std::iter::once(key)
            .chain(others)
            .filter(|columns| {
                let there = |column: &String| {
                    source.column(column).is_some() && sink.column(column).is_some()
                };
                columns.iter().all(there)
                    && seen.insert(columns.iter().cloned().collect::<BTreeSet<_>>())
            })
            .collect()
    }

    /// Looks on the sink for rows that hang on ids of the organization's parents, which are not there
    /// yet. Nobody's now, they would count as the organization's once it arrives, and be deleted as
    /// such. Where a foreign key holds them there are none.
    async fn strays(&self, sink: &Relation, limit: u64) -> Result<Option<Finding>> {
        let config::Scope::ByDynamic { column, parent } = &self.table.scope else {
            return Ok(None);
        };
        let parent = self.graph.table(parent).filter(|_| !self.is_held);
        let Some(parent) = parent else {
            return Ok(None);
        };
        let search = search_sql(std::slice::from_ref(column), sink);
        let found = self
            .search(parent, &parent.primary_key, &search, limit)
            .await?;
        Ok((found > 0).then(|| {
            Finding::refuse(
                "strays-on-sink",
                self.place(),
                format!(
                    "{found} rows on the sink refer by {column} to rows of {} that the organization \
                     will bring",
                    parent.name
                ),
                "They hang on nothing there today. Once the organization arrives they would be taken \
                 for its own, and go with it",
            )
            .mend(format!(
                "delete them on the sink or set {column} to null, if they are left-overs; else give \
                 the organization's rows of {} other ids",
                parent.name
            ))
        }))
    }

    /// Reads the organization's values of `columns` on the source and looks for them on the sink,
    /// where none of its rows is: whoever has one is somebody else.
    async fn taken(
        &self,
        columns: &[String],
        sink: &Relation,
        limit: u64,
    ) -> Result<Option<Finding>> {
        let search = search_sql(columns, sink);
        let taken = self.search(self.table, columns, &search, limit).await?;
        Ok((taken > 0).then(|| self.taken_finding(columns, taken)))
    }

    /// The same for what the sink holds unique otherwise than by columns.
    async fn clashes(
        &self,
        unique: &Uniqueness,
        (source, sink): (&Relation, &Relation),
        limit: u64,
    ) -> Result<Option<Finding>> {
        let columns = unique.columns(sink);
        let unknown = columns.iter().find(|name| source.column(name).is_none());
        if let Some(unknown) = unknown {
            return Ok(Some(self.not_compared(unique, unknown)));
        }
        let search = unique.search_sql(&columns, sink);
        let clashes = self.search(self.table, &columns, &search, limit).await?;
        Ok((clashes > 0).then(|| {
            Finding::refuse(
                "unique-value-taken",
                self.place(),
                format!(
                    "{clashes} times a row of the organization and another's on the sink are what {} \
                     on {} does not take together",
                    unique.name, unique.on
                ),
                "The sink would refuse these rows",
            )
            .mend(format!("change them on one side, or on the sink {}", unique.drop))
        }))
    }

    fn not_compared(&self, unique: &Uniqueness, column: &str) -> Finding {
        Finding::warn(
            "unique-not-compared",
            self.place().column(column),
            format!(
                "{} on {} goes by this column, which the source does not have",
                unique.name, unique.on
            ),
            "Whether the organization's rows clash with others' there shows only when they are \
             written: the move fails then",
        )
        .mend(format!(
            "on the sink {}, for the time of the move",
            unique.drop
        ))
    }

    /// Columns that may be null on the source and not on the sink: whether they are.
    async fn nulls(&self, source: &Relation, sink: &Relation) -> Result<Vec<Finding>> {
        let stricter = |to: &&Column| {
            let from = source.column(&to.name);
            to.not_null && to.generated == Generated::No && from.is_some_and(|from| !from.not_null)
        };
        let columns: Vec<&Column> = sink.columns.iter().filter(stricter).collect();
        if columns.is_empty() {
            return Ok(Vec::new());
        }
        let doing = || format!("look for nulls in {}", self.table.name);
        let is_null: Vec<String> = columns
            .iter()
            .map(|column| {
                format!(
                    "count(*) filter (where t.{} is null)",
                    quote_ident(&column.name)
                )
            })
            .collect();
        let sql = format!(
            "select {} from {} as t where {}",
            is_null.join(", "),
            qualified(&self.table.name),
            predicate(self.theirs, self.table)?
        );
        let row = self
            .from
            .decoder()
            .query_one(&sql, &[])
            .await
            .doing(doing())?;
        let columns = columns.into_iter().enumerate();
        columns
            .map(|(at, column)| Ok(self.not_null(column, row.try_get(at).doing(doing())?)))
            .collect()
    }

    fn not_null(&self, column: &Column, nulls: i64) -> Finding {
        let place = self.place().column(&column.name);
        let mend = format!(
            "alter table {} alter column {} drop not null",
            qualified(&self.table.name),
            quote_ident(&column.name)
        );
        if nulls > 0 {
            let what =
                format!("it refuses null, and {nulls} rows of the organization have one in it");
            let why = "The sink would refuse these rows";
            Finding::refuse("column-not-null", place, what, why)
                .mend(format!("{mend}, or fill them on the source"))
        } else {
            let what =
                "it may be null on the source and not here; no row of the organization has one";
            let why = "A row that is given a null later fails the move";
            Finding::warn("column-not-null", place, what, why).mend(mend)
        }
    }

    /// How many rows `search` finds on the sink for the organization's values of `columns` in a table
    /// of the source.
    async fn search(
        &self,
        table: &Table,
        columns: &[String],
        search: &str,
        limit: u64,
    ) -> Result<i64> {
        let doing = || format!("compare keys of {} with {}", table.name, self.table.name);
        let texts: Vec<String> = columns
            .iter()
            .map(|column| format!("t.{}::text", quote_ident(column)))
            .collect();
        let sql = format!(
            "select {} from {} as t where {} limit {limit}",
            texts.join(", "),
            qualified(&table.name),
            predicate(self.theirs, table)?
        );
        let stream = self.from.decoder().query_raw::<_, &str, _>(&sql, []).await;
        let mut rows = pin!(stream.doing(doing())?.try_chunks(CHUNK_KEYS));
        let mut found = 0;
        loop {
            let chunk = match rows.try_next().await {
                Ok(Some(chunk)) => chunk,
                Ok(None) => break,
                Err(error) => return Err(error.1).doing(doing()),
            };
            found += self
                .count(search, columns.len(), &chunk)
                .await
                .doing(doing())?;
        }
        Ok(found)
    }

    async fn count(
        &self,
        search: &str,
        width: usize,
        chunk: &[Row],
    ) -> std::result::Result<i64, tokio_postgres::Error> {
        let mut values: Vec<Vec<Option<String>>> = vec![Vec::with_capacity(chunk.len()); width];
        for row in chunk {
            for (at, column) in values.iter_mut().enumerate() {
                column.push(row.try_get(at)?);
            }
        }
        let params: Vec<&(dyn ToSql + Sync)> = values.iter().map(|column| column as _).collect();
        self.to.primary.query_one(search, &params).await?.try_get(0)
    }

    fn taken_finding(&self, columns: &[String], taken: i64) -> Finding {
        let key: BTreeSet<&String> = self.table.primary_key.iter().collect();
        let is_key = columns.iter().collect::<BTreeSet<_>>() == key;
        let columns = columns.join(", ");
        if is_key {
            Finding::refuse(
                "key-taken",
                self.place(),
                format!("{taken} keys ({columns}) of the organization are others' on the sink"),
                "Another tenant's row is never changed, so these could not be written",
            )
            .mend("keys must differ between cells: give one side new ones")
        } else {
            Finding::refuse(
                "unique-value-taken",
                self.place(),
                format!(
                    "{taken} values of ({columns}) of the organization are others' on the sink"
                ),
                "A unique index of the sink would refuse these rows",
            )
            .mend("change them on one side, or drop the unique index on the sink")
        }
    }
}

fn predicate(scope: &Scope, table: &Table) -> Result<String> {
    // The scope was made from this very walk, so that no table of it can be missing.
    scope
        .predicate(&table.name, "t")
        .map_err(|error| Error::Asked {
            doing: format!("scope {}", table.name).into(),
            source: crate::ServerError::Driver(error.to_string()),
        })
}

fn search_sql(columns: &[String], sink: &Relation) -> String {
    let numbered = |prefix: &str, suffix: &str| -> String {
        let names: Vec<String> = (1..=columns.len())
            .map(|n| format!("{prefix}{n}{suffix}"))
            .collect();
        names.join(", ")
    };
    let same: Vec<String> = columns
        .iter()
        .enumerate()
        .map(|(at, column)| {
            let (equals, key_type) = sink
                .column(column)
                .map_or(("=", "text"), |column| (&column.equals, &column.key_type));
            format!(
                "t.{} {equals} k.k{}::{key_type}",
                quote_ident(column),
                at + 1
            )
        })
        .collect();
    format!(
        "select count(*) from {} as t join unnest({}) as k({}) on {}",
        qualified(&sink.table),
        numbered("$", "::text[]"),
        numbered("k", ""),
        same.join(" and ")
    )
}
