//! The findings that end a move, in one table: the names that the ledger, errors and Temporal's Web
//! UI know them by, and under which `docs/operations.md` says what to do.

use std::fmt;

use monarch_postgres::stream::Reason;

/// What ended a move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Code {
    /// The flip was asked for where the move does not stand in its drain.
    CannotFlip,
    /// A drain was to be taken back where the move does not stand in it.
    CannotReopen,
    /// Nobody drives the move.
    Forsaken,
    /// The log cannot say which row of a table was changed.
    NoReplicaIdentity,
    /// The root has no row of that key.
    OrganizationNotFound,
    /// The log said what its protocol does not have.
    Protocol,
    /// The sink does not take a row.
    RowRefused,
    /// The copy does not hold the rows that were read.
    RowsDiffer,
    /// A table's definition changed, or differs between the cells.
    SchemaChanged,
    /// A sequence of the sink ends before the ids that move in do.
    SequenceExhausted,
    /// The ledger's word on the sink cannot be read.
    SinkUnknown,
    /// The slot is gone, lost or somebody else's.
    SlotLost,
    /// A row of the static spine came or went.
    StaticSpineChanged,
    /// The slot would soon keep more log than it may.
    WalBudget,
    /// A change in the log that a stream cannot follow.
    Change(Reason),
}

impl Code {
    /// The name; it never changes.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Code::CannotFlip => "cannot-flip",
            Code::CannotReopen => "cannot-reopen",
            Code::Forsaken => "forsaken",
            Code::NoReplicaIdentity => "no-replica-identity",
            Code::OrganizationNotFound => "organization-not-found",
            Code::Protocol => "protocol",
            Code::RowRefused => "row-refused",
            Code::RowsDiffer => "rows-differ",
            Code::SchemaChanged => "schema-changed",
            Code::SequenceExhausted => "sequence-exhausted",
            Code::SinkUnknown => "sink-unknown",
            Code::SlotLost => "slot-lost",
            Code::StaticSpineChanged => "static-spine-changed",
            Code::WalBudget => "wal-budget",
            Code::Change(reason) => reason.as_str(),
        }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever meets a name finds on the page what to do about it.
    #[test]
    fn the_page_on_operations_has_every_name() {
        let page = include_str!("../../docs/operations.md");
        let reasons = [
            Reason::StaticSpineChanged,
            Reason::FetchTooLarge,
            Reason::RowMissing,
            Reason::RowUnidentified,
            Reason::KeyTakenByOtherTenant,
            Reason::NumberChanged,
            Reason::Truncated,
            Reason::SchemaChanged,
        ];
        let own = [
            Code::CannotFlip,
            Code::CannotReopen,
            Code::Forsaken,
            Code::NoReplicaIdentity,
            Code::OrganizationNotFound,
            Code::Protocol,
            Code::RowRefused,
            Code::RowsDiffer,
            Code::SchemaChanged,
            Code::SequenceExhausted,
            Code::SinkUnknown,
            Code::SlotLost,
            Code::StaticSpineChanged,
            Code::WalBudget,
        ];
        for code in own.into_iter().chain(reasons.map(Code::Change)) {
            let told = page.lines().any(|line| {
                let first = line.split('|').nth(1).unwrap_or_default();
                first.contains(&format!("`{code}`"))
            });
            assert!(told, "docs/operations.md has no row for {code}");
        }
    }
}
