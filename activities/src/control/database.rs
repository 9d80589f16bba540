//! The control database: each change of the routing is one transaction, a compare-and-swap on the
//! organization's row with the move's token, and the messages that tell both cells of it.
//!
//! The transaction comes first, its messages are delivered after it, and a change is done when both
//! cells have taken delivery. Whoever dies in between, or never hears of the commit, asks again: the
//! row then says that it is done, and what is still to be delivered stands in the outbox.

use monarch_config::{Dsn, Fleet};
use monarch_ledger::Move;
use monarch_model::{CellName, chain};
use monarch_outbox::sentry;
use monarch_outbox::{Control, ControlOutbox, Drain, DrainError, Shard, Table, TableName};
use monarch_postgres::{Doing as _, Session};
use tokio_postgres::Transaction;

use super::ControlError;
use crate::routing::{self, Category, Scope};

/// What is asked of the routing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    Fence,
    Unfence,
    Flip,
}

impl Change {
    fn action(self) -> &'static str {
        match self {
            Change::Fence => "fence",
            Change::Unfence => "unfence",
            Change::Flip => "flip",
        }
    }
}

/// The routing of an organization as it stands, its rows locked.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    /// The cell that it names; none for an organization that is not routed.
    cell: Option<String>,
    /// Whose fence is up.
    fence: Option<String>,
    /// Whether our token is revoked.
    revoked: bool,
}

/// What is to be done about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// Done before, or nothing of ours to undo.
    Nothing,
    PutUp,
    Lift,
    Reroute,
}

/// What a change comes to, or why it is refused for good.
fn decide(
    change: Change,
    seen: &Seen,
    (from, to): (&str, &str),
    token: &str,
) -> Result<Step, String> {
    let cell = seen.cell.as_deref();
    let ours = seen.fence.as_deref() == Some(token);
    match change {
        Change::Unfence if ours => Ok(Step::Lift),
        Change::Unfence => Ok(Step::Nothing),
        Change::Flip if cell == Some(to) => Ok(Step::Nothing),
        _ if seen.revoked => Err("the token is revoked".to_owned()),
        _ if cell.is_none() => Err("the organization is not in the mapping".to_owned()),
        _ if cell != Some(from) => Err(format!("the organization is not in {from}")),
        Change::Flip if ours => Ok(Step::Reroute),
        Change::Flip => Err("the token does not hold the fence".to_owned()),
        Change::Fence if ours => Ok(Step::Nothing),
        Change::Fence if seen.fence.is_some() => Err("another token holds the fence".to_owned()),
        Change::Fence => Ok(Step::PutUp),
    }
}

/// The control database on behalf of one attempt to cut one move over.
pub(super) struct Database<'a> {
    pub(super) dsn: &'a Dsn,
    pub(super) fleet: &'a Fleet,
    pub(super) of: &'a Move,
    pub(super) token: String,
}

