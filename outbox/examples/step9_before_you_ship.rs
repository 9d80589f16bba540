//! Step 9 of docs/outbox.md: what of the checklist a program can check of itself, at its start or in
//! its tests.

#[path = "guide/mod.rs"]
mod guide;
#[path = "guide/member.rs"]
mod member;

use anyhow::{Result, ensure};
use guide::{Category, Database};
use member::{ControlService, Member};
use monarch_outbox::testing::{Side, outbox_runner};
use monarch_outbox::{
    Backfills, Cell, Drain, Receivers, Registry, Replicated, Shard, Table, Writer,
};

#[tokio::main]
async fn main() -> Result<()> {
    let database = Database::new().await?;
    let (mut client, mut draining) = (database.connect().await?, database.connect().await?);

    // At the start: the table can hold an outbox; each category is in one scope, and receivers fit
    // them. Whatever does not fit is named, all at once.
    let table = Table::<Cell>::default();
    table.check(&client).await?;
    let registry = Registry::new(Category::ALL)?;
    let receivers =
        Receivers::new().replicated::<Member>(ControlService(database.connect().await?));
    let drain = Drain::new(table, registry, receivers)?;

    // The scope is the one whose key the model has. (A model without that column does not compile.)
    assert_eq!(
        Member::CATEGORY.scope.shard_column,
        Some(Member::SHARD_COLUMN)
    );

    // The backfill is registered, and its version raised.
    let backfills = Backfills::default().model::<Member>();
    backfills.create(&client).await?;
    let mark = backfills.watermark::<Member>(&client).await?;
    ensure!(
        i64::from(Member::REPLICATION_VERSION) > i64::from(mark.version),
        "nothing to backfill"
    );

    // The message: scope, category, identifiers.
    let control = ControlService(database.connect().await?);
    let mut ada = Member {
        id: 0,
        organization_id: 1,
        name: "Ada".to_owned(),
    };
    let create = async |outbox: &Writer<'_, Cell>| outbox.create(&mut ada).await;
    let ((), _later) = drain.atomic_without_flush(&mut client, create).await?;
    let shard = Shard::cell(guide::Scope::Organization, 1);
    let waiting = drain.diagnostics().shard(&shard, 10).ask(&client).await?;
    assert_eq!((waiting[0].category, waiting[0].object), (3, ada.id));
    // What the deletion needs, and nothing that changes often.
    assert_eq!(
        waiting[0].json(),
        Some(serde_json::json!({"organization_id": 1}))
    );

    // Its arrival; again is the same.
    let mut side = Side::new(&drain, &mut draining);
    outbox_runner(&mut [&mut side], async {}).await?;
    assert_eq!(control.name_of(ada.id).await?.as_deref(), Some("Ada"));
    let announce =
        async |outbox: &Writer<'_, Cell>| outbox.announce(std::slice::from_ref(&ada)).await;
    let ((), _later) = drain.atomic_without_flush(&mut client, announce).await?;
    outbox_runner(&mut [&mut side], async {}).await?;
    assert_eq!(control.name_of(ada.id).await?.as_deref(), Some("Ada"));

    // The deletion, also of a row that is gone already.
    for _ in 0..2 {
        let delete = async |outbox: &Writer<'_, Cell>| outbox.delete(&ada).await;
        let ((), _later) = drain.atomic_without_flush(&mut client, delete).await?;
        outbox_runner(&mut [&mut side], async {}).await?;
        assert_eq!(control.name_of(ada.id).await?, None);
    }
    Ok(())
}
