//! The copy of a store.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use monarch_harness::PgVersion;
use monarch_model::{Epoch, Lsn};
use monarch_postgres::keys::{KeyRecorder, NoObjects};
use monarch_postgres::replication::ExportedSlot;
use monarch_postgres::sink::{self, SinkError};
use monarch_postgres::slot;
use monarch_postgres::snapshot::{self, Copied, CopyError, Job, Observer, Progress};
use monarch_postgres::spine::{Spine, SpineError};
use tokio_postgres::Client;
use tokio_util::sync::CancellationToken;

use crate::world::{World, all_rows, one, rows_of, store, table};

static KEYS: LazyLock<Arc<dyn KeyRecorder>> = LazyLock::new(|| Arc::new(NoObjects));

/// Keeps what it hears.
#[derive(Default)]
struct Heard(Vec<Progress>);

impl Observer for Heard {
    fn progress(&mut self, progress: &Progress) {
        self.0.push(progress.clone());
    }
}

async fn begin(world: &mut World, epoch: i64) -> ExportedSlot {
    sink::ensure_schema(&mut world.sink).await.unwrap();
    let patient = Duration::from_secs(30);
    sink::take_over(&mut world.sink, &world.unit, Epoch(epoch), patient)
        .await
        .unwrap();
    world.publish(epoch).await
}

fn job<'a>(world: &'a World, spine: &'a Spine, made: &'a ExportedSlot, epoch: i64) -> Job<'a> {
    Job {
        unit: &world.unit,
        epoch: Epoch(epoch),
        graph: &world.graph,
        spine,
        snapshot: &made.snapshot,
        consistent_point: made.consistent_point,
        keys: &KEYS,
    }
}

/// Copies with sessions of its own.
async fn copy(
    world: &World,
    job: &Job<'_>,
    observer: &mut dyn Observer,
) -> Result<Copied, CopyError> {
    let mut source = world.source_session().await;
    let mut sink = world.sink_session().await;
    let cancel = CancellationToken::new();
    snapshot::copy(job, &mut source, &mut sink, observer, &cancel).await
}

async fn position(world: &World) -> Option<Lsn> {
    let state = sink::read(&world.sink, &world.unit).await.unwrap();
    state.unwrap().position
}

async fn drop_slots(world: &World) {
    slot::drop_all(&world.source, &world.unit).await.unwrap();
}

/// Guards promise 1: exactly the organization's rows and values, and no other tenant's touched.
async fn exactly_the_rows_of_the_organization(from: PgVersion, to: PgVersion) {
    let mut world = World::new(from, to).await;
    let others = all_rows(&world.sink).await;
    let made = begin(&mut world, 1).await;
    let spine = world.spine().await;
    let mut heard = Heard::default();
    let copied = copy(&world, &job(&world, &spine, &made, 1), &mut heard)
        .await
        .unwrap();

    let source = rows_of(&world.source, 1).await;
    assert!(source.values().all(|rows| !rows.is_empty()));
    assert_eq!(rows_of(&world.sink, 1).await, source);
    assert_eq!(rows_of(&world.sink, 9).await, others);
    for (name, rows) in all_rows(&world.sink).await {
        assert_eq!(
            rows.len(),
            source[&name].len() + others[&name].len(),
            "{name}"
        );
    }
    assert_eq!(position(&world).await, Some(made.consistent_point));

    let rows: u64 = copied.tables.iter().map(|table| table.rows).sum();
    let last = heard.0.last().unwrap();
    assert_eq!(last.rows, rows);
    assert_eq!(
        rows,
        source.values().map(|rows| rows.len() as u64).sum::<u64>()
    );
    assert_eq!((last.tables_done, last.tables_total), (8, 8));
    assert!(last.rows_estimate > 0 && last.bytes > 0);
    drop_slots(&world).await;
}

#[tokio::test]
async fn exactly_the_rows_of_the_organization_from_15_to_14() {
    exactly_the_rows_of_the_organization(PgVersion::V15, PgVersion::V14).await;
}

#[tokio::test]
async fn exactly_the_rows_of_the_organization_from_17_to_14() {
    exactly_the_rows_of_the_organization(PgVersion::V17, PgVersion::V14).await;
}

#[tokio::test]
async fn exactly_the_rows_of_the_organization_from_15_to_18() {
    exactly_the_rows_of_the_organization(PgVersion::V15, PgVersion::V18).await;
}

