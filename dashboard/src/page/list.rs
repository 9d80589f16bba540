//! The list of moves, the newest first.

use std::time::Duration;

use maud::{Markup, html};
use monarch_ledger::Move;
use monarch_view::units_of_measure::duration;

use super::{Frame, banner, banner_part, name, phase_badge, said, time};
use crate::follower::Seen;
use crate::live::Parts;

type Moves = Result<Vec<Move>, String>;

pub(crate) fn page(frame: &Frame, moves: &Moves, seen: &Seen) -> Markup {
    frame.around(
        "Moves",
        html! {
            (banner(seen))
            h1 { "Moves" }
            (table(moves))
        },
    )
}

/// What changes of it.
pub(crate) fn parts(moves: &Moves, seen: &Seen) -> Parts {
    let mut parts = vec![banner_part(seen)];
    // Who sees a list keeps it while the ledger is away.
    if moves.is_ok() {
        parts.push(("moves".to_owned(), table(moves).into_string()));
    }
    parts
}

fn table(moves: &Moves) -> Markup {
    let moves = match moves {
        Ok(moves) => moves,
        Err(why) => {
            return html! {
                section id="moves" aria-label="Moves" {
                    p { "The moves cannot be listed: " (said(why)) }
                    p { "To do: check `ledger.dsn` in the fleet and that it is up. This page goes on by itself." }
                }
            };
        }
    };
    html! {
        section id="moves" aria-label="Moves" {
            @if moves.is_empty() { p { "No move yet." } } @else {
                div.wide tabindex="0" role="group" aria-label="Table of moves" {
                    table {
                        caption { "The newest first" }
                        thead { tr {
                            th scope="col" { "Organization" } th scope="col" { "From" }
                            th scope="col" { "To" } th scope="col" { "Phase" }
                            th scope="col" { "Started" } th scope="col" { "Ended" }
                            th scope="col" { "Write pause" }
                        } }
                        tbody { @for of in moves { (row(of)) } }
                    }
                }
            }
        }
    }
}

fn row(of: &Move) -> Markup {
    html! {
        tr {
            th scope="row" { a id={ "move-" (of.id) } href={ "/moves/" (of.id) } { (name(of.org.as_str())) } }
            td { (name(of.source_cell.as_str())) }
            td { (name(of.sink_cell.as_str())) }
            td { (phase_badge(of.phase)) }
            td { (time(of.created_at)) }
            td { @if let Some(at) = of.ended_at { (time(at)) } @else { "–" } }
            td { (write_pause(of).unwrap_or_else(|| "–".to_owned())) }
        }
    }
}

/// How long the organization could not write.
pub(super) fn write_pause(of: &Move) -> Option<String> {
    let ms = u64::try_from(of.write_pause_ms?).ok()?;
    Some(duration(Duration::from_millis(ms)))
}
