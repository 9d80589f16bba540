//! SIGTERM and SIGINT: the first asks the worker to end, the second to end at once.

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::WorkerError;

/// What the signals so far ask for.
pub(crate) struct Shutdown {
    once: CancellationToken,
    twice: CancellationToken,
}

impl Shutdown {
    /// Listens from now on; the default action of both signals is gone.
    pub(crate) fn listen() -> Result<Self, WorkerError> {
        let term = signal(SignalKind::terminate()).map_err(WorkerError::Signals)?;
        let int = signal(SignalKind::interrupt()).map_err(WorkerError::Signals)?;
        let (once, twice) = (CancellationToken::new(), CancellationToken::new());
        let heard = Self {
            once: once.clone(),
            twice: twice.clone(),
        };
        tokio::spawn(count(term, int, once, twice));
        Ok(heard)
    }

    /// Resolves once a signal has come.
    pub(crate) async fn asked(&self) {
        self.once.cancelled().await;
    }

    /// Resolves once a second signal has come.
    pub(crate) async fn asked_twice(&self) {
        self.twice.cancelled().await;
    }
}

async fn count(
    mut term: Signal,
    mut int: Signal,
    once: CancellationToken,
    twice: CancellationToken,
) {
    for token in [once, twice] {
        tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
        token.cancel();
    }
}
