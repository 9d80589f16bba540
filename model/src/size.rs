//! Amounts of bytes as people read them, wherever they are told.

/// Bytes in the largest binary unit that leaves a digit before the point, for example `1.5 MiB`.
pub fn binary_size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let exponent = (bytes.ilog2() / 10).min(6);
    let unit = UNITS[exponent as usize - 1];
    let tenths = (u128::from(bytes) * 10) >> (10 * exponent);
    format!("{}.{} {unit}", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_as_people_say_them() {
        assert_eq!(binary_size(0), "0 B");
        assert_eq!(binary_size(1023), "1023 B");
        assert_eq!(binary_size(1024), "1.0 KiB");
        assert_eq!(binary_size(1_572_864), "1.5 MiB");
        assert_eq!(binary_size(u64::MAX), "15.9 EiB");
    }
}
