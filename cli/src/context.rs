//! What commands share: the files, the ledger, a client of Temporal.

use std::sync::Arc;

use monarch_activities::World;
use monarch_config::Config;
use monarch_ledger::Ledger;
use monarch_model::chain;
use monarch_worker::temporal;
use temporalio_client::Client;

use crate::args::Global;
use crate::console::Output;
use crate::failure::Failure;

/// Makes what a command needs when it needs it.
pub(crate) struct Context {
    global: Global,
}

impl Context {
    pub(crate) fn new(global: Global) -> Self {
        Self { global }
    }

    /// How results are printed.
    pub(crate) fn output(&self) -> Output {
        self.global.output
    }

    /// The options that named both files, for an advice that names a command.
    pub(crate) fn files(&self) -> String {
        self.global.to_string()
    }

    /// Both files, checked, or every fault of them.
    pub(crate) fn config(&self) -> Result<Config, Failure> {
        self.read_config().map_err(|faults| {
            Failure::usage(format!("the configuration has faults:\n{faults}"))
                .advising("mend them, then run `monarch config check`")
        })
    }

    /// The same, with the faults one by one.
    pub(crate) fn read_config(&self) -> Result<Config, monarch_config::Faults> {
        let env = |name: &str| std::env::var(name).ok();
        monarch_config::load(&self.global.manifest(), &self.global.fleet(), &env)
    }

    /// The ledger that the fleet names; connected to when first used.
    pub(crate) fn ledger(&self) -> Result<Ledger, Failure> {
        Ok(self.world()?.ledger.clone())
    }

    /// Configuration and ledger, as activities have them.
    pub(crate) fn world(&self) -> Result<Arc<World>, Failure> {
        let world = World::new(self.config()?);
        world.map_err(|error| Failure::usage(format!("fleet.yaml: ledger.dsn: {}", chain(&error))))
    }

    /// A client of Temporal, from the environment.
    pub(crate) async fn temporal(&self) -> Result<Client, Failure> {
        Ok(Box::pin(temporal::connect(&identity())).await?)
    }
}

/// How this process calls itself in Temporal's Web UI.
pub(crate) fn identity() -> String {
    let host = rustix::system::uname();
    let host = host.nodename().to_string_lossy();
    format!("monarch {}@{host}", std::process::id())
}
