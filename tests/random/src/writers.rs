//! Runs the script's transactions on the source.

use anyhow::Result;
use tokio_postgres::Client;

use crate::cells::Cell;
use crate::model::Op;
use crate::schema::{Schema, Side};
use crate::sql::statements;
use crate::work::Transaction;

/// Two sessions a database, so that one transaction can run beside another.
#[derive(Debug)]
pub struct Writers {
    databases: Vec<[Client; 2]>,
}

impl Writers {
    /// Connects to the source.
    ///
    /// # Errors
    ///
    /// When a server does not accept it.
    pub async fn connect(schema: &Schema, source: &Cell) -> Result<Self> {
        let mut databases = Vec::new();
        for database in 0..schema.databases(Side::Source) {
            let both = [
                source.client(database).await?,
                source.client(database).await?,
            ];
            for client in &both {
                // Nothing waits for long, unless the generator is wrong.
                client.batch_execute("set lock_timeout = '20s'").await?;
            }
            databases.push(both);
        }
        Ok(Self { databases })
    }

    /// Runs a transaction of the script: one in each database that it touches, since the stores
    /// share none.
    ///
    /// # Errors
    ///
    /// When the source refuses: the generator was wrong.
    pub async fn run(&mut self, schema: &Schema, transaction: &Transaction) -> Result<()> {
        let (before, after) = match &transaction.within {
            Some((_, at)) => transaction.ops.split_at(*at),
            None => transaction.ops.split_at(transaction.ops.len()),
        };
        let end = if transaction.rolled_back {
            "rollback"
        } else {
            "commit"
        };
        let texts = |ops: &[Op]| -> Vec<String> {
            (0..self.databases.len())
                .map(|at| text(schema, ops, at))
                .collect()
        };
        let (first, then) = (texts(before), texts(after));
        for (client, sql) in self.databases.iter().zip(&first) {
            client[0].batch_execute(&format!("begin; {sql}")).await?;
        }
        if let Some((ops, _)) = &transaction.within {
            for (client, sql) in self.databases.iter().zip(texts(ops)) {
                client[1]
                    .batch_execute(&format!("begin; {sql} commit"))
                    .await?;
            }
        }
        for (client, sql) in self.databases.iter().zip(&then) {
            client[0].batch_execute(&format!("{sql} {end}")).await?;
        }
        Ok(())
    }
}

/// What of some changes is a database's.
fn text(schema: &Schema, ops: &[Op], database: usize) -> String {
    let here = |table: &usize| schema.stores[schema.tables[*table].store].source == database;
    let of = |op: &Op| match op {
        Op::Insert { table, .. }
        | Op::Update { table, .. }
        | Op::Swap { table, .. }
        | Op::UpdateAll { table, .. }
        | Op::Delete { table, .. }
        | Op::Truncate { table } => {
            if here(table) {
                statements(schema, op)
            } else {
                String::new()
            }
        }
        Op::Undone(ops) => {
            let undone = text(schema, ops, database);
            if undone.is_empty() {
                undone
            } else {
                format!("savepoint undone; {undone} rollback to undone;")
            }
        }
    };
    ops.iter().map(of).collect()
}
