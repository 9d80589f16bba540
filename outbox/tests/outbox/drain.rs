//! Draining: order, coalescing, failure, and drains beside each other.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use monarch_outbox::{
    BoxError, Cell, CellName, Control, Delivery, Drain, DrainError, DrainSettings, FixedOptions,
    Message, OptionTable, Partition, Receiver, Receivers, Shard, Table, Undelivered,
};
use serde_json::json;

use crate::fixture::{Category, Db, Log, Scope, registry};

/// The order of a shard is that of the ids; each category goes to its receiver.
#[tokio::test]
async fn messages_of_a_shard_are_delivered_in_order() {
    let mut db = Db::new().await;
    let messages: Vec<_> = (0..250).map(|n| (Category::Member, 1, n)).collect();
    db.write(&messages).await;
    let log = Log::<Cell>::new();
    let report = log
        .drain()
        .partition(&mut db.client, Partition::ALL)
        .await
        .unwrap();
    assert_eq!(log.objects(), (0..250).collect::<Vec<_>>());
    assert_eq!(
        (report.delivered, report.coalesced, report.shards),
        (250, 0, 1)
    );
    assert_eq!(db.queued().await, 0);
}

/// Only the newest of equal messages is handled, with its own payload, and all of them go.
#[tokio::test]
async fn equal_messages_are_coalesced_into_the_newest() {
    let mut db = Db::new().await;
    db.run(
        "insert into sentry_regionoutbox (shard_scope, shard_identifier, category, \
         object_identifier, payload) \
         select 0, 1, 3, n % 3, jsonb_build_object('n', n) from generate_series(1, 3000) n",
    )
    .await;
    let log = Log::<Cell>::new();
    let report = log
        .drain()
        .partition(&mut db.client, Partition::ALL)
        .await
        .unwrap();
    assert_eq!(log.objects(), [1, 2, 0]);
    let payloads: Vec<_> = log
        .messages()
        .into_iter()
        .map(|m| m.payload.unwrap())
        .collect();
    assert_eq!(
        payloads,
        [json!({"n": 2998}), json!({"n": 2999}), json!({"n": 3000})]
    );
    assert_eq!((report.delivered, report.coalesced), (3, 2997));
    assert_eq!(db.queued().await, 0);
}

/// Scope, shard, category, object and, for control, cell: where one differs, nothing is coalesced.
#[tokio::test]
async fn messages_that_differ_are_not_coalesced() {
    let mut db = Db::new().await;
    db.write_control(&[
        ("de", Category::Member, 1, 1),
        ("us", Category::Member, 1, 1),
        ("de", Category::OrganizationUpdate, 1, 1),
        ("de", Category::Member, 2, 1),
        ("de", Category::Member, 1, 2),
        ("de", Category::UserUpdate, 1, 1),
    ])
    .await;
    let log = Log::<Control>::new();
    let report = log
        .drain()
        .partition(&mut db.client, Partition::ALL)
        .await
        .unwrap();
    assert_eq!(
        (report.delivered, report.coalesced, report.shards),
        (6, 0, 4)
    );
    let us = log
        .messages()
        .into_iter()
        .find(|m| m.cell_name().as_str() == "us")
        .unwrap();
    assert_eq!(us.category, Category::Member.def());
}

/// A lower id that commits while the newest is being handled was not seen, and is delivered.
#[tokio::test]
async fn an_id_that_commits_late_is_delivered() {
    let mut db = Db::new().await;
    let mut late = db.connect().await;
    let transaction = late.transaction().await.unwrap();
    let insert = "insert into sentry_regionoutbox (shard_scope, shard_identifier, category, \
         object_identifier, payload) values (0, 1, 3, 7, '\"late\"')";
    transaction.batch_execute(insert).await.unwrap();
    db.write(&[(Category::Member, 1, 7)]).await;
    let log = Log::<Cell>::new();
    let gate = Gate::default();
    let drain = gate.drain(&log);
    let commit = async {
        gate.entered.notified().await;
        transaction.commit().await.unwrap();
        gate.open();
    };
    let (report, ()) = tokio::join!(drain.partition(&mut db.client, Partition::ALL), commit);
    assert_eq!(report.unwrap().delivered, 2);
    let payloads: Vec<_> = log.messages().into_iter().map(|m| m.payload).collect();
    assert_eq!(payloads, [None, Some(json!("late"))]);
    assert_eq!(db.queued().await, 0);
}

/// A receiver that waits to be let on.
#[derive(Clone)]
struct Gate {
    entered: Arc<tokio::sync::Notify>,
    opened: Arc<tokio::sync::Semaphore>,
}

impl Default for Gate {
    fn default() -> Self {
        Self {
            entered: Arc::default(),
            opened: Arc::new(tokio::sync::Semaphore::new(0)),
        }
    }
}

impl Gate {
    fn open(&self) {
        self.opened.close();
    }

