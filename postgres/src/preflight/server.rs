//! Whether the servers are of a kind, and set up in a way, that a move can work with.

use monarch_config::Graph;
use tokio_postgres::Client;

use super::finding::{Finding, Place};
use super::open::{Open, Side, not_checked};
use crate::{Doing, Result, Session};

/// Major versions that rows can be read from.
const SOURCE_VERSIONS: std::ops::RangeInclusive<u32> = 15..=18;
/// Major versions that rows can be written to.
const SINK_VERSIONS: std::ops::RangeInclusive<u32> = 14..=18;
/// The first major version that decodes on a standby.
const STANDBY_SINCE: u32 = 16;

/// What a server says of itself.
struct Settings {
    in_recovery: bool,
    wal_level: String,
    free_slots: i64,
    free_senders: i64,
    /// In the server's own words; `-1` is without limit.
    slot_wal_limit: String,
    /// Postgres 18: after this time a slot that nobody reads is invalidated.
    idle_slot_timeout: Option<String>,
    feedback: bool,
    physical_slot: String,
    system: i64,
}

const SETTINGS: &str = "
select pg_is_in_recovery(),
       current_setting('wal_level'),
       current_setting('max_replication_slots')::bigint
         - (select count(*) from pg_catalog.pg_replication_slots),
       current_setting('max_wal_senders')::bigint
         - (select count(*) from pg_catalog.pg_stat_get_wal_senders()),
       current_setting('max_slot_wal_keep_size'),
       current_setting('idle_replication_slot_timeout', true),
       current_setting('hot_standby_feedback')::bool,
       current_setting('primary_slot_name'),
       (select system_identifier from pg_catalog.pg_control_system())";

async fn settings(client: &Client) -> Result<Settings> {
    let doing = "read the server's settings";
    let row = client.query_one(SETTINGS, &[]).await.doing(doing)?;
    let read = || -> std::result::Result<Settings, tokio_postgres::Error> {
        Ok(Settings {
            in_recovery: row.try_get(0)?,
            wal_level: row.try_get(1)?,
            free_slots: row.try_get(2)?,
            free_senders: row.try_get(3)?,
            slot_wal_limit: row.try_get(4)?,
            idle_slot_timeout: row.try_get(5)?,
            feedback: row.try_get(6)?,
            physical_slot: row.try_get(7)?,
            system: row.try_get(8)?,
        })
    };
    read().doing(doing)
}

pub(super) async fn check(open: &Open<'_>, graph: &Graph) -> Result<Vec<Finding>> {
    let place = &open.place;
    let mut findings = Vec::new();
    let primary = settings(&open.primary).await?;
    if primary.in_recovery {
        findings.push(no_primary(place));
    }
    match open.side {
        Side::Sink => findings.extend(version(&open.primary, "sink", SINK_VERSIONS, place)),
        Side::Source => {
            findings.extend(version(&open.primary, "source", SOURCE_VERSIONS, place));
            if primary.wal_level != "logical" {
                findings.push(wal_level(place, "primary", &primary.wal_level));
            }
            let decoder = match &open.standby {
                None => primary,
                Some(standby) => {
                    let seen = settings(standby).await?;
                    findings.extend(check_standby(standby, &primary, &seen, place));
                    seen
                }
            };
            findings.extend(check_decoder(&decoder, open.units(graph), place));
        }
    }
    Ok(findings)
}

fn version(
    session: &Session,
    role: &str,
    supported: std::ops::RangeInclusive<u32>,
    place: &Place,
) -> Option<Finding> {
    let version = session.version().0;
    (!supported.contains(&version)).then(|| {
        Finding::refuse(
            "server-version",
            place.clone(),
            format!("the {role} is Postgres {version}"),
            "This version was never tried",
        )
        .mend(format!(
            "a {role} may be Postgres {} to {}",
            supported.start(),
            supported.end()
        ))
    })
}

fn no_primary(place: &Place) -> Finding {
    Finding::refuse(
        "not-a-primary",
        place.clone(),
        "primary_dsn leads to a server in recovery",
        "Publications, barriers and rows are written on a primary",
    )
    .mend("name the primary in primary_dsn, and the standby in standby_dsn")
}

fn wal_level(place: &Place, which: &str, found: &str) -> Finding {
    Finding::refuse(
        "wal-level",
        place.clone(),
        format!("wal_level of the {which} is {found}"),
        "Changes can only be decoded from a logical log",
    )
    .mend("alter system set wal_level = 'logical', then restart the server")
}

