//! Real servers of objects: two of S3, whose flaws are not the same, and Azurite; for Google Cloud
//! Storage, of which no server can be had that takes its XML API, a shim of our own, named as such.
//!
//! [`S3s`] and [`GcsShim`] live in the test's own runtime, since they are libraries: they end with
//! the test. [`Interference`] stands in front of any of them and does what networks and busy
//! services do.

mod azurite;
mod gcs_shim;
mod http;
mod interference;
mod moto;
mod s3s;

pub use azurite::Azurite;
pub use gcs_shim::GcsShim;
pub use interference::Interference;
pub use moto::Moto;
pub use s3s::S3s;

/// The access key that the S3 servers are told of, and what a test may look for where no secret
/// may be seen.
pub const ACCESS_KEY: &str = "harness-access";

/// The secret key that goes with it.
pub const SECRET_KEY: &str = "harness-object-secret";
