//! The routing in the control database, and what the cells know of it.
//!
//! Where an organization lives stands in the application's own mapping table. Beside it, in a schema
//! of ours, stands who fences the organization and how often its routing was changed. Each change
//! writes a message for both cells in its own transaction, and a cell takes delivery by a row in each
//! of its databases: an application asks the database that it writes to anyway, in the transaction
//! that it writes in, so that no write of a fenced organization slips through between question and
//! commit.
//!
//! The messages stand in an outbox of our own. In the application's they would wait behind messages
//! that we cannot deliver, and be met by drains that do not know them.

use std::collections::BTreeMap;

use futures::future::{BoxFuture, try_join_all};
use monarch_config::{Config, Dsn, Fleet, Table};
use monarch_model::{CellName, OrgId, chain};
use monarch_outbox::{
    BoxError, Control, Delivery, Drain, DrainSettings, Receiver, Receivers, Registry,
    RegistryError, StartError, TableName,
};
use monarch_postgres::preflight::{Finding, Place};
use monarch_postgres::sql::qualified;
use monarch_postgres::{ConnectOptions, Doing as _, Session, SessionPurpose};
use tokio_postgres::{Client, GenericClient};

monarch_outbox::categories! {
    /// What Monarch tells the cells.
    pub enum Category in Scope {
        /// The routing of organizations, apart from what they themselves tell.
        Routing = 900 {
            /// Where an organization lives, and whether it may write there.
            OrganizationRouting = 900,
        }
    }
}

/// What our sessions call themselves.
const APPLICATION: &str = "monarch control";

/// How long a change waits for whoever writes for the organization in the control database.
const LOCK_TIMEOUT: &str = "5s";

/// A receiver connects to databases of one cell; a cell that does not answer must not use up the
/// write pause.
const DELIVERED_WITHIN: std::time::Duration = std::time::Duration::from_secs(20);

/// What is ours in the control database. The trigger is the fence's part in it: a message for a
/// fenced organization would be delivered to a cell that it is about to leave. It locks the mapping,
/// so that whoever fences waits for those that were there before.
const CONTROL_SCHEMA: &str = "
create schema if not exists monarch_control;
create table if not exists monarch_control.organization (
    organization_id bigint primary key,
    move_token text,
    version bigint not null default 0,
    changed_at timestamptz not null default now()
);
comment on column monarch_control.organization.move_token is
    'whose fence holds back the writes of the organization; null where none does';
create table if not exists monarch_control.revoked_token (
    move_token text primary key,
    revoked_at timestamptz not null default now()
);
create or replace function monarch_control.hold_back() returns trigger
language plpgsql security definer set search_path = pg_catalog as $$
begin
    perform from public.sentry_organizationmapping
    where organization_id = new.shard_identifier for key share;
    perform from monarch_control.organization
    where organization_id = new.shard_identifier and move_token is not null for share;
    if found then
        raise exception using errcode = 'object_in_use',
            message = 'the organization is being moved to another cell: try again in a moment',
            table = 'sentry_controloutbox', schema = 'public';
    end if;
    return new;
end $$;
do $$
begin
    if to_regclass('public.sentry_controloutbox') is not null then
        create or replace trigger monarch_hold_back before insert on public.sentry_controloutbox
            for each row when (new.shard_scope = 0)
            execute function monarch_control.hold_back();
    end if;
end $$;
";

/// What is ours in each database of a cell. Where an organization lives is no secret from whoever
/// may connect.
const CELL_SCHEMA: &str = "
create schema if not exists monarch_routing;
create table if not exists monarch_routing.organization (
    organization_id bigint primary key,
    cell text not null,
    fenced boolean not null,
    version bigint not null,
    changed_at timestamptz not null default now()
);
grant usage on schema monarch_routing to public;
grant select on monarch_routing.organization to public;
";

