//! Step 8 of docs/outbox.md: the runner, and what to do about an outbox that does not empty.

#[path = "guide/mod.rs"]
mod guide;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Result;
use guide::{Category, Database, Scope};
use monarch_outbox::runner::{Connect, Schedule, run};
use monarch_outbox::{
    Backfills, BoxError, Cell, CellOutbox, Drain, OptionTable, Receivers, Registry, Shard, Table,
};
use serde_json::json;
use tokio_postgres::Client;
use tokio_util::sync::CancellationToken;

/// Connections for the runner; a service with a pool takes them from it.
struct Connections(Arc<Database>);

impl Connect for Connections {
    type Connection = Box<Client>;

    async fn connect(&self) -> Result<Box<Client>, BoxError> {
        Ok(Box::new(self.0.connect().await?))
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let database = Arc::new(Database::new().await?);
    let mut client = database.connect().await?;
    let broken = Arc::new(AtomicBool::new(true));
    let receivers = {
        let broken = Arc::clone(&broken);
        Receivers::new().on(Category::MemberUpdate, move |_| {
            let failing = broken.load(Ordering::Relaxed);
            std::future::ready(if failing {
                Err("the other side is down")
            } else {
                Ok(())
            })
        })
    };
    let stop = CancellationToken::new();
    let options = OptionTable::default();
    let drain = Drain::new(Table::default(), Registry::new(Category::ALL)?, receivers)?
        .options(options.clone())
        .stop_on(stop.clone());
    let drain = Arc::new(drain);

    // At the commit it fails: the message stays, the shard is on backoff.
    let written = drain.atomic(&mut client, async |outbox| {
        outbox
            .write(&CellOutbox::new(Category::MemberUpdate, 42, 1))
            .await
    });
    let report = written.await?.flushed?;
    eprintln!("{}", report.errors[0]);

    // What is stuck, and the SQL to look at it elsewhere.
    let question = drain.diagnostics().stuck(20);
    eprintln!("{}", question.sql());
    let stuck = question.ask(&client).await?;
    assert_eq!((stuck[0].scope, stuck[0].shard, stuck[0].depth), (0, 42, 1));

    // A shard that does harm can be switched off; its messages stay.
    options
        .set(&client, "outbox.disabled_organizations", &json!([42]))
        .await?;
    let shard = Shard::<Cell>::cell(Scope::Organization, 42);
    assert_eq!(drain.shard(&mut client, &shard).await?.skipped, 1);
    options
        .unset(&client, "outbox.disabled_organizations")
        .await?;

    // Repaired: the runner delivers it when its time has come.
    broken.store(false, Ordering::Relaxed);
    let schedule = Schedule {
        interval: Duration::from_millis(100),
        ..Schedule::default()
    };
    let connections = Connections(Arc::clone(&database));
    let running = tokio::spawn(run(
        Arc::clone(&drain),
        Backfills::default(),
        connections,
        schedule,
    ));
    let depth = drain.diagnostics().depths(10);
    while !depth.ask(&client).await?.is_empty() {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    stop.cancel();
    running.await?;
    Ok(())
}
