//! Writers: plain applications that insert, update and delete for an organization in every store,
//! and stop when the control plane says so.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::task::JoinHandle;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, GenericClient, Transaction};

use crate::{Cell, ControlPlane, Fleet, Organization};

/// Whether the database that is written to knows of a fence, or of another home. One that was told
/// nothing is where the organization always was.
const MAY_WRITE: &str = "
    select coalesce((
        select cell = $2 and not fenced from monarch_routing.organization where organization_id = $1
    ), true)";

/// How long a writer waits before it asks the control plane again.
const FENCED: Duration = Duration::from_millis(20);

/// Whether a statement makes the organization's rows more or fewer.
#[derive(Debug, Clone, Copy)]
enum Kind {
    More,
    Same,
    Fewer,
}

use Kind::{Fewer, More, Same};

/// What is done in each store, as statements that return one number: the rows they changed. Random
/// rows are found through an index, so that a writer's pace does not depend on a table's size.
const WORK: [(&str, &[(Kind, &str)]); 3] = [
    ("default", DEFAULT),
    ("events", EVENTS),
    ("metrics", METRICS),
];

const DEFAULT: &[(Kind, &str)] = &[
    (
        More,
        r#"insert into "Issue" (project_id, "shortId", title, weight)
           select id, 7, 'new ' || random(), random() * 1000
           from unnest({projects}) id order by random() limit 1 returning 1"#,
    ),
    (
        More,
        r#"insert into comment (issue_id, body)
           select i.id, (select string_agg(md5(random()::text || n || m), '')
                         from generate_series(1, case when n = 1 then 150 else 2 end) m)
           from (select id from "Issue" where project_id = any ({projects})
                 and id >= (select (random() * max(id))::bigint from "Issue") order by id limit 1) i,
                generate_series(1, 5) n
           returning 1"#,
    ),
    (
        More,
        "insert into invitation (team_id, email)
         select id, 'new@{slug}.example' from team where organization_id = {org}
         order by id limit 2 returning 1",
    ),
    // Rows that nobody owned become the organization's, and the other way round.
    (
        More,
        "update invitation set team_id = (select max(id) from team where organization_id = {org})
         where id = (select id from invitation where team_id is null
                     limit 1 for update skip locked) returning 1",
    ),
    (
        Fewer,
        "update invitation set team_id = null
         where id = (select i.id from invitation i join team t on t.id = team_id
                     where organization_id = {org} order by i.id limit 1) returning 1",
    ),
    (
        More,
        "insert into team_member (team_id, user_id)
         select min(id), (random() * 1e12)::bigint from team where organization_id = {org}
         returning 1",
    ),
    // The key changes.
    (
        Same,
        "update team_member set user_id = user_id + 5000000
         where (team_id, user_id) in (
             select team_id, user_id from team_member
             where team_id = (select min(id) from team where organization_id = {org})
             order by user_id limit 1) returning 1",
    ),
    (
        Same,
        r#"update "Issue" set title = title || '!', state = 'resolved', labels = labels || null::text
           where id = (select id from "Issue" where project_id = any ({projects})
                       and id >= (select (random() * max(id))::bigint from "Issue")
                       order by id limit 1) returning 1"#,
    ),
    // A large body is not changed, and so not logged.
    (
        Same,
        r#"update comment set meta = jsonb_build_object('seen', random())
           where id in (select c.id from comment c join "Issue" i on i.id = issue_id
                        where project_id = any ({projects}) and c.id >= (select gen_random_uuid())
                        order by c.id limit 3) returning 1"#,
    ),
    (
        Same,
        "update app.setting set value = to_jsonb(random()), changed_at = now()
         where organization_id = {org} and name = 'setting ' || 1 + (select random() * 19)::int
         returning 1",
    ),
    (
        Same,
        "update project set settings = settings || jsonb_build_object('touched', random())
         where id = any ({projects}) returning 1",
    ),
    (
        Fewer,
        r#"delete from comment
           where id = (select c.id from comment c join "Issue" i on i.id = issue_id
                       where project_id = any ({projects}) and c.id >= (select gen_random_uuid())
                       order by c.id limit 1) returning 1"#,
    ),
    (
        Fewer,
        r#"with gone as (
             select id from "Issue" where project_id = any ({projects})
             and id >= (select (random() * max(id))::bigint from "Issue") order by id limit 1),
           children as (delete from comment where issue_id in (select id from gone) returning 1),
           parent as (delete from "Issue" where id in (select id from gone) returning 1)
           select from children union all select from parent"#,
    ),
];

