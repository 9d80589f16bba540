//! Moves of fixed seeds, on real servers of several versions. New ones are begun by `make soak`.

use futures::stream::{self, StreamExt as _};
use monarch_random::{Order, run};

/// How many moves go on at a time.
const TOGETHER: usize = 3;

/// Promises 1 to 3, 7 and 8, by rows: whatever the schema and whatever happens beside the move, the
/// sink has exactly the organization's rows and its own tenants', or the move fails by a name that
/// had its cause, and leaves nothing.
#[tokio::test]
async fn a_random_move_arrives_whole_or_fails_by_name() {
    let moves = (200..212).map(|seed| async move {
        let judged = Box::pin(run(&Order::of(seed))).await;
        judged.map_err(|error| format!("make soak SEED={seed}\n{error:#}"))
    });
    let judged: Vec<_> = stream::iter(moves)
        .buffer_unordered(TOGETHER)
        .collect()
        .await;
    let failed: Vec<String> = judged.into_iter().filter_map(Result::err).collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
