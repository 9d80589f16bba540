//! In which order tables and units are emptied, so that no foreign key stands in the way.

use std::collections::BTreeSet;

use monarch_config::Graph;
use monarch_model::{StoreName, TableName};

use super::Doomed;

/// The order in which the units of a graph are deleted: a unit whose tables are referenced by
/// another unit's comes after it, and the root's comes last. Where units reference each other in a
/// circle, the order of the manifest decides. Only units that share a database need it.
pub fn unit_order(graph: &Graph) -> Vec<StoreName> {
    let stores: Vec<&StoreName> = graph
        .stores()
        .filter(|store| store.has_unit())
        .map(|store| &store.name)
        .collect();
    let place = |name: &StoreName| stores.iter().position(|store| *store == name);
    let mut references = BTreeSet::new();
    for table in graph.tables() {
        for edge in &table.edges {
            let parent = graph.table(&edge.parent).map(|parent| &parent.store);
            if let (Some(from), Some(to)) = (place(&table.store), parent.and_then(place)) {
                references.insert((from, to));
            }
        }
    }
    let root = place(&graph.root().store);
    // Nothing but the root's own unit may come after it.
    let before_root = (0..stores.len()).filter(|at| Some(*at) != root);
    references.retain(|(from, _)| Some(*from) != root);
    let root_last = before_root.filter_map(|at| root.map(|root| (at, root)));
    referencing_first(stores.len(), &references, &root_last.collect())
        .into_iter()
        .map(|at| stores[at].clone())
        .collect()
}

/// The order in which `tables`, given parents first, are emptied. `foreign_keys` are pairs of
/// places in it, the referencing table first. A table's scope needs its parent's rows, so where
/// the two disagree, the parent stays longest, and the foreign key, unless it is deferrable, says
/// no by itself.
pub(super) fn delete_order(
    tables: &[Doomed],
    foreign_keys: &BTreeSet<(usize, usize)>,
) -> Vec<usize> {
    let place = |name: &TableName| tables.iter().position(|doomed| doomed.table == *name);
    let scopes: BTreeSet<(usize, usize)> = tables
        .iter()
        .enumerate()
        .filter_map(|(at, doomed)| Some((at, doomed.parent.as_ref().and_then(place)?)))
        .collect();
    // Last first, so that what nothing orders is emptied against the walk.
    let flip = |at: usize| tables.len() - 1 - at;
    let flipped = |pairs: &BTreeSet<(usize, usize)>| {
        pairs
            .iter()
            .map(|&(from, to)| (flip(from), flip(to)))
            .collect()
    };
    referencing_first(tables.len(), &flipped(foreign_keys), &flipped(&scopes))
        .into_iter()
        .map(flip)
        .collect()
}

/// The tables, by place, whose rows reference rows of their own table, directly or by way of
/// others: keys of such a table cannot be deleted in any order, one by one.
pub(super) fn in_circles(count: usize, foreign_keys: &BTreeSet<(usize, usize)>) -> BTreeSet<usize> {
    let reaches_itself = |start: usize| {
        let mut seen = BTreeSet::new();
        let mut next = vec![start];
        while let Some(at) = next.pop() {
            for &(_, to) in foreign_keys.iter().filter(|(from, _)| *from == at) {
                if to == start {
                    return true;
                }
                if seen.insert(to) {
                    next.push(to);
                }
            }
        }
        false
    };
    (0..count).filter(|&at| reaches_itself(at)).collect()
}

