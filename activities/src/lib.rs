//! The activities of a move, a file each.
