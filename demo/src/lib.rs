//! A fleet in miniature: real servers, a schema of every kind of table, organizations that are
//! written to, a control plane (a few files, or a database), and eyes that see what is really in the databases.
//!
//! It is shared by those who have to show that a move works: `monarch demo`, which shows it to a
//! person, and the end-to-end tests. Both run Monarch as a program of its own, as an operator
//! would; nothing here calls it as a library, so that a fault of Monarch cannot hide itself.

mod attachments;
mod control;
mod control_database;
mod fleet;
pub mod observe;
mod operator;
mod organization;
mod population;
mod show;
mod tables;
mod traffic;

pub use attachments::attach;
pub use control::ControlPlane;
pub use control_database::{ControlDatabase, Known, known_in, told_by};
pub use fleet::{Cell, Fleet, Hosts, Place};
pub use operator::{Operator, Said};
pub use organization::Organization;
pub use population::{number_on, populate};
pub use show::{Options, show};
pub use tables::{ScopedTable, tables};
pub use traffic::{Tally, Traffic};
