//! The replication connection and the decoder against real servers.

#![allow(clippy::unwrap_used)] // also in what the tests share

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use monarch_harness::{Cluster, ClusterOptions, PgVersion, Standby, fresh_name, shared};
use monarch_model::Lsn;
use monarch_postgres::connect::Environment;
use monarch_postgres::pgoutput::{Change, Message, OldTuple, Value, decode};
use monarch_postgres::replication::{
    ExportedSlot, Frame, ReplicationConnection, ReplicationStream, SlotKind, Status, StreamOptions,
};
use monarch_postgres::{ConnectOptions, Doing, Error, ServerError, Session, SessionPurpose};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;
use tokio_postgres::{IsolationLevel, NoTls};

/// A database of its own with a published table `public.t`.
struct Source {
    options: ConnectOptions,
    session: Session,
}

impl Source {
    async fn new() -> Self {
        Self::on(PgVersion::V15).await
    }

    async fn on(version: PgVersion) -> Self {
        let cluster = shared::cluster(version).await;
        Self::in_database(&cluster.create_database(&fresh_name("repl")).await.unwrap()).await
    }

    async fn in_database(dsn: &str) -> Self {
        let options = options(dsn);
        let session = Session::connect(&options, &writer()).await.unwrap();
        let source = Self { options, session };
        source
            .sql("create table public.t (id int primary key, v text); create publication p for table public.t")
            .await;
        source
    }

    async fn sql(&self, sql: &str) {
        self.session.batch_execute(sql).await.unwrap();
    }

    async fn replication(&self) -> ReplicationConnection {
        self.replication_for(&writer()).await
    }

    async fn replication_for(&self, purpose: &SessionPurpose) -> ReplicationConnection {
        ReplicationConnection::connect(&self.options, purpose)
            .await
            .unwrap()
    }

    /// A slot and the stream from its consistent point.
    async fn stream(&self, kind: SlotKind, options: &StreamOptions) -> (String, ReplicationStream) {
        let slot = fresh_name("slot");
        let exported = self
            .replication()
            .await
            .create_slot(&slot, kind)
            .await
            .unwrap();
        let stream = exported
            .release()
            .start(&slot, Lsn::default(), options)
            .await
            .unwrap();
        (slot, stream)
    }

    async fn restart_stream(&self, slot: &str) -> ReplicationStream {
        loop {
            let started = self
                .replication()
                .await
                .start(slot, Lsn::default(), &published())
                .await;
            match started {
                Ok(stream) => return stream,
                // The walsender of the dropped socket has not noticed yet.
                Err(error) if error.is(&SqlState::OBJECT_IN_USE) => {
                    assert!(error.is_transient());
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                Err(error) => panic!("{error:?}"),
            }
        }
    }

    async fn confirmed(&self, slot: &str) -> Lsn {
        let query =
            "select confirmed_flush_lsn::text from pg_replication_slots where slot_name = $1";
        let row = self.session.query_one(query, &[&slot]).await.unwrap();
        row.get::<_, &str>(0).parse().unwrap()
    }

    /// Whether a snapshot can be adopted by a new transaction, and then what `public.t` has in it.
    async fn adopt(&self, snapshot: &str) -> Result<Vec<i32>, Error> {
        let mut session = Session::connect(&self.options, &SessionPurpose::reader("r")).await?;
        let transaction = session
            .build_transaction()
            .isolation_level(IsolationLevel::RepeatableRead)
            .start()
            .await
            .doing("begin")?;
        transaction
            .batch_execute(&format!("set transaction snapshot '{snapshot}'"))
            .await
            .doing("adopt the snapshot")?;
        let query = "select id from public.t order by id";
        let rows = transaction.query(query, &[]).await.doing("read")?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }
}

fn options(dsn: &str) -> ConnectOptions {
    ConnectOptions::parse(dsn, &Environment::empty()).unwrap()
}

fn writer() -> SessionPurpose {
    SessionPurpose::writer("monarch test")
}

fn published() -> StreamOptions {
    StreamOptions::new(["p"])
}

/// What a message says, in a word or two.
fn word(message: &Message<'_>) -> String {
    let text = |value: Value<'_>| match value {
        Value::Null => "null".to_owned(),
        Value::Unchanged => "unchanged".to_owned(),
        Value::Text(text) => String::from_utf8_lossy(text).chars().take(8).collect(),
        Value::Binary(_) => "binary".to_owned(),
    };
    let row = |values: Vec<String>| values.join(",");
    match message {
        Message::Begin { .. } => "begin".to_owned(),
        Message::Commit { .. } => "commit".to_owned(),
        Message::Relation { schema, name, .. } => format!("{schema}.{name}"),
        Message::Change(Change::Insert { new, .. }) => {
            format!("+{}", row(new.values().map(text).collect()))
        }
        Message::Change(Change::Update { old, new, .. }) => {
            let old = match old {
                None => "",
                Some(OldTuple::Key(_)) => " by key",
                Some(OldTuple::Full(_)) => " in full",
            };
            format!("~{}{old}", row(new.values().map(text).collect()))
        }
        Message::Change(Change::Delete { old, .. }) => {
            format!("-{}", row(old.tuple().values().map(text).collect()))
        }
        Message::Truncate { relations, .. } => format!("truncate {}", relations.iter().len()),
        Message::Message {
            prefix, content, ..
        } => {
            format!("{prefix}:{}", String::from_utf8_lossy(content.0))
        }
        other => format!("{other:?}"),
    }
}

