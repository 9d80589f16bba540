//! The organizations that live in the fleet in miniature.

/// An organization: its root row's id, and the ids of its projects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Organization {
    /// The key of its row in `organization`.
    pub id: i64,
    /// Its name.
    pub slug: &'static str,
    /// The keys of its rows in `project`, which is static.
    pub projects: [i64; 3],
}

impl Organization {
    /// The one that moves.
    pub const EVIL_CORP: Self = Self {
        id: 1,
        slug: "evil-corp",
        projects: [11, 12, 13],
    };
    /// Its neighbour on the source.
    pub const OTHER: Self = Self {
        id: 2,
        slug: "other",
        projects: [21, 22, 23],
    };
    /// Lives on the sink. Its keys are far from the others', but its tables' sequences start at
    /// one, as in a cell that was filled by imports.
    pub const AT_HOME: Self = Self {
        id: 3,
        slug: "at-home",
        projects: [31, 32, 33],
    };

    /// SQL about this organization: `{org}` stands for its id, `{slug}` for its name and
    /// `{projects}` for an array of its projects.
    #[must_use]
    pub fn sql(&self, text: &str) -> String {
        let [a, b, c] = self.projects;
        text.replace("{org}", &self.id.to_string())
            .replace("{slug}", self.slug)
            .replace("{projects}", &format!("array[{a}, {b}, {c}]::bigint[]"))
    }
}
