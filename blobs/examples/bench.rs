//! Copies many small and some large objects from one S3 server to another, once with the mover and
//! once with `rclone`, on the same servers in the same run, and says how they compare. Then it
//! records and walks a great many keys. `make bench-blobs` runs it.
//!
//! The servers are a process of their own, so that the memory that is told is the mover's. The mover
//! keeps its ledger in a real Postgres; rclone keeps none and computes no SHA-256.

#![expect(clippy::print_stdout, reason = "a program that says what it measured")]

use std::io::{BufRead, BufReader};
use std::num::NonZeroUsize;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use monarch_blobs::{BlobUnit, Bucket, Environment, Limits, Mover, Walked};
use monarch_config::{BlobPlace, Dsn};
use monarch_harness::object_stores::S3s;
use monarch_harness::{Cluster, ClusterOptions, PgVersion};
use monarch_ledger::{BlobChoice, Ledger, NewMove, Purpose};
use monarch_model::{MoveId, StoreName};
use monarch_postgres::spine::Spine;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// A number from the environment, so that a small run can be tried.
fn number(name: &str, usual: usize) -> usize {
    let said = std::env::var(name).ok().and_then(|text| text.parse().ok());
    said.unwrap_or(usual)
}

#[tokio::main]
async fn main() -> Result<()> {
    if std::env::args().nth(1).as_deref() == Some("serve") {
        return serve().await;
    }
    let (small, large) = (number("SMALL", 20_000), number("LARGE", 20));
    let large_bytes = number("LARGE_MIB", 64) << 20;
    let keys = number("KEYS", 5_000_000);
    let cluster = Cluster::start(ClusterOptions::new(PgVersion::V17)).await?;
    let (ledger, unit) = ground(&cluster, "bench").await?;

    let mut servers = Servers::start()?;
    println!(
        "seeding {small} objects of 4 KiB and {large} of {} MiB",
        large_bytes >> 20
    );
    let names = servers.seed(small, large, large_bytes)?;
    let table = "attachment".parse()?;
    for part in names.chunks(5_000) {
        ledger
            .record_blob_keys(unit.move_id, &unit.store, &table, part)
            .await?;
    }
    for round in 1..=number("ROUNDS", 1) {
        let peer = servers.rclone(round)?;
        let (ours, memory) = servers.mover(&cluster, round, &names).await?;
        let ratio = peer.as_secs_f64() / ours.as_secs_f64();
        println!(
            "round {round}: rclone {:.1} s, mover {:.1} s, ratio {ratio:.2}; the mover's peak memory \
             {memory} MiB",
            peer.as_secs_f64(),
            ours.as_secs_f64(),
        );
    }
    if keys > 0 {
        many_keys(&cluster, keys).await?;
    }
    Ok(())
}

/// A ledger with a move that has a blob store.
async fn ground(cluster: &Cluster, name: &str) -> Result<(Ledger, BlobUnit)> {
    let dsn = cluster.create_database(name).await?;
    let ledger = Ledger::connect(&Dsn::new(dsn)).await?;
    ledger.init().await?;
    let store: StoreName = "files".parse()?;
    let new = NewMove {
        id: MoveId(Uuid::new_v4()),
        org: "1".parse()?,
        source_cell: "a".parse()?,
        sink_cell: "b".parse()?,
        workflow_id: "bench".to_owned(),
        run_id: "bench".to_owned(),
        stores: Vec::new(),
        blob_stores: vec![store.clone()],
        spine: Spine::from_ids([].into()),
        options: serde_json::json!({}),
        token: Uuid::new_v4(),
    };
    ledger.register(&new).await?;
    let epoch = ledger.next_epoch(new.id, &store, Purpose::Mover).await?;
    let unit = BlobUnit {
        ledger: ledger.clone(),
        move_id: new.id,
        store,
        epoch,
    };
    Ok((ledger, unit))
}

