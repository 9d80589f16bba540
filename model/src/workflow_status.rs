//! What the workflow of a move answers when it is asked where it stands.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{MoveId, Phase, StoreName, UnitStatus};

/// All that the workflow itself knows. Positions and progress are in the ledger, where the movers
/// write them.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct WorkflowStatus {
    /// The move, once it is registered.
    pub move_id: Option<MoveId>,
    /// Its phase, once it is registered.
    pub phase: Option<Phase>,
    /// What each unit is doing.
    pub units: BTreeMap<StoreName, UnitStatus>,
    /// Whether the movers are paused.
    pub paused: bool,
    /// Task queues of the move that no worker serves: what is to be done there waits for one.
    #[serde(default)]
    pub unserved: Vec<String>,
    /// What keeps the move from going on, by name.
    pub blocked_by: Vec<String>,
    /// An abort that was asked for.
    pub abort_reason: Option<String>,
    /// A fatal finding.
    pub failure: Option<String>,
    /// Cut-overs tried.
    pub cut_over_attempts: u32,
}
