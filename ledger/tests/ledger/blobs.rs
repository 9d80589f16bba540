//! Keys of objects: recorded once, walked in pages, answered for under the unit's epoch.

use std::collections::BTreeSet;

use monarch_ledger::{
    BlobChoice, BlobCopy, BlobCounts, BlobMark, BlobOutcome, LedgerError, NewMove, Purpose,
};
use monarch_model::{Epoch, MoveId, Phase, StoreName, TableName};

use crate::fixture::{Fixture, VERSIONS, new_move, store};

/// A ledger with a move that has a blob unit, and a mover's epoch for it.
async fn with_blobs(version: monarch_harness::PgVersion) -> (Fixture, MoveId, StoreName, Epoch) {
    let fixture = Fixture::new(version).await;
    let files = store("files");
    let new = NewMove {
        blob_stores: vec![files.clone()],
        ..new_move("1")
    };
    fixture.ledger.register(&new).await.unwrap();
    let epoch = fixture
        .ledger
        .next_epoch(new.id, &files, Purpose::Mover)
        .await
        .unwrap();
    (fixture, new.id, files, epoch)
}

fn attachment() -> TableName {
    "attachment".parse().unwrap()
}

fn keys(range: std::ops::Range<u32>) -> Vec<String> {
    range.map(|n| format!("k/{n}")).collect()
}

fn copy(size: u64) -> BlobCopy {
    BlobCopy {
        size_bytes: size,
        sha256: format!("{size:064x}"),
        source_tag: format!("tag-{size}"),
        sink_tag: Some("etag".to_owned()),
    }
}

impl Fixture {
    async fn record(&self, id: MoveId, store: &StoreName, keys: &[String]) -> u64 {
        self.ledger
            .record_blob_keys(id, store, &attachment(), keys)
            .await
            .unwrap()
    }

    /// Every key of a choice, walked in pages of `limit`.
    async fn walked(
        &self,
        id: MoveId,
        store: &StoreName,
        choice: BlobChoice,
        limit: u32,
    ) -> Vec<String> {
        let (mut all, mut after) = (Vec::new(), None);
        loop {
            let page = self
                .ledger
                .blob_keys(id, store, choice, after.as_ref(), limit)
                .await
                .unwrap();
            assert!(page.records.len() <= limit as usize);
            all.extend(page.records.into_iter().map(|record| record.key));
            match page.next {
                Some(next) => after = Some(next),
                None => return all,
            }
        }
    }

    async fn outcomes(
        &self,
        (id, store, epoch): (MoveId, &StoreName, Epoch),
        outcomes: &[(&str, BlobOutcome)],
    ) {
        self.ledger
            .record_blob_outcomes(id, store, epoch, outcomes)
            .await
            .unwrap();
    }

    async fn counts(&self, id: MoveId, store: &StoreName) -> BlobCounts {
        self.ledger
            .blob_counts(id)
            .await
            .unwrap()
            .remove(store)
            .unwrap_or_default()
    }
}

/// Guards promise 4: a batch that is recorded again, or twice at once, adds nothing; and the walk
/// meets each key once, whatever the page's size.
#[tokio::test]
async fn a_key_is_recorded_once_and_walked_once() {
    for version in VERSIONS {
        let (fixture, id, files, _) = with_blobs(version).await;
        let all = keys(0..2_500);
        assert_eq!(fixture.record(id, &files, &all[..2_000]).await, 2_000);
        let (first, second) = tokio::join!(
            fixture.record(id, &files, &all[1_000..]),
            fixture.record(id, &files, &all[1_500..]),
        );
        assert_eq!(first + second, 500, "{version}");
        assert_eq!(fixture.record(id, &store("default"), &all[..1]).await, 1);
        for limit in [7, 2_500, 10_000] {
            let walked = fixture
                .walked(id, &files, BlobChoice::Uncopied, limit)
                .await;
            assert_eq!(walked.len(), 2_500);
            assert_eq!(walked.into_iter().collect::<BTreeSet<_>>().len(), 2_500);
        }
    }
}

