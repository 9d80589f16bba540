//! `monarch dashboard`
//!
//! Here stands what the page needs of Temporal: it asks the same functions that the commands ask.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use clap::Args;
use monarch_activities::World;
use monarch_dashboard::{
    Driver, Eviction, Front, Plan, Refusal, RefusalKind, Request, Role, Server, Site, StartRequest,
    Started, Tls, Tokens, Workflows,
};
use monarch_ledger::Move;
use monarch_model::{OrgId, chain};
use monarch_worker::telemetry::{LogFormat, log_to_stderr};
use monarch_worker::temporal;
use monarch_workflows::OrgMove;
use monarch_workflows::input::{CutOver, CutOverPolicy, EvictionPolicy, OrgMoveInput};
use monarch_workflows::org_move::workflow_id;
use serde::Serialize;
use temporalio_client::Client;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use super::move_::{abort, cut_over, driver, start, status};
use super::plan;
use crate::args::Route;
use crate::console;
use crate::context::{Context, identity};
use crate::exit::Exit;
use crate::failure::Failure;

/// How long a request from the page waits for a worker.
const PATIENCE_SECONDS: u32 = 20;
const OPERATOR_TOKEN: &str = "MONARCH_DASHBOARD_OPERATOR_TOKEN";
const READER_TOKEN: &str = "MONARCH_DASHBOARD_READER_TOKEN";

/// Serves a page on which moves are watched and steered, until it is told to stop. Without tokens it
/// listens on this machine alone, and prints an address with a token that it has drawn.
///
/// Tokens come from files or from MONARCH_DASHBOARD_OPERATOR_TOKEN and
/// MONARCH_DASHBOARD_READER_TOKEN. See docs/operations.md, "The dashboard".
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Where to listen; beyond this machine only with a certificate or behind a proxy, with tokens
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:8787")]
    listen: SocketAddr,
    /// A name or address under which the page is reached; others are refused. May be given again
    #[arg(long = "host", value_name = "NAME")]
    hosts: Vec<String>,
    /// The certificate and what it is signed by, PEM
    #[arg(
        long,
        value_name = "FILE",
        requires = "tls_key",
        conflicts_with = "behind_proxy"
    )]
    tls_cert: Option<PathBuf>,
    /// The certificate's key, PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// A proxy that speaks TLS is in front, and says `https` in this header of each request, for
    /// example X-Forwarded-Proto
    #[arg(long, value_name = "HEADER")]
    behind_proxy: Option<String>,
    /// A file with the token of those who may ask something of a move
    #[arg(long, value_name = "FILE")]
    operator_token: Option<PathBuf>,
    /// A file with the token of those who may only look
    #[arg(long, value_name = "FILE")]
    reader_token: Option<PathBuf>,
    /// Where Temporal's Web UI is, for links
    #[arg(long, value_name = "URL", value_parser = web_ui)]
    temporal_ui: Option<String>,
}

/// Where the page is.
#[derive(Serialize)]
struct Served {
    /// With a token in it, if one was drawn.
    address: String,
}

pub(crate) async fn run(arguments: Arguments, context: &Context) -> Result<Exit, Failure> {
    log_to_stderr(LogFormat::of_stderr(), "info");
    let world = context.world()?;
    let given = tokens(&arguments)?;
    let faults = faults(&arguments, given.is_empty());
    if !faults.is_empty() {
        return Err(Failure::usage(faults.join("; ")));
    }
    let tls = arguments
        .tls_cert
        .as_deref()
        .zip(arguments.tls_key.as_deref());
    let tls = tls
        .map(|(cert, key)| Tls::from_files(cert, key))
        .transpose();
    let tls = tls.map_err(|error| Failure::usage(chain(&error)))?;
    let (tokens, drawn) = if given.is_empty() {
        let (tokens, token) = Tokens::drawn();
        (tokens, Some(token))
    } else {
        (given, None)
    };
    let front = Front {
        hosts: hosts(&arguments),
        tls: tls.is_some(),
        proxy_header: arguments.behind_proxy.clone(),
    };
    let scheme = if front.tls { "https" } else { "http" };
    let workflows = Arc::new(ByTemporal::new(Arc::clone(&world), arguments.temporal_ui));
    let (ledger, config) = (world.ledger.clone(), world.config.clone());
    let site = Site::new(ledger, config, workflows, tokens, front);
    let server = Server::bind(arguments.listen, tls, site).await;
    let server = server.map_err(|error| Failure::failed(chain(&error)))?;
    let path = drawn.map_or_else(String::new, |token| format!("login?token={token}"));
    let served = Served {
        address: format!("{scheme}://{}/{path}", server.address()),
    };
    console::show(context.output(), &served, |served| served.address.clone())?;
    server.run(stopped()?).await;
    Ok(Exit::Done)
}

/// Cancelled when we are told to stop.
fn stopped() -> Result<CancellationToken, Failure> {
    let failed = |error| Failure::failed(format!("listen for signals: {error}"));
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    let stop = CancellationToken::new();
    let told = stop.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        told.cancel();
    });
    Ok(stop)
}

