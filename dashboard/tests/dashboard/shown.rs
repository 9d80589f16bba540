//! What an operator reads on the page.

use monarch_dashboard::Driver;

use crate::fixture::{OPERATOR, Page};

#[tokio::test]
async fn the_list_has_every_move_and_leads_to_it() {
    let page = Page::open().await;
    let cookie = page.log_in(OPERATOR).await;
    let (status, text) = page.get(&cookie, "/").await;
    assert_eq!((status, text.contains("No move yet.")), (200, true));
    let id = page.register("evil-corp", 2).await;
    let (_, text) = page.get(&cookie, "/").await;
    assert!(text.contains(&format!("href=\"/moves/{id}\"")), "{text}");
    assert!(
        text.contains("evil-corp") && text.contains("active"),
        "{text}"
    );
    let (status, text) = page.get(&cookie, "/moves/no-such-move").await;
    assert_eq!((status, text.contains("To do")), (404, true));
}

#[tokio::test]
async fn a_card_tells_where_a_store_stands() {
    let page = Page::open().await;
    let cookie = page.log_in(OPERATOR).await;
    let id = page.register("evil-corp", 2).await;
    page.stream(id).await;
    let text = page
        .until(&cookie, &format!("/moves/{id}"), "streaming")
        .await;
    for said in [
        "2 of 2 copied",
        "1,200",
        "4.0 KiB",
        "1m 0s",
        "7 applied",
        "0 B, 0s",
        "2.0 KiB",
        "us1 databases[0]",
        "ready for the cut-over",
        "href=\"https://temporal.example/namespaces/monarch/workflows/org-move-evil-corp/the-run/history\"",
        "aria-current=\"step\"",
        "registered",
    ] {
        assert!(text.contains(said), "{said:?} is not on the page:\n{text}");
    }
    let (_, text) = page.get(&cookie, &format!("/moves/{id}/stores/1")).await;
    assert!(
        text.contains("a_slot") && text.contains("parent_id"),
        "{text}"
    );
    assert_eq!(
        page.get(&cookie, &format!("/moves/{id}/stores/2")).await.0,
        404
    );
}

/// Nobody should have to compute ages at three in the morning.
#[tokio::test]
async fn a_mover_that_is_silent_is_marked_in_words() {
    let page = Page::open().await;
    let cookie = page.log_in(OPERATOR).await;
    let id = page.register("evil-corp", 2).await;
    page.stream(id).await;
    let address = format!("/moves/{id}");
    page.execute(
        "update monarch_ledger.move_unit set heartbeat_at = now() - interval '60 s'
          where store = 'store000'",
    )
    .await;
    let text = page
        .until(&cookie, &address, "mover dead, silent for 1m")
        .await;
    assert!(text.contains("Movers that are not heard of"), "{text}");
    assert!(
        text.contains("its mover is stale"),
        "the cut-over is not refused:\n{text}"
    );
    page.execute(
        "update monarch_ledger.move_unit set heartbeat_at = now() - interval '17 s'
          where store = 'store001'",
    )
    .await;
    page.until(&cookie, &address, "mover stale, silent for")
        .await;
}

#[tokio::test]
async fn an_error_is_told_in_three_parts() {
    let page = Page::open().await;
    let cookie = page.log_in(OPERATOR).await;
    let id = page.register("evil-corp", 2).await;
    page.stream(id).await;
    page.execute(
        "update monarch_ledger.move_unit set last_error_code = 'cell', error_count = 3,
                last_error = 'a cell''s database: connect', last_error_at = now()
          where store = 'store001'",
    )
    .await;
    let text = page
        .until(&cookie, &format!("/moves/{id}"), "What happened")
        .await;
    for said in [
        "connect",
        "3 errors",
        "yes, until it succeeds",
        "see whether the store",
    ] {
        assert!(text.contains(said), "{said:?} is not on the page:\n{text}");
    }
}

/// The page says the same of a move whose workflow is gone as `monarch move status` does.
#[tokio::test]
async fn a_move_that_nobody_drives_says_so_and_what_to_do() {
    let page = Page::open().await;
    let cookie = page.log_in(OPERATOR).await;
    let id = page.register("evil-corp", 2).await;
    page.stream(id).await;
    *page.temporal.driver.lock().unwrap() = Driver::Gone("nobody drives it".to_owned());
    let text = page
        .until(&cookie, &format!("/moves/{id}"), "nobody drives it")
        .await;
    assert!(text.contains("monarch move adopt"), "{text}");
    *page.temporal.driver.lock().unwrap() = Driver::Silent("no worker answers".to_owned());
    let text = page
        .until(&cookie, &format!("/moves/{id}"), "From the ledger alone")
        .await;
    assert!(text.contains("no worker answers"), "{text}");
}

/// Without a script the page says the same, and is read again by the browser itself.
#[tokio::test]
async fn the_page_needs_no_script() {
    let page = Page::open().await;
    let cookie = page.log_in(OPERATOR).await;
    let (_, text) = page.get(&cookie, "/").await;
    assert!(
        text.contains("<noscript><meta http-equiv=\"refresh\""),
        "{text}"
    );
}