/// Two S3 servers in a process of their own.
struct Servers {
    process: std::process::Child,
    /// Of the source and of the sink.
    urls: Vec<String>,
    variables: Vec<Vec<(String, String)>>,
}

/// What the servers' process says of itself: for each, address, access key and secret key.
async fn serve() -> Result<()> {
    let servers = [S3s::start().await?, S3s::start().await?];
    for server in &servers {
        println!("{}", serde_json::to_string(&server.variables())?);
    }
    // Until the other end is gone.
    let mut end = String::new();
    tokio::task::spawn_blocking(move || std::io::stdin().read_line(&mut end)).await??;
    Ok(())
}

impl Servers {
    fn start() -> Result<Self> {
        let mut process = Command::new(std::env::current_exe()?)
            .arg("serve")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("start the servers")?;
        let mut lines = BufReader::new(process.stdout.take().context("no output")?).lines();
        let mut variables: Vec<Vec<(String, String)>> = Vec::new();
        for _ in 0..2 {
            let line = lines.next().context("the servers ended")??;
            variables.push(serde_json::from_str(&line)?);
        }
        let of = |pairs: &[(String, String)], name: &str| {
            let found = pairs.iter().find(|(known, _)| known == name);
            found.map(|(_, value)| value.clone()).unwrap_or_default()
        };
        Ok(Self {
            urls: variables
                .iter()
                .map(|pairs| of(pairs, "AWS_ENDPOINT_URL"))
                .collect(),
            process,
            variables,
        })
    }

    /// rclone, told of both servers as `source:` and `sink:`.
    fn command(&self, arguments: &[&str]) -> Result<()> {
        let mut command = Command::new("rclone");
        command.env_remove("AWS_CA_BUNDLE").args(arguments);
        for (name, (url, pairs)) in ["SOURCE", "SINK"]
            .into_iter()
            .zip(self.urls.iter().zip(&self.variables))
        {
            let set = |key: &str| format!("RCLONE_CONFIG_{name}_{key}");
            let secret = |wanted: &str| pairs.iter().find(|(name, _)| name == wanted);
            command
                .env(set("TYPE"), "s3")
                .env(set("PROVIDER"), "Other")
                .env(set("ENDPOINT"), url);
            if let (Some((_, key)), Some((_, secret))) =
                (secret("AWS_ACCESS_KEY_ID"), secret("AWS_SECRET_ACCESS_KEY"))
            {
                command
                    .env(set("ACCESS_KEY_ID"), key)
                    .env(set("SECRET_ACCESS_KEY"), secret);
            }
        }
        let status = command.status().context("run rclone")?;
        ensure!(status.success(), "rclone {arguments:?} ended with {status}");
        Ok(())
    }

    /// Makes the objects on the source, and returns their keys.
    fn seed(&mut self, small: usize, large: usize, large_bytes: usize) -> Result<Vec<String>> {
        let folder = tempfile::tempdir()?;
        let mut names = Vec::new();
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut noise = |size: usize| {
            let mut bytes = Vec::with_capacity(size + 8);
            while bytes.len() < size {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                bytes.extend_from_slice(&state.to_le_bytes());
            }
            bytes.truncate(size);
            bytes
        };
        let sizes =
            std::iter::repeat_n(4 << 10, small).chain(std::iter::repeat_n(large_bytes, large));
        for (number, size) in sizes.enumerate() {
            let name = format!("{:02x}/{number:06}", number % 256);
            let path = folder.path().join(&name);
            std::fs::create_dir_all(path.parent().context("a folder")?)?;
            std::fs::write(path, noise(size))?;
            names.push(name);
        }
        let from = folder.path().display().to_string();
        self.command(&["mkdir", "source:objects"])?;
        self.command(&[
            "copy",
            &from,
            "source:objects",
            "--transfers",
            "32",
            "--no-traverse",
        ])?;
        Ok(names)
    }

