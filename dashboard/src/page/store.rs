//! A store of a move: its card, and a page with all that is known of it.

use maud::{Markup, html};
use monarch_config::{Graph, Scope, Table};
use monarch_model::{StoreName, TableName, UnitStatus};
use monarch_view::units_of_measure::{bytes, count, duration, seconds};

use super::one::events;
use super::{Frame, banner, name, said, sparkline, time};
use crate::follower::Seen;
use crate::history::Lag;
use crate::reading::{Mover, Reading, Store};
use crate::site::Site;

/// Ids of the page do not hold names: a name may be anything.
pub(super) fn card_id(place: usize) -> String {
    format!("store-{place}")
}

pub(super) fn is_ill(mover: Mover) -> bool {
    matches!(mover, Mover::Stale(_) | Mover::Dead(_))
}

/// What one sees of a store at a glance.
pub(super) fn card(reading: &Reading, of: &Store, place: usize) -> Markup {
    let id = card_id(place);
    let view = &of.view;
    html! {
        article id=(id) class={ "card" @if is_ill(of.mover) { " ill" } } aria-labelledby={ (id) "-name" } {
            header {
                h3 id={ (id) "-name" } { (name(of.unit.store.as_str())) }
                span { (health(of.mover)) " " span class={ "badge " (colour(view.status)) } { (reading.view.doing(view)) } }
            }
            p.quiet { (name(&of.source)) " → " (name(&of.sink)) }
            (copy(of, &id))
            (stream(of))
            (readiness(reading, of, &id))
            p { a id={ (id) "-more" } href={ "/moves/" (reading.of.id) "/stores/" (place) } {
                "Tables and journal" span.unseen { " of " (name(of.unit.store.as_str())) }
            } }
        }
    }
}

fn colour(status: UnitStatus) -> &'static str {
    match status {
        UnitStatus::Pending => "quiet",
        UnitStatus::Copying | UnitStatus::Copied | UnitStatus::Evicting => "warn",
        UnitStatus::Streaming | UnitStatus::SlotDropped | UnitStatus::Evicted => "good",
    }
}

fn health(mover: Mover) -> Markup {
    let (word, colour, so_long) = match mover {
        Mover::Stale(so_long) => ("stale", "warn", so_long),
        Mover::Dead(so_long) => ("dead", "bad", so_long),
        Mover::Alive | Mover::NotExpected => return html! {},
    };
    html! {
        span class={ "badge " (colour) } { "mover " (word) ", silent for " (seconds(so_long.as_secs())) }
    }
}

fn copy(of: &Store, id: &str) -> Markup {
    let view = &of.view;
    let total = view.rows_estimated.unwrap_or(0).max(view.rows_copied);
    let is_copying = view.status == UnitStatus::Copying;
    html! {
        @if is_copying && total > 0 {
            progress id={ (id) "-progress" } max=(total) value=(view.rows_copied) aria-label="Copied" {}
        }
        dl {
            @if let Some(tables) = view.tables_total {
                dt { "Tables" } dd { (view.tables_done) " of " (tables) " copied" }
            }
            dt { @if view.of_objects { "Objects" } @else { "Rows" } }
            dd { (view.rows()) ", " (bytes(view.bytes_copied)) }
            @if let Some(so_long) = of.copying_for {
                dt { "Copied " @if is_copying { "for" } @else { "in" } }
                dd {
                    (duration(so_long))
                    @if let Some(rate) = view.bytes_per_second { ", " (bytes(rate)) "/s" }
                    @if let Some(left) = view.eta_seconds { ", " (seconds(left)) " left" }
                }
            }
            @if view.rows_evicted > 0 { dt { "Deleted" } dd { (count(view.rows_evicted)) " rows" } }
        }
    }
}

fn stream(of: &Store) -> Markup {
    let view = &of.view;
    let begun = !matches!(view.status, UnitStatus::Pending | UnitStatus::Copying);
    html! {
        @if begun && !view.of_objects {
            dl {
                dt { "Changes" }
                dd {
                    (count(view.changes_applied)) " applied"
                    @if let Some(pace) = of.changes_per_second { ", " (format!("{pace:.1}")) "/s" }
                }
                @if let Some(lag) = view.lag_bytes {
                    dt { "Lag" }
                    dd { (bytes(lag)) @if let Some(lag) = of.lag { ", " (in_seconds(lag)) } }
                }
                @if let Some(kept) = view.retained_wal_bytes { dt { "Log kept on the source" } dd { (bytes(kept)) } }
                @if view.late_changes > 0 {
                    dt { "Late changes" } dd { (count(view.late_changes)) ", never applied: they forbid eviction" }
                }
            }
            (sparkline::of_lags(&of.lags))
        }
        @if let Some(age) = view.heartbeat_age_seconds.filter(|_| of.mover != Mover::NotExpected) {
            p.quiet { "Last report " (seconds(age)) " ago" }
        }
    }
}

fn in_seconds(lag: Lag) -> String {
    match lag {
        Lag::Exactly(so_long) => seconds(so_long.as_secs()),
        Lag::MoreThan(so_long) => format!("more than {}", seconds(so_long.as_secs())),
    }
}

fn readiness(reading: &Reading, of: &Store, id: &str) -> Markup {
    html! {
        @if reading.of.phase == monarch_model::Phase::Active {
            @if of.objections.is_empty() {
                p { span class="badge good" { "ready for the cut-over" } }
            } @else {
                details id={ (id) "-why" } {
                    summary { span class="badge warn" { "not ready" } }
                    ul.tight { @for why in &of.objections { li { (said(why)) } } }
                }
            }
        }
    }
}