/// Guards the stream: keys are data, and the longest of them does not stop the recording.
#[tokio::test]
async fn any_text_is_a_key() {
    for version in VERSIONS {
        let (fixture, id, files, _) = with_blobs(version).await;
        let odd: Vec<String> = [
            String::new(),
            "../../etc/passwd".to_owned(),
            "/a//b/".to_owned(),
            "tab\tnewline\nquote'\"\\".to_owned(),
            "🦀/ä ö".to_owned(),
            // Noise, since Postgres would compress repetitions into any index.
            (0..20_000_u32)
                .map(|n| char::from(33 + (n.wrapping_mul(2_654_435_761) >> 24) as u8 % 90))
                .collect(),
        ]
        .to_vec();
        assert_eq!(fixture.record(id, &files, &odd).await, 6, "{version}");
        assert_eq!(fixture.record(id, &files, &odd).await, 0);
        let walked: BTreeSet<_> = fixture
            .walked(id, &files, BlobChoice::Uncopied, 4)
            .await
            .into_iter()
            .collect();
        assert_eq!(walked, odd.into_iter().collect());
    }
}

/// Guards the gate: a key without a copy holds the cut-over back, a missing one unless the
/// manifest accepts it, and what was missing may still be copied.
#[tokio::test]
async fn the_gate_opens_when_every_key_is_copied() {
    for version in VERSIONS {
        let (fixture, id, files, epoch) = with_blobs(version).await;
        let ledger = &fixture.ledger;
        let gates = async || {
            let strict = ledger.blobs_are_copied(id, &files, false).await.unwrap();
            let lenient = ledger.blobs_are_copied(id, &files, true).await.unwrap();
            let counts = fixture.counts(id, &files).await;
            assert_eq!(counts.blocking(false) == 0, strict);
            assert_eq!(counts.blocking(true) == 0, lenient);
            (strict, lenient)
        };
        assert_eq!(gates().await, (true, true), "{version}: no key, no gate");
        fixture.record(id, &files, &keys(0..3)).await;
        let unit = (id, &files, epoch);
        let put = |size| BlobOutcome::Copied {
            copy: copy(size),
            is_put: true,
        };
        fixture.outcomes(unit, &[("k/0", put(10))]).await;
        let trouble = BlobOutcome::Problem {
            code: "different-on-sink",
            is_put: false,
        };
        fixture
            .outcomes(unit, &[("k/1", BlobOutcome::Missing), ("k/2", trouble)])
            .await;
        assert_eq!(gates().await, (false, false));
        let troubled = fixture.walked(id, &files, BlobChoice::Troubled, 10).await;
        assert_eq!(troubled.len(), 2);
        fixture.outcomes(unit, &[("k/2", put(20))]).await;
        assert_eq!(gates().await, (false, true));
        fixture.outcomes(unit, &[("k/1", put(30))]).await;
        assert_eq!(gates().await, (true, true));
        let counts = fixture.counts(id, &files).await;
        assert_eq!((counts.copied, counts.copied_bytes), (3, 60));
        assert_eq!((counts.missing, counts.troubled), (0, 0));
        // Said again, or otherwise: what is copied stays copied.
        fixture
            .outcomes(unit, &[("k/0", BlobOutcome::Missing)])
            .await;
        assert_eq!(fixture.counts(id, &files).await, counts);
    }
}

