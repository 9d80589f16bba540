//! What is counted, under the names that Sentry's outboxes count by.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use monarch_outbox::{Backfills, Cell, CellOutbox, FixedOptions};

use crate::fixture::{Category, Db, Log};
use crate::replicated::{Member, database, members};

/// Remembers the names that were asked for.
#[derive(Default, Clone)]
struct Names(Arc<Mutex<BTreeSet<String>>>);

impl Names {
    fn add(&self, key: &Key) {
        self.0.lock().unwrap().insert(key.name().to_owned());
    }
}

impl Recorder for Names {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        self.add(key);
        Counter::noop()
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        self.add(key);
        Gauge::noop()
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        self.add(key);
        Histogram::noop()
    }
}

/// Dashboards that know Sentry's names go on to work.
#[tokio::test]
async fn a_delivery_is_counted_under_sentrys_names() {
    let mut db = Db::new().await;
    let drain = Log::<Cell>::new().drain();
    let names = Names::default();
    let recording = metrics::set_default_local_recorder(&names);
    let work = drain.atomic(&mut db.client, async |outbox| {
        outbox.write(&CellOutbox::new(Category::Member, 1, 1)).await
    });
    work.await.unwrap().flushed.unwrap();
    drain.gauge(&db.client).await.unwrap();
    drop(recording);
    let names = names.0.lock().unwrap().clone();
    let expected = [
        "deliver_from_outbox.maximum_shard_depth",
        "deliver_from_outbox.queued_batch_size",
        "deliver_from_outbox.total_outbox_count",
        "outbox.coalesced_net_processing_time",
        "outbox.coalesced_net_queue_time",
        "outbox.processed",
        "outbox.processing_lag",
        "outbox.saved",
        "outbox.send_signal.duration",
    ];
    assert_eq!(names, expected.map(str::to_owned).into());
}

/// The same of a backfill.
#[tokio::test]
async fn a_backfill_is_counted_under_sentrys_names() {
    let mut db = database().await;
    db.run("insert into sentry_organizationmember (organization_id) values (1)")
        .await;
    let backfills = Backfills::default().model::<Member>();
    backfills.create(&db.client).await.unwrap();
    let version = "outbox_replication.sentry_organizationmember.replication_version";
    let drain = members(&Arc::default()).options(FixedOptions::default().set(version, 2));
    let names = Names::default();
    let recording = metrics::set_default_local_recorder(&names);
    let done = backfills.minute(&drain, &mut db.client, 10).await.unwrap();
    drop(recording);
    assert_eq!(done.total(), 1);
    let names = names.0.lock().unwrap().clone();
    let expected = [
        "backfill_outboxes.backfilled",
        "backfill_outboxes.low_bound",
        "outbox.saved",
    ];
    assert_eq!(names, expected.map(str::to_owned).into());
}
