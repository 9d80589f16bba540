//! One move of one seed, from empty databases to nothing left, judged row by row.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use monarch_config::Graph;
use monarch_harness::{Cluster, ClusterOptions, PgVersion, Standby};
use monarch_model::{MoveId, OrgId, StoreName, TableName};
use monarch_postgres::connect::Environment;
use monarch_postgres::evict::{self, EvictionPermit, Evidence, record_horizon};
use monarch_postgres::spine;
use monarch_postgres::stream::Batching;
use monarch_postgres::verify::{self, Subject};
use monarch_postgres::{ConnectOptions, Unit, catalog, drain, sink, stream};
use tokio::sync::OnceCell;
use tokio::time::Instant;
use tokio_postgres::Client;
use uuid::Uuid;

use crate::cells::{Cell, Dump, Who, assert_known, assert_same, ours, part, together};
use crate::dice::Dice;
use crate::hazard::{Hazard, What};
use crate::model::{Causes, Op};
use crate::mover::{Disturbance, Ended, Mover, Post, Sides};
use crate::schema::{Schema, Side};
use crate::sql::statements;
use crate::work::{self, ORG, Script, Transaction};
use crate::writers::Writers;

/// How long anything may take before it counts as a fault: far more than it needs.
const PATIENCE: Duration = Duration::from_secs(300);

/// The pairs of versions, source and sink, that seeds choose from.
const VERSIONS: [(PgVersion, PgVersion); 5] = [
    (PgVersion::V15, PgVersion::V14),
    (PgVersion::V15, PgVersion::V16),
    (PgVersion::V16, PgVersion::V17),
    (PgVersion::V17, PgVersion::V18),
    (PgVersion::V18, PgVersion::V15),
];

/// What is to be run.
#[derive(Debug, Clone, Copy)]
pub struct Order {
    /// The one number that tells everything.
    pub seed: u64,
    /// How many transactions are run at most: fewer than the seed's, to find which one it is that
    /// a fault needs.
    pub transactions: usize,
    /// Whether its movers may have a role of their own and decode on a standby, and a hazard befall
    /// it: the seeds that found a fault before there was any of this must stay what they were.
    pub hazardous: bool,
    /// How rows share statements, if not as the seed has it.
    pub batching: Option<Batching>,
}

impl Order {
    /// All of a seed.
    #[must_use]
    pub fn of(seed: u64) -> Self {
        Self {
            seed,
            transactions: usize::MAX,
            hazardous: true,
            batching: None,
        }
    }

    /// The same, without roles, standbys and hazards.
    #[must_use]
    pub fn plain(seed: u64) -> Self {
        Self {
            hazardous: false,
            ..Self::of(seed)
        }
    }
}

/// How a move came out, if nothing was wrong with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It arrived, and the source was evicted.
    Moved,
    /// It was given up when all of it had arrived, and the sink was scrubbed.
    GivenUp,
    /// It arrived, and what was written behind the seal forbade the eviction.
    Late,
    /// It failed by that name, for a cause that there was.
    Failed(String),
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Moved => f.write_str("moved"),
            Outcome::GivenUp => f.write_str("given-up"),
            Outcome::Late => f.write_str("late-changes"),
            Outcome::Failed(name) => f.write_str(name),
        }
    }
}

/// What became of a move.
#[derive(Debug, Clone)]
pub struct Judged {
    /// How it came out.
    pub outcome: Outcome,
    /// Rows written or deleted by its streams.
    pub changes: u64,
    /// How often a mover was disturbed.
    pub disturbances: usize,
    /// Transactions of the source beside it.
    pub transactions: usize,
}

/// What a seed stands for.
struct Plan {
    schema: Schema,
    script: Script,
    home: crate::model::State,
    versions: (PgVersion, PgVersion),
    /// The transactions before which it is not waited for the streams.
    head: usize,
    /// Behind which transaction which unit is disturbed.
    disturbances: Vec<(usize, usize, Disturbance)>,
    /// After how many milliseconds the first copy of which unit dies.
    copy_dies: Vec<(usize, u64)>,
    ending: Ending,
    spool_bytes: usize,
    batching: Batching,
    dice: Dice,
    /// Who the movers are on the source and on the sink.
    who: (Who, Who),
    /// Whether changes are decoded on a standby.
    on_standby: bool,
    hazard: Option<Hazard>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    Evict,
    GiveUp,
    WriteLate,
}

