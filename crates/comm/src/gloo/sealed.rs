//! What protects the bytes of a connection after its handshake: each record is encrypted and carries a proof (AES-GCM), with
//! a key for each way that both ends make of the secret, and its number. Nobody without the secret reads a record, changes
//! one, or puts one in, leaves one out or sends one twice without being noticed.

use std::ffi::{c_int, c_void};

use ring::aead::{AES_128_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};

use crate::wire::DataKeys;

/// Bytes of the proof of a record.
const TAG: usize = 16;
/// The length before a record, which its proof covers.
const HEAD: usize = 4;

/// One end of a connection.
pub(super) struct Sealed {
    send: Way,
    receive: Way,
}

/// One way of a connection: its key, and records so far.
struct Way {
    key: LessSafeKey,
    records: u64,
}

impl Way {
    fn new(key: &[u8; 16]) -> Way {
        let key = UnboundKey::new(&AES_128_GCM, key).expect("a key of AES-128 has 16 bytes");
        Way { key: LessSafeKey::new(key), records: 0 }
    }

    /// The number of the next record. It is never used again: a connection does not live for 2^64 records.
    fn next(&mut self) -> Nonce {
        let mut nonce = [0; NONCE_LEN];
        nonce[..8].copy_from_slice(&self.records.to_le_bytes());
        self.records += 1;
        Nonce::assume_unique_for_key(nonce)
    }
}

impl Sealed {
    pub(super) fn new(keys: &DataKeys) -> Sealed {
        Sealed { send: Way::new(&keys.send), receive: Way::new(&keys.receive) }
    }

    /// Seals a record where it is: its length, its bytes, room for its proof.
    fn seal(&mut self, record: &mut [u8]) -> bool {
        let Some((head, rest)) = record.split_at_mut_checked(HEAD) else { return false };
        let Some((body, proof)) = rest.split_at_mut_checked(rest.len().saturating_sub(TAG)) else {
            return false;
        };
        let number = self.send.next();
        let sealed = self.send.key.seal_in_place_separate_tag(number, Aad::from(&*head), body);
        match sealed {
            Ok(tag) if proof.len() == TAG => {
                proof.copy_from_slice(tag.as_ref());
                true
            }
            _ => false,
        }
    }

    /// Opens a record where it is; false if it is not the next that the other end has sealed.
    fn open(&mut self, record: &mut [u8]) -> bool {
        let Some((head, rest)) = record.split_at_mut_checked(HEAD) else { return false };
        let number = self.receive.next();
        self.receive.key.open_in_place(number, Aad::from(&*head), rest).is_ok()
    }
}

/// Seals a record of `bytes` bytes; 0 where it cannot.
///
/// # Safety
/// `sealed` is that of a connection whose lock the caller holds, and `record` that many bytes of its own.
pub(super) unsafe extern "C" fn seal(sealed: *mut c_void, record: *mut u8, bytes: usize) -> c_int {
    // SAFETY: the caller's promise: nobody else uses either now.
    let (sealed, record) =
        unsafe { (&mut *sealed.cast::<Sealed>(), std::slice::from_raw_parts_mut(record, bytes)) };
    c_int::from(sealed.seal(record))
}

/// Opens a record of `bytes` bytes; 0 where its proof is wrong.
///
/// # Safety
/// As [`seal`].
pub(super) unsafe extern "C" fn open(sealed: *mut c_void, record: *mut u8, bytes: usize) -> c_int {
    // SAFETY: the caller's promise: nobody else uses either now.
    let (sealed, record) =
        unsafe { (&mut *sealed.cast::<Sealed>(), std::slice::from_raw_parts_mut(record, bytes)) };
    c_int::from(sealed.open(record))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends() -> (Sealed, Sealed) {
        let (one, other) = ([1; 16], [2; 16]);
        (
            Sealed::new(&DataKeys { send: one, receive: other }),
            Sealed::new(&DataKeys { send: other, receive: one }),
        )
    }

    fn record(body: &[u8]) -> Vec<u8> {
        [&(body.len() as u32).to_le_bytes()[..], body, &[0; TAG]].concat()
    }

    #[test]
    fn records_are_those_of_the_other_end_in_their_order() {
        let (mut one, mut other) = ends();
        let mut sent: Vec<Vec<u8>> = [&b"first"[..], b"second", b""].map(record).to_vec();
        sent.iter_mut().for_each(|record| assert!(one.seal(record)));
        assert!(!sent[0].windows(5).any(|part| part == b"first"));
        let mut first = sent[0].clone();
        assert!(other.open(&mut first));
        assert_eq!(&first[HEAD..HEAD + 5], b"first");
        // Again, or one that is not the next.
        assert!(!other.open(&mut sent[0].clone()));
        let (mut one, mut other) = ends();
        let mut all: Vec<Vec<u8>> = [&b"first"[..], b"second"].map(record).to_vec();
        all.iter_mut().for_each(|record| assert!(one.seal(record)));
        assert!(!other.open(&mut all[1]));
        // Its own are none of the other's.
        let (mut one, _) = ends();
        let mut own = record(b"echo");
        assert!(one.seal(&mut own) && !one.open(&mut own));
        for bytes in [0, 3, HEAD, HEAD + TAG - 1] {
            assert!(!ends().0.seal(&mut vec![0; bytes]) && !ends().0.open(&mut vec![0; bytes]), "{bytes}");
        }
    }

    #[test]
    fn every_bit_of_a_record_is_covered() {
        let (mut one, _) = ends();
        let mut sealed = record(b"gradients");
        assert!(one.seal(&mut sealed));
        for bit in 0..sealed.len() * 8 {
            let mut changed = sealed.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(!ends().1.open(&mut changed), "bit {bit}");
        }
    }
}
