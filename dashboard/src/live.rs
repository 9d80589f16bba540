//! A page's parts as they change, by server-sent events.
//!
//! Each event is a fragment of HTML with an id, which the script puts in the place of the element of
//! that id. A part is sent when it is not what this reader was sent last, so that who comes back
//! after a break gets all of them, and a quiet move costs nothing.

use std::collections::HashMap;
use std::convert::Infallible;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::time::Duration;

use axum::response::sse::{Event, KeepAlive, Sse};
use futures::{Stream, StreamExt as _, stream};
use tokio::sync::watch;

use crate::follower::Seen;
use crate::guard::Identity;
use crate::site::Site;

/// A line to keep the connection open.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Parts of a page: an id and the element that has it.
pub(crate) type Parts = Vec<(String, String)>;

/// What a page is made of at a time, and whether more may follow.
pub(crate) struct Rendered {
    pub(crate) parts: Parts,
    /// How long to wait before the next: a page of many stores changes less often than every second.
    pub(crate) pause: Duration,
    pub(crate) is_last: bool,
}

/// Renders a page's parts anew; none to leave the reader with what they have.
pub(crate) type Render =
    Box<dyn Fn(Seen) -> futures::future::BoxFuture<'static, Option<Rendered>> + Send>;

struct Reader {
    site: Arc<Site>,
    who: Identity,
    news: watch::Receiver<Seen>,
    render: Render,
    sent: HashMap<String, u64>,
    pause: Duration,
    is_over: bool,
}

/// A stream of what changes on a page.
pub(crate) fn events(
    site: Arc<Site>,
    who: Identity,
    render: Render,
) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let mut news = site.news.subscribe();
    news.mark_changed();
    let reader = Reader {
        site,
        who,
        news,
        render,
        sent: HashMap::new(),
        pause: Duration::ZERO,
        is_over: false,
    };
    let batches = stream::unfold(reader, async |mut reader| {
        let batch = reader.next().await?;
        Some((stream::iter(batch).map(Ok), reader))
    });
    Sse::new(batches.flatten()).keep_alive(KeepAlive::new().interval(KEEP_ALIVE))
}

impl Reader {
    /// The next events; none when the stream is over.
    async fn next(&mut self) -> Option<Vec<Event>> {
        if self.is_over {
            return None;
        }
        let stop = self.site.stop.clone();
        tokio::select! {
            () = stop.cancelled() => return None,
            () = tokio::time::sleep(self.pause) => {}
        }
        tokio::select! {
            () = stop.cancelled() => return None,
            changed = self.news.changed() => changed.ok()?,
        }
        let seen = self.news.borrow_and_update().clone();
        if !self.who.is_still(&self.site) {
            self.is_over = true;
            return Some(vec![Event::default().event("expired").data("")]);
        }
        let Some(rendered) = (self.render)(seen).await else {
            return Some(Vec::new());
        };
        self.pause = rendered.pause;
        let parts = rendered.parts.into_iter();
        let mut events: Vec<Event> = parts
            .filter(|(id, html)| self.is_news(id, html))
            .map(|(_, html)| Event::default().event("part").data(html))
            .collect();
        if rendered.is_last {
            self.is_over = true;
            events.push(Event::default().event("end").data(""));
        }
        Some(events)
    }

    fn is_news(&mut self, id: &str, html: &str) -> bool {
        let mut hasher = DefaultHasher::new();
        html.hash(&mut hasher);
        let hash = hasher.finish();
        self.sent.insert(id.to_owned(), hash) != Some(hash)
    }
}
