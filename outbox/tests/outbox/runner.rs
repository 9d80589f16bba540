//! The schedule: partitions, workers, stopping.

use std::sync::Arc;

use monarch_outbox::runner::{Connect, Schedule, run, tick};
use monarch_outbox::{Backfills, BoxError, Cell, CellOutbox};
use tokio_util::sync::CancellationToken;

use crate::fixture::{Category, Db, Log, connect};

/// New connections.
struct New(String);

/// A connection that is closed when it is dropped.
struct Owned(tokio_postgres::Client);

impl std::ops::Deref for Owned {
    type Target = tokio_postgres::Client;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl std::ops::DerefMut for Owned {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

impl Connect for New {
    type Connection = Owned;

    async fn connect(&self) -> Result<Owned, BoxError> {
        Ok(Owned(connect(&self.0).await))
    }
}

/// One tick delivers every shard once, however many partitions it has messages in.
#[tokio::test]
async fn a_tick_drains_every_partition() {
    let mut db = Db::new().await;
    let messages: Vec<_> = (0..500).map(|n| (Category::Member, n % 50, n)).collect();
    db.write(&messages).await;
    let log = Log::<Cell>::new();
    let schedule = Schedule::default();
    let connect = New(db.dsn.clone());
    let report = tick(&log.drain(), &connect, &schedule).await.unwrap();
    assert_eq!((report.delivered, report.shards), (500, 50));
    assert_eq!(db.queued().await, 0);
    assert_eq!(
        tick(&log.drain(), &connect, &schedule)
            .await
            .unwrap()
            .delivered,
        0
    );
}

/// The runner delivers what is written while it runs, and ends when it is told to.
#[tokio::test]
async fn the_runner_goes_on_until_it_is_told_to_stop() {
    let mut db = Db::new().await;
    let log = Log::<Cell>::new();
    let stop = CancellationToken::new();
    let drain = Arc::new(log.drain().stop_on(stop.clone()));
    let schedule = Schedule {
        interval: std::time::Duration::from_millis(10),
        ..Schedule::default()
    };
    let running = tokio::spawn(run(
        Arc::clone(&drain),
        Backfills::default(),
        New(db.dsn.clone()),
        schedule,
    ));
    for object in 0..3 {
        let written = drain
            .atomic_without_flush(&mut db.client, async |outbox| {
                outbox
                    .write(&CellOutbox::new(Category::Member, 1, object))
                    .await
            })
            .await;
        let ((), _later) = written.unwrap();
        while log.objects().len() <= usize::try_from(object).unwrap() {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    }
    stop.cancel();
    running.await.unwrap();
    assert_eq!(log.objects(), [0, 1, 2]);
}
