//! A move as an operator sees it, for every place that shows one: the command line and the page say
//! the same of it in the same words.
//!
//! - [`MoveView`], [`UnitView`]: one reading of a move, with what follows from it;
//! - [`advice`]: what an operator can do about a move, and about an error;
//! - [`units_of_measure`]: numbers as people read them;
//! - [`words`]: text from elsewhere, made safe to show.

pub mod advice;
mod move_view;
pub mod units_of_measure;
pub mod words;

pub use move_view::{Attempt, End, MoveRow, MoveView, UnitView};
