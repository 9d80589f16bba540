//! Foreign keys and triggers: what they let through, and what lies outside the graph.

use std::collections::{BTreeMap, BTreeSet};

use monarch_config::{Graph, Scope, Table};
use monarch_model::{StoreName, TableName};
use tokio_postgres::Row;

use super::finding::{Finding, Place};
use super::open::{Open, Side};
use crate::evict::unit_order;
use crate::sql::{qualified, quote_ident};
use crate::{Doing, Result};

/// A foreign key that a moved table has, or that references one.
struct ForeignKey {
    name: String,
    /// The moved table that references, if a moved one does.
    child: Option<TableName>,
    /// The moved table that is referenced, if a moved one is.
    parent: Option<TableName>,
    /// The tables as the catalog names them.
    child_text: String,
    parent_text: String,
    columns: Vec<String>,
    /// As `pg_constraint.confdeltype` has it.
    on_delete: String,
    /// As `pg_constraint.confupdtype` has it.
    on_update: String,
    validated: bool,
    deferrable: bool,
}

impl ForeignKey {
    /// What it does to the rows that reference one that is deleted or gets another key.
    fn action(&self) -> Option<String> {
        let does = |action: &str| match action {
            "c" => Some("cascade"),
            "n" => Some("set null"),
            "d" => Some("set default"),
            _ => None,
        };
        let on_delete = does(&self.on_delete).map(|does| format!("on delete {does}"));
        let on_update = does(&self.on_update).map(|does| format!("on update {does}"));
        let both: Vec<String> = on_delete.into_iter().chain(on_update).collect();
        (!both.is_empty()).then(|| both.join(" "))
    }
}

/// A trigger or a rule of a moved table that a user made.
struct Trigger {
    table: TableName,
    name: String,
    /// What it is on, in SQL: the table or a partition of it.
    on: String,
    /// Whether it is a constraint's own, which acts as the constraint does.
    of_constraint: bool,
    on_delete: bool,
    /// When it fires, as `pg_trigger.tgenabled` has it.
    enabled: String,
}

impl Trigger {
    /// Whether it fires in a session whose `session_replication_role` is `origin`.
    fn fires_as_origin(&self) -> bool {
        matches!(self.enabled.as_str(), "O" | "A")
    }

    /// Whether it fires in one where that is `replica`.
    fn fires_as_replica(&self) -> bool {
        matches!(self.enabled.as_str(), "R" | "A")
    }
}

pub(super) async fn check(open: &Open<'_>, graph: &Graph) -> Result<Vec<Finding>> {
    let moved: BTreeMap<&TableName, &Table> = open
        .tables(graph)
        .into_iter()
        .map(|table| (&table.name, table))
        .collect();
    let keys = foreign_keys(open, graph).await?;
    let triggers = written_by_users(open, graph, TRIGGERS).await?;
    let rules = written_by_users(open, graph, RULES).await?;
    let place = |table: &TableName| match moved.get(table) {
        Some(table) => open.place.table(&table.store, &table.name),
        None => open.place.clone(),
    };
    let mut findings: Vec<Finding> = against_order(graph, &moved, &keys)
        .into_iter()
        .map(|(key, is_circle)| emptied_too_early(key, is_circle, &place))
        .collect();
    match open.side {
        Side::Source => {
            findings.extend(unenforced(&moved, &keys, &place));
            let from_outside = keys.iter().filter(|key| key.child.is_none());
            findings.extend(from_outside.flat_map(|key| outside(key, graph, &place)));
            let firing = triggers
                .iter()
                .filter(|trigger| trigger.on_delete && trigger.fires_as_origin())
                .filter(|trigger| !trigger.of_constraint);
            findings.extend(firing.map(|trigger| delete_trigger(trigger, &place)));
            let ruling = rules.iter().filter(|rule| rule.on_delete);
            findings.extend(ruling.map(|found| rule(found, &place, DELETE_RULE)));
        }
        Side::Sink => {
            let as_replica = open.may_set_replication_role().await?;
            findings.extend(
                keys.iter()
                    .filter_map(|key| from_inside(key, &moved, as_replica, &place)),
            );
            let firing = triggers.iter().filter(|trigger| match as_replica {
                true => trigger.fires_as_replica(),
                false => trigger.fires_as_origin() && !trigger.of_constraint,
            });
            let firing: Vec<Finding> = firing
                .map(|trigger| sink_trigger(trigger, &place))
                .collect();
            if !as_replica && (!firing.is_empty() || keys.iter().any(|key| key.child.is_some())) {
                findings.push(writes_as_origin(open).await?);
            }
            findings.extend(firing);
            findings.extend(rules.iter().map(|found| rule(found, &place, SINK_RULE)));
            if as_replica {
                let rechecks = written_by_users(open, graph, RECHECKS).await?;
                let silent = rechecks.iter().filter(|check| !check.fires_as_replica());
                findings.extend(silent.map(|check| not_rechecked(check, &place)));
            }
        }
    }
    Ok(findings)
}

