//! What the page needs of Temporal, so that this crate needs none of its libraries.

use async_trait::async_trait;
use monarch_ledger::Move;
use monarch_model::{CellName, MoveId, OrgId, WorkflowStatus};

/// The workflows of moves.
#[async_trait]
pub trait Workflows: Send + Sync + 'static {
    /// What is known of the workflow that drives a live move. Answers within seconds.
    async fn driver(&self, of: &Move) -> Driver;

    /// Asks the organization's move for something, and says what came of it.
    async fn ask(&self, org: &OrgId, request: Request) -> Result<String, Refusal>;

    /// What a move would do; changes nothing.
    async fn plan(&self, start: &StartRequest) -> Result<Plan, Refusal>;

    /// Starts a move.
    async fn start(&self, start: &StartRequest) -> Result<Started, Refusal>;

    /// The address of our namespace on Temporal's own page, if that is known; `https://…`, without a
    /// slash at its end.
    fn web_ui(&self) -> Option<String>;
}

/// What is known of the workflow that drives a move.
#[derive(Debug, Clone)]
pub enum Driver {
    /// It runs and a worker answers for it.
    Answers(WorkflowStatus),
    /// It may run, and says nothing; why.
    Silent(String),
    /// It does not run though its move is live; in words.
    Gone(String),
}

/// What may be asked of a move.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// Stop the movers; slots are kept.
    Pause,
    /// Start them again.
    Resume,
    /// Drain, verify, flip.
    CutOver {
        /// The operator's word that the organization's writes are stopped.
        writes_stopped: bool,
    },
    /// Give the move up.
    Abort {
        /// Why, for ledger and page.
        reason: String,
    },
}

/// Why something was not done, in the three parts that an operator needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// What kind of refusal it is.
    pub kind: RefusalKind,
    /// What happened.
    pub what: String,
    /// Whether it was, or will be, tried again.
    pub retried: String,
    /// What to do next; empty when what happened says it.
    pub to_do: String,
}

/// Kinds of refusals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusalKind {
    /// What was given cannot be used.
    BadInput,
    /// The state of a move or of the ledger forbids it.
    NotReady,
    /// A service was not reached.
    Unreachable,
    /// It failed.
    Failed,
}

/// A move to be started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartRequest {
    /// The organization.
    pub org: OrgId,
    /// The cell that it leaves; the fleet's own choice if none.
    pub from: Option<CellName>,
    /// The cell that it goes to; the fleet's own choice if none.
    pub to: Option<CellName>,
    /// Whether it cuts over by itself.
    pub cuts_over_by_itself: bool,
    /// When the source is evicted.
    pub eviction: Eviction,
    /// The longest time from fence to seal.
    pub max_pause_seconds: u32,
    /// Whether a move that failed scrubs the sink at once.
    pub scrub_on_failure: bool,
}

/// When the organization's rows leave the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Eviction {
    /// When the operator asks for it.
    Manual,
    /// After the flip.
    Now,
    /// So many seconds after the flip.
    AfterSeconds(u64),
}

/// What a move would do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// In words and tables of text.
    pub text: String,
    /// Whether its findings forbid the move.
    pub refused: bool,
}

/// What became of a start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Started {
    /// The ledger has it.
    Registered(MoveId),
    /// It runs and has not registered yet; why that may be.
    NotYet(String),
}
