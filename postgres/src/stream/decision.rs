//! What a change on the source means for the sink: one total function, readable as a table.
//!
//! Logical decoding tells of a change only what the log holds: the new row, and of the old one its
//! replica identity. So whether a row *was* the organization's is known in different ways:
//!
//! | the old row | how it is told whose it was |
//! |---|---|
//! | of the spine | its key is one of the recorded ids, or not |
//! | of a dynamic parent | its key is in the membership, or not |
//! | of a leaf whose replica identity has the scope column | by the old value of that column |
//! | of a leaf whose replica identity lacks it (the key alone) | not told: *unknown* |
//!
//! ([`Telling`] is what an identity has, [`was`] reads this table.) What is done about a row of
//! unknown scope acts on the sink by key and scope, where nothing of another tenant can be met. A
//! new row may be *partial*: values that are stored out of line and did not change are left out,
//! unless the replica identity is FULL.
//!
//! What the log does not hold is fetched: the values of a partial row that enters, and the subtree
//! of a parent that enters ([`super::stretch`] says how, and at which position). Where a case
//! cannot be treated rightly, it is a [`Reason`] to fail by name. Nothing is guessed and nothing is
//! skipped in silence.

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
    /// Each is an enforced foreign key: a child never comes before its parent, nor outlives it.
    Enforced,
    /// At least one is not enforced: children may have come before.
    Loose,
}

/// What the log tells of an old row, by the table's replica identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Telling {
    /// Its key, or columns without the one that scopes it.
    KeyAlone,
    /// Some columns, the one that scopes it among them.
    ScopeColumn,
    /// All of it: replica identity FULL.
    WholeRow,
}

/// Where the value of a scope column leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// To the organization; and as a foreign key holds the row there, the row is on the sink.
    Ours,
    /// To the organization, but nothing enforces the edge: the row may have been there before its
    /// parent was, and need not be on the sink.
    OursLoosely,
    /// It will be the organization's when the transaction commits.
    Coming,
    /// It was the organization's when the transaction began.
    Gone,
    /// To another, or to nobody.
    Foreign,
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
    /// It was: by membership, or by the old value of the scope column. It is on the sink.
    In,
    /// It was not.
    Out,
    /// The log does not say, or does not say whether the row is on the sink.
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
    /// The row enters, and the log does not hold all of it: it is fetched from the source.
    Fetch,
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
    /// As [`Action::Upsert`], of a parent whose children may have come before it: the source is
    /// asked, and if so, the subtree is fetched.
    UpsertAndLook,
    /// Write what came of the row, a parent, and fetch its subtree.
    Enter,
    /// Delete what stands under the old key, if the key changed, then as [`Action::Upsert`].
    Replace,
    /// Set the values that came on the organization's row of the old key.
    Update(Missing),
    /// As [`Action::Update`], of a parent whose key changes; what still hangs on the old key when
    /// the transaction commits is deleted.
    RekeyParent,
    /// As [`Action::RekeyParent`], where children of the new key may have come before it, as in
    /// [`Action::UpsertAndLook`].
    RekeyParentAndLook,
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
    /// More rows entered the organization at once than their keys can be held of.
    FetchTooLarge,
    /// A row that must be on the sink is not there.
    RowMissing,
    /// The log does not say which row was changed.
    RowUnidentified,
    /// The key belongs to another tenant's row on the sink.
    KeyTakenByOtherTenant,
    /// More rows came before their parents in one transaction than can be remembered.
    ParentsTooLate,
    /// A column that the sink numbers itself was given another number on the source.
    NumberChanged,
    /// The table was truncated.
    Truncated,
    /// The table's columns, types or replica identity are not what they were at the start.
    SchemaChanged,
}

