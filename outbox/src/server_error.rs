//! What a Postgres server said, without what it quoted.
//!
//! A server's message and detail repeat row values, and a payload is a row value. They are dropped
//! here, at the one place that meets them: codes and names go on.

use std::fmt;

use tokio_postgres::error::SqlState;

/// An error of the server or of the connection to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerError(Box<Said>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Said {
    /// The server refused; it named these places.
    Refused {
        code: SqlState,
        /// Schema, table, column and constraint, those that it named.
        places: Vec<(&'static str, String)>,
    },
    /// The connection failed, or the driver refused.
    Driver(String),
}

impl ServerError {
    /// The SQLSTATE; none where the connection failed or the driver refused.
    #[must_use]
    pub fn code(&self) -> Option<&SqlState> {
        match &*self.0 {
            Said::Refused { code, .. } => Some(code),
            Said::Driver(_) => None,
        }
    }
}

impl From<tokio_postgres::Error> for ServerError {
    fn from(error: tokio_postgres::Error) -> Self {
        let Some(db) = error.as_db_error() else {
            // The driver's own words name a column or a parameter by its number, never a value.
            return Self(Box::new(Said::Driver(error.to_string())));
        };
        let named = [
            ("schema", db.schema()),
            ("table", db.table()),
            ("column", db.column()),
            ("constraint", db.constraint()),
        ];
        let places = named
            .into_iter()
            .filter_map(|(what, name)| Some((what, name?.to_owned())));
        Self(Box::new(Said::Refused {
            code: db.code().clone(),
            places: places.collect(),
        }))
    }
}

impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.0 {
            Said::Driver(said) => f.write_str(said),
            Said::Refused { code, places } => {
                write!(f, "SQLSTATE {}", code.code())?;
                for (what, name) in places {
                    write!(f, ", {what} {name}")?;
                }
                Ok(())
            }
        }
    }
}

impl std::error::Error for ServerError {}
