//! Processes that die, or are taken for dead. The move goes on by itself and ends right.

mod cut_over;
mod failover;
mod servers;
mod worker;
mod zombie;
