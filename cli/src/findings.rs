//! Findings as an operator reads them. A missing grant is found in each of two hundred tables: what
//! differs by its table alone is told once, with the tables' names. Programs get each by itself.

use std::fmt::Write as _;

use monarch_model::TableName;
use monarch_postgres::preflight::{Finding, Place, Report, Severity};
use monarch_postgres::sql::qualified;

use crate::console::plain;

/// How many tables a line names before it counts the rest.
const NAMED: usize = 8;

/// What stands in the place of a table's name where several are told at once.
const ANY_TABLE: &str = "<table>";

/// Findings that differ by their table alone.
struct Fold<'a> {
    first: &'a Finding,
    /// What the first says, of any table.
    of_any: Words,
    /// Whether all of them say it in the first one's own words.
    is_verbatim: bool,
    places: Vec<&'a Place>,
}

/// What a finding says and what mends it.
#[derive(PartialEq)]
struct Words {
    what: String,
    mend: Option<String>,
}

/// The findings, the heaviest first, each with what mends it; then how many there are.
pub(crate) fn text(report: &Report) -> String {
    let mut text = String::new();
    for fold in folded(&report.findings) {
        fold.write(&mut text);
    }
    let of = |severity| {
        let found = report.findings.iter();
        found.filter(|finding| finding.severity == severity).count()
    };
    let verdict = if report.refuses() {
        "refused"
    } else {
        "nothing forbids the move"
    };
    let _ = write!(
        text,
        "{verdict}: {} that refuse, {} that warn, {} to know",
        of(Severity::Refuse),
        of(Severity::Warn),
        of(Severity::Info)
    );
    text
}

fn folded(findings: &[Finding]) -> Vec<Fold<'_>> {
    let mut folds: Vec<Fold<'_>> = Vec::new();
    for finding in findings {
        let of_any = Words::of_any_table(finding);
        // A table may be called like a word that all of them use.
        let is_verbatim =
            |fold: &Fold<'_>| fold.first.what == finding.what && fold.first.mend == finding.mend;
        let alike = folds.iter_mut().find(|fold| {
            is_alike(fold.first, finding) && (is_verbatim(fold) || fold.of_any == of_any)
        });
        match alike {
            Some(fold) => {
                fold.is_verbatim &= is_verbatim(fold);
                fold.places.push(&finding.place);
            }
            None => folds.push(Fold {
                first: finding,
                of_any,
                is_verbatim: true,
                places: vec![&finding.place],
            }),
        }
    }
    folds
}

impl Words {
    fn of_any_table(finding: &Finding) -> Self {
        let of_any = |text: &str| match &finding.place.table {
            Some(table) => of_any_table(text, table),
            None => text.to_owned(),
        };
        Self {
            what: of_any(&finding.what),
            mend: finding.mend.as_deref().map(of_any),
        }
    }
}

/// Whether two findings are of one kind, each of a table of the same database.
fn is_alike(a: &Finding, b: &Finding) -> bool {
    let of_tables = a.place.table.is_some() && b.place.table.is_some();
    let kind = |of: &Finding| (of.severity, of.code.clone(), of.why.clone());
    let database = |of: &Finding| (of.place.cell.clone(), of.place.database.clone());
    of_tables && kind(a) == kind(b) && database(a) == database(b)
}

impl Fold<'_> {
    fn write(&self, text: &mut String) {
        let Finding { severity, code, .. } = self.first;
        let place = match self.places.len() {
            1 => self.first.place.to_string(),
            _ => self.place(),
        };
        let (what, mend) = if self.is_verbatim {
            (&self.first.what, &self.first.mend)
        } else {
            (&self.of_any.what, &self.of_any.mend)
        };
        let _ = writeln!(text, "{severity} [{code}] {}", plain(&place));
        let _ = writeln!(text, "  {}. {}.", plain(what), self.first.why);
        if let Some(mend) = mend {
            let _ = writeln!(text, "  mend: {}", plain(mend));
        }
    }

    /// `cell us2, databases[0] (…), 12 tables: a, b, c and 9 more`
    fn place(&self) -> String {
        let within = Place {
            cell: self.first.place.cell.clone(),
            database: self.first.place.database.clone(),
            ..Place::default()
        };
        let names = self.places.iter().map(|place| {
            let table = place.table.as_ref().map_or("", TableName::as_str);
            match &place.column {
                Some(column) => format!("{table}.{column}"),
                None => table.to_owned(),
            }
        });
        let all = self.places.len();
        let named: Vec<String> = names.take(NAMED).collect();
        let mut place = format!("{within}, {all} tables: {}", named.join(", "));
        if all > named.len() {
            let _ = write!(place, " and {} more", all - named.len());
        }
        place
    }
}