/// Tells the dice of what was added to the generator later from those that rolled before it: a seed
/// that found a fault keeps its schema and its script.
const LATER: u64 = 0x6d6f_6e61_7263_6803;

/// Whether the sink's foreign keys act on what the movers write.
fn keys_act(who: Who, sink: PgVersion) -> bool {
    who == Who::Owner && sink == PgVersion::V14
}

/// How rows share statements; again with dice of its own.
fn batching(seed: u64) -> Batching {
    let mut dice = Dice::new(seed ^ (LATER + 1));
    let sizes = Batching::Random(u64::from(dice.below(u32::MAX)));
    dice.weighted(&[(1, Batching::Off), (2, Batching::AsPays), (5, sizes)])
}

impl Plan {
    fn roll(order: &Order) -> Self {
        let mut dice = Dice::new(order.seed);
        let schema = Schema::roll(&mut dice.fork());
        let calm = dice.percent(70);
        let mut script = work::roll(&schema, &mut dice.fork(), calm);
        script.cut(&schema, order.transactions);
        let home = work::at_home(&schema, &mut dice.fork());
        let versions = VERSIONS[dice.index(VERSIONS.len())];
        let count = script.transactions.len();
        let units = schema.stores.len();
        let head = dice.index(count / 2 + 1);
        let how = [Disturbance::Kill, Disturbance::Stop, Disturbance::Succeed];
        let mut disturbances = Vec::new();
        for _ in 0..dice.weighted(&[(3, 0), (4, 1), (3, 3), (1, 6)]) {
            let behind = head + dice.index(count.saturating_sub(head).max(1));
            disturbances.push((behind, dice.index(units), how[dice.index(3)]));
        }
        let dying = (0..units).filter(|_| dice.percent(25)).collect::<Vec<_>>();
        let copy_dies = dying
            .into_iter()
            .map(|unit| (unit, u64::from(dice.below(250))))
            .collect();
        let mut later = Dice::new(order.seed ^ LATER);
        let who = |later: &mut Dice| match later.percent(40) && order.hazardous {
            true => Who::Owner,
            false => Who::Superuser,
        };
        let mut who = (who(&mut later), who(&mut later));
        // Which preflight refuses: units are copied side by side.
        if keys_act(who.1, versions.1) && schema.is_held_across_stores() {
            who.1 = Who::Superuser;
        }
        let on_standby = later.percent(15) && order.hazardous && versions.0 >= PgVersion::V16;
        let befalls = later.percent(50) && order.hazardous && !calm;
        let hazard = befalls
            .then(|| Hazard::roll(&schema, &script, &home, head, &mut later))
            .flatten();
        Self {
            who,
            on_standby,
            hazard,
            schema,
            script,
            home,
            versions,
            head,
            disturbances,
            copy_dies,
            ending: dice.weighted(&[
                (7, Ending::Evict),
                (2, Ending::GiveUp),
                (1, Ending::WriteLate),
            ]),
            spool_bytes: [0, 10_000, 1 << 24][dice.index(3)],
            batching: order.batching.unwrap_or_else(|| batching(order.seed)),
            dice,
        }
    }

    /// Of what the move may fail.
    fn causes(&self) -> Causes {
        let mut causes = self.script.causes.clone();
        causes.extend(self.hazard.iter().flat_map(Hazard::causes));
        // One between the note of the tables and the slot is in no log, and shows in the files.
        if causes.contains("truncated") {
            causes.insert("schema-changed");
        }
        // A role that cannot keep the sink's foreign keys from acting, as preflight warns.
        if keys_act(self.who.1, self.versions.1) && self.schema.is_held_on_sink() {
            causes.insert("row-refused");
        }
        causes
    }
}

