//! What comes from the task that reads, in order, and can be given back.

use std::collections::VecDeque;

use monarch_model::Lsn;
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use super::assemble::SourceTransaction;

/// The most source transactions that share a sink transaction.
const GROUP_TRANSACTIONS: usize = 1000;
/// The bytes after which no more join.
const GROUP_BYTES: u64 = 4 * 1024 * 1024;

/// What goes to the task that writes.
pub(super) enum Incoming {
    /// A transaction, with its share of the queue, which is free again when it is dropped.
    Transaction(SourceTransaction, OwnedSemaphorePermit),
    /// Nothing that the publications want lies before this position.
    Quiet(Lsn),
}

/// The queue's end.
pub(super) struct Intake {
    incoming: mpsc::Receiver<Incoming>,
    given_back: VecDeque<Incoming>,
}

/// What shares a sink transaction.
pub(super) struct Group {
    /// Source transactions, in the order of their commits.
    pub(super) transactions: Vec<SourceTransaction>,
    /// Their shares of the queue.
    room: Vec<OwnedSemaphorePermit>,
    /// Nothing lies between the last of them and this.
    pub(super) quiet: Lsn,
}

impl Group {
    /// No transaction, and nothing before `position` that is not written.
    pub(super) fn quiet(position: Lsn) -> Self {
        Self {
            transactions: Vec::new(),
            room: Vec::new(),
            quiet: position,
        }
    }

    /// Where the last of its transactions ends.
    pub(super) fn end(&self) -> Lsn {
        self.transactions
            .last()
            .map_or(Lsn::default(), |last| last.end)
    }
}

impl Intake {
    pub(super) fn new(incoming: mpsc::Receiver<Incoming>) -> Self {
        Self {
            incoming,
            given_back: VecDeque::new(),
        }
    }

    /// Waits for the next; none if nothing more can come.
    pub(super) async fn next(&mut self) -> Option<Incoming> {
        match self.given_back.pop_front() {
            Some(next) => Some(next),
            None => self.incoming.recv().await,
        }
    }

    /// Takes back what was taken out last, in the same order.
    pub(super) fn give_back(&mut self, taken: Vec<Incoming>) {
        for one in taken.into_iter().rev() {
            self.given_back.push_front(one);
        }
    }

    /// `first` and what is there behind it, within the bounds of a group.
    pub(super) fn gather(&mut self, first: Incoming) -> Group {
        let mut group = Group::quiet(Lsn::default());
        let mut bytes = 0;
        let mut next = Some(first);
        while let Some(incoming) = next {
            match incoming {
                Incoming::Quiet(position) => group.quiet = position,
                Incoming::Transaction(transaction, room) => {
                    bytes += transaction.recording.bytes();
                    group.transactions.push(transaction);
                    group.room.push(room);
                }
            }
            let full = group.transactions.len() >= GROUP_TRANSACTIONS || bytes >= GROUP_BYTES;
            next = if full { None } else { self.at_hand() };
        }
        group
    }

    fn at_hand(&mut self) -> Option<Incoming> {
        let given_back = self.given_back.pop_front();
        given_back.or_else(|| self.incoming.try_recv().ok())
    }
}
