//! What applications test with.

use std::sync::Arc;

use monarch_outbox::testing::{OutboxRunnerError, Side, SiloGuard, outbox_runner};
use monarch_outbox::{
    BoxError, Cell, CellOutbox, Control, Delivery, Drain, Receiver, Receivers, ServerError, Table,
    WriteError, find,
};

use crate::fixture::{Category, Db, Log, registry};
use crate::replicated::{Calls, Member, Setting, database, member, members};

/// The runner delivers what its work led to, on both sides, also what is on backoff.
#[tokio::test]
async fn the_runner_leaves_nothing_on_either_side() {
    let mut db = database().await;
    let calls = Arc::new(Calls::default());
    let cell = members(&calls);
    let log = Log::<Control>::new();
    let control = log.drain();
    let (mut one, mut two) = (db.connect().await, db.connect().await);
    let work = async {
        let mut ada = member(1, "a");
        let created = cell
            .atomic_without_flush(&mut db.client, async |outbox| outbox.create(&mut ada).await)
            .await;
        let ((), _later) = created.unwrap();
        db.run("update sentry_regionoutbox set scheduled_for = now() + interval '30 minutes'")
            .await;
        db.write_control(&[("de", Category::UserUpdate, 1, 1)])
            .await;
        ada.id
    };
    let (mut cell_side, mut control_side) =
        (Side::new(&cell, &mut one), Side::new(&control, &mut two));
    let id = outbox_runner(&mut [&mut cell_side, &mut control_side], work)
        .await
        .unwrap();
    assert_eq!(
        (id, calls.lock().unwrap().len(), log.objects()),
        (1, 1, vec![1])
    );
}

/// Writes a message again for each that it gets.
struct Forever;

impl Receiver<Cell> for Forever {
    fn receive<'a>(
        &'a self,
        delivery: &'a Delivery<'a, Cell>,
    ) -> futures::future::BoxFuture<'a, Result<(), BoxError>> {
        Box::pin(async move {
            let object = delivery.message().object_identifier;
            delivery
                .write_all(&[CellOutbox::new(Category::Member, 1, object + 1)])
                .await
        })
    }
}

/// Receivers that keep each other busy are found out.
#[tokio::test]
async fn the_runner_gives_up_after_ten_rounds() {
    let mut db = Db::new().await;
    db.write(&[(Category::Member, 1, 1)]).await;
    let receivers = Receivers::new().with(Category::Member, Forever);
    let drain = Drain::new(Table::default(), registry(), receivers).unwrap();
    let mut side = Side::new(&drain, &mut db.client);
    let error = outbox_runner(&mut [&mut side], async {}).await.unwrap_err();
    assert!(matches!(error, OutboxRunnerError::OutboxRecursionLimit));
    assert_eq!(
        error.to_string(),
        "after 10 rounds the outboxes are not empty"
    );
}

/// A receiver's failure is the test's failure, with its cause.
#[tokio::test]
async fn the_runner_passes_a_failure_on() {
    let mut db = Db::new().await;
    db.write(&[(Category::Unheard, 1, 1)]).await;
    let drain = Log::<Cell>::new().drain();
    let mut side = Side::new(&drain, &mut db.client);
    let error = outbox_runner(&mut [&mut side], async {}).await.unwrap_err();
    let OutboxRunnerError::OutboxFlush(cause) = error else {
        panic!("{error}")
    };
    assert!(
        cause
            .to_string()
            .ends_with("its category has no receiver here")
    );
}

/// In a test with one database for both sides, the other side's tables are out of reach.
#[tokio::test]
async fn a_query_of_the_wrong_silo_is_an_error() {
    let mut db = database().await;
    let guard = SiloGuard::default()
        .model::<Member>()
        .model::<Setting>()
        .table::<Cell>("sentry_regionoutbox")
        .table::<Control>("sentry_controloutbox");
    guard.install(&db.client).await.unwrap();
    guard.enter::<Cell>(&db.client).await.unwrap();
    assert_eq!(find::<Member>(&db.client, 1).await.unwrap(), None);
    let wrong: ServerError = find::<Setting>(&db.client, 1).await.unwrap_err();
    assert_eq!(wrong.code().map(|code| code.code()), Some("42501"));
    let drain = members(&Arc::default());
    let mut ada = member(1, "a");
    let created = drain.atomic(&mut db.client, async |outbox| outbox.create(&mut ada).await);
    created.await.unwrap().flushed.unwrap();
    guard.leave(&db.client).await.unwrap();
    guard.enter::<Control>(&db.client).await.unwrap();
    assert_eq!(find::<Setting>(&db.client, 1).await.unwrap(), None);
    let refused = drain
        .atomic(&mut db.client, async |outbox| {
            outbox.write(&CellOutbox::new(Category::Member, 1, 1)).await
        })
        .await
        .unwrap_err();
    let monarch_outbox::AtomicError::Work(WriteError::Server { source, .. }) = refused else {
        panic!("{refused}")
    };
    assert_eq!(source.to_string(), "SQLSTATE 42501");
    guard.leave(&db.client).await.unwrap();
}