/// Partitions count as the table that was asked for, and what a constraint says of its partitions
/// again is left out.
const MOVED: &str = "
with recursive moved(oid, place) as (
    select oid, place from unnest($1::oid[]) with ordinality as asked(oid, place)
  union
    select i.inhrelid, moved.place
      from moved join pg_catalog.pg_inherits i on i.inhparent = moved.oid
)";

const FOREIGN_KEYS: &str = "
select c.conname::text, child.place, parent.place,
       format('%s.%s', cn.nspname, cc.relname), format('%s.%s', pn.nspname, pc.relname),
       array(select a.attname::text from unnest(c.conkey) with ordinality as k(number, place)
               join pg_catalog.pg_attribute a on a.attrelid = c.conrelid and a.attnum = k.number
              order by k.place),
       c.confdeltype::text, c.convalidated, c.condeferrable, c.confupdtype::text
  from pg_catalog.pg_constraint c
  join pg_catalog.pg_class cc on cc.oid = c.conrelid
  join pg_catalog.pg_namespace cn on cn.oid = cc.relnamespace
  join pg_catalog.pg_class pc on pc.oid = c.confrelid
  join pg_catalog.pg_namespace pn on pn.oid = pc.relnamespace
  left join moved child on child.oid = c.conrelid
  left join moved parent on parent.oid = c.confrelid
 where c.contype = 'f' and c.conparentid = 0
   and (child.place is not null or parent.place is not null)
 order by 4, 1";

async fn foreign_keys(open: &Open<'_>, graph: &Graph) -> Result<Vec<ForeignKey>> {
    let doing = "read foreign keys";
    let (names, oids) = there(open, graph);
    let sql = format!("{MOVED} {FOREIGN_KEYS}");
    let rows = open.primary.query(&sql, &[&oids]).await.doing(doing)?;
    let read = |row: &Row| foreign_key(row, &names);
    rows.iter().map(|row| read(row).doing(doing)).collect()
}

fn foreign_key(
    row: &Row,
    names: &[TableName],
) -> std::result::Result<ForeignKey, tokio_postgres::Error> {
    let name = |place: Option<i64>| at(names, place?);
    Ok(ForeignKey {
        name: row.try_get(0)?,
        child: name(row.try_get(1)?),
        parent: name(row.try_get(2)?),
        child_text: row.try_get(3)?,
        parent_text: row.try_get(4)?,
        columns: row.try_get(5)?,
        on_delete: row.try_get(6)?,
        validated: row.try_get(7)?,
        deferrable: row.try_get(8)?,
        on_update: row.try_get(9)?,
    })
}

