//! Reads `manifest.yaml`: the schema knowledge that is the same for every cell.
//!
//! Reading only finds what is wrong with one key by itself. What tables and stores mean to each
//! other is checked in [`crate::scope`], on whatever could be read, so that a slip in one table
//! does not hide one in another.

use std::collections::HashMap;

use monarch_model::{StoreName, TableName};

use crate::fault::{Place, Report, quoted};
use crate::fields::{At, Fields, parse_name};
use crate::graph::{BlobRef, Edge, Eviction, Graph, Missing, Store, StoreKind};
use crate::scope;

/// What could be read of a manifest.
pub(crate) struct Manifest {
    /// None if no `stores` could be read: then nothing is said about their names.
    pub(crate) stores: Option<Stores>,
    /// None unless the whole file is free of faults.
    pub(crate) graph: Option<Graph>,
}

impl Manifest {
    /// Of a file that could not be read at all.
    pub(crate) fn unread() -> Self {
        Self {
            stores: None,
            graph: None,
        }
    }
}

/// The stores by name; those whose own entry is at fault are known, but nothing about them is.
#[derive(Default)]
pub(crate) struct Stores {
    names: Vec<StoreName>,
    by_name: HashMap<StoreName, Option<Store>>,
}

impl Stores {
    pub(crate) fn of(graph: &Graph) -> Self {
        let mut stores = Self::default();
        for store in graph.stores() {
            stores.insert(store.name.clone(), Some(store.clone()));
        }
        stores
    }

    fn insert(&mut self, name: StoreName, store: Option<Store>) {
        self.names.push(name.clone());
        self.by_name.insert(name, store);
    }

    /// The stores that are known in full, in the order of the manifest.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Store> {
        self.names
            .iter()
            .filter_map(|name| self.by_name.get(name)?.as_ref())
    }

    /// What is known of a store; reports one that is not there. `Some(None)` is a store whose own
    /// entry is at fault.
    pub(crate) fn find(
        &self,
        name: &StoreName,
        place: &Place,
        report: &mut Report,
    ) -> Option<Option<&Store>> {
        if let Some(store) = self.by_name.get(name) {
            return Some(store.as_ref());
        }
        report.unknown(
            place,
            name.as_str(),
            format!("{} is not a store", quoted(name.as_str())),
            "a store listed under stores in the manifest",
            self.names.iter().map(StoreName::as_str),
        );
        None
    }

    /// The store of that name, if its entry is without fault.
    pub(crate) fn get(&self, name: &StoreName) -> Option<&Store> {
        self.by_name.get(name)?.as_ref()
    }
}

/// A table as it was read.
pub(crate) struct Row {
    pub(crate) name: TableName,
    pub(crate) store: Option<(StoreName, Place)>,
    pub(crate) primary_key: Option<(Vec<String>, Place)>,
    /// Where `static: true` stands.
    pub(crate) fixed: Option<Place>,
    pub(crate) edges: Vec<(Edge, Place)>,
    pub(crate) blobs: Vec<(BlobRef, Place)>,
    /// The category of its messages in the cell's outbox.
    pub(crate) outbox: Option<i32>,
    /// Whether every edge could be read: else nobody knows which one is chosen.
    pub(crate) edges_known: bool,
}

/// Reads the tree of a manifest; what is wrong goes into `report`.
pub(crate) fn read(document: &At<'_>, report: &mut Report) -> Manifest {
    let Some(fields) = document.fields(&["root", "stores", "relationships"], report) else {
        return Manifest::unread();
    };
    let stores = fields
        .required("stores", "a mapping of stores", report)
        .cloned()
        .and_then(|at| read_stores(&at, report));
    let rows = fields
        .required("relationships", "a mapping of tables", report)
        .cloned()
        .and_then(|at| read_tables(&at, report));
    let root = fields
        .required(
            "root",
            "the table whose one row is the organization",
            report,
        )
        .cloned()
        .and_then(|at| Some((at.name::<TableName>(report)?, at.value_place())));
    let graph = match (rows, root) {
        (Some(rows), root) => scope::check(rows, root, stores.as_ref(), report),
        (None, _) => None,
    };
    Manifest { stores, graph }
}

