//! How much an organization has, before anything is copied.

use monarch_config::manifest_from_str;
use monarch_harness::{PgVersion, fresh_name, shared};
use monarch_postgres::catalog;
use monarch_postgres::estimate::{Basis, Estimate, of_table};
use tokio_postgres::Client;

use crate::world::store;

const MANIFEST: &str = "root: org
stores: {default: {type: postgres}}
relationships:
  org: {store: default, primary_key: [id]}
  item: {store: default, primary_key: [id], refs: {org_id: {parent: org}}}
  part: {store: default, primary_key: [id], refs: {org_id: {parent: org}}}
  spare: {store: default, primary_key: [id], refs: {org_id: {parent: org}}}
";

/// Half of 20,000 rows of a thousand bytes are the organization's, in more blocks than are read; and
/// half of 2,000 in two leaves. An index counts rows, which are not statistics of what is in them.
const ROWS: &str = "
    create table org (id bigint primary key);
    create table item (id bigint, org_id bigint, body text) with (autovacuum_enabled = false);
    create table part (id bigint, org_id bigint, body text) partition by hash (id);
    create table part_0 partition of part for values with (modulus 2, remainder 0)
      with (autovacuum_enabled = false);
    create table part_1 partition of part for values with (modulus 2, remainder 1)
      with (autovacuum_enabled = false);
    create table spare (id bigint, org_id bigint);
    alter table item alter body set storage plain;
    insert into item select n, n % 2, repeat('x', 1000) from generate_series(1, 20000) n;
    insert into part select n, n % 2, 'x' from generate_series(1, 2000) n;
    create index on item (id)";

async fn estimates(client: &Client) -> Vec<Estimate> {
    let graph = manifest_from_str("manifest.yaml", MANIFEST).unwrap();
    let walk = graph.walk(&store("default"));
    let catalog = catalog::load(client, &walk).await.unwrap();
    let mut estimates = Vec::new();
    for name in ["item", "part", "spare"] {
        let relation = catalog.relation(&name.parse().unwrap()).unwrap();
        estimates.push(of_table(client, relation, "t.org_id = 1").await.unwrap());
    }
    estimates
}

/// A database that was just restored has no statistics. Whoever plans a move there is told what is
/// there, not what a planner takes for granted.
#[tokio::test]
async fn a_table_that_was_never_analyzed_is_read_in_part() {
    let cluster = shared::cluster(PgVersion::V15).await;
    let database = fresh_name("estimate");
    cluster.create_database(&database).await.unwrap();
    let client = cluster.admin(&database).await.unwrap();
    client.batch_execute(ROWS).await.unwrap();

    let [item, part, spare] = estimates(&client).await[..] else {
        panic!("three tables");
    };
    assert_eq!(item.basis, Basis::Sample);
    assert!((9_000..11_000).contains(&item.rows), "{item:?}");
    assert!((9_000_000..12_000_000).contains(&item.bytes), "{item:?}");
    assert_eq!((part.rows, part.basis), (1_000, Basis::Sample));
    assert_eq!((spare.rows, spare.bytes), (0, 0), "{spare:?}");

    client.batch_execute("analyze item, part").await.unwrap();
    let analyzed = estimates(&client).await;
    for (of, about) in analyzed.iter().zip([10_000, 1_000]) {
        assert_eq!(of.basis, Basis::Statistics, "{of:?}");
        assert!((about / 2..about * 2).contains(&of.rows), "{of:?}");
    }
}
