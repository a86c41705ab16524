//! The two checksums of 32 bits that files of records carry: CRC-32 of IEEE 802.3 and CRC-32C of Castagnoli.

/// CRC-32, as in zip.
pub fn crc32(parts: &[&[u8]]) -> u32 {
    const TABLE: [u32; 256] = table(0xedb8_8320);
    crc(&TABLE, parts)
}

/// CRC-32C, as in iSCSI.
pub fn crc32c(parts: &[&[u8]]) -> u32 {
    const TABLE: [u32; 256] = table(0x82f6_3b78);
    crc(&TABLE, parts)
}

/// CRC-32C as records hold it: changed, so that a checksum over bytes that hold a checksum is worth as much.
pub fn masked_crc32c(bytes: &[u8]) -> u32 {
    crc32c(&[bytes]).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// The remainder of each byte, for a polynomial with its lowest power first.
const fn table(polynomial: u32) -> [u32; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut rest = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            rest = (rest >> 1) ^ (if rest & 1 == 1 { polynomial } else { 0 });
            bit += 1;
        }
        table[byte] = rest;
        byte += 1;
    }
    table
}

fn crc(table: &[u32; 256], parts: &[&[u8]]) -> u32 {
    let bytes = parts.iter().copied().flatten();
    !bytes.fold(u32::MAX, |rest, byte| (rest >> 8) ^ table[usize::from(rest as u8 ^ byte)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_those_of_the_catalogue() {
        // The check values of the catalog of parametrized CRC algorithms, and RFC 3720, B.4.
        assert_eq!(crc32(&[b"1234", b"56789"]), 0xcbf4_3926);
        assert_eq!(crc32c(&[b"12345", b"6789"]), 0xe306_9283);
        assert_eq!(crc32c(&[&[0; 32]]), 0x8a91_36aa);
        assert_eq!((crc32(&[]), crc32c(&[b""])), (0, 0));
    }
}