/// Whether a leaf's row was the organization's, by what the log tells of the old row and where the
/// old value of its scope column leads.
pub fn was(telling: Telling, old: Standing) -> Before {
    use Telling::{KeyAlone, ScopeColumn, WholeRow};
    match (telling, old) {
        (KeyAlone, _) => Before::Unknown,
        (ScopeColumn | WholeRow, Standing::Ours) => Before::In,
        (ScopeColumn | WholeRow, Standing::Foreign) => Before::Out,
        // It may or may not be on the sink.
        (ScopeColumn | WholeRow, Standing::OursLoosely | Standing::Coming | Standing::Gone) => {
            Before::Unknown
        }
    }
}

/// Whether a row is the organization's, by where the new value of its scope column leads.
pub fn is(new: Standing) -> After {
    match new {
        Standing::Ours | Standing::OursLoosely | Standing::Coming => After::In,
        Standing::Gone | Standing::Foreign => After::Out,
    }
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
    use Action::{
        DeleteSubtree, Enter, Fatal, Ignore, RekeyParent, RekeyParentAndLook, Update, Upsert,
        UpsertAndLook,
    };
    use After as A;
    use Before as B;
    use ChildEdges::{Enforced, Loose};
    use Operation as O;
    match (operation, before, after, row, edges) {
        (_, B::Unknown, _, _, _) => Fatal(Reason::RowUnidentified),

        (O::Insert, _, A::In, Row::Complete, Enforced) => Upsert,
        (O::Insert, _, A::In, Row::Complete, Loose) => UpsertAndLook,
        // Only an UPDATE leaves values out: it was turned into an insert by a row filter.
        (O::Insert, _, A::In, Row::Partial, _) => Enter,
        (O::Insert, B::In, A::Out, _, _) => DeleteSubtree,
        (O::Insert, B::Absent | B::Out, A::Out, _, _) => Ignore,

        (O::Update, B::In, A::In | A::Same, _, _) => Update(Missing::Fatal(Reason::RowMissing)),
        (O::Rekey, B::In, A::In | A::Same, _, Enforced) => RekeyParent,
        (O::Rekey, B::In, A::In | A::Same, _, Loose) => RekeyParentAndLook,
        (O::Update | O::Rekey, B::In, A::Out, _, _) => DeleteSubtree,
        (O::Update | O::Rekey, B::Out, A::In, _, _) => Enter,
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
    use Missing::{Fetch, Fine};
    use Operation as O;
    let missing = Missing::Fatal(Reason::RowMissing);
    match (operation, before, after, row) {
        (O::Insert, _, A::In, Row::Complete) => Upsert,
        (O::Insert, _, A::In, Row::Partial) => Update(Fetch),
        (O::Insert, _, A::Out, _) => Ignore,

        (O::Update | O::Rekey, B::In, A::In | A::Same, _) => Update(missing),
        (O::Update | O::Rekey, B::In, A::Out, _) => Delete(missing),
        (O::Update | O::Rekey, B::Out, A::Out | A::Same, _) => Ignore,
        (O::Update | O::Rekey, B::Out | B::Unknown, A::In, Row::Complete) => Replace,
        (O::Update | O::Rekey, B::Out | B::Unknown, A::In, Row::Partial) => Update(Fetch),
        (O::Update | O::Rekey, B::Unknown, A::Out, _) => Delete(Fine),
        (O::Update | O::Rekey, B::Unknown, A::Same, _) => Update(Fine),

        (O::Delete, B::In, _, _) => Delete(missing),
        (O::Delete, B::Unknown, _, _) => Delete(Fine),
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
            Reason::FetchTooLarge => "fetch-too-large",
            Reason::RowMissing => "row-missing",
            Reason::RowUnidentified => "row-unidentified",
            Reason::KeyTakenByOtherTenant => "key-taken-by-other-tenant",
            Reason::ParentsTooLate => "parents-too-late",
            Reason::NumberChanged => "number-changed",
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
            Reason::FetchTooLarge => {
                "more rows entered the organization at once than can be fetched together"
            }
            Reason::RowMissing => "a row that must be on the sink is not there",
            Reason::RowUnidentified => "the log does not say which row was changed",
            Reason::KeyTakenByOtherTenant => "a key belongs to another tenant's row on the sink",
            Reason::ParentsTooLate => {
                "more of its rows came before their parents in one transaction than can be remembered"
            }
            Reason::NumberChanged => {
                "a column that is generated always as identity was given another number, which the \
                 sink takes for new rows only"
            }
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
    const ROLES: [Role; 4] = [
        Role::Spine,
        Role::Parent(ChildEdges::Enforced),
        Role::Parent(ChildEdges::Loose),
        Role::Leaf,
    ];
    const TELLINGS: [Telling; 3] = [Telling::KeyAlone, Telling::ScopeColumn, Telling::WholeRow];
    const STANDINGS: [Standing; 5] = [
        Standing::Ours,
        Standing::OursLoosely,
        Standing::Coming,
        Standing::Gone,
        Standing::Foreign,
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

    const DOCUMENT: &str = include_str!("../../../docs/decisions.md");

    /// The rows of the documented table whose first column has this head. A cell is a list of words.
    fn documented(head: &str) -> Vec<Vec<&'static str>> {
        let of_table = |line: &&str| line.starts_with('|');
        let lines = DOCUMENT.lines();
        let begun = lines.skip_while(|line| !line.starts_with(&format!("| {head} |")));
        begun
            .take_while(of_table)
            .skip(2)
            .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
            .collect()
    }

    fn fits(row: &[&str], case: &[&str]) -> bool {
        let has =
            |(cell, word): (&&str, &&str)| *cell == "any" || cell.split(", ").any(|of| of == *word);
        row.iter().zip(case).all(has)
    }

    /// The one row that a case fits: its last cell.
    fn outcome<'t>(table: &[Vec<&'t str>], used: &mut [bool], case: &[&str]) -> &'t str {
        let fitting: Vec<usize> = (0..table.len())
            .filter(|&at| fits(&table[at], case))
            .collect();
        let [at] = fitting[..] else {
            panic!("{case:?} fits {} rows", fitting.len());
        };
        used[at] = true;
        table[at].last().unwrap()
    }

    fn of_role(role: Role) -> &'static str {
        match role {
            Role::Spine => "spine",
            Role::Parent(ChildEdges::Enforced) => "held parent",
            Role::Parent(ChildEdges::Loose) => "loose parent",
            Role::Leaf => "leaf",
        }
    }

    fn of_standing(standing: Standing) -> &'static str {
        match standing {
            Standing::Ours => "ours",
            Standing::OursLoosely => "loosely",
            Standing::Coming => "coming",
            Standing::Gone => "gone",
            Standing::Foreign => "foreign",
        }
    }

    fn of_telling(telling: Telling) -> &'static str {
        match telling {
            Telling::KeyAlone => "key alone",
            Telling::ScopeColumn => "with scope column",
            Telling::WholeRow => "whole row",
        }
    }

    fn of_action(action: Action) -> String {
        let missing = |what: &str, missing| match missing {
            Missing::Fatal(Reason::RowMissing) => what.to_owned(),
            Missing::Fatal(reason) => format!("{what}, else {}", reason.as_str()),
            Missing::Fine => format!("{what} if there"),
            Missing::Fetch => format!("{what}, else fetched"),
        };
        match action {
            Action::Ignore => "ignored".to_owned(),
            Action::Upsert => "upserted".to_owned(),
            Action::UpsertAndLook => "upserted, source asked".to_owned(),
            Action::Enter => "entered".to_owned(),
            Action::Replace => "replaced".to_owned(),
            Action::Update(or) => missing("set", or),
            Action::RekeyParent => "rekeyed".to_owned(),
            Action::RekeyParentAndLook => "rekeyed, source asked".to_owned(),
            Action::Delete(or) => missing("deleted", or),
            Action::DeleteSubtree => "deleted with its subtree".to_owned(),
            Action::Fatal(reason) => format!("fails: {}", reason.as_str()),
        }
    }

    /// Every case fits one row of the documented table, which says what is decided about it; and no row
    /// is about nothing.
    #[test]
    fn the_table_is_total() {
        let table = documented("role");
        let mut used = vec![false; table.len()];
        let mut cases = 0;
        every(|(role, operation, before, after, row), action| {
            let words = [
                format!("{operation:?}").to_lowercase(),
                format!("{before:?}").to_lowercase(),
                format!("{after:?}").to_lowercase(),
            ];
            let log = match row {
                Row::Complete => "whole",
                Row::Partial => "part",
            };
            let case = [of_role(role), &words[0], &words[1], &words[2], log];
            assert_eq!(
                of_action(action),
                outcome(&table, &mut used, &case),
                "{case:?}"
            );
            cases += 1;
        });
        assert_eq!(cases, 4 * 4 * 4 * 4 * 2);
        assert_eq!(used, vec![true; table.len()]);
    }

    /// The same for what is known of a row before and after, by its replica identity.
    #[test]
    fn what_was_and_what_is_are_as_documented() {
        let (told, leads) = (
            documented("replica identity"),
            documented("the new value leads to"),
        );
        let mut used = vec![false; told.len()];
        for telling in TELLINGS {
            for old in STANDINGS {
                let documented =
                    outcome(&told, &mut used, &[of_telling(telling), of_standing(old)]);
                let decided = format!("{:?}", was(telling, old)).to_lowercase();
                assert_eq!(decided, documented, "{telling:?} {old:?}");
            }
        }
        assert_eq!(used, vec![true; told.len()]);
        let mut used = vec![false; leads.len()];
        for new in STANDINGS {
            let documented = outcome(&leads, &mut used, &[of_standing(new)]);
            assert_eq!(
                format!("{:?}", is(new)).to_lowercase(),
                documented,
                "{new:?}"
            );
        }
        assert_eq!(used, vec![true; leads.len()]);
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
    /// where it stands, fetched, or the move fails.
    #[test]
    fn a_row_of_the_organization_is_never_passed_over() {
        every(|case @ (_, operation, _, after, row), action| {
            if after != After::In || operation == Operation::Delete {
                return;
            }
            let carried = match action {
                Action::Upsert | Action::UpsertAndLook | Action::Replace => row == Row::Complete,
                Action::Update(missing) => missing != Missing::Fine,
                Action::Enter
                | Action::RekeyParent
                | Action::RekeyParentAndLook
                | Action::Fatal(_) => true,
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
            Action::Update(Missing::Fetch)
        );
    }

    /// Guards promise 1: a parent that was another's brings its subtree; a new one brings none
    /// where a foreign key holds its children to it, and else the source is asked.
    #[test]
    fn a_parent_that_enters_brings_its_subtree() {
        use ChildEdges::{Enforced, Loose};
        use Operation::{Insert, Rekey, Update};
        for edges in [Enforced, Loose] {
            for row in ROWS {
                for operation in [Update, Rekey] {
                    let role = Role::Parent(edges);
                    let action = decide(role, operation, Before::Out, After::In, row);
                    assert_eq!(action, Action::Enter, "{operation:?} {edges:?} {row:?}");
                }
            }
        }
        let new = |edges| {
            decide(
                Role::Parent(edges),
                Insert,
                Before::Out,
                After::In,
                Row::Complete,
            )
        };
        assert_eq!(new(Enforced), Action::Upsert);
        assert_eq!(new(Loose), Action::UpsertAndLook);
    }

    /// Guards promise 1: scope is only called known where the log has the column that says it, and
    /// only where the row must be on the sink is its absence a fault.
    #[test]
    fn what_an_identity_does_not_tell_is_unknown() {
        for telling in TELLINGS {
            for old in STANDINGS {
                let known = match was(telling, old) {
                    Before::In => old == Standing::Ours,
                    Before::Out => old == Standing::Foreign,
                    Before::Unknown => {
                        telling == Telling::KeyAlone
                            || !matches!(old, Standing::Ours | Standing::Foreign)
                    }
                    Before::Absent => false,
                };
                assert!(known, "{telling:?} {old:?}");
            }
        }
        for new in STANDINGS {
            let ours = !matches!(new, Standing::Gone | Standing::Foreign);
            assert_eq!(is(new) == After::In, ours, "{new:?}");
        }
    }
}
