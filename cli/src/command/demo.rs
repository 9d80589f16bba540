//! `monarch demo`, in builds with the feature `demo` only: it starts servers of its own, and finds
//! what installs them in the source that it was built from.

use clap::Args;
use monarch_demo::Options;

use crate::exit::Exit;
use crate::failure::Failure;

/// Two cells with real Postgres servers, Temporal, and writers that never rest. Ends with exit
/// status 0 only if every row is where it must be, counted in the databases.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Leave all of it running at the end, until Ctrl-C
    #[arg(long)]
    keep: bool,
}

pub(crate) async fn run(arguments: &Arguments) -> Result<Exit, Failure> {
    let options = Options {
        monarch: std::env::current_exe()?,
        keep: arguments.keep,
    };
    let shown = monarch_demo::show(&options, &mut std::io::stdout()).await;
    match shown {
        Ok(true) => Ok(Exit::Done),
        Ok(false) => Ok(Exit::Failed),
        Err(error) => Err(Failure::failed(format!("the demo failed: {error:#}"))),
    }
}
