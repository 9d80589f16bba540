//! What the rules promise of every graph that passes them, and of every text, on many made at
//! random. Seeds are fixed: a failure is seen again.

use std::collections::HashSet;
use std::fmt::Write;

use monarch_config::{Graph, Scope, Table, fleet_from_str, manifest_from_str};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// A manifest of up to 40 tables in three stores, whose edges may lead anywhere.
fn random_manifest(rng: &mut StdRng) -> String {
    let tables = rng.random_range(1..40);
    let wild = rng.random_bool(0.5);
    let mut text = "root: t0\nstores:\n  s0: {type: postgres}\n  s1: {type: postgres}\n  \
                    s2: {type: postgres, migrate: false}\nrelationships:\n"
        .to_owned();
    // A store for each table, so that a tame graph can keep its dynamic edges inside one.
    let stores: Vec<usize> = (0..tables)
        .map(|table| if table < 3 { 0 } else { rng.random_range(0..3) })
        .collect();
    let mut order: Vec<usize> = (0..tables).collect();
    for at in (1..tables).rev() {
        order.swap(at, rng.random_range(0..=at));
    }
    for table in order {
        let fixed = table == 1 || (wild && rng.random_bool(0.1));
        let edges = if table == 0 {
            0
        } else {
            rng.random_range(0..4)
        };
        let _ = write!(
            text,
            "  t{table}: {{store: s{}, primary_key: [id], static: {fixed}, refs: {{",
            stores[table]
        );
        for edge in 0..edges.max(usize::from(fixed && table > 0)) {
            let parent = if wild {
                rng.random_range(0..tables)
            } else {
                let parent = rng.random_range(0..table);
                let tame = table > 1 && stores[parent] == stores[table];
                if tame { parent } else { 0 }
            };
            let _ = write!(text, "c{edge}: {{parent: t{parent}}}, ");
        }
        text.push_str("}}\n");
    }
    text
}

/// Guards promise 7: a walk from the root finds every row that moves, and a walk back deletes
/// children first.
fn check(graph: &Graph) {
    let mut walked = HashSet::new();
    for store in graph.stores() {
        let walk = graph.walk(&store.name);
        assert!(store.migrate || walk.is_empty());
        for (at, table) in walk.iter().enumerate() {
            assert!(walked.insert(&table.name), "{} is walked twice", table.name);
            check_parent(graph, table, &walk[..at]);
        }
    }
    for table in graph.tables() {
        assert_eq!(walked.contains(&table.name), graph.moves(table));
        assert_eq!(
            graph.unmoved().contains(&&table.name),
            table.scope == Scope::Unscoped
        );
    }
    let spine = graph.spine();
    assert_eq!(spine[0], graph.root());
    for (at, table) in spine.iter().enumerate().skip(1) {
        let parent = graph.parent(table);
        assert!(parent.is_some_and(|parent| spine[..at].contains(&parent)));
    }
}

fn check_parent(graph: &Graph, table: &Table, before: &[&Table]) {
    let Some(parent) = graph.parent(table) else {
        assert_eq!(table, graph.root());
        return;
    };
    assert_eq!(parent.primary_key.len(), 1);
    assert!(
        graph
            .children(&parent.name)
            .iter()
            .any(|(child, _)| child.name == table.name)
    );
    if parent.store == table.store {
        assert!(
            before.contains(&parent),
            "{} before {}",
            table.name,
            parent.name
        );
    } else {
        assert!(parent.is_static || parent == graph.root());
    }
    let spine_edge = table.edges.iter().find(|edge| {
        let parent = graph.table(&edge.parent);
        parent.is_some_and(|parent| parent != table && (parent.is_static || parent == graph.root()))
    });
    assert_eq!(table.scope_edge(), spine_edge.or(table.edges.first()));
}

#[test]
fn every_walk_lists_parents_before_their_children() {
    let mut passed = 0;
    for seed in 0..600 {
        let text = random_manifest(&mut StdRng::seed_from_u64(seed));
        if let Ok(graph) = manifest_from_str("m", &text) {
            check(&graph);
            passed += usize::from(graph.tables().count() > 5);
        }
    }
    assert!(
        passed > 50,
        "only {passed} graphs of any size passed the rules"
    );
}

#[test]
fn the_walk_does_not_change_from_one_reading_to_the_next() {
    let names = |graph: &Graph| -> Vec<String> {
        let stores = graph.stores().flat_map(|store| graph.walk(&store.name));
        stores.map(|table| table.name.to_string()).collect()
    };
    for seed in 0..100 {
        let text = random_manifest(&mut StdRng::seed_from_u64(seed));
        if let Ok(graph) = manifest_from_str("m", &text) {
            assert_eq!(
                names(&graph),
                names(&manifest_from_str("m", &text).unwrap())
            );
        }
    }
}

/// Guards against a file that ends the program instead of being refused.
#[test]
fn no_text_whatever_is_more_than_refused() {
    let graph = manifest_from_str("m", include_str!("../examples/manifest.yaml")).unwrap();
    let sources = [
        include_str!("../examples/manifest.yaml"),
        include_str!("../examples/fleet.yaml"),
        include_str!("broken/manifest.yaml"),
        include_str!("broken/fleet.yaml"),
    ];
    const PIECES: [&str; 24] = [
        "\n",
        "  ",
        ": ",
        "- ",
        "{",
        "}",
        "[",
        "]",
        ",",
        "\"",
        "'",
        "&a ",
        "*a",
        "!!str ",
        "? ",
        "|\n",
        ">\n",
        "---\n",
        "...\n",
        "%YAML 1.2\n",
        "#",
        "${",
        "\u{feff}",
        "\t",
    ];
    for seed in 0..3_000 {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut text: Vec<char> = sources[rng.random_range(0..sources.len())]
            .chars()
            .collect();
        text.truncate(rng.random_range(0..=text.len()));
        for _ in 0..rng.random_range(1..8) {
            let at = rng.random_range(0..=text.len());
            let until = text.len().min(at + rng.random_range(0..6));
            let piece = PIECES[rng.random_range(0..PIECES.len())];
            text.splice(at..until, piece.chars());
        }
        let text: String = text.into_iter().collect();
        // Whatever comes back is told without a panic, and never without a reason.
        if let Err(faults) = manifest_from_str("m", &text) {
            assert!(!faults.to_string().is_empty(), "seed {seed}");
        }
        let env = |_: &str| Some("x".to_owned());
        if let Err(faults) = fleet_from_str("f", &text, &graph, &env) {
            assert!(!faults.to_string().is_empty(), "seed {seed}");
        }
    }
}
