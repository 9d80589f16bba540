//! `fleet.yaml`: any text is a fleet or a list of faults, and no fault repeats a secret.

#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use monarch_config::Graph;
use monarch_fuzz::{assert_in_proportion, most_held};

const SECRET: &str = "hunter2 of the environment";

/// The example that is shipped; the fleet beside it fits it.
fn graph() -> &'static Graph {
    static GRAPH: OnceLock<Graph> = OnceLock::new();
    GRAPH.get_or_init(|| {
        let text = include_str!("../../config/examples/manifest.yaml");
        monarch_config::manifest_from_str("manifest.yaml", text).expect("the example is right")
    })
}

fuzz_target!(|text: &str| {
    let graph = graph();
    let env = |_: &str| Some(SECRET.to_owned());
    let held =
        most_held(
            || match monarch_config::fleet_from_str("fleet.yaml", text, graph, &env) {
                Ok(fleet) => assert!(!fleet.cells.is_empty()),
                Err(faults) => {
                    let said = faults.to_string();
                    assert!(said.starts_with("fleet.yaml"));
                    assert!(!said.contains(SECRET), "a fault repeats a secret");
                }
            },
        );
    assert_in_proportion(held, text);
});
