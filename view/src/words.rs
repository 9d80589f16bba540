//! Text from elsewhere, made safe to show.

/// Text from elsewhere, made safe for a terminal: no control character reaches it.
pub fn plain(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect()
}

/// A finding's text led by its code, once: many texts begin with it already.
pub fn named(code: &str, text: &str) -> String {
    let spelled = |text: &str| text.to_lowercase().replace(['_', ' '], "-");
    match text.split_at_checked(code.len()) {
        Some((begins, rest)) if spelled(begins) == spelled(code) && rest.starts_with(':') => {
            format!("{code}{rest}")
        }
        _ => format!("{code}: {text}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_is_named_once() {
        for (code, text, said) in [
            (
                "slot-lost",
                "slot-lost: it is gone",
                "slot-lost: it is gone",
            ),
            (
                "preflight-refused",
                "preflight refused: no table",
                "preflight-refused: no table",
            ),
            (
                "live-move",
                "another move is live",
                "live-move: another move is live",
            ),
            ("row", "rows differ", "row: rows differ"),
            ("x-é", "é", "x-é: é"),
        ] {
            assert_eq!(named(code, text), said);
        }
    }

    /// A name in a database cannot take over the operator's terminal.
    #[test]
    fn no_control_character_reaches_the_terminal() {
        assert_eq!(plain("a\u{1b}[2Jb\nc\u{9b}d"), "a [2Jb c d");
    }
}
