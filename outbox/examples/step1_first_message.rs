//! Step 1 of docs/outbox.md: a message that is written with a change and delivered at its commit.

#[path = "guide/mod.rs"]
mod guide;

use anyhow::Result;
use guide::{Category, Database};
use monarch_outbox::{BoxError, CellOutbox, Drain, Message, Receivers, Registry, Table};

#[tokio::main]
async fn main() -> Result<()> {
    let database = Database::new().await?;
    let mut client = database.connect().await?;
    let receivers = Receivers::new().on(
        Category::AuditLogEvent,
        |message: Message<monarch_outbox::Cell>| async move {
            eprintln!("delivered: {:?}", message.payload);
            Ok::<(), BoxError>(())
        },
    );
    let table = Table::default();
    // At the start: whether the table can hold an outbox, and receivers fit the categories.
    table.check(&client).await?;
    let drain = Drain::new(table, Registry::new(Category::ALL)?, receivers)?;

    let committed = drain
        .atomic(&mut client, async |outbox| {
            outbox
                .transaction()
                .execute("insert into note (user_id, text) values (7, 'hello')", &[])
                .await?;
            let payload = serde_json::json!({"event": "note.create"});
            outbox
                .write(&CellOutbox::new(Category::AuditLogEvent, 1, 1).payload(payload))
                .await?;
            Ok::<_, anyhow::Error>(())
        })
        .await?;
    assert_eq!(committed.flushed?.delivered, 1);
    Ok(())
}
