//! The form that a token is given on.

use maud::{Markup, html};

use super::whole;

pub(crate) fn page(next: &str, was_wrong: bool) -> Markup {
    let top = html! { header.top { strong { "Monarch" } } };
    let content = html! {
        section {
            h1 { "Log in" }
            @if was_wrong {
                p class="notice bad" role="alert" { "That is no token of this dashboard. Nothing was tried again." }
            }
            form.fields method="post" action="/login" {
                input type="hidden" name="next" value=(next);
                label {
                    "Token"
                    input type="password" name="token" autocomplete="current-password" required autofocus;
                }
                p.quiet { "Whoever started `monarch dashboard` has it: an operator's, or one that reads only." }
                div { button { "Log in" } }
            }
        }
    };
    whole("Log in", None, top, content)
}
