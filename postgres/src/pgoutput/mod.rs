//! Decoder.
