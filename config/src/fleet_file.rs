//! Reads `fleet.yaml`: the deployment of each cell. Nothing schema-shaped lives there.

use std::path::PathBuf;
use std::time::Duration;

use monarch_model::{CellName, StoreName};

use crate::dsn::{Dsn, Env, fill};
use crate::fault::{Place, Report, quoted};
use crate::fields::{At, Fields, parse_name};
use crate::fleet::{BlobPlace, Cell, Control, Database, Deliver, Fleet, IdRange};
use crate::manifest::Stores;
use crate::parameters::{DsnError, Parameters};
use crate::placement;

/// How long a command may run unless the fleet says otherwise. Well below the pause in which those of
/// the control plane are called.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(10);

/// The longest that one message may take: its shard is locked meanwhile.
const DELIVERED_WITHIN: Duration = Duration::from_secs(300);

/// A cell as it was read, with the places that faults about it name.
pub(crate) struct ReadCell {
    pub(crate) name: CellName,
    pub(crate) place: Place,
    pub(crate) databases: Vec<ReadDatabase>,
    pub(crate) blobs: Vec<ReadBlob>,
    /// The ids that its sequences give, and where that is said.
    sequences: Option<(IdRange, Place)>,
    outbox: Option<Deliver>,
    /// Whether no store's name was lost while reading: else one may only seem to be missing.
    pub(crate) whole: bool,
}

/// A database as it was read.
pub(crate) struct ReadDatabase {
    /// The primary and the standby; none if one of them is at fault.
    dsns: Option<(Dsn, Option<Dsn>)>,
    pub(crate) stores: Vec<(StoreName, Place)>,
}

/// A blob store of a cell as it was read.
pub(crate) struct ReadBlob {
    pub(crate) store: StoreName,
    pub(crate) place: Place,
    /// None if it is at fault.
    pub(crate) kept_at: Option<BlobPlace>,
}

/// The fleet, if nothing in it is wrong. Without `stores` their names are not checked.
pub(crate) fn read(
    document: &At<'_>,
    stores: Option<&Stores>,
    env: &Env<'_>,
    report: &mut Report,
) -> Option<Fleet> {
    let fields = document.fields(&["from", "to", "cells", "ledger", "control"], report)?;
    let cells = fields
        .required("cells", "a mapping of cells", report)
        .cloned()
        .and_then(|at| read_cells(&at, env, report));
    let from = read_end(&fields, "from", cells.as_deref(), report);
    let to = read_end(&fields, "to", cells.as_deref(), report);
    if let (Some((from, _)), Some((to, place))) = (&from, &to)
        && from == to
    {
        report.fault(place, "the cell that from names", "another cell");
    }
    let ledger = fields
        .required("ledger", "a mapping with dsn", report)
        .cloned()
        .and_then(|at| read_ledger(&at, env, report));
    let (control, control_outbox) = match fields.optional("control") {
        Some(at) => read_control(at, env, report),
        None => (None, None),
    };
    if let Some(cells) = &cells {
        check_ranges(cells, report);
    }
    if let (Some(cells), Some(stores)) = (&cells, stores) {
        placement::check(cells, stores, report);
    }
    if report.has_faults() {
        return None;
    }
    Some(Fleet {
        from: from.map(|(name, _)| name),
        to: to.map(|(name, _)| name),
        cells: cells?.into_iter().map(finished).collect::<Option<_>>()?,
        ledger: ledger?,
        control,
        control_outbox,
    })
}

fn finished(read: ReadCell) -> Option<Cell> {
    let database = |(index, read): (usize, ReadDatabase)| {
        let (primary, standby) = read.dsns?;
        Some(Database {
            name: format!("databases[{index}]"),
            primary,
            standby,
            stores: read.stores.into_iter().map(|(store, _)| store).collect(),
        })
    };
    let databases = read.databases.into_iter().enumerate();
    let blobs = read.blobs.into_iter();
    Some(Cell {
        name: read.name,
        databases: databases.map(database).collect::<Option<_>>()?,
        blobs: blobs
            .map(|blob| Some((blob.store, blob.kept_at?)))
            .collect::<Option<_>>()?,
        sequences: read.sequences.map(|(range, _)| range),
        outbox: read.outbox,
    })
}

