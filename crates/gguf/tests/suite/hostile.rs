//! Files that break the format, one rule at a time and by chance: they are refused, or read without a panic.

use std::ops::Deref;

use oarlock_gguf::{Error, Gguf, Metadata, Result, TensorPlan, TensorType, Writer};
use proptest::prelude::*;

use crate::common::small_file;

/// Reads all there is to read.
fn read_all<B: Deref<Target = [u8]>>(gguf: &Gguf<B>) -> usize {
    let mut n = 0;
    for (key, value) in gguf.metadata() {
        n += key.len() + usize::from(gguf.value(key).is_some());
        n += usize::from(gguf.get::<u64>(key).is_ok()) + usize::from(gguf.get::<Vec<&str>>(key).is_ok());
        if let oarlock_gguf::Value::Array(array) = value {
            n += array.iter().count();
        }
    }
    for tensor in gguf.tensors() {
        n += usize::from(gguf.tensor(tensor.name()).is_ok());
        n += tensor.to_f32().map_or(0, |elems| elems.len());
        n += tensor.rows(0, 1).map_or(0, <[u8]>::len);
    }
    n
}

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

/// A file of a head of these parts, padded, with this many bytes of data.
fn file(n_tensors: u64, n_keys: u64, parts: &[&[u8]], n_data: usize) -> Vec<u8> {
    let mut file =
        [b"GGUF".as_slice(), &3_u32.to_le_bytes(), &n_tensors.to_le_bytes(), &n_keys.to_le_bytes()].concat();
    parts.iter().for_each(|part| file.extend_from_slice(part));
    if n_tensors > 0 {
        file.resize(file.len().next_multiple_of(32) + n_data, 0);
    }
    file
}

fn key(name: &str, value_type: u32, value: &[u8]) -> Vec<u8> {
    [&text(name), value_type.to_le_bytes().as_slice(), value].concat()
}

fn tensor(name: &str, dims: &[u64], tensor_type: u32, offset: u64) -> Vec<u8> {
    let mut bytes = text(name);
    bytes.extend((dims.len() as u32).to_le_bytes());
    dims.iter().for_each(|dim| bytes.extend(dim.to_le_bytes()));
    bytes.extend(tensor_type.to_le_bytes());
    bytes.extend(offset.to_le_bytes());
    bytes
}

