//! The decoder of the replication stream: any message is read or refused, and nothing is allocated
//! for it, whatever numbers of columns or bytes it claims.
//!
//! The first byte of an input says whether the message is part of a streamed transaction.

#![no_main]

use libfuzzer_sys::fuzz_target;
use monarch_fuzz::most_held;
use monarch_postgres::pgoutput::{Change, Message, OldTuple, Tuple, Value, decode};

fuzz_target!(|input: &[u8]| {
    let Some((&streamed, message)) = input.split_first() else {
        return;
    };
    let held = most_held(|| read(message, streamed & 1 == 1));
    assert_eq!(
        held,
        0,
        "a message of {} bytes made the decoder allocate",
        message.len()
    );
});

/// Reads all that a message offers.
fn read(bytes: &[u8], streamed: bool) {
    let Ok((message, _)) = decode(bytes, streamed) else {
        return;
    };
    match message {
        Message::Relation {
            schema,
            name,
            columns,
            ..
        } => {
            within(bytes, name.as_bytes());
            // The catalog's schema is sent as an empty name.
            assert!(schema == "pg_catalog" || schema.len() < bytes.len());
            assert_eq!(columns.iter().count(), columns.len());
            columns
                .iter()
                .for_each(|column| within(bytes, column.name.as_bytes()));
        }
        Message::Type { name, .. } | Message::Origin { name, .. } => within(bytes, name.as_bytes()),
        Message::Change(Change::Insert { new, .. }) => row(bytes, new),
        Message::Change(Change::Update { old, new, .. }) => {
            old.into_iter().for_each(|old| old_row(bytes, old));
            row(bytes, new);
        }
        Message::Change(Change::Delete { old, .. }) => old_row(bytes, old),
        Message::Truncate { relations, .. } => {
            assert!(relations.iter().count() * 4 <= bytes.len());
        }
        Message::Message {
            prefix, content, ..
        } => {
            within(bytes, prefix.as_bytes());
            within(bytes, content.0);
        }
        _ => {}
    }
}

fn old_row(bytes: &[u8], old: OldTuple<'_>) {
    let (OldTuple::Key(tuple) | OldTuple::Full(tuple)) = old;
    row(bytes, tuple);
}

/// A row has as many values as it says, and each lies in the message.
fn row(bytes: &[u8], tuple: Tuple<'_>) {
    assert_eq!(tuple.values().count(), tuple.len());
    for value in tuple {
        if let Value::Text(part) | Value::Binary(part) = value {
            within(bytes, part);
        }
    }
}

fn within(bytes: &[u8], part: &[u8]) {
    let (whole, part) = (bytes.as_ptr_range(), part.as_ptr_range());
    assert!(
        whole.start <= part.start && part.end <= whole.end,
        "a view that leaves its message"
    );
}
