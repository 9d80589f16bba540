//! Each fault an operator can make in the two files, as it is told. A claim here guards that a
//! move never starts on a graph or a fleet that means something else than its files say.

use std::path::Path;

use insta::assert_snapshot;
use monarch_config::{Graph, fleet_from_str, load, manifest_from_str};

/// A manifest of two Postgres stores that move, one that does not, and two blob stores.
fn with_tables(tables: &str) -> String {
    format!(
        "root: org\n\
         stores:\n\
         \x20 main: {{type: postgres}}\n\
         \x20 side: {{type: postgres}}\n\
         \x20 cold: {{type: postgres, migrate: false}}\n\
         \x20 files: {{type: blob_store, eviction: delete}}\n\
         \x20 shared: {{type: blob_store, eviction: keep, migrate: false}}\n\
         relationships:\n{tables}"
    )
}

const ORG: &str = "  org: {store: main, primary_key: [id]}\n";

/// The faults of a manifest with the root and these tables, of which the first is on line 10.
fn tables(tables: &str) -> String {
    manifest(&with_tables(&format!("{ORG}{tables}")))
}

fn manifest(text: &str) -> String {
    manifest_from_str("m", text).map_or_else(|faults| faults.to_string(), |_| "none".to_owned())
}

fn graph() -> Graph {
    manifest_from_str("m", &with_tables(ORG)).unwrap_or_else(|faults| panic!("{faults}"))
}

/// The faults of a fleet whose `HERE` is the only variable that is set.
fn fleet(text: &str) -> String {
    let env = |name: &str| (name == "HERE").then(|| "here".to_owned());
    fleet_from_str("f", text, &graph(), &env)
        .map_or_else(|faults| faults.to_string(), |_| "none".to_owned())
}

const CELL: &str = "{databases: [{primary_dsn: host=a, stores: [main, side]}], \
                    blobs: {files: {file_path: /a}}}";

/// The faults of a fleet with one cell, `c`, on line 2.
fn cell(cell: &str) -> String {
    fleet(&format!("cells:\n  c: {cell}\nledger: {{dsn: host=l}}\n"))
}

/// The faults of a fleet with this control plane, on line 4.
fn control(control: &str) -> String {
    fleet(&format!(
        "cells:\n  c: {CELL}\nledger: {{dsn: host=l}}\ncontrol: {control}\n"
    ))
}

#[test]
fn every_fault_of_both_files_is_told_at_once() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/broken");
    let faults = load(&dir.join("manifest.yaml"), &dir.join("fleet.yaml"), &|_| {
        None
    })
    .map(|_| ())
    .unwrap_err();
    let told = faults
        .to_string()
        .replace(&format!("{}/", dir.display()), "");
    assert_snapshot!(told, @r#"
    manifest.yaml:1: root: "organisation" is not a table, expected a table under relationships (did you mean "organization"?)
    manifest.yaml:5: stores.main.migrat: unknown key, expected one of type, migrate, eviction, missing (did you mean "migrate"?)
    manifest.yaml:6: stores.main: repeated key, expected each key once (first on line 3)
    manifest.yaml:8: stores.files.eviction: missing, expected delete or keep
    manifest.yaml:15: relationships.group.store: "mian" is not a store, expected a store listed under stores in the manifest (did you mean "main"?)
    manifest.yaml:16: relationships.group.primary_key: found text, expected a list of the key's columns
    manifest.yaml:25: relationships.grouphash.refs.group_id.parent: "groop" is not a table, expected a table under relationships (did you mean "group"?)
    fleet.yaml:1: ledger: missing, expected a mapping with dsn
    fleet.yaml:2: to: "ed" is not a cell, expected a cell listed under cells (did you mean "de"?)
    fleet.yaml:6: cells.us.databases[0].primary_dsn: the variable "NOT_SET" is not set, expected it in the environment
    fleet.yaml:10: cells.de.databases[0].primary_dsn: found a list, expected text
    fleet.yaml:10: cells.de.databases[0].stores: missing, expected a list of stores
    fleet.yaml:11: cells.de.databases[0].store: unknown key, expected one of primary_dsn, standby_dsn, stores (did you mean "stores"?)
    fleet.yaml:12: control.unfence: missing, expected a list of a program and its arguments
    fleet.yaml:12: control.flip: missing, expected a list of a program and its arguments
    fleet.yaml:12: control.where: missing, expected a list of a program and its arguments
    fleet.yaml:13: control.fence: found text, expected a list of a program and its arguments
    "#);
    assert_eq!(faults.as_slice().len(), told.lines().count());
    // Guards promise 10.
    assert!(!told.contains("hunter2"));
}

