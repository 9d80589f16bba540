//! What every request stands on.

use std::fmt;
use std::sync::Arc;

use monarch_config::Config;
use monarch_ledger::Ledger;
use tokio_util::sync::CancellationToken;

use crate::access::Access;
use crate::follower::News;
use crate::workflows::Workflows;

/// How the page is reached.
#[derive(Debug, Clone, Default)]
pub struct Front {
    /// The names and addresses under which it is reached, without ports: any other is refused, so
    /// that a page elsewhere cannot read this one by pointing a name of its own at us.
    pub hosts: Vec<String>,
    /// Whether we speak TLS.
    pub tls: bool,
    /// The header in which a proxy that speaks TLS says `https`; a request without it did not come
    /// by the proxy and is refused.
    pub proxy_header: Option<String>,
}

impl Front {
    /// Whether a browser reaches us by TLS.
    pub(crate) fn is_secure(&self) -> bool {
        self.tls || self.proxy_header.is_some()
    }
}

/// The page, before it is served.
pub struct Site {
    pub(crate) ledger: Ledger,
    pub(crate) config: Config,
    pub(crate) workflows: Arc<dyn Workflows>,
    pub(crate) access: Access,
    pub(crate) front: Front,
    pub(crate) news: News,
    pub(crate) stop: CancellationToken,
}

impl fmt::Debug for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Site").finish_non_exhaustive()
    }
}

impl Site {
    /// A page over a ledger, which need not be there yet.
    pub fn new(
        ledger: Ledger,
        config: Config,
        workflows: Arc<dyn Workflows>,
        tokens: crate::Tokens,
        front: Front,
    ) -> Self {
        Self {
            ledger,
            config,
            workflows,
            access: Access::new(tokens),
            front,
            news: News::new(),
            stop: CancellationToken::new(),
        }
    }
}
