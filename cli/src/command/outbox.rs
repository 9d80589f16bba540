//! `monarch outbox …`: what an operator asks of an outbox, and does to it.
//!
//! Of whom is asked by `--cell` or `--control`; the numbers in the rows are named after the categories
//! of the application that the default tables come from, and our own.

mod backfill;
mod category;
mod depths;
mod drain;
mod object;
mod shard;
mod skip;
mod stuck;
mod unskip;

use clap::{Args, Subcommand};
use monarch_activities::routing;
use monarch_config::{Control as ControlPlane, Dsn};
use monarch_model::{CellName, StoreName};
use monarch_outbox::diagnostics::{Diagnostics, Question, Waiting};
use monarch_outbox::{
    CategoryDef, Cell, Control, Drain, OptionTable, Receivers, Registry, ScopeDef, ServerError,
    Shard, Table, TableName, sentry,
};
use monarch_postgres::{ConnectOptions, Session, SessionPurpose};
use serde_json::{Value, json};

use crate::console::{self, lines, plain, table};
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::Failure;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// The deepest shards
    Depths(depths::Arguments),
    /// Shards on backoff after a failure
    Stuck(stuck::Arguments),
    /// The messages of a shard, the newest first
    Shard(shard::Arguments),
    /// The messages about an object, the newest first
    Object(object::Arguments),
    /// How many messages of a category wait
    Category(category::Arguments),
    /// Delivers a shard now, or all that is due
    Drain(drain::Arguments),
    /// Leaves a shard alone until it is unskipped; its messages stay
    Skip(skip::Arguments),
    /// Takes a shard up again
    Unskip(unskip::Arguments),
    /// Says how far backfills are, and lets one go on
    Backfill(backfill::Arguments),
}

pub(crate) async fn run(command: Command, context: &Context) -> Result<Exit, Failure> {
    match command {
        Command::Depths(arguments) => depths::run(&arguments, context).await,
        Command::Stuck(arguments) => stuck::run(&arguments, context).await,
        Command::Shard(arguments) => shard::run(&arguments, context).await,
        Command::Object(arguments) => object::run(&arguments, context).await,
        Command::Category(arguments) => category::run(&arguments, context).await,
        Command::Drain(arguments) => Box::pin(drain::run(&arguments, context)).await,
        Command::Skip(arguments) => skip::run(&arguments, context).await,
        Command::Unskip(arguments) => unskip::run(&arguments, context).await,
        Command::Backfill(arguments) => backfill::run(&arguments, context).await,
    }
}

/// Whose outbox, and which table.
#[derive(Debug, Args)]
struct Side {
    /// The outbox of this cell, which is for control
    #[arg(long, value_name = "CELL", required_unless_present = "control")]
    #[arg(conflicts_with = "control")]
    cell: Option<CellName>,
    /// The outbox of the control database, which is for the cells
    #[arg(long)]
    control: bool,
    /// Of the cell's databases, that of this store; of the root's unless given
    #[arg(long, value_name = "STORE", conflicts_with = "control")]
    store: Option<StoreName>,
    /// The table, with or without its schema; monarch_control.outbox has the routing's changes
    /// [default: sentry_regionoutbox, or sentry_controloutbox]
    #[arg(long, value_name = "TABLE")]
    table: Option<String>,
    /// Print the SQL and do nothing
    #[arg(long)]
    sql: bool,
}

/// A shard of an outbox.
#[derive(Debug, Args)]
struct WhichShard {
    /// The scope, by name or number
    #[arg(long, value_name = "SCOPE")]
    scope: String,
    /// The shard's identifier, such as the organization's id
    #[arg(long = "shard", value_name = "ID", allow_negative_numbers = true)]
    identifier: i64,
    /// With --control: the cell that the messages are for
    #[arg(long, value_name = "CELL", conflicts_with = "cell")]
    target: Option<CellName>,
}

/// How many rows are shown.
#[derive(Debug, Args)]
struct Limit {
    /// At most so many
    #[arg(long, value_name = "N", default_value_t = 20)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
}

/// A drain of either side; it has no receivers and is asked questions only.
enum Outbox {
    Cell(Drain<Cell>),
    Control(Drain<Control>),
}