/// A partition's copy of its parent's trigger is told only if it fires at other times.
const TRIGGERS: &str = "
select distinct moved.place, t.tgname::text, t.tgtype & 8 > 0, t.tgenabled::text,
       format('%I.%I', n.nspname, c.relname), t.tgisinternal and t.tgconstraint <> 0
  from pg_catalog.pg_trigger t
  join moved on moved.oid = t.tgrelid
  join pg_catalog.pg_class c on c.oid = t.tgrelid
  join pg_catalog.pg_namespace n on n.oid = c.relnamespace
  left join pg_catalog.pg_trigger above on above.oid = t.tgparentid
 where (above.oid is null or above.tgenabled <> t.tgenabled)
   and t.tgfoid <> 'pg_catalog.unique_key_recheck'::regproc
 order by 1, 2";

/// What a deferrable unique or exclusion constraint is checked by: a trigger too. Those of partitions
/// are their own.
const RECHECKS: &str = "
select distinct moved.place, t.tgname::text, false, t.tgenabled::text,
       format('%I.%I', n.nspname, c.relname), true
  from pg_catalog.pg_trigger t
  join moved on moved.oid = t.tgrelid
  join pg_catalog.pg_class c on c.oid = t.tgrelid
  join pg_catalog.pg_namespace n on n.oid = c.relnamespace
 where t.tgfoid = 'pg_catalog.unique_key_recheck'::regproc and c.relkind <> 'p'
 order by 1, 2";

/// Rules that rewrite what is written.
const RULES: &str = "
select distinct moved.place, r.rulename::text, r.ev_type = '4', r.ev_enabled::text,
       format('%I.%I', n.nspname, c.relname), false
  from pg_catalog.pg_rewrite r
  join moved on moved.oid = r.ev_class
  join pg_catalog.pg_class c on c.oid = r.ev_class
  join pg_catalog.pg_namespace n on n.oid = c.relnamespace
 where r.ev_type in ('2', '3', '4') and r.ev_enabled <> 'D'
 order by 1, 2";

async fn written_by_users(
    open: &Open<'_>,
    graph: &Graph,
    query: &'static str,
) -> Result<Vec<Trigger>> {
    let doing = "read triggers and rules";
    let (names, oids) = there(open, graph);
    let sql = format!("{MOVED} {query}");
    let rows = open.primary.query(&sql, &[&oids]).await.doing(doing)?;
    let mut triggers = Vec::new();
    for row in rows {
        let place: i64 = row.try_get(0).doing(doing)?;
        let Some(table) = at(&names, place) else {
            continue;
        };
        triggers.push(Trigger {
            table,
            name: row.try_get(1).doing(doing)?,
            on_delete: row.try_get(2).doing(doing)?,
            enabled: row.try_get(3).doing(doing)?,
            on: row.try_get(4).doing(doing)?,
            of_constraint: row.try_get(5).doing(doing)?,
        });
    }
    Ok(triggers)
}

async fn writes_as_origin(open: &Open<'_>) -> Result<Finding> {
    let doing = "read our role";
    let row = open.primary.query_one("select current_user::text", &[]);
    let role: String = row.await.doing(doing)?.try_get(0).doing(doing)?;
    let mend = if open.primary.version().0 >= 15 {
        format!(
            "grant set on parameter session_replication_role to {}",
            quote_ident(&role)
        )
    } else {
        "before Postgres 15 only a superuser may: else what fires is to be disabled".to_owned()
    };
    let finding = Finding::warn(
        "writes-as-origin",
        open.place.clone(),
        format!("role {role} may not set session_replication_role"),
        "Triggers and foreign keys act on moved rows, though they have acted on the source; and a row \
         that a foreign key refuses, and that cannot be deferred, fails the move",
    );
    Ok(finding.mend(mend))
}

fn there(open: &Open<'_>, graph: &Graph) -> (Vec<TableName>, Vec<u32>) {
    open.tables(graph)
        .into_iter()
        .filter_map(|table| open.catalog.relation(&table.name))
        .map(|relation| (relation.table.clone(), relation.oid))
        .unzip()
}