impl Database<'_> {
    /// Makes a change and waits for its delivery. The fence that is lifted must be heard of where
    /// the organization writes; the other cell, which may be why it is lifted, hears of it later.
    pub(super) async fn change(&self, change: Change) -> Result<(), ControlError> {
        let organization = self.organization()?;
        let mut session = routing::session(self.dsn).await?;
        self.commit(&mut session, organization, change).await?;
        let drain = routing::drain(self.fleet)?;
        let (source, sink) = (&self.of.source_cell, &self.of.sink_cell);
        deliver(&drain, &mut session, organization, source).await?;
        let delivered = deliver(&drain, &mut session, organization, sink).await;
        match delivered {
            Err(error) if change == Change::Unfence => {
                tracing::warn!(cell = %sink, error = %chain(&error), "the fence is lifted; told later");
                Ok(())
            }
            delivered => delivered,
        }
    }

    /// Waits until both cells have taken delivery of every change.
    pub(super) async fn delivered(&self) -> Result<(), ControlError> {
        let organization = self.organization()?;
        let mut session = routing::session(self.dsn).await?;
        let drain = routing::drain(self.fleet)?;
        for cell in [&self.of.source_cell, &self.of.sink_cell] {
            deliver(&drain, &mut session, organization, cell).await?;
        }
        Ok(())
    }

    /// The cell that the routing names; empty where it names none.
    pub(super) async fn named(&self) -> Result<String, ControlError> {
        let organization = self.organization()?;
        let session = routing::session(self.dsn).await?;
        let row = session.query_opt(CELL, &[&organization]).await;
        let row = row.doing("read the routing")?;
        Ok(row.map(|row| row.get(0)).unwrap_or_default())
    }

    fn organization(&self) -> Result<i64, ControlError> {
        let organization = self.of.org.as_str();
        organization.parse().map_err(|_| ControlError::NotANumber {
            organization: organization.to_owned(),
        })
    }

    async fn commit(
        &self,
        session: &mut Session,
        organization: i64,
        change: Change,
    ) -> Result<(), ControlError> {
        let doing = format!("{} the organization", change.action());
        let begun = session.transaction().await;
        let transaction = begun.doing(doing.clone())?;
        let seen = look(&transaction, organization, &self.token).await?;
        let ends = (self.of.source_cell.as_str(), self.of.sink_cell.as_str());
        let step =
            decide(change, &seen, ends, &self.token).map_err(|why| ControlError::Refused {
                action: change.action(),
                why,
            })?;
        if change == Change::Unfence {
            let revoked = transaction.execute(REVOKE, &[&self.token]).await;
            revoked.doing("revoke the token")?;
        }
        self.take(&transaction, organization, step).await?;
        transaction.commit().await.doing(doing)?;
        Ok(())
    }

    async fn take(
        &self,
        transaction: &Transaction<'_>,
        organization: i64,
        step: Step,
    ) -> Result<(), ControlError> {
        let fence = match step {
            Step::Nothing => return Ok(()),
            Step::PutUp => Some(self.token.as_str()),
            Step::Lift => None,
            Step::Reroute => {
                self.reroute(transaction, organization).await?;
                None
            }
        };
        let set = transaction
            .execute(SET_FENCE, &[&organization, &fence])
            .await;
        set.doing("change the fence")?;
        let mut messages = Vec::new();
        for cell in [&self.of.source_cell, &self.of.sink_cell] {
            let cell = cell_name(cell)?;
            let category = Category::OrganizationRouting;
            messages.push(ControlOutbox::new(
                cell,
                category,
                organization,
                organization,
            ));
        }
        let table = routing::table();
        let writer = table.writer(transaction);
        let written = writer.write_all(&messages).await;
        written.map_err(|error| ControlError::Outbox(chain(&error)))?;
        // Delivered shard by shard, once it is committed.
        let _ = writer.finish();
        Ok(())
    }

    /// Names the sink, and hands over what the application's outbox still has for the source: the
    /// organization is not there any more.
    async fn reroute(
        &self,
        transaction: &Transaction<'_>,
        organization: i64,
    ) -> Result<(), ControlError> {
        let (from, to) = (&self.of.source_cell, &self.of.sink_cell);
        let routed = transaction
            .execute(REROUTE, &[&organization, &to.as_str()])
            .await;
        routed.doing("change the routing")?;
        let has_outbox = transaction.query_one(HAS_OUTBOX, &[]).await;
        let has_outbox: bool = has_outbox
            .doing("look for the application's outbox")?
            .get(0);
        if !has_outbox {
            return Ok(());
        }
        let theirs: Table<Control> =
            Table::named(TableName::new("sentry_controloutbox").in_schema("public"));
        let shard = Shard::control(cell_name(from)?, sentry::Scope::Organization, organization);
        let handed_over = theirs.retarget(transaction, &shard, &cell_name(to)?).await;
        let messages = handed_over.map_err(|error| ControlError::Outbox(chain(&error)))?;
        tracing::info!(messages, %from, %to, "control's queued messages were handed over");
        Ok(())
    }
}

const CELL: &str = "
    select region_name::text from public.sentry_organizationmapping
    where organization_id = $1::int8";
const LOCK_CELL: &str = "
    select region_name::text from public.sentry_organizationmapping
    where organization_id = $1::int8 for update";
const MAKE_ROW: &str = "
    insert into monarch_control.organization (organization_id) values ($1)
    on conflict do nothing";