/// What the seed stands for, in words.
#[must_use]
pub fn story(order: &Order) -> String {
    let plan = Plan::roll(order);
    let mut told = format!(
        "versions {:?}, movers {:?}, on a standby {}, batching {:?}, {:?}, hazard {}, head {}, \
         disturbances {:?}, dying copies {:?}, causes {:?}\n{}",
        plan.versions,
        plan.who,
        plan.on_standby,
        plan.batching,
        plan.ending,
        plan.hazard
            .as_ref()
            .map_or("none".to_owned(), Hazard::to_string),
        plan.head,
        plan.disturbances,
        plan.copy_dies,
        plan.causes(),
        plan.schema.manifest()
    );
    for database in 0..plan.schema.databases(Side::Source) {
        told.push_str(&plan.schema.ddl(Side::Source, database));
    }
    for (at, transaction) in plan.script.transactions.iter().enumerate() {
        told.push_str(&format!(
            "-- {at}\n{}\n",
            told_sql(&plan.schema, transaction)
        ));
    }
    told
}

fn told_sql(schema: &Schema, transaction: &Transaction) -> String {
    let text = |ops: &[Op]| -> String { ops.iter().map(|op| statements(schema, op)).collect() };
    let within = transaction.within.as_ref();
    let at = within.map_or(transaction.ops.len(), |(_, at)| *at);
    let end = if transaction.rolled_back {
        "rollback"
    } else {
        "commit"
    };
    let beside = within.map(|(ops, _)| format!("\n  beside: begin; {} commit;\n", text(ops)));
    format!(
        "begin; {}{}{} {end};",
        text(&transaction.ops[..at]),
        beside.unwrap_or_default(),
        text(&transaction.ops[at..])
    )
}

/// The servers are started once and serve every move. Little memory for decoding, so that a
/// transaction need not be large to be streamed before its end.
async fn cluster(version: PgVersion) -> Result<&'static Cluster> {
    static CLUSTERS: [OnceCell<Cluster>; 5] = [const { OnceCell::const_new() }; 5];
    CLUSTERS[version as usize]
        .get_or_try_init(|| {
            let options = ClusterOptions::new(version).setting("logical_decoding_work_mem = 64kB");
            Cluster::start(options)
        })
        .await
}

/// A standby of the server of a version, likewise.
async fn standby(version: PgVersion) -> Result<&'static Standby> {
    static STANDBYS: [OnceCell<Standby>; 5] = [const { OnceCell::const_new() }; 5];
    let primary = cluster(version).await?;
    STANDBYS[version as usize]
        .get_or_try_init(|| Standby::of(primary))
        .await
}

/// Runs the move of a seed.
///
/// # Errors
///
/// Whatever is wrong: a row that is not as it must be, a failure that has no cause, anything left
/// behind.
pub async fn run(order: &Order) -> Result<Judged> {
    let plan = Plan::roll(order);
    let hosts = (
        cluster(plan.versions.0).await?,
        cluster(plan.versions.1).await?,
    );
    let (source, sink) = tokio::try_join!(
        Cell::make(hosts.0, &plan.schema, Side::Source, plan.who.0),
        Cell::make(hosts.1, &plan.schema, Side::Sink, plan.who.1)
    )?;
    let judged = {
        let run = Box::pin(Run::begin(&plan, &source, &sink)).await?;
        Box::pin(run.through()).await
    };
    let dropped = tokio::try_join!(source.drop(hosts.0), sink.drop(hosts.1));
    let judged = judged?;
    dropped?;
    Ok(judged)
}

struct Run<'a> {
    plan: &'a Plan,
    source: &'a Cell,
    sink: &'a Cell,
    graph: Arc<Graph>,
    org: OrgId,
    movers: Vec<Mover>,
    /// The sink's rows before the move.
    home: Dump,
}