/// The cell that `key`, which is `from` or `to`, names.
fn read_end(
    fields: &Fields<'_>,
    key: &str,
    cells: Option<&[ReadCell]>,
    report: &mut Report,
) -> Option<(CellName, Place)> {
    let at = fields.optional(key)?;
    let place = at.value_place();
    let name: CellName = at.name(report)?;
    if let Some(cells) = cells
        && !cells.iter().any(|read| read.name == name)
    {
        let found = format!("{} is not a cell", quoted(name.as_str()));
        let names = cells.iter().map(|read| read.name.as_str());
        report.unknown(
            &place,
            name.as_str(),
            found,
            "a cell listed under cells",
            names,
        );
    }
    Some((name, place))
}

fn read_ledger(at: &At<'_>, env: &Env<'_>, report: &mut Report) -> Option<Dsn> {
    let fields = at.fields(&["dsn"], report)?;
    read_dsn(
        fields.required("dsn", "a connection string", report)?,
        env,
        report,
    )
}

fn read_dsn(at: &At<'_>, env: &Env<'_>, report: &mut Report) -> Option<Dsn> {
    let text = read_filled(at, env, report)?;
    let Err(faults) = Parameters::read(&text, env) else {
        return Some(Dsn::new(text));
    };
    for fault in faults {
        let (found, expected) = fault.told();
        report.fault(&at.value_place(), found, expected);
        if let DsnError::UnknownKey { near, .. } = fault {
            report.suggest(near);
        }
    }
    None
}

fn read_filled(at: &At<'_>, env: &Env<'_>, report: &mut Report) -> Option<String> {
    match fill(at.text(report)?, env) {
        Ok(text) if !text.trim().is_empty() => Some(text),
        Ok(_) => {
            report.fault(&at.value_place(), "nothing but blanks", "text");
            None
        }
        Err(unfilled) => {
            let (found, expected) = unfilled.told();
            report.fault(&at.value_place(), found, expected);
            None
        }
    }
}

fn read_cells(at: &At<'_>, env: &Env<'_>, report: &mut Report) -> Option<Vec<ReadCell>> {
    let mut cells = Vec::new();
    for (text, at) in at.entries("a mapping of cells", report)? {
        if let Some(name) = parse_name(text, &at.place, report) {
            cells.push(read_cell(name, &at, env, report));
        }
    }
    if cells.is_empty() {
        report.fault(&at.place, "no cell", "at least one cell");
    }
    Some(cells)
}

fn read_cell(name: CellName, at: &At<'_>, env: &Env<'_>, report: &mut Report) -> ReadCell {
    let mut read = ReadCell {
        name,
        place: at.place.clone(),
        databases: Vec::new(),
        blobs: Vec::new(),
        sequences: None,
        outbox: None,
        whole: false,
    };
    if let Some(fields) = at.fields(&["databases", "blobs", "sequences", "outbox"], report) {
        read.outbox = fields
            .optional("outbox")
            .and_then(|at| read_deliver(at, report));
        read.sequences = fields
            .optional("sequences")
            .and_then(|at| Some((read_range(at, report)?, at.place.clone())));
        let databases = read_databases(&mut read, &fields, env, report);
        let blobs = match fields.optional("blobs") {
            Some(at) => read_blobs(&mut read, at, env, report),
            None => Some(()),
        };
        read.whole = databases.is_some() && blobs.is_some();
    }
    read
}

fn read_range(at: &At<'_>, report: &mut Report) -> Option<IdRange> {
    const EXPECTED: &str = "a whole number of 64 bits";
    let fields = at.fields(&["least", "greatest"], report)?;
    let mut end = |key| {
        let at = fields.required(key, EXPECTED, report)?;
        let number = at.written().and_then(|text| text.parse::<i64>().ok());
        if number.is_none() {
            let found = at.written().map_or(at.node.value.kind().to_owned(), quoted);
            report.fault(&at.value_place(), format!("found {found}"), EXPECTED);
        }
        number
    };
    let (least, greatest) = (end("least"), end("greatest"));
    let range = IdRange {
        least: least?,
        greatest: greatest?,
    };
    if range.least > range.greatest {
        let expected = "least at or below greatest";
        report.fault(&at.place, "a range without an id", expected);
        return None;
    }
    Some(range)
}