const LOCK_FENCE: &str = "
    select move_token from monarch_control.organization where organization_id = $1 for update";
const IS_REVOKED: &str =
    "select exists (select from monarch_control.revoked_token where move_token = $1)";
const REVOKE: &str =
    "insert into monarch_control.revoked_token (move_token) values ($1) on conflict do nothing";
const SET_FENCE: &str = "
    update monarch_control.organization
    set move_token = $2, version = version + 1, changed_at = now() where organization_id = $1";
const REROUTE: &str = "
    update public.sentry_organizationmapping set region_name = $2
    where organization_id = $1::int8";
const HAS_OUTBOX: &str = "select to_regclass('public.sentry_controloutbox') is not null";

/// Locks the mapping first, as whoever writes a message for the organization does.
async fn look(
    transaction: &Transaction<'_>,
    organization: i64,
    token: &str,
) -> Result<Seen, ControlError> {
    let doing = "lock the organization's routing";
    let cell = transaction.query_opt(LOCK_CELL, &[&organization]).await;
    let cell = cell.doing(doing)?.map(|row| row.get(0));
    let made = transaction.execute(MAKE_ROW, &[&organization]).await;
    made.doing(doing)?;
    let fence = transaction.query_one(LOCK_FENCE, &[&organization]).await;
    let fence = fence.doing(doing)?.get(0);
    let revoked = transaction.query_one(IS_REVOKED, &[&token]).await;
    let revoked = revoked.doing(doing)?.get(0);
    Ok(Seen {
        cell,
        fence,
        revoked,
    })
}

/// Delivers what a cell is still to hear of an organization; nothing where it has heard all.
async fn deliver(
    drain: &Drain<Control>,
    session: &mut Session,
    organization: i64,
    cell: &CellName,
) -> Result<(), ControlError> {
    let not_delivered = |why: String| ControlError::NotDelivered {
        cell: cell.clone(),
        why,
    };
    let shard = Shard::control(cell_name(cell)?, Scope::Routing, organization);
    match drain.shard(session, &shard).await {
        Ok(report) => match report.errors.first() {
            Some(error) => Err(not_delivered(chain(error))),
            None => Ok(()),
        },
        Err(DrainError::NoSuchShard { .. }) => Ok(()),
        Err(error) => Err(not_delivered(chain(&error))),
    }
}

fn cell_name(cell: &CellName) -> Result<monarch_outbox::CellName, ControlError> {
    monarch_outbox::CellName::new(cell.as_str())
        .map_err(|error| ControlError::Outbox(format!("cell {cell}: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(cell: &str, fence: Option<&str>, revoked: bool) -> Seen {
        Seen {
            cell: Some(cell.to_owned()),
            fence: fence.map(str::to_owned),
            revoked,
        }
    }

    fn decided(change: Change, seen: &Seen) -> Option<Step> {
        decide(change, seen, ("us1", "us2"), "m/1").ok()
    }

    /// A revoked token, a foreign fence or another cell changes nothing; what is done is done.
    #[test]
    fn only_the_token_that_holds_the_fence_changes_the_routing() {
        use Change::{Fence, Flip, Unfence};
        let (ours, theirs) = (Some("m/1"), Some("m/2"));
        for (routing, fence, unfence, flip) in [
            (
                seen("us1", None, false),
                Some(Step::PutUp),
                Step::Nothing,
                None,
            ),
            (
                seen("us1", ours, false),
                Some(Step::Nothing),
                Step::Lift,
                Some(Step::Reroute),
            ),
            (seen("us1", theirs, false), None, Step::Nothing, None),
            (seen("us1", None, true), None, Step::Nothing, None),
            (seen("us1", ours, true), None, Step::Lift, None),
            (
                seen("us2", None, false),
                None,
                Step::Nothing,
                Some(Step::Nothing),
            ),
            (seen("us3", None, false), None, Step::Nothing, None),
        ] {
            assert_eq!(decided(Fence, &routing), fence, "{routing:?}");
            assert_eq!(decided(Unfence, &routing), Some(unfence), "{routing:?}");
            assert_eq!(decided(Flip, &routing), flip, "{routing:?}");
        }
    }
}
