//! `monarch outbox backfill`

use clap::Args;
use monarch_outbox::{OptionTable, Watermark};
use serde_json::json;

use super::{Side, refused};
use crate::console::{self, lines, plain, table};
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::Failure;

/// Without --model: where the backfill of each model stands, and its gate. The application's own
/// schedule does the work.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    side: Side,
    /// The model, by its table
    #[arg(long, value_name = "TABLE", requires = "version")]
    model: Option<String>,
    /// The version up to which it may go; a lower one halts it
    #[arg(long, value_name = "N", requires = "model")]
    version: Option<i32>,
}

/// Each model and its gate, an option of its own.
const WATERMARKS: &str = "\
-- Where backfills stand: (0, 1) not begun, (id + 1, v) rows up to this id are done, (0, v + 1) all are
select table_name, low, version,
    (select value::text from monarch_outbox_option
     where key = 'outbox_replication.' || table_name || '.replication_version') as gate
from monarch_outbox_watermark
order by table_name
limit 1000;";

pub(crate) async fn run(arguments: &Arguments, context: &Context) -> Result<Exit, Failure> {
    match (&arguments.model, arguments.version) {
        (Some(model), Some(version)) => open(arguments, context, model, version).await,
        _ => show(arguments, context).await,
    }
}

async fn open(
    arguments: &Arguments,
    context: &Context,
    model: &str,
    version: i32,
) -> Result<Exit, Failure> {
    let key = format!("outbox_replication.{model}.replication_version");
    let options = OptionTable::default();
    if arguments.side.sql {
        console::say(&options.set_sql(&key, &json!(version)))?;
        return Ok(Exit::Done);
    }
    let session = arguments.side.session(context).await?;
    let set = options.set(&*session, &key, &json!(version)).await;
    set.map_err(|error| refused(&error))?;
    let said = json!({ "option": key, "value": version });
    console::show(context.output(), &said, |_| {
        format!("{model} may be backfilled up to version {version}")
    })?;
    Ok(Exit::Done)
}

async fn show(arguments: &Arguments, context: &Context) -> Result<Exit, Failure> {
    if arguments.side.sql {
        console::say(WATERMARKS)?;
        return Ok(Exit::Done);
    }
    let session = arguments.side.session(context).await?;
    let rows = session.query(WATERMARKS.trim_end_matches(';'), &[]).await;
    let rows = rows.map_err(|error| refused(&error.into()))?;
    let mut values = Vec::new();
    let mut shown = table(["model", "low", "version", "gate"]);
    for row in &rows {
        let (model, gate): (String, Option<String>) = (row.get(0), row.get(3));
        let mark = Watermark {
            low: row.get(1),
            version: row.get(2),
        };
        shown.add_row([
            plain(&model),
            mark.low.to_string(),
            mark.version.to_string(),
            gate.clone().unwrap_or_else(|| "not set".to_owned()),
        ]);
        values.push(json!({
            "model": model, "low": mark.low, "version": mark.version, "gate": gate,
        }));
    }
    console::show(context.output(), &values, |_| match rows.is_empty() {
        true => "none".to_owned(),
        false => lines(&shown),
    })?;
    Ok(Exit::Done)
}
