//! Numbers as people read them: `1.2 GiB`, `3m 20s`, `12,034`.

use std::time::Duration;

use jiff::Timestamp;

pub use monarch_model::binary_size as bytes;

/// A count with its thousands set apart.
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Time from one moment to a later one; none when clocks disagree.
pub fn elapsed(from: Timestamp, to: Timestamp) -> Duration {
    to.duration_since(from).try_into().unwrap_or_default()
}

/// A duration in its two largest units; milliseconds below ten seconds.
pub fn duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0..10 => format!("{}.{:03}s", seconds, duration.subsec_millis()),
        10..60 => format!("{seconds}s"),
        60..3_600 => format!("{}m {}s", seconds / 60, seconds % 60),
        3_600..86_400 => format!("{}h {}m", seconds / 3_600, seconds % 3_600 / 60),
        _ => format!("{}d {}h", seconds / 86_400, seconds % 86_400 / 3_600),
    }
}

/// A duration that is known to the second, in its two largest units.
pub fn seconds(seconds: u64) -> String {
    match seconds {
        0..10 => format!("{seconds}s"),
        _ => duration(Duration::from_secs(seconds)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_as_people_say_them() {
        assert_eq!(count(7), "7");
        assert_eq!(count(123_456), "123,456");
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!(duration(Duration::from_millis(1_250)), "1.250s");
        assert_eq!(duration(Duration::from_secs(200)), "3m 20s");
        assert_eq!(seconds(0), "0s");
        assert_eq!(seconds(200), "3m 20s");
        assert_eq!(duration(Duration::from_secs(90_000)), "1d 1h");
    }
}
