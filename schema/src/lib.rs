//! A manifest for a schema that is there already.
//!
//! Nobody writes 180 tables down by hand and gets each edge right, and nobody remembers, a year
//! later, that the table added last week belongs into the manifest too. So the catalogs of the
//! databases are read ([`read`]); from their keys and foreign keys, and from columns named like
//! them, a manifest is proposed ([`propose`]), with a reason beside every choice that a person should
//! look at; and an existing manifest is held against them ([`drift`]).
//!
//! What is proposed obeys the rules that [`monarch_config`] checks: a proposal that would not load
//! is an error here and is never printed.

mod drift;
mod manifest_text;
mod names;
mod proposal;
mod references;
mod tables;

pub use drift::{Drift, DriftKind, Severity, drift};
pub use proposal::{
    Because, Left, Proposal, ProposalError, Proposed, ProposedEdge, ProposedTable, propose,
};
pub use references::Evidence;
pub use tables::{Column, Database, ForeignKey, Table, database_name, read};
