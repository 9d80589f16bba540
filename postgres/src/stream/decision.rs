//! What a change on the source means for the sink: one total function, readable as a table.
//!
//! Logical decoding tells of a change only what the log holds: the new row, and of the old one its
//! replica identity. So whether a row *was* the organization's is sometimes unknown; what is then
//! done acts on the sink by key and scope, where nothing of another tenant can be met.
//!
//! Where a case cannot be treated rightly, it is a [`Reason`] to fail by name. Nothing is guessed
//! and nothing is skipped in silence.

use std::fmt;

/// What a table is to the graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The root or a static table: its ids in the organization may not change.
    Spine,
    /// It scopes other tables, and its ids may change.
    Parent(ChildEdges),
    /// It scopes no other table.
    Leaf,
}

/// What the source guarantees of the edges of a parent's children.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChildEdges {
    /// Each is an enforced foreign key: a child never comes before its parent.
    Enforced,
    /// At least one is not enforced.
    Loose {
        /// Whether this parent's id was seen in a child that was passed over: the child came
        /// before its parent, and is missing on the sink.
        child_seen: bool,
    },
}

/// What was done to the row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// It is new, or an UPDATE brought it past the publication's row filter.
    Insert,
    /// It was changed under the same key.
    Update,
    /// It was changed, its key too.
    Rekey,
    /// It is gone, or an UPDATE took it out of the publication's row filter.
    Delete,
}

/// Whether the row was the organization's before the change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Before {
    /// There was no row that decoding tells of.
    Absent,
    /// It was: by membership, or by the old value of the scope column.
    In,
    /// It was not.
    Out,
    /// The log does not say.
    Unknown,
}

/// Whether the row is the organization's after the change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum After {
    /// There is no row.
    Absent,
    /// It is.
    In,
    /// It is not.
    Out,
    /// The scope column was not changed, and the log does not repeat its value.
    Same,
}

/// How much of the new row the log holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Row {
    /// All of it.
    Complete,
    /// Some values, stored out of line and unchanged, are left out.
    Partial,
}

/// What a write that finds no row on the sink means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Missing {
    /// The row was never the organization's: nothing was to be done.
    Fine,
    /// The sink is not what it must be.
    Fatal(Reason),
}

/// What to do on the sink.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Nothing: the row is not the organization's.
    Ignore,
    /// Write the whole row: insert it, or overwrite the organization's row of the same key.
    Upsert,
    /// Delete what stands under the old key, if the key changed, then as [`Action::Upsert`].
    Replace,
    /// Set the values that came on the organization's row of the old key.
    Update(Missing),
    /// As [`Action::Update`], of a parent whose key changes; what still hangs on the old key when
    /// the transaction commits is deleted.
    RekeyParent,
    /// Delete the organization's row of the old key.
    Delete(Missing),
    /// Delete the parent's row, and when the transaction commits all that still hangs on it.
    DeleteSubtree,
    /// The move fails by name.
    Fatal(Reason),
}

/// Why a change cannot be carried over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// A row of the static spine appeared, went, or changed its place.
    StaticSpineChanged,
    /// A row that scopes others was moved into the organization by UPDATE: what hangs on it did
    /// not change, so no change tells of it.
    ParentEntered,
    /// A row that scopes others came after a child of it: no foreign key forbids it.
    ChildBeforeParent,
    /// The key of a row that scopes others changed where no foreign key keeps its children with it.
    ParentRekeyed,
    /// A row entered the organization, and the log does not hold all of it.
    IncompleteRow,
    /// A row that must be on the sink is not there.
    RowMissing,
    /// The log does not say which row was changed.
    RowUnidentified,
    /// The key belongs to another tenant's row on the sink.
    KeyTakenByOtherTenant,
    /// The table was truncated.
    Truncated,
    /// The table's columns, types or replica identity are not what they were at the start.
    SchemaChanged,
}

