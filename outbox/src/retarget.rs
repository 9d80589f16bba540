//! Messages of control that go to another cell than they were written for: the organization that they
//! are about has moved.

use tokio_postgres::Transaction;
use tokio_postgres::types::Type;

use crate::drain::index::{Parameter, highest};
use crate::drain::statements::Statements;
use crate::message::Shard;
use crate::server_error::ServerError;
use crate::silo::{CellName, Control};
use crate::table::{Table, quoted};

impl Table<Control> {
    /// Hands every message of a shard to another cell, where they join the shard of the same scope
    /// and identifier. Returns how many.
    ///
    /// Waits for a drain that is at work in the shard, for as long as the transaction's
    /// `lock_timeout` lets it, and holds the shard until the transaction ends: what is being
    /// delivered to the one cell is not delivered to the other. A message that is written meanwhile
    /// stays where it is; who changes the routing sees to it that there is none.
    ///
    /// # Errors
    ///
    /// When the server refuses, or the shard's lock is not had in time.
    pub async fn retarget(
        &self,
        transaction: &Transaction<'_>,
        shard: &Shard<Control>,
        to: &CellName,
    ) -> Result<u64, ServerError> {
        let lock = shard.lock(self);
        let lock: [Parameter<'_>; 1] = [(&lock, Type::INT8)];
        let statements = Statements::new(self);
        transaction.query_typed(&statements.lock, &lock).await?;
        let target = shard.target_name();
        let mut parameters = shard.parameters(&target);
        // Programs with drains of another make know the lock of the head alone. A head that was
        // delivered while it was waited for is none: then the next one is.
        let (highest, lock_head) = (highest(self), &statements.lock_head);
        while !transaction
            .query_typed(&highest, &parameters)
            .await?
            .is_empty()
        {
            let head = transaction.query_typed(lock_head, &parameters).await?;
            if !head.is_empty() {
                break;
            }
        }
        let name = to.as_str();
        parameters.push((&name, Type::TEXT));
        let sql = self.retarget_sql();
        Ok(transaction.execute_typed(&sql, &parameters).await?)
    }

    fn retarget_sql(&self) -> String {
        let target = quoted(self.target());
        format!(
            "update {} set {target} = $4::text \
             where {target} = $1::text and shard_scope = $2::int4 and shard_identifier = $3::int8",
            self.name().sql()
        )
    }
}
