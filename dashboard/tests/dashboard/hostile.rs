//! Names and texts of others, whatever they are made of.

use serde_json::json;

use crate::fixture::{OPERATOR, Page};

const MARKUP: &str = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>";
/// Turns what follows around, on the whole line of a page that does not set it apart.
const TURNED: &str = "\u{202e}abc\u{2066}";

/// A name in a database is a text on the page and never a part of it.
#[tokio::test]
async fn a_name_is_shown_and_does_nothing() {
    let page = Page::open().await;
    let cookie = page.log_in(OPERATOR).await;
    let org = format!("{MARKUP}{TURNED}{}", "x".repeat(2_000));
    let id = page.register(&org, 2).await;
    page.stream(id).await;
    let long = "y".repeat(10_000);
    let detail = json!({ "reason": MARKUP, "long": long });
    page.ledger.note(id, None, MARKUP, detail).await.unwrap();
    page.admin
        .execute(
            "update monarch_ledger.move_unit
                set last_error_code = $1, last_error = $1 || $2, last_error_at = now(),
                    source_database = jsonb_build_object('system_identifier', '1', 'timeline', 1, 'database', $1::text)",
            &[&MARKUP, &long],
        )
        .await
        .unwrap();
    page.until(&cookie, &format!("/moves/{id}"), "onerror")
        .await;
    for path in [
        "/".to_owned(),
        format!("/moves/{id}"),
        format!("/moves/{id}/stores/0"),
        format!("/moves/{id}/ask/abort"),
    ] {
        let (status, text) = page.get(&cookie, &path).await;
        assert_eq!(status, 200, "{path}");
        assert!(
            !text.contains("<script>") && !text.contains("<img"),
            "{path}:\n{text}"
        );
        assert!(
            text.contains("&lt;script&gt;alert(1)"),
            "{path} does not show the name"
        );
        assert!(
            !without_addresses(&text).contains(&"x".repeat(500)),
            "{path} shows all of a long name"
        );
        assert!(
            !text.contains(&"y".repeat(3_000)),
            "{path} shows all of a long text"
        );
        // The override stands within an element that keeps it to itself.
        let outside: Vec<&str> = text.split("<bdi>").collect();
        let leaks = outside.iter().any(|part| {
            let after = part.split_once("</bdi>").map_or(*part, |(_, after)| after);
            after.contains('\u{202e}') && !after.contains("<title>")
        });
        assert!(!leaks, "{path} is turned around");
    }
}

/// A page without what its links lead to, which nobody reads.
fn without_addresses(text: &str) -> String {
    let mut parts = text.split("href=\"");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |shown, part| {
        shown + part.split_once('"').map_or("", |(_, rest)| rest)
    })
}

/// What was sent and refused is shown again, and is text too.
#[tokio::test]
async fn a_form_that_is_refused_shows_what_was_sent_as_text() {
    let page = Page::open().await;
    let cookie = page.log_in(OPERATOR).await;
    let (_, form) = page.get(&cookie, "/start").await;
    let token = crate::fixture::csrf(&form);
    let sent = [
        ("csrf", token),
        ("org", MARKUP),
        ("max_pause", MARKUP),
        ("eviction", "after"),
    ];
    let (status, text) = page.post(&cookie, "/start/plan", &sent).await;
    assert_eq!(status, 422);
    assert!(
        !text.contains("<script>") && text.contains("&lt;script&gt;"),
        "{text}"
    );
    for fault in [
        "expected 1 to 3,600 seconds",
        "expected a number of seconds",
    ] {
        assert!(text.contains(fault), "{fault}:\n{text}");
    }
    assert_eq!(
        page.get(&cookie, &format!("/login?next={MARKUP}")).await.0,
        200
    );
}
