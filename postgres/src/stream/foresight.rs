//! What a transaction will have done with dynamic parents when it commits, found before any of it
//! is applied: a child may come before the parent that makes it the organization's.

use std::collections::BTreeSet;

use super::assemble::SourceTransaction;
use super::change::{Change, Value};
use super::error::StreamError;
use super::event::read_change;
use super::membership::Membership;
use super::tables::{Table, TableIndex, Tables};

/// A pass over a large transaction may find nothing to wait for; the task that answers the
/// walsender must get its turn all the same.
pub(super) async fn let_others_run(frames: u64) {
    if frames.is_multiple_of(1024) {
        tokio::task::yield_now().await;
    }
}

/// Finds what the transaction will have done with dynamic parents when it commits, the upper ones
/// first, since they decide about the lower.
pub(super) async fn plan(
    tables: &Tables,
    membership: &mut Membership,
    transaction: &SourceTransaction,
) -> Result<(), StreamError> {
    let parents: Vec<TableIndex> = transaction
        .touched
        .iter()
        .copied()
        .filter(|&index| tables.all[index].is_parent())
        .collect();
    let depths: BTreeSet<usize> = parents.iter().map(|&at| tables.all[at].depth).collect();
    for depth in depths {
        let mut replay = transaction.recording.replay();
        let mut frames = 0;
        while let Some(frame) = replay.next_frame()? {
            frames += 1;
            let_others_run(frames).await;
            let wanted = |index: TableIndex| {
                tables.all[index].is_parent() && tables.all[index].depth == depth
            };
            if let Some(change) = read_change(frame, &transaction.recording, tables, &wanted)? {
                plan_change(&tables.all[change.table], membership, &change);
            }
        }
    }
    Ok(())
}

fn plan_change(table: &Table, membership: &mut Membership, change: &Change) {
    let old = change.old_key(table);
    let new = change.new_key(table);
    let ours = match change.new.as_ref().map(|new| &new[table.tie.column()]) {
        None | Some(Value::Null) => false,
        Some(Value::Text(id)) => membership.planned(&table.tie, id),
        // It stays what it was.
        Some(Value::Unchanged) => old
            .as_ref()
            .is_some_and(|key| membership.contains(change.table, &key[0])),
    };
    if let Some(old) = old.filter(|_| !change.is_insert) {
        membership.plan(change.table, &old[0], false);
    }
    if let Some(new) = new {
        membership.plan(change.table, &new[0], ours);
    }
}
