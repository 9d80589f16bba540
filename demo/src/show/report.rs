//! What was seen of a move, as tables and as claims that hold or do not.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use comfy_table::{CellAlignment, Table, presets};

use crate::observe::Rows;
use crate::{Cell, Known, Organization, Tally};

/// Rows by store.
pub(super) type Stores = BTreeMap<String, Rows>;

/// What was seen of the moved organization.
pub(super) struct Moved {
    pub(super) at_barrier: Stores,
    pub(super) on_sink: Stores,
    pub(super) left: Stores,
    /// Changes that Monarch says it streamed, by store.
    pub(super) streamed: BTreeMap<String, u64>,
}

/// What was seen of an organization that must not notice.
pub(super) struct Bystander {
    organization: Organization,
    cell: String,
    before: Stores,
    after: Stores,
}

/// What the table of bystanders compares, under it.
const BEFORE_AND_AFTER: &str = "\
on the sink: before the move and after it. other on the source is written to all the while: its
rows are counted when its writers have stopped, before the eviction and after it.";

/// What was seen of the routing, right after the cut-over.
pub(super) struct Routing {
    pub(super) sink: String,
    /// The cell that control names.
    pub(super) control: String,
    /// What each database of each cell has heard.
    pub(super) known: Vec<(String, Vec<Option<Known>>)>,
    /// Control's messages about the organization that wait, by the cell that they are for.
    pub(super) queued: BTreeMap<String, i64>,
}

impl Routing {
    /// Who has heard of it, in a line.
    pub(super) fn said(&self) -> String {
        let cells = self.known.iter().map(|(cell, databases)| {
            let heard = databases.iter().filter(|known| self.is_heard(known));
            format!(
                "{} of {} databases of {cell}",
                heard.count(),
                databases.len()
            )
        });
        format!(
            "evil-corp is routed to {}; {} have heard",
            self.control,
            cells.collect::<Vec<_>>().join(" and ")
        )
    }

    fn is_heard(&self, known: &Option<Known>) -> bool {
        let heard = |known: &Known| known.cell == self.sink && !known.fenced;
        known.as_ref().is_some_and(heard)
    }

    fn arrived(&self) -> bool {
        let mut databases = self.known.iter().flat_map(|(_, databases)| databases);
        self.control == self.sink && databases.all(|known| self.is_heard(known))
    }

    fn followed(&self) -> bool {
        self.queued.keys().eq([&self.sink])
    }
}

/// All that was seen.
pub(super) struct Report {
    pub(super) moved: Moved,
    /// The first is the neighbour on the source, counted around the eviction.
    pub(super) bystanders: [Bystander; 3],
    /// The neighbour on the source before anybody wrote.
    pub(super) other_at_first: Stores,
    pub(super) written: BTreeMap<String, Tally>,
    pub(super) written_by_other: BTreeMap<String, Tally>,
    pub(super) write_pause: String,
    pub(super) routing: Routing,
    /// Messages by which the sink tells control of the organization's rows.
    pub(super) told: i64,
    /// Those of the source, after the eviction.
    pub(super) told_by_source: i64,
    pub(super) left_behind: Vec<String>,
}

impl Report {
    /// Whether all is as it must be.
    pub(super) fn holds(&self) -> bool {
        self.claims().iter().all(|(_, holds)| *holds)
    }