/// What to do on the sink about a change.
pub fn decide(role: Role, operation: Operation, before: Before, after: After, row: Row) -> Action {
    match role {
        Role::Spine => spine(operation, before, after),
        Role::Parent(edges) => parent(edges, operation, before, after, row),
        Role::Leaf => leaf(operation, before, after, row),
    }
}

/// A row of the spine may change in place; anything else ends the move.
fn spine(operation: Operation, before: Before, after: After) -> Action {
    use Action::{Fatal, Ignore, Update};
    use After as A;
    use Before as B;
    use Operation as O;
    match (operation, before, after) {
        (O::Update, B::In, A::In | A::Same) => Update(Missing::Fatal(Reason::RowMissing)),
        (O::Insert, B::Absent | B::Out, A::Out) => Ignore,
        (O::Update | O::Rekey, B::Out, A::Out | A::Same) => Ignore,
        (O::Delete, B::Out, _) => Ignore,
        (_, B::Unknown, _) => Fatal(Reason::RowUnidentified),
        _ => Fatal(Reason::StaticSpineChanged),
    }
}

/// Before is never unknown: a parent's key is in its replica identity, and its membership is known.
fn parent(
    edges: ChildEdges,
    operation: Operation,
    before: Before,
    after: After,
    row: Row,
) -> Action {
    use Action::{DeleteSubtree, Fatal, Ignore, RekeyParent, Update, Upsert};
    use After as A;
    use Before as B;
    use ChildEdges::{Enforced, Loose};
    use Operation as O;
    match (operation, before, after, row, edges) {
        (_, B::Unknown, _, _, _) => Fatal(Reason::RowUnidentified),

        (O::Insert, _, A::In, _, Loose { child_seen: true }) => Fatal(Reason::ChildBeforeParent),
        (O::Insert, _, A::In, Row::Complete, _) => Upsert,
        // Only an UPDATE leaves values out: it was turned into an insert by a row filter.
        (O::Insert, _, A::In, Row::Partial, _) => Fatal(Reason::ParentEntered),
        (O::Insert, B::In, A::Out, _, _) => DeleteSubtree,
        (O::Insert, B::Absent | B::Out, A::Out, _, _) => Ignore,

        (O::Update, B::In, A::In | A::Same, _, _) => Update(Missing::Fatal(Reason::RowMissing)),
        (O::Rekey, B::In, A::In | A::Same, _, Enforced) => RekeyParent,
        (O::Rekey, B::In, A::In | A::Same, _, Loose { .. }) => Fatal(Reason::ParentRekeyed),
        (O::Update | O::Rekey, B::In, A::Out, _, _) => DeleteSubtree,
        (O::Update | O::Rekey, B::Out, A::In, _, _) => Fatal(Reason::ParentEntered),
        (O::Update | O::Rekey, B::Out, A::Out | A::Same, _, _) => Ignore,

        (O::Delete, B::In, _, _, _) => DeleteSubtree,
        (O::Delete, B::Out, _, _, _) => Ignore,

        // A row without a scope column after it came, or without a row before it went.
        (O::Insert, _, A::Absent | A::Same, _, _)
        | (O::Update | O::Rekey, _, A::Absent, _, _)
        | (O::Update | O::Rekey | O::Delete, B::Absent, _, _, _) => Fatal(Reason::RowUnidentified),
    }
}