    fn drain(&self, log: &Log<Cell>) -> Drain<Cell> {
        let (gate, log) = (self.clone(), log.clone());
        let receivers = Receivers::<Cell>::new().on(Category::Member, move |message| {
            let (gate, log) = (gate.clone(), log.clone());
            async move {
                log.push(message);
                gate.entered.notify_one();
                // Open is closed: nobody waits any more.
                let _ = gate.opened.acquire().await;
                Ok::<(), BoxError>(())
            }
        });
        Drain::new(Table::default(), registry(), receivers).unwrap()
    }
}

/// A scheduled drain gives way to one that is at work, even when a lower id that commits late has
/// become a head that nobody has locked; a flush waits its turn.
#[tokio::test]
async fn a_shard_is_never_processed_twice_at_a_time() {
    let mut db = Db::new().await;
    let mut late = db.connect().await;
    let transaction = late.transaction().await.unwrap();
    let insert = "insert into sentry_regionoutbox (shard_scope, shard_identifier, category, \
         object_identifier) values (0, 1, 3, 1)";
    transaction.batch_execute(insert).await.unwrap();
    db.write(&[(Category::Member, 1, 2)]).await;
    let log = Log::<Cell>::new();
    let gate = Gate::default();
    let drain = gate.drain(&log);
    let mut second = db.connect().await;
    let mut third = db.connect().await;
    let meanwhile = async {
        gate.entered.notified().await;
        transaction.commit().await.unwrap();
        let report = drain.partition(&mut second, Partition::ALL).await.unwrap();
        assert_eq!((report.busy, report.delivered), (1, 0));
        assert_eq!(log.objects(), [2]);
        let waiting = drain.atomic(&mut third, async |outbox| {
            let message = monarch_outbox::CellOutbox::new(Category::Member, 1, 3);
            outbox.write(&message).await
        });
        let opening = async {
            waits_for_a_lock(&db).await;
            assert_eq!(log.objects(), [2]);
            gate.open();
        };
        let (committed, ()) = tokio::join!(waiting, opening);
        committed.unwrap().flushed.unwrap();
    };
    let mut first = db.connect().await;
    let (report, ()) = tokio::join!(drain.partition(&mut first, Partition::ALL), meanwhile);
    report.unwrap();
    let mut objects = log.objects();
    objects.sort_unstable();
    assert_eq!(objects, [1, 2, 3]);
    assert_eq!(db.queued().await, 0);
}

