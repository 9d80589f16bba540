//! The page on which moves are watched and steered: `monarch dashboard`.
//!
//! It reads the ledger, and of Temporal what it is given by a [`Workflows`]; it reaches neither a
//! cell nor a library of Temporal. Everything is rendered here: the browser runs one small script
//! that swaps fragments as they come by server-sent events, and the page says the same without it.
//!
//! - `reading`: one look at a move; `history`: what earlier looks have seen of it;
//! - `follower`: looks at the live move every second, once for all who watch;
//! - `page`: readings as HTML; `live`: the parts that changed, as events;
//! - `actions`: what may be asked of a move and why not; `steering`: asks it;
//! - `access`, `guard`: who may see and do what, and what no request may do;
//! - `server`: connections, plain or by TLS.

mod access;
mod actions;
mod follower;
mod guard;
mod history;
mod live;
mod page;
mod problem;
mod reading;
mod routes;
mod server;
mod site;
mod steering;
mod workflows;

pub use access::{Role, Tokens, WeakToken};
pub use server::{Server, ServerError, Tls};
pub use site::{Front, Site};
pub use workflows::{
    Driver, Eviction, Plan, Refusal, RefusalKind, Request, StartRequest, Started, Workflows,
};