fn refused(bytes: Vec<u8>) -> String {
    match Gguf::new(bytes) {
        Ok(_) => panic!("it is read"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn the_beginning_of_a_file() {
    assert!(refused(vec![]).starts_with("this is no GGUF file"));
    assert!(refused(b"PK\x03\x04".to_vec()).contains("[50, 4b, 03, 04]"));
    assert!(refused(b"GGUF\x03".to_vec()).contains("4 bytes are needed at byte 4, and 1 are left"));
    let version = |version: u32| {
        let mut file = small_file();
        file[4..8].copy_from_slice(&version.to_le_bytes());
        file
    };
    assert!(refused(version(0)).contains("version 0"));
    assert!(refused(version(1)).contains("version 1"));
    assert!(refused(version(4)).contains("version 4"));
    assert!(refused(version(3 << 24)).contains("big-endian"));
    assert_eq!(Gguf::new(version(2)).unwrap().version(), 2);
}

#[test]
fn the_keys_of_a_file() {
    let one = |key: &[u8]| refused(file(0, 1, &[key], 0));
    assert!(one(&key("", 2, &[1, 2])).contains("number 0 at byte 24 is empty"));
    assert!(one(&[1, 0, 0, 0, 0, 0, 0, 0, 0xff, 0, 0, 0, 0, 1]).contains("not UTF-8"));
    assert!(one(&key("a", 13, &[0; 8])).contains("the key a at byte 33 has a value of type 13"));
    assert!(one(&key("a", 4, &[1, 2])).contains("the value of the key a: 4 bytes are needed at byte 37"));
    let array = |elem_type: u32, n: u64, elems: &[u8]| {
        key("a", 9, &[elem_type.to_le_bytes().as_slice(), &n.to_le_bytes(), elems].concat())
    };
    assert!(one(&array(9, 1, &[0; 12])).contains("array of arrays"));
    assert!(one(&array(4, 2, &[0; 4])).contains("8 bytes are needed"));
    assert!(one(&array(0, u64::MAX, &[])).contains("18446744073709551615 elements"));
    assert!(one(&array(8, 3, &text("b"))).contains("ends inside the value of the key a"));
    assert!(one(&array(8, 1, &u64::MAX.to_le_bytes())).contains("ends inside the value of the key a"));
    assert!(one(&array(14, 1, &[0])).contains("type 14"));
    assert!(one(&key("general.alignment", 4, &24_u32.to_le_bytes())).contains("general.alignment holds 24"));
    assert!(one(&key("general.alignment", 4, &[0; 4])).contains("general.alignment holds 0"));
    assert!(one(&key("general.alignment", 10, &32_u64.to_le_bytes())).contains("a value of type u64"));
    let (a, b) = (key("a", 0, &[1]), key("b", 0, &[1]));
    assert!(refused(file(0, 3, &[&a, &b, &a], 0)).contains("the key a at byte 52 stands in the file twice"));
    // Numbers of keys and tensors that no file of this length has take no memory.
    assert!(refused(file(0, u64::MAX, &[], 0)).contains("ends inside the keys"));
    assert!(refused(file(u64::MAX, 0, &[], 0)).contains("ends inside the descriptions of tensors"));
    assert!(refused(file(1 << 60, 1, &[&a], 0)).contains("ends inside the descriptions of tensors"));
}

#[test]
fn the_tensors_of_a_file() {
    let one = |tensor: &[u8], n_data| refused(file(1, 0, &[tensor], n_data));
    assert!(one(&tensor(&"a".repeat(64), &[1], 0, 0), 4).contains("a name of 64 bytes"));
    assert!(one(&tensor("a", &[1; 5], 0, 0), 4).contains("5 dimensions"));
    assert!(one(&tensor("a", &[1], 4, 0), 4).contains("the tensor a at byte 24 has type 4"));
    assert!(one(&tensor("a", &[1], 99, 0), 4).contains("type 99"));
    assert!(one(&tensor("a", &[48], 8, 0), 64).contains("rows of 48 elements"));
    assert!(one(&tensor("a", &[1 << 32, 1 << 31], 0, 0), 4).contains("too many elements to count"));
    assert!(one(&tensor("a", &[0, 1 << 63], 0, 0), 4).contains("too many elements to count"));
    assert!(one(&tensor("a", &[1 << 62], 0, 0), 4).contains("too many bytes to count"));
    assert!(one(&tensor("a", &[4], 0, 32), 64).contains("offset 32, and offset 0 was expected"));
    assert!(one(&tensor("a", &[4], 0, 0), 15).contains("16 bytes are needed at byte 64, and 15 are left"));
    let two = |second: &[u8]| refused(file(2, 0, &[&tensor("a", &[3], 0, 0), second], 64));
    assert!(two(&tensor("b", &[3], 0, 12)).contains("offset 12, and offset 32 was expected"));
    assert!(two(&tensor("b", &[3], 0, 0)).contains("offset 0, and offset 32 was expected"));
    assert!(
        two(&tensor("a", &[3], 0, 32)).contains("the tensor a at byte 57 has the name of another tensor")
    );
    assert!(two(&tensor("b", &[i64::MAX as u64], 24, 32)).contains("ends inside the data of tensors"));
    // A padding behind the last tensor may be missing, and a tensor may be empty or a single number.
    let last = file(2, 0, &[&tensor("a", &[3], 0, 0), &tensor("b", &[], 0, 32)], 36);
    assert_eq!(Gguf::new(last).unwrap().tensor("b").unwrap().to_f32().unwrap(), [0.0]);
    let empty = file(1, 0, &[&tensor("a", &[4, 0, 1 << 40], 0, 0)], 0);
    assert_eq!(Gguf::new(empty).unwrap().tensor("a").unwrap().to_f32().unwrap(), []);
}

#[test]
fn every_beginning_of_a_file_is_refused() {
    let whole = small_file();
    assert!(read_all(&Gguf::new(whole.as_slice()).unwrap()) > 1000);
    // The data of the last tensor has 24 bytes, and 8 of padding.
    for len in 0..whole.len() - 8 {
        assert!(Gguf::new(&whole[..len]).is_err(), "{len}");
    }
}

/// Bytes that are others each time they are looked at, as those of a mapped file can be.
struct Changing {
    bytes: [Vec<u8>; 2],
    looks: std::cell::Cell<usize>,
    after: usize,
}

impl Deref for Changing {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.looks.set(self.looks.get() + 1);
        &self.bytes[usize::from(self.looks.get() > self.after)]
    }
}

#[test]
fn bytes_that_change_later_cause_no_panic() {
    let whole = small_file();
    let cut = whole[..100].to_vec();
    for changed in [vec![], cut, vec![0; whole.len()], vec![0xff; whole.len()]] {
        for after in 0..40 {
            let bytes = [whole.clone(), changed.clone()];
            if let Ok(gguf) = Gguf::new(Changing { bytes, looks: 0.into(), after }) {
                read_all(&gguf);
            }
        }
    }
}

/// A file with what an element strategy says.
fn written(n_rows: u64, keys: &[(String, Vec<String>)]) -> Result<Vec<u8>> {
    let mut metadata = Metadata::new();
    metadata.set("general.quantization_version", 2_u32)?;
    keys.iter().try_for_each(|(key, list)| metadata.set(key, list.as_slice()))?;
    let plans = vec![
        TensorPlan::new("a", [32, n_rows], TensorType::Q5_1),
        TensorPlan::new("b", [n_rows], TensorType::F16),
    ];
    let mut writer = Writer::begin(Vec::new(), &metadata, plans)?;
    // A shape is at most ten rows.
    writer.write_rows(&vec![0.5; 32 * n_rows as usize], None)?;
    writer.write_rows(&vec![0.5; n_rows as usize], None)?;
    writer.finish()
}

/// As many as `PROPTEST_CASES` says, or a thousand.
fn cases() -> ProptestConfig {
    let said = std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok());
    ProptestConfig::with_cases(said.unwrap_or(1000))
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn damaged_files_are_read_or_refused(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0_u32..8), 1..6),
        cut in any::<prop::sample::Index>(),
        is_cut in any::<bool>(),
    ) {
        let mut file = small_file();
        for (place, byte, kind) in changes {
            // The head is more fragile than the data.
            let place = if kind < 7 { place.index(900.min(file.len())) } else { place.index(file.len()) };
            file[place] = match kind {
                0 => 0,
                1 => 0xff,
                2 => file[place] ^ (1 << (byte % 8)),
                3 => file[place].wrapping_add(1),
                4 => file[place].wrapping_sub(1),
                _ => byte,
            };
        }
        if is_cut {
            file.truncate(cut.index(file.len()));
        }
        if let Ok(gguf) = Gguf::new(file) {
            read_all(&gguf);
        }
    }

    #[test]
    fn bytes_by_chance_are_read_or_refused(rest in proptest::collection::vec(0_u8..12, 0..200), n in 0_u64..5) {
        let mut bytes = [b"GGUF".as_slice(), &3_u32.to_le_bytes(), &n.to_le_bytes(), &(n / 2).to_le_bytes()].concat();
        bytes.extend(rest);
        if let Ok(gguf) = Gguf::new(bytes) {
            read_all(&gguf);
        }
    }

    #[test]
    fn any_keys_come_back(
        keys in proptest::collection::btree_map("[a-zé_.]{1,12}", proptest::collection::vec("\\PC{0,6}", 0..4), 0..6),
        n_rows in 1_u64..10,
    ) {
        let keys: Vec<(String, Vec<String>)> = keys.into_iter().collect();
        let gguf = Gguf::new(written(n_rows, &keys).unwrap()).unwrap();
        for (key, list) in &keys {
            prop_assert_eq!(&gguf.require::<Vec<&str>>(key).unwrap(), list);
        }
        prop_assert_eq!(gguf.tensor("a").unwrap().n_rows(), n_rows);
        let is_missing = matches!(gguf.tensor("c"), Err(Error::MissingTensor { .. }));
        prop_assert!(is_missing);
    }
}