/// Until a session of this database waits for an advisory lock.
async fn waits_for_a_lock(db: &Db) {
    let waiting = "select count(*) from pg_locks where locktype = 'advisory' and not granted \
         and database = (select oid from pg_database where datname = current_database())";
    while db.number(waiting).await == 0 {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}

/// Many drains of every kind at once: each message once, the messages of a shard never side by side.
#[tokio::test]
async fn drains_beside_each_other_share_the_work() {
    let mut db = Db::new().await;
    let messages: Vec<_> = (0..2_000).map(|n| (Category::Member, n % 8, n)).collect();
    db.write(&messages).await;
    let log = Log::<Cell>::new();
    let inside: Arc<Vec<AtomicBool>> = Arc::new((0..8).map(|_| AtomicBool::new(false)).collect());
    let overlaps = Arc::new(AtomicU64::new(0));
    let receivers = {
        let (log, inside, overlaps) = (log.clone(), Arc::clone(&inside), Arc::clone(&overlaps));
        Receivers::<Cell>::new().on(Category::Member, move |message| {
            let (log, inside, overlaps) = (log.clone(), Arc::clone(&inside), Arc::clone(&overlaps));
            async move {
                let shard = usize::try_from(message.shard_identifier()).unwrap();
                if inside[shard].swap(true, Ordering::SeqCst) {
                    overlaps.fetch_add(1, Ordering::SeqCst);
                }
                tokio::task::yield_now().await;
                log.push(message);
                inside[shard].store(false, Ordering::SeqCst);
                Ok::<(), BoxError>(())
            }
        })
    };
    let drain = Arc::new(Drain::new(Table::default(), registry(), receivers).unwrap());
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..6 {
        let (drain, mut client) = (Arc::clone(&drain), db.connect().await);
        tasks.spawn(async move {
            if n % 2 == 0 {
                drain.partition(&mut client, Partition::ALL).await.unwrap();
            } else {
                for shard in 0..8 {
                    let shard = Shard::cell(Scope::Organization, shard);
                    match drain.shard(&mut client, &shard).await {
                        Ok(_) | Err(DrainError::NoSuchShard { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            }
        });
    }
    tasks.join_all().await;
    assert_eq!(overlaps.load(Ordering::SeqCst), 0);
    let mut objects = log.objects();
    objects.sort_unstable();
    assert_eq!(objects, (0..2_000).collect::<Vec<_>>());
    assert_eq!(db.queued().await, 0);
}

/// A failing drain, and the switch that heals it.
fn failing(log: &Log<Cell>, broken: &Arc<AtomicBool>) -> Drain<Cell> {
    let (log, broken) = (log.clone(), Arc::clone(broken));
    let receivers = Receivers::<Cell>::new().on(Category::Member, move |message| {
        let (log, broken) = (log.clone(), Arc::clone(&broken));
        async move {
            if message.object_identifier == 13 && broken.load(Ordering::SeqCst) {
                return Err("the other side is down");
            }
            log.push(message);
            Ok(())
        }
    });
    Drain::new(Table::default(), registry(), receivers).unwrap()
}

/// What came before the failure is done with, what comes after it waits; other shards do not.
#[tokio::test]
async fn a_failure_holds_up_its_shard_and_no_other() {
    let mut db = Db::new().await;
    db.write(&[(1, 12), (1, 13), (1, 14), (2, 15), (0, 16)].map(|(s, o)| (Category::Member, s, o)))
        .await;
    let log = Log::<Cell>::new();
    let broken = Arc::new(AtomicBool::new(true));
    let drain = failing(&log, &broken);
    let report = drain
        .partition(&mut db.client, Partition::ALL)
        .await
        .unwrap();
    assert_eq!((report.delivered, report.failed, report.shards), (3, 1, 3));
    assert_eq!(
        report.errors[0].to_string(),
        "outbox of category Member (3), scope Organization (0), shard 1, object 13: its receiver \
         failed"
    );
    assert_eq!(log.objects(), [12, 15, 16]);
    let put_off = "select count(*) from sentry_regionoutbox where scheduled_for > now()";
    assert_eq!((db.queued().await, db.number(put_off).await), (2, 2));
    // Not before its time.
    let report = drain
        .partition(&mut db.client, Partition::ALL)
        .await
        .unwrap();
    assert_eq!((report.delivered, report.failed), (0, 0));
    // A new message does not wake the shard: its head decides.
    db.write(&[(Category::Member, 1, 17)]).await;
    let report = drain
        .partition(&mut db.client, Partition::ALL)
        .await
        .unwrap();
    assert_eq!((report.delivered, report.failed), (0, 0));
    broken.store(false, Ordering::SeqCst);
    db.wait_out_backoffs().await;
    drain
        .partition(&mut db.client, Partition::ALL)
        .await
        .unwrap();
    assert_eq!(log.objects(), [12, 15, 16, 13, 14, 17]);
}

/// The delays of a shard that goes on failing: doubled from the last one, at most an hour.
#[tokio::test]
async fn the_delay_doubles_from_a_second_to_an_hour() {
    let mut db = Db::new().await;
    db.write(&[(Category::Member, 1, 13), (Category::Member, 1, 14)])
        .await;
    let drain = failing(&Log::new(), &Arc::new(AtomicBool::new(true)));
    let mut delays = Vec::new();
    for _ in 0..14 {
        let report = drain
            .partition(&mut db.client, Partition::ALL)
            .await
            .unwrap();
        assert_eq!(report.failed, 1);
        let delay = "select extract(epoch from min(scheduled_for - scheduled_from))::int8 \
             from sentry_regionoutbox having min(scheduled_for - scheduled_from) \
             = max(scheduled_for - scheduled_from)";
        delays.push(db.number(delay).await);
        db.wait_out_backoffs().await;
    }
    assert_eq!(
        delays,
        [
            2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 3600, 3600, 3600
        ]
    );
}

/// A burst of commits does not put a failing shard off by hours: within a delay they change nothing.
#[tokio::test]
async fn commits_into_a_failing_shard_do_not_add_up() {
    let mut db = Db::new().await;
    let drain = failing(&Log::new(), &Arc::new(AtomicBool::new(true)));
    for object in [13, 14, 15] {
        let committed = drain
            .atomic(&mut db.client, async |outbox| {
                let message = monarch_outbox::CellOutbox::new(Category::Member, 1, object);
                outbox.write(&message).await
            })
            .await
            .unwrap();
        assert_eq!(committed.flushed.unwrap().failed, 1);
    }
    let head = "select extract(epoch from scheduled_for - scheduled_from)::int8 \
         from sentry_regionoutbox order by id limit 1";
    assert_eq!((db.queued().await, db.number(head).await), (3, 2));
}

/// A shard whose drain is gone waits like one that failed: its head was put off before.
#[tokio::test]
async fn a_drain_that_is_dropped_in_a_receiver_leaves_its_shard_put_off() {
    let mut db = Db::new().await;
    db.write(&[(Category::Member, 2, 1), (Category::Member, 2, 2)])
        .await;
    let log = Log::new();
    let gate = Gate::default();
    let drain = gate.drain(&log);
    let mut dropped = db.connect().await;
    tokio::select! {
        _ = drain.partition(&mut dropped, Partition::ALL) => panic!("the gate is shut"),
        () = gate.entered.notified() => {}
    }
    drop(dropped);
    let report = log
        .drain()
        .partition(&mut db.client, Partition::ALL)
        .await
        .unwrap();
    assert_eq!((report.delivered, report.shards), (0, 0));
    db.wait_out_backoffs().await;
    log.drain()
        .partition(&mut db.client, Partition::ALL)
        .await
        .unwrap();
    assert_eq!(log.objects(), [1, 1, 2]);
}

/// A process that is frozen in a receiver, or cut off from its server, holds its shard no longer than
/// a receiver may take: the server ends its transaction.
#[tokio::test]
async fn a_drain_that_is_frozen_in_a_receiver_loses_its_shard() {
    let mut db = Db::new().await;
    db.write(&[(Category::Member, 1, 1)]).await;
    let (log, gate) = (Log::new(), Gate::default());
    let settings = DrainSettings {
        receiver_timeout: std::time::Duration::from_millis(300),
        idle_timeout: std::time::Duration::from_millis(600),
        ..DrainSettings::default()
    };
    let drain = gate.drain(&log).settings(settings);
    let mut frozen = db.connect().await;
    let mut draining = Box::pin(drain.partition(&mut frozen, Partition::ALL));
    tokio::select! {
        _ = &mut draining => panic!("the gate is shut"),
        () = gate.entered.notified() => {}
    }
    // From here on nobody polls it: it neither goes on nor hears of any timeout of its own.
    let holds = "select count(*) from pg_stat_activity where datname = current_database() \
         and pid <> pg_backend_pid()";
    while db.number(holds).await > 0 {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    db.wait_out_backoffs().await;
    let report = log.drain().partition(&mut db.client, Partition::ALL).await;
    assert_eq!((report.unwrap().delivered, db.queued().await), (1, 0));
    gate.open();
    // Thawed, it has lost its connection and changes nothing.
    draining.await.unwrap_err();
    assert_eq!(log.objects(), [1, 1]);
}

/// What operators switch off stays where it is, until they switch it on.
#[tokio::test]
async fn a_shard_that_is_switched_off_is_left_alone() {
    let mut db = Db::new().await;
    db.write(&[
        (Category::Member, 1, 1),
        (Category::Member, 2, 2),
        (Category::UserUpdate, 1, 3),
    ])
    .await;
    let log = Log::<Cell>::new();
    let off = FixedOptions::default().set(ORGANIZATIONS_OFF, json!([1, 77]));
    let drain = log.drain().options(off);
    let report = drain
        .partition(&mut db.client, Partition::ALL)
        .await
        .unwrap();
    assert_eq!((report.delivered, report.skipped), (2, 1));
    let flush = drain
        .atomic(&mut db.client, async |outbox| {
            outbox
                .write(&monarch_outbox::CellOutbox::new(Category::Member, 1, 1))
                .await
        })
        .await
        .unwrap();
    assert_eq!(flush.flushed.unwrap().skipped, 1);
    assert_eq!(log.objects(), [2, 3]);
    assert_eq!(db.queued().await, 2);
    log.drain()
        .partition(&mut db.client, Partition::ALL)
        .await
        .unwrap();
    assert_eq!(log.objects(), [2, 3, 1]);
}

/// Switches organization 2 off when it is called.
struct SwitchOff(OptionTable);

const ORGANIZATIONS_OFF: &str = "hybrid_cloud.authentication.disabled_organization_shards";

impl Receiver<Cell> for SwitchOff {
    fn receive<'a>(
        &'a self,
        delivery: &'a Delivery<'a, Cell>,
    ) -> futures::future::BoxFuture<'a, Result<(), BoxError>> {
        Box::pin(async move {
            let transaction = delivery.transaction().await?;
            self.0
                .set(transaction, ORGANIZATIONS_OFF, &json!([2]))
                .await?;
            Ok(())
        })
    }
}

/// A switch counts for a tour that is under way: it may be long, and was set for a reason.
#[tokio::test]
async fn a_shard_that_is_switched_off_during_a_tour_is_left_alone() {
    let mut db = Db::new().await;
    let options = OptionTable::default();
    options.create(&db.client).await.unwrap();
    db.write(&[(Category::Member, 1, 1), (Category::Member, 2, 2)])
        .await;
    let receivers = Receivers::new().with(Category::Member, SwitchOff(options.clone()));
    let settings = DrainSettings {
        switches_for: std::time::Duration::ZERO,
        ..DrainSettings::default()
    };
    let drain = Drain::new(Table::default(), registry(), receivers).unwrap();
    let drain = drain.options(options).settings(settings);
    let report = drain.partition(&mut db.client, Partition::ALL).await;
    let report = report.unwrap();
    assert_eq!((report.delivered, report.skipped), (1, 1));
    assert_eq!(db.queued().await, 1);
}

/// Counts the statements that its connection has prepared.
struct CountPrepared(Arc<AtomicU64>);

impl Receiver<Cell> for CountPrepared {
    fn receive<'a>(
        &'a self,
        delivery: &'a Delivery<'a, Cell>,
    ) -> futures::future::BoxFuture<'a, Result<(), BoxError>> {
        Box::pin(async move {
            let transaction = delivery.transaction().await?;
            let count = "select count(*) from pg_prepared_statements";
            let rows = transaction.query_typed(count, &[]).await?;
            let count: i64 = rows[0].get(0);
            self.0.store(count.try_into()?, Ordering::SeqCst);
            Ok(())
        })
    }
}

/// A pooler may hand out another server for the next transaction, which knows no statement of ours.
#[tokio::test]
async fn a_drain_that_must_not_prepare_does_not() {
    let mut db = Db::new().await;
    for prepare in [true, false] {
        db.write(&[(Category::Member, 1, 1)]).await;
        let counted = Arc::new(AtomicU64::new(0));
        let receivers =
            Receivers::new().with(Category::Member, CountPrepared(Arc::clone(&counted)));
        let settings = DrainSettings {
            prepare,
            ..DrainSettings::default()
        };
        let drain = Drain::new(Table::default(), registry(), receivers).unwrap();
        let drain = drain.settings(settings);
        let report = drain.partition(&mut db.client, Partition::ALL).await;
        assert_eq!(report.unwrap().delivered, 1);
        assert_eq!(counted.load(Ordering::SeqCst) > 0, prepare);
    }
}

/// While it is not known what to leave alone, nothing is delivered.
#[tokio::test]
async fn an_option_that_is_not_a_number_stops_the_drain_and_loses_nothing() {
    let mut db = Db::new().await;
    db.write(&[(Category::Member, 1, 1)]).await;
    let key = ORGANIZATIONS_OFF;
    let bad = FixedOptions::default().set(key, json!([1, "secret"]));
    let log = Log::<Cell>::new();
    let refused = log
        .drain()
        .options(bad)
        .partition(&mut db.client, Partition::ALL)
        .await;
    assert_eq!(
        refused.unwrap_err().to_string(),
        format!("the option {key} must be a list of whole numbers, and entry 2 is a text")
    );
    assert_eq!(db.queued().await, 1);
}

/// A shard that is asked for by name and has nothing says so, with names and numbers.
#[tokio::test]
async fn a_shard_that_does_not_exist_is_an_error() {
    let mut db = Db::new().await;
    let none = Shard::control(CellName::new("de").unwrap(), Scope::User, 5);
    let error = Log::<Control>::new()
        .drain()
        .shard(&mut db.client, &none)
        .await;
    assert_eq!(
        error.unwrap_err().to_string(),
        "sentry_controloutbox has no message in scope User (1), shard 5, cell de"
    );
}

/// Rows that cannot be delivered stay, and their errors name the row and not what is in it.
#[tokio::test]
async fn what_cannot_be_delivered_stays_and_is_named() {
    let mut db = Db::empty().await;
    let table = Table::<Cell>::default();
    let text = table.create_sql().replace("payload jsonb", "payload text");
    db.run(&text).await;
    db.run(
        "insert into sentry_regionoutbox (shard_scope, shard_identifier, category, \
         object_identifier, payload) values (0, 1, 3, 1, '{\"token\": \"secret'), \
         (1, 2, 3, 2, null), (0, 3, 99, 3, null), (0, 4, 8, 4, null), (9, 5, 3, 5, null)",
    )
    .await;
    let log = Log::<Cell>::new();
    let report = log
        .drain()
        .partition(&mut db.client, Partition::ALL)
        .await
        .unwrap();
    let errors: Vec<_> = report.errors.iter().map(ToString::to_string).collect();
    let expected = [
        "outbox of category Member (3), scope Organization (0), shard 1, object 1: its payload of \
         17 bytes is not JSON (line 1, column 17)",
        "outbox of category Member (3), scope User (1), shard 2, object 2: its category belongs to \
         scope Organization (0)",
        "outbox of category unknown (99), scope Organization (0), shard 3, object 3: its category \
         is not registered",
        "outbox of category Unheard (8), scope Organization (0), shard 4, object 4: its category \
         has no receiver here",
        "outbox of category Member (3), scope unknown (9), shard 5, object 5: its category belongs \
         to scope Organization (0)",
    ];
    assert_eq!(errors, expected);
    let put_off = "select count(*) from sentry_regionoutbox where scheduled_for > now()";
    assert_eq!((db.queued().await, db.number(put_off).await), (5, 5));
}

/// A program that passes messages on need not know what they mean; what it receives itself must fit.
#[tokio::test]
async fn what_has_no_receiver_of_its_own_can_be_received_otherwise() {
    let mut db = Db::new().await;
    db.write(&[(Category::Member, 1, 1), (Category::Unheard, 1, 2)])
        .await;
    db.run(
        "insert into sentry_regionoutbox (shard_scope, shard_identifier, category, \
         object_identifier) values (77, 4, 99, 3), (1, 5, 3, 4), (0, 6, 0, 5)",
    )
    .await;
    let (own, other) = (Log::<Cell>::new(), Log::<Cell>::new());
    let receivers = Receivers::new().with(Category::Member, own.clone());
    let receivers = receivers.otherwise(other.clone());
    let drain = Drain::new(Table::default(), registry(), receivers).unwrap();
    let report = drain.partition(&mut db.client, Partition::ALL).await;
    let report = report.unwrap();
    assert_eq!(own.objects(), [1]);
    let passed_on: Vec<_> = other
        .messages()
        .iter()
        .map(|m| {
            (
                m.object_identifier,
                m.category.number,
                m.category.scope.number,
            )
        })
        .collect();
    assert_eq!(passed_on, [(2, 8, 0), (3, 99, 77), (5, 0, 0)]);
    assert!(matches!(
        report.errors[..],
        [monarch_outbox::DeliveryError {
            why: Undelivered::WrongScope { .. },
            ..
        }]
    ));
}

/// What was queued before its category was retired is delivered, or let go; never lost by itself.
#[tokio::test]
async fn a_retired_category_in_the_queue_is_received_or_stays() {
    let mut db = Db::new().await;
    let write = "insert into sentry_regionoutbox (shard_scope, shard_identifier, category, \
         object_identifier) values (0, 1, 20, 7)";
    db.run(write).await;
    let log = Log::<Cell>::new();
    let report = log.drain().partition(&mut db.client, Partition::ALL).await;
    assert!(matches!(
        report.unwrap().errors[0].why,
        Undelivered::NoReceiver
    ));
    assert_eq!(db.queued().await, 1);
    db.wait_out_backoffs().await;
    let receivers = log.receivers().with(Category::Retired, log.clone());
    let drain = Drain::new(Table::default(), registry(), receivers).unwrap();
    let report = drain.partition(&mut db.client, Partition::ALL).await;
    assert_eq!((report.unwrap().delivered, log.objects()), (1, vec![7]));
    db.run(write).await;
    let receivers = log.receivers().ignore(Category::Retired);
    let drain = Drain::new(Table::default(), registry(), receivers).unwrap();
    let report = drain.partition(&mut db.client, Partition::ALL).await;
    assert_eq!((report.unwrap().delivered, db.queued().await), (1, 0));
}

/// A row of control without a cell is nobody's, and is said so at every pass.
#[tokio::test]
async fn a_row_that_names_no_cell_is_an_error() {
    let mut db = Db::new().await;
    db.write_control(&[("de", Category::Member, 1, 1)]).await;
    db.run("update sentry_controloutbox set region_name = ''")
        .await;
    let log = Log::<Control>::new();
    let report = log
        .drain()
        .partition(&mut db.client, Partition::ALL)
        .await
        .unwrap();
    assert!(matches!(report.errors[0].why, Undelivered::NoCell));
    assert_eq!(
        db.number("select count(*) from sentry_controloutbox").await,
        1
    );
}

/// A receiver that panics or hangs has failed, and the drain goes on elsewhere.
#[tokio::test]
async fn a_receiver_that_panics_or_hangs_has_failed() {
    let mut db = Db::new().await;
    db.write(&[(Category::Member, 1, 1), (Category::UserUpdate, 1, 1)])
        .await;
    let receivers = Receivers::<Cell>::new()
        .on(Category::Member, |message: Message<Cell>| async move {
            assert_eq!(message.object_identifier, 0, "it panics");
            Ok::<(), BoxError>(())
        })
        .on(Category::UserUpdate, |_| {
            std::future::pending::<Result<(), BoxError>>()
        });
    let settings = DrainSettings {
        receiver_timeout: std::time::Duration::from_millis(20),
        ..DrainSettings::default()
    };
    let drain = Drain::new(Table::default(), registry(), receivers)
        .unwrap()
        .settings(settings);
    let report = drain
        .partition(&mut db.client, Partition::ALL)
        .await
        .unwrap();
    assert!(matches!(report.errors[0].why, Undelivered::Panic));
    assert!(matches!(report.errors[1].why, Undelivered::Timeout { .. }));
    assert_eq!(db.queued().await, 2);
}

/// Does its work in the transaction that deletes the message, and fails after it for object 13.
struct InTransaction;

impl Receiver<Cell> for InTransaction {
    fn receive<'a>(
        &'a self,
        delivery: &'a Delivery<'a, Cell>,
    ) -> futures::future::BoxFuture<'a, Result<(), BoxError>> {
        Box::pin(async move {
            let object = delivery.message().object_identifier;
            let transaction = delivery.transaction().await?;
            transaction
                .execute("insert into done values ($1)", &[&object])
                .await?;
            if object < 3 {
                let next = monarch_outbox::CellOutbox::new(Category::Member, object, object + 1);
                delivery.write_all(&[next]).await?;
            }
            if object == 13 {
                transaction.execute("select 1 / 0", &[]).await?;
            }
            Ok(())
        })
    }
}

