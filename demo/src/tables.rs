//! The tables of the fleet in miniature, and in SQL which of their rows are an organization's.
//!
//! Written out by hand, not derived from the manifest: what is checked with these predicates is
//! what Monarch made of the manifest.

use crate::Organization;

/// A table, and which of its rows are an organization's.
#[derive(Debug, Clone)]
pub struct ScopedTable {
    /// The store it belongs to.
    pub store: String,
    /// Its name as SQL has it.
    pub name: String,
    /// A condition over its rows that runs in the store's own database.
    pub predicate: String,
}

const ISSUES: &str = r#"select id from "Issue" where project_id = any ({projects})"#;
const TEAMS: &str = "select id from team where organization_id = {org}";
const GROUPS: &str = "select id from event_group where project_id = any ({projects})";
const SERIES: &str = "select id from metric_series where project_id = any ({projects})";

/// Every table with its scope, as seen by `organization`.
#[must_use]
pub fn tables(organization: &Organization) -> Vec<ScopedTable> {
    let by_org = "organization_id = {org}".to_owned();
    let by_project = "project_id = any ({projects})".to_owned();
    let within = |column: &str, parents: &str| format!("{column} in ({parents})");
    [
        ("default", "organization", "id = {org}".to_owned()),
        ("default", "project", by_org.clone()),
        ("default", "team", by_org.clone()),
        ("default", "team_member", within("team_id", TEAMS)),
        ("default", "invitation", within("team_id", TEAMS)),
        ("default", "\"Issue\"", by_project.clone()),
        ("default", "comment", within("issue_id", ISSUES)),
        ("default", "app.setting", by_org.clone()),
        ("events", "event_group", by_project.clone()),
        ("events", "event", within("group_id", GROUPS)),
        ("events", "event_tag", within("group_id", GROUPS)),
        ("metrics", "metric_series", by_project.clone()),
        ("metrics", "sample", within("series_id", SERIES)),
        ("metrics", "alert_rule", by_project),
        ("metrics", "quota", by_org),
    ]
    .map(|(store, name, predicate)| ScopedTable {
        store: store.to_owned(),
        name: name.to_owned(),
        predicate: organization.sql(&predicate),
    })
    .into()
}