/// Everything against serving like this.
fn faults(arguments: &Arguments, without_tokens: bool) -> Vec<&'static str> {
    let is_near = arguments.listen.ip().is_loopback();
    let (tls, proxy) = (&arguments.tls_cert, &arguments.behind_proxy);
    let is_open = !is_near || tls.is_some() || proxy.is_some();
    let mut faults = Vec::new();
    if !is_near && tls.is_none() && proxy.is_none() {
        faults
            .push("--listen beyond this machine needs --tls-cert and --tls-key, or --behind-proxy");
    }
    if is_open && without_tokens {
        faults.push(
            "a page that others reach needs tokens: --operator-token or --reader-token, or their \
             variables",
        );
    }
    if is_open && arguments.hosts.is_empty() {
        faults.push("a page that others reach needs the names that it is reached by: --host");
    }
    let is_header = |name: &String| !name.is_empty() && name.bytes().all(is_of_header);
    if !proxy.as_ref().is_none_or(is_header) {
        faults.push("--behind-proxy: expected the name of a header");
    }
    faults
}

fn is_of_header(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_'
}

fn hosts(arguments: &Arguments) -> Vec<String> {
    let mut hosts = arguments.hosts.clone();
    let ip = arguments.listen.ip();
    if arguments.hosts.is_empty() {
        hosts.extend(["localhost", "127.0.0.1", "[::1]"].map(str::to_owned));
        hosts.push(if ip.is_ipv6() {
            format!("[{ip}]")
        } else {
            ip.to_string()
        });
    }
    hosts
}

/// The tokens that were given.
fn tokens(arguments: &Arguments) -> Result<Tokens, Failure> {
    let mut tokens = Tokens::default();
    let sources = [
        (Role::Operator, &arguments.operator_token, OPERATOR_TOKEN),
        (Role::Reader, &arguments.reader_token, READER_TOKEN),
    ];
    for (role, file, variable) in sources {
        let given = match file {
            Some(file) => Some((read(file)?, file.display().to_string())),
            None => std::env::var(variable)
                .ok()
                .filter(|token| !token.is_empty())
                .map(|token| (token, variable.to_owned())),
        };
        if let Some((token, whence)) = given {
            let added = tokens.add(role, &token);
            added.map_err(|weak| Failure::usage(format!("{whence}: {weak}")))?;
        }
    }
    Ok(tokens)
}

fn read(file: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(file)
        .map_err(|error| Failure::usage(format!("{}: {error}", file.display())))
}

fn web_ui(text: &str) -> Result<String, String> {
    let is_web = text.starts_with("https://") || text.starts_with("http://");
    is_web
        .then(|| text.trim_end_matches('/').to_owned())
        .ok_or_else(|| "expected https://… or http://…".to_owned())
}

/// The workflows, by the functions of the commands.
struct ByTemporal {
    world: Arc<World>,
    ui: Option<String>,
    /// None until Temporal was reached.
    client: Mutex<Option<Client>>,
    namespace: std::sync::OnceLock<String>,
}

impl ByTemporal {
    fn new(world: Arc<World>, ui: Option<String>) -> Self {
        Self {
            world,
            ui,
            client: Mutex::new(None),
            namespace: std::sync::OnceLock::new(),
        }
    }

    /// A client that connects again by itself once it was connected.
    async fn client(&self) -> Result<Client, Failure> {
        let mut kept = self.client.lock().await;
        if let Some(client) = &*kept {
            return Ok(client.clone());
        }
        let client = Box::pin(temporal::connect(&identity())).await?;
        let _ = self.namespace.set(client.options().namespace.clone());
        *kept = Some(client.clone());
        Ok(client)
    }

    async fn asked(&self, org: &OrgId, request: Request) -> Result<String, Failure> {
        let client = self.client().await?;
        let found = driver::Driver::find(&self.world.ledger, &client, org).await?;
        let patience = driver::Patience::of_seconds(PATIENCE_SECONDS);
        match request {
            Request::Pause => {
                found.ask(OrgMove::pause, (), &patience).await?;
                Ok(
                    "Paused. The slots go on holding log until the move is resumed or aborted."
                        .to_owned(),
                )
            }
            Request::Resume => {
                found.ask(OrgMove::resume, (), &patience).await?;
                Ok("Resumed.".to_owned())
            }
            Request::CutOver { writes_stopped } => {
                let request = CutOver {
                    writes_stopped,
                    valid_until: patience.valid_until(),
                };
                let answer = found.ask(OrgMove::cut_over, request, &patience).await?;
                let said = cut_over::text(&answer);
                if answer.refusals.is_empty() {
                    Ok(said)
                } else {
                    Err(Failure::not_ready(said).advising("mend what it names, then ask again"))
                }
            }
            Request::Abort { reason } => {
                let asked = abort::ask(&found, org, &reason).await?;
                Ok(abort::text(&asked, org))
            }
        }
    }

