//! What is written: its bytes, its order, what is read back, and what is refused.

use oarlock_gguf::{Gguf, Metadata, TensorPlan, TensorType, Value, ValueType, Writer};

use crate::common::{noise, small_file};

/// A file byte by byte, as the format describes it.
#[test]
fn a_file_has_the_layout_of_the_format() {
    let mut metadata = Metadata::new();
    metadata.set("k", "ab").unwrap();
    metadata.set("general.alignment", 16_u32).unwrap();
    metadata.set("l", [7_u16, 8].as_slice()).unwrap();
    let plans =
        vec![TensorPlan::new("t", [3, 1], TensorType::F32), TensorPlan::new("u", [2], TensorType::F16)];
    let mut writer = Writer::begin(Vec::new(), &metadata, plans).unwrap();
    writer.write_rows(&[1.0, 2.0, 3.0], None).unwrap();
    writer.write_blocks(&[0x00, 0x3c, 0x00, 0xc0]).unwrap();
    let found = writer.finish().unwrap();
    let mut expected = b"GGUF".to_vec();
    let numbers = |numbers: &[u64]| numbers.iter().flat_map(|n| n.to_le_bytes()).collect::<Vec<u8>>();
    expected.extend(3_u32.to_le_bytes());
    expected.extend(numbers(&[2, 3, 1]));
    expected.extend(b"k\x08\0\0\0\x02\0\0\0\0\0\0\0ab");
    expected.extend(numbers(&[17]));
    expected.extend(b"general.alignment\x04\0\0\0\x10\0\0\0");
    expected.extend(numbers(&[1]));
    expected.extend(b"l\x09\0\0\0\x02\0\0\0\x02\0\0\0\0\0\0\0\x07\0\x08\0");
    expected.extend(numbers(&[1]));
    expected.extend(b"t\x02\0\0\0");
    expected.extend(numbers(&[3, 1]));
    expected.extend(b"\0\0\0\0");
    expected.extend(numbers(&[0, 1]));
    expected.extend(b"u\x01\0\0\0");
    expected.extend(numbers(&[2]));
    expected.extend(b"\x01\0\0\0");
    expected.extend(numbers(&[16]));
    expected.resize(expected.len().next_multiple_of(16), 0);
    expected.extend(b"\0\0\x80\x3f\0\0\0\x40\0\0\x40\x40\0\0\0\0");
    expected.extend(b"\0\x3c\0\xc0\0\0\0\0\0\0\0\0\0\0\0\0");
    assert_eq!(found, expected);
}

#[test]
fn what_is_written_is_read_again() {
    let gguf = Gguf::new(small_file()).unwrap();
    assert_eq!((gguf.version(), gguf.alignment(), gguf.n_tensors()), (3, 32, 4));
    let keys: Vec<&str> = gguf.metadata().map(|(key, _)| key).collect();
    assert_eq!(keys[..4], ["general.architecture", "general.quantization_version", "a.u8", "a.i8"]);
    assert_eq!(keys.len(), 16);
    assert!(gguf.metadata().all(|(key, value)| gguf.value(key) == Some(value)));
    assert_eq!(gguf.value("a.i16"), Some(Value::I16(-2)));
    assert_eq!(gguf.require::<f64>("a.f64").unwrap(), 0.25);
    assert!(gguf.require::<bool>("a.bool").unwrap());
    assert_eq!(gguf.require::<Vec<&str>>("a.tokens").unwrap(), ["<s>", "", "ab"]);
    assert_eq!(gguf.require::<Vec<f32>>("a.scores").unwrap(), [0.0, -1.5, -2.5]);
    assert_eq!(gguf.require::<Vec<bool>>("a.flags").unwrap(), [true, false]);
    assert_eq!(gguf.require::<Vec<u32>>("a.none").unwrap(), []);
    // Whole numbers fit into others, or do not.
    assert_eq!(gguf.require::<u64>("a.u8").unwrap(), 1);
    assert_eq!(
        gguf.require::<u32>("a.i32").unwrap_err().to_string(),
        "the key a.i32 holds a value of type i32, and a whole number of 32 bits that is not negative was expected"
    );
    assert!(gguf.get::<u32>("b").unwrap().is_none());
    assert!(gguf.require::<u32>("b").is_err());

    let names: Vec<&str> = gguf.tensors().map(|tensor| tensor.name()).collect();
    let expected =
        ["output_norm.weight", "blk.0.ffn_down.weight", "blk.0.attn_q.weight", "blk.0.ffn_up_exps.weight"];
    assert_eq!(names, expected);
    for tensor in gguf.tensors() {
        assert_eq!(gguf.tensor(tensor.name()).unwrap().data(), tensor.data());
    }
    let norm = gguf.tensor("output_norm.weight").unwrap();
    assert_eq!(norm.to_f32().unwrap(), noise(5, 5));
    let experts = gguf.tensor("blk.0.ffn_up_exps.weight").unwrap();
    assert_eq!((experts.dims(), experts.n_rows(), experts.row_elems()), ([2, 3, 2].as_slice(), 6, 2));
    let mut rows = [0.0; 4];
    experts.dequantize_rows(2, 2, &mut rows).unwrap();
    assert_eq!(rows, experts.to_f32().unwrap()[4..8]);
    assert!(experts.rows(5, 2).is_err() && experts.rows(u64::MAX, 1).is_err());
    assert!(gguf.tensor("output.weight").is_err());
}

