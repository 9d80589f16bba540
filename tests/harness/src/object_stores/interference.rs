//! A proxy that does to a server's clients what networks and busy services do: connections that are
//! cut, and answers that ask for fewer requests. It is thin: one request to a connection, and what
//! it lets pass it passes as it is.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Context, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::name::free_port;

/// A proxy before a server at an address of plain HTTP. It ends with the handle or the test.
#[derive(Debug)]
pub struct Interference {
    port: u16,
    plan: Arc<Mutex<Plan>>,
    serving: JoinHandle<()>,
}

/// What is to be done to the next requests.
#[derive(Debug, Default)]
struct Plan {
    slow_downs: u32,
    retry_after: Option<u32>,
    cuts: u32,
    /// How many bytes of an answer come through before it is cut.
    cut_after: u64,
    seen: Vec<Seen>,
}

/// A request as it came in.
#[derive(Debug, Clone)]
pub struct Seen {
    /// When its head was there.
    pub at: Instant,
    /// Method and target, as `PUT /bucket/key`.
    pub line: String,
    /// Whether it was answered with 503.
    pub is_refused: bool,
}

impl Interference {
    /// Starts a proxy before the server at `url`, which is `http://host:port`. It does nothing yet.
    ///
    /// # Errors
    ///
    /// When there is no port for it.
    pub async fn before(url: &str) -> Result<Self> {
        let upstream = url.trim_start_matches("http://").to_owned();
        let port = free_port()?;
        let listener = TcpListener::bind(("127.0.0.1", port)).await?;
        let plan = Arc::<Mutex<Plan>>::default();
        let shared = Arc::clone(&plan);
        let serving = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((socket, _)) = listener.accept().await {
                let (upstream, plan) = (upstream.clone(), Arc::clone(&shared));
                connections.spawn(async move {
                    // Whoever is cut off is cut off.
                    let _ = relay(socket, &upstream, &plan).await;
                });
            }
        });
        Ok(Self {
            port,
            plan,
            serving,
        })
    }

    /// Where it is.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Answers the next `requests` with 503 SlowDown, and a `Retry-After` of so many seconds.
    pub fn slow_down(&self, requests: u32, retry_after: Option<u32>) {
        let mut plan = lock(&self.plan);
        plan.slow_downs = requests;
        plan.retry_after = retry_after;
    }

    /// Cuts the answers to the next `times` requests to read an object after so many bytes.
    pub fn cut_reads(&self, times: u32, after_bytes: u64) {
        let mut plan = lock(&self.plan);
        plan.cuts = times;
        plan.cut_after = after_bytes;
    }

    /// The requests that came in so far.
    #[must_use]
    pub fn seen(&self) -> Vec<Seen> {
        lock(&self.plan).seen.clone()
    }
}

impl Drop for Interference {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

fn lock(plan: &Mutex<Plan>) -> std::sync::MutexGuard<'_, Plan> {
    plan.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What is done to one request.
enum Fate {
    Pass,
    Refuse(Option<u32>),
    Cut(u64),
}

fn fate(plan: &Mutex<Plan>, head: &str) -> Fate {
    let mut plan = lock(plan);
    let line = head.lines().next().unwrap_or_default();
    let line = line.rsplit_once(' ').map_or(line, |(line, _)| line);
    let fate = if plan.slow_downs > 0 {
        plan.slow_downs -= 1;
        Fate::Refuse(plan.retry_after)
    } else if plan.cuts > 0 && line.starts_with("GET ") {
        plan.cuts -= 1;
        Fate::Cut(plan.cut_after)
    } else {
        Fate::Pass
    };
    plan.seen.push(Seen {
        at: Instant::now(),
        line: line.to_owned(),
        is_refused: matches!(fate, Fate::Refuse(_)),
    });
    fate
}

async fn relay(mut client: TcpStream, upstream: &str, plan: &Mutex<Plan>) -> Result<()> {
    let (head, begun) = head(&mut client).await?;
    let body: u64 = head
        .lines()
        .find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("content-length")
                .then(|| value.trim().parse().ok())?
        })
        .unwrap_or(0);
    let rest = body.saturating_sub(begun.len() as u64);
    let fate = fate(plan, &head);
    if let Fate::Refuse(retry_after) = fate {
        tokio::io::copy(&mut (&mut client).take(rest), &mut tokio::io::sink()).await?;
        let xml = "<?xml version=\"1.0\"?><Error><Code>SlowDown</Code></Error>";
        let retry = retry_after.map_or_else(String::new, |s| format!("retry-after: {s}\r\n"));
        let answer = format!(
            "HTTP/1.1 503 Slow Down\r\n{retry}connection: close\r\ncontent-length: {}\r\n\r\n{xml}",
            xml.len()
        );
        return Ok(client.write_all(answer.as_bytes()).await?);
    }
    let mut server = TcpStream::connect(upstream).await?;
    server.write_all(closing(&head).as_bytes()).await?;
    server.write_all(&begun).await?;
    tokio::io::copy(&mut (&mut client).take(rest), &mut server).await?;
    let (head, begun) = self::head(&mut server).await?;
    client.write_all(closing(&head).as_bytes()).await?;
    let limit = match fate {
        Fate::Cut(after) => after,
        Fate::Pass | Fate::Refuse(_) => u64::MAX,
    };
    let mut answer = std::io::Cursor::new(begun).chain(server).take(limit);
    tokio::io::copy(&mut answer, &mut client).await?;
    Ok(())
}

/// Reads up to the end of a head; what came of the body is returned with it.
async fn head(stream: &mut TcpStream) -> Result<(String, Vec<u8>)> {
    let mut read = Vec::new();
    loop {
        let mut buffer = [0; 4096];
        let bytes = stream.read(&mut buffer).await?;
        anyhow::ensure!(bytes > 0, "the connection ended");
        read.extend_from_slice(&buffer[..bytes]);
        if let Some(end) = read.windows(4).position(|window| window == b"\r\n\r\n") {
            let body = read.split_off(end + 4);
            let head = String::from_utf8(read).context("a head that is not UTF-8")?;
            return Ok((head, body));
        }
    }
}

/// The head, saying that the connection ends with this message.
fn closing(head: &str) -> String {
    let kept = head.trim_end().lines().filter(|line| {
        let name = line.split(':').next().unwrap_or_default();
        !name.eq_ignore_ascii_case("connection") && !name.eq_ignore_ascii_case("keep-alive")
    });
    let lines: Vec<&str> = kept.collect();
    format!("{}\r\nconnection: close\r\n\r\n", lines.join("\r\n"))
}