/// Reads up to the end of a transaction, and says what was in it and where it ends.
async fn transaction(stream: &mut ReplicationStream) -> (Vec<String>, Lsn) {
    let mut words = Vec::new();
    loop {
        if let Frame::XLogData { data, .. } = stream.next().await.unwrap() {
            let (message, _) = decode(&data, false).unwrap();
            words.push(word(&message));
            if let Message::Commit { end_lsn, .. } = message {
                return (words, end_lsn);
            }
        }
    }
}

/// Guards promise 2: each change is in exactly one of the snapshot and the stream.
#[tokio::test]
async fn a_snapshot_and_its_stream_meet_at_the_consistent_point() {
    for version in [PgVersion::V15, PgVersion::V18] {
        let source = Source::on(version).await;
        source
            .sql("insert into public.t values (1, 'before')")
            .await;
        let slot = fresh_name("slot");
        let connection = source.replication().await;
        let exported = connection
            .create_slot(&slot, SlotKind::Temporary)
            .await
            .unwrap();
        assert_eq!(exported.slot, slot);
        source.sql("insert into public.t values (2, 'after')").await;
        assert_eq!(
            source.adopt(&exported.snapshot).await.unwrap(),
            [1],
            "{version}"
        );

        let from = exported.consistent_point;
        let mut stream = exported
            .release()
            .start(&slot, from, &published())
            .await
            .unwrap();
        let (words, end) = transaction(&mut stream).await;
        assert_eq!(
            words,
            ["begin", "public.t", "+2,after", "commit"],
            "{version}"
        );
        assert!(end > from);
    }
}

/// Guards promise 2: a snapshot lives exactly as long as the value that stands for it.
#[tokio::test]
async fn a_snapshot_cannot_be_adopted_once_its_session_goes_on() {
    let source = Source::new().await;
    let slot = fresh_name("slot");
    let connection = source.replication().await;
    let exported = connection
        .create_slot(&slot, SlotKind::Temporary)
        .await
        .unwrap();
    let snapshot = exported.snapshot.clone();
    source.adopt(&snapshot).await.unwrap();
    let mut connection = exported.release();
    connection.identify_system().await.unwrap();
    let error = source.adopt(&snapshot).await.unwrap_err();
    assert_eq!(error.code().unwrap().code(), "22023", "{error:?}");
}

