//! Step 4 of docs/outbox.md: receivers of one's own, tombstones, and the cascade that they drive.

#[path = "guide/mod.rs"]
mod guide;
#[path = "guide/member.rs"]
mod member;

use anyhow::Result;
use futures::future::BoxFuture;
use guide::{Category, Database};
use member::Member;
use monarch_outbox::{
    BoxError, Cascade, Cell, CellName, CellOutbox, Control, Delivery, Drain, LookBack, OnDelete,
    Receiver, Receivers, Registry, Table, Tombstone, TombstoneService, TombstoneTable,
    maybe_process_tombstone,
};
use tokio_postgres::Client;

/// Tells control of tombstones. A real one calls control's service.
struct Tombstones(Client);

impl TombstoneService for Tombstones {
    fn record<'a>(
        &'a self,
        _: Option<&'a CellName>,
        tombstone: &'a Tombstone,
    ) -> BoxFuture<'a, Result<(), BoxError>> {
        Box::pin(async move {
            Ok(TombstoneTable::<Control>::default()
                .record(&self.0, tombstone)
                .await?)
        })
    }
}

/// Does something with a member that is there; a member that is gone leaves a tombstone.
struct MemberReceiver(Tombstones);

impl Receiver<Cell> for MemberReceiver {
    fn receive<'a>(
        &'a self,
        delivery: &'a Delivery<'a, Cell>,
    ) -> BoxFuture<'a, Result<(), BoxError>> {
        Box::pin(async move {
            let member = maybe_process_tombstone::<Member>(delivery, &self.0).await?;
            if let Some(member) = member {
                // What is written here is delivered after it, and undone if this fails.
                let entry = CellOutbox::new(Category::AuditLogEvent, 1, member.id);
                let payload = serde_json::json!({"member": member.name});
                delivery.write_all(&[entry.payload(payload)]).await?;
            }
            Ok(())
        })
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let database = Database::new().await?;
    let mut client = database.connect().await?;
    let receivers = Receivers::new()
        .with(
            Category::MemberUpdate,
            MemberReceiver(Tombstones(database.connect().await?)),
        )
        // All that is needed is in the payload.
        .on(Category::AuditLogEvent, |message| async move {
            let payload = message.payload.ok_or("an entry has a payload")?;
            eprintln!("audit log: {payload}");
            Ok::<(), BoxError>(())
        });
    let drain = Drain::new(Table::default(), Registry::new(Category::ALL)?, receivers)?;

    let mut ada = Member {
        id: 0,
        organization_id: 1,
        name: "Ada".to_owned(),
    };
    let created = drain.atomic(&mut client, async |outbox| outbox.create(&mut ada).await);
    // The member, and the entry that its receiver wrote.
    assert_eq!(created.await?.flushed?.delivered, 2);
    drain
        .atomic(&mut client, async |outbox| outbox.delete(&ada).await)
        .await?
        .flushed?;

    // In control: what refers to a member that is gone goes too.
    client
        .execute(
            "insert into note (user_id, text) values ($1, 'x')",
            &[&ada.id],
        )
        .await?;
    let cascade = Cascade::<Control>::new(TombstoneTable::default()).rows(
        "note",
        "user_id",
        "member",
        OnDelete::Cascade,
    );
    let removed = cascade
        .run(&mut client, &Table::default(), LookBack::All)
        .await?;
    assert_eq!(removed["note.user_id"], 1);
    Ok(())
}
