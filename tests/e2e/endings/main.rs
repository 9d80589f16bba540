//! Moves that do not succeed: refused, given up, failed, forsaken. The source must not notice, and
//! nothing may stay behind.

mod behind_the_barrier;
mod budget;
mod failed;
mod given_up;
mod refused;
mod secrets;
mod swept_flip;
mod told;
