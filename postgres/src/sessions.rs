//! The sessions of those who held a unit before: ended on both sides before their successor acts.
//!
//! On the sink the unit's row decides who may write. The source has no such row: there, an older
//! holder's transaction in flight, a publication that is being made above all, goes with its
//! session.

use monarch_model::Epoch;
use tokio_postgres::Client;

use crate::{Doing, Error, Unit};

/// Ends the sessions on the server of `client` that call themselves an older holder of the unit.
/// Doing it again is the same.
pub async fn end_older(client: &Client, unit: &Unit, epoch: Epoch) -> Result<(), Error> {
    let doing = "end the sessions of older movers";
    let rows = client
        .query(
            "select pid, application_name from pg_catalog.pg_stat_activity
             where pid <> pg_backend_pid() and starts_with(application_name, $1)",
            &[&unit.prefix()],
        )
        .await
        .doing(doing)?;
    for row in rows {
        let application: String = row.try_get(1).doing(doing)?;
        if unit
            .epoch_in(&application)
            .is_some_and(|older| older < epoch)
        {
            let pid: i32 = row.try_get(0).doing(doing)?;
            client
                .execute("select pg_terminate_backend($1)", &[&pid])
                .await
                .doing(doing)?;
        }
    }
    Ok(())
}