/// All that is known of one store. It has the same card as the move's page, which goes on by itself.
pub(crate) fn page(
    frame: &Frame,
    site: &Site,
    reading: &Reading,
    place: usize,
    seen: &Seen,
) -> Markup {
    let of = &reading.stores[place];
    let store = &of.unit.store;
    let title = format!("Store {}", super::shortened(store.as_str(), 40));
    let of_store = reading
        .events
        .iter()
        .filter(|event| event.store.as_ref() == Some(store));
    frame.around(
        &title,
        html! {
            (banner(seen))
            h1 { "Store " (name(store.as_str())) }
            p { a href={ "/moves/" (reading.of.id) } { "Organization " (name(reading.of.org.as_str())) } }
            section.plain aria-labelledby="glance" {
                h2 id="glance" { "At a glance" }
                (card(reading, of, place))
            }
            section aria-labelledby="positions" {
                h2 id="positions" { "Positions" }
                (positions(of))
            }
            section aria-labelledby="scope" {
                h2 id="scope" { "Scope" }
                (scope(&site.config.graph, of))
            }
            section aria-labelledby="journal" {
                h2 id="journal" { "Journal" }
                p.quiet { "Of the move's newest events those of this store" }
                (events(of_store))
            }
        },
    )
}

fn positions(of: &Store) -> Markup {
    let unit = &of.unit;
    let lsn =
        |lsn: Option<monarch_model::Lsn>| lsn.map_or_else(|| "–".to_owned(), |lsn| lsn.to_string());
    html! {
        dl {
            dt { "Epoch" } dd { (unit.epoch) }
            dt { "Slot" } dd { (unit.slot.as_deref().unwrap_or("–")) }
            dt { "Consistent point" } dd { (lsn(unit.consistent_point)) }
            dt { "Source's head" } dd { (lsn(unit.stream.source_head)) }
            dt { "Received" } dd { (lsn(unit.stream.received)) }
            dt { "Applied" } dd { (lsn(unit.stream.applied)) }
            dt { "Acknowledged" } dd { (lsn(unit.stream.acknowledged)) }
            @if let Some(change) = unit.stream.last_change { dt { "Last change" } dd { (lsn(Some(change.lsn))) ", " (time(change.committed_at)) } }
            @if let Some(barrier) = unit.barrier { dt { "Barrier" } dd { (lsn(Some(barrier.lsn))) } }
            @if let Some(at) = unit.sealed_at { dt { "Sealed" } dd { (time(at)) } }
            @for (table, changes) in &unit.late_changes { dt { "Late in " (name(&table.to_string())) } dd { (changes) } }
            @for (table, rows) in &unit.rows_evicted { dt { "Deleted from " (name(&table.to_string())) } dd { (count(*rows)) } }
        }
    }
}

/// The tables of a store as they hang together, one to a line: a tree as deep as a schema may be
/// would be more than a browser nests.
fn scope(graph: &Graph, of: &Store) -> Markup {
    let store = &of.unit.store;
    let spine: Vec<String> = graph
        .spine()
        .iter()
        .map(|table| table.name.to_string())
        .collect();
    let tree = tree(graph, store);
    html! {
        p { "Static spine: " (said(&spine.join(", "))) }
        @if of.unit.of_objects {
            p { "Objects that columns of rows name:" }
            ul.tight { @for (table, column) in naming(graph, store) { li { (name(&table.to_string())) "." (name(&column)) } } }
        } @else {
            details id="scope-tree" {
                summary { (tree.len()) " tables, parents first" }
                div.wide tabindex="0" role="group" aria-label="Tables of the store" { table {
                    thead { tr { th scope="col" { "Table" } th scope="col" { "Tied to the organization by" } th.number scope="col" { "Depth" } } }
                    tbody { @for (table, depth) in &tree { tr {
                        th scope="row" { (name(&table.name.to_string())) }
                        td { (tie(table)) }
                        td.number { (depth) }
                    } } }
                } }
            }
        }
    }
}

/// The tables of a store, each behind its parent and with its distance from the first of its branch.
fn tree<'g>(graph: &'g Graph, store: &StoreName) -> Vec<(&'g Table, usize)> {
    let walk = graph.walk(store);
    let is_within = |table: &Table| matches!(table.scope, Scope::ByDynamic { .. });
    let mut tree = Vec::with_capacity(walk.len());
    let mut open: Vec<(&Table, usize)> = walk
        .into_iter()
        .rev()
        .filter(|of| !is_within(of))
        .map(|of| (of, 0))
        .collect();
    while let Some((table, depth)) = open.pop() {
        tree.push((table, depth));
        let children = graph.children(&table.name).into_iter().rev();
        let within = children.filter(|(child, _)| child.store == *store && is_within(child));
        open.extend(within.map(|(child, _)| (child, depth + 1)));
    }
    tree
}

fn tie(of: &Table) -> Markup {
    html! {
        @match &of.scope {
            Scope::Root => "the root",
            Scope::ByRoot { column } => { (name(column)) " is the organization" },
            Scope::ByStatic { column, parent } => { (name(column)) " in static " (name(&parent.to_string())) },
            Scope::ByDynamic { column, parent } => { (name(column)) " in " (name(&parent.to_string())) },
            Scope::Unscoped => "nothing",
        }
    }
}

/// The columns that hold keys into a store of objects.
fn naming<'g>(graph: &'g Graph, store: &StoreName) -> Vec<(&'g TableName, String)> {
    let columns = graph.tables().flat_map(|table| {
        let here = table.blobs.iter().filter(|blob| blob.store == *store);
        here.map(|blob| (&table.name, blob.column.clone()))
    });
    columns.collect()
}