/// A text with a table's name replaced by a word for any: as SQL has it, as the head of a sequence's
/// name, and as a word of its own.
fn of_any_table(text: &str, table: &TableName) -> String {
    let relation = table.relation();
    let text = text
        .replace(&qualified(table), ANY_TABLE)
        .replace(&format!("\"{relation}_"), &format!("\"{ANY_TABLE}_"));
    replace_word(&text, table.as_str())
}

/// Replaces `word` where no letter, digit or underscore stands beside it.
fn replace_word(text: &str, word: &str) -> String {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let mut replaced = String::with_capacity(text.len());
    let mut before = None;
    let mut rest = text;
    while let Some(at) = rest.find(word) {
        let (head, tail) = rest.split_at(at);
        let after = &tail[word.len()..];
        let stands_alone = !head.chars().next_back().or(before).is_some_and(is_part)
            && !after.chars().next().is_some_and(is_part);
        replaced.push_str(head);
        replaced.push_str(if stands_alone { ANY_TABLE } else { word });
        before = word.chars().next_back();
        rest = after;
    }
    replaced.push_str(rest);
    replaced
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lacks_grant(store: &str, table: &str) -> Finding {
        let table: TableName = table.parse().unwrap();
        let place = Place {
            cell: Some("us2".parse().unwrap()),
            database: Some("databases[0] (db/app)".to_owned()),
            store: Some(store.parse().unwrap()),
            table: Some(table.clone()),
            column: None,
        };
        let what = format!("role monarch may not insert into {table}");
        Finding::refuse("no-privilege", place, what, "Its rows could not be written")
            .mend(format!("grant insert on {} to monarch", qualified(&table)))
    }

    fn report(findings: Vec<Finding>) -> Report {
        let mut report = Report::default();
        report.add(findings);
        report
    }

    /// A missing grant of many tables is one thing to read and one statement to learn.
    #[test]
    fn what_differs_by_its_table_alone_is_told_once() {
        let tables = ["project", "group", "event", "app.into"];
        let mut found: Vec<Finding> = tables.map(|table| lacks_grant("default", table)).into();
        found.extend((1..=6).map(|n| lacks_grant("events", &format!("event_{n}"))));
        found.push(Finding::refuse(
            "no-free-slot",
            Place {
                cell: Some("us1".parse().unwrap()),
                ..Place::default()
            },
            "1 free",
            "Each store needs one",
        ));
        insta::assert_snapshot!(text(&report(found)), @r#"
        refuse [no-free-slot] cell us1
          1 free. Each store needs one.
        refuse [no-privilege] cell us2, databases[0] (db/app), 10 tables: app.into, event, group, project, event_1, event_2, event_3, event_4 and 2 more
          role monarch may not insert into <table>. Its rows could not be written.
          mend: grant insert on <table> to monarch
        refused: 11 that refuse, 0 that warn, 0 to know
        "#);
    }

    /// The root is called `organization`, and so is whose rows are found.
    #[test]
    fn words_that_are_the_same_stay_as_they_are() {
        let held = ["organization", "issue"].map(|table| {
            let finding = lacks_grant("default", table);
            let what = "rows of the organization are there already";
            Finding::refuse("held", finding.place, what, "Whose they are is not known")
        });
        let told = text(&report(held.into()));
        assert!(told.contains("2 tables: issue, organization\n"), "{told}");
        assert!(
            told.contains("  rows of the organization are there already."),
            "{told}"
        );
    }

    /// A finding alone keeps its own words, and one in another database is another.
    #[test]
    fn what_differs_otherwise_is_told_by_itself() {
        let mut elsewhere = lacks_grant("default", "event");
        elsewhere.place.database = Some("databases[1] (db/other)".to_owned());
        let told = text(&report(vec![lacks_grant("default", "group"), elsewhere]));
        for words in [
            r#"grant insert on "public"."group" to monarch"#,
            "databases[1] (db/other), store default, event\n",
            "refused: 2 that refuse",
        ] {
            assert!(told.contains(words), "{words}: {told}");
        }
        assert!(!told.contains(ANY_TABLE), "{told}");
    }

    #[test]
    fn a_name_is_replaced_as_a_word_alone() {
        let told = |text: &str, table: &str| of_any_table(text, &table.parse().unwrap());
        for (text, table, expected) in [
            ("rows of group", "group", "rows of <table>"),
            (
                "groups, regroup, group_id",
                "group",
                "groups, regroup, group_id",
            ),
            (
                r#"sequence "public"."group_id_seq" of "public"."group""#,
                "group",
                r#"sequence "public"."<table>_id_seq" of <table>"#,
            ),
            ("app.event and event", "app.event", "<table> and event"),
            ("aa a", "a", "aa <table>"),
        ] {
            assert_eq!(told(text, table), expected);
        }
    }
}
