//! Messages made by hand, and bytes that nobody made.

use monarch_model::Lsn;
use proptest::prelude::*;

use super::*;
use crate::PgTime;

/// A message out of its parts.
macro_rules! bytes {
    ($($part:expr),* $(,)?) => {{
        let mut bytes: Vec<u8> = Vec::new();
        $(bytes.extend_from_slice($part.as_ref());)*
        bytes
    }};
}

fn be32(number: u32) -> [u8; 4] {
    number.to_be_bytes()
}

fn be64(number: u64) -> [u8; 8] {
    number.to_be_bytes()
}

/// NULL, an unchanged value, and a text with a NUL in it.
fn row() -> Vec<u8> {
    bytes!(3u16.to_be_bytes(), "n", "u", "t", be32(3), b"a\0b")
}

/// One message of every kind.
fn samples() -> Vec<Vec<u8>> {
    vec![
        bytes!("B", be64(0x10), be64(5), be32(7)),
        bytes!("C", [0], be64(0x10), be64(0x18), be64(5)),
        bytes!("O", be64(9), "other\0"),
        bytes!(
            "R",
            be32(16),
            "app\0group\0",
            "d",
            2u16.to_be_bytes(),
            [1],
            "id\0",
            be32(20),
            be32(u32::MAX),
            [0],
            "ü\0",
            be32(25),
            be32(4)
        ),
        bytes!("Y", be32(17), "\0mood\0"),
        bytes!("I", be32(16), "N", row()),
        bytes!("U", be32(16), "N", row()),
        bytes!("U", be32(16), "K", row(), "N", row()),
        bytes!("D", be32(16), "O", row()),
        bytes!("T", be32(2), [2], be32(16), be32(17)),
        bytes!("M", [1], be64(0x20), "barrier\0", be32(2), "{}"),
        bytes!("S", be32(7), [1]),
        bytes!("E"),
        bytes!("c", be32(7), [0], be64(0x10), be64(0x18), be64(5)),
        bytes!("A", be32(7), be32(8)),
    ]
}

fn plain(message: &[u8]) -> Message<'_> {
    let (decoded, xid) = decode(message, false).unwrap();
    assert_eq!(xid, None);
    decoded
}

#[test]
fn a_transaction_begins_and_commits() {
    let samples = samples();
    assert_eq!(
        plain(&samples[0]),
        Message::Begin {
            final_lsn: Lsn(0x10),
            commit_time: PgTime(5),
            xid: 7
        }
    );
    assert_eq!(
        plain(&samples[1]),
        Message::Commit {
            lsn: Lsn(0x10),
            end_lsn: Lsn(0x18),
            time: PgTime(5)
        }
    );
}

#[test]
fn a_relation_tells_its_columns_and_the_catalog_schema_has_its_name() {
    let samples = samples();
    let Message::Relation {
        schema,
        name,
        replica_identity,
        columns,
        ..
    } = plain(&samples[3])
    else {
        panic!("not a relation");
    };
    assert_eq!((schema, name), ("app", "group"));
    assert_eq!(replica_identity, ReplicaIdentity::Default);
    let expected = [
        RelationColumn {
            key: Key::Part,
            name: "id",
            type_oid: 20,
            type_modifier: -1,
        },
        RelationColumn {
            key: Key::No,
            name: "ü",
            type_oid: 25,
            type_modifier: 4,
        },
    ];
    assert_eq!(columns.iter().collect::<Vec<_>>(), expected);
    assert_eq!(
        plain(&samples[4]),
        Message::Type {
            id: 17,
            schema: "pg_catalog",
            name: "mood"
        }
    );
}

