//! A page over a ledger of its own, and a browser without a screen.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use monarch_config::{Config, Dsn};
use monarch_dashboard::{
    Driver, Front, Plan, Refusal, Request, Role, Server, Site, StartRequest, Started, Tls, Tokens,
    Workflows,
};
use monarch_harness::{Cluster, PgVersion, fresh_name, shared};
use monarch_ledger::{Ledger, Move, NewMove};
use monarch_model::{MoveId, OrgId, StoreName, WorkflowStatus};
use monarch_postgres::spine::Spine;
use reqwest::header;
use serde_json::json;
use tokio_postgres::Client;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

pub(crate) const OPERATOR: &str = "operator-token-of-tests";
pub(crate) const READER: &str = "reader-token-of-the-tests";

/// What would be Temporal's.
pub(crate) struct Temporal {
    pub(crate) driver: Mutex<Driver>,
    pub(crate) asked: Mutex<Vec<(OrgId, Request)>>,
    pub(crate) started: Mutex<Vec<StartRequest>>,
}

#[async_trait::async_trait]
impl Workflows for Temporal {
    async fn driver(&self, _of: &Move) -> Driver {
        self.driver.lock().unwrap().clone()
    }

    async fn ask(&self, org: &OrgId, request: Request) -> Result<String, Refusal> {
        self.asked.lock().unwrap().push((org.clone(), request));
        Ok("It was asked.".to_owned())
    }

    async fn plan(&self, start: &StartRequest) -> Result<Plan, Refusal> {
        Ok(Plan {
            text: format!("the plan of {}", start.org),
            refused: start.org.as_str() == "refused",
        })
    }

    async fn start(&self, start: &StartRequest) -> Result<Started, Refusal> {
        self.started.lock().unwrap().push(start.clone());
        Ok(Started::NotYet("It has not registered yet.".to_owned()))
    }

    fn web_ui(&self) -> Option<String> {
        Some("https://temporal.example/namespaces/monarch".to_owned())
    }
}

/// A page that is served.
pub(crate) struct Page {
    pub(crate) ledger: Ledger,
    pub(crate) admin: Client,
    pub(crate) temporal: Arc<Temporal>,
    pub(crate) address: SocketAddr,
    pub(crate) stop: CancellationToken,
    pub(crate) served: tokio::task::JoinHandle<()>,
    pub(crate) browser: reqwest::Client,
}

/// How a page is to be served.
pub(crate) struct Setting {
    pub(crate) stores: usize,
    pub(crate) tables: usize,
    pub(crate) front: Front,
    pub(crate) tls: Option<Tls>,
}

impl Default for Setting {
    fn default() -> Self {
        Self {
            stores: 2,
            tables: 4,
            front: Front {
                hosts: vec!["127.0.0.1".to_owned()],
                ..Front::default()
            },
            tls: None,
        }
    }
}

impl Page {
    pub(crate) async fn open() -> Self {
        Self::with(Setting::default()).await
    }

    pub(crate) async fn with(setting: Setting) -> Self {
        Self::on(shared::cluster(PgVersion::V17).await, setting).await
    }

    /// A page over a ledger in a database of its own on this cluster.
    pub(crate) async fn on(cluster: &Cluster, setting: Setting) -> Self {
        let database = fresh_name("ledger");
        let dsn = cluster.create_database(&database).await.unwrap();
        let ledger = Ledger::connect(&Dsn::new(dsn.clone())).await.unwrap();
        ledger.init().await.unwrap();
        let temporal = Arc::new(Temporal {
            driver: Mutex::new(Driver::Answers(WorkflowStatus::default())),
            asked: Mutex::default(),
            started: Mutex::default(),
        });
        let mut tokens = Tokens::default();
        tokens.add(Role::Operator, OPERATOR).unwrap();
        tokens.add(Role::Reader, READER).unwrap();
        let of = Arc::clone(&temporal);
        let config = config(setting.stores, setting.tables, &dsn);
        let site = Site::new(ledger.clone(), config, of, tokens, setting.front);
        let anywhere = "127.0.0.1:0".parse().unwrap();
        let server = Server::bind(anywhere, setting.tls, site).await.unwrap();
        let stop = CancellationToken::new();
        // Of several tests in a process one is the first; the others find it done.
        let _ = rustls::crypto::ring::default_provider().install_default();
        Self {
            ledger,
            admin: cluster.admin(&database).await.unwrap(),
            temporal,
            address: server.address(),
            stop: stop.clone(),
            served: tokio::spawn(server.run(stop)),
            browser: reqwest::Client::builder()
                .redirect(reqwest::redirect::Policy::none())
                .build()
                .unwrap(),
        }
    }

    /// Registers a move of `org` with the stores of the configuration.
    pub(crate) async fn register(&self, org: &str, stores: usize) -> MoveId {
        let new = NewMove {
            id: MoveId(Uuid::new_v4()),
            org: org.parse().unwrap(),
            source_cell: "us1".parse().unwrap(),
            sink_cell: "us2".parse().unwrap(),
            workflow_id: format!("org-move-{org}"),
            run_id: "the-run".to_owned(),
            stores: (0..stores).map(store).collect(),
            blob_stores: Vec::new(),
            spine: Spine::from_ids(std::iter::empty().collect()),
            options: json!({ "heartbeat_seconds": 20 }),
            token: Uuid::new_v4(),
        };
        self.ledger.register(&new).await.unwrap();
        new.id
    }

