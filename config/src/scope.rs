//! Chooses the edge that scopes each table and checks that the chosen edges make a tree which the
//! movers can walk store by store.
//!
//! An edge to the root or to another static table wins, the first of them if there are several;
//! else the first listed. Only the chosen edge is held to the rules: another one may leave the store,
//! or close a circle, since no row is looked for along it. The rules hold for tables that do not
//! move too, so that a change of `migrate` cannot break a manifest that was fine.

use std::collections::{HashMap, HashSet};

use monarch_model::TableName;

use crate::fault::{Place, Report, quoted};
use crate::graph::{Edge, Graph, Scope, Table};
use crate::manifest::{Row, Stores};

/// The most names of a chain that a fault tells.
const NAMED: usize = 12;

/// Where the chosen edge of a table leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Link {
    /// Nowhere: the table is the root.
    Root,
    /// To the table at this index, by the edge at that one.
    To { parent: usize, edge: usize },
    /// Nowhere: the table has no edge.
    Unscoped,
    /// It was reported that this cannot be known.
    Faulty,
}

/// Where the chain of chosen edges from a table ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reach {
    /// At the root, so many edges away.
    Root(usize),
    /// At the unscoped table of this index.
    Unscoped(usize),
    /// Nowhere, for a reason that was reported.
    Faulty,
}

/// The rows of one manifest and what was made of them so far.
struct Tables<'a> {
    rows: &'a [Row],
    by_name: HashMap<&'a TableName, usize>,
    root: usize,
    links: Vec<Link>,
}

/// The graph that `rows` make, if nothing in it, nor in what was read before, is wrong.
pub(crate) fn check(
    rows: Vec<Row>,
    root: Option<(TableName, Place)>,
    stores: Option<&Stores>,
    report: &mut Report,
) -> Option<Graph> {
    let by_name: HashMap<&TableName, usize> = rows
        .iter()
        .enumerate()
        .map(|(index, row)| (&row.name, index))
        .collect();
    if let Some(stores) = stores {
        rows.iter()
            .for_each(|row| check_stores(row, stores, report));
    }
    let known_edges: Vec<bool> = rows
        .iter()
        .map(|row| check_parents(row, &rows, &by_name, report))
        .collect();
    let (root, place) = root?;
    let Some(&root) = by_name.get(&root) else {
        let found = format!("{} is not a table", quoted(root.as_str()));
        let names = rows.iter().map(|row| row.name.as_str());
        report.unknown(
            &place,
            root.as_str(),
            found,
            "a table under relationships",
            names,
        );
        return None;
    };
    let mut tables = Tables {
        rows: &rows,
        by_name,
        root,
        links: Vec::new(),
    };
    tables.links = (0..rows.len())
        .map(|index| tables.link(index, known_edges[index], report))
        .collect();
    tables.check_spine(stores, report);
    tables.check_keys(report);
    tables.check_crossings(report);
    let reach = tables.reach(report);
    tables.check_chains(&reach, report);
    if report.has_faults() {
        return None;
    }
    tables.graph(&reach, stores?)
}

/// The stores that a table names: its own holds tables, those of its blobs hold objects.
fn check_stores(row: &Row, stores: &Stores, report: &mut Report) {
    if let Some((name, place)) = &row.store
        && let Some(Some(store)) = stores.find(name, place, report)
        && store.is_blob()
    {
        let found = format!("{} is a blob store", quoted(name.as_str()));
        report.fault(place, found, "a postgres store");
    }
    for (blob, place) in &row.blobs {
        if let Some(Some(store)) = stores.find(&blob.store, place, report)
            && !store.is_blob()
        {
            let found = format!("{} is a postgres store", quoted(blob.store.as_str()));
            report.fault(place, found, "a blob store");
        }
    }
}

/// Whether every edge of the table leads to a table.
fn check_parents(
    row: &Row,
    rows: &[Row],
    by_name: &HashMap<&TableName, usize>,
    report: &mut Report,
) -> bool {
    let mut known = row.edges_known;
    for (edge, place) in &row.edges {
        if !by_name.contains_key(&edge.parent) {
            let name = edge.parent.as_str();
            let found = format!("{} is not a table", quoted(name));
            let names = rows.iter().map(|row| row.name.as_str());
            report.unknown(place, name, found, "a table under relationships", names);
            known = false;
        }
    }
    known
}

