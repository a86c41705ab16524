//! Importance matrices of both forms.

use oarlock_gguf::{Gguf, Importance, ImportanceMatrix, TensorType};
use proptest::prelude::*;

fn matrix() -> ImportanceMatrix {
    let mut matrix = ImportanceMatrix {
        datasets: vec!["a.txt".to_owned(), "b.txt".to_owned()],
        n_chunks: 2,
        chunk_tokens: 4,
        ..ImportanceMatrix::default()
    };
    matrix.insert("blk.0.attn_q.weight", Importance::new(vec![8.0, 16.0, 24.0], vec![8.0]).unwrap());
    let experts = Importance::new(vec![4.0, 8.0, 0.0, 0.0], vec![4.0, 0.0]).unwrap();
    matrix.insert("blk.0.ffn_up_exps.weight", experts);
    matrix
}

#[test]
fn a_matrix_is_a_file_of_sums_and_counts() {
    let mut file = Vec::new();
    matrix().write(&mut file).unwrap();
    let gguf = Gguf::new(file.as_slice()).unwrap();
    assert_eq!(gguf.require::<&str>("general.type").unwrap(), "imatrix");
    assert_eq!(gguf.require::<Vec<&str>>("imatrix.datasets").unwrap(), ["a.txt", "b.txt"]);
    let tensors: Vec<_> = gguf.tensors().map(|tensor| (tensor.name(), tensor.dims().to_vec())).collect();
    let expected = [
        ("blk.0.attn_q.weight.in_sum2", vec![3]),
        ("blk.0.attn_q.weight.counts", vec![1]),
        ("blk.0.ffn_up_exps.weight.in_sum2", vec![2, 2]),
        ("blk.0.ffn_up_exps.weight.counts", vec![1, 2]),
    ];
    assert_eq!(tensors, expected);
    assert!(gguf.tensors().all(|tensor| tensor.tensor_type() == TensorType::F32));

    let again = ImportanceMatrix::read(&file).unwrap();
    assert_eq!(again, matrix());
    assert_eq!(again.weights("blk.0.attn_q.weight").unwrap(), [1.0, 2.0, 3.0]);
    // An expert that saw nothing has columns that matter alike.
    assert_eq!(again.weights("blk.0.ffn_up_exps.weight").unwrap(), [1.0, 2.0, 1.0, 1.0]);
    assert_eq!(again.weights("output.weight"), None);
}

#[test]
fn the_older_form_has_means_times_chunks() {
    let mut file = Vec::new();
    matrix().write_legacy(&mut file).unwrap();
    let mut expected = vec![];
    let number = |n: i32| n.to_le_bytes();
    expected.extend(number(2));
    expected.extend(number(19));
    expected.extend(b"blk.0.attn_q.weight");
    expected.extend([number(2), number(3)].concat());
    expected.extend([2.0_f32, 4.0, 6.0].iter().flat_map(|x| x.to_le_bytes()));
    expected.extend(number(24));
    expected.extend(b"blk.0.ffn_up_exps.weight");
    expected.extend([number(1), number(4)].concat());
    expected.extend([1.0_f32, 2.0, 1.0, 1.0].iter().flat_map(|x| x.to_le_bytes()));
    expected.extend([number(2), number(5)].concat());
    expected.extend(b"b.txt");
    assert_eq!(file, expected);

    let again = ImportanceMatrix::read(&file).unwrap();
    assert_eq!((again.n_chunks, again.datasets.as_slice()), (2, ["b.txt".to_owned()].as_slice()));
    for (name, importance) in &matrix().entries {
        assert_eq!(again.weights(name).unwrap(), importance.weights());
    }
    // The chunks and the data set are missing in the oldest files.
    let oldest = &file[..file.len() - 13];
    assert_eq!(ImportanceMatrix::read(oldest).unwrap().entries.len(), 2);
}

#[test]
fn what_is_no_matrix_is_refused() {
    assert!(ImportanceMatrix::read(&[]).is_err());
    let error = ImportanceMatrix::read(&[0; 8]).unwrap_err().to_string();
    assert!(error.contains("it has 0 entries, and at least 1 were expected"), "{error}");
    assert!(Importance::new(vec![1.0, 2.0, 3.0], vec![1.0, 1.0]).is_err());
    assert!(Importance::new(vec![1.0], vec![]).is_err());
    assert!(Importance::new(vec![f32::NAN], vec![1.0]).is_err());
    assert!(Importance::new(vec![1.0], vec![-1.0]).is_err());
    let mut file = Vec::new();
    matrix().write(&mut file).unwrap();
    let place = file.windows(7).position(|bytes| bytes == b".counts").unwrap();
    file[place + 1] = b'C';
    assert!(ImportanceMatrix::read(&file).unwrap_err().to_string().contains("blk.0.attn_q.weight.counts"));
}

proptest! {
    #[test]
    fn damaged_matrices_are_read_or_refused(
        cut in 0_usize..400,
        changes in proptest::collection::vec((0_usize..400, any::<u8>()), 0..4),
        is_legacy in any::<bool>(),
    ) {
        let mut file = Vec::new();
        if is_legacy { matrix().write_legacy(&mut file).unwrap() } else { matrix().write(&mut file).unwrap() }
        for (place, byte) in changes {
            let place = place % file.len();
            file[place] = byte;
        }
        file.truncate(cut.max(file.len() / 2));
        if let Ok(matrix) = ImportanceMatrix::read(&file) {
            prop_assert!(matrix.entries.values().all(|importance| !importance.weights().is_empty()));
        }
    }
}