const EVENTS: &[(Kind, &str)] = &[
    (
        More,
        "with made as (
           insert into event_group (project_id, fingerprint)
           select id, md5(random()::text) from unnest({projects}) id order by random() limit 1
           returning id),
         tagged as (insert into event_tag select id, 'release', 'r1' from made returning 1),
         seen as (
           insert into event (group_id, payload, size_bytes)
           select id, repeat('x', 10 * n), n from made, generate_series(1, 3) n returning 1)
         select from made union all select from tagged union all select from seen",
    ),
    (
        More,
        "insert into event (received, group_id, payload, size_bytes)
         select date '2026-01-01' + (random() * 500)::int, g.id,
                (select string_agg(md5(random()::text || n), '')
                 from generate_series(1, case when random() < 0.2 then 150 else 2 end) n), 1
         from (select id from event_group where project_id = any ({projects})
               and id >= (select gen_random_uuid()) order by id limit 1) g,
              generate_series(1, 3) returning 1",
    ),
    (
        Same,
        "update event_group set times_seen = times_seen + 1, last_seen = now()
         where id in (select id from event_group where project_id = any ({projects})
                      and id >= (select gen_random_uuid()) order by id limit 2) returning 1",
    ),
    // A large payload is not changed, and so not logged.
    (
        Same,
        "update event set size_bytes = size_bytes + 1
         where (id, received) in (
             select e.id, received from event e join event_group g on g.id = group_id
             where project_id = any ({projects}) and e.id >= (select gen_random_uuid())
             order by e.id limit 3) returning 1",
    ),
    // A row moves to another partition.
    (
        Same,
        "update event set received = date '2026-12-31' - (received - date '2026-01-01') % 365
         where (id, received) in (
             select e.id, received from event e join event_group g on g.id = group_id
             where project_id = any ({projects}) and e.id >= (select gen_random_uuid())
             order by e.id limit 1) returning 1",
    ),
    (
        Same,
        "update event_tag set value = 'v' || random()
         where (group_id, key) in (
             select group_id, key from event_tag join event_group g on g.id = group_id
             where project_id = any ({projects}) and group_id >= (select gen_random_uuid())
             order by group_id limit 1) returning 1",
    ),
    (
        Fewer,
        "delete from event
         where (id, received) in (
             select e.id, received from event e join event_group g on g.id = group_id
             where project_id = any ({projects}) and e.id >= (select gen_random_uuid())
             order by e.id limit 4) returning 1",
    ),
    (
        Fewer,
        "with gone as (
           select id from event_group where project_id = any ({projects})
           and id >= (select gen_random_uuid()) order by id limit 1),
         tags as (delete from event_tag where group_id in (select id from gone) returning 1),
         events as (delete from event where group_id in (select id from gone) returning 1),
         parent as (delete from event_group where id in (select id from gone) returning 1)
         select from tags union all select from events union all select from parent",
    ),
];

