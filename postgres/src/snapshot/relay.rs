//! Relays COPY bytes. Rows are never parsed here: parsing would cap throughput.

use std::pin::pin;

use bytes::{Bytes, BytesMut};
use futures::{SinkExt, StreamExt};
use monarch_model::TableName;
use tokio_postgres::Transaction;

use super::statements::Statements;
use super::watch::Watch;
use super::{CopyError, TableCopied};
use crate::Doing;

/// The source sends a message a row; so many bytes of them go on together.
const CHUNK_BYTES: usize = 64 * 1024;

/// Relays one table. Memory holds one chunk and one row, whatever the table's size.
pub(super) async fn table(
    table: &TableName,
    statements: &Statements,
    source: &Transaction<'_>,
    sink: &Transaction<'_>,
    watch: &mut Watch<'_>,
) -> Result<TableCopied, CopyError> {
    let reading = || format!("read {table} from the source");
    let writing = || format!("write {table} to the sink");
    let give = source.copy_out(&statements.give);
    let mut give = pin!(watch.over(give).await?.doing(reading())?);
    let take = sink.copy_in::<_, Bytes>(&statements.take);
    let mut take = pin!(watch.over(take).await?.doing(writing())?);

    let mut copied = TableCopied {
        table: table.clone(),
        rows: 0,
        bytes: 0,
    };
    let mut chunk = BytesMut::with_capacity(CHUNK_BYTES);
    let mut chunk_rows = 0;
    loop {
        let row = watch
            .over(give.next())
            .await?
            .transpose()
            .doing(reading())?;
        if let Some(row) = &row {
            chunk.extend_from_slice(row);
            chunk_rows += 1;
        }
        if chunk.len() >= CHUNK_BYTES || row.is_none() {
            let bytes = chunk.len() as u64;
            let full = std::mem::replace(&mut chunk, BytesMut::with_capacity(CHUNK_BYTES));
            watch
                .over(take.send(full.freeze()))
                .await?
                .doing(writing())?;
            copied.rows += chunk_rows;
            copied.bytes += bytes;
            watch.moved(chunk_rows, bytes);
            chunk_rows = 0;
        }
        if row.is_none() {
            break;
        }
    }
    let taken = watch.over(take.finish()).await?.doing(writing())?;
    if taken != copied.rows {
        return Err(CopyError::RowsDiffer {
            table: table.clone(),
            given: copied.rows,
            taken,
        });
    }
    Ok(copied)
}