/// An id that two cells give would belong to two rows once one of them has moved.
fn check_ranges(cells: &[ReadCell], report: &mut Report) {
    let ranges: Vec<_> = cells
        .iter()
        .filter_map(|cell| Some((&cell.name, cell.sequences.as_ref()?)))
        .collect();
    for (at, (_, (range, place))) in ranges.iter().enumerate() {
        let earlier = ranges[..at]
            .iter()
            .find(|(_, (other, _))| other.meets(*range));
        if let Some((name, _)) = earlier {
            let found = format!("ids that cell {name} gives too");
            report.fault(place, found, "a range that meets no other cell's");
        }
    }
}

/// None if the name of any store was lost.
fn read_databases(
    read: &mut ReadCell,
    fields: &Fields<'_>,
    env: &Env<'_>,
    report: &mut Report,
) -> Option<()> {
    const EXPECTED: &str = "a list of databases";
    let at = fields.required("databases", EXPECTED, report)?;
    let mut whole = Some(());
    for at in at.list(EXPECTED, report)? {
        let (database, all) = read_database(&at, env, report);
        read.databases.push(database);
        whole = whole.filter(|()| all);
    }
    whole
}

/// A database, and whether the names of all its stores could be read.
fn read_database(at: &At<'_>, env: &Env<'_>, report: &mut Report) -> (ReadDatabase, bool) {
    const DSN: &str = "a connection string";
    const STORES: &str = "a list of stores";
    let mut read = ReadDatabase {
        dsns: None,
        stores: Vec::new(),
    };
    let Some(fields) = at.fields(&["primary_dsn", "standby_dsn", "stores"], report) else {
        return (read, false);
    };
    let primary = fields
        .required("primary_dsn", DSN, report)
        .and_then(|at| read_dsn(at, env, report));
    let standby = match fields.optional("standby_dsn") {
        Some(at) => read_dsn(at, env, report).map(Some),
        None => Some(None),
    };
    read.dsns = primary.zip(standby);
    let Some(items) = fields
        .required("stores", STORES, report)
        .and_then(|at| at.list(STORES, report))
    else {
        return (read, false);
    };
    for item in &items {
        if let Some(store) = item.name(report) {
            read.stores.push((store, item.place.clone()));
        }
    }
    let all = read.stores.len() == items.len();
    (read, all)
}

/// None if the name of any store was lost.
fn read_blobs(read: &mut ReadCell, at: &At<'_>, env: &Env<'_>, report: &mut Report) -> Option<()> {
    let mut whole = Some(());
    for (text, at) in at.entries("a mapping of blob stores", report)? {
        match parse_name(text, &at.place, report) {
            Some(store) => read.blobs.push(ReadBlob {
                store,
                place: at.place.clone(),
                kept_at: read_blob(&at, env, report),
            }),
            None => whole = None,
        }
    }
    whole
}

fn read_blob(at: &At<'_>, env: &Env<'_>, report: &mut Report) -> Option<BlobPlace> {
    const EXPECTED: &str = "either file_path, a folder, or url, a bucket";
    let fields = at.fields(&["file_path", "url"], report)?;
    match (fields.optional("file_path"), fields.optional("url")) {
        (Some(at), None) => Some(BlobPlace::FilePath(PathBuf::from(read_filled(
            at, env, report,
        )?))),
        (None, Some(at)) => read_url(at, env, report).map(BlobPlace::Url),
        (found, _) => {
            let found = match found {
                Some(_) => "both file_path and url",
                None => "neither file_path nor url",
            };
            report.fault(&at.place, found, EXPECTED);
            None
        }
    }
}

fn read_url(at: &At<'_>, env: &Env<'_>, report: &mut Report) -> Option<String> {
    let url = read_filled(at, env, report)?;
    let rest = ["s3://", "gs://", "az://", "file://"]
        .iter()
        .find_map(|scheme| url.strip_prefix(scheme));
    let Some(rest) = rest.filter(|rest| !rest.is_empty()) else {
        let expected = "s3://, gs://, az:// or file:// and a bucket or folder";
        report.fault(&at.value_place(), "no url of a bucket", expected);
        return None;
    };
    let authority = rest.split('/').next().unwrap_or_default();
    if authority.contains('@') {
        report.fault(
            &at.value_place(),
            "a url with a user or password",
            "no secrets in a url: they come from the object store's own variables",
        );
        return None;
    }
    Some(url)
}