const METRICS: &[(Kind, &str)] = &[
    (
        More,
        "with made as (
           insert into metric_series (project_id, name)
           select id, md5(random()::text) from unnest({projects}) id order by random() limit 1
           returning id),
         sampled as (
           insert into sample
           select id, now() + n * interval '1 s', random() from made, generate_series(1, 3) n
           returning 1)
         select from made union all select from sampled",
    ),
    (
        More,
        "insert into sample
         select id, clock_timestamp(), random(), 'infinity' from metric_series
         where project_id = any ({projects}) order by id desc limit 5 returning 1",
    ),
    (
        Same,
        "update sample set value = value + 1
         where series_id = (select min(id) from metric_series where project_id = any ({projects}))
         returning 1",
    ),
    (
        Same,
        "update quota set used = used + 1 where organization_id = {org} returning 1",
    ),
    (
        Same,
        "update metric_series set name = name || '.'
         where id = (select min(id) from metric_series where project_id = any ({projects}))
         returning 1",
    ),
    (
        Same,
        "update alert_rule set thresholds = thresholds || random()::numeric
         where id = (select id from alert_rule where project_id = any ({projects})
                     and cardinality(thresholds) < 20 limit 1) returning 1",
    ),
    (
        Fewer,
        "delete from sample
         where series_id = (select max(id) from metric_series where project_id = any ({projects}))
           and at = (select min(at) from sample where series_id = (
                     select max(id) from metric_series where project_id = any ({projects})))
         returning 1",
    ),
    (
        Fewer,
        "with gone as (select max(id) id from metric_series where project_id = any ({projects})),
         samples as (delete from sample where series_id in (select id from gone) returning 1),
         parent as (delete from metric_series where id in (select id from gone) returning 1)
         select from samples union all select from parent",
    ),
];

/// What a writer has committed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Transactions.
    pub transactions: u64,
    /// Rows inserted, updated or deleted.
    pub changes: i64,
    /// By how many rows the organization has grown; negative if it shrank.
    pub growth: i64,
}

/// Writers at work. They end when this is dropped; [`Self::stop`] tells what they did.
#[derive(Debug)]
pub struct Traffic {
    stop: Arc<AtomicBool>,
    writers: Vec<(String, JoinHandle<Result<Tally>>)>,
}

impl Traffic {
    /// Starts a writer per store for an organization of the source cell.
    ///
    /// # Errors
    ///
    /// When a database cannot be reached.
    pub async fn start(fleet: &Fleet, organization: &Organization, pace: Duration) -> Result<Self> {
        let mut traffic = Self {
            stop: Arc::default(),
            writers: Vec::new(),
        };
        for (store, work) in WORK {
            let writer = Writer {
                client: connect(&fleet.source, store, organization).await?,
                cell: fleet.source.name.clone(),
                gate: match fleet.control_database {
                    Some(_) => Gate::Database,
                    None => Gate::Plane(fleet.control.clone()),
                },
                organization: *organization,
                statements: prepare(organization, work),
                pace,
                stop: Arc::clone(&traffic.stop),
            };
            let writing = tokio::spawn(writer.write());
            traffic.writers.push((store.to_owned(), writing));
        }
        Ok(traffic)
    }