fn leaf(operation: Operation, before: Before, after: After, row: Row) -> Action {
    use Action::{Delete, Fatal, Ignore, Replace, Update, Upsert};
    use After as A;
    use Before as B;
    use Operation as O;
    let missing = Missing::Fatal(Reason::RowMissing);
    let incomplete = Missing::Fatal(Reason::IncompleteRow);
    match (operation, before, after, row) {
        (O::Insert, _, A::In, Row::Complete) => Upsert,
        (O::Insert, _, A::In, Row::Partial) => Update(incomplete),
        (O::Insert, _, A::Out, _) => Ignore,

        (O::Update | O::Rekey, B::In, A::In | A::Same, _) => Update(missing),
        (O::Update | O::Rekey, B::In, A::Out, _) => Delete(missing),
        (O::Update | O::Rekey, B::Out, A::Out | A::Same, _) => Ignore,
        (O::Update | O::Rekey, B::Out | B::Unknown, A::In, Row::Complete) => Replace,
        (O::Update | O::Rekey, B::Out | B::Unknown, A::In, Row::Partial) => Update(incomplete),
        (O::Update | O::Rekey, B::Unknown, A::Out, _) => Delete(Missing::Fine),
        (O::Update | O::Rekey, B::Unknown, A::Same, _) => Update(Missing::Fine),

        (O::Delete, B::In, _, _) => Delete(missing),
        (O::Delete, B::Unknown, _, _) => Delete(Missing::Fine),
        (O::Delete, B::Out, _, _) => Ignore,

        (O::Insert, _, A::Absent | A::Same, _)
        | (O::Update | O::Rekey, _, A::Absent, _)
        | (O::Update | O::Rekey | O::Delete, B::Absent, _, _) => Fatal(Reason::RowUnidentified),
    }
}

impl Reason {
    /// The word in the ledger and on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Reason::StaticSpineChanged => "static-spine-changed",
            Reason::ParentEntered => "parent-entered",
            Reason::ChildBeforeParent => "child-before-parent",
            Reason::ParentRekeyed => "parent-rekeyed",
            Reason::IncompleteRow => "incomplete-row",
            Reason::RowMissing => "row-missing",
            Reason::RowUnidentified => "row-unidentified",
            Reason::KeyTakenByOtherTenant => "key-taken-by-other-tenant",
            Reason::Truncated => "truncated",
            Reason::SchemaChanged => "schema-changed",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reason::StaticSpineChanged => {
                "a static row of the organization appeared, went or changed its place"
            }
            Reason::ParentEntered => {
                "a row that scopes others was moved into the organization; what hangs on it is not \
                 in the log"
            }
            Reason::ChildBeforeParent => {
                "a row came after another that it scopes, which no foreign key forbids"
            }
            Reason::ParentRekeyed => {
                "the key of a row that scopes others changed, and no foreign key keeps its children"
            }
            Reason::IncompleteRow => {
                "a row entered the organization and the log does not hold its out-of-line values"
            }
            Reason::RowMissing => "a row that must be on the sink is not there",
            Reason::RowUnidentified => "the log does not say which row was changed",
            Reason::KeyTakenByOtherTenant => "a key belongs to another tenant's row on the sink",
            Reason::Truncated => {
                "it was truncated, which takes every tenant's rows, whoever they belonged to"
            }
            Reason::SchemaChanged => "its columns, types or replica identity changed",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPERATIONS: [Operation; 4] = [
        Operation::Insert,
        Operation::Update,
        Operation::Rekey,
        Operation::Delete,
    ];
    const BEFORE: [Before; 4] = [Before::Absent, Before::In, Before::Out, Before::Unknown];
    const AFTER: [After; 4] = [After::Absent, After::In, After::Out, After::Same];
    const ROWS: [Row; 2] = [Row::Complete, Row::Partial];
    const ROLES: [Role; 5] = [
        Role::Spine,
        Role::Parent(ChildEdges::Enforced),
        Role::Parent(ChildEdges::Loose { child_seen: false }),
        Role::Parent(ChildEdges::Loose { child_seen: true }),
        Role::Leaf,
    ];

    type Case = (Role, Operation, Before, After, Row);

    fn every(mut check: impl FnMut(Case, Action)) {
        for role in ROLES {
            for operation in OPERATIONS {
                for before in BEFORE {
                    for after in AFTER {
                        for row in ROWS {
                            let action = decide(role, operation, before, after, row);
                            check((role, operation, before, after, row), action);
                        }
                    }
                }
            }
        }
    }

    /// Guards promise 1: a row that is known to be foreign before and after is never written.
    #[test]
    fn a_foreign_row_is_never_written() {
        every(|case @ (_, operation, before, after, _), action| {
            let was = matches!(before, Before::In | Before::Unknown);
            let is = after == After::In || (after == After::Same && was);
            let told = after != After::Absent || operation == Operation::Delete;
            let known = before != Before::Absent || operation == Operation::Insert;
            let insert_of_nothing = operation == Operation::Insert && after == After::Same;
            if !was && !is && told && known && !insert_of_nothing {
                assert_eq!(action, Action::Ignore, "{case:?}");
            }
        });
    }