/// What a receiver does in the delivery's transaction is undone if it fails, and its alone.
#[tokio::test]
async fn what_a_failing_receiver_did_is_undone() {
    let mut db = Db::new().await;
    db.run("create table done (object bigint)").await;
    db.write(&[(Category::Member, 1, 12), (Category::Member, 1, 13)])
        .await;
    let receivers = Receivers::new().with(Category::Member, InTransaction);
    let drain = Drain::new(Table::default(), registry(), receivers).unwrap();
    let report = drain
        .partition(&mut db.client, Partition::ALL)
        .await
        .unwrap();
    assert_eq!((report.delivered, report.failed), (1, 1));
    assert_eq!(db.number("select sum(object)::int8 from done").await, 12);
    assert_eq!(db.queued().await, 1);
}

/// Runs a statement in the delivery's transaction, and succeeds whatever the server says.
struct Careless(&'static str);

impl Receiver<Cell> for Careless {
    fn receive<'a>(
        &'a self,
        delivery: &'a Delivery<'a, Cell>,
    ) -> futures::future::BoxFuture<'a, Result<(), BoxError>> {
        Box::pin(async move {
            let transaction = delivery.transaction().await?;
            let _ = transaction.batch_execute(self.0).await;
            Ok(())
        })
    }
}

/// A drain of organization 1 whose receiver runs a statement, and of user 1 that must be delivered.
async fn careless(db: &mut Db, statement: &'static str) -> monarch_outbox::Report {
    db.write(&[(Category::Member, 1, 1), (Category::UserUpdate, 1, 2)])
        .await;
    let receivers = Receivers::new()
        .with(Category::Member, Careless(statement))
        .ignore(Category::UserUpdate);
    let settings = DrainSettings {
        receiver_timeout: std::time::Duration::from_millis(200),
        ..DrainSettings::default()
    };
    let drain = Drain::new(Table::default(), registry(), receivers).unwrap();
    let drain = drain.settings(settings);
    let report = drain.partition(&mut db.client, Partition::ALL).await;
    report.unwrap()
}

