//! Objects move from one bucket of S3 to another.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use monarch_harness::object_stores::Moto;
use monarch_tests::assert_nothing_left;
use serde_json::json;

use crate::objects::{attached, named_by, until_ready};

/// The words by which the cells' buckets are found.
struct Buckets {
    moto: Moto,
    source: String,
    sink: String,
}

impl Buckets {
    async fn start() -> Result<Self> {
        let moto = Moto::start().await?;
        let (source, sink) = (moto.bucket().await?, moto.bucket().await?);
        moto.keep_versions(&source).await?;
        Ok(Self { moto, source, sink })
    }

    fn of(&self, cell: &str) -> String {
        let bucket = if cell == "us1" {
            &self.source
        } else {
            &self.sink
        };
        format!("url: s3://{bucket}/kept")
    }

    async fn put(&self, key: &str) -> Result<()> {
        let target = format!("/{}/kept/{key}", self.source);
        let headers = [
            ("content-type", "text/x-comment"),
            ("x-amz-meta-of", "comment"),
        ];
        let status = self.moto.put(&target, &headers, &text(key)).await?;
        ensure!(status == 200, "put {key}: {status}");
        Ok(())
    }

    /// Which of these keys a bucket has, each with its object.
    async fn held(&self, bucket: &str, keys: &BTreeSet<String>) -> Result<BTreeSet<String>> {
        let mut held = BTreeSet::new();
        for key in keys {
            let target = format!("/{bucket}/kept/{key}");
            let (status, body) = self.moto.ask("GET", &target, "").await?;
            match status {
                200 if body == text(key) => held.insert(key.clone()),
                200 => anyhow::bail!("{key} is another object"),
                404 => false,
                status => anyhow::bail!("{key}: {status}"),
            };
        }
        Ok(held)
    }
}

fn text(key: &str) -> String {
    format!("the object {key}")
}

/// Promises 1, 7 and 8 for objects of a service: the organization's arrive with their content type and
/// metadata, and the source's bucket, which keeps versions, has delete markers of these and no others.
#[tokio::test]
async fn objects_move_from_a_bucket_to_another_and_leave_delete_markers() -> Result<()> {
    let buckets = Buckets::start().await?;
    let (mut scene, all) = attached(20, "eviction: delete", |cell| buckets.of(cell)).await?;
    scene.operator.give(buckets.moto.variables());
    for key in &all {
        buckets.put(key).await?;
    }
    let (ours, theirs) = (named_by(&scene, 1).await?, named_by(&scene, 2).await?);

    let worker = scene.operator.worker()?;
    scene.start(json!({})).await?;
    until_ready(&scene, &worker).await?;
    scene.cut_over().await?;
    assert_eq!(buckets.held(&buckets.sink, &ours).await?, ours);
    assert_eq!(buckets.held(&buckets.sink, &theirs).await?, BTreeSet::new());
    let one = ours.first().context("an object")?;
    let target = format!("/{}/kept/{one}", buckets.sink);
    let head = buckets.moto.head(&target).await?.to_lowercase();
    for kept in ["text/x-comment", "x-amz-meta-of: comment"] {
        ensure!(head.contains(kept), "{kept} is gone: {head}");
    }

    scene.update("evict", "{}").await?;
    scene.until("finalized", &worker).await?;
    assert_eq!(buckets.held(&buckets.source, &ours).await?, BTreeSet::new());
    assert_eq!(buckets.held(&buckets.source, &theirs).await?, theirs);
    for (keys, markers) in [(&ours, 1), (&theirs, 0)] {
        for key in keys.iter().take(20) {
            let prefix = format!("kept/{key}");
            let kept = buckets.moto.versions(&buckets.source, &prefix).await?;
            assert_eq!(kept.matches("<Version>").count(), 1, "{kept}");
            assert_eq!(kept.matches("<DeleteMarker>").count(), markers, "{kept}");
        }
    }
    assert_eq!(buckets.held(&buckets.sink, &ours).await?, ours);
    assert_nothing_left(&scene.fleet).await
}