/// The fleet cannot be told of a routing.
#[derive(Debug, thiserror::Error)]
pub enum RoutingError {
    /// A database did not do what was asked, or its connection string cannot be used.
    #[error(transparent)]
    Database(#[from] monarch_postgres::Error),
    /// A fault of ours: the categories do not fit together.
    #[error(transparent)]
    Categories(#[from] RegistryError),
    /// A fault of ours: the receivers do not fit the categories.
    #[error(transparent)]
    Receivers(#[from] StartError),
    /// `fleet.yaml` names no control database.
    #[error("fleet.yaml names no control database (`control: {{dsn: …}}`)")]
    NoControl,
}

/// The outbox of the routing's changes.
#[must_use]
pub fn table() -> monarch_outbox::Table<Control> {
    monarch_outbox::Table::named(TableName::new("outbox").in_schema("monarch_control"))
}

/// Delivers what the cells are to know of the routing.
///
/// # Errors
/// A connection string of the fleet cannot be used.
pub fn drain(fleet: &Fleet) -> Result<Drain<Control>, RoutingError> {
    let registry = Registry::new(Category::ALL)?;
    let receivers = Receivers::new().with(Category::OrganizationRouting, Teller::of(fleet)?);
    let settings = DrainSettings {
        receiver_timeout: DELIVERED_WITHIN,
        idle_timeout: DELIVERED_WITHIN,
        ..DrainSettings::default()
    };
    Ok(Drain::new(table(), registry, receivers)?.settings(settings))
}

/// A session with a database that has an outbox.
///
/// # Errors
/// It cannot be had.
pub async fn session(dsn: &Dsn) -> Result<Session, monarch_postgres::Error> {
    let purpose = SessionPurpose::writer(APPLICATION)
        .with("search_path", "public")
        .with("lock_timeout", LOCK_TIMEOUT);
    Session::connect(&ConnectOptions::from_dsn(dsn)?, &purpose).await
}

/// Makes what is ours in the control database and in every database of every cell; what is there is
/// left as it is. Returns a line for each database.
///
/// # Errors
/// A database cannot be reached, or does not let us.
pub async fn init(config: &Config) -> Result<Vec<String>, RoutingError> {
    let Some(monarch_config::Control::Database(dsn)) = &config.fleet.control else {
        return Err(RoutingError::NoControl);
    };
    let mut made = Vec::new();
    let control = session(dsn).await?;
    let schema = format!("{CONTROL_SCHEMA}{}", table().create_sql());
    let doing = "make the schema monarch_control in the control database";
    control.batch_execute(&schema).await.doing(doing)?;
    made.push("control: schema monarch_control".to_owned());
    for cell in &config.fleet.cells {
        for database in &cell.databases {
            let purpose = SessionPurpose::writer(APPLICATION);
            let options = ConnectOptions::from_dsn(&database.primary);
            let options = options.map_err(monarch_postgres::Error::from)?;
            let session = Session::connect(&options, &purpose).await?;
            let place = format!("{}, {}", cell.name, database.name);
            let doing = format!("make the schema monarch_routing in {place}");
            session.batch_execute(CELL_SCHEMA).await.doing(doing)?;
            made.push(format!("{place}: schema monarch_routing"));
        }
    }
    Ok(made)
}

/// What would stop a move at its fence or after its flip, in the control database and in the cells.
/// A fleet without a control database has none of it.
pub(crate) async fn preflight(
    config: &Config,
    from: &CellName,
    to: &CellName,
    org: &OrgId,
) -> Vec<Finding> {
    let Some(monarch_config::Control::Database(dsn)) = &config.fleet.control else {
        return Vec::new();
    };
    let place = Place {
        database: Some("control".to_owned()),
        ..Place::default()
    };
    let mut findings = match org.as_str().parse() {
        Ok(organization) => look_at_control(dsn, from, organization).await,
        Err(_) => Ok(vec![(
            "control-organization",
            "the organization's key is no number".to_owned(),
            "The control database has organizations by number",
            None,
        )]),
    }
    .unwrap_or_else(|error| vec![unreached(&error)])
    .into_iter()
    .map(|found| finding(&place, found))
    .collect();
    for cell in [from, to] {
        look_at_cell(config, cell, cell == to, &mut findings).await;
    }
    findings
}

/// A finding's code, what was found, why it matters, and what mends it.
type Found = (&'static str, String, &'static str, Option<&'static str>);

fn finding(place: &Place, (code, what, why, mend): Found) -> Finding {
    let finding = Finding::refuse(code, place.clone(), what, why);
    match mend {
        Some(mend) => finding.mend(mend),
        None => finding,
    }
}

const INIT: Option<&str> = Some("monarch control init");

fn unreached(error: &monarch_postgres::Error) -> Found {
    (
        "control-unreached",
        chain(error),
        "The organization could not be fenced or routed",
        None,
    )
}

const LOOK_AT_CONTROL: &str = "
    select to_regclass('public.sentry_organizationmapping') is not null,
        to_regclass('monarch_control.outbox') is not null
            and to_regclass('monarch_control.organization') is not null
            and to_regclass('monarch_control.revoked_token') is not null";
const LOOK_AT_MAPPING: &str = "
    select mapping.region_name::text, organization.move_token is not null
    from public.sentry_organizationmapping as mapping
    left join monarch_control.organization as organization using (organization_id)
    where organization_id = $1::int8";

async fn look_at_control(
    dsn: &Dsn,
    from: &CellName,
    organization: i64,
) -> Result<Vec<Found>, monarch_postgres::Error> {
    let doing = "look at the control database";
    let session = session(dsn).await?;
    let row = session.query_one(LOOK_AT_CONTROL, &[]).await.doing(doing)?;
    if !row.get::<_, bool>(0) {
        return Ok(vec![(
            "control-mapping-missing",
            "there is no table public.sentry_organizationmapping".to_owned(),
            "It says where an organization lives",
            None,
        )]);
    }
    if !row.get::<_, bool>(1) {
        return Ok(vec![(
            "control-schema-missing",
            "there is no schema monarch_control, or not all of it".to_owned(),
            "Fences and the messages of the routing are kept there",
            INIT,
        )]);
    }
    let row = session.query_opt(LOOK_AT_MAPPING, &[&organization]).await;
    let row = row.doing(doing)?;
    let cell: Option<String> = row.as_ref().map(|row| row.get(0));
    let fenced = row.is_some_and(|row| row.get(1));
    let mut found = Vec::new();
    if cell.as_deref() != Some(from.as_str()) {
        found.push((
            "control-not-routed",
            format!("the mapping does not say that the organization is in {from}"),
            "The flip changes nothing but what it knows",
            None,
        ));
    }
    if fenced {
        found.push((
            "control-fenced",
            "the organization is fenced by an older move".to_owned(),
            "One move at a time may fence it",
            Some("monarch sweep"),
        ));
    }
    Ok(found)
}

const LOOK_AT_CELL: &str = "
    select to_regclass('monarch_routing.organization') is not null,
        to_regclass('public.sentry_regionoutbox') is not null";

/// The type of a table's column; none where there is none.
const KEY_TYPE: &str = "
    select format_type(atttypid, null) from pg_attribute
    where attrelid = to_regclass($1) and attname = $2 and not attisdropped";

async fn look_at_cell(
    config: &Config,
    name: &CellName,
    is_sink: bool,
    findings: &mut Vec<Finding>,
) {
    let Some(cell) = config.fleet.cell(name) else {
        return;
    };
    for database in &cell.databases {
        let place = Place {
            cell: Some(name.clone()),
            database: Some(database.name.clone()),
            ..Place::default()
        };
        let stores = if is_sink { &database.stores[..] } else { &[] };
        let told = stores.iter().flat_map(|store| config.graph.walk(store));
        let told: Vec<&Table> = told.filter(|table| table.outbox.is_some()).collect();
        let found = look_at_database(&database.primary, &told).await;
        // That it cannot be reached, the other checks say.
        let found = found.unwrap_or_default().into_iter();
        findings.extend(found.map(|found| finding(&place, found)));
    }
}

async fn look_at_database(
    dsn: &Dsn,
    told: &[&Table],
) -> Result<Vec<Found>, monarch_postgres::Error> {
    let doing = "look for the routing in a cell";
    let purpose = SessionPurpose::reader(APPLICATION);
    let session = Session::connect(&ConnectOptions::from_dsn(dsn)?, &purpose).await?;
    let row = session.query_one(LOOK_AT_CELL, &[]).await.doing(doing)?;
    let mut found = Vec::new();
    if !row.get::<_, bool>(0) {
        found.push((
            "routing-schema-missing",
            "there is no table monarch_routing.organization".to_owned(),
            "Control tells the cell there where an organization lives and whether it may write",
            INIT,
        ));
    }
    if !told.is_empty() && !row.get::<_, bool>(1) {
        found.push((
            "outbox-missing",
            "there is no table public.sentry_regionoutbox".to_owned(),
            "The manifest names tables whose rows are told to control by it after the flip",
            Some("create the table, or take `outbox` from the tables in manifest.yaml"),
        ));
    }
    for table in told {
        let key = table.primary_key.first().map_or("", String::as_str);
        let row = session
            .query_opt(KEY_TYPE, &[&qualified(&table.name), &key])
            .await;
        let kind: Option<String> = row.doing(doing)?.map(|row| row.get(0));
        let is_number = |kind: &str| ["smallint", "integer", "bigint"].contains(&kind);
        if kind.as_deref().is_some_and(|kind| !is_number(kind)) {
            found.push((
                "outbox-key-type",
                format!("{}.{key} is no integer", table.name),
                "A message of the outbox names its object by a number",
                Some("take `outbox` from the table in manifest.yaml"),
            ));
        }
    }
    Ok(found)
}

/// Where an organization lives, as control has it.
pub(crate) struct Routing {
    organization: i64,
    cell: String,
    fenced: bool,
    version: i64,
}

const READ: &str = "
    select mapping.region_name::text, organization.move_token is not null, organization.version
    from public.sentry_organizationmapping as mapping
    join monarch_control.organization as organization using (organization_id)
    where organization_id = $1::int8";

/// What is older never overwrites what is newer: a delivery that was thought dead may come late.
const TELL: &str = "
    insert into monarch_routing.organization as known
        (organization_id, cell, fenced, version, changed_at)
    values ($1, $2, $3, $4, now())
    on conflict (organization_id) do update
    set cell = excluded.cell, fenced = excluded.fenced, version = excluded.version,
        changed_at = excluded.changed_at
    where known.version < excluded.version";

impl Routing {
    async fn read(
        client: &impl GenericClient,
        organization: i64,
    ) -> Result<Option<Self>, monarch_postgres::Error> {
        let read = client.query_opt(READ, &[&organization]).await;
        let row = read.doing("read the routing")?;
        Ok(row.map(|row| Self {
            organization,
            cell: row.get(0),
            fenced: row.get(1),
            version: row.get(2),
        }))
    }

    async fn tell(&self, client: &Client) -> Result<(), monarch_postgres::Error> {
        let told = client
            .execute(
                TELL,
                &[&self.organization, &self.cell, &self.fenced, &self.version],
            )
            .await;
        told.doing("tell a database of the routing")?;
        Ok(())
    }
}

/// Tells each database of a message's cell what the routing is when the message is delivered.
struct Teller {
    cells: BTreeMap<CellName, Vec<ConnectOptions>>,
}

impl Teller {
    fn of(fleet: &Fleet) -> Result<Self, monarch_postgres::Error> {
        let mut cells = BTreeMap::new();
        for cell in &fleet.cells {
            let options = cell.databases.iter();
            let options = options.map(|database| ConnectOptions::from_dsn(&database.primary));
            cells.insert(cell.name.clone(), options.collect::<Result<_, _>>()?);
        }
        Ok(Self { cells })
    }

    async fn tell(&self, delivery: &Delivery<'_, Control>) -> Result<(), BoxError> {
        let message = delivery.message();
        let transaction = delivery.transaction().await?;
        // An organization that is gone is routed nowhere.
        let Some(routing) = Routing::read(transaction, message.object_identifier).await? else {
            return Ok(());
        };
        let name = message.cell_name().as_str();
        let mut cells = self.cells.iter();
        let Some((_, databases)) = cells.find(|(cell, _)| cell.as_str() == name) else {
            return Err(format!("fleet.yaml has no cell {name}").into());
        };
        try_join_all(databases.iter().map(async |database| {
            let purpose = SessionPurpose::writer(APPLICATION);
            let session = Session::connect(database, &purpose).await?;
            routing.tell(&session).await
        }))
        .await?;
        Ok(())
    }
}

impl Receiver<Control> for Teller {
    fn receive<'a>(
        &'a self,
        delivery: &'a Delivery<'a, Control>,
    ) -> BoxFuture<'a, Result<(), BoxError>> {
        Box::pin(self.tell(delivery))
    }
}
