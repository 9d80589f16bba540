//! What befalls a move from outside its script: a changed schema, or a key or a value that another
//! tenant of the sink takes before the organization's row comes. A move must fail of each, by name.
//!
//! They are rolled with dice of their own, so that a seed's schema and script stay what they were.

use std::collections::BTreeSet;
use std::fmt;

use crate::dice::Dice;
use crate::model::{Causes, Key, Op, Row, State};
use crate::schema::{Identity, Label, Schema, Table};
use crate::sql::statements;
use crate::work::Script;

/// Beyond every number that is rolled, and within a smallint.
const BEYOND: u32 = 32_000;

/// What befalls a move.
#[derive(Debug, Clone)]
pub struct Hazard {
    /// Before which transaction of the script; behind all of them if there is none of that number.
    pub at: usize,
    /// What it is.
    pub what: What,
}

/// What it is that befalls a move.
#[derive(Debug, Clone)]
pub enum What {
    /// A table of the source changes.
    Schema {
        /// The table.
        table: usize,
        /// How, behind `alter table NAME`.
        change: &'static str,
    },
    /// Another tenant of the sink takes what the organization's row has when it comes.
    Clash {
        /// The table.
        table: usize,
        /// The other tenant's row.
        row: (Key, Row),
        /// Whether it is the key that is taken, and not the label.
        of_key: bool,
    },
}

/// Changes that the script does not notice. Nobody writes `spare`.
const CHANGES: [&str; 6] = [
    "add more text default 'more'",
    "add more text",
    "drop spare",
    "rename spare to spared",
    "alter spare type varchar(50)",
    "replica identity full",
];

impl Hazard {
    /// Rolls one for a move whose movers stream from transaction `head` on. None if the script has
    /// nothing that it could befall.
    #[must_use]
    pub fn roll(
        schema: &Schema,
        script: &Script,
        home: &State,
        head: usize,
        dice: &mut Dice,
    ) -> Option<Self> {
        let count = script.transactions.len();
        let at = head + dice.index(count - head + 1);
        let what = if dice.percent(50) {
            Some(schema_change(schema, dice))
        } else {
            clash(schema, script, home, at, dice)
        };
        what.map(|what| Self { at, what })
    }

    /// By what the move must fail. A row whose key changes to one that is taken is refused by the
    /// sink's own index.
    #[must_use]
    pub fn causes(&self) -> Causes {
        match &self.what {
            What::Schema { .. } => Causes::from(["schema-changed"]),
            What::Clash { of_key: true, .. } => {
                Causes::from(["key-taken-by-other-tenant", "row-refused"])
            }
            What::Clash { of_key: false, .. } => Causes::from(["row-refused"]),
        }
    }

    /// The statements that make it.
    #[must_use]
    pub fn sql(&self, schema: &Schema) -> String {
        match &self.what {
            What::Schema { table, change } => {
                format!("alter table {} {change}", schema.tables[*table].sql_name())
            }
            // The tenant's parents may be in another store.
            What::Clash { table, row, .. } => {
                let insert = Op::Insert {
                    table: *table,
                    rows: vec![row.clone()],
                };
                format!(
                    "begin; set local session_replication_role = replica; {} commit",
                    statements(schema, &insert)
                )
            }
        }
    }
}

impl fmt::Display for Hazard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "before {}: {:?}", self.at, self.what)
    }
}

fn schema_change(schema: &Schema, dice: &mut Dice) -> What {
    let table = dice.index(schema.tables.len());
    let of = &schema.tables[table];
    let mut changes = CHANGES.to_vec();
    // From Postgres 18 on, a generated column in an identity makes the owner's writes fail.
    if of.identity == Identity::Full || of.generated || of.partitions.0 > 0 {
        changes.pop();
    }
    let change = changes[dice.index(changes.len())];
    What::Schema { table, change }
}

/// A key or a label that is the organization's in the end and that nobody had before `at`: not on
/// the sink yet, and sure to come.
fn clash(
    schema: &Schema,
    script: &Script,
    home: &State,
    at: usize,
    dice: &mut Dice,
) -> Option<What> {
    let seen = Seen::before(schema, script, at);
    let ours = script.last.ours(schema);
    let mut found = Vec::new();
    for (table, of) in schema.tables.iter().enumerate() {
        let Some(tie) = of.is_dynamic().then(|| tie_at_home(of, home)).flatten() else {
            continue;
        };
        for key in &ours[table] {
            let Some(row) = script.last.tables[table].get(key) else {
                continue;
            };
            // A key that holds the scope column would not be another tenant's.
            let tied = of.edge.as_ref().and_then(|edge| edge.in_key);
            if tied.is_none() && !seen.keys.contains(&(table, key.clone())) {
                found.push((table, (key.clone(), home_row(tie, BEYOND)), true));
            }
            // What is deferrable is not checked for a role that keeps triggers from acting, which
            // preflight refuses.
            if of.label == Label::Unique && !seen.labels.contains(&(table, row.label)) {
                let key = (0..of.key.len()).map(|place| match tied {
                    Some(tied) if tied == place => tie,
                    _ => BEYOND,
                });
                found.push((table, (key.collect(), home_row(tie, row.label)), false));
            }
        }
    }
    let (table, row, of_key) = dice.pick(&found)?.clone();
    Some(What::Clash { table, row, of_key })
}

fn tie_at_home(table: &Table, home: &State) -> Option<u32> {
    let parent = table.edge.as_ref()?.parent;
    home.tables[parent].keys().next().map(|key| key[0])
}

fn home_row(tie: u32, label: u32) -> Row {
    Row {
        tie: Some(tie),
        label,
        large: false,
        version: 1,
    }
}

/// The keys and labels that rows of any tenant have had.
#[derive(Default)]
struct Seen {
    keys: BTreeSet<(usize, Key)>,
    labels: BTreeSet<(usize, u32)>,
}

impl Seen {
    fn before(schema: &Schema, script: &Script, at: usize) -> Self {
        let mut seen = Self::default();
        let mut state = script.initial.clone();
        seen.take(&state);
        for transaction in script.transactions.iter().take(at) {
            if let Some((beside, _)) = &transaction.within {
                state.commit(schema, beside);
            }
            if !transaction.rolled_back {
                state.commit(schema, &transaction.ops);
            }
            seen.take(&state);
        }
        seen
    }

    fn take(&mut self, state: &State) {
        for (table, rows) in state.tables.iter().enumerate() {
            self.keys
                .extend(rows.keys().map(|key| (table, key.clone())));
            self.labels
                .extend(rows.values().map(|row| (table, row.label)));
        }
    }
}
