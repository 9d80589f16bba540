//! Applies the source's changes to the sink, one store of one move, for as long as the move lasts.

mod decision;
mod id_set;
mod spool;

pub use decision::{
    Action, After, Before, ChildEdges, Missing, Operation, Reason, Role, Row, decide,
};
pub use id_set::{IdSet, KeyKind};
pub use spool::{Recorder, Recording, Replay, Spool};