impl<'a> Run<'a> {
    async fn begin(plan: &'a Plan, source: &'a Cell, sink: &'a Cell) -> Result<Self> {
        let schema = &plan.schema;
        source.fill(schema, &plan.script.initial).await?;
        sink.fill(schema, &plan.home).await?;
        let standby = match plan.on_standby {
            true => Some(standby(plan.versions.0).await?),
            false => None,
        };
        if let Some(standby) = standby {
            standby.catch_up(cluster(plan.versions.0).await?).await?;
        }
        let home = sink.dump(schema).await?;
        let manifest = schema.manifest();
        let graph = monarch_config::manifest_from_str("manifest.yaml", &manifest)
            .map_err(|faults| anyhow::anyhow!("{faults}\n{manifest}"))?;
        let org: OrgId = schema.tables[0].key[0].1.text(ORG).parse()?;
        let mut clients = BTreeMap::new();
        let mut names = Vec::new();
        for store in &schema.stores {
            let name: StoreName = store.name.parse()?;
            clients.insert(name.clone(), source.client(store.source).await?);
            names.push(name);
        }
        let clients: BTreeMap<StoreName, &Client> = clients
            .iter()
            .map(|(name, client)| (name.clone(), client))
            .collect();
        let spine = Arc::new(spine::read(&clients, &graph, &org).await?);
        let graph = Arc::new(graph);
        let move_id = MoveId(Uuid::new_v4());
        let mut movers = Vec::new();
        for (at, (store, name)) in schema.stores.iter().zip(names).enumerate() {
            let unit = Unit {
                move_id,
                org: org.clone(),
                store: name,
            };
            let dsn = &source.movers[store.source];
            let on_standby = |standby: &Standby| {
                let primary = cluster_port(dsn);
                options(&dsn.replace(&primary, &format!("port={}", standby.port())))
            };
            let sides = Sides {
                source: options(dsn)?,
                standby: standby.map(on_standby).transpose()?,
                sink: options(&sink.movers[store.sink])?,
            };
            let post = Arc::new(Post::new(
                unit,
                &graph,
                &spine,
                sides,
                plan.spool_bytes,
                plan.batching,
            ));
            let dies = plan.copy_dies.iter().find(|(unit, _)| *unit == at);
            let dies = dies.map(|(_, after)| Duration::from_millis(*after));
            movers.push(Mover::start(post, dies));
        }
        Ok(Self {
            plan,
            source,
            sink,
            graph,
            org,
            movers,
            home,
        })
    }

    async fn through(mut self) -> Result<Judged> {
        let worked = self.work().await;
        let failed = match worked {
            Ok(failed) => failed,
            Err(error) => {
                self.end_all().await;
                return Err(error);
            }
        };
        let at_barrier = self.source.dump(&self.plan.schema).await?;
        assert_known(&self.plan.schema, &at_barrier, &self.plan.script.last)?;
        let failed = match failed {
            None => self.changed_schema().await?,
            failed => failed,
        };
        let outcome = match failed {
            Some((name, told)) => self.fail(&name, &told, &at_barrier).await,
            None => self.arrive(&at_barrier).await,
        };
        self.end_all().await;
        Ok(Judged {
            outcome: outcome?,
            changes: self
                .movers
                .iter()
                .map(|mover| mover.progress.borrow().changes)
                .sum(),
            disturbances: self.plan.disturbances.len() + self.plan.copy_dies.len(),
            transactions: self.plan.script.transactions.len(),
        })
    }

    /// What of the source's tables changed without a mover's word, at the latest seen at the barrier.
    async fn changed_schema(&self) -> Result<Option<(String, String)>> {
        for mover in &self.movers {
            let changes = mover.post.changes_of_schema().await?;
            if !changes.is_empty() {
                return Ok(Some(("schema-changed".to_owned(), changes.join("; "))));
            }
        }
        Ok(None)
    }

    async fn end_all(&mut self) {
        for mover in &mut self.movers {
            mover.end().await;
        }
    }

