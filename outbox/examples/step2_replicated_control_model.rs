//! Step 2 of docs/outbox.md: a model of control, replicated to each cell that it is for.

#[path = "guide/mod.rs"]
mod guide;

use anyhow::Result;
use guide::{Category, Database, control};
use monarch_outbox::{
    BoxError, CategoryDef, CellName, Control, Delivery, Drain, Receivers, Registry, Replicated,
    Targets,
};
use tokio_postgres::Client;

monarch_outbox::model! {
    /// A setting of a user.
    pub(crate) struct Setting in Control table "setting" {
        pub(crate) user_id: i64,
        pub(crate) value: String,
    }
}

/// The cells, as control reaches them.
struct Cells(Client);

impl Replicated for Setting {
    const CATEGORY: CategoryDef = Category::SettingUpdate.def();
    type Services = Cells;

    // One call for each cell.
    async fn handle_async_replication(
        &self,
        cells: &Cells,
        delivery: &Delivery<'_, Control>,
    ) -> Result<(), BoxError> {
        let cell = delivery.message().cell_name().as_str();
        let upsert = "insert into setting_copy values ($1, $2, $3) on conflict (cell, setting_id) \
                      do update set value = excluded.value";
        cells
            .0
            .execute(upsert, &[&cell, &self.id, &self.value])
            .await?;
        Ok(())
    }

    async fn handle_async_deletion(
        cells: &Cells,
        delivery: &Delivery<'_, Control>,
    ) -> Result<(), BoxError> {
        let message = delivery.message();
        let delete = "delete from setting_copy where cell = $1 and setting_id = $2";
        let cell = message.cell_name().as_str();
        cells
            .0
            .execute(delete, &[&cell, &message.object_identifier])
            .await?;
        Ok(())
    }

    // This is what happens without an override, too: the model has no organization, but a user.
    async fn outbox_targets(
        &self,
        targets: Targets<'_, Control>,
    ) -> Result<Vec<CellName>, BoxError> {
        targets.of_user(self.user_id).await
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let database = Database::new().await?;
    let mut client = database.connect().await?;
    client
        .batch_execute(
            "insert into sentry_organizationmapping values (1, 'de'), (2, 'us') \
                 on conflict do nothing;
             insert into sentry_organizationmembermapping values (1, 7), (2, 7);",
        )
        .await?;
    let receivers = Receivers::new().replicated::<Setting>(Cells(database.connect().await?));
    let drain = Drain::new(control(), Registry::new(Category::ALL)?, receivers)?;
    let mut setting = Setting {
        id: 0,
        user_id: 7,
        value: "dark".to_owned(),
    };
    let created = drain.atomic(&mut client, async |outbox| {
        outbox.create(&mut setting).await
    });
    assert_eq!(created.await?.flushed?.delivered, 2);
    let copies = "select count(*) from setting_copy where setting_id = $1 and value = 'dark'";
    assert_eq!(
        client
            .query_one(copies, &[&setting.id])
            .await?
            .get::<_, i64>(0),
        2
    );
    Ok(())
}