/// A receiver that does not look at the server's error has done nothing; its message stays, and the
/// drain goes on.
#[tokio::test]
async fn a_receiver_that_ignores_an_error_of_the_server_has_failed() {
    let mut db = Db::new().await;
    let report = careless(&mut db, "select 1 / 0").await;
    assert_eq!((report.delivered, report.failed), (1, 1));
    let source = std::error::Error::source(&report.errors[0].why);
    assert_eq!(source.unwrap().to_string(), "SQLSTATE 25P02");
    assert_eq!(db.queued().await, 1);
}

/// A receiver that hangs in a statement is not waited for longer than one that hangs elsewhere.
#[tokio::test]
async fn a_receiver_that_hangs_in_the_server_has_failed() {
    let mut db = Db::new().await;
    let report = careless(&mut db, "select pg_sleep(86400)").await;
    assert_eq!((report.delivered, report.failed), (1, 1));
    assert_eq!(db.queued().await, 1);
}

/// What receivers write is delivered too, at once, to other shards.
#[tokio::test]
async fn messages_that_receivers_write_are_followed() {
    let mut db = Db::new().await;
    db.run("create table done (object bigint)").await;
    let receivers = Receivers::new().with(Category::Member, InTransaction);
    let drain = Drain::new(Table::default(), registry(), receivers).unwrap();
    let committed = drain
        .atomic(&mut db.client, async |outbox| {
            outbox
                .write(&monarch_outbox::CellOutbox::new(Category::Member, 0, 0))
                .await
        })
        .await
        .unwrap();
    assert_eq!(committed.flushed.unwrap().delivered, 4);
    assert_eq!(db.number("select sum(object)::int8 from done").await, 6);
    assert_eq!(db.queued().await, 0);
}