impl Outbox {
    fn diagnostics(&self) -> Diagnostics<'_> {
        match self {
            Outbox::Cell(drain) => drain.diagnostics(),
            Outbox::Control(drain) => drain.diagnostics(),
        }
    }

    fn registry(&self) -> &Registry {
        match self {
            Outbox::Cell(drain) => drain.registry(),
            Outbox::Control(drain) => drain.registry(),
        }
    }
}

impl Side {
    fn table_name(&self, usual: &str) -> TableName {
        let name = self.table.as_deref().unwrap_or(usual);
        match name.split_once('.') {
            Some((schema, table)) => TableName::new(table).in_schema(schema),
            None => TableName::new(name),
        }
    }

    fn outbox(&self) -> Result<Outbox, Failure> {
        let registry = registry()?;
        let fault = |error: monarch_outbox::StartError| Failure::failed(error.to_string());
        if self.control {
            let table = Table::named(self.table_name("sentry_controloutbox"));
            let drain = Drain::new(table, registry, Receivers::new()).map_err(fault)?;
            return Ok(Outbox::Control(drain));
        }
        let table = Table::named(self.table_name("sentry_regionoutbox"));
        let drain = Drain::new(table, registry, Receivers::new()).map_err(fault)?;
        Ok(Outbox::Cell(drain))
    }

    /// The outbox's database.
    async fn session(&self, context: &Context) -> Result<Session, Failure> {
        let config = context.config()?;
        if self.control {
            let Some(ControlPlane::Database(dsn)) = &config.fleet.control else {
                return Err(Failure::usage("the fleet has no control database")
                    .advising("name it in fleet.yaml: `control: {dsn: …}`"));
            };
            return open(dsn).await;
        }
        let fleet = &config.fleet;
        let cell = self.cell.as_ref().and_then(|name| fleet.cell(name));
        let cell = cell.ok_or_else(|| {
            let known: Vec<&str> = fleet.cells.iter().map(|cell| cell.name.as_str()).collect();
            Failure::usage("the fleet has no such cell")
                .advising(format!("name one of {}", known.join(", ")))
        })?;
        let store = self.store.as_ref().unwrap_or(&config.graph.root().store);
        let database = cell
            .database_of(store)
            .ok_or_else(|| Failure::usage(format!("cell {} places no store {store}", cell.name)))?;
        open(&database.primary).await
    }
}

async fn open(dsn: &Dsn) -> Result<Session, Failure> {
    let purpose = SessionPurpose::writer("monarch outbox").with("search_path", "public");
    let options = ConnectOptions::from_dsn(dsn).map_err(monarch_postgres::Error::from)?;
    Ok(Box::pin(Session::connect(&options, &purpose)).await?)
}

/// Every category that we can name.
fn registry() -> Result<Registry, Failure> {
    let theirs = sentry::Category::ALL.iter().map(CategoryDef::from);
    let ours = routing::Category::ALL.iter().map(CategoryDef::from);
    Registry::new(theirs.chain(ours)).map_err(|error| Failure::failed(error.to_string()))
}

fn scope(registry: &Registry, name: &str) -> Result<ScopeDef, Failure> {
    let by_number = || name.parse().ok().map(ScopeDef::unregistered);
    let found = registry.scope_named(name).or_else(by_number);
    found.ok_or_else(|| {
        let known: Vec<&str> = registry.scopes().map(|scope| scope.name).collect();
        Failure::usage(format!("there is no scope {name:?}"))
            .advising(format!("name one of {}", known.join(", ")))
    })
}

fn category_of(registry: &Registry, name: &str) -> Result<CategoryDef, Failure> {
    // Of an application that we do not know; its scope is not asked for.
    let by_number = || Some(CategoryDef::unregistered(name.parse().ok()?, 0));
    let found = registry.category_named(name).or_else(by_number);
    found.ok_or_else(|| {
        let known: Vec<&str> = registry.categories().map(|one| one.name).collect();
        Failure::usage(format!("there is no category {name:?}"))
            .advising(format!("name one of {}", known.join(", ")))
    })
}

impl WhichShard {
    fn of_cell(&self, registry: &Registry) -> Result<Shard<Cell>, Failure> {
        Ok(Shard::cell(scope(registry, &self.scope)?, self.identifier))
    }