fn at(names: &[TableName], place: i64) -> Option<TableName> {
    names.get(usize::try_from(place - 1).ok()?).cloned()
}

/// Dynamic edges that the source does not enforce.
fn unenforced(
    moved: &BTreeMap<&TableName, &Table>,
    keys: &[ForeignKey],
    place: &dyn Fn(&TableName) -> Place,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    for table in moved.values() {
        let Scope::ByDynamic { column, parent } = &table.scope else {
            continue;
        };
        let is_enforced = keys.iter().any(|key| {
            key.child.as_ref() == Some(&table.name)
                && key.parent.as_ref() == Some(parent)
                && key.columns == [column.as_str()]
                && key.validated
                && !key.deferrable
        });
        if !is_enforced {
            findings.push(Finding::info(
                "edge-not-enforced",
                place(&table.name).column(column),
                format!("no foreign key to {parent} is enforced at once"),
                "A parent may come after its child or go before it: each new parent's children \
                 are looked for, which costs",
            ));
        }
    }
    findings
}

/// The foreign keys between two stores of this database whose parent is emptied before its child, on
/// the source by the eviction or on the sink by a scrub; and whether the stores reference each
/// other in a circle, so that no order would do. An action on delete is no help: it would delete or
/// change rows of a unit whose own turn has not come.
fn against_order<'k>(
    graph: &Graph,
    moved: &BTreeMap<&TableName, &Table>,
    keys: &'k [ForeignKey],
) -> Vec<(&'k ForeignKey, bool)> {
    let order = unit_order(graph);
    let turn = |store: &StoreName| order.iter().position(|unit| unit == store);
    let store = |table: &Option<TableName>| {
        let table = moved.get(table.as_ref()?)?;
        Some(&table.store)
    };
    let crossing: Vec<(&ForeignKey, &StoreName, &StoreName)> = keys
        .iter()
        .filter_map(|key| Some((key, store(&key.child)?, store(&key.parent)?)))
        .filter(|(_, child, parent)| child != parent)
        .collect();
    let mut references: BTreeSet<(&StoreName, &StoreName)> = stores_by_edges(graph);
    references.extend(crossing.iter().map(|(_, child, parent)| (*child, *parent)));
    crossing
        .into_iter()
        .filter(|(_, child, parent)| turn(parent) < turn(child))
        .map(|(key, child, parent)| (key, leads(&references, parent, child)))
        .collect()
}

/// Which stores name which by the manifest's edges. The root's unit goes last, as if each named it.
fn stores_by_edges(graph: &Graph) -> BTreeSet<(&StoreName, &StoreName)> {
    let root = &graph.root().store;
    let edges = graph.tables().flat_map(|table| {
        let parents = table
            .edges
            .iter()
            .filter_map(|edge| graph.table(&edge.parent));
        parents.map(|parent| (&table.store, &parent.store))
    });
    let roots = graph.stores().map(|store| (&store.name, root));
    edges.chain(roots).filter(|(from, to)| from != to).collect()
}

/// Whether references lead from one store to another, directly or by way of others.
fn leads(
    references: &BTreeSet<(&StoreName, &StoreName)>,
    from: &StoreName,
    to: &StoreName,
) -> bool {
    let mut seen = BTreeSet::from([from]);
    let mut next = vec![from];
    while let Some(at) = next.pop() {
        for &(_, other) in references.iter().filter(|(named, _)| *named == at) {
            if other == to {
                return true;
            }
            if seen.insert(other) {
                next.push(other);
            }
        }
    }
    false
}

