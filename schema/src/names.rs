//! Which table a column means by its name alone, where no foreign key says so: databases of one cell
//! cannot have foreign keys to each other, and many schemas go without any.

/// How surely a column's name means a table; the surest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Likeness {
    /// `project_id` and `project` or `projects`.
    Same,
    /// `tenant_no` and a table whose key is `tenant_no`.
    Key,
    /// `project_id` and `app_project`: schemas put a prefix before each table's name.
    Prefixed,
}

/// A table's name and its key's, taken apart once for all columns.
pub(crate) struct ParentName {
    table: String,
    key: String,
}

/// A column's name, taken apart once for all tables.
pub(crate) struct ColumnName(String);

impl ParentName {
    pub(crate) fn new(table: &str, key: &str) -> Self {
        Self {
            table: singular(&words(table)),
            key: words(key),
        }
    }
}

impl ColumnName {
    pub(crate) fn new(column: &str) -> Self {
        Self(words(column))
    }

    /// How the column may mean the table.
    pub(crate) fn means(&self, parent: &ParentName) -> Option<Likeness> {
        let stem = [&*parent.key, "id"]
            .iter()
            .find_map(|suffix| self.0.strip_suffix(*suffix)?.strip_suffix('_'))
            .filter(|stem| !stem.is_empty())
            .map(singular);
        if stem.as_ref() == Some(&parent.table) {
            return Some(Likeness::Same);
        }
        if self.0 == parent.key && !is_common(&parent.key) {
            return Some(Likeness::Key);
        }
        let before = parent.table.strip_suffix(&*stem?)?;
        before.ends_with('_').then_some(Likeness::Prefixed)
    }
}

/// Names of keys that say nothing of whose key it is.
fn is_common(key: &str) -> bool {
    matches!(
        key,
        "id" | "uuid" | "guid" | "key" | "name" | "code" | "slug" | "value" | "type"
    )
}

/// `projectId`, `ProjectID` and `project_id` are one name.
fn words(name: &str) -> String {
    let mut words = String::with_capacity(name.len() + 4);
    let mut was_lower = false;
    for c in name.chars() {
        if c.is_uppercase() && was_lower {
            words.push('_');
        }
        was_lower = c.is_lowercase() || c.is_ascii_digit();
        words.extend(c.to_lowercase());
    }
    words
}

/// The singular of an English noun, nearly: both sides of a comparison go through it.
fn singular(name: &str) -> String {
    let stem = |suffix: &str| name.strip_suffix(suffix);
    if let Some(stem) = stem("ies") {
        return format!("{stem}y");
    }
    for suffix in ["sses", "xes", "ches", "shes"] {
        if name.ends_with(suffix) {
            return name[..name.len() - 2].to_owned();
        }
    }
    match stem("s") {
        Some(stem) if !stem.ends_with(['s', 'u', 'i']) => stem.to_owned(),
        _ => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_column_means_the_table_of_its_name() {
        for (column, table, key, expected) in [
            ("project_id", "projects", "id", Some(Likeness::Same)),
            ("projectId", "Project", "id", Some(Likeness::Same)),
            ("project_uuid", "project", "uuid", Some(Likeness::Same)),
            ("project_id", "project", "uuid", Some(Likeness::Same)),
            ("company_id", "companies", "id", Some(Likeness::Same)),
            ("address_id", "addresses", "id", Some(Likeness::Same)),
            ("box_id", "boxes", "id", Some(Likeness::Same)),
            ("status_id", "statuses", "id", None),
            ("status_id", "status", "id", Some(Likeness::Same)),
            ("tenant_no", "tenants", "tenant_no", Some(Likeness::Key)),
            ("project_id", "projects", "project_id", Some(Likeness::Same)),
            (
                "project_id",
                "project_settings",
                "project_id",
                Some(Likeness::Key),
            ),
            (
                "project_id",
                "sentry_project",
                "id",
                Some(Likeness::Prefixed),
            ),
            ("id", "projects", "id", None),
            ("code", "country", "code", None),
            ("_id", "projects", "id", None),
            ("object_id", "project", "id", None),
            ("subproject_id", "project", "id", None),
            ("project_id", "subproject", "id", None),
        ] {
            let meant = ColumnName::new(column).means(&ParentName::new(table, key));
            assert_eq!(meant, expected, "{column} {table}");
        }
    }
}
