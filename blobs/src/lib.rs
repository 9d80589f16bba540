//! Moves the objects that an organization's rows name, from the source cell's buckets to the
//! sink's, and removes them where they are not needed any more.
//!
//! Bytes never ride the stream: rows carry keys, the ledger keeps them, and a [`Mover`] walks them
//! beside snapshot and stream. What holds whatever happens:
//!
//! * **A key is data.** It is spelled to a store byte for byte, or refused by name ([`BlobKey`]).
//! * **A copy is proved** by size and SHA-256, computed while the bytes pass; [`verify`] reads again.
//! * **The sink's other tenants keep theirs.** An object that is there is compared, never replaced;
//!   a [`scrub`] takes back what this move put, which the ledger knew before it was put.
//! * **The source keeps its own** until [`evict`], which deletes what was copied, if it is still the
//!   same, key by key, and only with an [`EvictionPermit`].
//! * **Memory is fixed**, whatever the number and size of the objects ([`Limits`]).
//! * **No secret is printed.** Credentials come from an [`Environment`], and of a store's answer
//!   only status and error word are kept.
//!
//! The crate knows buckets and the ledger, and nothing of Temporal. It does not decide when
//! something is done: a workflow's activities do.

mod bucket;
mod copy;
mod environment;
mod error;
mod key;
mod limits;
mod mover;
pub mod preflight;
mod progress;
mod recorder;
mod references;
mod remove;
mod transport;
mod verify;

pub use bucket::Bucket;
pub use copy::problem;
pub use environment::Environment;
pub use error::{BlobError, Doing, Fault, FaultKind};
pub use key::{BlobKey, Refusal};
pub use limits::Limits;
pub use mover::{BlobUnit, Mover, Pass, Walked};
pub use progress::{Progress, Snapshot};
pub use recorder::KeysOfMove;
pub use references::{CellReferences, Rows, tables_naming};
pub use remove::{EvictionPermit, References, Removed, evict, scrub};
pub use verify::{Verified, Which, verify};
