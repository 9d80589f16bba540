//! The page of one move: what is going on, what is wrong, what may be asked.

use maud::{Markup, html};
use monarch_ledger::{Event, VerificationOutcome};
use monarch_model::Phase;
use monarch_view::advice;
use monarch_view::units_of_measure::{bytes, count, duration, elapsed, seconds};

use super::list::write_pause;
use super::{Frame, banner, banner_part, colour, name, said, shortened, store, time};
use crate::actions::{Action, Offer, offers};
use crate::follower::Seen;
use crate::guard::encoded;
use crate::live::Parts;
use crate::reading::{Mover, Reading, Store};
use crate::site::Site;

/// What a line of the journal tells of its detail, in characters.
const DETAIL_CHARS: usize = 400;

/// Stores that are not ready are named up to here, each with a way to its card.
const NAMED_STORES: usize = 20;

pub(crate) fn page(frame: &Frame, site: &Site, reading: &Reading, seen: &Seen) -> Markup {
    let of = &reading.of;
    let title = format!("Organization {}", shortened(of.org.as_str(), 40));
    frame.around(
        &title,
        html! {
            (banner(seen))
            h1 {
                "Organization " (name(of.org.as_str())) ": "
                (name(of.source_cell.as_str())) " to " (name(of.sink_cell.as_str()))
            }
            (phase(site, reading))
            (attention(reading))
            (actions(reading, frame.is_operator))
            (summary(reading))
            section.plain aria-label="Cards of the stores" {
                div.cards {
                    @for (place, of_store) in reading.stores.iter().enumerate() {
                        (store::card(reading, of_store, place))
                    }
                }
            }
            (verification(reading))
            (objects(reading))
            (feed(reading))
        },
    )
}

/// The parts that change, each with its id.
pub(crate) fn parts(site: &Site, reading: &Reading, is_operator: bool, seen: &Seen) -> Parts {
    let mut parts = vec![banner_part(seen)];
    let fixed = [
        ("phase", phase(site, reading)),
        ("attention", attention(reading)),
        ("actions", actions(reading, is_operator)),
        ("summary", summary(reading)),
        ("verification", verification(reading)),
        ("objects", objects(reading)),
        ("feed", feed(reading)),
    ];
    let fixed = fixed.into_iter();
    parts.extend(fixed.map(|(id, part)| (id.to_owned(), part.into_string())));
    let cards = reading.stores.iter().enumerate();
    parts.extend(cards.map(|(place, of_store)| {
        let card = store::card(reading, of_store, place);
        (store::card_id(place), card.into_string())
    }));
    parts
}

/// The phases that this move goes through, in order.
fn steps(phase: Phase) -> &'static [Phase] {
    use Phase as P;
    match phase {
        P::Failed | P::Aborting | P::Aborted => &[P::Active, P::Failed, P::Aborting, P::Aborted],
        _ => &[
            P::Active,
            P::Draining,
            P::Flipping,
            P::CutOver,
            P::Evicting,
            P::Finalized,
        ],
    }
}

/// Whether a move that stands at `now` has been through `step`.
fn is_done(step: Phase, now: Phase) -> bool {
    let order = |phase| steps(now).iter().position(|of| *of == phase);
    // Who gives a move up has not failed.
    step != Phase::Failed && order(step) < order(now)
}

fn phase(site: &Site, reading: &Reading) -> Markup {
    let of = &reading.of;
    let is_paused = reading
        .view
        .workflow
        .as_ref()
        .is_some_and(|said| said.paused);
    let word = if is_paused {
        "active, paused"
    } else {
        of.phase.as_str()
    };
    let until = of.ended_at.unwrap_or(reading.view.at);
    let web_page = site.workflows.web_ui().map(|ui| {
        let [workflow, run] = [&of.workflow_id, &of.run_id].map(|id| encoded(id, b""));
        format!("{ui}/workflows/{workflow}/{run}/history")
    });
    html! {
        section id="phase" data-say={ "The move is " (word) } aria-labelledby="phase-title" {
            h2 id="phase-title" { "Phase: " span class={ "badge " (colour(of.phase)) } { (word) } }
            ol.steps {
                @for step in steps(of.phase) {
                    @let current = (*step == of.phase).then_some("step");
                    li aria-current=[current] class=[is_done(*step, of.phase).then_some("done")] { (step.as_str()) }
                }
            }
            dl {
                dt { "Started" } dd { (time(of.created_at)) }
                dt { "For" } dd { (duration(elapsed(of.created_at, until))) }
                @if let Some(at) = of.ended_at { dt { "Ended" } dd { (time(at)) } }
                @if let Some(pause) = write_pause(of) { dt { "Write pause" } dd { (pause) } }
                @else if of.phase == Phase::Active { dt { "Write pause, forecast" } dd { (forecast(reading)) } }
                dt { "Move" } dd { (of.id) }
                dt { "Workflow" } dd {
                    @if let Some(address) = web_page {
                        a href=(address) rel="noreferrer" { (name(&of.workflow_id)) " in the Temporal Web UI" }
                    } @else { (name(&of.workflow_id)) }
                }
            }
        }
    }
}

