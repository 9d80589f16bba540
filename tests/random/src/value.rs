//! Values as SQL: keys from numbers, and columns of many types.

/// The type of a key's column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyKind {
    /// `smallint`.
    Smallint,
    /// `integer`.
    Integer,
    /// `bigint`, with numbers beyond 32 bits.
    Bigint,
    /// `uuid`.
    Uuid,
    /// `text`, with characters that want care.
    Text,
}

impl KeyKind {
    /// Each of them.
    pub const ALL: [Self; 5] = [
        Self::Smallint,
        Self::Integer,
        Self::Bigint,
        Self::Uuid,
        Self::Text,
    ];

    /// Its name in SQL.
    #[must_use]
    pub fn sql(self) -> &'static str {
        match self {
            Self::Smallint => "smallint",
            Self::Integer => "integer",
            Self::Bigint => "bigint",
            Self::Uuid => "uuid",
            Self::Text => "text",
        }
    }

    /// The key of a number, as Postgres prints it. No two numbers have the same.
    #[must_use]
    pub fn text(self, n: u32) -> String {
        match self {
            Self::Smallint | Self::Integer => n.to_string(),
            Self::Bigint => (5_000_000_000 + u64::from(n)).to_string(),
            Self::Uuid => {
                let scattered = n.wrapping_mul(2_654_435_761);
                format!("{scattered:08x}-0000-4000-8000-{n:012x}")
            }
            Self::Text => match n % 6 {
                0 => format!("k{n}"),
                1 => format!("it's {n}"),
                2 => format!("\\{n}\\N"),
                3 => format!("\t\"{n}\",{{}}"),
                4 => format!("Ключ {n} 🦀"),
                _ => format!("K{n} "),
            },
        }
    }

    /// The key of a number, as a literal.
    #[must_use]
    pub fn literal(self, n: u32) -> String {
        literal(&self.text(n))
    }
}

/// A text as a literal.
#[must_use]
pub fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// A column of some type.
#[derive(Debug, PartialEq, Eq)]
pub struct Extra {
    /// Its type in SQL.
    pub sql: &'static str,
    /// Expressions for values of it.
    pub values: &'static [&'static str],
}

/// Types, with values that want care.
pub const EXTRAS: [Extra; 20] = [
    Extra {
        sql: "numeric(12,3)",
        values: &["1.5", "-0.001", "'NaN'", "null"],
    },
    Extra {
        sql: "numeric",
        values: &[
            "1.50",
            "1e100",
            "0.000",
            "'Infinity'::float8::text::numeric",
        ],
    },
    Extra {
        sql: "jsonb",
        values: &[
            "'{\"a\": [1, null, \"\\u00e9\"]}'",
            "'null'",
            "null",
            "'[]'",
        ],
    },
    Extra {
        sql: "json",
        values: &["'{\"b\":1,  \"a\":2}'", "null"],
    },
    Extra {
        sql: "text[]",
        values: &["array['a', null, 'b\"c', '{}', '']", "'{}'", "null"],
    },
    Extra {
        sql: "integer[][]",
        values: &["'{{1,2},{3,4}}'", "'[2:3]={7,8}'"],
    },
    Extra {
        sql: "timestamptz",
        values: &[
            "'infinity'",
            "'2024-02-29 23:59:59.999999+05:30'",
            "'0044-03-15 12:00:00+00 BC'",
        ],
    },
    Extra {
        sql: "timestamp(3)",
        values: &["'2024-01-01 00:00:00.1235'", "'-infinity'"],
    },
    Extra {
        sql: "interval",
        values: &["'1 mon -2 days 03:04:05.6'", "'-1 year'", "null"],
    },
    Extra {
        sql: "bytea",
        values: &["'\\x00ff5c'", "''", "null"],
    },
    Extra {
        sql: "varchar(12)",
        values: &["'a\\b'", "E'line\\n\\\\.\\nend'", "' '", "null"],
    },
    Extra {
        sql: "char(5)",
        values: &["'ab'", "'  x'", "null"],
    },
    Extra {
        sql: "boolean",
        values: &["true", "false", "null"],
    },
    Extra {
        sql: "double precision",
        values: &["0.1", "'-Infinity'", "1e-300", "'-0'"],
    },
    Extra {
        sql: "real",
        values: &["0.1", "16777217", "'NaN'"],
    },
    Extra {
        sql: "mood",
        values: &["'low'", "'Mid, \"x\"'", "null"],
    },
    Extra {
        sql: "short",
        values: &["'s'", "'it''s'", "null"],
    },
    Extra {
        sql: "pair",
        values: &["row(1, 'a,\"b')::pair", "row(null, '')::pair", "null"],
    },
    Extra {
        sql: "int4range",
        values: &["'[1,5)'", "'empty'", "'(,3]'", "null"],
    },
    Extra {
        sql: "bit(5)",
        values: &["B'10101'", "B'00000'"],
    },
];
