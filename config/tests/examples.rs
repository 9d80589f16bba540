//! The files that are shipped as examples, and the real one where it is at hand, load as they are.

use std::path::{Path, PathBuf};
use std::time::Duration;

use monarch_config::{
    BlobPlace, Config, Control, Eviction, Graph, Missing, Scope, StoreKind, load, manifest_from_str,
};

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("examples")
        .join(name)
}

fn env(name: &str) -> Option<String> {
    name.ends_with("_PASSWORD")
        .then(|| format!("hunter2-{name}"))
}

fn examples() -> Config {
    load(&example("manifest.yaml"), &example("fleet.yaml"), &env)
        .unwrap_or_else(|faults| panic!("{faults}"))
}

fn names<'a>(tables: impl IntoIterator<Item = &'a monarch_config::Table>) -> Vec<String> {
    tables
        .into_iter()
        .map(|table| table.name.to_string())
        .collect()
}

#[test]
fn the_example_manifest_says_what_its_comments_say() {
    let graph = examples().graph;
    let walk = |store: &str| names(graph.walk(&store.parse().unwrap()));
    let default = ["organization", "project", "app.setting", "issue", "comment"];
    assert_eq!(walk("default"), default);
    assert_eq!(walk("events"), ["event", "event_attachment"]);
    assert_eq!(walk("audit"), [""; 0]);
    assert_eq!(names(graph.spine()), ["organization", "project"]);
    assert_eq!(graph.unmoved(), [&"feature_flag".parse().unwrap()]);

    let table = |name: &str| graph.table(&name.parse().unwrap()).unwrap();
    let project = || "project".parse().unwrap();
    let by_project = Scope::ByStatic {
        column: "project_id".to_owned(),
        parent: project(),
    };
    assert_eq!(table("issue").scope, by_project);
    assert_eq!(table("public.issue").edges.len(), 2);
    assert_eq!(table("app.setting").name.schema(), "app");
    assert_eq!(table("event_attachment").blobs[0].column, "object_key");
    assert_eq!(table("organization").outbox, Some(2));
    assert_eq!(table("issue").outbox, None);
    assert!(!graph.moves(table("login")));
    let children = graph.children(&project());
    let children: Vec<_> = children
        .iter()
        .map(|(table, edge)| (table.name.as_str(), edge.column.as_str()))
        .collect();
    assert_eq!(children, [("issue", "project_id"), ("event", "project_id")]);
    let kinds = graph.stores().map(|store| store.kind).skip(3);
    let blob = |eviction| StoreKind::Blob {
        eviction,
        missing: Missing::Block,
    };
    assert!(kinds.eq([blob(Eviction::Delete), blob(Eviction::Keep)]));
}

#[test]
fn the_example_fleet_is_filled_from_the_environment() {
    let fleet = examples().fleet;
    let us1 = fleet.cell(fleet.from.as_ref().unwrap()).unwrap();
    let database = us1.database_of(&"events".parse().unwrap()).unwrap();
    assert_eq!(database.name, "databases[1]");
    assert_eq!(
        database.primary.expose(),
        "postgresql://monarch:hunter2-US1_PASSWORD@us1-events.internal/events?sslmode=verify-full"
    );
    assert!(us1.databases[0].standby.is_some() && database.standby.is_none());
    let us2 = fleet.cell(fleet.to.as_ref().unwrap()).unwrap();
    let attachments = us2.blobs.get(&"attachments".parse().unwrap());
    let folder = BlobPlace::FilePath("/srv/us2/attachments".into());
    assert_eq!(attachments, Some(&folder));
    assert_eq!(us2.sequences.unwrap().least, 1_000_000_000_000);
    let deliver = us1.outbox.as_ref().unwrap();
    assert_eq!(deliver.command, ["/usr/local/bin/deliver", "us1"]);
    assert_eq!(deliver.timeout, Duration::from_secs(30));
    assert_eq!((&us2.outbox, &fleet.control_outbox), (&None, &None));
    let Some(Control::Commands {
        where_, timeout, ..
    }) = &fleet.control
    else {
        panic!("{:?}", fleet.control);
    };
    assert_eq!(where_, &["/usr/local/bin/routing", "where"]);
    assert_eq!(*timeout, Duration::from_secs(10));
    // Guards promise 10.
    assert!(!format!("{fleet:?}").contains("hunter2"));
}