/// A flush that cannot have its lock in time says which shard, and the messages stay.
#[tokio::test]
async fn a_lock_that_is_not_had_in_time_loses_nothing() {
    let mut db = Db::new().await;
    db.write(&[(Category::Member, 1, 1)]).await;
    let mut other = db.connect().await;
    let transaction = other.transaction().await.unwrap();
    transaction
        .execute("select id from sentry_regionoutbox for update", &[])
        .await
        .unwrap();
    let settings = DrainSettings {
        lock_timeout: std::time::Duration::from_millis(50),
        ..DrainSettings::default()
    };
    let drain = Log::<Cell>::new().drain().settings(settings);
    let shard = Shard::cell(Scope::Organization, 1);
    let error = drain.shard(&mut db.client, &shard).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "another drain of sentry_regionoutbox holds scope Organization (0), shard 1 for too long"
    );
    // The schedule passes it over, whoever holds it.
    let report = drain
        .partition(&mut db.client, Partition::ALL)
        .await
        .unwrap();
    assert_eq!((report.busy, report.delivered), (1, 0));
    transaction.rollback().await.unwrap();
    assert_eq!(
        drain.shard(&mut db.client, &shard).await.unwrap().delivered,
        1
    );
}

/// Payloads of a megabyte come whole, a few at a time.
#[tokio::test]
async fn large_payloads_are_delivered_whole() {
    let mut db = Db::new().await;
    let log = Log::<Cell>::new();
    let text = "x".repeat(1 << 20);
    let committed = log
        .drain()
        .atomic(&mut db.client, async |outbox| {
            for object in 0..12 {
                let payload = json!({"n": object, "text": text});
                let message = monarch_outbox::CellOutbox::new(Category::Member, 1, object);
                outbox.write(&message.payload(payload)).await?;
            }
            Ok::<_, monarch_outbox::WriteError>(())
        })
        .await
        .unwrap();
    assert_eq!(committed.flushed.unwrap().delivered, 12);
    for (n, message) in log.messages().into_iter().enumerate() {
        let payload = message.payload.unwrap();
        assert_eq!(
            (payload["n"].as_u64(), payload["text"].as_str()),
            (Some(n as u64), Some(&*text))
        );
    }
}

