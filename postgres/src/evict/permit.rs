//! The tokens without which no row is deleted.

use monarch_model::Phase;
use tokio_postgres::Client;

use super::{Error, Horizon};
use crate::Doing;

/// What is known of a move when its eviction is asked for.
#[derive(Debug, Clone, Copy)]
pub struct Evidence<'a> {
    /// Changes of the organization that came after the barrier, of all units.
    pub late_changes: u64,
    /// What each slot of the organization's moves begins with: of this move and of earlier ones.
    pub slot_prefixes: &'a [String],
    /// The snapshot that was recorded when the unit's slot had been read to its head.
    pub horizon: &'a str,
}

/// Leave to delete one unit of the organization from the source.
#[derive(Debug)]
pub struct EvictionPermit {
    horizon: Horizon,
    slot_prefixes: Vec<String>,
}

impl EvictionPermit {
    /// Hands out the permit if nothing came late, the horizon is known, and none of the
    /// organization's slots is left on `servers`: the source's primary, and its standby if slots
    /// live there.
    ///
    /// # Errors
    ///
    /// [`Error::LateChanges`], [`Error::Horizon`], [`Error::SlotsAlive`]: a person must look.
    pub async fn issue(servers: &[&Client], evidence: Evidence<'_>) -> Result<Self, Error> {
        if evidence.late_changes > 0 {
            return Err(Error::LateChanges(evidence.late_changes));
        }
        let permit = Self {
            horizon: evidence.horizon.parse()?,
            slot_prefixes: evidence.slot_prefixes.to_vec(),
        };
        for server in servers {
            permit.still_holds(server).await?;
        }
        Ok(permit)
    }

    /// Looks again for slots, on one server.
    pub(super) async fn still_holds(&self, server: &Client) -> Result<(), Error> {
        let alive = slots_alive(server, &self.slot_prefixes).await?;
        if alive.is_empty() {
            Ok(())
        } else {
            Err(Error::SlotsAlive(alive))
        }
    }

    pub(super) fn horizon(&self) -> Horizon {
        self.horizon
    }
}

/// The slots that read the database of the session `server` and whose names begin with one of
/// `prefixes`. A slot of another database holds none of its rows.
pub async fn slots_alive(server: &Client, prefixes: &[String]) -> Result<Vec<String>, Error> {
    let doing = "look for slots";
    let rows = server
        .query(
            "select slot_name::text from pg_catalog.pg_replication_slots
              where database = pg_catalog.current_database()
                and exists (select from unnest($1::text[]) as prefix
                             where starts_with(slot_name::text, prefix))
              order by 1",
            &[&prefixes],
        )
        .await
        .doing(doing)?;
    rows.iter()
        .map(|row| Ok(row.try_get(0).doing(doing)?))
        .collect()
}

/// Leave to delete a unit of the organization from the sink.
#[derive(Debug)]
pub struct ScrubPermit(());

impl ScrubPermit {
    /// Hands out the permit in a phase in which the organization lives on the source: a copy that
    /// starts over, or a move that is being given up. None from `flipping` on.
    pub fn in_phase(phase: Phase) -> Option<Self> {
        match phase {
            Phase::Active | Phase::Draining | Phase::Aborting | Phase::Failed => Some(Self(())),
            Phase::Flipping
            | Phase::CutOver
            | Phase::Evicting
            | Phase::Finalized
            | Phase::Aborted => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Guards promise 1: once the organization may live on the sink, nothing scrubs it there.
    #[test]
    fn a_scrub_is_permitted_only_while_the_organization_lives_on_the_source() {
        let permitted: Vec<Phase> = Phase::ALL
            .into_iter()
            .filter(|phase| ScrubPermit::in_phase(*phase).is_some())
            .collect();
        assert_eq!(
            permitted,
            [
                Phase::Active,
                Phase::Draining,
                Phase::Aborting,
                Phase::Failed
            ]
        );
    }
}
