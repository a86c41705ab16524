//! Digests of what must agree between ranks. Not cryptographic.

/// Adds a word to a digest.
pub(crate) fn mix(digest: u64, word: u64) -> u64 {
    let x = (digest ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x ^ (x >> 29)
}

/// A digest of bytes.
pub(crate) fn digest(bytes: &[u8]) -> u64 {
    bytes.iter().fold(bytes.len() as u64 + 1, |d, &b| mix(d, b as u64))
}