impl Tables<'_> {
    fn in_spine(&self, index: usize) -> bool {
        index == self.root || self.rows[index].fixed.is_some()
    }

    fn link(&self, index: usize, edges_known: bool, report: &mut Report) -> Link {
        let row = &self.rows[index];
        if index == self.root {
            for (_, place) in &row.edges {
                report.fault(
                    place,
                    "the root has a parent",
                    "no parent: every chain ends at it",
                );
            }
            return Link::Root;
        }
        if !edges_known {
            return Link::Faulty;
        }
        if let (Some(place), true) = (&row.fixed, row.edges.is_empty()) {
            report.fault(
                place,
                "a static table without an edge to a parent",
                "a chain of edges that ends at the root",
            );
            return Link::Faulty;
        }
        let parents = || {
            let parent = |(edge, (of, _)): (usize, &(Edge, Place))| {
                let parent = *self.by_name.get(&of.parent)?;
                Some((edge, parent))
            };
            row.edges.iter().enumerate().filter_map(parent)
        };
        parents()
            .find(|(_, parent)| *parent != index && self.in_spine(*parent))
            .or_else(|| parents().next())
            .map_or(Link::Unscoped, |(edge, parent)| Link::To { parent, edge })
    }

    /// The root and the static tables move, and hang from one another only.
    fn check_spine(&self, stores: Option<&Stores>, report: &mut Report) {
        for (index, row) in self.rows.iter().enumerate() {
            if !self.in_spine(index) {
                continue;
            }
            let what = if index == self.root {
                "the root"
            } else {
                "a static table"
            };
            if let Some((name, place)) = &row.store
                && let Some(store) = stores.and_then(|stores| stores.get(name))
                && !store.migrate
            {
                let found = format!(
                    "{what} in store {}, which does not move",
                    quoted(name.as_str())
                );
                report.fault(place, found, "a store that is migrated");
            }
            if let Link::To { parent, edge } = self.links[index]
                && !self.in_spine(parent)
            {
                let parent = quoted(self.rows[parent].name.as_str());
                report.fault(
                    &row.edges[edge].1,
                    format!("a static table whose parent {parent} is neither the root nor static"),
                    "a parent whose ids are as fixed as its own",
                );
            }
        }
    }

    /// A table that scopes others, or whose ids are recorded, has one key column.
    fn check_keys(&self, report: &mut Report) {
        let mut needed: HashMap<usize, String> = HashMap::new();
        for (index, link) in self.links.iter().enumerate() {
            if let Link::To { parent, .. } = link {
                let child = quoted(self.rows[index].name.as_str());
                needed
                    .entry(*parent)
                    .or_insert_with(|| format!("one column, since the table scopes {child}"));
            }
            if self.in_spine(index) {
                needed.insert(index, "one column, since the ids are recorded".to_owned());
            }
        }
        for (index, row) in self.rows.iter().enumerate() {
            if let Some(expected) = needed.get(&index)
                && let Some((columns, place)) = &row.primary_key
                && columns.len() > 1
            {
                let found = format!("a key of {} columns", columns.len());
                report.fault(place, found, expected.as_str());
            }
        }
    }

    /// A dynamic edge stays in its store: no other WAL tells when its parent's ids change.
    fn check_crossings(&self, report: &mut Report) {
        for (row, link) in self.rows.iter().zip(&self.links) {
            let Link::To { parent, edge } = *link else {
                continue;
            };
            let above = &self.rows[parent];
            if let (Some((store, _)), Some((other, _))) = (&row.store, &above.store)
                && store != other
                && !self.in_spine(parent)
            {
                report.fault(
                    &row.edges[edge].1,
                    format!(
                        "the scope edge leaves store {} for {} in store {}",
                        quoted(store.as_str()),
                        quoted(above.name.as_str()),
                        quoted(other.as_str()),
                    ),
                    "a parent in the same store, or one that is the root or static",
                );
            }
        }
    }

    /// Follows every chain to its end. Each circle is reported once.
    fn reach(&self, report: &mut Report) -> Vec<Reach> {
        let mut known: Vec<Option<Reach>> = vec![None; self.rows.len()];
        let mut on_path = vec![false; self.rows.len()];
        for start in 0..self.rows.len() {
            let mut path = Vec::new();
            let mut at = start;
            let mut reach = loop {
                if let Some(reach) = known[at] {
                    break reach;
                }
                if on_path[at] {
                    let from = path.iter().position(|&index| index == at);
                    self.report_circle(&path[from.unwrap_or(0)..], report);
                    break Reach::Faulty;
                }
                let end = match self.links[at] {
                    Link::To { parent, .. } => {
                        on_path[at] = true;
                        path.push(at);
                        at = parent;
                        continue;
                    }
                    Link::Root => Reach::Root(0),
                    Link::Unscoped => Reach::Unscoped(at),
                    Link::Faulty => Reach::Faulty,
                };
                known[at] = Some(end);
                break end;
            };
            for &index in path.iter().rev() {
                if let Reach::Root(edges) = reach {
                    reach = Reach::Root(edges + 1);
                }
                known[index] = Some(reach);
            }
        }
        known
            .into_iter()
            .map(|reach| reach.unwrap_or(Reach::Faulty))
            .collect()
    }

    fn report_circle(&self, circle: &[usize], report: &mut Report) {
        // The circle is told from its first table in the file, wherever it was met.
        let first = (0..circle.len()).min_by_key(|&at| circle[at]).unwrap_or(0);
        let told = circle[first..].iter().chain(&circle[..=first]);
        if let Link::To { edge, .. } = self.links[circle[first]] {
            report.fault(
                &self.rows[circle[first]].edges[edge].1,
                format!("the scope edges run in a circle: {}", self.chain(told)),
                "a chain of edges that ends at the root",
            );
        }
    }

    fn check_chains(&self, reach: &[Reach], report: &mut Report) {
        for (index, reach) in reach.iter().enumerate() {
            let (Reach::Unscoped(end), Link::To { edge, .. }) = (*reach, self.links[index]) else {
                continue;
            };
            let mut chain = vec![index];
            let mut at = index;
            while let Link::To { parent, .. } = self.links[at] {
                if chain.len() == NAMED {
                    chain.push(end);
                    break;
                }
                chain.push(parent);
                at = parent;
            }
            report.fault(
                &self.rows[index].edges[edge].1,
                format!("the chain {} never reaches the root", self.chain(&chain)),
                "a chain of edges that ends at the root",
            );
        }
    }

    /// The names of a chain, its middle left out where it is long.
    fn chain<'t>(&self, indexes: impl IntoIterator<Item = &'t usize>) -> String {
        let mut names: Vec<&str> = indexes
            .into_iter()
            .map(|&index| self.rows[index].name.as_str())
            .collect();
        if names.len() > NAMED {
            names.splice(NAMED - 1..names.len() - 1, ["…"]);
        }
        names.join(" → ")
    }

    fn graph(&self, reach: &[Reach], stores: &Stores) -> Option<Graph> {
        let migrated: HashSet<_> = stores
            .iter()
            .filter(|store| store.migrate)
            .map(|store| &store.name)
            .collect();
        let tables: Vec<Table> = (0..self.rows.len())
            .map(|index| self.table(index))
            .collect::<Option<_>>()?;
        let mut walk: Vec<(usize, usize)> = reach
            .iter()
            .enumerate()
            .filter(|(index, _)| migrated.contains(&tables[*index].store))
            .filter_map(|(index, reach)| match reach {
                Reach::Root(edges) => Some((*edges, index)),
                Reach::Unscoped(_) | Reach::Faulty => None,
            })
            .collect();
        walk.sort_unstable();
        let walk = walk.into_iter().map(|(_, index)| index).collect();
        Some(Graph::new(
            tables,
            stores.iter().cloned().collect(),
            self.root,
            walk,
        ))
    }

    fn table(&self, index: usize) -> Option<Table> {
        let row = &self.rows[index];
        let scope = match self.links[index] {
            Link::Root => Scope::Root,
            Link::Unscoped => Scope::Unscoped,
            Link::Faulty => return None,
            Link::To { parent, edge } => {
                let edge = row.edges[edge].0.clone();
                let column = edge.column;
                if parent == self.root {
                    Scope::ByRoot { column }
                } else if self.in_spine(parent) {
                    Scope::ByStatic {
                        column,
                        parent: edge.parent,
                    }
                } else {
                    Scope::ByDynamic {
                        column,
                        parent: edge.parent,
                    }
                }
            }
        };
        Some(Table {
            name: row.name.clone(),
            store: row.store.as_ref()?.0.clone(),
            primary_key: row.primary_key.as_ref()?.0.clone(),
            is_static: row.fixed.is_some() && index != self.root,
            edges: row.edges.iter().map(|(edge, _)| edge.clone()).collect(),
            scope,
            blobs: row.blobs.iter().map(|(blob, _)| blob.clone()).collect(),
            outbox: row.outbox,
        })
    }
}
