//! A certificate of our authority is one that libpq, which is not ours, agrees with.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use monarch_harness::{Authority, Cluster, ClusterOptions, PgVersion};

/// Verified with the authority that signed it, refused with any other.
#[tokio::test]
async fn a_server_is_known_by_its_authority() -> Result<()> {
    let (authority, stranger) = (Authority::new()?, Authority::new()?);
    let tls = authority.server(&["localhost", "127.0.0.1"])?;
    let cluster = Cluster::start(ClusterOptions::new(PgVersion::V15).tls(tls)).await?;
    let folder = cluster.data();
    let folder = folder.parent().context("data lies in a folder")?;

    let verified = verify_full(&cluster, &authority, folder)?;
    assert!(verified.status.success(), "{verified:?}");
    let refused = verify_full(&cluster, &stranger, folder)?;
    assert!(String::from_utf8_lossy(&refused.stderr).contains("certificate verify failed"));
    Ok(())
}

fn verify_full(
    cluster: &Cluster,
    authority: &Authority,
    folder: &Path,
) -> Result<std::process::Output> {
    let root = folder.join("root.crt");
    std::fs::write(&root, authority.pem())?;
    let dsn = cluster.dsn("postgres").replace("127.0.0.1", "localhost");
    Command::new("psql")
        .arg(format!(
            "{dsn} sslmode=verify-full sslrootcert={}",
            root.display()
        ))
        .args(["-c", "select 1"])
        .output()
        .context("run psql")
}
