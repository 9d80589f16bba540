//! The plans of a drain's statements, on long queues: however long, an index, and no more pages than
//! what is chosen stands on.

use monarch_harness::{PgVersion, fresh_name, shared};
use tokio_postgres::Client;

use super::statements::{SETTINGS, Statements};
use super::walk::Lookups;
use crate::silo::{Cell, Control, Silo};
use crate::table::Table;

/// Pages that a statement may touch: many times what it needs, a fraction of what a walk of the table
/// or of an index would.
const PAGES: u64 = 1_200;

/// An empty table with or without its indexes, which are built more quickly afterwards.
async fn table<S: Silo>(indexes: bool) -> (Client, Table<S>) {
    let cluster = shared::cluster(PgVersion::V16).await;
    let name = fresh_name("plans");
    cluster.create_database(&name).await.unwrap();
    let client = cluster.admin(&name).await.unwrap();
    let table = Table::<S>::default();
    let create = table.create_sql();
    let (bare, rest) = create.split_once(';').unwrap();
    client.batch_execute(bare).await.unwrap();
    // What is known of the table is what the test says.
    let alone = format!(
        "alter table {} set (autovacuum_enabled = off)",
        table.name().sql()
    );
    client.batch_execute(&alone).await.unwrap();
    if indexes {
        client.batch_execute(rest).await.unwrap();
    }
    (client, table)
}

async fn fill<S: Silo>(client: &Client, table: &Table<S>, rows: u32) {
    let (column, value) = match S::TARGETED {
        true => (", region_name", ", 'de'"),
        false => ("", ""),
    };
    let fill = format!(
        "insert into {} (shard_scope, shard_identifier, category, object_identifier{column}) \
         select n % 3, n % 50000, n % 7, n{value} from generate_series(1, {rows}) n",
        table.name().sql(),
    );
    client.batch_execute(&fill).await.unwrap();
}

/// A statement, and parameters as they stand in SQL.
type Statement = (String, String);

/// What a tour prepares.
fn prepared<S: Silo>(table: &Table<S>) -> Vec<Statement> {
    let (visit, shard) = (Statements::new(table), shard::<S>());
    vec![
        (visit.take, format!("{shard}, 500000")),
        (visit.lock_head, shard.to_owned()),
        (visit.choose, format!("{shard}, 500000, 1000, 500, 500000")),
        (visit.put_off_head, format!("{shard}, 2.0")),
        (visit.make_due, shard.to_owned()),
        (visit.head_upto, format!("{shard}, 500000")),
    ]
}

/// What is planned each time.
fn planned<S: Silo>(table: &Table<S>) -> Vec<Statement> {
    let (visit, walk) = (Statements::new(table), Lookups::new(table));
    let shard = shard::<S>();
    let ids: Vec<String> = (1..100).map(|id| id.to_string()).collect();
    vec![
        (visit.delete, format!("'{{{}}}'", ids.join(","))),
        (visit.put_off_shard, format!("{shard}, 2.0, 10000")),
        (walk.highest, shard.to_owned()),
        (walk.shards, format!("{shard}, 500000, 100, 500000, 500000")),
        (walk.ids, String::new()),
    ]
}

fn shard<S: Silo>() -> &'static str {
    match S::TARGETED {
        true => "'de', 0, 42",
        false => "0, 42",
    }
}

async fn prepare(client: &Client, statements: &[Statement]) {
    for (n, (sql, _)) in statements.iter().enumerate() {
        let prepare = format!("prepare statement_{n} as {sql}");
        client.batch_execute(&prepare).await.unwrap();
    }
}

