//! A page that goes on by itself, whatever goes away meanwhile.

use futures::StreamExt as _;
use monarch_dashboard::Driver;
use monarch_harness::{Cluster, ClusterOptions, PgVersion};
use monarch_model::MoveId;
use reqwest::header;

use crate::fixture::{OPERATOR, Page, Setting};

/// A browser that listens to a page.
struct Listener {
    stream: std::pin::Pin<Box<dyn futures::Stream<Item = reqwest::Result<Vec<u8>>> + Send>>,
    heard: String,
}

impl Listener {
    async fn of(page: &Page, cookie: &str, id: MoveId) -> Self {
        let asked = page.browser.get(page.url(&format!("/moves/{id}/live")));
        let answer = asked.header(header::COOKIE, cookie).send().await.unwrap();
        assert_eq!(answer.status(), 200);
        assert_eq!(answer.headers()[header::CONTENT_TYPE], "text/event-stream");
        let stream = answer
            .bytes_stream()
            .map(|bytes| bytes.map(|bytes| bytes.to_vec()));
        Self {
            stream: Box::pin(stream),
            heard: String::new(),
        }
    }

    /// Listens until this was said, and forgets what came before.
    async fn until(&mut self, says: &str) -> String {
        loop {
            if let Some(at) = self.heard.find(says) {
                let rest = self.heard.split_off(at + says.len());
                return std::mem::replace(&mut self.heard, rest);
            }
            let bytes = self.stream.next().await.expect("the stream ended").unwrap();
            self.heard.push_str(&String::from_utf8_lossy(&bytes));
        }
    }

    async fn ends(mut self) {
        while let Some(bytes) = self.stream.next().await {
            if bytes.is_err() {
                return;
            }
        }
    }
}

#[tokio::test]
async fn what_changes_comes_by_itself_to_its_end() {
    let page = Page::open().await;
    let cookie = page.log_in(OPERATOR).await;
    let id = page.register("evil-corp", 2).await;
    let mut listener = Listener::of(&page, &cookie, id).await;
    let first = listener.until("pending").await;
    assert!(first.contains("event: part"), "{first}");
    page.stream(id).await;
    listener.until("ready for the cut-over").await;
    page.execute("update monarch_ledger.move set phase = 'aborted', ended_at = now()")
        .await;
    listener.until("The move is aborted").await;
    listener.until("event: end").await;
    listener.ends().await;
}

/// Who logs out, or whose session ends, hears nothing more.
#[tokio::test]
async fn a_session_that_ended_hears_nothing_more() {
    let page = Page::open().await;
    let cookie = page.log_in(OPERATOR).await;
    let id = page.register("evil-corp", 2).await;
    let mut listener = Listener::of(&page, &cookie, id).await;
    listener.until("pending").await;
    page.post(&cookie, "/logout", &[]).await;
    listener.until("event: expired").await;
    listener.ends().await;
}

/// The ledger's server is stopped and started again under a page that is open.
#[tokio::test]
async fn a_ledger_that_is_away_is_told_and_found_again() {
    let cluster = Cluster::start(ClusterOptions::new(PgVersion::V17))
        .await
        .unwrap();
    let page = Page::on(&cluster, Setting::default()).await;
    let cookie = page.log_in(OPERATOR).await;
    let id = page.register("evil-corp", 2).await;
    page.stream(id).await;
    // What the stand-in says comes by way of the follower, which has seen the move then.
    *page.temporal.driver.lock().unwrap() = Driver::Silent("no worker answers".to_owned());
    let mut listener = Listener::of(&page, &cookie, id).await;
    listener.until("no worker answers").await;
    cluster.stop().await.unwrap();
    let banner = listener.until("It is asked again every second").await;
    assert!(
        banner.contains("The ledger is not reachable since"),
        "{banner}"
    );
    let (status, text) = page.get(&cookie, &format!("/moves/{id}")).await;
    assert_eq!(
        (status, text.contains("streaming")),
        (200, true),
        "what was seen last is gone"
    );
    assert_eq!(page.get(&cookie, "/").await.0, 200);
    cluster.restart().await.unwrap();
    listener.until("The ledger is reachable").await;
    page.until(&cookie, "/", "evil-corp").await;
}

/// A deploy of the dashboard does not wait for those who watch.
#[tokio::test]
async fn told_to_stop_it_ends_every_stream() {
    let page = Page::open().await;
    let cookie = page.log_in(OPERATOR).await;
    let id = page.register("evil-corp", 2).await;
    let mut listener = Listener::of(&page, &cookie, id).await;
    listener.until("pending").await;
    page.stop.cancel();
    listener.ends().await;
    page.served.await.unwrap();
}