/// The files that the fleet of `docker-compose.yml` is mounted with, which asks for no variable.
#[test]
fn the_files_of_the_compose_fleet_load() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/compose");
    let (manifest, fleet) = (folder.join("manifest.yaml"), folder.join("fleet.yaml"));
    let Config { graph, fleet } =
        load(&manifest, &fleet, &|_| None).unwrap_or_else(|faults| panic!("{faults}"));
    assert_eq!(names(graph.spine()), ["organization", "project"]);
    assert!(graph.unmoved().is_empty());
    check_walks(&graph);
    let source = fleet.cell(fleet.from.as_ref().unwrap()).unwrap();
    assert!(source.databases[0].standby.is_some());
}

/// Every table moves in exactly one store's walk, after its parent, or is named as not moved.
fn check_walks(graph: &Graph) {
    let mut walked = 0;
    for store in graph.stores() {
        let walk = graph.walk(&store.name);
        for (at, table) in walk.iter().enumerate() {
            walked += 1;
            let Some(parent) = graph.parent(table) else {
                assert_eq!(table.scope, Scope::Root);
                continue;
            };
            let before = walk[..at].iter().any(|table| table.name == parent.name);
            assert!(before || parent.store != table.store, "{}", table.name);
        }
    }
    let rest = graph.tables().filter(|table| !graph.moves(table)).count();
    assert_eq!(walked + rest, graph.tables().count());
}

/// A manifest of the size and the shape of a real one: 183 tables in seven stores.
#[test]
fn a_manifest_of_a_real_size_loads() {
    let mut text = "root: org\nstores:\n".to_owned();
    for store in 0..7 {
        text.push_str(&format!(
            "  s{store}:\n    type: postgres\n    migrate: {}\n",
            store < 6
        ));
    }
    text.push_str("relationships:\n");
    // The leaves come first in the file: the walk does not lean on its order.
    for table in (0..180).rev() {
        let store = if table < 120 { 0 } else { table % 7 };
        let parent = match table {
            0..40 => "org".to_owned(),
            40..80 => "project".to_owned(),
            80..120 => format!("t{}", table - 40),
            _ => "project".to_owned(),
        };
        text.push_str(&format!(
            "  t{table}:\n    store: s{store}\n    primary_key:\n    - id\n    refs:\n      \
             parent_id:\n        parent: {parent}\n"
        ));
    }
    text.push_str(
        "  org: {store: s0, primary_key: [id]}\n  loose: {store: s0, primary_key: [a, b]}\n",
    );
    text.push_str(
        "  project: {store: s0, primary_key: [id], static: true, refs: {org_id: {parent: org}}}\n",
    );
    let graph = manifest_from_str("manifest.yaml", &text).unwrap();
    assert_eq!(graph.tables().count(), 183);
    assert_eq!(graph.unmoved(), [&"loose".parse().unwrap()]);
    check_walks(&graph);
}

/// The manifest of a real deployment, which may lie beside the repository, loads unchanged.
#[test]
fn the_real_manifest_loads() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/real/manifest.yaml");
    let Ok(text) = std::fs::read_to_string(path) else {
        return;
    };
    let graph = manifest_from_str("manifest.yaml", &text).unwrap();
    assert_eq!(graph.tables().count(), 183);
    assert_eq!(graph.root().name.as_str(), "sentry_organization");
    assert_eq!(
        names(graph.spine()),
        ["sentry_organization", "sentry_project"]
    );
    check_walks(&graph);
}