#[test]
fn the_keys_of_a_file_keep_their_order() {
    let file = small_file();
    let gguf = Gguf::new(file.as_slice()).unwrap();
    let mut metadata = Metadata::of(&gguf).unwrap();
    let plans = gguf
        .tensors()
        .map(|tensor| TensorPlan::new(tensor.name(), tensor.dims(), tensor.tensor_type()))
        .collect::<Vec<_>>();
    let mut writer = Writer::begin(Vec::new(), &metadata, plans.clone()).unwrap();
    for (plan, tensor) in plans.iter().zip(gguf.tensors()) {
        assert_eq!(writer.next_tensor(), Some(plan));
        let blocks = tensor.tensor_type().block_bytes();
        let (first, second) = tensor.data().split_at(blocks);
        writer.write_blocks(first).unwrap();
        writer.write_blocks(second).unwrap();
    }
    assert!(writer.write_blocks(&[]).is_err());
    assert_eq!(writer.finish().unwrap(), file);

    // A key that is set again stays where it is.
    metadata.set("a.u8", "text").unwrap();
    assert!(metadata.remove("a.i8") && !metadata.remove("a.i8"));
    let gguf = Gguf::new(Writer::begin(Vec::new(), &metadata, vec![]).unwrap().finish().unwrap()).unwrap();
    let keys: Vec<(&str, ValueType)> =
        gguf.metadata().map(|(key, value)| (key, value.value_type())).collect();
    assert_eq!(keys[2..4], [("a.u8", ValueType::String), ("a.u16", ValueType::U16)]);
}

#[test]
fn what_a_file_cannot_say_is_refused() {
    let mut metadata = Metadata::new();
    let mut refused = |key: &str, value: Value<'_>| metadata.set(key, value).unwrap_err().to_string();
    assert_eq!(refused("", Value::U8(0)), "the key  cannot be written: it is empty");
    assert!(refused("a\0", Value::U8(0)).contains("NUL"));
    assert!(refused(&"a".repeat(65536), Value::U8(0)).contains("65536 bytes"));
    assert!(refused("a", Value::String(b"b\0")).contains("NUL"));
    assert!(refused("a", Value::F32(f32::NAN)).contains("finite number was expected"));
    assert!(refused("a", Value::F64(f64::INFINITY)).contains("finite number was expected"));
    assert!(refused("general.alignment", Value::U32(24)).contains("power of two"));
    assert!(refused("general.alignment", Value::U64(32)).contains("power of two"));
    let list = metadata.set("scores", [1.0, f32::INFINITY].as_slice()).unwrap_err().to_string();
    assert_eq!(
        list,
        "the key scores cannot be written: in its element 1, it is inf, and a finite number was expected"
    );
    assert!(metadata.is_empty());

    let refused =
        |plans: Vec<TensorPlan>| Writer::begin(Vec::new(), &Metadata::new(), plans).unwrap_err().to_string();
    let plan = |name: &str, dims: &[u64], tensor_type| vec![TensorPlan::new(name, dims, tensor_type)];
    assert!(refused(plan("", &[1], TensorType::F32)).contains("no name"));
    assert!(refused(plan(&"a".repeat(64), &[1], TensorType::F32)).contains("64 bytes"));
    assert!(refused(plan("a\0", &[1], TensorType::F32)).contains("NUL"));
    assert!(refused(plan("a", &[], TensorType::F32)).contains("dimensions"));
    assert!(refused(plan("a", &[1, 1, 1, 1, 1], TensorType::F32)).contains("dimensions"));
    assert!(refused(plan("a", &[0], TensorType::F32)).contains("dimensions"));
    assert!(refused(plan("a", &[1 << 62, 4], TensorType::F32)).contains("too many elements"));
    assert!(refused(plan("a", &[1 << 62], TensorType::F32)).contains("too many bytes"));
    assert!(refused(plan("a", &[32], TensorType::Q8_0)).contains("general.quantization_version is not set"));
    let twice = [plan("a", &[1], TensorType::F32), plan("a", &[2], TensorType::F32)].concat();
    assert!(refused(twice).contains("same name"));
    let mut metadata = Metadata::new();
    metadata.set("general.quantization_version", 2_u32).unwrap();
    let error =
        Writer::begin(Vec::new(), &metadata, plan("a", &[48], TensorType::Q8_0)).unwrap_err().to_string();
    assert!(error.contains("rows of 48 elements, which are not whole blocks of Q8_0"), "{error}");
}

#[test]
fn tensors_get_as_much_data_as_they_have_and_no_numbers_that_are_not_finite() {
    let begin = || {
        let mut metadata = Metadata::new();
        metadata.set("general.quantization_version", 2_u32).unwrap();
        let plans = vec![TensorPlan::new("a", [32, 2], TensorType::Q4_0)];
        Writer::begin(Vec::new(), &metadata, plans).unwrap()
    };
    let error = begin().write_rows(&[1.0; 96], None).unwrap_err().to_string();
    assert_eq!(error, "the tensor a cannot be written: 54 bytes were given, and it has 36");
    assert!(begin().write_rows(&[1.0; 16], None).is_err());
    assert!(begin().write_blocks(&[0; 17]).is_err());
    let mut writer = begin();
    writer.write_rows(&[1.0; 32], None).unwrap();
    let error = writer.finish().unwrap_err().to_string();
    assert_eq!(error, "the tensor a cannot be written: 18 of its 36 bytes were given");
    let mut infinite = [0; 18];
    infinite[1] = 0x7c;
    assert!(begin().write_blocks(&infinite).unwrap_err().to_string().contains("not finite"));
}