/// Guards promise 1 across stores: a static parent that lives in another database scopes by its
/// recorded ids.
#[tokio::test]
async fn a_table_scoped_by_another_stores_parent_is_copied() {
    let mut world = World::new(PgVersion::V15, PgVersion::V14).await;
    let spine = world.spine().await;
    world
        .source
        .batch_execute("alter table hit drop constraint hit_pkey, add primary key (id, path)")
        .await
        .unwrap();
    world.unit.store = store("events");
    let made = begin(&mut world, 1).await;
    copy(
        &world,
        &job(&world, &spine, &made, 1),
        &mut Heard::default(),
    )
    .await
    .unwrap();
    let ids: Vec<i64> = one(&world.sink, "select array_agg(id order by id) from hit").await;
    assert_eq!(ids, [101, 901, 902]);
    drop_slots(&world).await;
}

/// Guards promise 2: what is committed before the consistent point is in the copy alone, what is
/// committed after it in the stream alone, whatever was open at the time.
#[tokio::test]
async fn snapshot_and_stream_meet_without_gap_or_overlap() {
    let mut world = World::new(PgVersion::V15, PgVersion::V14).await;
    let insert = |name: &str| format!("insert into member values (1, '{name}', 'seam')");
    world.source.batch_execute(&insert("before")).await.unwrap();
    let made = begin(&mut world, 1).await;
    world.source.batch_execute(&insert("after")).await.unwrap();
    let spine = world.spine().await;
    copy(
        &world,
        &job(&world, &spine, &made, 1),
        &mut Heard::default(),
    )
    .await
    .unwrap();
    let seam = "select array_agg(email) from member where role = 'seam'";
    assert_eq!(one::<Vec<String>>(&world.sink, seam).await, ["before"]);

    let streamed = format!(
        "select array_agg(encode(data, 'escape'))
         from pg_logical_slot_peek_binary_changes('{}', null, null, 'proto_version', '1',
              'publication_names', '{1}_ins,{1}_mut')
         where get_byte(data, 0) = ascii('I')",
        made.slot,
        world.unit.prefix(),
    );
    let changes: Vec<String> = one(&world.source, &streamed).await;
    assert_eq!(changes.len(), 1);
    assert!(changes[0].contains("after"), "{changes:?}");
    drop_slots(&world).await;
}

/// Guards promise 2: two snapshots are never mixed.
#[tokio::test]
async fn a_copy_does_not_begin_beside_rows_of_another() {
    let mut world = World::new(PgVersion::V15, PgVersion::V14).await;
    let spine = world.spine().await;
    let made = begin(&mut world, 1).await;
    let job_1 = job(&world, &spine, &made, 1);
    copy(&world, &job_1, &mut Heard::default()).await.unwrap();
    let before = all_rows(&world.sink).await;
    let again = copy(&world, &job_1, &mut Heard::default()).await;
    assert!(
        matches!(again, Err(CopyError::NotEmpty { table: named }) if named == table("organization"))
    );
    assert_eq!(all_rows(&world.sink).await, before);
    assert_eq!(
        position(&world).await,
        None,
        "a stream could begin behind a copy that did not run"
    );
    drop_slots(&world).await;
}

/// Guards the gap between register and snapshot, in the snapshot itself.
#[tokio::test]
async fn a_spine_that_changed_before_the_snapshot_is_refused() {
    let mut world = World::new(PgVersion::V15, PgVersion::V14).await;
    let spine = world.spine().await;
    let project = "insert into project (id, organization_id) values (gen_random_uuid(), 1)";
    world.source.batch_execute(project).await.unwrap();
    let made = begin(&mut world, 1).await;
    let before = all_rows(&world.sink).await;
    let error = copy(
        &world,
        &job(&world, &spine, &made, 1),
        &mut Heard::default(),
    )
    .await;
    assert!(matches!(
        error,
        Err(CopyError::Spine(SpineError::StaticSpineChanged {
            appeared: 1,
            gone: 0,
            ..
        }))
    ));
    assert_eq!(all_rows(&world.sink).await, before);

    // One that slips in after the snapshot is not the copy's to see: the stream guards it.
    let spine = world.spine().await;
    drop_slots(&world).await;
    let made = begin(&mut world, 2).await;
    world.source.batch_execute(project).await.unwrap();
    copy(
        &world,
        &job(&world, &spine, &made, 2),
        &mut Heard::default(),
    )
    .await
    .unwrap();
    drop_slots(&world).await;
}

