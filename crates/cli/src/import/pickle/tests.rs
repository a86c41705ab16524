//! What pickles describe, by hand-written programs.

use super::*;
use crate::import::deepspeed::loss_scale_of;

fn read(program: &[u8]) -> Result<Pickle, PickleProblem> {
    Pickle::read(&[b"\x80\x02", program, b"."].concat())
}

#[test]
fn numbers_texts_and_containers() {
    let program = b"}(X\x01\0\0\0aJ\xfe\xff\xff\xffX\x01\0\0\0b\x8a\x02\x00\x80X\x01\0\0\0c](K\x01M\x01\x02eK\x07G\x3f\xf8\0\0\0\0\0\0u";
    let pickle = read(program).unwrap();
    let root = pickle.root();
    assert_eq!(root.get("a").unwrap().value, &Value::Int(-2));
    assert_eq!(root.get("b").unwrap().value, &Value::Int(-32768));
    let list: Vec<_> = root.get("c").unwrap().elements().unwrap().map(View::count).collect();
    assert_eq!(list, [Some(1), Some(513)]);
    assert_eq!(root.at(7).unwrap().number(), Some(1.5));
    assert!(root.get("d").is_none() && root.at(8).is_none());
    // Of a key that is set twice the last counts.
    let twice = read(b"}(K\x01K\x02K\x01K\x03u").unwrap();
    assert_eq!(twice.root().at(1).unwrap().count(), Some(3));
}

#[test]
fn protocol_4_has_frames_and_names_by_text() {
    let program =
        b"\x80\x04\x95\x20\0\0\0\0\0\0\0\x8c\x0bcollections\x94\x8c\x0bOrderedDict\x94\x93)R\x94K\x01K\x02s.";
    let pickle = Pickle::read(program).unwrap();
    assert_eq!(pickle.root().at(1).unwrap().count(), Some(2));
}

#[test]
fn a_cycle_is_a_value_like_any_other() {
    let pickle = read(b"]q\x00h\x00a").unwrap();
    let inner = pickle.root().elements().unwrap().next().unwrap();
    assert_eq!(inner.value, pickle.root().value);
}

#[test]
fn deep_nesting_takes_no_stack() {
    let depth = 1 << 20;
    let program = [vec![b']'; depth], vec![b'a'; depth - 1]].concat();
    assert!(read(&program).unwrap().root().elements().unwrap().next().is_some());
}

#[test]
fn names_that_are_not_on_the_list_are_told() {
    for (program, module, name) in [
        (&b"cos\nsystem\n"[..], "os", "system"),
        (b"cbuiltins\neval\n", "builtins", "eval"),
        (b"c__builtin__\ngetattr\n", "__builtin__", "getattr"),
        (b"ctorch\nload\n", "torch", "load"),
        (b"X\x02\0\0\0osX\x06\0\0\0system\x93", "os", "system"),
        // Hidden behind things that are read.
        (b"}(K\x01ccollections\nOrderedDict\n)Rcsubprocess\nPopen\n", "subprocess", "Popen"),
    ] {
        let expected = PickleProblem::Global { module: module.into(), name: name.into() };
        assert_eq!(read(program).unwrap_err(), expected);
    }
}

#[test]
fn what_torch_does_not_write_is_refused() {
    let code = |code, at| PickleProblem::Opcode { code, at };
    assert_eq!(read(b"(ios\nsystem\n").unwrap_err(), code(b'i', 3));
    assert_eq!(read(b"Nx").unwrap_err(), code(b'x', 3));
    assert_eq!(read(b"\x82\x01").unwrap_err(), code(0x82, 2));
    assert_eq!(Pickle::read(b"\x80\x02").unwrap_err(), PickleProblem::Truncated);
    assert_eq!(read(b"X\xff\xff\xff\xffa").unwrap_err(), PickleProblem::Truncated);
    for (program, message) in [
        (&b"\x80\x05"[..], "protocol"),
        (b"", "stack is empty"),
        (b"K\x01(\x85", "stack is empty"),
        (b"t", "no mark"),
        (b"h\x05", "memo"),
        (b"K\x01K\x02a", "not a list"),
        (b"}(K\x01u", "no value"),
        (b"K\x01)R", "not a class"),
        (b"ctorch\nTensor\nQ", "not a storage"),
        (b"ctorch._utils\n_rebuild_tensor_v2\n(NK\0))tR", "no storage"),
        (b"K\x01}b", "not an object"),
    ] {
        let error = read(program).unwrap_err();
        assert!(matches!(error, PickleProblem::Malformed { why, .. } if why.contains(message)), "{error}");
    }
}

#[test]
fn values_are_counted() {
    let program = vec![b'N'; (1 << 22) + 1];
    assert!(matches!(read(&program).unwrap_err(), PickleProblem::TooLarge { what: "bytes in memory", .. }));
}

/// A tensor whose 64 sizes are copied by every further five bytes.
#[test]
fn what_is_copied_is_counted() {
    let mut program = b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\nq\0((X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\x000X\x03\0\0\0cpuK\x01tQK\0("
        .to_vec();
    program.extend(b"K\x01".repeat(64));
    program.extend(b"t(");
    program.extend(b"K\x01".repeat(64));
    // The function lies in the memo under 0, its arguments under 1.
    program.extend(b"ttq\x01");
    let of = |n: usize| Pickle::read(&[&program[..], &b"h\0h\x01R".repeat(n), b"."].concat()).map(drop);
    assert_eq!(of(1), Ok(()));
    // A larger program has the memory of none larger than any has.
    for n in [10_000, 400_000, 4_000_000] {
        let limit = ((program.len() + 5 * n + 1) * 80 + (1 << 20)).min(1 << 28);
        assert_eq!(of(n), Err(PickleProblem::TooLarge { what: "bytes in memory", limit }));
    }
}

#[test]
fn a_dynamic_loss_scale_is_kept() {
    let mut program = b"cdeepspeed.runtime.fp16.loss_scaler\nDynamicLossScaler\n)\x81}(".to_vec();
    let mut attribute = |name: &str, value: &[u8]| {
        program.push(b'X');
        program.extend((name.len() as u32).to_le_bytes());
        program.extend(name.as_bytes());
        program.extend(value);
    };
    attribute("cur_scale", b"M\x00\x10");
    attribute("cur_iter", b"K\x09");
    attribute("last_overflow_iter", b"J\xff\xff\xff\xff");
    attribute("cur_hysteresis", b"K\x02");
    program.extend(b"ub");
    let pickle = read(&program).unwrap();
    let expected =
        serde_json::json!({ "scale": 4096.0, "iteration": 9, "last_overflow": -1, "hysteresis": 2 });
    assert_eq!(loss_scale_of(pickle.root()).unwrap(), expected);
}
