//! The dashboard in a real browser, over real moves.

mod hostile;
mod steered;
mod visitor;
mod watched;
mod webdriver;