/// Stops a copy at a table, and lets it go on when told.
struct StopsAt {
    table: &'static str,
    reached: Sender<()>,
    go_on: Receiver<()>,
    stopped: bool,
}

impl Observer for StopsAt {
    fn progress(&mut self, progress: &Progress) {
        if progress.table == table(self.table) && !self.stopped {
            self.stopped = true;
            self.reached.send(()).unwrap();
            tokio::task::block_in_place(|| self.go_on.recv()).unwrap();
        }
    }
}

fn stops_at(table: &'static str) -> (StopsAt, Receiver<()>, Sender<()>) {
    let (reached, has_reached) = channel();
    let (let_go, go_on) = channel();
    let observer = StopsAt {
        table,
        reached,
        go_on,
        stopped: false,
    };
    (observer, has_reached, let_go)
}

async fn wait(reached: Receiver<()>) {
    tokio::task::spawn_blocking(move || reached.recv())
        .await
        .unwrap()
        .unwrap();
}

/// Guards promise 5: a mover that is superseded in the middle of its copy commits no further row.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_mover_superseded_while_it_copies_commits_nothing_more() {
    let mut world = World::new(PgVersion::V15, PgVersion::V14).await;
    let spine = world.spine().await;
    let made = begin(&mut world, 1).await;
    let mut successor = world.sink_session().await;
    let (mut observer, reached, let_go) = stops_at("event");
    let unit = world.unit.clone();
    let job = job(&world, &spine, &made, 1);
    let taking_over = tokio::spawn(async move {
        wait(reached).await;
        let patient = Duration::from_secs(30);
        let taken = sink::take_over(&mut successor, &unit, Epoch(2), patient).await;
        taken.unwrap();
        let at_takeover = all_rows(&successor).await;
        let_go.send(()).unwrap();
        at_takeover
    });
    let copied = copy(&world, &job, &mut observer).await;
    let at_takeover = taking_over.await.unwrap();
    assert!(matches!(
        copied,
        Err(CopyError::Sink(SinkError::Superseded { .. }))
    ));
    assert_eq!(all_rows(&world.sink).await, at_takeover);
    assert_eq!(position(&world).await, None);
    drop_slots(&world).await;
}

/// Guards the scrub: what a copy that was told to stop leaves behind hangs together from the root.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_copy_told_to_stop_leaves_whole_parents_and_no_position() {
    let mut world = World::new(PgVersion::V15, PgVersion::V14).await;
    let spine = world.spine().await;
    let made = begin(&mut world, 1).await;
    let (mut observer, reached, let_go) = stops_at("event");
    let cancel = CancellationToken::new();
    let mut source = world.source_session().await;
    let mut to = world.sink_session().await;
    let job = job(&world, &spine, &made, 1);
    let told = cancel.clone();
    let telling = tokio::spawn(async move {
        wait(reached).await;
        told.cancel();
        let_go.send(()).unwrap();
    });
    let copied = snapshot::copy(&job, &mut source, &mut to, &mut observer, &cancel).await;
    telling.await.unwrap();
    assert!(matches!(copied, Err(CopyError::Cancelled)));
    drop((source, to));
    let seen = rows_of(&world.sink, 1).await;
    let whole = rows_of(&world.source, 1).await;
    for parent in ["organization", "project", "\"group\""] {
        assert_eq!(seen[parent], whole[parent]);
    }
    assert!(seen["event"].is_empty() && seen["\"App\".line"].is_empty());
    assert_eq!(position(&world).await, None);
    drop_slots(&world).await;
}

/// Guards promise 2: without its exporter a snapshot is gone, and nothing of another is taken.
#[tokio::test]
async fn a_snapshot_whose_exporter_is_gone_copies_nothing() {
    let mut world = World::new(PgVersion::V15, PgVersion::V14).await;
    let spine = world.spine().await;
    let made = begin(&mut world, 1).await;
    let before = all_rows(&world.sink).await;
    let (name, consistent_point) = (made.snapshot.clone(), made.consistent_point);
    drop_slots(&world).await;
    drop(made);
    let job = Job {
        unit: &world.unit,
        epoch: Epoch(1),
        graph: &world.graph,
        spine: &spine,
        snapshot: &name,
        consistent_point,
        keys: &KEYS,
    };
    let error = copy(&world, &job, &mut Heard::default()).await;
    assert!(matches!(error, Err(CopyError::Asked(_))), "{error:?}");
    assert_eq!(all_rows(&world.sink).await, before);
}