/// Identifiers are whole numbers of 64 bits from end to end, negative ones too; and an id at the end of
/// its sequence is one like any other.
#[tokio::test]
async fn identifiers_of_64_bits_are_delivered_as_they_are() {
    let mut db = Db::new().await;
    let above = (1_i64 << 53) + 1;
    db.run(&format!(
        "insert into sentry_regionoutbox (id, shard_scope, shard_identifier, category, \
         object_identifier) values ({above}, 0, {above}, 3, {above}), \
         ({max} - 1, 0, {max}, 3, {max}), ({max}, 0, {max}, 3, '{min}'), \
         ('{min}', 0, '{min}', 3, 0)",
        max = i64::MAX,
        min = i64::MIN,
    ))
    .await;
    let log = Log::<Cell>::new();
    for part in log.drain().partitions(&db.client, 5).await.unwrap() {
        log.drain().partition(&mut db.client, part).await.unwrap();
    }
    let mut seen: Vec<_> = log
        .messages()
        .iter()
        .map(|m| (m.id, m.shard_identifier(), m.object_identifier))
        .collect();
    seen.sort_unstable();
    let expected = [
        (i64::MIN, i64::MIN, 0),
        (above, above, above),
        (i64::MAX - 1, i64::MAX, i64::MAX),
        (i64::MAX, i64::MAX, i64::MIN),
    ];
    assert_eq!((seen, db.queued().await), (expected.to_vec(), 0));
}