/// Guards promise 2: two snapshots are never mixed, so the loss of an exporter must be noticed.
#[tokio::test]
async fn the_loss_of_the_exporting_session_is_noticed() {
    let source = Source::new().await;
    let connection = source.replication().await;
    let pid = connection.process_id();
    let slot = fresh_name("slot");
    let mut exported: ExportedSlot = connection
        .create_slot(&slot, SlotKind::Temporary)
        .await
        .unwrap();
    tokio::select! {
        lost = exported.lost() => panic!("lost: {lost}"),
        () = tokio::time::sleep(Duration::from_millis(100)) => {}
    }
    source
        .sql(&format!("select pg_terminate_backend({pid})"))
        .await;
    let lost = exported.lost().await;
    assert!(lost.is(&SqlState::ADMIN_SHUTDOWN), "{lost}");
    assert!(lost.is_transient());
}

#[tokio::test]
async fn every_kind_of_change_is_decoded() {
    let source = Source::new().await;
    let (_, mut stream) = source.stream(SlotKind::Temporary, &published()).await;
    let large = "(select string_agg(md5(n::text), '') from generate_series(1, 1000) n)";
    source
        .sql(&format!(
            "begin;
             insert into public.t values (1, null), (2, 'it''s'), (3, {large});
             update public.t set v = 'new' where id = 1;
             update public.t set id = 4 where id = 3;
             select pg_logical_emit_message(true, 'monarch', 'barrier');
             delete from public.t where id = 2;
             truncate public.t;
             commit"
        ))
        .await;
    let (mut words, _) = transaction(&mut stream).await;
    assert_eq!(words[..2], ["begin", "public.t"]);
    // A server tells of a table anew whenever it has looked at it again, as after TRUNCATE.
    words.retain(|word| word != "public.t");
    assert_eq!(
        words,
        [
            "begin",
            "+1,null",
            "+2,it's",
            "+3,c4ca4238",
            "~1,new",
            "~4,unchanged by key",
            "monarch:barrier",
            "-2,null",
            "truncate 1",
            "commit"
        ]
    );
}