    /// Guards promise 1: a row that is the organization's after the change is written whole, set
    /// where it stands, or the move fails.
    #[test]
    fn a_row_of_the_organization_is_never_passed_over() {
        every(|case @ (_, operation, _, after, row), action| {
            if after != After::In || operation == Operation::Delete {
                return;
            }
            let carried = match action {
                Action::Upsert | Action::Replace => row == Row::Complete,
                Action::Update(missing) => missing != Missing::Fine,
                Action::RekeyParent | Action::Fatal(_) => true,
                Action::Ignore | Action::Delete(_) | Action::DeleteSubtree => false,
            };
            assert!(carried, "{case:?} {action:?}");
        });
    }

    /// Guards promise 1: a row that leaves is taken away, and a parent takes its subtree along.
    #[test]
    fn a_row_that_leaves_is_taken_away() {
        every(|case @ (role, operation, before, after, _), action| {
            let left = before == Before::In
                && match operation {
                    Operation::Delete => true,
                    Operation::Update | Operation::Rekey => after == After::Out,
                    Operation::Insert => false,
                };
            let expected = match role {
                _ if !left => return,
                Role::Spine => Action::Fatal(Reason::StaticSpineChanged),
                Role::Parent(_) => Action::DeleteSubtree,
                Role::Leaf => Action::Delete(Missing::Fatal(Reason::RowMissing)),
            };
            assert_eq!(action, expected, "{case:?}");
        });
    }

    /// Guards the static spine: only a change in place is carried over.
    #[test]
    fn the_spine_changes_in_place_or_the_move_fails() {
        every(|case @ (role, operation, before, after, _), action| {
            if role == Role::Spine && !matches!(action, Action::Ignore | Action::Fatal(_)) {
                assert_eq!(
                    (operation, before),
                    (Operation::Update, Before::In),
                    "{case:?}"
                );
                assert!(matches!(after, After::In | After::Same), "{case:?}");
            }
        });
    }

    /// What the log does not say is looked for on the sink, and not finding it is no fault.
    #[test]
    fn a_leaf_of_unknown_scope_is_looked_for_on_the_sink() {
        let leaf =
            |operation, after, row| decide(Role::Leaf, operation, Before::Unknown, after, row);
        use Operation::{Delete, Update};
        for row in ROWS {
            let fine = Action::Delete(Missing::Fine);
            assert_eq!(leaf(Delete, After::Absent, row), fine);
            assert_eq!(leaf(Update, After::Out, row), fine);
            assert_eq!(
                leaf(Update, After::Same, row),
                Action::Update(Missing::Fine)
            );
        }
        assert_eq!(leaf(Update, After::In, Row::Complete), Action::Replace);
        assert_eq!(
            leaf(Update, After::In, Row::Partial),
            Action::Update(Missing::Fatal(Reason::IncompleteRow))
        );
    }

    /// A parent brings no children with it, so it may only come new.
    #[test]
    fn a_parent_comes_new_or_the_move_fails() {
        let enforced = Role::Parent(ChildEdges::Enforced);
        let of = |role, operation, row| decide(role, operation, Before::Out, After::In, row);
        use Operation::{Insert, Rekey, Update};
        assert_eq!(of(enforced, Insert, Row::Complete), Action::Upsert);
        let entered = Action::Fatal(Reason::ParentEntered);
        assert_eq!(of(enforced, Insert, Row::Partial), entered);
        assert_eq!(of(enforced, Update, Row::Complete), entered);
        assert_eq!(of(enforced, Rekey, Row::Complete), entered);
        let seen = Role::Parent(ChildEdges::Loose { child_seen: true });
        assert_eq!(
            of(seen, Insert, Row::Complete),
            Action::Fatal(Reason::ChildBeforeParent)
        );
    }
}