    /// Ends the writers after the transactions that they are in; returns what each store's did.
    ///
    /// # Errors
    ///
    /// When a writer met an error: then the application would have, too.
    pub async fn stop(mut self) -> Result<BTreeMap<String, Tally>> {
        self.stop.store(true, Ordering::Relaxed);
        let mut tallies = BTreeMap::new();
        for (store, writing) in std::mem::take(&mut self.writers) {
            let tally = writing
                .await
                .context("a writer panicked")?
                .with_context(|| format!("write to {store}"))?;
            tallies.insert(store, tally);
        }
        Ok(tallies)
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

async fn connect(cell: &Cell, store: &str, organization: &Organization) -> Result<Client> {
    let client = cell.place_of(store)?.connect().await?;
    let name = format!("set application_name = 'writer of {}'", organization.slug);
    client
        .batch_execute(&name)
        .await
        .context("name a session")?;
    Ok(client)
}

/// Makes each statement return one number.
fn prepare(organization: &Organization, work: &[(Kind, &str)]) -> Vec<(Kind, String)> {
    let counted = |text: &str| {
        let text = organization.sql(text);
        match text.rsplit_once("select from") {
            // A data-modifying `with` may only stand at the top.
            Some(_) if text.starts_with("with ") => count_unions(&text),
            _ => format!("with changed as ({text}) select count(*) from changed"),
        }
    };
    work.iter()
        .map(|(kind, text)| (*kind, counted(text)))
        .collect()
}

/// `with … select from a union all select from b` → `with … select count(*) from (…) changed`.
fn count_unions(text: &str) -> String {
    let end = text.find("select from").unwrap_or(text.len());
    let (with, unions) = text.split_at(end);
    format!("{with} select count(*) from ({unions}) changed")
}

/// Whom a writer asks whether it may write.
enum Gate {
    /// The control plane.
    Plane(ControlPlane),
    /// The database that it writes to, which control tells of the routing.
    Database,
}

impl Gate {
    async fn is_open(
        &self,
        client: &impl GenericClient,
        organization: i64,
        cell: &str,
    ) -> Result<bool> {
        match self {
            Gate::Plane(plane) => plane.may_write(organization, cell),
            Gate::Database => {
                let row = client.query_one(MAY_WRITE, &[&organization, &cell]).await;
                Ok(row.context("ask whether it may write")?.get(0))
            }
        }
    }
}

struct Writer {
    client: Client,
    cell: String,
    gate: Gate,
    organization: Organization,
    statements: Vec<(Kind, String)>,
    pace: Duration,
    stop: Arc<AtomicBool>,
}

impl Writer {
    async fn write(mut self) -> Result<Tally> {
        let mut tally = Tally::default();
        while !self.stop.load(Ordering::Relaxed) {
            let (organization, cell) = (self.organization.id, &self.cell);
            if !self.gate.is_open(&self.client, organization, cell).await? {
                tokio::time::sleep(FENCED).await;
                continue;
            }
            if let Some(done) = self.transaction().await? {
                tally.transactions += 1;
                tally.changes += done.changes;
                tally.growth += done.growth;
            }
            tokio::time::sleep(self.pace).await;
        }
        Ok(tally)
    }

    /// A few random statements; nothing if it was rolled back.
    async fn transaction(&mut self) -> Result<Option<Tally>> {
        let transaction = self.client.transaction().await.context("begin")?;
        let statements = &self.statements;
        let chosen = (0..rand::random_range(1..5))
            .map(|_| &statements[rand::random_range(0..statements.len())]);
        let mut done = Tally::default();
        for (kind, text) in chosen {
            match run(&transaction, text).await {
                Ok(rows) => {
                    done.changes += rows;
                    done.growth += match kind {
                        More => rows,
                        Same => 0,
                        Fewer => -rows,
                    };
                }
                // Another writer was there first.
                Err(error) if is_a_race(&error) => return Ok(None),
                Err(error) => return Err(error).with_context(|| format!("run {text}")),
            }
        }
        // Now that it holds its locks: see the module of the control plane.
        let (organization, cell) = (self.organization.id, &self.cell);
        if !self.gate.is_open(&transaction, organization, cell).await? {
            transaction.rollback().await.context("roll back")?;
            return Ok(None);
        }
        transaction.commit().await.context("commit")?;
        Ok(Some(done))
    }
}

async fn run(transaction: &Transaction<'_>, text: &str) -> Result<i64, tokio_postgres::Error> {
    transaction.query_one(text, &[]).await?.try_get(0)
}

fn is_a_race(error: &tokio_postgres::Error) -> bool {
    error.code().is_some_and(|code| {
        [
            SqlState::T_R_DEADLOCK_DETECTED,
            SqlState::FOREIGN_KEY_VIOLATION,
            SqlState::UNIQUE_VIOLATION,
        ]
        .contains(code)
    })
}
