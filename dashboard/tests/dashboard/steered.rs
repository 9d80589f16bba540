//! What is asked of a move from the page.

use monarch_dashboard::{Driver, Eviction, Request};
use monarch_model::WorkflowStatus;

use crate::fixture::{OPERATOR, Page, csrf};

#[tokio::test]
async fn an_abort_is_confirmed_has_a_reason_and_is_asked_once() {
    let page = Page::open().await;
    let cookie = page.log_in(OPERATOR).await;
    let id = page.register("evil-corp", 2).await;
    let path = format!("/moves/{id}/ask/abort");
    page.until(&cookie, &format!("/moves/{id}"), &path).await;
    let (_, confirm) = page.get(&cookie, &path).await;
    assert!(confirm.contains("deleted from the sink"), "{confirm}");
    let token = csrf(&confirm);
    let (status, text) = page.post(&cookie, &path, &[("csrf", token)]).await;
    assert_eq!((status, text.contains("Say why")), (422, true));
    assert!(page.temporal.asked.lock().unwrap().is_empty());
    let sent = [("csrf", token), ("reason", "too slow")];
    assert_eq!(page.post(&cookie, &path, &sent).await.0, 303);
    let asked = page.temporal.asked.lock().unwrap().clone();
    let reason = "too slow".to_owned();
    assert_eq!(
        asked,
        [("evil-corp".parse().unwrap(), Request::Abort { reason })]
    );
    let (_, text) = page.get(&cookie, &format!("/moves/{id}")).await;
    assert!(text.contains("It was asked."), "{text}");
    let (_, text) = page.get(&cookie, &format!("/moves/{id}")).await;
    assert!(!text.contains("It was asked."), "it is said twice");
}

/// A cut-over stops an organization's writes: it is not asked for while anything is known against it.
#[tokio::test]
async fn a_cut_over_is_held_back_with_every_reason() {
    let page = Page::open().await;
    let cookie = page.log_in(OPERATOR).await;
    let id = page.register("evil-corp", 2).await;
    let (address, path) = (format!("/moves/{id}"), format!("/moves/{id}/ask/cut-over"));
    let text = page.until(&cookie, &address, "Not now:").await;
    for store in ["store000", "store001"] {
        assert!(
            text.contains(&format!("{store}: it is pending, not streaming")),
            "{text}"
        );
    }
    assert!(!text.contains(&format!("href=\"{path}\"")), "{text}");
    // Who has an older page, or none, is refused too.
    let (_, abort) = page.get(&cookie, &format!("/moves/{id}/ask/abort")).await;
    let sent = [("csrf", csrf(&abort)), ("writes_stopped", "yes")];
    let (status, text) = page.post(&cookie, &path, &sent).await;
    assert_eq!((status, text.contains("not streaming")), (409, true));
    assert!(page.temporal.asked.lock().unwrap().is_empty());

    page.stream(id).await;
    page.until(&cookie, &address, &format!("href=\"{path}\""))
        .await;
    assert_eq!(page.post(&cookie, &path, &sent).await.0, 303);
    let asked = page.temporal.asked.lock().unwrap().clone();
    assert_eq!(
        asked[0].1,
        Request::CutOver {
            writes_stopped: true
        }
    );
}

#[tokio::test]
async fn a_move_that_is_paused_is_offered_to_be_resumed() {
    let page = Page::open().await;
    let cookie = page.log_in(OPERATOR).await;
    let id = page.register("evil-corp", 2).await;
    page.stream(id).await;
    let address = format!("/moves/{id}");
    let text = page.until(&cookie, &address, "ask/pause").await;
    assert!(!text.contains("ask/resume"), "{text}");
    let paused = WorkflowStatus {
        paused: true,
        ..WorkflowStatus::default()
    };
    *page.temporal.driver.lock().unwrap() = Driver::Answers(paused);
    let text = page.until(&cookie, &address, "ask/resume").await;
    assert!(
        !text.contains("ask/pause") && text.contains("the move is paused"),
        "{text}"
    );
}

#[tokio::test]
async fn a_move_is_started_after_its_plan_was_shown() {
    let page = Page::open().await;
    let cookie = page.log_in(OPERATOR).await;
    let (_, form) = page.get(&cookie, "/start").await;
    let token = csrf(&form);
    let sent = |org| {
        [
            ("csrf", token),
            ("org", org),
            ("from", "us1"),
            ("to", "us2"),
            ("cut_over", "auto"),
            ("eviction", "after"),
            ("eviction_seconds", "60"),
            ("max_pause", "45"),
        ]
    };
    let (status, text) = page.post(&cookie, "/start/plan", &sent("7")).await;
    assert_eq!((status, text.contains("the plan of 7")), (200, true));
    assert!(text.contains("action=\"/start\""), "{text}");
    let (_, text) = page.post(&cookie, "/start/plan", &sent("refused")).await;
    assert!(!text.contains("action=\"/start\""), "{text}");
    assert!(page.temporal.started.lock().unwrap().is_empty());
    assert_eq!(page.post(&cookie, "/start", &sent("7")).await.0, 303);
    let started = page.temporal.started.lock().unwrap().clone();
    assert_eq!(started.len(), 1);
    assert_eq!(started[0].eviction, Eviction::AfterSeconds(60));
    assert!(started[0].cuts_over_by_itself && started[0].max_pause_seconds == 45);
}
