//! The databases of a move, each with a session, as far as they can be reached.

use monarch_config::{Cell, Database, Dsn, Fleet, Graph, IdRange, Table};
use monarch_model::{CellName, StoreName, chain};
use tokio_postgres::error::SqlState;

use super::finding::{Finding, Place};
use super::identity;
use crate::catalog::{self, Catalog};
use crate::{ConnectOptions, Doing, Error, Result, ServerError, Session, SessionPurpose};

/// What preflight's sessions call themselves.
const APPLICATION: &str = "monarch_preflight";

/// Which end of the move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Source,
    Sink,
}

/// A database that can be reached.
pub(super) struct Open<'a> {
    pub(super) side: Side,
    pub(super) database: &'a Database,
    pub(super) place: Place,
    pub(super) primary: Session,
    /// Where rows are read and decoded, on the source, if there is a standby.
    pub(super) standby: Option<Session>,
    /// What the primary says of the tables that move and are placed here.
    pub(super) catalog: Catalog,
    /// The ids that the cell's sequences give, if the fleet says so.
    pub(super) own_ids: Option<IdRange>,
}

impl Open<'_> {
    /// The tables that move and are placed here, parents first, store by store.
    pub(super) fn tables<'g>(&self, graph: &'g Graph) -> Vec<&'g Table> {
        tables_of(self.database, graph)
    }

    /// Where changes are decoded.
    pub(super) fn decoder(&self) -> &Session {
        self.standby.as_ref().unwrap_or(&self.primary)
    }

    /// How many units have their rows here.
    pub(super) fn units(&self, graph: &Graph) -> i64 {
        let stores = self.database.stores.iter();
        let units = stores.filter(|store| !graph.walk(store).is_empty()).count();
        i64::try_from(units).unwrap_or(i64::MAX)
    }

    /// Whether our role may keep triggers and foreign keys from acting on what it writes. From
    /// Postgres 15 on that can be granted.
    pub(super) async fn may_set_replication_role(&self) -> Result<bool> {
        let doing = "ask whether triggers can be kept from firing";
        let sql = if self.primary.version().0 >= 15 {
            "select pg_catalog.has_parameter_privilege('session_replication_role', 'set')"
        } else {
            "select rolsuper from pg_catalog.pg_roles where rolname = current_user"
        };
        let row = self.primary.query_one(sql, &[]).await.doing(doing)?;
        row.try_get(0).doing(doing)
    }

    pub(super) fn holds(&self, store: &StoreName) -> bool {
        self.database.stores.contains(store)
    }
}

fn tables_of<'g>(database: &Database, graph: &'g Graph) -> Vec<&'g Table> {
    database
        .stores
        .iter()
        .flat_map(|store| graph.walk(store))
        .collect()
}

/// The databases of one cell that hold something that moves; those that cannot be reached or read
/// are findings.
pub(super) async fn cell<'a>(
    fleet: &'a Fleet,
    name: &CellName,
    side: Side,
    graph: &Graph,
) -> (Vec<Open<'a>>, Vec<Finding>) {
    let Some(cell) = fleet.cell(name) else {
        let place = Place {
            cell: Some(name.clone()),
            ..Place::default()
        };
        let finding = Finding::refuse(
            "unknown-cell",
            place,
            format!("the fleet has no cell {name}"),
            "A move goes from one cell of the fleet to another",
        );
        let names: Vec<&str> = fleet.cells.iter().map(|cell| cell.name.as_str()).collect();
        return (
            Vec::new(),
            vec![finding.mend(format!("name one of: {}", names.join(", ")))],
        );
    };
    let wanted = cell
        .databases
        .iter()
        .filter(|database| !tables_of(database, graph).is_empty());
    let opened =
        futures::future::join_all(wanted.map(|database| open(cell, database, side, graph))).await;
    let mut databases = Vec::new();
    let mut findings = Vec::new();
    for (database, faults) in opened {
        databases.extend(database);
        findings.extend(faults);
    }
    (databases, findings)
}

async fn open<'a>(
    cell: &Cell,
    database: &'a Database,
    side: Side,
    graph: &Graph,
) -> (Option<Open<'a>>, Vec<Finding>) {
    let place = Place {
        cell: Some(cell.name.clone()),
        database: Some(whereabouts(&database.name, &database.primary)),
        ..Place::default()
    };
    let standby_dsn = database.standby.as_ref().filter(|_| side == Side::Source);
    let standby = async {
        match standby_dsn {
            Some(dsn) => Some(session(dsn).await),
            None => None,
        }
    };
    let (primary, standby) = futures::future::join(session(&database.primary), standby).await;
    let mut findings = Vec::new();
    let mut reached = |session: Result<Session>, which: &str, dsn: &Dsn| match session {
        Ok(session) => Some(session),
        Err(error) => {
            findings.push(unreachable(&place, which, dsn, &error));
            None
        }
    };
    let standby = standby
        .zip(standby_dsn)
        .and_then(|(session, dsn)| reached(session, "standby", dsn));
    let Some(primary) = reached(primary, "primary", &database.primary) else {
        return (None, findings);
    };
    if let (Some(standby), Some(dsn)) = (&standby, standby_dsn) {
        match identity::pooler(standby, dsn, &place).await {
            Ok(pooled) => findings.extend(pooled),
            Err(error) => findings.push(not_checked(&place, &error)),
        }
    }
    match look(&primary, database, graph, &place).await {
        Ok(Look::Clear(catalog)) => {
            let open = Open {
                side,
                database,
                place,
                primary,
                standby,
                catalog,
                own_ids: cell.sequences,
            };
            (Some(open), findings)
        }
        Ok(Look::Pooled(pooled)) => {
            findings.extend(pooled);
            (None, findings)
        }
        Err(finding) => {
            findings.push(*finding);
            (None, findings)
        }
    }
}

