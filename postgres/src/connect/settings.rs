//! The settings that every session starts with.
//!
//! Rows travel as text from one server to another, so both must write and read a value in the same
//! way; and a session that copies for hours must not end because somebody gave its role a timeout.
//! The defaults of role, database and server are therefore all overridden, from the first
//! statement on: in the startup packet for settings that every version has, and right after it for
//! those that came later ([`Setting::since`]), so that a server that is too old still says so
//! itself. A connection string's `options` come before these and lose against them.

use tokio_postgres::error::SqlState;

use super::session::{SessionPurpose, SessionRole};
use crate::Error;

/// One setting, and the first major version that has it; 0 for all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// Its name.
    pub name: &'static str,
    /// Its value.
    pub value: String,
    /// The first major version that has it.
    pub since: u32,
}

#[rustfmt::skip]
const CANONICAL: &[(&str, &str, u32)] = &[
    // The text forms of values.
    ("client_encoding", "UTF8", 0),
    ("datestyle", "ISO,MDY", 0),
    ("intervalstyle", "postgres", 0),
    ("timezone", "UTC", 0),
    // 3 prints floating-point values so that they read back as the same bits.
    ("extra_float_digits", "3", 0),
    ("bytea_output", "hex", 0),
    ("xmloption", "content", 0),
    ("lc_monetary", "C", 0),
    ("array_nulls", "on", 0),
    // Types are compared by the names that the catalog prints.
    ("quote_all_identifiers", "off", 0),
    // The meaning of statements. Names are always qualified; row-level security fails a statement
    // instead of hiding rows from it.
    ("search_path", "pg_catalog", 0),
    ("row_security", "off", 0),
    ("standard_conforming_strings", "on", 0),
    ("transform_null_equals", "off", 0),
    ("default_transaction_isolation", "read committed", 0),
    ("default_transaction_deferrable", "off", 0),
    // A slot is acknowledged after the sink's commit, which must therefore be durable.
    ("synchronous_commit", "on", 0),
    // Notices quote values, and nobody reads them.
    ("client_min_messages", "error", 0),
    // A session lives as long as its work.
    ("statement_timeout", "0", 0),
    ("lock_timeout", "0", 0),
    ("idle_in_transaction_session_timeout", "0", 0),
    ("idle_session_timeout", "0", 14),
    ("transaction_timeout", "0", 17),
    // But not longer than its client: what a vanished machine held is free after a minute, and a
    // statement whose client hung up is ended.
    ("tcp_keepalives_idle", "30", 0),
    ("tcp_keepalives_interval", "10", 0),
    ("tcp_keepalives_count", "3", 0),
    ("client_connection_check_interval", "10s", 14),
];

/// The settings of a session for `purpose`, in the order in which they are set: the canonical ones,
/// with what the purpose gives in their place, and then what else it gives.
pub fn canonical(purpose: &SessionPurpose) -> Vec<Setting> {
    let read_only = match purpose.role {
        SessionRole::Reader => "on",
        SessionRole::Writer => "off",
    };
    let by_role = ("default_transaction_read_only", read_only, 0);
    let mut settings: Vec<Setting> = CANONICAL
        .iter()
        .chain([&by_role])
        .map(|&(name, value, since)| Setting {
            name,
            value: value.to_owned(),
            since,
        })
        .collect();
    for (name, value) in purpose.given() {
        match settings.iter_mut().find(|setting| setting.name == *name) {
            Some(setting) => setting.value.clone_from(value),
            None => settings.push(Setting {
                name,
                value: value.clone(),
                since: 0,
            }),
        }
    }
    settings
}

/// Moves settings into the startup packet if a timeout struck before a statement could set it, and
/// says whether it did: such an error shows that the server knows the setting.
pub(super) fn told_early_by(error: &Error, settings: &mut [Setting]) -> bool {
    let known = match error.code() {
        Some(code) if *code == SqlState::from_code("25P04") => 17,
        Some(code) if *code == SqlState::from_code("57P05") => 14,
        _ => return false,
    };
    let mut moved = false;
    for setting in settings {
        moved |= setting.since > 0 && setting.since <= known;
        if setting.since <= known {
            setting.since = 0;
        }
    }
    moved
}

/// The `options` of the startup packet: the connection string's own, then the settings that all
/// versions have.
pub(super) fn startup_options(own: Option<&str>, settings: &[Setting]) -> String {
    let mut options = own.unwrap_or("").to_owned();
    for Setting { name, value, .. } in settings.iter().filter(|setting| setting.since == 0) {
        let escaped = value.replace('\\', "\\\\").replace(' ', "\\ ");
        options.push_str(&format!(" -c {name}={escaped}"));
    }
    options.trim_start().to_owned()
}

/// One statement that sets what a server of `major` has and the startup packet could not.
pub(crate) fn later_settings(settings: &[Setting], major: u32) -> String {
    settings
        .iter()
        .filter(|setting| setting.since > 0 && setting.since <= major)
        .map(|Setting { name, value, .. }| {
            format!("set {name} = {};", crate::sql::quote_literal(value))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Endpoint, Refusal, ServerError};

    fn refused(sqlstate: &str) -> Error {
        Error::Connect {
            endpoint: Endpoint {
                host: "db.test".to_owned(),
                port: 5432,
            },
            earlier: Vec::new(),
            source: ServerError::Refused(Box::new(Refusal {
                code: SqlState::from_code(sqlstate),
                schema: None,
                table: None,
                column: None,
                constraint: None,
                in_recovery: false,
            })),
        }
    }

    /// A role's `transaction_timeout` of a millisecond may strike before a statement lifts it.
    #[test]
    fn a_timeout_that_strikes_at_once_is_lifted_in_the_startup_packet() {
        let mut settings = canonical(&SessionPurpose::writer("w"));
        let lifted = |settings: &[Setting]| {
            startup_options(None, settings).contains("-c transaction_timeout=0")
        };
        assert!(!told_early_by(&refused("28P01"), &mut settings));
        assert!(!lifted(&settings));
        assert!(told_early_by(&refused("25P04"), &mut settings));
        assert!(lifted(&settings));
        assert_eq!(later_settings(&settings, 17), "");
        // Once is enough: the second refusal is the answer.
        assert!(!told_early_by(&refused("25P04"), &mut settings));
    }

    #[test]
    fn our_settings_stand_behind_the_connection_strings_own() {
        let settings = canonical(&SessionPurpose::writer("w").with("search_path", r"a b\c"));
        let options = startup_options(Some("-c datestyle=SQL"), &settings);
        assert!(options.starts_with("-c datestyle=SQL -c "), "{options}");
        assert!(options.contains(r"-c search_path=a\ b\\c"), "{options}");
        assert!(!options.contains("idle_session_timeout"), "{options}");
        assert!(later_settings(&settings, 14).contains("set idle_session_timeout = '0';"));
        assert!(!later_settings(&settings, 16).contains("transaction_timeout"));
    }
}
