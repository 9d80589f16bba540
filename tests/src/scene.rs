//! A fleet with organizations in it, an operator, and the move that a test is about.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use monarch_demo::{Fleet, Hosts, Operator, Organization, Said, Traffic, number_on, populate};
use monarch_harness::{
    Cluster, ClusterOptions, PgVersion, Program, Standby, Temporal, monarch_binary, shared,
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::OnceCell;
use tokio_postgres::Client;

/// How long anything may take before a test gives up on it: far more than it needs.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// A mover that says nothing for so long is taken for dead: as short as a move may ask for, give or
/// take what a busy machine needs.
const HEARTBEAT_SECONDS: u32 = 4;

/// The servers that a scene is set on.
#[derive(Debug, Clone, Copy)]
pub struct Stage<'a> {
    /// Where the databases are.
    pub hosts: Hosts<'a>,
    /// Where the workflows are.
    pub temporal: &'a Temporal,
}

impl Stage<'static> {
    /// Two clusters of Postgres 15 and a Temporal server that the tests of a binary share: the
    /// source cell is on both, the sink cell on the second.
    pub async fn shared() -> Self {
        static SECOND: OnceCell<Cluster> = OnceCell::const_new();
        let start = async || match Cluster::start(ClusterOptions::new(PgVersion::V15)).await {
            Ok(cluster) => cluster,
            Err(error) => panic!("start the second shared cluster: {error:#}"),
        };
        let main = shared::cluster(PgVersion::V15).await;
        let second = SECOND.get_or_init(start).await;
        Self {
            hosts: Hosts {
                main,
                standby: None,
                side: second,
                sink: second,
                ledger: main,
            },
            temporal: shared::temporal().await,
        }
    }
}

impl<'a> Stage<'a> {
    /// The shared Temporal server, and databases on these.
    pub async fn on(
        main: &'a Cluster,
        standby: Option<&'a Standby>,
        side: &'a Cluster,
        sink: &'a Cluster,
    ) -> Self {
        Self {
            hosts: Hosts {
                main,
                standby,
                side,
                sink,
                ledger: shared::cluster(PgVersion::V15).await,
            },
            temporal: shared::temporal().await,
        }
    }
}

/// Clusters of one test: for one that leaves transactions open, since the making of a slot waits
/// for every transaction that is open on its server, another test's too.
#[derive(Debug)]
pub struct Servers {
    main: Cluster,
    side: Cluster,
    sink: Cluster,
}

impl Servers {
    /// Two clusters for the source cell and one for the sink cell.
    ///
    /// # Errors
    ///
    /// When a cluster does not start.
    pub async fn start() -> Result<Self> {
        let start = || Cluster::start(ClusterOptions::new(PgVersion::V15));
        let (main, side, sink) = tokio::try_join!(start(), start(), start())?;
        Ok(Self { main, side, sink })
    }

    /// The shared Temporal server and ledger, and databases on these clusters.
    pub async fn stage(&self) -> Stage<'_> {
        Stage::on(&self.main, None, &self.side, &self.sink).await
    }
}

/// A fleet with rows in it and an operator.
#[derive(Debug)]
pub struct Scene<'a> {
    /// The fleet.
    pub fleet: Fleet,
    /// Who works with it.
    pub operator: Operator<'a>,
    _folder: TempDir,
}

impl<'a> Scene<'a> {
    /// The fleet in miniature, with two organizations of a thousand rows or so on the source and
    /// one on the sink, and the ledger made.
    ///
    /// # Errors
    ///
    /// When a server refuses.
    pub async fn set(stage: Stage<'a>) -> Result<Self> {
        Self::of_size(stage, 120).await
    }