#[test]
fn values_are_null_unchanged_or_slices_of_the_message() {
    let message = &samples()[7];
    let Message::Change(Change::Update {
        old: Some(OldTuple::Key(old)),
        new,
        ..
    }) = plain(message)
    else {
        panic!("not an update with a key");
    };
    let expected = [Value::Null, Value::Unchanged, Value::Text(b"a\0b")];
    assert_eq!(old.values().collect::<Vec<_>>(), expected);
    assert_eq!(new.values().len(), 3);
    assert_eq!(new.get(2), Some(expected[2]));
    assert_eq!(new.get(3), None);
    let text = new.get(2).and_then(Value::text).unwrap();
    assert!(
        message.as_ptr_range().contains(&text.as_ptr()),
        "the value was copied"
    );
}

#[test]
fn a_truncate_names_its_relations_and_a_barrier_its_content() {
    let samples = samples();
    let Message::Truncate {
        cascade,
        restart_identity,
        relations,
    } = plain(&samples[9])
    else {
        panic!("not a truncate");
    };
    assert_eq!((cascade, restart_identity), (false, true));
    assert_eq!(relations.iter().collect::<Vec<_>>(), [16, 17]);
    assert_eq!(
        plain(&samples[10]),
        Message::Message {
            transactional: true,
            lsn: Lsn(0x20),
            prefix: "barrier",
            content: Content(b"{}"),
        }
    );
}

#[test]
fn a_streamed_change_tells_its_subtransaction() {
    let message = bytes!("I", be32(8), be32(16), "N", row());
    let (decoded, xid) = decode(&message, true).unwrap();
    assert_eq!(xid, Some(8));
    assert!(matches!(
        decoded,
        Message::Change(Change::Insert { relation: 16, .. })
    ));
}

/// Guards promise 10: what is printed of a message has no row values.
#[test]
fn values_are_not_printed() {
    let message = bytes!(
        "I",
        be32(16),
        "N",
        1u16.to_be_bytes(),
        "t",
        be32(6),
        "secret"
    );
    assert!(!format!("{:?}", plain(&message)).contains("secret"));
}

/// Guards promise 3: half a message is not taken for a whole one, nor one and a half.
#[test]
fn every_message_ends_where_it_must() {
    for whole in samples() {
        plain(&whole);
        for length in 0..whole.len() {
            let error = decode(&whole[..length], false).unwrap_err();
            assert!(error.offset <= length, "{error}");
        }
        let longer = bytes!(whole, [0]);
        let error = decode(&longer, false).unwrap_err();
        assert_eq!(
            (error.kind, error.offset),
            (whole[0], whole.len()),
            "{error}"
        );
    }
}

#[test]
fn a_kind_that_was_not_asked_for_is_named() {
    let error = decode(b"P\0", false).unwrap_err();
    assert!(
        error.to_string().starts_with("pgoutput message P, byte 0"),
        "{error}"
    );
    assert!(decode(b"", false).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    /// Guards promise 4: a mover does not die of what comes through a socket.
    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..64), streamed: bool) {
        read_everything(&bytes, streamed);
    }

    /// The same from messages that are right but for a few bytes, which get further in.
    #[test]
    fn damaged_messages_never_panic(
        sample in 0..15usize,
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        streamed: bool,
    ) {
        let mut bytes = samples().swap_remove(sample);
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        read_everything(&bytes, streamed);
    }
}

/// Reads a message and everything that it offers, and checks what its views promise.
fn read_everything(bytes: &[u8], streamed: bool) {
    let Ok((message, _)) = decode(bytes, streamed) else {
        return;
    };
    let _ = format!("{message:?}");
    let complete = |tuple: Tuple<'_>| assert_eq!(tuple.values().count(), tuple.len());
    match message {
        Message::Relation { columns, .. } => assert_eq!(columns.iter().count(), columns.len()),
        Message::Change(Change::Insert { new, .. }) => complete(new),
        Message::Change(Change::Update { old, new, .. }) => {
            complete(new);
            old.iter().for_each(|old| complete(old.tuple()));
        }
        Message::Change(Change::Delete { old, .. }) => complete(old.tuple()),
        _ => {}
    }
}
