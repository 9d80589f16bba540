//! Sequences: whether those of the sink can be kept ahead of the ids that move in.

use monarch_config::{Graph, IdRange};
use monarch_model::TableName;

use super::finding::{Finding, Place};
use super::open::{Open, Side};
use crate::sequences::{self, Feed};
use crate::sql::quote_ident;
use crate::{Doing, Result};

const RIGHTS: &str = "
select has_sequence_privilege(c.oid, 'select'), has_sequence_privilege(c.oid, 'update'),
       pg_has_role(c.relowner, 'usage'), current_user::text
  from pg_catalog.pg_class c where c.oid = $1::text::regclass";

pub(super) async fn check(open: &Open<'_>, graph: &Graph) -> Result<Vec<Finding>> {
    let doing = "read our rights on sequences";
    let tables = open.tables(graph);
    let names: Vec<&TableName> = tables.iter().map(|table| &table.name).collect();
    let mut findings = Vec::new();
    for feed in sequences::feeds(&*open.primary, &names).await? {
        let Some(table) = tables.iter().find(|table| table.name == feed.table) else {
            continue;
        };
        let place = open
            .place
            .table(&table.store, &table.name)
            .column(&feed.column);
        let sequence = format!("{}.{}", quote_ident(&feed.schema), quote_ident(&feed.name));
        let row = open
            .primary
            .query_one(RIGHTS, &[&sequence])
            .await
            .doing(doing)?;
        let get = |column: usize| row.try_get::<_, bool>(column).doing(doing);
        let rights = Rights {
            select: get(0)?,
            update: get(1)?,
            owns: get(2)?,
            role: row.try_get(3).doing(doing)?,
            sequence,
        };
        match open.side {
            Side::Source => findings.extend(rights.source(&place)),
            Side::Sink => {
                if let Some(own) = open.own_ids.filter(|_| rights.select) {
                    findings.extend(range(open, &feed, own, &rights.sequence, &place).await?);
                }
                findings.extend(rights.sink(&feed, &place));
            }
        }
    }
    if open.side == Side::Sink {
        for (name, column) in sequences::unfollowed(&*open.primary, &names).await? {
            let found = tables.iter().find(|table| table.name == name);
            let place = found.map(|table| open.place.table(&table.store, &table.name));
            findings.push(unfollowed(&place.unwrap_or_default().column(&column)));
        }
    }
    Ok(findings)
}

fn unfollowed(place: &Place) -> Finding {
    Finding::warn(
        "sequence-unknown",
        place.clone(),
        "its default calls a function, or names a sequence, that cannot be followed",
        "What gives the next number is not known, and not raised past the ids that move in: others' \
         inserts may fail by them",
    )
    .mend(
        "default nextval('…'::regclass), or a function with a body of SQL (begin atomic); else set the \
         sequence past the source's by hand, before the move and before the flip",
    )
}

/// A sequence of a cell that has ids of its own: it must stand among them, and stay there.
async fn range(
    open: &Open<'_>,
    feed: &Feed,
    own: IdRange,
    sequence: &str,
    place: &Place,
) -> Result<Option<Finding>> {
    let doing = "read where a sequence stands";
    let sql = format!("select last_value from {sequence}");
    let row = open.primary.query_one(&sql, &[]).await.doing(doing)?;
    let at: i64 = row.try_get(0).doing(doing)?;
    let IdRange { least, greatest } = own;
    let bounds = format!("alter sequence {sequence} minvalue {least} maxvalue {greatest}");
    if !own.contains(at) {
        let first = if feed.increment > 0 { least } else { greatest };
        let finding = Finding::refuse(
            "sequence-outside-range",
            place.clone(),
            format!("{sequence} stands at {at}, and the cell's ids are {least} to {greatest}"),
            "It gives ids that may be another cell's, and would meet them when they move in",
        );
        return Ok(Some(
            finding.mend(format!("{bounds} start {first} restart {first}")),
        ));
    }
    let stays = own.contains(feed.range.0) && own.contains(feed.range.1);
    Ok((!stays).then(|| {
        Finding::info(
            "sequence-range-open",
            place.clone(),
            format!("nothing keeps {sequence} within {least} to {greatest}"),
            "Monarch does not raise it beyond, but its own calls may lead it there",
        )
        .mend(bounds)
    }))
}

struct Rights {
    select: bool,
    update: bool,
    owns: bool,
    role: String,
    sequence: String,
}

impl Rights {
    fn source(&self, place: &Place) -> Option<Finding> {
        if self.select {
            return None;
        }
        let finding = Finding::refuse(
            "no-sequence-privilege",
            place.clone(),
            format!(
                "role {} may not read the sequence {}",
                self.role, self.sequence
            ),
            "The sink's sequences could not be raised past the ids that it has given out",
        );
        Some(finding.mend(self.grant("select")))
    }

    fn sink(&self, feed: &Feed, place: &Place) -> Vec<Finding> {
        let mut findings = Vec::new();
        if !(self.select && self.update) {
            let finding = Finding::refuse(
                "no-sequence-privilege",
                place.clone(),
                format!(
                    "role {} may not raise the sequence {}",
                    self.role, self.sequence
                ),
                "It would give ids that moved in to other tenants, whose inserts would fail",
            );
            findings.push(finding.mend(self.grant("select, update")));
        } else if !self.owns {
            findings.push(Finding::warn(
                "sequence-not-owned",
                place.clone(),
                format!(
                    "role {} does not own the sequence {}",
                    self.role, self.sequence
                ),
                "It cannot be locked while it is raised, and is raised further instead",
            ));
        }
        if feed.cache > 1 {
            let finding = Finding::warn(
                "sequence-cache",
                place.clone(),
                format!(
                    "each session takes {} ids of {} at once",
                    feed.cache, self.sequence
                ),
                "Ids taken before the sequence is raised may be among those that move in",
            );
            findings.push(finding.mend(format!(
                "alter sequence {} cache 1, and let the application connect anew",
                self.sequence
            )));
        }
        findings
    }

    fn grant(&self, privileges: &str) -> String {
        format!(
            "grant {privileges} on sequence {} to {}",
            self.sequence,
            quote_ident(&self.role)
        )
    }
}
