//! Random moves for a minute or two: those that once found a fault, and then the same row of seeds
//! every time, so that what a change is judged by is what it changed. New seeds are `make soak`'s.

use std::time::{Duration, Instant};

use futures::stream::{self, StreamExt as _};
use monarch_postgres::stream::Batching;
use monarch_random::{Order, run};

/// How long moves are begun.
const BUDGET: Duration = Duration::from_secs(60);
/// How many moves go on at a time.
const TOGETHER: usize = 3;
/// The first of the row.
const FIRST: u64 = 200;

/// Seeds that once found a fault:
///
/// * 331: a parent's key was changed and changed back, and the children that it had left behind were
///   not on the sink;
/// * 2012, now and then: a row was changed in the transaction in which its grandparent had left;
/// * 5019: two stores scoped each other's tables, and the root's was emptied before both.
///
/// They did so without the roles, standbys and hazards that seeds roll today.
const FOUND: [u64; 3] = [331, 2012, 5019];

/// The same with them:
///
/// * 40011: a row's key changes to one that another tenant took, which the sink's index refuses;
/// * 50008: a parent leaves before its children, under a role that cannot keep a foreign key of the
///   sink from acting, which cannot wait either: the move fails by name, as preflight warns;
/// * 416466086508: the same where the foreign key can wait, and so refuses at the commit only.
const FOUND_SINCE: [u64; 3] = [40_011, 50_008, 416_466_086_508];

/// Row by row, as many together as pays, and in small numbers that the seed chooses.
fn in_every_mode(order: Order) -> [Order; 3] {
    let modes = [
        Batching::Off,
        Batching::AsPays,
        Batching::Random(order.seed),
    ];
    modes.map(|mode| Order {
        batching: Some(mode),
        ..order
    })
}

/// Promises 1 to 3, 7 and 8, by rows: whatever the schema and whatever happens beside the move, the
/// sink has exactly the organization's rows and its own tenants', or the move fails by a name that
/// had its cause, and leaves nothing.
#[tokio::test]
async fn a_random_move_arrives_whole_or_fails_by_name() {
    let until = Instant::now() + BUDGET;
    let found = FOUND.into_iter().map(Order::plain);
    let found_since = FOUND_SINCE.into_iter().map(Order::of);
    let row = (FIRST..)
        .map(Order::of)
        .take_while(|_| Instant::now() < until);
    let found = found.chain(found_since).flat_map(in_every_mode);
    let orders = found.chain(row);
    let moves = orders.map(|order| async move {
        let judged = Box::pin(run(&order)).await;
        judged.map_err(|error| format!("make soak SEED={}\n{error:#}", order.seed))
    });
    let judged: Vec<_> = stream::iter(moves)
        .buffer_unordered(TOGETHER)
        .collect()
        .await;
    eprintln!("{} moves", judged.len());
    let failed: Vec<String> = judged.into_iter().filter_map(Result::err).collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
