//! Step 5 of docs/outbox.md: a model that has rows already begins to tell of its changes.

#[path = "guide/mod.rs"]
mod guide;
#[path = "guide/member.rs"]
mod member;

use anyhow::{Context, Result};
use guide::{Category, Database};
use member::{ControlService, Member};
use monarch_outbox::{Drain, Receivers, Registry, Table, find};

#[tokio::main]
async fn main() -> Result<()> {
    let database = Database::new().await?;
    let mut client = database.connect().await?;
    // Written long before there was an outbox.
    let insert =
        "insert into member (organization_id, name) values (1, 'Ada'), (1, 'Bob') returning id";
    let ids: Vec<i64> = client
        .query(insert, &[])
        .await?
        .iter()
        .map(|row| row.get(0))
        .collect();

    // What is deployed: the model is `Replicated`, its handlers are registered, and every change goes
    // through a `Writer`.
    let receivers =
        Receivers::new().replicated::<Member>(ControlService(database.connect().await?));
    let drain = Drain::new(Table::default(), Registry::new(Category::ALL)?, receivers)?;
    let control = ControlService(database.connect().await?);

    // A row of before that changes is told whole, for the handler reads the row.
    let mut ada: Member = find(&client, ids[0]).await?.context("Ada is there")?;
    ada.name = "Ada L.".to_owned();
    drain
        .atomic(&mut client, async |outbox| outbox.update(&ada).await)
        .await?
        .flushed?;
    assert_eq!(control.name_of(ids[0]).await?.as_deref(), Some("Ada L."));

    // A change that must be made by a statement of one's own is announced in its transaction.
    drain
        .atomic(&mut client, async |outbox| {
            let rename = "update member set name = upper(name) where id = $1";
            outbox.transaction().execute(rename, &[&ids[0]]).await?;
            outbox.announce(std::slice::from_ref(&ada)).await?;
            anyhow::Ok(())
        })
        .await?
        .flushed?;
    assert_eq!(control.name_of(ids[0]).await?.as_deref(), Some("ADA L."));

    // A row of before that does not change is not known there yet: that is the backfill's, step 6.
    assert_eq!(control.name_of(ids[1]).await?, None);
    Ok(())
}
