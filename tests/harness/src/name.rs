//! Names and ports that no other test has.

use std::collections::HashSet;
use std::net::TcpListener;
use std::sync::{Mutex, PoisonError};

use anyhow::{Result, bail};

/// `prefix` and a random tail, fit for a database, a namespace, a workflow id or a role.
#[must_use]
pub fn fresh_name(prefix: &str) -> String {
    format!("{prefix}_{:012x}", rand::random::<u64>() >> 16)
}

/// A port of 127.0.0.1 that nobody listens on and that this process has not handed out before.
///
/// It lies below the range from which the kernel takes ports for outgoing connections: otherwise a
/// client could be given the port of a server that is down for a restart.
pub(crate) fn free_port() -> Result<u16> {
    static HANDED_OUT: Mutex<Option<HashSet<u16>>> = Mutex::new(None);
    let mut guard = HANDED_OUT.lock().unwrap_or_else(PoisonError::into_inner);
    let handed_out = guard.get_or_insert_default();
    for _ in 0..1000 {
        let port = rand::random_range(20_000..32_000);
        if !handed_out.contains(&port) && TcpListener::bind(("127.0.0.1", port)).is_ok() {
            handed_out.insert(port);
            return Ok(port);
        }
    }
    bail!("no free port of 127.0.0.1 between 20000 and 32000 in 1000 tries")
}