    /// Runs the script and disturbs the movers, up to a barrier that all of them have applied; or
    /// to the name of which the move failed.
    async fn work(&mut self) -> Result<Option<(String, String)>> {
        let plan = self.plan;
        let mut dice = plan.dice.clone();
        let mut writers = Writers::connect(&plan.schema, self.source).await?;
        for at in 0..=plan.script.transactions.len() {
            if at == plan.head {
                self.until_all_stream().await?;
            }
            self.befall(at).await?;
            let Some(transaction) = plan.script.transactions.get(at) else {
                break;
            };
            writers
                .run(&plan.schema, transaction)
                .await
                .with_context(|| format!("run transaction {at} of the script"))?;
            for (behind, unit, how) in &plan.disturbances {
                if *behind == at {
                    self.movers[*unit].disturb(*how);
                }
            }
            if dice.percent(30) {
                tokio::time::sleep(Duration::from_millis(u64::from(dice.below(15)))).await;
            }
        }
        self.until_all_stream().await?;
        self.barrier().await
    }

    /// What befalls the move before a transaction.
    async fn befall(&mut self, at: usize) -> Result<()> {
        let schema = &self.plan.schema;
        let Some(hazard) = self.plan.hazard.as_ref().filter(|hazard| hazard.at == at) else {
            return Ok(());
        };
        let store = match &hazard.what {
            What::Schema { table, .. } | What::Clash { table, .. } => {
                &schema.stores[schema.tables[*table].store]
            }
        };
        let client = match &hazard.what {
            What::Schema { .. } => self.source.client(store.source).await?,
            What::Clash { .. } => self.sink.client(store.sink).await?,
        };
        let doing = || format!("befall the move {hazard}");
        client
            .batch_execute(&hazard.sql(schema))
            .await
            .with_context(doing)?;
        if let What::Clash { table, row, .. } = &hazard.what {
            let theirs = self.sink.labelled(schema, row.1.label).await?;
            self.home[*table].extend(theirs[*table].iter().cloned());
            self.home[*table].sort();
        }
        Ok(())
    }

    /// The first failure of a mover by name; an error if one broke.
    async fn failed(&mut self) -> Result<Option<(String, String)>> {
        let mut by_name = None;
        for mover in &mut self.movers {
            match mover.has_ended().await {
                None => {}
                Some(Ended::ByName(name, told)) => by_name = Some((name, told)),
                Some(ended) => bail!("the mover of {} ended: {ended}", mover.post.unit.store),
            }
        }
        Ok(by_name)
    }

