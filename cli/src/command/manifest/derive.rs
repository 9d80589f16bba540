//! `monarch manifest derive`

use std::collections::BTreeSet;
use std::fmt::Write as _;

use clap::Args;
use monarch_config::Dsn;
use monarch_model::{StoreName, TableName};
use monarch_schema::{Because, Database, Left, ProposalError, Proposed};
use serde::Serialize;

use crate::console::{self, Output};
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::Failure;

use super::open;

/// Reads keys, foreign keys and columns named like them, and nothing of any row. The manifest goes to
/// standard output, a summary to standard error:
///
///     monarch manifest derive --root organizations --dsn "$APP_DSN" >manifest.yaml
///
/// Passwords are best left to PGPASSWORD or ~/.pgpass: others can read a command line.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Arguments {
    /// The table whose rows are the organizations, with its schema unless that is public
    #[arg(long, value_name = "TABLE")]
    root: TableName,
    /// A database to read; its store is named after it. May be given again
    #[arg(long, value_name = "DSN", required_unless_present = "stores")]
    dsn: Vec<String>,
    /// A database to read, and what its store is to be called. May be given again
    #[arg(long = "store", value_name = "NAME=DSN")]
    stores: Vec<String>,
}

/// The proposal, for programs.
#[derive(Serialize)]
struct Derived<'a> {
    manifest: &'a str,
    tables_moved: usize,
    static_tables: Vec<&'a TableName>,
    not_moved: Vec<NotMoved<'a>>,
}

#[derive(Serialize)]
struct NotMoved<'a> {
    table: &'a TableName,
    store: &'a StoreName,
    #[serde(flatten)]
    because: &'a Because,
    why: String,
}

pub(crate) async fn run(arguments: &Arguments, context: &Context) -> Result<Exit, Failure> {
    let mut databases: Vec<Database> = Vec::new();
    for (store, dsn) in arguments.places()? {
        databases.push(read(store, &dsn).await?);
    }
    distinct(&databases)?;
    let proposed = monarch_schema::propose(&databases, &arguments.root).map_err(refused)?;
    match context.output() {
        Output::Json => console::show(Output::Json, &Derived::of(&proposed), |_| String::new())?,
        Output::Text => {
            console::say(proposed.text.trim_end())?;
            console::mention(&summary(&proposed));
        }
    }
    Ok(Exit::Done)
}

impl Arguments {
    /// The databases, each with the name of its store if one was given. A fault repeats no DSN.
    fn places(&self) -> Result<Vec<(Option<StoreName>, Dsn)>, Failure> {
        let unnamed = self.dsn.iter().map(|dsn| Ok((None, Dsn::new(dsn))));
        let named = self.stores.iter().map(|given| {
            let place = given.split_once('=').and_then(|(name, dsn)| {
                if name.contains(['/', ':', '@', ' ']) {
                    return None; // a DSN without a name
                }
                let name: StoreName = name.parse().ok()?;
                Some((Some(name), Dsn::new(dsn)))
            });
            place.ok_or_else(|| Failure::usage("--store takes NAME=DSN, and not what was given"))
        });
        unnamed.chain(named).collect()
    }
}

/// A database as one store.
async fn read(store: Option<StoreName>, dsn: &Dsn) -> Result<Database, Failure> {
    let session = open(dsn).await?;
    let store = match store {
        Some(store) => store,
        None => {
            let name = monarch_schema::database_name(&*session).await?;
            name.parse().map_err(|_| {
                Failure::usage("a database has a name that no store can have")
                    .advising("name its store: --store NAME=DSN")
            })?
        }
    };
    let tables = monarch_schema::read(&*session).await?;
    session.close().await;
    Ok(Database {
        stores: vec![store],
        tables,
    })
}

/// Refuses two databases that would be one store.
fn distinct(databases: &[Database]) -> Result<(), Failure> {
    let mut known = BTreeSet::new();
    let mut stores = databases.iter().flat_map(|database| &database.stores);
    match stores.find(|store| !known.insert(*store)) {
        None => Ok(()),
        Some(twice) => Err(Failure::usage(format!("two stores are named {twice}"))
            .advising("name them apart: --store NAME=DSN")),
    }
}

fn refused(error: ProposalError) -> Failure {
    let said = error.to_string();
    match error {
        ProposalError::NoRoot { .. } => {
            Failure::usage(said).advising("name the root as --root SCHEMA.TABLE")
        }
        ProposalError::RootInSeveral { .. } | ProposalError::RootKey { .. } => Failure::usage(said),
        ProposalError::DoesNotLoad(_) => {
            Failure::failed(said).advising("report it: a proposal must load")
        }
    }
}

impl<'a> Derived<'a> {
    fn of(Proposed { proposal, text }: &'a Proposed) -> Self {
        let fixed = proposal.tables.iter().filter(|table| table.is_static);
        let not_moved = proposal.left.iter().map(|left| NotMoved {
            table: &left.name,
            store: &left.store,
            because: &left.because,
            why: left.because.to_string(),
        });
        Self {
            manifest: text,
            tables_moved: proposal.tables.len(),
            static_tables: fixed.map(|table| &table.name).collect(),
            not_moved: not_moved.collect(),
        }
    }
}

fn summary(Proposed { proposal, .. }: &Proposed) -> String {
    let fixed = proposal.tables.iter().filter(|table| table.is_static);
    let mut said = format!(
        "{} tables move, {} of them static; {} do not. The comments say why. Next: `monarch config \
         check`, then `monarch preflight`.",
        proposal.tables.len(),
        fixed.count(),
        proposal.left.len(),
    );
    for Left { name, because, .. } in &proposal.left {
        if because.may_be_the_organizations() {
            let _ = write!(
                said,
                "\n  perhaps the organization's, and left: {name}: {because}"
            );
        }
    }
    said
}
