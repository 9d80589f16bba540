//! Steps 5 and 6 of docs/outbox.md: a model that was there before its outbox, and its backfill.

#[path = "guide/mod.rs"]
mod guide;
#[path = "guide/member.rs"]
mod member;

use anyhow::Result;
use guide::{Category, Database};
use member::{ControlService, Member};
use monarch_outbox::{
    BACKFILLS_PER_MINUTE, Backfills, Drain, OptionTable, Partition, Receivers, Registry, Table,
};
use serde_json::json;

#[tokio::main]
async fn main() -> Result<()> {
    let database = Database::new().await?;
    let mut client = database.connect().await?;
    // Rows of before: nobody was told of them.
    client
        .batch_execute(
            "insert into member (organization_id, name) \
             select n % 10, 'member ' || n from generate_series(1, 2500) n",
        )
        .await?;
    let receivers =
        Receivers::new().replicated::<Member>(ControlService(database.connect().await?));
    let options = OptionTable::default();
    let drain = Drain::new(Table::default(), Registry::new(Category::ALL)?, receivers)?
        .options(options.clone());
    let backfills = Backfills::default().model::<Member>();
    backfills.create(&client).await?;

    // The code is deployed, with REPLICATION_VERSION = 2. Nothing happens yet.
    assert_eq!(
        backfills
            .minute(&drain, &mut client, BACKFILLS_PER_MINUTE)
            .await?
            .total(),
        0
    );

    // The option lets it begin. (The runner of step 8 does this each minute.)
    let key = "outbox_replication.member.replication_version";
    options.set(&client, key, &json!(2)).await?;
    assert_eq!(
        backfills
            .minute(&drain, &mut client, BACKFILLS_PER_MINUTE)
            .await?
            .total(),
        2500
    );
    drain.partition(&mut client, Partition::ALL).await?;
    let mapped = client
        .query_one("select count(*) from member_mapping", &[])
        .await?;
    assert_eq!(mapped.get::<_, i64>(0), 2500);

    // Done: the version is the one above.
    let mark = backfills.watermark::<Member>(&client).await?;
    assert_eq!((mark.low, mark.version), (0, 3));
    Ok(())
}
