//! Codes of a few bits in the bytes of a block.
//!
//! All types of GGUF lay their codes in the same way. A run of `stride` bytes holds `8 / bits` times `stride` codes: first
//! the lowest bits of its bytes in order, then the next bits, and so on. Types differ in `bits` and `stride` alone. A code
//! of 5 bits is two such planes, one of its low four bits and one of its high bit.

/// A part of the bits of all codes of a block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plane {
    /// The first byte of the plane in the block.
    pub first_byte: usize,
    /// The bits of a code that lie here.
    pub bits: u32,
    /// The bytes of a run.
    pub stride: usize,
}

/// A row of the table of types.
pub(crate) const fn plane(first_byte: usize, bits: u32, stride: usize) -> Plane {
    Plane { first_byte, bits, stride }
}

impl Plane {
    /// The codes that begin in one byte of a run.
    fn codes_per_byte(self) -> usize {
        8 / self.bits as usize
    }

    fn mask(self) -> u8 {
        // Of 1 to 8 bits.
        (0xff_u16 >> (8 - self.bits)) as u8
    }

    /// The bytes that so many codes take.
    fn n_bytes(self, n_codes: usize) -> usize {
        n_codes.div_ceil(self.codes_per_byte())
    }

    /// Adds the bits of this plane to the codes, above `shift` bits that they have already.
    fn unpack(self, block: &[u8], shift: u32, codes: &mut [u8]) {
        let bytes = &block[self.first_byte..][..self.n_bytes(codes.len())];
        let runs = codes.chunks_mut(self.stride * self.codes_per_byte());
        for (bytes, codes) in bytes.chunks(self.stride).zip(runs) {
            for (field, codes) in (0..).zip(codes.chunks_mut(self.stride)) {
                for (code, byte) in codes.iter_mut().zip(bytes) {
                    *code |= ((byte >> (field * self.bits)) & self.mask()) << shift;
                }
            }
        }
    }

    /// Writes the bits of the codes above `shift` into their bytes.
    fn pack(self, codes: &[u8], shift: u32, block: &mut [u8]) {
        let bytes = &mut block[self.first_byte..][..self.n_bytes(codes.len())];
        bytes.fill(0);
        let runs = codes.chunks(self.stride * self.codes_per_byte());
        for (bytes, codes) in bytes.chunks_mut(self.stride).zip(runs) {
            for (field, codes) in (0..).zip(codes.chunks(self.stride)) {
                for (code, byte) in codes.iter().zip(&mut *bytes) {
                    *byte |= ((code >> shift) & self.mask()) << (field * self.bits);
                }
            }
        }
    }
}

/// Reads codes from their planes, the plane of the lowest bits first.
pub(crate) fn unpack(planes: &[Plane], block: &[u8], codes: &mut [u8]) {
    codes.fill(0);
    let mut shift = 0;
    for plane in planes {
        plane.unpack(block, shift, codes);
        shift += plane.bits;
    }
}

/// Writes codes into their planes, the plane of the lowest bits first.
pub(crate) fn pack(planes: &[Plane], codes: &[u8], block: &mut [u8]) {
    let mut shift = 0;
    for plane in planes {
        plane.pack(codes, shift, block);
        shift += plane.bits;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn low_nibbles_come_before_high_ones() {
        let mut codes = [0; 8];
        unpack(&[plane(1, 4, 4)], &[9, 0x51, 0x62, 0x73, 0x84], &mut codes);
        assert_eq!(codes, [1, 2, 3, 4, 5, 6, 7, 8]);
    }

    #[test]
    fn bits_of_two_planes_make_a_code() {
        let planes = [plane(0, 2, 4), plane(4, 1, 1)];
        let codes: Vec<u8> = (0..16).map(|code| code * 5 % 8).collect();
        let mut block = [0xff; 6];
        pack(&planes, &codes, &mut block);
        // Element 3 has the code 7: bits 0 and 1 of the fourth byte, and bit 3 of the first byte of the high bits.
        assert_eq!((block[3] & 3, block[4] >> 3 & 1), (3, 1));
        let mut again = vec![0; 16];
        unpack(&planes, &block, &mut again);
        assert_eq!(again, codes);
    }
}