/// `0..count` so that what references comes before what is referenced. `must` has no circles;
/// where `should` has, it gives way.
fn referencing_first(
    count: usize,
    should: &BTreeSet<(usize, usize)>,
    must: &BTreeSet<(usize, usize)>,
) -> Vec<usize> {
    let mut left: Vec<usize> = (0..count).collect();
    let mut order = Vec::with_capacity(count);
    while !left.is_empty() {
        let is_free = |at: usize, edges: &BTreeSet<(usize, usize)>| {
            left.iter()
                .all(|&other| other == at || !edges.contains(&(other, at)))
        };
        let free = left
            .iter()
            .position(|&at| is_free(at, must) && is_free(at, should))
            .or_else(|| left.iter().position(|&at| is_free(at, must)))
            .unwrap_or_default();
        order.push(left.remove(free));
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    fn doomed(table: &str, parent: Option<&str>) -> Doomed {
        Doomed {
            table: table.parse().unwrap(),
            key: Vec::new(),
            predicate: String::new(),
            parent: parent.map(|parent| parent.parse().unwrap()),
        }
    }

    fn order(tables: &[Doomed], foreign_keys: &[(usize, usize)]) -> Vec<String> {
        delete_order(tables, &foreign_keys.iter().copied().collect())
            .into_iter()
            .map(|at| tables[at].table.to_string())
            .collect()
    }

    #[test]
    fn children_go_before_their_parents_and_else_against_the_walk() {
        let tables = [
            doomed("organization", None),
            doomed("project", None),
            doomed("group", None),
            doomed("event", Some("group")),
        ];
        assert_eq!(
            order(&tables, &[]),
            ["event", "group", "project", "organization"]
        );
    }

    /// A foreign key need not follow a scope edge: `release` is no parent of `group`.
    #[test]
    fn a_table_that_references_another_goes_before_it_whatever_the_walk() {
        let tables = [doomed("group", None), doomed("release", None)];
        assert_eq!(order(&tables, &[(0, 1)]), ["group", "release"]);
    }

    /// Guards promise 7: emptied before its child, a parent would take the child out of scope.
    #[test]
    fn in_a_circle_the_table_that_scopes_stays_longest() {
        let tables = [doomed("group", None), doomed("event", Some("group"))];
        assert_eq!(order(&tables, &[(0, 1), (1, 0)]), ["event", "group"]);
        let circles = in_circles(2, &[(0, 1), (1, 0)].into());
        assert_eq!(circles, [0, 1].into());
        assert_eq!(in_circles(3, &[(0, 1), (1, 2), (2, 2)].into()), [2].into());
    }

    /// A unit whose tables are referenced by another's goes after it, the root's goes last, and
    /// stores without rows that move are left out.
    #[test]
    fn units_of_one_database_go_referencing_first_and_the_roots_last() {
        let manifest = "
root: org
stores:
  main: {type: postgres}
  events: {type: postgres}
  notes: {type: postgres}
  old: {type: postgres, migrate: false}
relationships:
  org: {store: main, primary_key: [id]}
  project: {store: main, primary_key: [id], static: true, refs: {org_id: {parent: org}}}
  event: {store: events, primary_key: [id], refs: {project_id: {parent: project}}}
  note:
    store: notes
    primary_key: [id]
    refs: {org_id: {parent: org}, event_id: {parent: event}}
  relic: {store: old, primary_key: [id], refs: {org_id: {parent: org}}}
";
        let graph = monarch_config::manifest_from_str("manifest.yaml", manifest).unwrap();
        let order: Vec<String> = unit_order(&graph).iter().map(ToString::to_string).collect();
        assert_eq!(order, ["notes", "events", "main"]);
    }

    /// Guards promise 7: two stores whose tables scope each other's must not send the root's first,
    /// where what still references the organization would forbid its deletion.
    #[test]
    fn units_in_a_circle_go_before_the_roots() {
        let manifest = "
root: org
stores:
  main: {type: postgres}
  events: {type: postgres}
  notes: {type: postgres}
relationships:
  org: {store: main, primary_key: [id]}
  tag: {store: events, primary_key: [id], static: true, refs: {org_id: {parent: org}}}
  pad: {store: notes, primary_key: [id], static: true, refs: {org_id: {parent: org}}}
  event: {store: events, primary_key: [id], refs: {pad_id: {parent: pad}}}
  note: {store: notes, primary_key: [id], refs: {tag_id: {parent: tag}}}
";
        let graph = monarch_config::manifest_from_str("manifest.yaml", manifest).unwrap();
        let order: Vec<String> = unit_order(&graph).iter().map(ToString::to_string).collect();
        assert_eq!(order, ["events", "notes", "main"]);
    }
}