fn forecast(reading: &Reading) -> String {
    match reading.forecast() {
        Some(took) => format!(
            "at least {}, which the last comparison of every store took",
            duration(took)
        ),
        None => "not known before `monarch move verify` has compared every store".to_owned(),
    }
}

/// What is in the way: what happened, whether it is tried again, what to do.
fn attention(reading: &Reading) -> Markup {
    let remarks = reading.view.remarks();
    let silent = reading.view.workflow_silent.as_ref();
    let is_live = reading.of.phase.is_live();
    let ill = reading
        .stores
        .iter()
        .enumerate()
        .filter(|(_, of)| store::is_ill(of.mover));
    let ill: Vec<_> = ill.collect();
    let failed = reading.stores.iter().enumerate();
    let failed = failed.filter(|(_, of)| is_live && of.unit.last_error.is_some());
    let failed: Vec<_> = failed.take(NAMED_STORES).collect();
    let is_calm = remarks.is_empty() && silent.is_none() && ill.is_empty();
    html! {
        section id="attention" aria-labelledby="attention-title" {
            h2 id="attention-title" { "What is in the way" }
            @if is_calm { p { "Nothing that is known of." } }
            @if !ill.is_empty() {
                p class="notice bad" {
                    strong { "Movers that are not heard of: " }
                    @for (place, of) in ill.iter().take(NAMED_STORES) {
                        a href={ "#" (store::card_id(*place)) } { (name(of.unit.store.as_str())) } " "
                    }
                    @if ill.len() > NAMED_STORES { "and " (ill.len() - NAMED_STORES) " more. " }
                    "To do: see whether their workers run and reach both cells."
                }
            }
            @if let Some(why) = silent {
                p class="notice warn" { "From the ledger alone: " (said(why)) }
            }
            @if !remarks.is_empty() {
                ul.tight { @for remark in &remarks { li { (said(remark)) } } }
            }
            @for (place, of) in &failed { (error(reading, of, *place)) }
        }
    }
}

fn error(reading: &Reading, of: &Store, place: usize) -> Markup {
    let Some(error) = &of.unit.last_error else {
        return html! {};
    };
    let (retried, to_do) = advice::of_error(&error.code, reading.of.phase);
    html! {
        details id={ "error-" (place) } {
            summary { (name(of.unit.store.as_str())) ": " (said(&error.code)) ", " (time(error.at)) }
            dl {
                dt { "What happened" } dd { (said(&error.text)) }
                dt { "How often" } dd { (of.unit.error_count) " errors of this store so far" }
                dt { "Tried again" } dd { (retried) }
                dt { "To do" } dd { (to_do) }
            }
        }
    }
}

fn actions(reading: &Reading, is_operator: bool) -> Markup {
    let offers = if is_operator {
        offers(reading)
    } else {
        Vec::new()
    };
    html! {
        section id="actions" aria-labelledby="actions-title" hidden[offers.is_empty()] {
            h2 id="actions-title" { "What you may ask" }
            ul.actions { @for offer in &offers { li { (button(reading, offer)) } } }
        }
    }
}

fn button(reading: &Reading, offer: &Offer) -> Markup {
    let (word, label) = (offer.action.as_str(), offer.action.label());
    let danger = matches!(offer.action, Action::Abort | Action::CutOver).then_some("danger");
    let shown = offer.reasons.iter().take(NAMED_STORES);
    html! {
        @if offer.reasons.is_empty() {
            a id={ "ask-" (word) } class={ "button " (danger.unwrap_or_default()) }
                href={ "/moves/" (reading.of.id) "/ask/" (word) } { (label) }
        } @else {
            button id={ "ask-" (word) } type="button" disabled aria-describedby={ "why-not-" (word) } { (label) }
            div id={ "why-not-" (word) } {
                p { "Not now:" }
                ul.tight {
                    @for reason in shown { li { (said(reason)) } }
                    @if offer.reasons.len() > NAMED_STORES { li { "and " (offer.reasons.len() - NAMED_STORES) " more" } }
                }
            }
        }
    }
}

fn summary(reading: &Reading) -> Markup {
    let stores = &reading.stores;
    let sum = |of: fn(&Store) -> u64| stores.iter().map(of).sum::<u64>();
    let ready = stores.iter().filter(|of| of.objections.is_empty()).count();
    let tables_done: u32 = stores.iter().map(|of| of.view.tables_done).sum();
    let tables: u32 = stores.iter().filter_map(|of| of.view.tables_total).sum();
    html! {
        section id="summary" aria-labelledby="summary-title" {
            h2 id="summary-title" { "Stores: " (stores.len()) }
            dl {
                @if reading.of.phase == Phase::Active { dt { "Ready for the cut-over" } dd { (ready) " of " (stores.len()) } }
                dt { "Tables copied" } dd { (tables_done) " of " (tables) }
                dt { "Rows and objects copied" } dd { (count(sum(|of| of.view.rows_copied))) ", " (bytes(sum(|of| of.view.bytes_copied))) }
                dt { "Changes applied" } dd { (count(sum(|of| of.view.changes_applied))) }
                dt { "Movers not heard of" } dd { (stores.iter().filter(|of| store::is_ill(of.mover)).count()) }
                @if let Some(longest) = longest_silence(reading) { dt { "Longest silence" } dd { (seconds(longest)) } }
            }
        }
    }
}