/// Runs each prepared statement as a drain's transaction does, and undoes it.
async fn run(
    client: &mut Client,
    statements: &[Statement],
    mode: &str,
    explain: &str,
) -> Vec<String> {
    let mut plans = Vec::new();
    for (n, (_, parameters)) in statements.iter().enumerate() {
        let transaction = client.transaction().await.unwrap();
        let mode = format!("{SETTINGS} set local plan_cache_mode = {mode}");
        transaction.batch_execute(&mode).await.unwrap();
        let execute = match parameters.is_empty() {
            true => format!("{explain} execute statement_{n}"),
            false => format!("{explain} execute statement_{n}({parameters})"),
        };
        let lines = transaction.simple_query(&execute).await.unwrap();
        let lines = lines.iter().filter_map(|line| match line {
            tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
            _ => None,
        });
        plans.push(lines.collect::<Vec<_>>().join("\n"));
        transaction.rollback().await.unwrap();
    }
    plans
}

/// Fails unless every plan walks an index and stops where it must.
async fn assert_short(client: &mut Client, statements: &[Statement], mode: &str) {
    let plans = run(client, statements, mode, "explain (analyze, buffers)").await;
    for (plan, (sql, _)) in plans.iter().zip(statements) {
        assert!(!plan.contains("Seq Scan"), "{mode}: {sql}\n{plan}");
        assert!(plan.contains("Index"), "{mode}: {sql}\n{plan}");
        let pages = pages(plan);
        assert!(
            pages > 0 && pages < PAGES,
            "{mode}: {pages} pages\n{sql}\n{plan}"
        );
    }
}

/// Pages that were found in memory or read, by the node that had most: a line counts what is below its
/// node, too, but not what a `with` has written beside it.
fn pages(plan: &str) -> u64 {
    let buffers = plan
        .lines()
        .filter_map(|line| line.split_once("Buffers: shared"));
    let touched = buffers.map(|(_, counts)| {
        let counts = counts.split(' ').filter_map(|count| count.split_once('='));
        let counts = counts.filter(|(what, _)| ["hit", "read"].contains(what));
        counts
            .filter_map(|(_, pages)| pages.parse::<u64>().ok())
            .sum()
    });
    touched.max().unwrap_or(0)
}

async fn every_plan_walks_an_index<S: Silo>(rows: u32) {
    let (mut client, table) = table::<S>(false).await;
    fill(&client, &table, rows).await;
    table.create(&client).await.unwrap();
    client.batch_execute("analyze").await.unwrap();
    let all = [prepared(&table), planned(&table)].concat();
    prepare(&client, &all).await;
    for mode in ["force_custom_plan", "force_generic_plan"] {
        assert_short(&mut client, &all, mode).await;
    }
}

#[tokio::test]
async fn at_a_million_rows_every_query_of_a_cells_drain_walks_an_index() {
    every_plan_walks_an_index::<Cell>(1_000_000).await;
}

#[tokio::test]
async fn at_a_million_rows_every_query_of_controls_drain_walks_an_index() {
    every_plan_walks_an_index::<Control>(1_000_000).await;
}

#[tokio::test]
#[ignore = "fills ten million rows: a few minutes and 3 GB"]
async fn at_ten_million_rows_every_query_walks_an_index() {
    every_plan_walks_an_index::<Cell>(10_000_000).await;
    every_plan_walks_an_index::<Control>(10_000_000).await;
}

/// A drain that prepared its statements while the queue was empty goes on when it is long.
async fn a_plan_of_an_empty_queue_serves_a_long_one<S: Silo>() {
    let (mut client, table) = table::<S>(true).await;
    client.batch_execute("analyze").await.unwrap();
    let prepared = prepared(&table);
    prepare(&client, &prepared).await;
    run(&mut client, &prepared, "force_generic_plan", "").await;
    fill(&client, &table, 300_000).await;
    assert_short(&mut client, &prepared, "force_generic_plan").await;
}

#[tokio::test]
async fn a_cells_plan_of_an_empty_queue_serves_a_long_one() {
    a_plan_of_an_empty_queue_serves_a_long_one::<Cell>().await;
}

#[tokio::test]
async fn controls_plan_of_an_empty_queue_serves_a_long_one() {
    a_plan_of_an_empty_queue_serves_a_long_one::<Control>().await;
}