fn read_stores(at: &At<'_>, report: &mut Report) -> Option<Stores> {
    let mut stores = Stores::default();
    for (text, at) in at.entries("a mapping of stores", report)? {
        if let Some(name) = parse_name::<StoreName>(text, &at.place, report) {
            let store = read_store(&name, &at, report);
            stores.insert(name, store);
        }
    }
    Some(stores)
}

fn read_store(name: &StoreName, at: &At<'_>, report: &mut Report) -> Option<Store> {
    const KINDS: [&str; 2] = ["postgres", "blob_store"];
    let fields = at.fields(&["type", "migrate", "eviction", "missing"], report)?;
    let migrate = match fields.optional("migrate") {
        Some(at) => at.flag(report),
        None => Some(true),
    };
    let kind = fields.required("type", "postgres or blob_store", report)?;
    let kind = match kind.text(report)? {
        "postgres" => read_rows_store(&fields, report),
        "blob_store" => read_blob_store(&fields, &at.place, migrate, report),
        other => {
            let found = format!("{} is no type of store", quoted(other));
            report.unknown(
                &kind.value_place(),
                other,
                found,
                "postgres or blob_store",
                KINDS,
            );
            None
        }
    };
    Some(Store {
        name: name.clone(),
        kind: kind?,
        migrate: migrate?,
    })
}

/// A Postgres store has none of the keys that say what becomes of objects.
fn read_rows_store(fields: &Fields<'_>, report: &mut Report) -> Option<StoreKind> {
    let keys = [
        (
            "eviction",
            "eviction of a postgres store",
            "eviction only where the type is blob_store: rows are always evicted",
        ),
        (
            "missing",
            "missing of a postgres store",
            "missing only where the type is blob_store: it is about objects",
        ),
    ];
    let mut kind = Some(StoreKind::Postgres);
    for (key, found, expected) in keys {
        if let Some(at) = fields.optional(key) {
            report.fault(&at.place, found, expected);
            kind = None;
        }
    }
    kind
}

fn read_blob_store(
    fields: &Fields<'_>,
    place: &Place,
    migrate: Option<bool>,
    report: &mut Report,
) -> Option<StoreKind> {
    let missing = match fields.optional("missing") {
        Some(at) => read_missing(at, report),
        None => Some(Missing::default()),
    };
    let eviction = match fields.optional("eviction") {
        Some(at) => read_eviction(at, report),
        // What does not move is not evicted.
        None if migrate == Some(false) => Some(Eviction::Keep),
        None => {
            let place = Place {
                key: format!("{}.eviction", place.key),
                line: place.line,
            };
            report.fault(&place, "missing", "delete or keep");
            None
        }
    };
    Some(StoreKind::Blob {
        eviction: eviction?,
        missing: missing?,
    })
}

fn read_missing(at: &At<'_>, report: &mut Report) -> Option<Missing> {
    match at.text(report)? {
        "block" => Some(Missing::Block),
        "accept" => Some(Missing::Accept),
        other => {
            let found = format!("{} is no answer to a missing object", quoted(other));
            let place = at.value_place();
            report.unknown(&place, other, found, "block or accept", ["block", "accept"]);
            None
        }
    }
}

fn read_eviction(at: &At<'_>, report: &mut Report) -> Option<Eviction> {
    match at.text(report)? {
        "delete" => Some(Eviction::Delete),
        "keep" => Some(Eviction::Keep),
        other => {
            let found = format!("{} is no eviction", quoted(other));
            let place = at.value_place();
            report.unknown(&place, other, found, "delete or keep", ["delete", "keep"]);
            None
        }
    }
}

fn read_tables(at: &At<'_>, report: &mut Report) -> Option<Vec<Row>> {
    let mut rows = Vec::new();
    let mut lines: HashMap<TableName, usize> = HashMap::new();
    for (text, at) in at.entries("a mapping of tables", report)? {
        let Some(name) = parse_name::<TableName>(text, &at.place, report) else {
            continue;
        };
        if let Some(line) = lines.insert(name.clone(), at.place.line) {
            report.fault(
                &at.place,
                "another spelling of a table that is already there",
                format!("each table once (first on line {line})"),
            );
            continue;
        }
        rows.push(read_table(name, &at, report));
    }
    Some(rows)
}