    fn rclone(&self, round: usize) -> Result<Duration> {
        let to = format!("sink:rclone-{round}");
        self.command(&["mkdir", &to])?;
        let begun = Instant::now();
        self.command(&[
            "copy",
            "source:objects",
            &to,
            "--transfers",
            "32",
            "--checkers",
            "32",
        ])?;
        Ok(begun.elapsed())
    }

    /// Time, and peak memory in MiB.
    async fn mover(
        &self,
        cluster: &Cluster,
        round: usize,
        names: &[String],
    ) -> Result<(Duration, u64)> {
        let bucket = format!("mover-{round}");
        self.command(&["mkdir", &format!("sink:{bucket}")])?;
        let (ledger, unit) = ground(cluster, &format!("mover_{round}")).await?;
        let table = "attachment".parse()?;
        for part in names.chunks(5_000) {
            ledger
                .record_blob_keys(unit.move_id, &unit.store, &table, part)
                .await?;
        }
        let open = async |bucket: &str, of: usize| {
            let place = BlobPlace::Url(format!("s3://{bucket}"));
            let variables = self.variables[of].iter().cloned();
            Bucket::open(&place, &Environment::of(variables)).await
        };
        let (source, sink) = (open("objects", 0).await?, open(&bucket, 1).await?);
        let cancel = CancellationToken::new();
        let mover = Mover::new(unit, source, sink, Limits::default(), cancel);
        let begun = Instant::now();
        let pass = mover.pass(Walked::All).await?;
        let took = begun.elapsed();
        ensure!(pass.copied == names.len() as u64, "{pass:?}");
        Ok((took, peak_mib()))
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        // It ends by itself when its input does.
        let _ = self.process.wait();
    }
}

/// Records and walks keys, each key of a real length.
async fn many_keys(cluster: &Cluster, keys: usize) -> Result<()> {
    const BATCH: usize = 5_000;
    let (ledger, unit) = ground(cluster, "keys").await?;
    let table = "attachment".parse()?;
    let before = resident_mib();
    let begun = Instant::now();
    for first in (0..keys).step_by(BATCH) {
        let last = keys.min(first + BATCH);
        let batch: Vec<String> = (first..last)
            .map(|n| {
                format!(
                    "eventattachments/v1/{:032x}",
                    n.wrapping_mul(0x9e37_79b9_7f4a_7c15)
                )
            })
            .collect();
        ledger
            .record_blob_keys(unit.move_id, &unit.store, &table, &batch)
            .await?;
    }
    let recorded = begun.elapsed();
    let begun = Instant::now();
    let (mut after, mut walked) = (None, 0);
    loop {
        let choice = BlobChoice::Uncopied;
        let page = ledger
            .blob_keys(unit.move_id, &unit.store, choice, after.as_ref(), 1_000)
            .await?;
        walked += page.records.len();
        match page.next {
            Some(next) => after = Some(next),
            None => break,
        }
    }
    ensure!(walked == keys, "walked {walked} of {keys}");
    let per_second = |took: Duration| {
        let each = took / u32::try_from(keys).unwrap_or(u32::MAX);
        NonZeroUsize::new(usize::try_from(each.as_nanos()).unwrap_or(usize::MAX))
            .map_or(0, |nanos| 1_000_000_000 / nanos)
    };
    println!(
        "{keys} keys: recorded in {:.1} s ({} a second), walked in {:.1} s ({} a second); memory \
         {before} MiB before, {} MiB after",
        recorded.as_secs_f64(),
        per_second(recorded),
        begun.elapsed().as_secs_f64(),
        per_second(begun.elapsed()),
        resident_mib(),
    );
    Ok(())
}

fn peak_mib() -> u64 {
    status_mib("VmHWM:")
}

fn resident_mib() -> u64 {
    status_mib("VmRSS:")
}

fn status_mib(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.unwrap_or(0) >> 10
}