    /// The same with `rows` issues for each organization, and about eight times as many others.
    ///
    /// # Errors
    ///
    /// When a server refuses.
    pub async fn of_size(stage: Stage<'a>, rows: u32) -> Result<Self> {
        let folder = TempDir::new().context("make a folder")?;
        let fleet = Fleet::make(&stage.hosts, folder.path()).await?;
        for organization in [Organization::EVIL_CORP, Organization::OTHER] {
            populate(&fleet.source, &organization, rows).await?;
        }
        number_on(&fleet.source).await?;
        populate(&fleet.sink, &Organization::AT_HOME, rows).await?;
        let scene = Self::around(stage.temporal, fleet, folder).await?;
        scene.operator.make_ledger().await?;
        Ok(scene)
    }

    /// The same with a control database in the place of the commands.
    ///
    /// # Errors
    ///
    /// When a server refuses.
    pub async fn with_control_database(stage: Stage<'a>) -> Result<Self> {
        let mut scene = Self::set(stage).await?;
        scene.fleet.use_control_database(stage.hosts.ledger).await?;
        for organization in [Organization::EVIL_CORP, Organization::OTHER] {
            let home = scene.fleet.source.name.clone();
            scene.fleet.settle(organization.id, &home).await?;
        }
        scene.operator.make_control().await?;
        Ok(scene)
    }

    /// A scene around a fleet that the test has made itself. Its ledger is not made.
    ///
    /// # Errors
    ///
    /// When Temporal refuses a namespace or a file cannot be written.
    pub async fn around(temporal: &'a Temporal, fleet: Fleet, folder: TempDir) -> Result<Self> {
        for organization in [Organization::EVIL_CORP, Organization::OTHER] {
            fleet.control.settle(organization.id, &fleet.source.name)?;
        }
        let namespace = temporal.namespace().await?;
        let monarch = monarch_binary()?.to_owned();
        let operator = Operator::new(&fleet, temporal, namespace, monarch).await?;
        Ok(Self {
            fleet,
            operator,
            _folder: folder,
        })
    }

    /// Starts writers for an organization.
    ///
    /// # Errors
    ///
    /// When a database cannot be reached.
    pub async fn traffic(&self, organization: &Organization) -> Result<Traffic> {
        Traffic::start(&self.fleet, organization, Duration::from_millis(5)).await
    }

    /// Starts to move evil-corp with the `temporal` command; `options` are merged into the input.
    ///
    /// # Errors
    ///
    /// When it is refused.
    pub async fn start(&self, options: Value) -> Result<()> {
        let mut input = json!({"org_id": 1, "heartbeat_seconds": HEARTBEAT_SECONDS});
        if let (Some(input), Some(options)) = (input.as_object_mut(), options.as_object()) {
            input.extend(options.clone());
        }
        self.start_as("org-move-1", &input.to_string())
            .await?
            .success()?;
        Ok(())
    }

    /// Starts a workflow `OrgMove` of any id with any input.
    ///
    /// # Errors
    ///
    /// When the command cannot be run.
    pub async fn start_as(&self, workflow_id: &str, input: &str) -> Result<Said> {
        let words = [
            "workflow",
            "start",
            "--type",
            "OrgMove",
            "--task-queue",
            "monarch",
        ];
        let told = ["--workflow-id", workflow_id, "--input", input];
        self.operator.temporal(words.into_iter().chain(told)).await
    }

    /// Starts evil-corp's move and waits until every unit streams.
    ///
    /// # Errors
    ///
    /// When it does not get there.
    pub async fn stream(&self, worker: &Program, options: Value) -> Result<()> {
        self.start(options).await?;
        self.operator.until_streaming(1, worker, PATIENCE).await
    }

    /// Asks for an update of evil-corp's move, and returns its answer.
    ///
    /// # Errors
    ///
    /// When it is refused by the workflow's validator.
    pub async fn update(&self, name: &str, input: &str) -> Result<Value> {
        let words = [
            "workflow",
            "update",
            "execute",
            "--workflow-id",
            "org-move-1",
        ];
        let told = ["--name", name, "--input", input, "--output", "json"];
        let said = self
            .operator
            .temporal(words.into_iter().chain(told))
            .await?
            .success()?;
        let answer: Value = serde_json::from_str(&said.output)
            .with_context(|| format!("read the answer of {name}: {}", said.output))?;
        Ok(answer["result"].clone())
    }

