//! Names that are made from other names. None of them can be too long.

/// The longest value of a label.
const LABEL_LIMIT: usize = 63;

/// The value of the instance label for an object: its name, or the start of it and a hash.
pub fn instance_label(name: &str) -> String {
    if name.len() <= LABEL_LIMIT {
        return name.to_owned();
    }
    let kept: String = name.chars().take(LABEL_LIMIT - 9).collect();
    format!("{kept}-{:08x}", fnv1a(name.as_bytes()))
}

/// FNV-1a with 32 bits, which the names of children have always been made with.
pub fn fnv1a(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_keeps_a_short_name_and_hashes_a_long_one() {
        assert_eq!(instance_label("coder"), "coder");
        assert_eq!(instance_label(&"a".repeat(63)), "a".repeat(63));
        assert_eq!(instance_label(&"a".repeat(180)), format!("{}-b11ccea9", "a".repeat(54)));
        assert_eq!(instance_label(&"a".repeat(70)), format!("{}-5904740b", "a".repeat(54)));
    }
}
