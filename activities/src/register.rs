//! Registers the move: reads the static spine once, and takes the fleet's one lease.

use std::collections::{BTreeMap, BTreeSet};

use monarch_config::Config;
use monarch_ledger::{NewMove, Registration};
use monarch_model::{CellName, MoveId, OrgId, Phase, StoreName};
use monarch_postgres::evict::unit_order;
use monarch_postgres::spine::{self, Spine};
use monarch_postgres::{Session, SessionPurpose};
use monarch_workflows::contract::{RegisterInput, RegisterOutput};
use uuid::Uuid;

use crate::failure::Fault;
use crate::vitals::Vitals;
use crate::world::{self, World};

/// What the session that reads the spine calls itself.
const APPLICATION: &str = "monarch register";

pub(crate) async fn run(
    world: &World,
    vitals: Vitals,
    input: RegisterInput,
) -> Result<RegisterOutput, Fault> {
    let spine = vitals
        .during(
            "the static spine",
            read_spine(&world.config, &input.from, &input.org),
        )
        .await?;
    let graph = &world.config.graph;
    let stores: Vec<StoreName> = unit_order(graph);
    let blobs: Vec<StoreName> = graph
        .moving_blobs()
        .map(|store| store.name.clone())
        .collect();
    let new = NewMove {
        id: input.move_id,
        org: as_printed(world, &spine).unwrap_or(input.org),
        source_cell: input.from,
        sink_cell: input.to,
        workflow_id: input.workflow_id,
        run_id: input.run_id,
        stores: stores.clone(),
        blob_stores: blobs.clone(),
        spine,
        options: input.options,
        token: Uuid::new_v4(),
    };
    match world.ledger.register(&new).await? {
        // After a lost reply the first try's spine is the one that holds.
        Registration::Registered(of) | Registration::AlreadyRegistered(of) => {
            let spine = world.ledger.whole_spine(of.id).await?;
            Ok(RegisterOutput {
                org: of.org,
                units: stores,
                blobs,
                spine_digest: of.spine_digest,
                spine_ids: ids_total(&spine),
            })
        }
        Registration::LiveMove { id, org, phase } => Err(refused_by(id, &org, phase)),
    }
}

/// The lease is another move's.
pub(crate) fn refused_by(id: MoveId, org: &OrgId, phase: Phase) -> Fault {
    Fault::LiveMove(format!(
        "move {id} of organization {org} is {phase}: one move is live at a time; \
         watch it with `monarch move watch --org {org}`, or end it with `monarch move abort`"
    ))
}

/// The root's one id as Postgres prints it: two spellings of a key are one organization.
fn as_printed(world: &World, spine: &Spine) -> Option<OrgId> {
    spine
        .ids(&world.config.graph.root().name)?
        .first()?
        .parse()
        .ok()
}

fn ids_total(spine: &Spine) -> u64 {
    spine.tables().map(|(_, ids)| ids.len() as u64).sum()
}

/// Reads the spine's tables from every database that holds one.
pub(crate) async fn read_spine(
    config: &Config,
    from: &CellName,
    org: &OrgId,
) -> Result<Spine, Fault> {
    let graph = &config.graph;
    let cell = world::cell(config, from)?;
    let stores: BTreeSet<&StoreName> = graph.spine().iter().map(|table| &table.store).collect();
    let mut sessions = BTreeMap::new();
    for store in stores {
        let database = cell
            .database_of(store)
            .ok_or_else(|| Fault::BadInput(format!("cell {} places no store {store}", from)))?;
        let options = world::options(&database.primary)?;
        let session = Session::connect(&options, &SessionPurpose::reader(APPLICATION)).await?;
        sessions.insert(store.clone(), session);
    }
    let clients: BTreeMap<StoreName, &tokio_postgres::Client> = sessions
        .iter()
        .map(|(store, session)| (store.clone(), &**session))
        .collect();
    Ok(spine::read(&clients, graph, org).await?)
}
