//! The words of Monarch as types, so that every room says the same thing by the same name.
//!
//! This crate is pure: it reaches no database, no clock and no file. The workflow, which must be
//! deterministic, and the ledger, which must not be fooled, therefore share one table of what may
//! follow what ([`phase`]).

mod chain;
mod id;
mod lsn;
pub mod names;
pub mod phase;
mod size;
mod table_name;
pub mod unit;
mod workflow_status;

pub use chain::chain;
pub use id::{CellName, Epoch, InvalidId, MoveId, OrgId, StoreName};
pub use lsn::{InvalidLsn, Lsn};
pub use phase::Phase;
pub use size::binary_size;
pub use table_name::TableName;
pub use unit::UnitStatus;
pub use workflow_status::WorkflowStatus;