/// No payload and a payload that is null are two things.
#[tokio::test]
async fn a_null_payload_is_delivered_as_it_was_written() {
    let mut db = Db::new().await;
    let log = Log::<Cell>::new();
    let drain = log.drain();
    let written = drain.atomic(&mut db.client, async |outbox| {
        let message = |object| monarch_outbox::CellOutbox::new(Category::Member, 1, object);
        let null = message(2).payload(serde_json::Value::Null);
        outbox
            .write_all(&[message(1), null, message(3).payload(None)])
            .await
    });
    assert_eq!(written.await.unwrap().flushed.unwrap().delivered, 3);
    let payloads: Vec<_> = log.messages().into_iter().map(|m| m.payload).collect();
    assert_eq!(payloads, [None, Some(json!(null)), None]);
}

/// Rows whose writers' clocks were wrong, by a day, a century or infinity, are delivered all the same.
#[tokio::test]
async fn wrong_clocks_delay_nothing() {
    let mut db = Db::new().await;
    db.run(
        "insert into sentry_regionoutbox (shard_scope, shard_identifier, category, \
         object_identifier, scheduled_from, scheduled_for, date_added) values \
         (0, 1, 3, 1, now() + interval '1 day', '2016-08-01', now() + interval '1 day'), \
         (0, 2, 3, 2, now(), now() + interval '1 day', now() + interval '100 years'), \
         (0, 3, 3, 3, now() - interval '100 years', 'infinity', '-infinity')",
    )
    .await;
    let log = Log::<Cell>::new();
    let report = log
        .drain()
        .partition(&mut db.client, Partition::ALL)
        .await
        .unwrap();
    assert_eq!((report.delivered, log.objects()), (3, vec![1, 2, 3]));
}

/// The parts cover every id once, however few there are.
#[test]
fn partitions_cover_every_id_once() {
    for (lowest, highest) in [(1, 1), (1, 3), (-5, 1_000_000), (i64::MIN, i64::MAX)] {
        let parts = Partition::cut(lowest, highest, 5);
        assert_eq!(
            (parts[0].low, parts.last().unwrap().high),
            (i64::MIN, i64::MAX)
        );
        assert!(
            parts
                .windows(2)
                .all(|pair| pair[0].high.checked_add(1) == Some(pair[1].low))
        );
    }
}
