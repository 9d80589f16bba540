//! `monarch blobs verify`

use clap::Args;
use monarch_blobs::{BlobUnit, Bucket, Environment, Limits, Verified, Which as Chosen, verify};
use monarch_ledger::Unit;
use monarch_model::{StoreName, chain};
use monarch_view::units_of_measure::{bytes, count};
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use super::move_::{find, none_such};
use crate::args::Which;
use crate::console::{self, lines, plain, table};
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::Failure;

/// Objects that a move has copied are read from the sink's buckets and compared, by size and SHA-256,
/// with what was copied. It ends with 1 if one of them differs or is gone. It runs where it is called:
/// the credentials are those of this command's environment.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    which: Which,
    /// Only this part of the objects, chosen at random: 0.01 reads one in a hundred
    #[arg(long, value_name = "PART", value_parser = part)]
    sample: Option<f64>,
}

fn part(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|part: &f64| *part > 0.0 && *part <= 1.0)
        .ok_or_else(|| "more than 0, at most 1".to_owned())
}

/// What reading a store's objects again came to.
#[derive(Debug, Serialize)]
struct Answer {
    store: StoreName,
    copied: u64,
    #[serde(flatten)]
    verified: Verified,
}

pub(crate) async fn run(arguments: &Arguments, context: &Context) -> Result<Exit, Failure> {
    let config = context.config()?;
    let ledger = context.ledger()?;
    let of = find(&ledger, &arguments.which)
        .await?
        .ok_or_else(|| none_such(&arguments.which))?;
    let counts = ledger.blob_counts(of.id).await?;
    let mut answers = Vec::new();
    for unit in ledger.units(of.id).await? {
        if !unit.of_objects {
            continue;
        }
        let cell = config.fleet.cell(&of.sink_cell);
        let place = cell.and_then(|cell| cell.blobs.get(&unit.store));
        let place = place.ok_or_else(|| {
            Failure::usage(format!(
                "cell {} has no place for {}",
                of.sink_cell, unit.store
            ))
        })?;
        let sink = Bucket::open(place, &Environment::of_process())
            .await
            .map_err(|error| Failure::usage(chain(&error)))?;
        let copied = counts.get(&unit.store).map_or(0, |counts| counts.copied);
        let chosen = match arguments.sample {
            None => Chosen::All,
            Some(part) => Chosen::Sample(sample(copied, part)),
        };
        let verified = read_again(&ledger, &unit, &sink, chosen).await?;
        answers.push(Answer {
            store: unit.store,
            copied,
            verified,
        });
    }
    if answers.is_empty() {
        return Err(Failure::not_ready("the move has no objects"));
    }
    console::show(context.output(), &answers, |answers| text(answers))?;
    let is_right = answers.iter().all(|answer| answer.verified.wrong == 0);
    Ok(if is_right { Exit::Done } else { Exit::Failed })
}

/// So many of `copied` objects: one at least.
fn sample(copied: u64, part: f64) -> u32 {
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a part, rounded up"
    )]
    let size = (copied as f64 * part).ceil() as u32;
    size.max(1)
}

/// Under the epoch that the unit has: nothing is taken from a mover that is at work.
async fn read_again(
    ledger: &monarch_ledger::Ledger,
    unit: &Unit,
    sink: &Bucket,
    chosen: Chosen,
) -> Result<Verified, Failure> {
    let of = BlobUnit {
        ledger: ledger.clone(),
        move_id: unit.move_id,
        store: unit.store.clone(),
        epoch: unit.epoch,
    };
    let (limits, cancel) = (Limits::default(), CancellationToken::new());
    verify(&of, sink, chosen, &limits, &cancel)
        .await
        .map_err(|error| Failure::failed(chain(&error)).advising("run it again"))
}

fn text(answers: &[Answer]) -> String {
    let mut table = table(["store", "copied", "read again", "bytes", "wrong"]);
    let mut remarks = Vec::new();
    for Answer {
        store,
        copied,
        verified,
    } in answers
    {
        table.add_row([
            store.to_string(),
            count(*copied),
            count(verified.checked),
            bytes(verified.bytes),
            count(verified.wrong),
        ]);
        let named = verified.named.iter();
        remarks.extend(named.map(|(key, why)| plain(&format!("{store}: {why}: {key}"))));
    }
    let mut text = lines(&table);
    for remark in remarks {
        text.push('\n');
        text.push_str(&remark);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_few_is_one_at_least() {
        assert_eq!(sample(1_000, 0.0101), 11);
        assert_eq!(sample(3, 0.01), 1);
        assert_eq!(sample(0, 0.5), 1);
        assert!(part("0").is_err() && part("1.1").is_err() && part("x").is_err());
        assert!(part("1").is_ok());
    }
}