/// What would only show when somebody connects is told by the check; guards promise 10 too.
#[test]
fn a_connection_string_that_could_not_be_used_is_told_with_its_key() {
    let database = |dsn: &str| {
        let told = cell(&format!(
            "{{databases: [{{primary_dsn: {dsn:?}, stores: [main, side]}}], \
             blobs: {{files: {{file_path: /a}}}}}}"
        ));
        assert!(!told.contains("hunter"), "{told}");
        told.replace("f:2: cells.c.databases[0].primary_dsn: ", "")
    };
    assert_snapshot!(database("host=a port=abc dbnam=x sslmode=maybe"), @r#"
    parameter 3 is unknown (not shown: it may be a part of a password), expected one that libpq has (did you mean "dbname"?)
    sslmode is not valid, expected disable, allow, prefer, require, verify-ca or verify-full
    port is not valid, expected 1 to 65535
    "#);
    assert_snapshot!(database("host=a password=hunter2 hunter3 dbname=x"),
        @r#"word 3 has no "=", expected key=value, and a value with spaces in quotes: password='…'"#
    );
    assert_snapshot!(database("host=a password=hunter2 hunter3=x"),
        @"what follows the password is no parameter, expected key=value, and a value with spaces in quotes: password='…'"
    );
    assert_snapshot!(database("postgresql://u:hunter2@hunter3@h/d"),
        @"the URI's user and password is malformed, expected %40 for an @ in them"
    );
    assert_snapshot!(database("host=a sslcrldir=/x sslrootcert=system sslmode=require"), @r"
    sslcrldir is not supported, expected none: use sslcrl
    sslrootcert=system, expected sslmode=verify-full: anybody can have a certificate of a public authority
    ");
    assert_eq!(
        database("host=a password='hunter2 hunter3' dbname=x"),
        "none"
    );
}

/// A message of an outbox has a category's number and names its object by one column.
#[test]
fn an_outbox_needs_a_number_and_a_key_of_one_column() {
    assert_snapshot!(
        tables(
            "  a: {store: main, primary_key: [id], outbox: member, refs: {o: {parent: org}}}\n  \
               b: {store: main, primary_key: [o, id], outbox: 3, refs: {o: {parent: org}}}\n"
        ),
        @r#"
    m:10: relationships.a.outbox: found "member", expected the number of a category
    m:11: relationships.b.outbox: an outbox of a table whose key has several columns, expected a key of one column: a message names its object by it
    "#);
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let nowhere = |name| Path::new("nowhere").join(name);
    let faults = load(&nowhere("m.yaml"), &nowhere("f.yaml"), &|_| None).map(|_| ());
    assert_snapshot!(faults.unwrap_err().to_string(), @r#"
    nowhere/m.yaml: cannot be read (No such file or directory (os error 2)), expected a readable file
    nowhere/f.yaml: cannot be read (No such file or directory (os error 2)), expected a readable file
    "#);
}

#[test]
fn an_unknown_key_is_named_with_the_one_that_was_meant() {
    assert_snapshot!(tables("  t: {stor: main, primary_key: [id]}"), @r#"
    m:10: relationships.t.stor: unknown key, expected one of store, primary_key, static, outbox, refs (did you mean "store"?)
    m:10: relationships.t.store: missing, expected the store that the table lives in
    "#);
    assert_snapshot!(manifest(&format!("{}\nroots: x", with_tables(ORG))),
        @r#"m:11: roots: unknown key, expected one of root, stores, relationships (did you mean "root"?)"#
    );
}

#[test]
fn a_repeated_key_is_a_fault_and_not_a_replacement() {
    assert_snapshot!(tables("  org: {store: side, primary_key: [id]}"),
        @"m:10: relationships.org: repeated key, expected each key once (first on line 9)"
    );
    assert_snapshot!(tables("  t: {store: main, store: side, primary_key: [id]}"),
        @"m:10: relationships.t.store: repeated key, expected each key once (first on line 10)"
    );
    assert_snapshot!(tables("  public.org: {store: side, primary_key: [id]}"),
        @r#"m:10: relationships."public.org": another spelling of a table that is already there, expected each table once (first on line 9)"#
    );
}

#[test]
fn a_wrong_type_names_the_key_and_what_was_expected() {
    assert_snapshot!(tables("  t: {store: 5, primary_key: id, static: maybe, refs: []}"), @r#"
    m:10: relationships.t.store: found a number, expected text (put it in quotes)
    m:10: relationships.t.primary_key: found text, expected a list of the key's columns
    m:10: relationships.t.static: found text, expected true or false
    m:10: relationships.t.refs: found a list, expected a mapping of columns
    "#);
    assert_snapshot!(tables("  t: [main]"),
        @"m:10: relationships.t: found a list, expected a mapping with store, primary_key, static, outbox, refs"
    );
    assert_snapshot!(manifest("- root"),
        @"m:1: found a list, expected a mapping with root, stores, relationships"
    );
}

#[test]
fn a_missing_key_is_named() {
    assert_snapshot!(tables("  t: {refs: {org_id: {}}}"), @r#"
    m:10: relationships.t.store: missing, expected the store that the table lives in
    m:10: relationships.t.primary_key: missing, expected a list of the key's columns
    m:10: relationships.t.refs.org_id: neither parent nor blob, expected either parent, a table, or blob, a blob store
    "#);
    assert_snapshot!(manifest("{}"), @r#"
    m:1: stores: missing, expected a mapping of stores
    m:1: relationships: missing, expected a mapping of tables
    m:1: root: missing, expected the table whose one row is the organization
    "#);
    assert_snapshot!(fleet("{cells: {}}"), @r#"
    f:1: cells: no cell, expected at least one cell
    f:1: ledger: missing, expected a mapping with dsn
    "#);
}

#[test]
fn a_store_says_what_holds_it_and_how_it_is_evicted() {
    let stores = |stores: &str| {
        manifest(&format!(
            "root: org\nstores: {{main: {{type: postgres}}, {stores}}}\nrelationships:\n{ORG}"
        ))
    };
    assert_snapshot!(stores("s: {type: postgress}"),
        @r#"m:2: stores.s.type: "postgress" is no type of store, expected postgres or blob_store (did you mean "postgres"?)"#
    );
    assert_snapshot!(stores("s: {type: postgres, eviction: keep}"),
        @"m:2: stores.s.eviction: eviction of a postgres store, expected eviction only where the type is blob_store: rows are always evicted"
    );
    assert_snapshot!(stores("s: {type: blob_store}"),
        @"m:2: stores.s.eviction: missing, expected delete or keep"
    );
    assert_snapshot!(stores("s: {type: blob_store, migrate: false}"), @"none");
    assert_snapshot!(stores("s: {type: blob_store, eviction: keep, missing: accept}"), @"none");
    assert_snapshot!(stores("s: {type: blob_store, eviction: keep, missing: acept}"),
        @r#"m:2: stores.s.missing: "acept" is no answer to a missing object, expected block or accept (did you mean "accept"?)"#);
    assert_snapshot!(stores("s: {type: postgres, missing: accept}"),
        @"m:2: stores.s.missing: missing of a postgres store, expected missing only where the type is blob_store: it is about objects");
    assert_snapshot!(stores("s: {type: blob_store, eviction: kep}"),
        @r#"m:2: stores.s.eviction: "kep" is no eviction, expected delete or keep (did you mean "keep"?)"#
    );
}

#[test]
fn an_unknown_store_parent_or_root_is_named() {
    assert_snapshot!(tables("  t: {store: mian, primary_key: [id]}"),
        @r#"m:10: relationships.t.store: "mian" is not a store, expected a store listed under stores in the manifest (did you mean "main"?)"#
    );
    assert_snapshot!(
        tables("  t: {store: main, primary_key: [id], refs: {org_id: {parent: orgs}}}"),
        @r#"m:10: relationships.t.refs.org_id.parent: "orgs" is not a table, expected a table under relationships (did you mean "org"?)"#
    );
    assert_snapshot!(
        tables("  t: {store: main, primary_key: [id], refs: {key: {blob: file}}}"),
        @r#"m:10: relationships.t.refs.key.blob: "file" is not a store, expected a store listed under stores in the manifest (did you mean "files"?)"#
    );
    assert_snapshot!(manifest(&with_tables("  orgs: {store: main, primary_key: [id]}")),
        @r#"m:1: root: "org" is not a table, expected a table under relationships (did you mean "orgs"?)"#
    );
}

#[test]
fn a_table_is_in_a_postgres_store_and_a_blob_in_a_blob_store() {
    assert_snapshot!(tables("  t: {store: files, primary_key: [id]}"),
        @r#"m:10: relationships.t.store: "files" is a blob store, expected a postgres store"#
    );
    assert_snapshot!(
        tables("  t: {store: main, primary_key: [id], refs: {key: {blob: side}}}"),
        @r#"m:10: relationships.t.refs.key.blob: "side" is a postgres store, expected a blob store"#
    );
}

#[test]
fn a_reference_is_either_to_a_parent_or_to_a_blob() {
    assert_snapshot!(tables(
        "  t: {store: main, primary_key: [id], refs: {key: {parent: org, blob: files}}}"),
        @"m:10: relationships.t.refs.key: both parent and blob, expected either parent, a table, or blob, a blob store"
    );
}

#[test]
fn a_name_that_postgres_cannot_have_is_refused() {
    assert_snapshot!(tables("  a.b.c: {store: main, primary_key: [id]}"),
        @r#"m:10: relationships."a.b.c": "a.b.c" is no table name, expected table or schema.table, each part 1 to 63 bytes without control characters, in double quotes if it holds a dot or a quote"#
    );
    assert_snapshot!(tables("  t: {store: main, primary_key: ['']}"),
        @"m:10: relationships.t.primary_key[0]: found empty text, expected text"
    );
    assert_snapshot!(tables("  t: {store: main, primary_key: [id, id]}"),
        @"m:10: relationships.t.primary_key[1]: a repeated column, expected each column once"
    );
    assert_snapshot!(tables("  t: {store: main, primary_key: []}"),
        @"m:10: relationships.t.primary_key: an empty list, expected at least one column"
    );
}

#[test]
fn a_circle_of_scope_edges_is_told_once_and_whole() {
    assert_snapshot!(tables(
        "  d: {store: main, primary_key: [id], refs: {c_id: {parent: c}}}\n\
         \x20 a: {store: main, primary_key: [id], refs: {b_id: {parent: b}}}\n\
         \x20 b: {store: main, primary_key: [id], refs: {c_id: {parent: c}}}\n\
         \x20 c: {store: main, primary_key: [id], refs: {a_id: {parent: a}}}\n"),
        @"m:11: relationships.a.refs.b_id.parent: the scope edges run in a circle: a → b → c → a, expected a chain of edges that ends at the root"
    );
    assert_snapshot!(
        tables("  a: {store: main, primary_key: [id], refs: {a_id: {parent: a}}}"),
        @"m:10: relationships.a.refs.a_id.parent: the scope edges run in a circle: a → a, expected a chain of edges that ends at the root"
    );
}

#[test]
fn a_circle_or_a_crossing_of_edges_that_are_not_chosen_is_no_fault() {
    assert_snapshot!(tables(
        "  a: {store: main, primary_key: [id], refs: {self_id: {parent: a}, b_id: {parent: b}, \
         org_id: {parent: org}}}\n\
         \x20 b: {store: side, primary_key: [x, y], refs: {a_id: {parent: a}, \
         org_id: {parent: org}}}\n"), @"none");
}

#[test]
fn a_static_table_is_not_scoped_by_itself() {
    assert_snapshot!(tables(
        "  s: {store: main, primary_key: [id], static: true, refs: {up_id: {parent: s}, \
         org_id: {parent: org}}}\n"), @"none");
}

#[test]
fn a_chain_that_never_reaches_the_root_is_refused_by_name() {
    assert_snapshot!(tables(
        "  a: {store: main, primary_key: [id], refs: {b_id: {parent: b}}}\n\
         \x20 b: {store: main, primary_key: [id], refs: {c_id: {parent: c}}}\n\
         \x20 c: {store: main, primary_key: [id]}\n"), @r#"
    m:10: relationships.a.refs.b_id.parent: the chain a → b → c never reaches the root, expected a chain of edges that ends at the root
    m:11: relationships.b.refs.c_id.parent: the chain b → c never reaches the root, expected a chain of edges that ends at the root
    "#);
}

#[test]
fn a_dynamic_scope_edge_may_not_cross_stores() {
    assert_snapshot!(tables(
        "  a: {store: main, primary_key: [id], refs: {org_id: {parent: org}}}\n\
         \x20 b: {store: side, primary_key: [id], refs: {a_id: {parent: a}}}\n"),
        @r#"m:11: relationships.b.refs.a_id.parent: the scope edge leaves store "side" for "a" in store "main", expected a parent in the same store, or one that is the root or static"#
    );
    // The same edge into a static table is what the spine is for.
    assert_snapshot!(tables(
        "  a: {store: main, primary_key: [id], static: true, refs: {org_id: {parent: org}}}\n\
         \x20 b: {store: side, primary_key: [id], refs: {a_id: {parent: a}}}\n"), @"none");
    // The rule does not wait for the store to be migrated.
    assert_snapshot!(tables(
        "  a: {store: cold, primary_key: [id], refs: {org_id: {parent: org}}}\n\
         \x20 b: {store: main, primary_key: [id], refs: {a_id: {parent: a}}}\n"),
        @r#"m:11: relationships.b.refs.a_id.parent: the scope edge leaves store "main" for "a" in store "cold", expected a parent in the same store, or one that is the root or static"#
    );
}

#[test]
fn a_scoping_table_has_one_key_column() {
    assert_snapshot!(tables(
        "  a: {store: main, primary_key: [x, y], refs: {org_id: {parent: org}}}\n\
         \x20 b: {store: main, primary_key: [id], refs: {a_id: {parent: a}}}\n\
         \x20 s: {store: main, primary_key: [x, y], static: true, refs: {org_id: {parent: org}}}\n"
    ), @r#"
    m:10: relationships.a.primary_key: a key of 2 columns, expected one column, since the table scopes "b"
    m:12: relationships.s.primary_key: a key of 2 columns, expected one column, since the ids are recorded
    "#);
}

#[test]
fn the_spine_moves_and_hangs_from_itself() {
    assert_snapshot!(manifest(&with_tables(
        "  org: {store: cold, primary_key: [id]}\n\
         \x20 s: {store: cold, primary_key: [id], static: true, refs: {org_id: {parent: org}}}\n"
    )), @r#"
    m:9: relationships.org.store: the root in store "cold", which does not move, expected a store that is migrated
    m:10: relationships.s.store: a static table in store "cold", which does not move, expected a store that is migrated
    "#);
    assert_snapshot!(tables("  s: {store: main, primary_key: [id], static: true}"),
        @"m:10: relationships.s.static: a static table without an edge to a parent, expected a chain of edges that ends at the root"
    );
    assert_snapshot!(tables(
        "  a: {store: main, primary_key: [id], refs: {org_id: {parent: org}}}\n\
         \x20 s: {store: main, primary_key: [id], static: true, refs: {a_id: {parent: a}}}\n"
    ),
        @r#"m:11: relationships.s.refs.a_id.parent: a static table whose parent "a" is neither the root nor static, expected a parent whose ids are as fixed as its own"#
    );
    assert_snapshot!(manifest(&with_tables(
        "  org: {store: main, primary_key: [id], refs: {up_id: {parent: org}}}\n")),
        @"m:9: relationships.org.refs.up_id.parent: the root has a parent, expected no parent: every chain ends at it"
    );
}

#[test]
fn a_cell_has_one_place_for_every_store_that_moves() {
    assert_snapshot!(cell("{databases: [{primary_dsn: host=a, stores: [main]}]}"), @r#"
    f:2: cells.c.databases: store "side" has no place, expected it in one database's stores
    f:2: cells.c.blobs: store "files" has no place, expected a file_path or url for it under blobs
    "#);
    assert_snapshot!(cell(
        "{databases: [{primary_dsn: host=a, stores: [main, side, cold]}, \
         {primary_dsn: host=b, stores: [cold, side]}], blobs: {files: {file_path: /a}}}"), @r#"
    f:2: cells.c.databases[1].stores[0]: "cold" has a place already, expected each store once in a cell (first at cells.c.databases[0].stores[2])
    f:2: cells.c.databases[1].stores[1]: "side" has a place already, expected each store once in a cell (first at cells.c.databases[0].stores[1])
    "#);
    assert_snapshot!(cell(CELL), @"none");
}

#[test]
fn a_store_is_placed_where_its_kind_lives() {
    assert_snapshot!(cell(
        "{databases: [{primary_dsn: host=a, stores: [main, side, files]}], \
         blobs: {files: {file_path: /a}, cold: {file_path: /b}, filez: {file_path: /c}}}"), @r#"
    f:2: cells.c.databases[0].stores[2]: "files" is a blob store, expected a postgres store; a blob store goes under blobs
    f:2: cells.c.blobs.cold: "cold" is a postgres store, expected a blob store; a postgres store goes into a database's stores
    f:2: cells.c.blobs.filez: "filez" is not a store, expected a store listed under stores in the manifest (did you mean "files"?)
    "#);
}

/// Guards promise 8: what eviction deletes from the source is never the sink's only copy.
#[test]
fn two_cells_do_not_share_a_place_that_eviction_deletes_from() {
    assert_snapshot!(fleet(&format!(
        "cells:\n  c: {CELL}\n  d: {}\nledger: {{dsn: host=l}}\n",
        CELL.replace("file_path: /a", "url: file:///a/"))),
        @"f:3: cells.d.blobs.files: the same place as cells.c.blobs.files, expected a place of its own, since eviction deletes from it"
    );
}

#[test]
fn a_bucket_is_a_folder_or_a_url_without_secrets() {
    let blob = |blob: &str| cell(&CELL.replace("file_path: /a", blob));
    assert_snapshot!(blob("file_path: /a, url: s3://b"),
        @"f:2: cells.c.blobs.files: both file_path and url, expected either file_path, a folder, or url, a bucket"
    );
    assert_snapshot!(blob("url: ftp://b"),
        @"f:2: cells.c.blobs.files.url: no url of a bucket, expected s3://, gs://, az:// or file:// and a bucket or folder"
    );
    let told = blob("url: 's3://key:hunter2@b'");
    assert_snapshot!(told,
        @"f:2: cells.c.blobs.files.url: a url with a user or password, expected no secrets in a url: they come from the object store's own variables"
    );
    assert_snapshot!(blob("url: 's3://${HERE}/prefix'"), @"none");
}

#[test]
fn from_and_to_are_two_cells_of_the_fleet() {
    let ends = |ends: &str| {
        fleet(&format!(
            "{ends}\ncells:\n  cell: {CELL}\nledger: {{dsn: host=l}}"
        ))
    };
    assert_snapshot!(ends("from: cel\nto: other"), @r#"
    f:1: from: "cel" is not a cell, expected a cell listed under cells (did you mean "cell"?)
    f:2: to: "other" is not a cell, expected a cell listed under cells
    "#);
    assert_snapshot!(ends("from: cell\nto: cell"),
        @"f:2: to: the cell that from names, expected another cell"
    );
    assert_snapshot!(ends("from: cell"), @"none");
}

/// Guards promise 10: a fault in a connection string names its key and the variable, never the
/// string.
#[test]
fn a_variable_that_is_not_set_is_named_without_its_dsn() {
    let dsn = |dsn: &str| cell(&CELL.replace("host=a", dsn));
    assert_snapshot!(dsn("'password=hunter2 host=${HERE}'"), @"none");
    assert_snapshot!(dsn("'password=hunter2 host=${THERE}'"),
        @r#"f:2: cells.c.databases[0].primary_dsn: the variable "THERE" is not set, expected it in the environment"#
    );
    assert_snapshot!(dsn("'password=hunter2 host=${THERE'"),
        @"f:2: cells.c.databases[0].primary_dsn: ${ without its }, expected ${NAME}, or $${ for the characters ${ themselves"
    );
    assert_snapshot!(dsn("' '"),
        @"f:2: cells.c.databases[0].primary_dsn: nothing but blanks, expected text"
    );
    assert_snapshot!(cell("{'password=hunter2': 1, databases: []}"), @r#"
    f:2: cells.c.(not shown: it may be a DSN): unknown key, expected one of databases, blobs, sequences, outbox
    f:2: cells.c.databases: store "main" has no place, expected it in one database's stores
    f:2: cells.c.databases: store "side" has no place, expected it in one database's stores
    f:2: cells.c.blobs: store "files" has no place, expected a file_path or url for it under blobs
    "#);
}

#[test]
fn a_control_plane_is_a_database_or_four_commands() {
    const FOUR: &str = "fence: [a], unfence: [b], flip: [c, --org, '1'], where: [d]";
    assert_snapshot!(control("{dsn: host=c}"), @"none");
    assert_snapshot!(control(&format!("{{{FOUR}, timeout: 5}}")), @"none");
    assert_snapshot!(control("{dsn: host=c, fence: [a]}"),
        @"f:4: control.fence: a command beside dsn, expected either dsn or the four commands"
    );
    assert_snapshot!(control("{fence: [], unfence: b, flip: [c, 1]}"), @r#"
    f:4: control.fence: an empty list, expected a list of a program and its arguments
    f:4: control.unfence: found text, expected a list of a program and its arguments
    f:4: control.flip[1]: found a number, expected text (put it in quotes)
    f:4: control.where: missing, expected a list of a program and its arguments
    "#);
    assert_snapshot!(control(&format!("{{{FOUR}, timeout: 2d}}")),
        @r#"f:4: control.timeout: found "2d", expected a time from 1ms to 1h: whole seconds, or a whole number and ms, s, m or h"#
    );
}

/// A fleet's file needs none; where it names one, it names a program, and control's a database too.
#[test]
fn an_outbox_may_be_delivered_by_a_program() {
    let of_cell = |outbox: &str| {
        let open = CELL.strip_suffix('}').unwrap();
        cell(&format!("{open}, outbox: {outbox}}}"))
    };
    assert_snapshot!(of_cell("{deliver: [/bin/take, --all], timeout: 1m}"), @"none");
    assert_snapshot!(of_cell("{deliver: [], timeuot: 5}"), @r#"
    f:2: cells.c.outbox.timeuot: unknown key, expected one of deliver, timeout (did you mean "timeout"?)
    f:2: cells.c.outbox.deliver: an empty list, expected a list of a program and its arguments
    "#);
    assert_snapshot!(of_cell("{deliver: [a], timeout: 6m}"),
        @"f:2: cells.c.outbox.timeout: too long for one message, expected a time up to 5m"
    );
    assert_snapshot!(of_cell("{timeout: 5}"),
        @"f:2: cells.c.outbox.deliver: missing, expected a list of a program and its arguments"
    );
    assert_snapshot!(control("{dsn: host=c, outbox: {deliver: [a]}}"), @"none");
    const FOUR: &str = "fence: [a], unfence: [b], flip: [c], where: [d]";
    assert_snapshot!(control(&format!("{{{FOUR}, outbox: {{deliver: [a]}}}}")),
        @"f:4: control.outbox: an outbox without a database, expected dsn, the database that the outbox is in"
    );
}

/// Guards promise 1: no id can be given by two cells that say what each of them gives.
#[test]
fn the_ids_of_two_cells_never_meet() {
    let ranges = |one: &str, other: &str| {
        let cell = |blobs: &str, range: &str| {
            let databases = "databases: [{primary_dsn: host=a, stores: [main, side]}]";
            let blobs = format!("blobs: {{files: {{file_path: {blobs}}}}}");
            format!("{{{databases}, {blobs}, sequences: {range}}}")
        };
        let (one, other) = (cell("/a", one), cell("/b", other));
        fleet(&format!(
            "cells:\n  c: {one}\n  d: {other}\nledger: {{dsn: host=l}}\n"
        ))
    };
    assert_eq!(
        ranges("{least: -9, greatest: 0}", "{least: 1, greatest: 9}"),
        "none"
    );
    assert_snapshot!(
        ranges("{least: 1, greatest: 9}", "{least: 9, greatest: 20}"),
        @"f:3: cells.d.sequences: ids that cell c gives too, expected a range that meets no other cell's"
    );
    assert_snapshot!(ranges("{least: 9, greatest: 1}", "{least: x}"), @r#"
    f:2: cells.c.sequences: a range without an id, expected least at or below greatest
    f:3: cells.d.sequences.least: found "x", expected a whole number of 64 bits
    f:3: cells.d.sequences.greatest: missing, expected a whole number of 64 bits
    "#);
}
