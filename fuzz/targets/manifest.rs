//! `manifest.yaml`: any text is a graph or a list of faults.

#![no_main]

use libfuzzer_sys::fuzz_target;
use monarch_fuzz::{assert_in_proportion, most_held};

fuzz_target!(|text: &str| {
    let held = most_held(
        || match monarch_config::manifest_from_str("manifest.yaml", text) {
            Ok(graph) => assert!(graph.table(&graph.root().name).is_some()),
            Err(faults) => assert!(faults.to_string().starts_with("manifest.yaml")),
        },
    );
    assert_in_proportion(held, text);
});