    /// Puts a move's units where a test wants them, past their table: streaming, and heard of now.
    pub(crate) async fn stream(&self, id: MoveId) {
        self.admin
            .execute(
                "update monarch_ledger.move_unit
                    set status = 'streaming', epoch = 1, slot = 'a_slot', rows_copied = 1200,
                        bytes_copied = 4096, tables_done = 2, tables_total = 2,
                        copy_started_at = now() - interval '90 s',
                        copied_at = now() - interval '30 s', changes_applied = 7,
                        applied_lsn = '0/20', source_head_lsn = '0/20', lag_bytes = 0,
                        retained_wal_bytes = 2048, heartbeat_at = now() + interval '1 hour'
                  where move_id = $1",
                &[&id.0],
            )
            .await
            .unwrap();
    }

    pub(crate) async fn execute(&self, sql: &str) {
        self.admin.batch_execute(sql).await.unwrap();
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Logs in; the cookie of the session.
    pub(crate) async fn log_in(&self, token: &str) -> String {
        let sent = self.browser.post(self.url("/login"));
        let answer = sent
            .body(form(&[("token", token)]))
            .header(header::CONTENT_TYPE, FORM);
        let answer = answer.send().await.unwrap();
        assert_eq!(answer.status(), 303);
        let cookie = answer.headers()[header::SET_COOKIE].to_str().unwrap();
        cookie.split(';').next().unwrap().to_owned()
    }

    /// A page's text, as a session sees it.
    pub(crate) async fn get(&self, cookie: &str, path: &str) -> (u16, String) {
        let asked = self
            .browser
            .get(self.url(path))
            .header(header::COOKIE, cookie);
        let answer = asked
            .header(header::ACCEPT, "text/html")
            .send()
            .await
            .unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    }

    /// Sends a form, as a session's own page does.
    pub(crate) async fn post(
        &self,
        cookie: &str,
        path: &str,
        fields: &[(&str, &str)],
    ) -> (u16, String) {
        let sent = self
            .browser
            .post(self.url(path))
            .header(header::COOKIE, cookie);
        let sent = sent.header(header::CONTENT_TYPE, FORM).body(form(fields));
        let answer = sent.send().await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    }

    /// The page, when it says this.
    pub(crate) async fn until(&self, cookie: &str, path: &str, says: &str) -> String {
        loop {
            let (_, text) = self.get(cookie, path).await;
            if text.contains(says) {
                return text;
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    }
}

pub(crate) const FORM: &str = "application/x-www-form-urlencoded";

pub(crate) fn form(fields: &[(&str, &str)]) -> String {
    let mut text = String::new();
    for (name, value) in fields {
        let _ = write!(text, "&{name}=");
        for byte in value.bytes() {
            let _ = write!(text, "%{byte:02X}");
        }
    }
    text
}

/// The session's own token, from a form of a page.
pub(crate) fn csrf(page: &str) -> &str {
    let (_, rest) = page.split_once("name=\"csrf\" value=\"").unwrap();
    rest.split('"').next().unwrap()
}

pub(crate) fn store(place: usize) -> StoreName {
    format!("store{place:03}").parse().unwrap()
}

/// A root and `tables` others in each of `stores`, each the child of the one before.
fn config(stores: usize, tables: usize, ledger: &str) -> Config {
    let mut manifest = "root: org\nstores:\n".to_owned();
    for place in 0..stores {
        let _ = writeln!(manifest, "  {}: {{type: postgres}}", store(place));
    }
    let root = store(0);
    let _ = writeln!(
        manifest,
        "relationships:\n  org: {{store: {root}, primary_key: [id]}}"
    );
    for place in 0..stores {
        for table in 0..tables {
            let parent = match table {
                0 => "org".to_owned(),
                table => format!("t{place}_{}", table - 1),
            };
            let _ = writeln!(
                manifest,
                "  t{place}_{table}: {{store: {}, primary_key: [id], refs: {{parent_id: {{parent: {parent}}}}}}}",
                store(place)
            );
        }
    }
    let graph = monarch_config::manifest_from_str("manifest.yaml", &manifest).unwrap();
    let names: Vec<String> = (0..stores).map(|place| store(place).to_string()).collect();
    let names = names.join(", ");
    let fleet = format!(
        "from: us1\nto: us2\ncells:\n  us1: {{databases: [{{primary_dsn: 'host=a dbname=app', stores: [{names}]}}]}}\n  us2: {{databases: [{{primary_dsn: 'host=b dbname=app', stores: [{names}]}}]}}\nledger: {{dsn: '{ledger}'}}\n"
    );
    let fleet = monarch_config::fleet_from_str("fleet.yaml", &fleet, &graph, &|_| None).unwrap();
    Config { graph, fleet }
}
