//! A curve of the last minutes, drawn here: no script and no style of its own.

use jiff::Timestamp;
use maud::{Markup, html};
use monarch_view::units_of_measure::{bytes, elapsed, seconds};

const WIDTH: u64 = 240;
const HEIGHT: u64 = 32;
/// More points than this would be closer than a line is wide.
const POINTS: usize = 80;

/// Lags over time, with what it shows in words.
pub(super) fn of_lags(lags: &[(Timestamp, u64)]) -> Markup {
    let (Some(first), Some(last)) = (lags.first(), lags.last()) else {
        return html! {};
    };
    let highest = lags.iter().map(|(_, lag)| *lag).max().unwrap_or(0);
    let span = elapsed(first.0, last.0);
    let words = format!(
        "lag over the last {}: now {}, at most {}",
        seconds(span.as_secs()),
        bytes(last.1),
        bytes(highest)
    );
    html! {
        svg.spark role="img" aria-label=(words) viewBox={ "0 0 " (WIDTH) " " (HEIGHT) }
            preserveAspectRatio="none" {
            polyline points=(points(lags, highest)) {}
        }
        p.quiet { (words) }
    }
}

fn points(lags: &[(Timestamp, u64)], highest: u64) -> String {
    let (Some(first), Some(last)) = (lags.first(), lags.last()) else {
        return String::new();
    };
    let span = elapsed(first.0, last.0).as_millis().max(1);
    let every = lags.len().div_ceil(POINTS).max(1);
    // Of each stretch its highest: a short peak is what one looks for.
    let stretches = lags
        .chunks(every)
        .filter_map(|stretch| stretch.iter().max_by_key(|(_, lag)| *lag));
    let drawn: Vec<String> = stretches
        .map(|(at, lag)| {
            let x = u128::from(WIDTH) * elapsed(first.0, *at).as_millis() / span;
            let room = u128::from(HEIGHT - 2);
            let y = u128::from(HEIGHT - 1) - room * u128::from(*lag) / u128::from(highest.max(1));
            format!("{x},{y}")
        })
        .collect();
    drawn.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The curve stays in its box, keeps its peaks, and does not grow with what is remembered.
    #[test]
    fn a_curve_is_bounded_and_keeps_its_peak() {
        let at = |second: i64| Timestamp::from_second(second).unwrap();
        let lags: Vec<_> = (0..600)
            .map(|n| (at(n), if n == 301 { u64::MAX / 64 } else { 10 }))
            .collect();
        let drawn = points(&lags, u64::MAX / 64);
        let drawn: Vec<&str> = drawn.split(' ').collect();
        assert!(drawn.len() <= POINTS + 1, "{}", drawn.len());
        assert!(
            drawn.iter().any(|point| point.ends_with(",1")),
            "the peak is gone"
        );
        for point in &drawn {
            let (x, y) = point.split_once(',').unwrap();
            assert!(x.parse::<u64>().unwrap() <= WIDTH && y.parse::<u64>().unwrap() < HEIGHT);
        }
        assert_eq!(points(&[(at(1), 0)], 0), "0,31");
    }
}
