//! A model of a cell that control must know of.

#![allow(dead_code, reason = "each program uses some of it")]

use anyhow::Result;
use monarch_outbox::{BoxError, CategoryDef, Cell, Delivery, Replicated};
use serde_json::{Value, json};
use tokio_postgres::Client;

use super::guide::Category;

monarch_outbox::model! {
    /// A member of an organization.
    #[derive(Debug, Clone, PartialEq)]
    pub(crate) struct Member in Cell table "member" {
        pub(crate) organization_id: i64,
        pub(crate) name: String,
    }
}

/// Control, as the cell reaches it. A real one is a client of control's service.
pub(crate) struct ControlService(pub(crate) Client);

impl ControlService {
    async fn upsert(&self, member: &Member) -> Result<(), BoxError> {
        let upsert = "insert into member_mapping values ($1, $2, $3) on conflict (member_id) \
                      do update set organization_id = excluded.organization_id, \
                      name = excluded.name";
        let Member {
            id,
            organization_id,
            name,
        } = member;
        self.0.execute(upsert, &[id, organization_id, name]).await?;
        Ok(())
    }

    async fn delete(&self, member: i64) -> Result<(), BoxError> {
        let delete = "delete from member_mapping where member_id = $1";
        self.0.execute(delete, &[&member]).await?;
        Ok(())
    }

    /// The name that control knows a member by.
    pub(crate) async fn name_of(&self, member: i64) -> Result<Option<String>> {
        let select = "select name from member_mapping where member_id = $1";
        let row = self.0.query_opt(select, &[&member]).await?;
        Ok(row.map(|row| row.get(0)))
    }
}

impl Replicated for Member {
    const CATEGORY: CategoryDef = Category::MemberUpdate.def();
    // Raised when every row must be told anew: step 6.
    const REPLICATION_VERSION: u32 = 2;
    type Services = ControlService;

    async fn handle_async_replication(
        &self,
        control: &ControlService,
        _: &Delivery<'_, Cell>,
    ) -> Result<(), BoxError> {
        control.upsert(self).await
    }

    async fn handle_async_deletion(
        control: &ControlService,
        delivery: &Delivery<'_, Cell>,
    ) -> Result<(), BoxError> {
        control.delete(delivery.message().object_identifier).await
    }

    // What the deletion needs and cannot read any more. It changes rarely: only the last survives.
    fn payload_for_update(&self) -> Option<Value> {
        Some(json!({"organization_id": self.organization_id}))
    }
}
