//! The text of a proposed manifest: what to read twice stands beside it as a comment.

use std::fmt::{self, Display, Write as _};

use monarch_model::TableName;

use crate::proposal::{Left, Proposal, ProposedEdge, ProposedTable};
use crate::references::Evidence;

/// The widest line of a comment.
const WIDTH: usize = 100;

/// The manifest.
pub(crate) fn write(proposal: &Proposal) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = write_all(&mut text, proposal);
    text
}

fn write_all(text: &mut String, proposal: &Proposal) -> fmt::Result {
    comment(
        text,
        0,
        "Proposed by `monarch manifest derive` from the catalogs. Read the comments: they stand \
         where a person has to look. Columns that hold keys of objects are not known to a catalog: \
         add each as `column: {blob: store}`, with its blob store under stores.",
    )?;
    writeln!(text, "root: {}\n\nstores:", scalar(&proposal.root))?;
    for store in &proposal.stores {
        writeln!(text, "  {}:\n    type: postgres", scalar(store))?;
    }
    writeln!(text, "\nrelationships:")?;
    for (at, table) in proposal.tables.iter().enumerate() {
        if at > 0 {
            writeln!(text)?;
        }
        moving(text, table)?;
    }
    let (listed, unlisted): (Vec<_>, Vec<_>) = proposal
        .left
        .iter()
        .partition(|left| can_be_listed(proposal, left));
    for left in listed {
        writeln!(text)?;
        staying(text, left)?;
    }
    if !unlisted.is_empty() {
        writeln!(text)?;
        comment(text, 2, "Not in the manifest, and not moved:")?;
        for left in unlisted {
            let Left {
                name,
                store,
                because,
                ..
            } = left;
            comment(text, 2, &format!("- {name} of store {store}: {because}"))?;
        }
    }
    Ok(())
}

/// Whether a table that stays can have an entry: it has a key, and nobody else has its name.
fn can_be_listed(proposal: &Proposal, left: &Left) -> bool {
    let first = proposal.left.iter().find(|other| other.name == left.name);
    let moves = |name: &TableName| proposal.tables.iter().any(|table| table.name == *name);
    left.primary_key.is_some() && !moves(&left.name) && first == Some(left)
}

fn moving(text: &mut String, table: &ProposedTable) -> fmt::Result {
    if table.is_static {
        let why = match &*table.scopes {
            [] => "Static, since it scopes a static table".to_owned(),
            stores => format!("Static, since it scopes tables of {}", list(stores)),
        };
        comment(
            text,
            2,
            &format!("{why}: no row of it may be made or deleted while its organization moves."),
        )?;
    }
    writeln!(text, "  {}:", scalar(&table.name))?;
    writeln!(text, "    store: {}", scalar(&table.store))?;
    writeln!(text, "    primary_key: {}", sequence(&table.primary_key))?;
    if table.is_static {
        writeln!(text, "    static: true")?;
    }
    if !table.edges.is_empty() {
        writeln!(text, "    refs:")?;
    }
    for (at, edge) in table.edges.iter().enumerate() {
        if let Some(remark) = remark(edge, at == 0) {
            comment(text, 6, &remark)?;
        }
        let off = if edge.listed { "" } else { "# " };
        let (column, parent) = (scalar(&edge.column), scalar(&edge.parent));
        writeln!(text, "      {off}{column}: {{parent: {parent}}}")?;
    }
    Ok(())
}

/// What to know of an edge, if it is not as plain as can be.
fn remark(edge: &ProposedEdge, is_chosen: bool) -> Option<String> {
    let by_name = edge.evidence == Evidence::Name;
    let mut remarks = Vec::new();
    if by_name {
        remarks.push("known by its name alone: no foreign key says so");
    }
    if !edge.listed {
        remarks.push("left out: it would be chosen, and may be null");
    } else if is_chosen && edge.may_be_null {
        remarks.push("may be null: such a row is nobody's, and does not move");
    }
    let mut remark = remarks.join("; ");
    let first = remark.get_mut(..1)?;
    first.make_ascii_uppercase();
    remark.push('.');
    Some(remark)
}

fn staying(text: &mut String, left: &Left) -> fmt::Result {
    comment(text, 2, &format!("Not moved: {}.", left.because))?;
    writeln!(text, "  {}:", scalar(&left.name))?;
    writeln!(text, "    store: {}", scalar(&left.store))?;
    let key = left.primary_key.as_deref().unwrap_or_default();
    writeln!(text, "    primary_key: {}", sequence(key))
}

fn list<T: Display>(names: &[T]) -> String {
    let names: Vec<String> = names.iter().map(T::to_string).collect();
    names.join(", ")
}

/// Comment lines, indented and filled.
fn comment(text: &mut String, indent: usize, said: &str) -> fmt::Result {
    let mut line = String::new();
    for word in said.split_whitespace() {
        if !line.is_empty() && indent + 3 + line.chars().count() + word.chars().count() > WIDTH {
            writeln!(text, "{:indent$}# {line}", "")?;
            line.clear();
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    writeln!(text, "{:indent$}# {line}", "")
}

fn sequence(columns: &[String]) -> String {
    let columns: Vec<String> = columns.iter().map(scalar).collect();
    format!("[{}]", columns.join(", "))
}

/// A name as YAML reads it back: plain where it cannot be taken for anything else, in double quotes,
/// which escape as JSON does, where it can.
fn scalar(name: impl Display) -> String {
    let name = name.to_string();
    let plain = name
        .chars()
        .all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '.')
        && name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    let word = name.to_ascii_lowercase();
    let is_word = matches!(
        &*word,
        "true" | "false" | "yes" | "no" | "on" | "off" | "y" | "n" | "null"
    );
    if plain && !is_word {
        name
    } else {
        serde_json::Value::String(name).to_string()
    }
}
