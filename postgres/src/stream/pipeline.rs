//! Statements sent without waiting for the answers of those before.
//!
//! The driver puts a statement on the wire when its future is first polled, so each is polled once,
//! here, in order; then answers are taken in that same order. What is under way is bounded by
//! number and by bytes, since the driver itself would take any amount.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::task::Poll;

use futures::poll;

/// The most statements under way.
const STATEMENTS_MAX: usize = 256;
/// The most bytes of parameters under way.
const BYTES_MAX: usize = 1024 * 1024;

type Answer = Result<u64, tokio_postgres::Error>;
type Asking<'a> = Pin<Box<dyn Future<Output = Answer> + Send + 'a>>;

/// Statements under way, each with what `T` says of it.
pub(super) struct Pipeline<'a, T> {
    under_way: VecDeque<(T, Stage<'a>, usize)>,
    bytes: usize,
}

enum Stage<'a> {
    Asked(Asking<'a>),
    Answered(Answer),
}

impl<'a, T> Pipeline<'a, T> {
    pub(super) fn new() -> Self {
        Self {
            under_way: VecDeque::new(),
            bytes: 0,
        }
    }

    /// Sends a statement whose parameters take about `bytes`.
    pub(super) async fn push(
        &mut self,
        what: T,
        bytes: usize,
        statement: impl Future<Output = Answer> + Send + 'a,
    ) {
        let mut asking: Asking<'a> = Box::pin(statement);
        let stage = match poll!(&mut asking) {
            Poll::Ready(answer) => Stage::Answered(answer),
            Poll::Pending => Stage::Asked(asking),
        };
        self.under_way.push_back((what, stage, bytes));
        self.bytes += bytes;
    }

    /// Whether an answer must be taken before the next statement is sent.
    pub(super) fn is_full(&self) -> bool {
        self.under_way.len() >= STATEMENTS_MAX || self.bytes >= BYTES_MAX
    }

    /// The next answer, in the order of the statements; none if nothing is under way.
    pub(super) async fn next(&mut self) -> Option<(T, Answer)> {
        let (what, stage, bytes) = self.under_way.pop_front()?;
        self.bytes -= bytes;
        let answer = match stage {
            Stage::Asked(asking) => asking.await,
            Stage::Answered(answer) => answer,
        };
        Some((what, answer))
    }
}
