//! Monarch's own durable state, and the invariants that it holds.
//!
//! Temporal may run an activity twice, late, or beside its own successor. What must hold whatever
//! it retries is therefore held here, by Postgres, in the schema `monarch_ledger`:
//!
//! * **One live move in the fleet.** A partial unique index is the lease; a second move is refused
//!   and the live one named ([`Ledger::register`]).
//! * **A phase changes by compare-and-swap**, along the one table in [`monarch_model::phase`], with
//!   its journal row in the same transaction ([`Ledger::transition`]). Asked again, the answer is
//!   the same.
//! * **One writer per unit.** [`Ledger::next_epoch`] hands out growing epochs and knows in which
//!   phase whom may have one; everything that is recorded about a unit names the epoch it was seen
//!   under, and is refused once a successor has begun.
//! * **Progress only moves forward**, and the database says so: `greatest(…)`. A copy that begins
//!   over is the one exception, and takes a new epoch.
//! * **The journal is append-only and in order.** Every journal row is written under the lock of
//!   its move's row, so a reader who has seen an id will never miss a smaller one of that move.
//! * **A key is recorded before the position that carried it**, and what was put on the sink before
//!   it is put there: no object is forgotten, and a scrub takes back what this move brought and
//!   nothing else.
//!
//! The ledger records; it does not know what is true in a cell. The order is always intent, effect,
//! read-back, record.

mod adopt;
mod blobs;
mod connection;
mod error;
mod journal;
mod phases;
mod progress;
mod readiness;
mod records;
mod register;
mod schema;
mod units;
mod verifications;

pub use blobs::{
    BlobChoice, BlobCopy, BlobCounts, BlobCursor, BlobMark, BlobOutcome, BlobPage, BlobRecord,
};
pub use connection::Ledger;
pub use error::LedgerError;
pub use journal::Event;
pub use phases::{Expected, Reason, Transition, Why};
pub use progress::{
    Barrier, CopyProgress, DatabaseIdentity, SourceCommit, StreamProgress, Tail, UnitStart,
};
pub use readiness::STALE_AFTER;
pub use records::{Move, SweepCandidate, Unit, UnitError};
pub use register::{NewMove, Registration};
pub use schema::{SCHEMA_VERSION, worker_grants};
pub use units::Purpose;
pub use verifications::{Answer, Verification, VerificationOutcome};
