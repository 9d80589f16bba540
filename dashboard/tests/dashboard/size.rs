//! A large fleet: what is sent must not grow with anything but its stores.

use crate::fixture::{OPERATOR, Page, Setting};

/// 200 stores of ten tables, as in a schema of 2,000 tables; and one store of 2,000, each the child
/// of the one before.
#[tokio::test]
async fn a_large_fleet_has_a_page_that_a_phone_can_load() {
    let page = Page::with(Setting {
        stores: 200,
        tables: 10,
        ..Setting::default()
    })
    .await;
    let cookie = page.log_in(OPERATOR).await;
    let id = page.register("evil-corp", 200).await;
    page.stream(id).await;
    let text = page
        .until(&cookie, &format!("/moves/{id}"), "200 of 200")
        .await;
    assert_eq!(text.matches("<article").count(), 200);
    assert!(text.len() < 600_000, "{} bytes", text.len());

    let deep = Page::with(Setting {
        stores: 1,
        tables: 2_000,
        ..Setting::default()
    })
    .await;
    let cookie = deep.log_in(OPERATOR).await;
    let id = deep.register("evil-corp", 1).await;
    deep.stream(id).await;
    let text = deep
        .until(&cookie, &format!("/moves/{id}"), "streaming")
        .await;
    assert!(text.len() < 30_000, "{} bytes", text.len());
    let (_, text) = deep.get(&cookie, &format!("/moves/{id}/stores/0")).await;
    assert!(text.contains("2001 tables"), "not all tables are there");
    assert!(text.len() < 600_000, "{} bytes", text.len());
}
