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

type Answer<A> = Result<A, tokio_postgres::Error>;
type Asking<'a, A> = Pin<Box<dyn Future<Output = Answer<A>> + Send + 'a>>;

/// Statements under way, each with what `T` says of it. `A` is what is answered.
pub(super) struct Pipeline<'a, T, A = u64> {
    under_way: VecDeque<(T, Stage<'a, A>, usize)>,
    bytes: usize,
}

enum Stage<'a, A> {
    Asked(Asking<'a, A>),
    Answered(Answer<A>),
}

impl<'a, T, A> Pipeline<'a, T, A> {
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
        statement: impl Future<Output = Answer<A>> + Send + 'a,
    ) {
        let mut asking: Asking<'a, A> = Box::pin(statement);
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
    pub(super) async fn next(&mut self) -> Option<(T, Answer<A>)> {
        let (what, stage, bytes) = self.under_way.pop_front()?;
        self.bytes -= bytes;
        let answer = match stage {
            Stage::Asked(asking) => asking.await,
            Stage::Answered(answer) => answer,
        };
        Some((what, answer))
    }
}