/// Guards promise 1: no value lands in a wrong column, and none is left out silently.
#[tokio::test]
async fn columns_that_differ_are_named() {
    let mut world = World::new(PgVersion::V15, PgVersion::V14).await;
    world
        .sink
        .batch_execute("alter table event rename body to text; alter table event add note text")
        .await
        .unwrap();
    let spine = world.spine().await;
    let made = begin(&mut world, 1).await;
    match copy(
        &world,
        &job(&world, &spine, &made, 1),
        &mut Heard::default(),
    )
    .await
    {
        Err(CopyError::ColumnsDiffer {
            table: named,
            only_source,
            only_sink,
        }) => {
            assert_eq!(named, table("event"));
            assert_eq!(only_source, ["body"]);
            assert_eq!(only_sink, ["note", "text"]);
        }
        other => panic!("{other:?}"),
    }
    assert!(rows_of(&world.sink, 1).await["organization"].is_empty());
    drop_slots(&world).await;
}

/// Guards promise 1: a trigger of the sink that swallows rows does not go unnoticed.
#[tokio::test]
async fn rows_that_the_sink_swallows_are_counted() {
    let mut world = World::new(PgVersion::V15, PgVersion::V14).await;
    world
        .sink
        .batch_execute(
            "create function swallow() returns trigger language plpgsql as 'begin return null; end';
             create trigger swallow before insert on event for each row execute function swallow();
             alter table event enable always trigger swallow",
        )
        .await
        .unwrap();
    let spine = world.spine().await;
    let made = begin(&mut world, 1).await;
    let error = copy(
        &world,
        &job(&world, &spine, &made, 1),
        &mut Heard::default(),
    )
    .await;
    assert!(
        matches!(
            error,
            Err(CopyError::RowsDiffer {
                given: 500,
                taken: 0,
                ..
            })
        ),
        "{error:?}"
    );
    drop_slots(&world).await;
}

/// A sink session whose role owns the tables and may no more than that.
async fn plain_owner(world: &World) -> Client {
    let client = world.sink_session().await;
    client
        .batch_execute(&format!(
            "create role owner_{0};
             do $$ declare t record; begin
               for t in select oid::regclass as name from pg_class
                        where relkind in ('r', 'p') and relnamespace in
                          ('public'::regnamespace, '\"App\"'::regnamespace, 'monarch'::regnamespace)
               loop execute format('alter table %s owner to owner_{0}', t.name); end loop;
             end $$;
             grant usage on schema \"App\", monarch to owner_{0};
             set role owner_{0}",
            world.database
        ))
        .await
        .unwrap();
    client
}

/// Guards sinks whose role may not disable triggers: parents first satisfies their foreign keys.
#[tokio::test]
async fn a_plain_owner_copies_under_foreign_keys() {
    let mut world = World::new(PgVersion::V15, PgVersion::V14).await;
    let spine = world.spine().await;
    let made = begin(&mut world, 1).await;
    let mut source = world.source_session().await;
    let mut to = plain_owner(&world).await;
    let job = job(&world, &spine, &made, 1);
    let cancel = CancellationToken::new();
    snapshot::copy(&job, &mut source, &mut to, &mut Heard::default(), &cancel)
        .await
        .unwrap();
    assert_eq!(
        rows_of(&world.sink, 1).await,
        rows_of(&world.source, 1).await
    );
    drop_slots(&world).await;
}

/// Guards promise 10: of a refusal there is the constraint and no value.
#[tokio::test]
async fn a_refused_row_is_told_without_its_values() {
    let mut world = World::new(PgVersion::V15, PgVersion::V14).await;
    world
        .sink
        .batch_execute(
            "alter table event add constraint short check (length(body) < 100) not valid",
        )
        .await
        .unwrap();
    let spine = world.spine().await;
    let made = begin(&mut world, 1).await;
    let error = copy(
        &world,
        &job(&world, &spine, &made, 1),
        &mut Heard::default(),
    )
    .await
    .unwrap_err();
    let text = format!("{error} {error:?}");
    assert!(text.contains("short") && text.contains("23514"), "{text}");
    assert!(!text.contains("xxx") && !text.contains("e1-"), "{text}");
    assert!(rows_of(&world.sink, 1).await["event"].is_empty());
    drop_slots(&world).await;
}