fn longest_silence(reading: &Reading) -> Option<u64> {
    let silences = reading.stores.iter().filter_map(|of| match of.mover {
        Mover::Stale(so_long) | Mover::Dead(so_long) => Some(so_long.as_secs()),
        Mover::Alive | Mover::NotExpected => None,
    });
    silences.max()
}

fn verification(reading: &Reading) -> Markup {
    html! {
        section id="verification" aria-labelledby="verification-title" {
            h2 id="verification-title" { "Verification" }
            @if reading.verifications.is_empty() {
                p { "No comparison yet. `monarch move verify` compares both sides while they stream." }
            } @else {
                div.wide tabindex="0" role="group" aria-label="Table of comparisons" { table {
                    caption { "Of each store the newest comparison with an outcome, and those under way" }
                    thead { tr {
                        th scope="col" { "Store" } th scope="col" { "Number" } th scope="col" { "Outcome" }
                        th scope="col" { "Asked" } th scope="col" { "Took" }
                    } }
                    tbody { @for one in &reading.verifications { tr {
                        th scope="row" { (name(one.store.as_str())) }
                        td { (one.number) }
                        td { (outcome(one.outcome)) }
                        td { (time(one.asked_at)) }
                        td {
                            @match one.begun_at.zip(one.ended_at) {
                                Some((begun, ended)) => (duration(elapsed(begun, ended))),
                                None => "–",
                            }
                        }
                    } } }
                } }
            }
        }
    }
}

fn outcome(of: Option<VerificationOutcome>) -> Markup {
    let (word, colour) = match of {
        None => ("under way", "warn"),
        Some(outcome @ VerificationOutcome::Equal) => (outcome.as_str(), "good"),
        Some(outcome) => (outcome.as_str(), "bad"),
    };
    html! { span class={ "badge " (colour) } { (word) } }
}

fn objects(reading: &Reading) -> Markup {
    let counted = reading
        .stores
        .iter()
        .filter_map(|of| Some((of, of.objects?)));
    let counted: Vec<_> = counted.collect();
    html! {
        section id="objects" aria-labelledby="objects-title" hidden[counted.is_empty()] {
            h2 id="objects-title" { "Objects" }
            div.wide tabindex="0" role="group" aria-label="Table of objects" { table {
                caption { "Keys that rows name, and what became of them" }
                thead { tr {
                    th scope="col" { "Store" }
                    @for column in ["Keys", "Copied", "Bytes", "Missing", "In trouble", "Read again", "Evicted", "Scrubbed"] {
                        th.number scope="col" { (column) }
                    }
                } }
                tbody { @for (of, counts) in &counted { tr {
                    th scope="row" { (name(of.unit.store.as_str())) }
                    td.number { (count(counts.recorded)) } td.number { (count(counts.copied)) }
                    td.number { (bytes(counts.copied_bytes)) } td.number { (count(counts.missing)) }
                    td.number { (count(counts.troubled)) } td.number { (count(counts.verified)) }
                    td.number { (count(counts.evicted)) } td.number { (count(counts.scrubbed)) }
                } } }
            } }
        }
    }
}

fn feed(reading: &Reading) -> Markup {
    html! {
        section id="feed" aria-labelledby="feed-title" {
            h2 id="feed-title" { "Journal" }
            p.quiet { "The newest first; all of it by `monarch move events --move " (reading.of.id) "`." }
            (events(reading.events.iter()))
        }
    }
}

/// Rows of the journal.
pub(super) fn events<'a>(events: impl Iterator<Item = &'a Event>) -> Markup {
    html! {
        div.wide tabindex="0" role="group" aria-label="Table of events" { table {
            thead { tr {
                th scope="col" { "When" } th scope="col" { "Store" }
                th scope="col" { "What" } th scope="col" { "Detail" }
            } }
            tbody { @for event in events { tr {
                td { (time(event.at)) }
                td { @if let Some(store) = &event.store { (name(store.as_str())) } @else { "–" } }
                td {
                    (event.kind)
                    @if let (Some(before), Some(after)) = (&event.before, &event.after) { br; (before) " → " (after) }
                }
                td { (detail(event)) }
            } } }
        } }
    }
}

fn detail(event: &Event) -> Markup {
    let is_empty = event
        .detail
        .as_object()
        .is_none_or(serde_json::Map::is_empty);
    html! { @if !is_empty { bdi { (shortened(&event.detail.to_string(), DETAIL_CHARS)) } } }
}
