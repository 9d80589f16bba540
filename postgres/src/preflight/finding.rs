//! What preflight tells an operator.

use std::borrow::Cow;
use std::fmt;

use monarch_model::{CellName, StoreName, TableName};
use serde::{Deserialize, Serialize};

/// How much a finding weighs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// The move must not start: it would fail, lose something, or harm somebody.
    Refuse,
    /// The move may start, and an operator should know.
    Warn,
    /// Good to know.
    Info,
}

/// Where something was found: from the widest to the narrowest, as far as it can be said.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(default)]
pub struct Place {
    /// The cell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cell: Option<CellName>,
    /// The database as the fleet places it, and where that is, for example
    /// `databases[0] (db.internal:5432/app)`, or `ledger (…)`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub database: Option<String>,
    /// The store.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store: Option<StoreName>,
    /// The table.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub table: Option<TableName>,
    /// The column.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub column: Option<String>,
}

/// Something that preflight found. No row value stands in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// How much it weighs.
    pub severity: Severity,
    /// What kind it is, for example `replica-identity-missing`; it never changes.
    pub code: Cow<'static, str>,
    /// Where it was found.
    pub place: Place,
    /// What was found.
    pub what: String,
    /// Why it matters.
    pub why: Cow<'static, str>,
    /// The statement that mends it, or advice.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub mend: Option<String>,
}

/// Everything that preflight found, the heaviest first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// The findings.
    pub findings: Vec<Finding>,
}

impl Finding {
    /// A finding that forbids the move.
    pub fn refuse(
        code: &'static str,
        place: Place,
        what: impl Into<String>,
        why: &'static str,
    ) -> Self {
        Self::new(Severity::Refuse, code, place, what, why)
    }

    /// A finding that an operator should weigh.
    pub(super) fn warn(
        code: &'static str,
        place: Place,
        what: impl Into<String>,
        why: &'static str,
    ) -> Self {
        Self::new(Severity::Warn, code, place, what, why)
    }

    /// A finding that is good to know.
    pub(super) fn info(
        code: &'static str,
        place: Place,
        what: impl Into<String>,
        why: &'static str,
    ) -> Self {
        Self::new(Severity::Info, code, place, what, why)
    }

    fn new(
        severity: Severity,
        code: &'static str,
        place: Place,
        what: impl Into<String>,
        why: &'static str,
    ) -> Self {
        Self {
            severity,
            code: code.into(),
            place,
            what: what.into(),
            why: why.into(),
            mend: None,
        }
    }

    /// The same, as something that somebody has accepted by name: still told, and no obstacle.
    pub(super) fn accepted(mut self) -> Self {
        self.severity = self.severity.max(Severity::Warn);
        self
    }

    /// The same, with what mends it.
    pub fn mend(mut self, mend: impl Into<String>) -> Self {
        self.mend = Some(mend.into());
        self
    }
}

impl Place {
    /// The same place, in a table.
    pub(super) fn table(&self, store: &StoreName, table: &TableName) -> Self {
        Self {
            store: Some(store.clone()),
            table: Some(table.clone()),
            ..self.clone()
        }
    }

    /// The same place, in a column of its table.
    pub(super) fn column(&self, column: &str) -> Self {
        Self {
            column: Some(column.to_owned()),
            ..self.clone()
        }
    }
}

impl Report {
    pub(super) fn of(mut findings: Vec<Finding>) -> Self {
        findings.sort_by(|a, b| {
            (a.severity, &a.place, &a.code, &a.what).cmp(&(b.severity, &b.place, &b.code, &b.what))
        });
        findings.dedup();
        Self { findings }
    }

    /// Takes what others have found.
    pub fn add(&mut self, findings: Vec<Finding>) {
        let mut all = std::mem::take(&mut self.findings);
        all.extend(findings);
        *self = Self::of(all);
    }

    /// The findings that forbid the move.
    pub fn refusals(&self) -> impl Iterator<Item = &Finding> {
        self.findings
            .iter()
            .filter(|finding| finding.severity == Severity::Refuse)
    }

    /// Whether any finding forbids the move.
    pub fn refuses(&self) -> bool {
        self.refusals().next().is_some()
    }
}

impl Severity {
    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Severity::Refuse => "refuse",
            Severity::Warn => "warn",
            Severity::Info => "info",
        }
    }
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        parts.extend(self.cell.as_ref().map(|cell| format!("cell {cell}")));
        parts.extend(self.database.clone());
        parts.extend(self.store.as_ref().map(|store| format!("store {store}")));
        match (&self.table, &self.column) {
            (Some(table), Some(column)) => parts.push(format!("{table}.{column}")),
            (Some(table), None) => parts.push(table.to_string()),
            (None, _) => {}
        }
        f.write_str(&parts.join(", "))
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} [{}]", self.severity, self.code)?;
        let place = self.place.to_string();
        if !place.is_empty() {
            write!(f, " {place}")?;
        }
        write!(f, ": {}. {}.", self.what, self.why)?;
        match &self.mend {
            Some(mend) => write!(f, " Mend: {mend}"),
            None => Ok(()),
        }
    }
}
