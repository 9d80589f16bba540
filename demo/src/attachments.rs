//! Objects for those who have to show that they move too: comments with an attachment, whose keys
//! name objects of the blob store `files`.

use std::fs;

use anyhow::{Context as _, Result};

use crate::Fleet;

/// Has every comment that there is name an object, and tells Monarch where each cell keeps them:
/// `place` is asked for each cell by name, and its answer is what `fleet.yaml` says. `policy` is said of
/// the store in the manifest. Returns the keys, of all organizations; the objects are not made.
///
/// # Errors
///
/// When a database or a file of the fleet does not let itself be changed.
pub async fn attach(
    fleet: &Fleet,
    policy: &str,
    place: impl Fn(&str) -> String,
) -> Result<Vec<String>> {
    for cell in [&fleet.source, &fleet.sink] {
        let client = cell.place_of("default")?.connect().await?;
        client
            .batch_execute("alter table comment add column attachment text not null default ''")
            .await
            .context("give comments attachments")?;
    }
    let source = fleet.source.place_of("default")?.connect().await?;
    let named = source
        .query(
            "update comment set attachment = 'o/' || id returning attachment",
            &[],
        )
        .await
        .context("name objects")?;
    let manifest = fs::read_to_string(fleet.manifest_file()).context("read manifest.yaml")?;
    let manifest = manifest
        .replace(
            "stores:\n",
            &format!("stores:\n  files: {{type: blob_store, {policy}}}\n"),
        )
        .replace(
            "      issue_id: {parent: Issue}\n",
            "      issue_id: {parent: Issue}\n      attachment: {blob: files}\n",
        );
    fleet.write_manifest(&manifest)?;
    let mut yaml = fleet.fleet_yaml(true);
    for cell in [&fleet.source, &fleet.sink] {
        let begin = format!("  {}:\n", cell.name);
        let blobs = format!("    blobs: {{files: {{{}}}}}\n", place(&cell.name));
        yaml = yaml.replace(&begin, &format!("{begin}{blobs}"));
    }
    fleet.write_fleet_file(&yaml)?;
    Ok(named.iter().map(|row| row.get(0)).collect())
}
