//! Starts a move: a form, then its plan, then the word.

use maud::{Markup, html};

use super::{Frame, name, said};
use crate::site::Site;
use crate::workflows::{Eviction, Plan, StartRequest};

/// The form, with what was given and what was wrong with it.
pub(crate) fn form<'a>(
    frame: &Frame,
    site: &Site,
    given: &dyn Fn(&str) -> &'a str,
    faults: &[String],
) -> Markup {
    let fleet = &site.config.fleet;
    let cells = |field: &str, usual: Option<&str>| {
        let chosen = match given(field) {
            "" => usual.unwrap_or_default(),
            given => given,
        };
        html! {
            select name=(field) {
                @if usual.is_none() { option value="" selected[chosen.is_empty()] { "choose" } }
                @for cell in &fleet.cells {
                    option value=(cell.name) selected[cell.name.as_str() == chosen] { (cell.name) }
                }
            }
        }
    };
    let usual = |given: &'a str, usual: &'static str| if given.is_empty() { usual } else { given };
    let eviction = usual(given("eviction"), "manual");
    frame.around("Start a move", html! {
        section {
            h1 { "Start a move" }
            @if !faults.is_empty() {
                div class="notice bad" role="alert" {
                    p { "Nothing was started:" }
                    ul.tight { @for fault in faults { li { (said(fault)) } } }
                }
            }
            form.fields method="post" action="/start/plan" {
                (frame.csrf())
                label { "Organization: the key of its root row"
                    input name="org" value=(given("org")) required autocomplete="off"; }
                label { "From" (cells("from", fleet.from.as_ref().map(|cell| cell.as_str()))) }
                label { "To" (cells("to", fleet.to.as_ref().map(|cell| cell.as_str()))) }
                fieldset {
                    legend { "Who decides that it cuts over" }
                    (radio("cut_over", "manual", "you, on this page or by `monarch move cut-over`", given("cut_over") != "auto"))
                    (radio("cut_over", "auto", "the move itself, once every store is ready; needs `control` in the fleet", given("cut_over") == "auto"))
                }
                fieldset {
                    legend { "When the source is evicted" }
                    (radio("eviction", "manual", "when you ask for it, by `monarch move evict`", eviction == "manual"))
                    (radio("eviction", "now", "after the flip", eviction == "now"))
                    (radio("eviction", "after", "so many seconds after the flip:", eviction == "after"))
                    input name="eviction_seconds" inputmode="numeric" aria-label="Seconds after the flip" value=(given("eviction_seconds"));
                }
                label { "The longest write pause, in seconds"
                    input name="max_pause" inputmode="numeric" value=(usual(given("max_pause"), "30")); }
                label.line {
                    input type="checkbox" name="scrub_on_failure" value="yes" checked[given("scrub_on_failure") == "yes"];
                    "If the move fails, scrub the sink at once"
                }
                p.quiet { "Nothing is started yet: the plan comes first. It reads the databases of both cells, which takes a while." }
                div { button { "Show the plan" } }
            }
        }
    })
}

fn radio(field: &str, value: &str, label: &str, is_chosen: bool) -> Markup {
    html! {
        label.line { input type="radio" name=(field) value=(value) checked[is_chosen]; (label) }
    }
}

/// The plan, and the way on unless its findings forbid it.
pub(crate) fn plan(frame: &Frame, start: &StartRequest, plan: &Plan) -> Markup {
    frame.around("The plan", html! {
        section {
            h1 { "The plan for organization " (name(start.org.as_str())) }
            @if plan.refused {
                p class="notice bad" { "A finding forbids this move. Mend it, then ask for the plan again." }
                p { a.button href="/start" { "Go back" } }
            } @else {
                form method="post" action="/start" {
                    (frame.csrf())
                    (hidden(start))
                    p { "Nothing was changed so far." }
                    button { "Start this move" } " "
                    a.button href="/start" { "No, go back" }
                }
            }
        }
        section {
            h2 id="plan-text" { "What it would do" }
            pre tabindex="0" role="region" aria-labelledby="plan-text" { (plan.text) }
        }
    })
}

/// The request as it was planned, for the form that starts it.
fn hidden(start: &StartRequest) -> Markup {
    let (eviction, seconds) = match start.eviction {
        Eviction::Manual => ("manual", None),
        Eviction::Now => ("now", None),
        Eviction::AfterSeconds(seconds) => ("after", Some(seconds.to_string())),
    };
    let cell = |cell: &Option<monarch_model::CellName>| {
        cell.as_ref()
            .map(|cell| cell.as_str().to_owned())
            .unwrap_or_default()
    };
    let fields = [
        ("org", start.org.as_str().to_owned()),
        ("from", cell(&start.from)),
        ("to", cell(&start.to)),
        (
            "cut_over",
            if start.cuts_over_by_itself {
                "auto"
            } else {
                "manual"
            }
            .to_owned(),
        ),
        ("eviction", eviction.to_owned()),
        ("eviction_seconds", seconds.unwrap_or_default()),
        ("max_pause", start.max_pause_seconds.to_string()),
        (
            "scrub_on_failure",
            if start.scrub_on_failure { "yes" } else { "" }.to_owned(),
        ),
    ];
    html! {
        @for (field, value) in &fields { input type="hidden" name=(field) value=(value); }
    }
}
