//! Asks once more before something is asked of a move.

use maud::{Markup, html};

use super::{Frame, name, said};
use crate::actions::Action;
use crate::reading::Reading;
use crate::steering::REASON_CHARS;

/// `reasons` are against it now; `faults` are those of the form that was sent.
pub(crate) fn page(
    frame: &Frame,
    reading: &Reading,
    action: Action,
    reasons: &[String],
    faults: &[&str],
) -> Markup {
    let of = &reading.of;
    let back = format!("/moves/{}", of.id);
    let title = format!("{}?", action.label());
    frame.around(
        &title,
        html! {
            section {
                h1 { (title) }
                p {
                    "Organization " (name(of.org.as_str())) ", from " (name(of.source_cell.as_str()))
                    " to " (name(of.sink_cell.as_str())) ". The move is " (of.phase.as_str()) "."
                }
                p { (action.consequences()) }
                @if reasons.is_empty() {
                    @for fault in faults { p class="notice bad" role="alert" { (fault) } }
                    form.fields method="post" action={ (back) "/ask/" (action.as_str()) } {
                        (frame.csrf())
                        (fields(action))
                        div {
                            @let danger = matches!(action, Action::Abort | Action::CutOver).then_some("danger");
                            button class=[danger] { "Yes: " (action.label()) }
                            " "
                            a.button href=(back) { "No, go back" }
                        }
                    }
                } @else {
                    div class="notice warn" {
                        p { "It cannot be asked now:" }
                        ul.tight { @for reason in reasons { li { (said(reason)) } } }
                    }
                    p { a.button href=(back) { "Go back" } }
                }
            }
        },
    )
}

fn fields(action: Action) -> Markup {
    match action {
        Action::Pause | Action::Resume => html! {},
        Action::CutOver => html! {
            label.line {
                input type="checkbox" name="writes_stopped" value="yes";
                "The organization's writes are stopped, and the routing will follow. Needed only \
                 where the fleet has no `control`."
            }
        },
        Action::Abort => html! {
            label {
                "Reason, for the ledger and for whoever asks later"
                textarea name="reason" rows="3" maxlength=(REASON_CHARS) required {}
            }
        },
    }
}
