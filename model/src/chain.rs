//! An error in one line. Our errors say what was being done and leave the reason to their source,
//! so whoever logs, records or prints one needs both.

use std::error::Error;

/// An error and its sources, each told once: a source whose text its error quotes already is left
/// out. None of our errors holds row values or secrets, so neither does the line.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let told = cause.to_string();
        if !text.contains(&told) {
            text.push_str(": ");
            text.push_str(&told);
        }
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{0}")]
    struct Told(&'static str, #[source] Option<Box<Told>>);

    #[test]
    fn each_cause_is_told_once() {
        let reset = Told("reset", None);
        let send = Told("send the query: reset", Some(Box::new(reset)));
        let read = Told("read the catalog", Some(Box::new(send)));
        assert_eq!(chain(&read), "read the catalog: send the query: reset");
    }
}
