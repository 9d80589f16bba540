//! End-to-end tests on real servers.
