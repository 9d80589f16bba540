//! `monarch move cut-over`

use std::fmt::Write as _;
use std::time::Duration;

use clap::Args;
use monarch_model::Phase;
use monarch_view::units_of_measure::duration;
use monarch_workflows::OrgMove;
use monarch_workflows::input::CutOver;
use monarch_workflows::org_move::CutOverAnswer;
use serde::Serialize;

use super::driver::{Driver, Patience};
use crate::args::Organization;
use crate::console::{self, plain};
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::Failure;

/// Refused, with every reason, while a store is not ready. If the drain does not succeed within
/// the longest write pause, the organization writes on the source again.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    organization: Organization,
    /// Your word that the organization's writes are stopped and that you will change the routing;
    /// needed where the fleet has no `control`
    #[arg(long)]
    writes_stopped: bool,
    #[command(flatten)]
    patience: Patience,
}

/// What became of it. Times are in milliseconds, as everywhere in our output.
#[derive(Serialize)]
struct Answered<'a> {
    phase: Option<Phase>,
    write_pause_ms: Option<u64>,
    refusals: &'a [String],
}

pub(crate) async fn run(arguments: &Arguments, context: &Context) -> Result<Exit, Failure> {
    let client = context.temporal().await?;
    let driver = Driver::find(&context.ledger()?, &client, &arguments.organization.org).await?;
    let request = CutOver {
        writes_stopped: arguments.writes_stopped,
        valid_until: arguments.patience.valid_until(),
    };
    let answer = driver
        .ask(OrgMove::cut_over, request, &arguments.patience)
        .await?;
    let answered = Answered {
        phase: answer.phase,
        write_pause_ms: answer.write_pause_ms,
        refusals: &answer.refusals,
    };
    console::show(context.output(), &answered, |_| text(&answer))?;
    Ok(if answer.refusals.is_empty() {
        Exit::Done
    } else {
        Exit::NotReady
    })
}

pub(crate) fn text(answer: &CutOverAnswer) -> String {
    let mut text = String::new();
    if answer.refusals.is_empty() {
        text.push_str("cut over");
        if let Some(pause) = answer.write_pause_ms.map(Duration::from_millis) {
            let _ = write!(text, "; writes were paused for {}", duration(pause));
        }
        return text;
    }
    text.push_str("not cut over:\n");
    for refusal in &answer.refusals {
        let _ = writeln!(text, "  {}", plain(refusal));
    }
    if let Some(phase) = answer.phase {
        let _ = write!(text, "the move is {phase}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_refusal_has_a_line_of_its_own() {
        let answer = CutOverAnswer {
            phase: Some(Phase::Active),
            write_pause_ms: None,
            refusals: vec!["default: lags".to_owned(), "events: stale".to_owned()],
        };
        insta::assert_snapshot!(text(&answer), @r"
        not cut over:
          default: lags
          events: stale
        the move is active
        ");
    }
}