/// Whether the texts of each source database can be had by the sink database that takes them.
pub(super) async fn encodings(
    graph: &Graph,
    source: &[Open<'_>],
    sink: &[Open<'_>],
) -> Vec<Finding> {
    let mut findings = Vec::new();
    for to in sink {
        let stores = graph.stores().filter(|store| to.holds(&store.name));
        for store in stores {
            let Some(from) = source.iter().find(|from| from.holds(&store.name)) else {
                continue;
            };
            match (encoding(from).await, encoding(to).await) {
                (Ok(theirs), Ok(ours)) => findings.extend(translation(&theirs, &ours, &to.place)),
                (Err(error), _) | (_, Err(error)) => {
                    findings.push(not_checked(&to.place, &error));
                }
            }
        }
    }
    findings
}

/// A database's encoding, and how many bytes a character takes at most.
struct Encoding {
    name: String,
    bytes_max: i32,
}

async fn encoding(open: &Open<'_>) -> Result<Encoding> {
    let doing = "read the database's encoding";
    let sql = "select pg_catalog.pg_encoding_to_char(encoding)::text,
                      pg_catalog.pg_encoding_max_length(encoding)
                 from pg_catalog.pg_database where datname = current_database()";
    let row = open.primary.query_one(sql, &[]).await.doing(doing)?;
    Ok(Encoding {
        name: row.try_get(0).doing(doing)?,
        bytes_max: row.try_get(1).doing(doing)?,
    })
}

/// What is UTF-8 on the sink can hold every text. Of others, only those of one byte can be compared
/// with what the source has.
fn translation(theirs: &Encoding, ours: &Encoding, place: &Place) -> Option<Finding> {
    const UTF8: &str = "UTF8";
    const ANY_BYTES: &str = "SQL_ASCII";
    let why = if theirs.name == ANY_BYTES || ours.name == ANY_BYTES {
        "What bytes mean is not known there: texts could not be read, or come out as others"
    } else if ours.name != UTF8 && ours.name != theirs.name {
        "A text with a character that the sink's encoding lacks would stop the move"
    } else if [theirs, ours]
        .iter()
        .any(|side| side.name != UTF8 && side.bytes_max > 1)
    {
        "Rows in this encoding cannot be compared"
    } else {
        return None;
    };
    let finding = Finding::refuse(
        "encoding-differs",
        place.clone(),
        format!("it is in {}, and the source in {}", ours.name, theirs.name),
        why,
    );
    Some(finding.mend("the sink's database made anew, with encoding 'UTF8'"))
}

/// What the server that decodes must have to spare.
fn check_decoder(decoder: &Settings, units: i64, place: &Place) -> Vec<Finding> {
    let mut findings = Vec::new();
    if decoder.free_slots < units {
        let what = format!("{} free, {units} needed", decoder.free_slots.max(0));
        let why = "Each store that moves needs a replication slot";
        let finding = Finding::refuse("no-free-slot", place.clone(), what, why);
        findings.push(finding.mend(
            "drop slots that nobody needs, or raise max_replication_slots and restart the server",
        ));
    }
    if decoder.free_senders < units {
        let what = format!("{} free, {units} needed", decoder.free_senders.max(0));
        let why = "Each store that moves needs a walsender";
        let finding = Finding::refuse("no-free-walsender", place.clone(), what, why);
        findings.push(finding.mend("raise max_wal_senders and restart the server"));
    }
    if decoder.slot_wal_limit == "-1" {
        let finding = Finding::warn(
            "wal-without-limit",
            place.clone(),
            "max_slot_wal_keep_size is -1: a slot may keep any amount of log",
            "A mover that nobody watches could fill the disk of the production's server",
        );
        findings.push(finding.mend(
            "alter system set max_slot_wal_keep_size = '100GB', as the disk allows; \
             select pg_reload_conf()",
        ));
    }
    if let Some(timeout) = decoder
        .idle_slot_timeout
        .as_deref()
        .filter(|text| *text != "0")
    {
        findings.push(Finding::warn(
            "idle-slot-timeout",
            place.clone(),
            format!("idle_replication_slot_timeout is {timeout}"),
            "A move that is paused for longer loses its slots and fails",
        ));
    }
    findings
}

fn check_standby(
    standby: &Session,
    primary: &Settings,
    seen: &Settings,
    place: &Place,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    let version = standby.version().0;
    if version < STANDBY_SINCE {
        let finding = Finding::refuse(
            "standby-version",
            place.clone(),
            format!("the standby is Postgres {version}"),
            "A standby decodes from Postgres 16 on",
        );
        findings.push(finding.mend("remove standby_dsn: the primary decodes then"));
    }
    if seen.wal_level != "logical" {
        findings.push(wal_level(place, "standby", &seen.wal_level));
    }
    if seen.system != primary.system {
        let finding = Finding::refuse(
            "standby-of-another",
            place.clone(),
            "the standby does not follow this primary",
            "Its rows and its log are not those of the organization",
        );
        findings.push(finding.mend("check standby_dsn and primary_dsn"));
    } else if !seen.in_recovery {
        findings.push(Finding::warn(
            "standby-is-primary",
            place.clone(),
            "standby_dsn leads to a server that is not in recovery",
            "Reading and decoding will weigh on the primary",
        ));
        return findings;
    }
    if !seen.feedback {
        let finding = Finding::refuse(
            "no-standby-feedback",
            place.clone(),
            "hot_standby_feedback is off on the standby",
            "A vacuum on the primary would invalidate the slots, and the copy would start over",
        );
        findings.push(finding.mend(
            "on the standby: alter system set hot_standby_feedback = on; select pg_reload_conf()",
        ));
    }
    if seen.physical_slot.is_empty() {
        let finding = Finding::warn(
            "no-physical-slot",
            place.clone(),
            "the standby follows its primary without a physical slot",
            "While it is disconnected its feedback does not hold, and the slots may be lost",
        );
        findings.push(finding.mend(
            "on the primary: select pg_create_physical_replication_slot('standby'); \
             on the standby: alter system set primary_slot_name = 'standby'; \
             select pg_reload_conf()",
        ));
    }
    findings
}