/// A first look at a database.
enum Look {
    Clear(Catalog),
    /// It is behind a pooler: nothing else that a session says of it can be relied upon.
    Pooled(Vec<Finding>),
}

async fn look(
    primary: &Session,
    database: &Database,
    graph: &Graph,
    place: &Place,
) -> std::result::Result<Look, Box<Finding>> {
    let pooled = identity::pooler(primary, &database.primary, place)
        .await
        .map_err(|error| Box::new(not_checked(place, &error)))?;
    if !pooled.is_empty() {
        return Ok(Look::Pooled(pooled));
    }
    catalog::load(&**primary, &tables_of(database, graph))
        .await
        .map(Look::Clear)
        .map_err(|error| Box::new(not_checked(place, &error)))
}

/// A session that only reads.
pub(super) async fn session(dsn: &Dsn) -> Result<Session> {
    let options = ConnectOptions::from_dsn(dsn)?;
    let purpose = SessionPurpose::reader(APPLICATION).with("statement_timeout", "10min");
    Session::connect(&options, &purpose).await
}

/// How the fleet calls a database, and where that is: a name that an operator knows.
pub(super) fn whereabouts(name: &str, dsn: &Dsn) -> String {
    match ConnectOptions::from_dsn(dsn) {
        Ok(options) => format!("{name} ({})", options.whereabouts()),
        Err(_) => name.to_owned(),
    }
}

pub(super) fn unreachable(place: &Place, which: &str, dsn: &Dsn, error: &Error) -> Finding {
    let what = match ConnectOptions::from_dsn(dsn) {
        Ok(options) if error.is(&SqlState::INVALID_CATALOG_NAME) => {
            format!("the {which} has no database {:?}", options.dbname())
        }
        _ => format!("the {which} cannot be reached"),
    };
    Finding::refuse(
        "unreachable",
        place.clone(),
        format!("{what}: {}", chain(error)),
        "Nothing about it could be checked, and nothing could be moved",
    )
    .mend(way_in(error))
}

/// What to look at where a session was refused, by the cause.
fn way_in(error: &Error) -> &'static str {
    let source = match error {
        Error::Dsn(_) => return "correct it in fleet.yaml: monarch config check says where",
        Error::Connect { source, .. } | Error::Asked { source, .. } => source,
    };
    match source {
        ServerError::Refused(refusal) => refused(&refusal.code),
        ServerError::Lookup(_) => {
            "check the host's name in fleet.yaml, as this machine resolves it"
        }
        ServerError::Io(_) | ServerError::Timeout(_) => {
            "check host and port in fleet.yaml, that the server runs and listens there, and that no \
             firewall is between"
        }
        ServerError::Tls(_) => {
            "check sslmode and sslrootcert in fleet.yaml against the server's certificate"
        }
        ServerError::Authentication(_) => {
            "check user and password in fleet.yaml, PGPASSWORD and the password file"
        }
        ServerError::WrongServer { .. } => "check the hosts and target_session_attrs in fleet.yaml",
        _ => "check the address in fleet.yaml, and the server's log",
    }
}

fn refused(code: &SqlState) -> &'static str {
    if *code == SqlState::INVALID_CATALOG_NAME {
        "correct dbname in fleet.yaml, or create the database"
    } else if *code == SqlState::INVALID_PASSWORD {
        "check user and password in fleet.yaml, PGPASSWORD and the password file"
    } else if *code == SqlState::INVALID_AUTHORIZATION_SPECIFICATION {
        "check that the role exists and may log in, and that pg_hba.conf has a line for it, this \
         machine and the database, with TLS or without as sslmode has it"
    } else if *code == SqlState::INSUFFICIENT_PRIVILEGE {
        "grant connect on database … to the role"
    } else if *code == SqlState::TOO_MANY_CONNECTIONS {
        "close what needs no connection, or raise max_connections and restart the server"
    } else if *code == SqlState::CANNOT_CONNECT_NOW {
        "wait until the server has started"
    } else {
        "check the server's log"
    }
}

/// A check that failed is itself a finding: what it would have found is not known.
pub(super) fn not_checked(place: &Place, error: &(dyn std::error::Error + 'static)) -> Finding {
    Finding::refuse(
        "not-checked",
        place.clone(),
        format!("a check failed: {}", chain(error)),
        "What it would have found is not known",
    )
}