    async fn started(&self, request: &StartRequest) -> Result<Started, Failure> {
        let org = &request.org;
        let client = self.client().await?;
        let ledger = &self.world.ledger;
        // A cell that the fleet lacks is told here, not by a workflow that ends at once.
        route(request).within(&self.world.config.fleet)?;
        start::refuse_second(ledger, &client, org, "").await?;
        let handle = start::launch(&client, workflow_id(org), &input(request)).await?;
        let registered = start::until_registered(ledger, &handle, org, "").await?;
        Ok(match registered {
            Some(of) => Started::Registered(of.id),
            None => Started::NotYet(format!(
                "Started {}. It has not registered yet: preflight takes long, or no `monarch worker` \
                 runs. The move is listed once it has.",
                handle.info().workflow_id
            )),
        })
    }
}

fn route(request: &StartRequest) -> Route {
    Route {
        from: request.from.clone(),
        to: request.to.clone(),
    }
}

fn input(request: &StartRequest) -> OrgMoveInput {
    OrgMoveInput {
        from: request.from.clone(),
        to: request.to.clone(),
        cut_over: if request.cuts_over_by_itself {
            CutOverPolicy::Auto
        } else {
            CutOverPolicy::Manual
        },
        eviction: match request.eviction {
            Eviction::Manual => EvictionPolicy::Manual,
            Eviction::Now => EvictionPolicy::Now,
            Eviction::AfterSeconds(seconds) => EvictionPolicy::AfterSeconds(seconds),
        },
        max_pause_seconds: request.max_pause_seconds,
        scrub_on_failure: request.scrub_on_failure,
        ..OrgMoveInput::new(request.org.clone())
    }
}

#[async_trait]
impl Workflows for ByTemporal {
    async fn driver(&self, of: &Move) -> Driver {
        let driven = async {
            let client = self.client().await?;
            status::drive(&self.world.ledger, &client, of).await
        };
        match Box::pin(driven).await {
            Ok(status::Drive::Answers(said)) => Driver::Answers(*said),
            Ok(status::Drive::Gone(why)) => Driver::Gone(why),
            Ok(status::Drive::Silent(why)) => Driver::Silent(why),
            Ok(status::Drive::Over) => Driver::Silent("the move has ended".to_owned()),
            Err(failure) => Driver::Silent(failure.what().to_owned()),
        }
    }

    async fn ask(&self, org: &OrgId, request: Request) -> Result<String, Refusal> {
        Box::pin(self.asked(org, request)).await.map_err(refusal)
    }

    async fn plan(&self, start: &StartRequest) -> Result<Plan, Refusal> {
        let planned = plan::for_page(&self.world, start.org.clone(), route(start));
        let (text, refused) = Box::pin(planned).await.map_err(refusal)?;
        Ok(Plan { text, refused })
    }

    async fn start(&self, request: &StartRequest) -> Result<Started, Refusal> {
        Box::pin(self.started(request)).await.map_err(refusal)
    }

    fn web_ui(&self) -> Option<String> {
        let (ui, namespace) = (self.ui.as_ref()?, self.namespace.get()?);
        Some(format!("{ui}/namespaces/{namespace}"))
    }
}

fn refusal(failure: Failure) -> Refusal {
    let Failure::Told(report) = failure else {
        // Of our own output, which no request writes to.
        return Refusal {
            kind: RefusalKind::Failed,
            what: "the reader has gone".to_owned(),
            retried: "no".to_owned(),
            to_do: String::new(),
        };
    };
    Refusal {
        kind: match report.exit {
            Exit::Usage => RefusalKind::BadInput,
            Exit::NotReady => RefusalKind::NotReady,
            Exit::Unreachable => RefusalKind::Unreachable,
            Exit::Failed | Exit::Done => RefusalKind::Failed,
        },
        what: report.error,
        retried: report.retried.to_owned(),
        to_do: report.to_do,
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    /// A page that anybody reaches is one that anybody can abort a move on.
    #[test]
    fn beyond_this_machine_it_needs_tls_tokens_and_a_name() {
        for (line, without_tokens, expected) in [
            (&["--listen", "127.0.0.1:0"][..], true, 0),
            (&["--listen", "0.0.0.0:0"], true, 3),
            (
                &["--listen", "0.0.0.0:0", "--host", "page.example"],
                false,
                1,
            ),
            (&["--behind-proxy", "X-Forwarded-Proto"], true, 2),
            (
                &["--behind-proxy", "X-Forwarded-Proto", "--host", "a"],
                false,
                0,
            ),
            (&["--behind-proxy", "no header", "--host", "a"], false, 1),
            (
                &[
                    "--listen",
                    "0.0.0.0:0",
                    "--tls-cert",
                    "c",
                    "--tls-key",
                    "k",
                    "--host",
                    "a",
                ],
                false,
                0,
            ),
        ] {
            let line = ["dashboard"].iter().chain(line);
            let told = Line::try_parse_from(line.clone()).unwrap().arguments;
            assert_eq!(faults(&told, without_tokens).len(), expected, "{line:?}");
        }
        assert!(Line::try_parse_from(["dashboard", "--tls-cert", "c"]).is_err());
    }

    #[test]
    fn a_link_leads_to_a_page_of_the_web() {
        assert_eq!(web_ui("https://a/"), Ok("https://a".to_owned()));
        assert!(web_ui("javascript:alert(1)").is_err());
    }
}
