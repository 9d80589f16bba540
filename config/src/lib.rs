//! Turns manifest.yaml and fleet.yaml into a checked graph and fleet.