/// Guards promise 3: what was not acknowledged comes again, whole; what was does not.
#[tokio::test]
async fn a_dropped_socket_delivers_again_what_was_not_acknowledged() {
    let source = Source::new().await;
    let (slot, mut stream) = source.stream(SlotKind::Permanent, &published()).await;
    source.sql("insert into public.t values (1, 'a')").await;
    source
        .sql("insert into public.t values (2, 'b'), (3, 'c')")
        .await;
    let (_, first_end) = transaction(&mut stream).await;
    let second = transaction(&mut stream).await;
    let acknowledged = Status {
        write: second.1,
        flush: first_end,
        apply: first_end,
    };
    stream.send_status(acknowledged, false).await.unwrap();
    while source.confirmed(&slot).await < first_end {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    drop(stream);

    let mut stream = source.restart_stream(&slot).await;
    let (mut again, end) = transaction(&mut stream).await;
    // A new stream tells its relations anew.
    again.retain(|word| word != "public.t");
    assert_eq!((again, end), second);

    let mut connection = stream.stop().await.unwrap();
    connection.drop_slot(&slot).await.unwrap();
    let error = connection.drop_slot(&slot).await.unwrap_err();
    assert!(error.is(&SqlState::UNDEFINED_OBJECT), "{error:?}");
}

/// Guards promise 9: a slot whose tables are quiet does not pin the log of the others.
#[tokio::test]
async fn a_quiet_slot_advances_by_the_keepalives_position() {
    let source = Source::new().await;
    let (slot, mut stream) = source.stream(SlotKind::Temporary, &published()).await;
    source
        .sql("create table public.other (n int); insert into public.other select 1")
        .await;
    let query = "select pg_current_wal_lsn()::text";
    let row = source.session.query_one(query, &[]).await.unwrap();
    let head: Lsn = row.get::<_, &str>(0).parse().unwrap();
    stream.send_status(Status::default(), true).await.unwrap();
    loop {
        match stream.next().await.unwrap() {
            Frame::Keepalive { end, .. } if end >= head => {
                let status = Status {
                    write: end,
                    flush: end,
                    apply: end,
                };
                stream.send_status(status, false).await.unwrap();
                break;
            }
            // The data are the transactions of the table made here: begin and commit, if at all.
            Frame::Keepalive { .. } | Frame::XLogData { .. } => {
                stream.send_status(Status::default(), true).await.unwrap();
            }
        }
    }
    while source.confirmed(&slot).await < head {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Guards promise 9: the walsender's question is handed out in time to be answered.
#[tokio::test]
async fn a_walsender_asks_for_a_sign_of_life_and_hangs_up_without_one() {
    let source = Source::new().await;
    let slot = fresh_name("slot");
    let impatient = writer().with("wal_sender_timeout", "600ms");
    let connection = source.replication_for(&impatient).await;
    let exported = connection
        .create_slot(&slot, SlotKind::Temporary)
        .await
        .unwrap();
    let connection = exported.release();
    let mut stream = connection
        .start(&slot, Lsn::default(), &published())
        .await
        .unwrap();
    for _ in 0..3 {
        while !matches!(
            stream.next().await,
            Ok(Frame::Keepalive {
                reply_requested: true,
                ..
            })
        ) {}
        stream.send_status(Status::default(), false).await.unwrap();
    }
    let error = loop {
        if let Err(error) = stream.next().await {
            break error;
        }
    };
    assert!(error.is_transient(), "{error:?}");
}

/// Guards promise 10 and memory: a value over the limit is refused before it is read.
#[tokio::test]
async fn a_message_over_the_limit_is_refused_by_name() {
    let source = Source::new().await;
    let limited = StreamOptions {
        message_limit_bytes: 10_000,
        ..published()
    };
    let (_, mut stream) = source.stream(SlotKind::Temporary, &limited).await;
    source
        .sql("insert into public.t values (1, repeat('x', 9000))")
        .await;
    source
        .sql("insert into public.t values (2, repeat('x', 20000))")
        .await;
    transaction(&mut stream).await;
    let error = loop {
        if let Err(error) = stream.next().await {
            break error;
        }
    };
    let Error::Asked {
        source: ServerError::MessageTooLarge { bytes, limit_bytes },
        ..
    } = error
    else {
        panic!("{error:?}");
    };
    assert!(bytes > 20_000 && limit_bytes == 10_000);
    assert!(!error.is_transient());
}

/// Guards promise 3: `select!` drops futures all the time, and not a byte may get lost by it.
#[tokio::test]
async fn a_dropped_future_loses_nothing() {
    let source = Source::new().await;
    let (_, mut stream) = source.stream(SlotKind::Temporary, &published()).await;
    let rows = 2_000;
    source
        .sql(&format!(
            "insert into public.t select n, repeat(n::text, n) from generate_series(1, {rows}) n"
        ))
        .await;
    let (mut next, mut dropped) = (1, 0);
    while next <= rows {
        let frame = tokio::select! {
            biased;
            frame = stream.next() => frame.unwrap(),
            () = std::future::ready(()) => {
                dropped += 1;
                tokio::task::yield_now().await;
                continue;
            }
        };
        let Frame::XLogData { data, .. } = frame else {
            continue;
        };
        if let (Message::Change(Change::Insert { new, .. }), _) = decode(&data, false).unwrap() {
            let text = next.to_string();
            assert_eq!(new.get(0), Some(Value::Text(text.as_bytes())));
            let value = text.repeat(next);
            assert_eq!(new.get(1), Some(Value::Text(value.as_bytes())));
            next += 1;
        }
    }
    assert!(dropped > 0, "no future was dropped: this showed nothing");
}

/// Guards promise 3: what a savepoint rolled back is known by its id before the commit.
#[tokio::test]
async fn a_large_transaction_is_streamed_with_its_rolled_back_part() {
    let source = Source::new().await;
    let slot = fresh_name("slot");
    let small = writer().with("logical_decoding_work_mem", "64kB");
    let connection = source.replication_for(&small).await;
    let exported = connection
        .create_slot(&slot, SlotKind::Temporary)
        .await
        .unwrap();
    let connection = exported.release();
    let mut stream = connection
        .start(&slot, Lsn::default(), &published())
        .await
        .unwrap();
    source
        .sql(
            "begin;
             insert into public.t select n, 'kept' from generate_series(1, 5000) n;
             savepoint s;
             insert into public.t select n, 'undone' from generate_series(5001, 9000) n;
             rollback to s;
             insert into public.t select n, 'kept' from generate_series(5001, 6000) n;
             commit",
        )
        .await;
    let (mut rows, mut undone, mut chunks, mut top) = (Vec::new(), Vec::new(), 0, None);
    let mut streamed = false;
    loop {
        let Frame::XLogData { data, .. } = stream.next().await.unwrap() else {
            continue;
        };
        let (message, xid) = decode(&data, streamed).unwrap();
        match message {
            Message::StreamStart { xid, first } => {
                assert_eq!(first, top.is_none());
                assert_eq!(*top.get_or_insert(xid), xid);
                (streamed, chunks) = (true, chunks + 1);
            }
            Message::StreamStop => streamed = false,
            Message::StreamAbort { xid, subxid } => {
                assert_eq!(Some(xid), top);
                undone.push(subxid);
            }
            Message::StreamCommit { xid, .. } => {
                assert_eq!(Some(xid), top);
                break;
            }
            Message::Change(Change::Insert { new, .. }) => {
                rows.push((
                    xid.unwrap(),
                    new.get(1).and_then(Value::text).map(<[u8]>::to_vec),
                ));
            }
            Message::Relation { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    assert!(chunks > 1, "it came in one chunk: this showed nothing");
    rows.retain(|(xid, _)| !undone.contains(xid));
    assert_eq!(rows.len(), 6000);
    assert!(
        rows.iter()
            .all(|(_, value)| value.as_deref() == Some(b"kept"))
    );
}

#[tokio::test]
async fn a_stream_ends_with_its_server_and_says_so() {
    let cluster = Cluster::start(ClusterOptions::new(PgVersion::V15))
        .await
        .unwrap();
    let options = options(&cluster.dsn("postgres"));
    let session = Session::connect(&options, &writer()).await.unwrap();
    session
        .batch_execute("create publication p for all tables")
        .await
        .unwrap();
    let connection = ReplicationConnection::connect(&options, &writer())
        .await
        .unwrap();
    let exported = connection
        .create_slot("s", SlotKind::Permanent)
        .await
        .unwrap();
    let connection = exported.release();
    let mut stream = connection
        .start("s", Lsn::default(), &published())
        .await
        .unwrap();
    let reading = async {
        loop {
            match stream.next().await {
                Ok(Frame::Keepalive { end, .. }) => {
                    let status = Status {
                        write: end,
                        flush: end,
                        apply: end,
                    };
                    let _ = stream.send_status(status, false).await;
                }
                Ok(Frame::XLogData { .. }) => {}
                Err(error) => break error,
            }
        }
    };
    let (error, stopped) = tokio::join!(reading, cluster.stop());
    stopped.unwrap();
    assert!(error.is_transient(), "{error:?}");
}

/// Guards promise 4: a command that was given up half-way is not answered by another's answer.
#[tokio::test]
async fn a_session_whose_command_was_given_up_refuses_the_next() {
    let source = Source::new().await;
    let mut connection = source.replication().await;
    tokio::select! {
        biased;
        _ = connection.identify_system() => panic!("it was answered at once"),
        () = std::future::ready(()) => {}
    }
    let error = connection.identify_system().await.unwrap_err();
    assert!(
        matches!(
            &error,
            Error::Asked {
                source: ServerError::Protocol(_),
                ..
            }
        ),
        "{error:?}"
    );
}

/// Guards promise 7: a slot's creation that is given up leaves no slot, whether the server is asked
/// to stop or the socket is closed.
#[tokio::test]
async fn a_slot_that_waits_for_an_old_transaction_can_be_given_up() {
    // On a server of its own: its old transaction would stall the slots of all other tests.
    let cluster = Cluster::start(ClusterOptions::new(PgVersion::V15))
        .await
        .unwrap();
    let source = Source::in_database(&cluster.dsn("postgres")).await;
    let blocker = Session::connect(&source.options, &writer()).await.unwrap();
    blocker
        .batch_execute("begin; select pg_current_xact_id()")
        .await
        .unwrap();
    let count = async |query: &str, value: &(dyn ToSql + Sync)| -> i64 {
        source
            .session
            .query_one(query, &[value])
            .await
            .unwrap()
            .get(0)
    };
    for cancelled in [true, false] {
        let slot = fresh_name("slot");
        let connection = source.replication().await;
        let (canceller, pid) = (connection.canceller(), connection.process_id());
        let waiting = async {
            let query = "select count(*) from pg_locks where pid = $1 and not granted";
            while count(query, &pid).await == 0 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let making = connection.create_slot(&slot, SlotKind::Permanent);
        if cancelled {
            let cancelling = async {
                waiting.await;
                canceller.cancel().await.unwrap();
            };
            let (made, ()) = tokio::join!(making, cancelling);
            let error = made.unwrap_err();
            assert!(error.is(&SqlState::QUERY_CANCELED), "{error:?}");
        } else {
            tokio::select! {
                made = making => panic!("{made:?}"),
                () = waiting => {}
            }
        }
        let walsenders = "select count(*) from pg_stat_activity where pid = $1";
        while count(walsenders, &pid).await > 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let slots = "select count(*) from pg_replication_slots where slot_name = $1";
        assert_eq!(count(slots, &slot).await, 0);
    }
}

#[tokio::test]
async fn what_stands_in_the_way_of_a_slot_is_told_by_its_code() {
    let source = Source::new().await;
    let (slot, stream) = source.stream(SlotKind::Permanent, &published()).await;
    let again = source
        .replication()
        .await
        .create_slot(&slot, SlotKind::Permanent)
        .await;
    assert!(again.unwrap_err().is(&SqlState::DUPLICATE_OBJECT));
    let second = source
        .replication()
        .await
        .start(&slot, Lsn::default(), &published())
        .await;
    assert!(second.unwrap_err().is(&SqlState::OBJECT_IN_USE));
    let missing = source
        .replication()
        .await
        .start("none", Lsn::default(), &published())
        .await;
    assert!(missing.unwrap_err().is(&SqlState::UNDEFINED_OBJECT));
    stream.stop().await.unwrap().drop_slot(&slot).await.unwrap();
}

#[tokio::test]
async fn a_standby_is_decoded_from() {
    let primary = Cluster::start(ClusterOptions::new(PgVersion::V16))
        .await
        .unwrap();
    let admin = primary.admin("postgres").await.unwrap();
    admin
        .batch_execute(
            "create table t (id int primary key, v text); create publication p for table t;
             create sequence q",
        )
        .await
        .unwrap();
    let standby = Standby::of(&primary).await.unwrap();
    standby.catch_up(&primary).await.unwrap();
    let options = options(&format!(
        "{} target_session_attrs=standby",
        standby.dsn("postgres")
    ));
    let connection = ReplicationConnection::connect(&options, &writer())
        .await
        .unwrap();
    assert_eq!(connection.in_hot_standby(), Some(true));
    is_asked_again(&standby.dsn("postgres")).await;
    let making = tokio::spawn(connection.create_slot("s", SlotKind::Permanent));
    while !making.is_finished() {
        admin
            .batch_execute("select pg_log_standby_snapshot()")
            .await
            .unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let exported = making.await.unwrap().unwrap();
    let connection = exported.release();
    let mut stream = connection
        .start("s", Lsn::default(), &published())
        .await
        .unwrap();
    admin
        .batch_execute("insert into t values (1, 'a')")
        .await
        .unwrap();
    let (words, _) = transaction(&mut stream).await;
    assert_eq!(words, ["begin", "public.t", "+1,a", "commit"]);
}

/// A primary's work that meets a standby waits for its promotion. The code is that of a lost slot,
/// which nobody waits for.
async fn is_asked_again(standby: &str) {
    let (client, connection) = tokio_postgres::connect(standby, NoTls).await.unwrap();
    tokio::spawn(connection);
    for (sql, passes) in [
        ("select pg_current_wal_lsn()", true),
        ("select currval('q')", false),
    ] {
        let refused = ServerError::from(client.batch_execute(sql).await.unwrap_err());
        assert!(refused.is(&SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE));
        assert_eq!(refused.is_transient(), passes, "{sql}");
    }
}

/// What the fuzzer of the decoder begins with: a message of each kind, as a server sends it, behind
/// a byte that says whether it is part of a streamed transaction.
const FUZZ_CORPUS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../fuzz/corpus/pgoutput");

/// The first messages of each kind, plain and streamed, with a relation and a row for each replica
/// identity among them.
async fn every_kind_of_message() -> BTreeMap<String, Vec<u8>> {
    const TABLES: &str = r#"
        create type mood as enum ('low', 'high');
        create table public."Ünïcode" (id uuid, m mood, n numeric(10,2), b bytea);
        alter table public."Ünïcode" replica identity full;
        create table public.by_index (a int not null, b text not null, c text[]);
        create unique index i on public.by_index (a, b);
        alter table public.by_index replica identity using index i;
        alter publication p add table public."Ünïcode", public.by_index;"#;
    const CHANGES: &str = r#"
        insert into public.t values (1, null), (2, repeat(md5('1'), 80));
        insert into public."Ünïcode" values (gen_random_uuid(), 'low', 'NaN', '\\x00ff');
        insert into public.by_index values (1, 'a', '{x,NULL,"y z"}');
        update public.t set id = 3 where id = 2;
        update public."Ünïcode" set m = 'high';
        update public.by_index set b = 'b';
        delete from public.t where id = 1;
        delete from public."Ünïcode";
        delete from public.by_index;
        select pg_logical_emit_message(true, 'monarch', '{"move":"x"}');
        truncate public.t, public.by_index restart identity cascade;"#;
    let source = Source::new().await;
    source.sql(TABLES).await;
    let small = writer().with("logical_decoding_work_mem", "64kB");
    let connection = source.replication_for(&small).await;
    let slot = fresh_name("slot");
    let made = connection.create_slot(&slot, SlotKind::Temporary).await;
    let connection = made.unwrap().release();
    let started = connection.start(&slot, Lsn::default(), &published()).await;
    let mut stream = started.unwrap();
    source.sql(&format!("begin; {CHANGES} commit")).await;
    source
        .sql(&format!(
            "begin; {CHANGES}
             savepoint s; insert into public.t select n, 'undone' from generate_series(1, 900) n;
             rollback to s; {CHANGES}
             insert into public.t select n, 'kept' from generate_series(1, 2000) n; commit"
        ))
        .await;
    let mut found = BTreeMap::new();
    let mut streamed = false;
    loop {
        let Frame::XLogData { data, .. } = stream.next().await.unwrap() else {
            continue;
        };
        let (message, _) = decode(&data, streamed).unwrap();
        let seed = [&[u8::from(streamed)], &data[..]].concat();
        let way = if streamed { "streamed" } else { "plain" };
        let kinds = (1..4).map(|n| format!("{}-{way}-{n}", char::from(data[0])));
        if let Some(name) = kinds.into_iter().find(|name| !found.contains_key(name)) {
            found.insert(name, seed);
        }
        match message {
            Message::StreamStart { .. } => streamed = true,
            Message::StreamStop => streamed = false,
            Message::StreamCommit { .. } => return found,
            _ => {}
        }
    }
}

/// The fuzzer begins with what a server really says, so it gets past the first bytes. Run with
/// `MONARCH_RECORD=1` to write the corpus anew.
#[tokio::test]
async fn the_fuzzer_begins_with_every_kind_of_message_that_a_server_sends() {
    let found = every_kind_of_message().await;
    let folder = Path::new(FUZZ_CORPUS);
    if std::env::var_os("MONARCH_RECORD").is_some() {
        for (name, seed) in &found {
            std::fs::write(folder.join(name), seed).unwrap();
        }
    }
    let kinds: std::collections::BTreeSet<char> = found
        .keys()
        .filter_map(|name| name.chars().next())
        .collect();
    assert_eq!(kinds, "BCRYIUDTMSEAc".chars().collect());
    for (name, seed) in &found {
        let recorded = std::fs::read(folder.join(name)).unwrap();
        assert_eq!(recorded[..2], seed[..2], "{name}");
        decode(&recorded[1..], recorded[0] == 1).unwrap();
    }
}