    fn claims(&self) -> [(&'static str, bool); 7] {
        [
            (
                "the sink has what the source had at the barrier",
                self.moved.arrived(),
            ),
            ("no row is left on the source", self.moved.is_gone()),
            (
                "nobody else's row changed by it",
                self.bystanders.iter().all(|seen| seen.before == seen.after),
            ),
            (
                "what others wrote meanwhile is all there",
                self.others_grew(),
            ),
            (
                "the routing is changed, and every database of both cells has heard of it",
                self.routing.arrived(),
            ),
            (
                "control's queued message follows; the sink tells control of the rows, the source of none",
                self.routing.followed() && self.told > 0 && self.told_by_source == 0,
            ),
            (
                "no slot, publication, session or row of ours is left",
                self.left_behind.is_empty(),
            ),
        ]
    }

    /// Whether every store has as many of the neighbour's rows as its writers say.
    fn others_grew(&self) -> bool {
        let now = &self.bystanders[0].before;
        self.other_at_first.iter().all(|(store, rows)| {
            let growth = self
                .written_by_other
                .get(store)
                .map_or(0, |tally| tally.growth);
            now.get(store)
                .is_some_and(|now| now.count == rows.count + growth)
        })
    }

    /// The tables, and each claim.
    pub(super) fn text(&self) -> String {
        let changes = |tallies: &BTreeMap<String, Tally>| -> i64 {
            tallies.values().map(|tally| tally.changes).sum()
        };
        let streamed: u64 = self.moved.streamed.values().sum();
        let mut text = format!(
            "\n{}\n{}\n{BEFORE_AND_AFTER}\n\n\
             written for evil-corp up to the barrier: {} changes; {streamed} were streamed (a row \
             that changes\nits partition is two of them), those from before the snapshots came with \
             the copy.\nwritten for other meanwhile: {} changes. write pause: {}\n{}; {} messages for \
             control wait on the sink\n",
            self.moved.table(),
            table_of(&self.bystanders),
            changes(&self.written),
            changes(&self.written_by_other),
            self.write_pause,
            self.routing.said(),
            self.told
        );
        for (claim, holds) in self.claims() {
            let _ = writeln!(text, "{} {claim}", if holds { "ok    " } else { "FAILED" });
        }
        for line in &self.left_behind {
            let _ = writeln!(text, "       {line}");
        }
        text
    }
}

impl Bystander {
    pub(super) fn new(
        organization: Organization,
        cell: &Cell,
        before: Stores,
        after: Stores,
    ) -> Self {
        Self {
            organization,
            cell: cell.name.clone(),
            before,
            after,
        }
    }
}

/// A count and the beginning of its digest; of no rows there is none.
fn short(rows: Option<&Rows>) -> [String; 2] {
    let Some(rows) = rows.filter(|rows| rows.count > 0) else {
        return ["0".to_owned(), String::new()];
    };
    [
        rows.count.to_string(),
        rows.digest.chars().take(10).collect(),
    ]
}

fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table
        .load_style(presets::UTF8_BORDERS_ONLY)
        .set_header(header);
    table
}

/// Numbers are read from the right.
fn align(mut table: Table, numbers: &[usize]) -> Table {
    for column in numbers {
        if let Some(column) = table.column_mut(*column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

impl Moved {
    fn arrived(&self) -> bool {
        self.at_barrier == self.on_sink && self.at_barrier.values().all(|rows| rows.count > 0)
    }

    fn is_gone(&self) -> bool {
        self.left.values().all(|rows| rows.count == 0)
    }

    fn table(&self) -> Table {
        let mut table = table(&[
            "evil-corp",
            "rows at the barrier",
            "digest",
            "rows on the sink",
            "digest",
            "left on the source",
            "changes streamed",
        ]);
        for (store, rows) in &self.at_barrier {
            let [source, source_digest] = short(Some(rows));
            let [sink, sink_digest] = short(self.on_sink.get(store));
            let [left, _] = short(self.left.get(store));
            let streamed = self
                .streamed
                .get(store)
                .copied()
                .unwrap_or_default()
                .to_string();
            let row = [
                store,
                &source,
                &source_digest,
                &sink,
                &sink_digest,
                &left,
                &streamed,
            ];
            table.add_row(row);
        }
        align(table, &[1, 3, 5, 6])
    }
}

fn table_of(bystanders: &[Bystander]) -> Table {
    let header = [
        "everybody else",
        "cell",
        "store",
        "rows before",
        "digest",
        "rows after",
        "digest",
    ];
    let mut table = table(&header);
    for seen in bystanders {
        for (store, rows) in &seen.before {
            let [before, before_digest] = short(Some(rows));
            let [after, after_digest] = short(seen.after.get(store));
            let row = [
                seen.organization.slug,
                &seen.cell,
                store,
                &before,
                &before_digest,
                &after,
                &after_digest,
            ];
            table.add_row(row);
        }
    }
    align(table, &[3, 5])
}
