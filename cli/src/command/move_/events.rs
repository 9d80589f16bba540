//! `monarch move events`

use clap::Args;
use monarch_ledger::Event;

use super::{find, none_such};
use crate::args::Which;
use crate::console::{self, plain};
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::Failure;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    which: Which,
    /// Only what came after the event of this id
    #[arg(long, value_name = "ID", default_value_t = 0)]
    after: i64,
    /// At most so many
    #[arg(long, value_name = "N", default_value_t = 1000)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
}

pub(crate) async fn run(arguments: &Arguments, context: &Context) -> Result<Exit, Failure> {
    let ledger = context.ledger()?;
    let of = find(&ledger, &arguments.which)
        .await?
        .ok_or_else(|| none_such(&arguments.which))?;
    let events = ledger
        .events(of.id, arguments.after, arguments.limit)
        .await?;
    console::show(context.output(), &events, |events| {
        let lines: Vec<String> = events.iter().map(line).collect();
        lines.join("\n")
    })?;
    Ok(Exit::Done)
}

/// What a line tells of an event's detail, in characters; all of it is in the JSON.
const DETAIL_MAX: usize = 500;

fn shortened(detail: String) -> String {
    match detail.char_indices().nth(DETAIL_MAX) {
        Some((end, _)) => format!("{}…", &detail[..end]),
        None => detail,
    }
}

/// `2026-09-23T10:00:00Z  default  begin_copy  pending → copying  {…}`
pub(super) fn line(event: &Event) -> String {
    let at = event.at.strftime("%Y-%m-%dT%H:%M:%S%.3fZ");
    let subject = event.store.as_ref().map_or("-", |store| store.as_str());
    let mut line = format!("{at}  {subject}  {}", event.kind);
    if let (Some(before), Some(after)) = (&event.before, &event.after) {
        line.push_str(&format!("  {before} → {after}"));
    }
    if event
        .detail
        .as_object()
        .is_some_and(|fields| !fields.is_empty())
    {
        line.push_str(&format!("  {}", shortened(event.detail.to_string())));
    }
    plain(&line)
}