fn emptied_too_early(
    key: &ForeignKey,
    is_circle: bool,
    place: &dyn Fn(&TableName) -> Place,
) -> Finding {
    let at = key.child.as_ref().map(place).unwrap_or_default();
    let (parent, name) = (&key.parent_text, &key.name);
    let (code, what, mend) = if is_circle {
        (
            "stores-in-a-circle",
            format!("it references {parent} ({name}), whose store references this one too"),
            format!(
                "alter table {} drop constraint {}, or put both tables into one store",
                key.child_text,
                quote_ident(name)
            ),
        )
    } else {
        (
            "reference-not-in-manifest",
            format!(
                "it references {parent} ({name}) of another store, and the manifest has no edge"
            ),
            format!(
                "add the edge to the manifest, as refs of {}; or alter table {} drop constraint {}",
                key.child_text,
                key.child_text,
                quote_ident(name)
            ),
        )
    };
    let why = "Stores are emptied one after the other: the rows that it references would have to \
               go first, and the foreign key forbids it";
    Finding::refuse(code, at, what, why).mend(mend)
}

/// A table that does not move and references one that does.
fn outside(key: &ForeignKey, graph: &Graph, place: &dyn Fn(&TableName) -> Place) -> Vec<Finding> {
    let Some(parent) = &key.parent else {
        return Vec::new();
    };
    let at = place(parent);
    let child = &key.child_text;
    let mut findings = Vec::new();
    if !graph.tables().any(|table| written(&table.name) == *child) {
        let finding = Finding::warn(
            "not-in-manifest",
            at.clone(),
            format!(
                "{child} references it ({}) and is not in the manifest",
                key.name
            ),
            "If its rows are the organization's, they would stay behind",
        );
        findings.push(finding.mend(format!("add {child} to the manifest, with its edge")));
    }
    let drop = format!(
        "move {child} too, or drop the constraint {} on it",
        quote_ident(&key.name)
    );
    findings.push(match key.on_delete.as_str() {
        "c" => Finding::refuse(
            "cascade-leaves-graph",
            at,
            format!(
                "deleting from it deletes from {child} ({}, on delete cascade)",
                key.name
            ),
            "Eviction would delete rows that never moved",
        )
        .mend(drop),
        "n" | "d" => Finding::warn(
            "reference-from-outside",
            at,
            format!(
                "deleting from it changes {child} ({}, on delete set)",
                key.name
            ),
            "Eviction would change rows that do not move",
        )
        .mend(drop),
        _ => Finding::warn(
            "reference-from-outside",
            at,
            format!("{child} references it ({})", key.name),
            "If one of its rows references the organization's, eviction stops there",
        )
        .mend(drop),
    });
    findings
}

fn delete_trigger(trigger: &Trigger, place: &dyn Fn(&TableName) -> Place) -> Finding {
    Finding::warn(
        "delete-trigger",
        place(&trigger.table),
        format!(
            "trigger {} on {} fires when a row is deleted",
            trigger.name, trigger.on
        ),
        "Eviction fires it for each row, though nothing was deleted: it moved",
    )
    .mend(format!(
        "before the eviction: alter table {} disable trigger {}",
        trigger.on,
        quote_ident(&trigger.name)
    ))
}

/// A foreign key of a moved table on the sink that the move may not be able to satisfy.
fn from_inside(
    key: &ForeignKey,
    moved: &BTreeMap<&TableName, &Table>,
    as_replica: bool,
    place: &dyn Fn(&TableName) -> Place,
) -> Option<Finding> {
    let child = key.child.as_ref()?;
    let store =
        |table: &TableName| -> Option<&StoreName> { moved.get(table).map(|table| &table.store) };
    match &key.parent {
        None => {
            let finding = Finding::warn(
                "reference-leaves-graph",
                place(child),
                format!(
                    "it references {} ({}), which does not move",
                    key.parent_text, key.name
                ),
                "A row whose reference is not on the sink already would stop the move",
            );
            Some(finding.mend(format!(
                "make sure that the rows referenced are on the sink, or drop the constraint {}",
                quote_ident(&key.name)
            )))
        }
        // Deferred or not: each store has its own transactions.
        Some(parent) if store(parent) != store(child) && !as_replica => {
            let finding = Finding::refuse(
                "reference-crosses-stores",
                place(child),
                format!(
                    "it references {parent} ({}), which is of another store",
                    key.name
                ),
                "Stores are copied and streamed side by side: a row may come before its parent",
            );
            Some(finding.mend(format!(
                "alter table {} drop constraint {}, for the time of the move, or let our role set \
                 session_replication_role",
                qualified(child),
                quote_ident(&key.name)
            )))
        }
        Some(parent) if !as_replica => acting(key, moved.get(child)?, moved.get(parent)?, place),
        Some(_) => None,
    }
}