    fn of_control(&self, registry: &Registry) -> Result<Shard<Control>, Failure> {
        let target = self.target.as_ref().ok_or_else(|| {
            Failure::usage("a shard of control is one cell's").advising("name it: --target CELL")
        })?;
        let target = monarch_outbox::CellName::new(target.as_str())
            .map_err(|error| Failure::usage(error.to_string()))?;
        let scope = scope(registry, &self.scope)?;
        Ok(Shard::control(target, scope, self.identifier))
    }
}

/// What the server said, as an operator is told.
fn refused(error: &ServerError) -> Failure {
    match error.code() {
        Some(code) if code.code() == "42P01" => Failure::not_ready(error.to_string())
            .advising("there is no such table in this database: see --store and --table"),
        Some(_) => Failure::failed(error.to_string()),
        None => Failure::unreachable(error.to_string()),
    }
}

/// Asks a question, or prints it; `row` makes a row's cells and its JSON.
async fn answer<T, const N: usize>(
    context: &Context,
    side: &Side,
    question: &Question<T>,
    columns: [&str; N],
    row: impl Fn(&T) -> ([String; N], Value),
) -> Result<Exit, Failure> {
    if side.sql {
        console::say(question.sql())?;
        return Ok(Exit::Done);
    }
    let session = side.session(context).await?;
    let rows = question.ask(&session).await;
    let rows = rows.map_err(|error| refused(&error))?;
    let (cells, values): (Vec<[String; N]>, Vec<Value>) = rows.iter().map(row).unzip();
    console::show(context.output(), &values, |_| {
        if cells.is_empty() {
            return "none".to_owned();
        }
        let mut shown = table(columns);
        for cells in &cells {
            shown.add_row(cells.iter().map(|cell| plain(cell)));
        }
        lines(&shown)
    })?;
    Ok(Exit::Done)
}

const WAITING: [&str; 8] = [
    "id",
    "cell",
    "scope",
    "shard",
    "category",
    "object",
    "written",
    "next attempt",
];

/// A message that waits. Its payload, which may hold anything, is shown by the SQL alone.
fn waiting(registry: &Registry, message: &Waiting) -> ([String; 8], Value) {
    let cells = [
        message.id.to_string(),
        message.cell.clone().unwrap_or_default(),
        registry.scope_label(message.scope),
        message.shard.to_string(),
        registry.category_label(message.category),
        message.object.to_string(),
        message.date_added.to_string(),
        message.scheduled_for.to_string(),
    ];
    let value = json!({
        "id": message.id, "cell": message.cell, "scope": message.scope, "shard": message.shard,
        "category": message.category, "object": message.object, "has_payload": message.payload.is_some(),
        "date_added": message.date_added, "scheduled_from": message.scheduled_from,
        "scheduled_for": message.scheduled_for,
    });
    (cells, value)
}

/// Leaves a shard alone, or takes it up again, by its scope's switch.
async fn switched(
    context: &Context,
    side: &Side,
    scope_name: &str,
    identifier: i64,
    skip: bool,
) -> Result<Exit, Failure> {
    let outbox = side.outbox()?;
    let scope = scope(outbox.registry(), scope_name)?;
    let key = scope
        .switch
        .ok_or_else(|| Failure::usage(format!("scope {scope} has no switch")))?;
    let options = OptionTable::default();
    let sql = match skip {
        true => options.list_sql(key, identifier),
        false => options.unlist_sql(key, identifier),
    };
    if side.sql {
        console::say(&sql)?;
        return Ok(Exit::Done);
    }
    let session = side.session(context).await?;
    let made = options.create(&session).await;
    made.map_err(|error| refused(&error))?;
    let switched = session.batch_execute(&sql).await;
    switched.map_err(|error| refused(&error.into()))?;
    let said = json!({ "option": key, "shard": identifier, "skipped": skip });
    console::show(context.output(), &said, |_| {
        let now = if skip {
            "is skipped"
        } else {
            "is taken up again"
        };
        format!("scope {scope}, shard {identifier} {now}: option {key}")
    })?;
    Ok(Exit::Done)
}
