//! `monarch move watch`
//!
//! On a terminal a bar per store that is drawn anew every second; in a pipe a line per change, so
//! that a log of it reads as the story of the move; for programs the whole reading at each change.

mod picture;

use std::collections::BTreeMap;
use std::time::Duration;

use clap::Args;
use jiff::Timestamp;
use monarch_ledger::Ledger;
use monarch_model::{StoreName, UnitStatus};
use monarch_view::units_of_measure::{bytes, count, seconds};
use monarch_view::{End, MoveView, UnitView};
use temporalio_client::Client;

use self::picture::Picture;
use super::status;
use crate::args::Which;
use crate::console::{self, Output, plain};
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::move_text;

const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Follows the live move unless another is named. Ends with the move, and where it needs an operator
/// to go on: with status 0 if it finalized, else 1. With `--output json`, a document for each change,
/// one to a line.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    which: Which,
}

pub(crate) async fn run(arguments: &Arguments, context: &Context) -> Result<Exit, Failure> {
    let ledger = context.ledger()?;
    let client = context.temporal().await?;
    Box::pin(follow(&ledger, &client, &arguments.which, context.output())).await
}

/// Follows a move until it ends. Ledger and Temporal may be away for a while in between.
pub(super) async fn follow(
    ledger: &Ledger,
    client: &Client,
    which: &Which,
    output: Output,
) -> Result<Exit, Failure> {
    let mut which = which.clone();
    let mut screen = Screen::new(output);
    let mut seen_once = false;
    loop {
        match status::look(ledger, Ok(client), &which).await {
            Ok(view) => {
                seen_once = true;
                screen.draw(&view)?;
                if let Some(of) = &view.of {
                    which = Which {
                        org: None,
                        move_id: Some(of.0.id),
                    };
                }
                if let Some(end) = view.end() {
                    screen.close(&view)?;
                    return Ok(match end {
                        End::Finalized => Exit::Done,
                        End::NotFinalized => Exit::Failed,
                    });
                }
            }
            Err(failure) if seen_once && failure.exit() == Exit::Unreachable => {
                screen.remark(failure.what())?;
            }
            Err(failure) => return Err(failure),
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Where a move is drawn.
enum Screen {
    Terminal(Picture),
    Lines(Story),
    /// A document for each change, one to a line.
    Json(Story),
}

impl Screen {
    fn new(output: Output) -> Self {
        match output {
            Output::Json => Self::Json(Story::default()),
            Output::Text => match Picture::on_terminal() {
                Some(picture) => Self::Terminal(picture),
                None => Self::Lines(Story::default()),
            },
        }
    }

    fn draw(&mut self, view: &MoveView) -> Result<(), Failure> {
        match self {
            Self::Terminal(picture) => picture.draw(view)?,
            Self::Lines(story) => {
                for line in story.news(view) {
                    console::say(&format!("{}  {line}", time(view.at)))?;
                }
            }
            Self::Json(story) => {
                if !story.news(view).is_empty() {
                    console::say_json(view)?;
                }
            }
        }
        Ok(())
    }

    /// Says why nothing new is seen.
    fn remark(&mut self, text: &str) -> Result<(), Failure> {
        match self {
            Self::Terminal(picture) => picture.remark(text)?,
            Self::Lines(story) if story.remark != text => {
                text.clone_into(&mut story.remark);
                console::say(&format!("{}  {}", time(Timestamp::now()), plain(text)))?;
            }
            Self::Lines(_) | Self::Json(_) => {}
        }
        Ok(())
    }

    /// What is left standing of it.
    fn close(self, view: &MoveView) -> Result<(), Failure> {
        match self {
            Self::Terminal(mut picture) => {
                picture.clear()?;
                console::say(move_text::text(view).trim_end())
            }
            Self::Lines(_) | Self::Json(_) => Ok(()),
        }
    }
}

fn time(at: Timestamp) -> String {
    at.strftime("%H:%M:%SZ").to_string()
}

/// A unit's progress in a line.
fn progress(view: &MoveView, unit: &UnitView) -> String {
    let mut parts = vec![view.doing(unit).to_owned()];
    match unit.status {
        UnitStatus::Pending => {}
        UnitStatus::Copying | UnitStatus::Copied => {
            parts.push(format!("{} rows", unit.rows()));
            parts.push(bytes(unit.bytes_copied));
            parts.extend(
                unit.bytes_per_second
                    .map(|rate| format!("{}/s", bytes(rate))),
            );
            parts.extend(
                unit.eta_seconds
                    .map(|left| format!("{} left", seconds(left))),
            );
        }
        UnitStatus::Streaming | UnitStatus::SlotDropped => {
            parts.push(format!("{} changes", count(unit.changes_applied)));
            parts.extend(unit.lag_bytes.map(|lag| format!("lag {}", bytes(lag))));
        }
        UnitStatus::Evicting | UnitStatus::Evicted => {
            if unit.rows_evicted > 0 {
                parts.push(format!("{} rows deleted", count(unit.rows_evicted)));
            }
        }
    }
    parts.join("  ")
}

/// What was told last, so that only news is told.
#[derive(Default)]
struct Story {
    phase: &'static str,
    stores: BTreeMap<StoreName, &'static str>,
    remarks: Vec<String>,
    remark: String,
}

impl Story {
    /// What changed since the last reading, a line each.
    fn news(&mut self, view: &MoveView) -> Vec<String> {
        let mut news = Vec::new();
        if self.phase != view.phase() {
            self.phase = view.phase();
            let subject = view.of.as_ref().map_or_else(
                || self.phase.to_owned(),
                |row| {
                    let org = plain(row.0.org.as_str());
                    format!("{}: organization {org}, move {}", self.phase, row.0.id)
                },
            );
            news.push(subject);
        }
        for unit in &view.units {
            let doing = view.doing(unit);
            if self.stores.insert(unit.store.clone(), doing) != Some(doing) {
                news.push(format!(
                    "{}: {}",
                    plain(unit.store.as_str()),
                    progress(view, unit)
                ));
            }
        }
        let remarks = view.remarks();
        news.extend(
            remarks
                .iter()
                .filter(|r| !self.remarks.contains(r))
                .cloned(),
        );
        self.remarks = remarks;
        self.remark.clear();
        news
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use monarch_view::Attempt;

    pub(super) fn unit(status: UnitStatus, rows: u64) -> UnitView {
        UnitView {
            of_objects: false,
            store: "default".parse().unwrap(),
            status,
            rows_copied: rows,
            rows_estimated: Some(4_000),
            bytes_copied: 2_048,
            bytes_per_second: Some(1_024),
            eta_seconds: Some(90),
            tables_done: 1,
            tables_total: Some(2),
            changes_applied: 7,
            applied: None,
            lag_bytes: Some(10),
            retained_wal_bytes: None,
            heartbeat_age_seconds: Some(1),
            rows_evicted: 0,
            late_changes: 0,
            last_error: None,
            error_count: 0,
        }
    }

    pub(super) fn view(units: Vec<UnitView>) -> MoveView {
        let attempt = Attempt {
            org: "1".parse().unwrap(),
            workflow_id: "org-move-1".to_owned(),
            run_id: "run".to_owned(),
            ended: None,
            to_do: None,
        };
        MoveView {
            at: Timestamp::UNIX_EPOCH,
            units,
            ..MoveView::of_attempt(attempt, None)
        }
    }

    /// A log of a watched move has a line per change, not one per look.
    #[test]
    fn a_pipe_is_told_what_changed_and_nothing_twice() {
        let mut story = Story::default();
        let first = story.news(&view(vec![unit(UnitStatus::Copying, 1_000)]));
        assert_eq!(
            first,
            [
                "preflight",
                "default: copying  1,000 of ~4,000 rows  2.0 KiB  1.0 KiB/s  1m 30s left"
            ]
        );
        assert!(
            story
                .news(&view(vec![unit(UnitStatus::Copying, 2_000)]))
                .is_empty()
        );
        let streaming = story.news(&view(vec![unit(UnitStatus::Streaming, 4_000)]));
        assert_eq!(streaming, ["default: streaming  7 changes  lag 10 B"]);
    }
}
