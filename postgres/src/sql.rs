//! Text that is safe to put into a statement.
//!
//! Identifiers and literals cannot be parameters of COPY, of a publication or of a replication
//! command, so they are quoted here and nowhere else.

use monarch_model::TableName;

/// `name` as an identifier, always in double quotes: case and reserved words are kept as they are.
pub fn quote_ident(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// `table` with its schema, so that no `search_path` decides what is meant.
pub fn qualified(table: &TableName) -> String {
    format!(
        "{}.{}",
        quote_ident(table.schema()),
        quote_ident(table.relation())
    )
}

/// Column names as a list between commas, each quoted.
pub fn column_list<I: IntoIterator<Item: AsRef<str>>>(columns: I) -> String {
    let quoted: Vec<String> = columns
        .into_iter()
        .map(|column| quote_ident(column.as_ref()))
        .collect();
    quoted.join(", ")
}

/// `text` as a string literal that means the same whatever `standard_conforming_strings` says.
pub fn quote_literal(text: &str) -> String {
    let quoted = text.replace('\'', "''");
    if quoted.contains('\\') {
        format!("E'{}'", quoted.replace('\\', "\\\\"))
    } else {
        format!("'{quoted}'")
    }
}

/// Texts as the literal of a one-dimensional array, to be cast to the array's type.
pub fn array_literal<I: IntoIterator<Item: AsRef<str>>>(elements: I) -> String {
    let elements: Vec<String> = elements
        .into_iter()
        .map(|element| array_element(element.as_ref()))
        .collect();
    quote_literal(&format!("{{{}}}", elements.join(",")))
}

fn array_element(element: &str) -> String {
    let bare = !element.is_empty()
        && !element.eq_ignore_ascii_case("null")
        && element
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_');
    if bare {
        element.to_owned()
    } else {
        format!("\"{}\"", element.replace('\\', "\\\\").replace('"', "\\\""))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Guards promise 1: no name or id can change what a statement means.
    #[test]
    fn quotes_and_backslashes_stay_inside_what_they_are_part_of() {
        assert_eq!(quote_ident("a\"b"), "\"a\"\"b\"");
        assert_eq!(quote_literal("it's"), "'it''s'");
        assert_eq!(quote_literal("a\\'b"), "E'a\\\\''b'");
        assert_eq!(
            array_literal(["7", "null", "", "a,b", "q\"\\"]),
            "E'{7,\"null\",\"\",\"a,b\",\"q\\\\\"\\\\\\\\\"}'"
        );
    }

    #[test]
    fn a_table_is_named_with_its_schema() {
        let table = |text: &str| qualified(&text.parse().unwrap());
        assert_eq!(table("order"), "\"public\".\"order\"");
        assert_eq!(table("App.Orders"), "\"App\".\"Orders\"");
    }
}