fn read_table(name: TableName, at: &At<'_>, report: &mut Report) -> Row {
    let mut row = Row {
        name,
        store: None,
        primary_key: None,
        fixed: None,
        edges: Vec::new(),
        blobs: Vec::new(),
        outbox: None,
        edges_known: false,
    };
    let keys = ["store", "primary_key", "static", "outbox", "refs"];
    let Some(fields) = at.fields(&keys, report) else {
        return row;
    };
    row.store = fields
        .required("store", "the store that the table lives in", report)
        .cloned()
        .and_then(|at| Some((at.name(report)?, at.value_place())));
    row.primary_key = fields
        .required("primary_key", "a list of the key's columns", report)
        .cloned()
        .and_then(|at| Some((read_key(&at, report)?, at.place.clone())));
    row.fixed = fields
        .optional("static")
        .filter(|at| at.flag(report) == Some(true))
        .map(|at| at.place.clone());
    row.outbox = fields
        .optional("outbox")
        .and_then(|at| read_outbox(&row, at, report));
    row.edges_known = match fields.optional("refs") {
        Some(at) => read_refs(&mut row, at, report),
        None => true,
    };
    row
}

/// A message names its object by one number.
fn read_outbox(row: &Row, at: &At<'_>, report: &mut Report) -> Option<i32> {
    const EXPECTED: &str = "the number of a category";
    let Some(category) = at.written().and_then(|text| text.parse().ok()) else {
        let found = at.written().map_or(at.node.value.kind().to_owned(), quoted);
        report.fault(&at.value_place(), format!("found {found}"), EXPECTED);
        return None;
    };
    if let Some((columns, _)) = &row.primary_key
        && columns.len() > 1
    {
        report.fault(
            &at.place,
            "an outbox of a table whose key has several columns",
            "a key of one column: a message names its object by it",
        );
        return None;
    }
    Some(category)
}

fn read_key(at: &At<'_>, report: &mut Report) -> Option<Vec<String>> {
    let items = at.list("a list of the key's columns", report)?;
    if items.is_empty() {
        report.fault(&at.place, "an empty list", "at least one column");
        return None;
    }
    let mut columns: Vec<String> = Vec::with_capacity(items.len());
    for item in &items {
        let column = item.text(report)?;
        check_column(column, &item.place, report)?;
        if columns.iter().any(|known| known == column) {
            report.fault(&item.place, "a repeated column", "each column once");
            return None;
        }
        columns.push(column.to_owned());
    }
    Some(columns)
}

/// Whether every reference could be read.
fn read_refs(row: &mut Row, at: &At<'_>, report: &mut Report) -> bool {
    let Some(entries) = at.entries("a mapping of columns", report) else {
        return false;
    };
    let mut all = true;
    for (column, at) in entries {
        all &= check_column(column, &at.place, report)
            .and_then(|()| read_ref(row, column, &at, report))
            .is_some();
    }
    all
}

fn read_ref(row: &mut Row, column: &str, at: &At<'_>, report: &mut Report) -> Option<()> {
    const EXPECTED: &str = "either parent, a table, or blob, a blob store";
    let fields = at.fields(&["parent", "blob"], report)?;
    let column = column.to_owned();
    match (fields.optional("parent"), fields.optional("blob")) {
        (Some(at), None) => {
            let parent = at.name(report)?;
            row.edges.push((Edge { column, parent }, at.value_place()));
        }
        (None, Some(at)) => {
            let store = at.name(report)?;
            row.blobs
                .push((BlobRef { column, store }, at.value_place()));
        }
        (Some(_), Some(_)) => {
            report.fault(&at.place, "both parent and blob", EXPECTED);
            return None;
        }
        (None, None) => {
            report.fault(&at.place, "neither parent nor blob", EXPECTED);
            return None;
        }
    }
    Some(())
}

fn check_column(column: &str, place: &Place, report: &mut Report) -> Option<()> {
    /// What Postgres keeps of an identifier.
    const BYTES: usize = 63;
    if column.is_empty() || column.len() > BYTES || column.chars().any(char::is_control) {
        report.fault(
            place,
            format!("{} is no column", quoted(column)),
            "1 to 63 bytes without control characters",
        );
        return None;
    }
    Some(())
}
