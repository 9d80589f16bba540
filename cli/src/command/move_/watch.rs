//! `monarch move watch`
//!
//! On a terminal a bar per store that is drawn anew every second; in a pipe a line per change, so
//! that a log of it reads as the story of the move.

use std::collections::BTreeMap;
use std::io::IsTerminal as _;
use std::time::Duration;

use clap::Args;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use jiff::Timestamp;
use monarch_ledger::Ledger;
use monarch_model::{Phase, StoreName, UnitStatus};
use temporalio_client::Client;

use super::{none_such, status};
use crate::args::Which;
use crate::console::{self, Output, plain};
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::move_view::{self, MoveView, UnitView};
use crate::org_move::{self, Liveness};
use crate::units_of_measure::{bytes, count, duration};

const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Ends with the move: with status 0 if it finalized, else 1.
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
                if let Some(exit) = ended(client, &view, &which).await? {
                    screen.close(&view, output)?;
                    return Ok(exit);
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

/// How the move ended, if it did.
async fn ended(client: &Client, view: &MoveView, which: &Which) -> Result<Option<Exit>, Failure> {
    match (&view.of, &which.org) {
        (Some(row), _) => Ok(match row.0.phase {
            Phase::Finalized => Some(Exit::Done),
            Phase::Aborted => Some(Exit::Failed),
            _ => None,
        }),
        // Not registered: it may end without ever being.
        (None, Some(org)) => {
            let handle = org_move::handle(client, org);
            if org_move::liveness(&handle).await? == Liveness::Running {
                return Ok(None);
            }
            match org_move::outcome(&handle).await? {
                Ok(_) => Ok(Some(Exit::Done)),
                Err(why) => Err(Failure::failed(plain(&why))),
            }
        }
        (None, None) => Err(none_such(which)),
    }
}

/// Where a move is drawn.
enum Screen {
    Terminal(Bars),
    Lines(Story),
    /// One document at the end.
    Quiet,
}

impl Screen {
    fn new(output: Output) -> Self {
        match output {
            Output::Json => Self::Quiet,
            Output::Text if std::io::stdout().is_terminal() => Self::Terminal(Bars::new()),
            Output::Text => Self::Lines(Story::default()),
        }
    }

    fn draw(&mut self, view: &MoveView) -> Result<(), Failure> {
        match self {
            Self::Terminal(bars) => bars.draw(view),
            Self::Lines(story) => {
                for line in story.news(view) {
                    console::say(&format!("{}  {line}", time(view.at)))?;
                }
            }
            Self::Quiet => {}
        }
        Ok(())
    }

    /// Says why nothing new is seen.
    fn remark(&mut self, text: &str) -> Result<(), Failure> {
        match self {
            Self::Terminal(bars) => bars.headline.set_message(plain(text)),
            Self::Lines(story) if story.remark != text => {
                text.clone_into(&mut story.remark);
                console::say(&format!("{}  {}", time(Timestamp::now()), plain(text)))?;
            }
            Self::Lines(_) | Self::Quiet => {}
        }
        Ok(())
    }

    fn close(self, view: &MoveView, output: Output) -> Result<(), Failure> {
        if let Self::Terminal(bars) = &self {
            bars.all.clear()?;
        }
        match self {
            Self::Lines(_) => Ok(()),
            _ => console::show(output, view, move_view::text),
        }
    }
}

fn time(at: Timestamp) -> String {
    at.strftime("%H:%M:%SZ").to_string()
}

/// A bar per store, under a headline.
struct Bars {
    all: MultiProgress,
    headline: ProgressBar,
    stores: BTreeMap<StoreName, ProgressBar>,
    remarks: ProgressBar,
}

impl Bars {
    fn new() -> Self {
        let all = MultiProgress::with_draw_target(indicatif::ProgressDrawTarget::stdout());
        let line = || ProgressBar::new_spinner().with_style(style("{msg}"));
        Self {
            headline: all.add(line()),
            remarks: all.add(line()),
            stores: BTreeMap::new(),
            all,
        }
    }

    fn draw(&mut self, view: &MoveView) {
        let org = view
            .of
            .as_ref()
            .map(|row| plain(row.0.org.as_str()))
            .unwrap_or_default();
        self.headline.set_message(format!("{} {org}", view.phase()));
        for unit in &view.units {
            let bar = self.stores.entry(unit.store.clone()).or_insert_with(|| {
                let bar = ProgressBar::new(1).with_style(style("{prefix:16} {bar:24} {msg}"));
                bar.set_prefix(plain(unit.store.as_str()));
                self.all.insert_before(&self.remarks, bar)
            });
            bar.set_length(
                unit.rows_estimated
                    .unwrap_or(1)
                    .max(unit.rows_copied)
                    .max(1),
            );
            bar.set_position(match unit.status {
                UnitStatus::Pending | UnitStatus::Copying => unit.rows_copied,
                _ => bar.length().unwrap_or(1),
            });
            bar.set_message(progress(unit));
        }
        self.remarks.set_message(view.remarks().join("\n"));
    }
}

/// The templates are constants; one that does not parse shows as a bar without a style.
fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template)
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .progress_chars("=> ")
}

/// A unit's progress in a line.
fn progress(unit: &UnitView) -> String {
    let mut parts = vec![unit.status.to_string()];
    match unit.status {
        UnitStatus::Pending => {}
        UnitStatus::Copying | UnitStatus::Copied => {
            parts.push(format!("{} rows", unit.rows()));
            parts.push(bytes(unit.bytes_copied));
            parts.extend(
                unit.bytes_per_second
                    .map(|rate| format!("{}/s", bytes(rate))),
            );
            let eta = unit.eta_seconds.map(Duration::from_secs);
            parts.extend(eta.map(|left| format!("{} left", duration(left))));
        }
        UnitStatus::Streaming | UnitStatus::SlotDropped => {
            parts.push(format!("{} changes", count(unit.changes_applied)));
            parts.extend(unit.lag_bytes.map(|lag| format!("lag {}", bytes(lag))));
        }
        UnitStatus::Evicting | UnitStatus::Evicted => {
            parts.push(format!("{} rows deleted", count(unit.rows_evicted)));
        }
    }
    parts.join("  ")
}

/// What was told last, so that only news is told.
#[derive(Default)]
struct Story {
    phase: &'static str,
    stores: BTreeMap<StoreName, UnitStatus>,
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
            let before = self.stores.insert(unit.store.clone(), unit.status);
            if before != Some(unit.status) {
                news.push(format!(
                    "{}: {}",
                    plain(unit.store.as_str()),
                    progress(unit)
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

    fn unit(status: UnitStatus, rows: u64) -> UnitView {
        UnitView {
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

    fn view(units: Vec<UnitView>) -> MoveView {
        MoveView {
            at: Timestamp::UNIX_EPOCH,
            of: None,
            units,
            workflow: Some(monarch_workflows::org_move::Status::default()),
            workflow_silent: None,
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