fn read_control(
    at: &At<'_>,
    env: &Env<'_>,
    report: &mut Report,
) -> (Option<Control>, Option<Deliver>) {
    const KNOWN: [&str; 7] = [
        "dsn", "outbox", "fence", "unfence", "flip", "where", "timeout",
    ];
    let Some(fields) = at.fields(&KNOWN, report) else {
        return (None, None);
    };
    let outbox = fields.optional("outbox");
    if let Some(at) = outbox
        && fields.optional("dsn").is_none()
    {
        let expected = "dsn, the database that the outbox is in";
        report.fault(&at.place, "an outbox without a database", expected);
    }
    let outbox = outbox.and_then(|at| read_deliver(at, report));
    (read_routing(&fields, env, report), outbox)
}

fn read_routing(fields: &Fields<'_>, env: &Env<'_>, report: &mut Report) -> Option<Control> {
    const COMMANDS: [&str; 5] = ["fence", "unfence", "flip", "where", "timeout"];
    let Some(dsn) = fields.optional("dsn") else {
        return read_commands(fields, report);
    };
    for key in COMMANDS {
        if let Some(at) = fields.optional(key) {
            report.fault(
                &at.place,
                "a command beside dsn",
                "either dsn or the four commands",
            );
        }
    }
    read_dsn(dsn, env, report).map(Control::Database)
}

fn read_commands(fields: &Fields<'_>, report: &mut Report) -> Option<Control> {
    let mut command = |key| read_command(fields, key, report);
    let (fence, unfence) = (command("fence"), command("unfence"));
    let (flip, where_) = (command("flip"), command("where"));
    let timeout = read_timeout_of(fields, report);
    Some(Control::Commands {
        fence: fence?,
        unfence: unfence?,
        flip: flip?,
        where_: where_?,
        timeout: timeout?,
    })
}

fn read_deliver(at: &At<'_>, report: &mut Report) -> Option<Deliver> {
    let fields = at.fields(&["deliver", "timeout"], report)?;
    let command = read_command(&fields, "deliver", report);
    let timeout = read_timeout_of(&fields, report);
    if timeout.is_some_and(|timeout| timeout > DELIVERED_WITHIN) {
        let place = fields.optional("timeout").map_or(at, |at| at).value_place();
        report.fault(&place, "too long for one message", "a time up to 5m");
        return None;
    }
    Some(Deliver {
        command: command?,
        timeout: timeout?,
    })
}

fn read_command(
    fields: &Fields<'_>,
    key: &'static str,
    report: &mut Report,
) -> Option<Vec<String>> {
    let expected = "a list of a program and its arguments";
    let at = fields.required(key, expected, report)?;
    let items = at.list(expected, report)?;
    if items.is_empty() {
        report.fault(&at.place, "an empty list", expected);
        return None;
    }
    let words: Vec<Option<String>> = items
        .iter()
        .map(|item| item.text(report).map(str::to_owned))
        .collect();
    words.into_iter().collect()
}

fn read_timeout_of(fields: &Fields<'_>, report: &mut Report) -> Option<Duration> {
    match fields.optional("timeout") {
        Some(at) => read_timeout(at, report),
        None => Some(COMMAND_TIMEOUT),
    }
}

fn read_timeout(at: &At<'_>, report: &mut Report) -> Option<Duration> {
    let written = at.written();
    let duration = written.and_then(duration);
    if duration.is_none() {
        let found = written.map_or(at.node.value.kind().to_owned(), quoted);
        report.fault(
            &at.value_place(),
            format!("found {found}"),
            "a time from 1ms to 1h: whole seconds, or a whole number and ms, s, m or h",
        );
    }
    duration
}

/// `30` and `30s` are seconds.
fn duration(text: &str) -> Option<Duration> {
    const LONGEST: Duration = Duration::from_secs(3_600);
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().ok()?;
    let millis = match unit.trim_start() {
        "ms" => 1,
        "" | "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return None,
    };
    let duration = Duration::from_millis(number.checked_mul(millis)?);
    (duration > Duration::ZERO && duration <= LONGEST).then_some(duration)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_has_a_unit_and_a_bound() {
        assert_eq!(duration("30"), Some(Duration::from_secs(30)));
        assert_eq!(duration("30s"), Some(Duration::from_secs(30)));
        assert_eq!(duration("250 ms"), Some(Duration::from_millis(250)));
        assert_eq!(duration("1h"), Some(Duration::from_secs(3_600)));
        for bad in [
            "",
            "0",
            "-1",
            "1.5",
            "2h",
            "s",
            "1d",
            "99999999999999999999",
            "18446744073709551615h",
        ] {
            assert_eq!(duration(bad), None, "{bad}");
        }
    }
}