    /// Cuts evil-corp over, trying again while its units are not ready.
    ///
    /// # Errors
    ///
    /// When it does not flip; the message has the last refusals.
    pub async fn cut_over(&self) -> Result<Value> {
        let cut = async {
            loop {
                let answer = self.update("cut_over", "{}").await?;
                if answer["phase"] == "cut_over" {
                    return Ok::<_, anyhow::Error>(answer);
                }
                ensure!(answer["phase"] == "active", "it did not cut over: {answer}");
                eprintln!("not yet: {}", answer["refusals"]);
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
        };
        tokio::time::timeout(PATIENCE, cut)
            .await
            .context("it never cut over")?
    }

    /// Waits for a phase of evil-corp's newest move.
    ///
    /// # Errors
    ///
    /// When it does not come.
    pub async fn until(&self, phase: &str, worker: &Program) -> Result<()> {
        self.operator.until_phase(1, phase, worker, PATIENCE).await
    }

    /// Signals an abort to evil-corp's move.
    ///
    /// # Errors
    ///
    /// When the workflow does not take it.
    pub async fn abort(&self, reason: &str) -> Result<()> {
        let reason = json!({"reason": reason}).to_string();
        let words = [
            "workflow",
            "signal",
            "--workflow-id",
            "org-move-1",
            "--name",
            "abort",
        ];
        let told = ["--input", reason.as_str()];
        self.operator
            .temporal(words.into_iter().chain(told))
            .await?
            .success()?;
        Ok(())
    }

    /// What evil-corp's workflow says of its move.
    ///
    /// # Errors
    ///
    /// When it does not answer.
    pub async fn status(&self) -> Result<Value> {
        let words = ["workflow", "query", "--workflow-id", "org-move-1"];
        let told = ["--type", "status", "--output", "json"];
        let said = self
            .operator
            .temporal(words.into_iter().chain(told))
            .await?
            .success()?;
        let answer: Value = serde_json::from_str(&said.output)
            .with_context(|| format!("read the status: {}", said.output))?;
        Ok(answer["queryResult"][0].clone())
    }

    /// Waits until evil-corp's workflow says something of its move, and returns all that it says.
    ///
    /// # Errors
    ///
    /// When it does not come to say that.
    pub async fn until_status(&self, says: impl Fn(&Value) -> bool) -> Result<Value> {
        let look = async {
            loop {
                let status = self.status().await?;
                if says(&status) {
                    return Ok(status);
                }
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        };
        tokio::time::timeout(PATIENCE, look)
            .await
            .context("the workflow never says so")?
    }

    /// Waits for the end of a workflow and returns what the `temporal` command tells of it.
    ///
    /// # Errors
    ///
    /// When it does not end.
    pub async fn result(&self, workflow_id: &str) -> Result<Value> {
        let words = [
            "workflow",
            "result",
            "--workflow-id",
            workflow_id,
            "--output",
            "json",
        ];
        let told = tokio::time::timeout(PATIENCE, self.operator.temporal(words))
            .await
            .with_context(|| format!("{workflow_id} does not end"))??;
        serde_json::from_str(&told.output)
            .with_context(|| format!("read the result of {workflow_id}: {}", told.text()))
    }

    /// A session on the source's database of a store.
    ///
    /// # Errors
    ///
    /// When the server does not accept it.
    pub async fn source(&self, store: &str) -> Result<Client> {
        self.fleet.source.place_of(store)?.connect().await
    }

    /// A session on the sink.
    ///
    /// # Errors
    ///
    /// When the server does not accept it.
    pub async fn sink(&self) -> Result<Client> {
        self.fleet.sink.place_of("default")?.connect().await
    }
}
