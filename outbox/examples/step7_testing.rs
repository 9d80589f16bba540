//! Step 7 of docs/outbox.md: how an application tests what it replicates.

#[path = "guide/mod.rs"]
mod guide;
#[path = "guide/member.rs"]
mod member;

use anyhow::Result;
use guide::{Category, Database};
use member::{ControlService, Member};
use monarch_outbox::testing::{Side, SiloGuard, outbox_runner};
use monarch_outbox::{Cell, Control, Drain, Receivers, Registry, Shard, Table, find};

#[tokio::main]
async fn main() -> Result<()> {
    let database = Database::new().await?;
    let mut client = database.connect().await?;
    let mut draining = database.connect().await?;
    let receivers =
        Receivers::new().replicated::<Member>(ControlService(database.connect().await?));
    let drain = Drain::new(Table::default(), Registry::new(Category::ALL)?, receivers)?;
    let control = ControlService(database.connect().await?);

    // Written as it must be: without a flush the message can be looked at.
    let mut ada = Member {
        id: 0,
        organization_id: 1,
        name: "Ada".to_owned(),
    };
    let work = async |outbox: &monarch_outbox::Writer<'_, Cell>| outbox.create(&mut ada).await;
    let ((), _touched) = drain.atomic_without_flush(&mut client, work).await?;
    let shard = Shard::cell(guide::Scope::Organization, 1);
    let waiting = drain.diagnostics().shard(&shard, 10).ask(&client).await?;
    assert_eq!(
        (waiting.len(), waiting[0].category, waiting[0].object),
        (1, 3, ada.id)
    );

    // Replicated: the runner delivers everything that its work led to.
    let mut side = Side::new(&drain, &mut draining);
    outbox_runner(&mut [&mut side], async {}).await?;
    assert_eq!(control.name_of(ada.id).await?.as_deref(), Some("Ada"));

    // Idempotent: told again, nothing changes.
    let again = async {
        let work = async |outbox: &monarch_outbox::Writer<'_, Cell>| {
            outbox.announce(std::slice::from_ref(&ada)).await
        };
        drain.atomic_without_flush(&mut client, work).await
    };
    let ((), _touched) = outbox_runner(&mut [&mut side], again).await??;
    assert_eq!(control.name_of(ada.id).await?.as_deref(), Some("Ada"));

    // On the right side: a query of the other side's tables is an error.
    let guard = SiloGuard::default()
        .model::<Member>()
        .table::<Control>("member_mapping");
    guard.install(&client).await?;
    guard.enter::<Control>(&client).await?;
    let Err(wrong) = find::<Member>(&client, ada.id).await else {
        anyhow::bail!("a member is the cell's");
    };
    assert_eq!(wrong.code().map(|code| code.code()), Some("42501"));
    guard.leave(&client).await?;
    Ok(())
}
