//! Step 2 of docs/outbox.md: a model of a cell, replicated to control.

#[path = "guide/mod.rs"]
mod guide;
#[path = "guide/member.rs"]
mod member;

use anyhow::Result;
use guide::{Category, Database};
use member::{ControlService, Member};
use monarch_outbox::{Drain, Receivers, Registry, Table};

#[tokio::main]
async fn main() -> Result<()> {
    let database = Database::new().await?;
    let mut client = database.connect().await?;
    let receivers =
        Receivers::new().replicated::<Member>(ControlService(database.connect().await?));
    let drain = Drain::new(Table::default(), Registry::new(Category::ALL)?, receivers)?;
    let control = ControlService(database.connect().await?);

    let mut ada = Member {
        id: 0,
        organization_id: 1,
        name: "Ada".to_owned(),
    };
    drain
        .atomic(&mut client, async |outbox| outbox.create(&mut ada).await)
        .await?
        .flushed?;
    assert_eq!(control.name_of(ada.id).await?.as_deref(), Some("Ada"));

    ada.name = "Ada L.".to_owned();
    drain
        .atomic(&mut client, async |outbox| outbox.update(&ada).await)
        .await?
        .flushed?;
    assert_eq!(control.name_of(ada.id).await?.as_deref(), Some("Ada L."));

    // Many at once: their ids are taken beforehand, their messages written with them.
    let mut more = ["Bob", "Cy"].map(|name| Member {
        id: 0,
        organization_id: 1,
        name: name.to_owned(),
    });
    drain
        .atomic(&mut client, async |outbox| {
            outbox.bulk_create(&mut more).await
        })
        .await?
        .flushed?;

    drain
        .atomic(&mut client, async |outbox| outbox.delete(&ada).await)
        .await?
        .flushed?;
    assert_eq!(control.name_of(ada.id).await?, None);
    assert_eq!(control.name_of(more[1].id).await?.as_deref(), Some("Cy"));
    Ok(())
}