    async fn until_all_stream(&mut self) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let streams = |mover: &Mover| mover.progress.borrow().streams;
            if self.movers.iter().all(streams) || self.failed().await?.is_some() {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "a mover does not come to stream");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Waits until each unit has applied a barrier that is written now.
    async fn barrier(&mut self) -> Result<Option<(String, String)>> {
        let deadline = Instant::now() + PATIENCE;
        let mut waiting = Vec::new();
        for (store, mover) in self.plan.schema.stores.iter().zip(&self.movers) {
            let nonce = Uuid::new_v4();
            let unit = &mover.post.unit;
            let source = self.source.client(store.source).await?;
            drain::emit_barrier(&source, unit.move_id, &unit.store, nonce).await?;
            waiting.push((self.sink.client(store.sink).await?, unit.clone(), nonce));
        }
        while let Some((sink, unit, nonce)) = waiting.last() {
            if let Some(failed) = self.failed().await? {
                return Ok(Some(failed));
            }
            let state = sink::read(sink, unit).await?;
            if state
                .and_then(|state| state.barrier)
                .is_some_and(|seen| seen.nonce == *nonce)
            {
                waiting.pop();
                continue;
            }
            ensure!(
                Instant::now() < deadline,
                "{}: the barrier is not applied",
                unit.store
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(None)
    }

    /// A move that failed is given up: the name must have had its cause, and nothing stays.
    async fn fail(&mut self, name: &str, told: &str, source: &Dump) -> Result<Outcome> {
        let causes = self.plan.causes();
        ensure!(
            causes.contains(name),
            "it failed without a cause: {told}; there was {causes:?}"
        );
        self.give_up(source).await?;
        Ok(Outcome::Failed(name.to_owned()))
    }

    async fn give_up(&mut self, source: &Dump) -> Result<()> {
        let schema = &self.plan.schema;
        self.movers.iter().for_each(|mover| mover.post.close());
        for store in evict::unit_order(&self.graph) {
            let mover = self.mover(&store)?;
            mover.post.drop_slots(mover.post.next_epoch()).await?;
            mover.post.scrub(mover.post.next_epoch(), true).await?;
        }
        self.end_all().await;
        assert_same(
            schema,
            "the sink after a scrub",
            &self.sink.dump(schema).await?,
            &self.home,
        )?;
        assert_same(
            schema,
            "the source after a scrub",
            &self.source.dump(schema).await?,
            source,
        )
    }

    fn mover(&self, store: &StoreName) -> Result<&Mover> {
        let mut movers = self.movers.iter();
        movers
            .find(|mover| mover.post.unit.store == *store)
            .with_context(|| format!("a mover of {store}"))
    }

    /// All of it is on the sink: it is compared, and then the move ends.
    async fn arrive(&mut self, source: &Dump) -> Result<Outcome> {
        let schema = &self.plan.schema;
        if let Some(hazard) = &self.plan.hazard {
            bail!("it did not fail, though {hazard}");
        }
        let mine = ours(schema, source, self.org.as_str());
        let expected = together(&self.home, &part(source, &mine, true));
        let found = self.sink.dump(schema).await?;
        assert_same(schema, "the sink at the barrier", &found, &expected)?;
        self.verify().await?;
        if self.plan.ending == Ending::GiveUp {
            self.give_up(source).await?;
            return Ok(Outcome::GivenUp);
        }
        let slots = self.seal().await?;
        if self.plan.ending == Ending::WriteLate {
            return self.write_late(&slots).await;
        }
        self.evict(&slots).await?;
        let (left, sink) = (
            self.source.dump(schema).await?,
            self.sink.dump(schema).await?,
        );
        assert_same(
            schema,
            "the source after eviction",
            &left,
            &part(source, &mine, false),
        )?;
        assert_same(schema, "the sink after eviction", &sink, &expected)?;
        Ok(Outcome::Moved)
    }

    /// Monarch's own comparison must find the same.
    async fn verify(&self) -> Result<()> {
        for mover in &self.movers {
            let post = &mover.post;
            let epoch = monarch_model::Epoch(1_000_000);
            let source = post.session(&post.source, epoch).await?;
            let sink = post.session(&post.sink, epoch).await?;
            let tables = self.graph.walk(&post.unit.store);
            let (from, to) = (
                catalog::load(&*source, &tables).await?,
                catalog::load(&*sink, &tables).await?,
            );
            let (from_scope, to_scope) = (post.scope(&from)?, post.scope(&to)?);
            let mut subjects = [Vec::new(), Vec::new()];
            for table in &tables {
                let (Some(here), Some(there)) =
                    (from.relation(&table.name), to.relation(&table.name))
                else {
                    bail!("{} is missing on a side", table.name);
                };
                for (subjects, scope) in subjects.iter_mut().zip([&from_scope, &to_scope]) {
                    subjects.push(Subject {
                        table: table.name.clone(),
                        columns: verify::shared_columns(here, there),
                        predicate: scope.predicate(&table.name, "t")?,
                    });
                }
            }
            let ours = verify::digest(&*source, &subjects[0]).await?;
            let theirs = verify::digest(&*sink, &subjects[1]).await?;
            let compared = verify::compare(&ours, &theirs);
            ensure!(
                compared.is_equal(),
                "verification differs where no row does: {compared:?}"
            );
        }
        Ok(())
    }

    /// Seals each unit; the slots that stay to be read.
    async fn seal(&mut self) -> Result<Vec<String>> {
        let mut slots = Vec::new();
        for mover in &self.movers {
            let post = &mover.post;
            post.close();
            let epoch = post.next_epoch();
            let mut sink = post.take_over(epoch).await?;
            stream::seal(&mut sink, &post.unit, epoch, &post.graph, &post.spine).await?;
            let source = post.session(post.decoder(), epoch).await?;
            let found = monarch_postgres::slot::of_unit(&source, &post.unit).await?;
            ensure!(
                found.len() == 1,
                "{}: not one slot: {found:?}",
                post.unit.store
            );
            slots.extend(found.into_iter().map(|slot| slot.name));
        }
        self.end_all().await;
        Ok(slots)
    }

    /// Reads a sealed unit's log to its head: what came late, and the horizon.
    async fn tail(&self, post: &Post, slot: &str) -> Result<(u64, String)> {
        let epoch = post.next_epoch();
        let primary = post.session(&post.source, epoch).await?;
        let recorded = record_horizon(&primary, Instant::now() + PATIENCE).await?;
        let tail = stream::read_tail(&post.job(epoch, slot), &post.source).await?;
        post.drop_slots(post.next_epoch()).await?;
        Ok((
            tail.late_changes.values().sum(),
            recorded.horizon.to_string(),
        ))
    }

    async fn evict(&self, slots: &[String]) -> Result<()> {
        let mut horizons = BTreeMap::new();
        for (mover, slot) in self.movers.iter().zip(slots) {
            let (late, horizon) = self.tail(&mover.post, slot).await?;
            ensure!(
                late == 0,
                "{}: {late} changes came late, of none",
                mover.post.unit.store
            );
            horizons.insert(mover.post.unit.store.clone(), horizon);
        }
        let prefixes: Vec<String> = self.movers.iter().map(Mover::slot_prefix).collect();
        for store in evict::unit_order(&self.graph) {
            let post = &self.mover(&store)?.post;
            let mut primary = post.session(&post.source, post.next_epoch()).await?;
            let evidence = Evidence {
                late_changes: 0,
                slot_prefixes: &prefixes,
                horizon: &horizons[&store],
            };
            let decoder = post.session(post.decoder(), post.next_epoch()).await?;
            let permit = EvictionPermit::issue(&[&*primary, &*decoder], evidence).await?;
            let doomed = post.doomed(&primary).await?;
            let mut nobody = |_: &TableName, _: u64| {};
            evict::evict(&mut primary, &doomed, &permit, &mut nobody).await?;
            let sink = post.session(&post.sink, post.next_epoch()).await?;
            sink::remove(&*sink, &post.unit).await?;
        }
        Ok(())
    }

    /// A write behind the seal is counted, changes nothing on the sink, and forbids the eviction.
    async fn write_late(&self, slots: &[String]) -> Result<Outcome> {
        let schema = &self.plan.schema;
        let before = self.sink.dump(schema).await?;
        let late = Op::UpdateAll {
            table: 0,
            version: 77,
        };
        let root = &schema.stores[schema.tables[0].store];
        let source = self.source.client(root.source).await?;
        source.batch_execute(&statements(schema, &late)).await?;
        let mut seen = BTreeSet::new();
        for (mover, slot) in self.movers.iter().zip(slots) {
            let (late, horizon) = self.tail(&mover.post, slot).await?;
            if late > 0 {
                seen.insert(mover.post.unit.store.to_string());
            }
            let primary = mover
                .post
                .session(&mover.post.source, mover.post.next_epoch())
                .await?;
            let evidence = Evidence {
                late_changes: late,
                slot_prefixes: &[],
                horizon: &horizon,
            };
            let permit = EvictionPermit::issue(&[&*primary], evidence).await;
            ensure!(
                permit.is_err() == (late > 0),
                "a permit in spite of late changes"
            );
        }
        ensure!(
            seen == BTreeSet::from([root.name.clone()]),
            "late changes in {seen:?}"
        );
        assert_same(
            schema,
            "the sink behind the seal",
            &self.sink.dump(schema).await?,
            &before,
        )?;
        Ok(Outcome::Late)
    }
}

/// The word of a DSN that names the port.
fn cluster_port(dsn: &str) -> String {
    let mut words = dsn.split(' ');
    let port = words.find(|word| word.starts_with("port="));
    port.unwrap_or_default().to_owned()
}

/// A busy machine may take its time to let a session in.
fn options(dsn: &str) -> Result<ConnectOptions> {
    let dsn = format!("{dsn} connect_timeout=90");
    Ok(ConnectOptions::parse(&dsn, &Environment::empty())?)
}