/// A foreign key of the sink that would change rows which the log tells of as well, or which it does
/// not. Along the edge that scopes the child there is nothing left for it to do: the mover takes a
/// parent's subtree away before the parent; and the keys of the spine do not change.
fn acting(
    key: &ForeignKey,
    child: &Table,
    parent: &Table,
    place: &dyn Fn(&TableName) -> Place,
) -> Option<Finding> {
    let action = key.action()?;
    let scopes = child
        .scope_edge()
        .is_some_and(|edge| edge.parent == parent.name && key.columns == [edge.column.as_str()]);
    if scopes || parent.is_static || parent.scope == Scope::Root {
        return None;
    }
    let finding = Finding::refuse(
        "foreign-key-acts",
        place(&child.name),
        format!(
            "it references {} ({}), {action}, and our role cannot keep that from acting",
            parent.name, key.name
        ),
        "It would change or delete rows of the organization on its own account, and what the source \
         did with them would not be found",
    );
    Some(finding.mend(format!(
        "let our role set session_replication_role; or, for the time of the move, alter table {} \
         drop constraint {}",
        qualified(&child.name),
        quote_ident(&key.name)
    )))
}

fn sink_trigger(trigger: &Trigger, place: &dyn Fn(&TableName) -> Place) -> Finding {
    let finding = Finding::refuse(
        "sink-trigger",
        place(&trigger.table),
        format!(
            "trigger {} on {} fires when our role writes",
            trigger.name, trigger.on
        ),
        "It fires for moved rows too, and what it writes is not what the source had",
    );
    let (on, name) = (&trigger.on, quote_ident(&trigger.name));
    finding.mend(if trigger.of_constraint {
        format!("alter table {on} enable trigger {name}, so that it fires for others only")
    } else {
        format!("alter table {on} disable trigger {name}, for the time of the move")
    })
}

fn not_rechecked(check: &Trigger, place: &dyn Fn(&TableName) -> Place) -> Finding {
    let (on, name) = (&check.on, quote_ident(&check.name));
    Finding::refuse(
        "deferrable-not-checked",
        place(&check.table),
        format!(
            "a deferrable unique or exclusion constraint on {on} is checked by a trigger that does not \
             fire when our role writes"
        ),
        "Values of the organization that another tenant takes meanwhile would stand beside its own, and \
         nobody would notice",
    )
    .mend(format!(
        "alter table {on} enable always trigger {name}, as a superuser; or make the constraint not \
         deferrable"
    ))
}

/// The code of a finding about a rule, and why it matters.
const SINK_RULE: (&str, &str) = (
    "sink-rule",
    "A table with rules takes no row that may be there already, and a rule changes what is written",
);
const DELETE_RULE: (&str, &str) = (
    "delete-rule",
    "Eviction would do what the rule says, and not delete",
);

fn rule(
    found: &Trigger,
    place: &dyn Fn(&TableName) -> Place,
    (code, why): (&'static str, &'static str),
) -> Finding {
    let what = format!("rule {} on {} rewrites writes", found.name, found.on);
    let finding = Finding::refuse(code, place(&found.table), what, why);
    finding.mend(format!(
        "drop rule {} on {}",
        quote_ident(&found.name),
        found.on
    ))
}

/// As the queries here name a table.
fn written(table: &TableName) -> String {
    format!("{}.{}", table.schema(), table.relation())
}