/// Guards the sink's other tenants: a scrub is shown what this move put there or was about to, and
/// never what it only found.
#[tokio::test]
async fn a_scrub_sees_what_the_move_put_and_no_more() {
    for version in VERSIONS {
        let (fixture, id, files, epoch) = with_blobs(version).await;
        fixture.record(id, &files, &keys(0..5)).await;
        fixture
            .ledger
            .intend_blob_puts(id, &files, epoch, &["k/0", "k/1", "k/2", "k/3"])
            .await
            .unwrap();
        let copied = |is_put| BlobOutcome::Copied {
            copy: copy(1),
            is_put,
        };
        let outcomes = [
            ("k/0", copied(true)),
            // Somebody else was quicker.
            ("k/1", copied(false)),
            ("k/2", BlobOutcome::Missing),
            // k/3 has no outcome: its mover died. k/4 was on the sink before.
            ("k/4", copied(false)),
        ];
        fixture.outcomes((id, &files, epoch), &outcomes).await;
        let scrubbed = async || {
            let walked = fixture.walked(id, &files, BlobChoice::ToScrub, 10).await;
            walked.into_iter().collect::<BTreeSet<_>>()
        };
        assert_eq!(
            scrubbed().await,
            keys(0..4)
                .into_iter()
                .filter(|key| key != "k/1" && key != "k/2")
                .collect(),
            "{version}"
        );

        fixture.put(id, Phase::Aborting).await;
        let scrub = fixture
            .ledger
            .next_epoch(id, &files, Purpose::Scrub)
            .await
            .unwrap();
        fixture
            .ledger
            .mark_blobs(id, &files, scrub, BlobMark::Scrubbed, &["k/0", "k/1"])
            .await
            .unwrap();
        assert_eq!(scrubbed().await, ["k/3".to_owned()].into());
        assert_eq!(fixture.counts(id, &files).await.scrubbed, 1);
    }
}

/// Guards promise 5: once a scrub has its epoch, an older mover can neither begin to put an object
/// nor say anything about one.
#[tokio::test]
async fn a_superseded_mover_says_nothing_about_objects() {
    for version in VERSIONS {
        let (fixture, id, files, epoch) = with_blobs(version).await;
        let ledger = &fixture.ledger;
        fixture.record(id, &files, &keys(0..1)).await;
        fixture.put(id, Phase::Aborting).await;
        ledger.next_epoch(id, &files, Purpose::Scrub).await.unwrap();
        let refused = [
            ledger.intend_blob_puts(id, &files, epoch, &["k/0"]).await,
            ledger
                .record_blob_outcomes(id, &files, epoch, &[("k/0", BlobOutcome::Missing)])
                .await,
            ledger
                .mark_blobs(id, &files, epoch, BlobMark::Evicted, &["k/0"])
                .await,
            ledger
                .record_blob_problems(id, &files, epoch, &[("k/0", "x")])
                .await,
        ];
        for refused in refused {
            assert!(
                matches!(refused, Err(LedgerError::Superseded { .. })),
                "{version}: {refused:?}"
            );
        }
        assert!(
            fixture
                .walked(id, &files, BlobChoice::ToScrub, 9)
                .await
                .is_empty()
        );
    }
}

/// Guards eviction and verification: a key is evicted once, only when copied; a sample holds copied
/// keys, each once.
#[tokio::test]
async fn only_copied_keys_are_sampled_and_evicted() {
    for version in VERSIONS {
        let (fixture, id, files, epoch) = with_blobs(version).await;
        let ledger = &fixture.ledger;
        let all = keys(0..100);
        fixture.record(id, &files, &all).await;
        let outcomes: Vec<_> = all[..60]
            .iter()
            .map(|key| {
                let outcome = BlobOutcome::Copied {
                    copy: copy(7),
                    is_put: true,
                };
                (key.as_str(), outcome)
            })
            .collect();
        fixture.outcomes((id, &files, epoch), &outcomes).await;
        let places: Vec<[u8; 32]> = (0..=255).map(|byte| [byte; 32]).collect();
        let sample = ledger.sample_blob_keys(id, &files, &places).await.unwrap();
        let names: BTreeSet<_> = sample.iter().map(|record| &record.key).collect();
        assert_eq!(names.len(), sample.len(), "{version}");
        assert!(sample.len() > 30 && sample.iter().all(|r| r.copied == Some(copy(7))));

        let named: Vec<&str> = all[50..70].iter().map(String::as_str).collect();
        for _ in 0..2 {
            ledger
                .mark_blobs(id, &files, epoch, BlobMark::Evicted, &named)
                .await
                .unwrap();
        }
        assert_eq!(fixture.counts(id, &files).await.evicted, 10);
        assert_eq!(
            fixture
                .walked(id, &files, BlobChoice::ToEvict, 9)
                .await
                .len(),
            50
        );
    }
}
