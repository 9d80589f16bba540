//! Readings as HTML. Everything that stands in a page is escaped by maud, and what others named is
//! set apart by `bdi`, so that no name reads as ours, whatever it is made of.

pub(crate) mod asset;
pub(crate) mod confirm;
pub(crate) mod list;
pub(crate) mod login;
pub(crate) mod one;
mod sparkline;
pub(crate) mod start;
pub(crate) mod store;

use jiff::Timestamp;
use maud::{DOCTYPE, Markup, html};
use monarch_model::Phase;
use monarch_view::words::plain;

use crate::follower::Seen;
use crate::guard::Identity;
use crate::problem::Problem;
use crate::site::Site;

/// A name or text of others is shown up to here.
const NAME_CHARS: usize = 120;
const TEXT_CHARS: usize = 2_000;

/// What stands around every page.
pub(crate) struct Frame {
    role: &'static str,
    is_operator: bool,
    csrf: String,
    notice: Option<String>,
    live: Option<String>,
}

impl Frame {
    pub(crate) fn new(site: &Site, who: &Identity) -> Self {
        let notice = match who {
            Identity::Person { secret, .. } => site.access.take(secret),
            Identity::Program(_) => None,
        };
        Self {
            role: who.role().in_words(),
            is_operator: who.is_operator(),
            csrf: who.csrf().to_owned(),
            notice,
            live: None,
        }
    }

    /// The same for a page that goes on by itself.
    pub(crate) fn live(mut self, address: &str) -> Self {
        self.live = Some(address.to_owned());
        self
    }

    /// A page with everything around it.
    fn around(&self, title: &str, content: Markup) -> Markup {
        let top = html! {
            header.top {
                strong { "Monarch" }
                nav aria-label="Pages" {
                    a href="/" { "Moves" }
                    @if self.is_operator { a href="/start" { "Start a move" } }
                }
                form method="post" action="/logout" {
                    span.quiet { "You are " (self.role) }
                    button { "Log out" }
                }
            }
        };
        let inner = html! {
            p id="connection" class="notice bad" role="alert" hidden {}
            p id="announcement" class="unseen" role="status" {}
            @if let Some(notice) = &self.notice { p class="notice good" role="status" { (said(notice)) } }
            (content)
        };
        whole(title, self.live.as_deref(), top, inner)
    }

    /// What every form of the session carries.
    fn csrf(&self) -> Markup {
        html! { input type="hidden" name="csrf" value=(self.csrf); }
    }
}

fn whole(title: &str, live: Option<&str>, top: Markup, content: Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (plain(title)) " · Monarch" }
                link rel="stylesheet" href=(asset::STYLE.address());
                link rel="icon" href=(asset::ICON.address()) type=(asset::ICON.kind);
                @if live.is_some() {
                    script src=(asset::SCRIPT.address()) defer {}
                    noscript { meta http-equiv="refresh" content="10"; }
                }
            }
            body {
                a.skip href="#content" { "Skip to the content" }
                (top)
                main id="content" data-live=[live] { (content) }
            }
        }
    }
}

/// A request that was not served.
pub(crate) fn problem(problem: &Problem) -> Markup {
    let top = html! { header.top { strong { "Monarch" } } };
    let content = html! {
        section {
            h1 { "Not done" }
            p { (said(&problem.what)) }
            dl {
                @if !problem.retried.is_empty() { dt { "Tried again" } dd { (said(&problem.retried)) } }
                @if !problem.to_do.is_empty() { dt { "To do" } dd { (said(&problem.to_do)) } }
            }
            p { a href=(problem.back) { "Go back" } }
        }
    };
    whole("Not done", None, top, content)
}

/// The id of the banner, and the banner.
pub(crate) fn banner_part(seen: &Seen) -> (String, String) {
    ("banner".to_owned(), banner(seen).into_string())
}

/// Says since when nothing new is seen, and why.
fn banner(seen: &Seen) -> Markup {
    let told = seen.away.as_ref().map(|_| "The ledger is not reachable");
    html! {
        div id="banner" data-say=[told.or(Some("The ledger is reachable"))] {
            @if let Some(away) = &seen.away {
                p class="notice bad" {
                    strong { "The ledger is not reachable since " (time(away.since)) ". " }
                    @if let Some(reading) = &seen.reading {
                        "What you see of a live move is from " (time(reading.view.at)) ". "
                    }
                    "It is asked again every second. Reason: " (said(&away.why))
                }
            }
        }
    }
}

/// A name that others gave, set apart and of bounded length.
fn name(text: &str) -> Markup {
    html! { bdi { (shortened(text, NAME_CHARS)) } }
}

/// A text that may quote what others named.
fn said(text: &str) -> Markup {
    html! { bdi { (shortened(text, TEXT_CHARS)) } }
}

/// Without control characters, and not endless.
fn shortened(text: &str, chars: usize) -> String {
    match text.char_indices().nth(chars) {
        Some((end, _)) => format!(
            "{}… ({} characters)",
            plain(&text[..end]),
            text.chars().count()
        ),
        None => plain(text),
    }
}

fn time(at: Timestamp) -> Markup {
    let text = at.strftime("%Y-%m-%d %H:%M:%S UTC").to_string();
    html! { time datetime=(at.strftime("%Y-%m-%dT%H:%M:%SZ")) { (text) } }
}

/// How a phase is coloured; its word says the same.
fn colour(phase: Phase) -> &'static str {
    match phase {
        Phase::Failed | Phase::Aborting | Phase::Aborted => "bad",
        Phase::Draining | Phase::Flipping => "warn",
        Phase::Active | Phase::CutOver | Phase::Evicting | Phase::Finalized => "good",
    }
}

fn phase_badge(phase: Phase) -> Markup {
    html! { span class={ "badge " (colour(phase)) } { (phase.as_str()) } }
}
