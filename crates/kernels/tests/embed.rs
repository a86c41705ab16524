//! Rows of a table and their gradients against plain loops.

use oarlock_kernels::embed::{embed_backward, embed_forward};
use oarlock_kernels::{Store, bf16};

use crate::everywhere::{cpus, same_everywhere, values};

#[test]
fn gather_and_scatter_match_plain_loops() {
    let (vocab, dim, rows) = (37, 19, 3000);
    let table = values::<bf16>(1, vocab * dim);
    let ids: Vec<i32> = (0..rows).map(|r| (r * r % vocab) as i32).collect();
    let dy = values::<bf16>(2, rows * dim);
    let start = values::<f32>(3, vocab * dim);
    let (y, added, written) = same_everywhere(|cpu| {
        let (mut y, mut added, mut written) = (dy.clone(), start.clone(), start.clone());
        embed_forward(cpu, &table, dim, &ids, &mut y).unwrap();
        embed_backward(cpu, &dy, dim, &ids, (&mut added, Store::Add)).unwrap();
        embed_backward(cpu, &dy, dim, &ids, (&mut written, Store::Overwrite)).unwrap();
        (y, added, written)
    });
    let (mut want_added, mut want_written) = (start, vec![0.0f32; vocab * dim]);
    for (row, &id) in ids.iter().enumerate() {
        for j in 0..dim {
            let (to, from) = (id as usize * dim + j, row * dim + j);
            assert_eq!(y[from], table[to]);
            want_added[to] += dy[from].to_f32();
            want_written[to] += dy[from].to_f32();
        }
    }
    assert_eq!((added, written), (want_added, want_written));
}

#[test]
fn ids_outside_the_table_are_named() {
    let (cpu, mut y) = (&cpus()[0], [0.0f32; 2]);
    let error = embed_forward(cpu, &[1.0f32; 3], 1, &[2, 3], &mut y).unwrap_err();
    assert_eq!(error.to_string(), "embed_forward: index 3 at position 1 is outside 0..3");
    assert!(embed_backward(cpu, &[1.0f32; 2], 1, &[-1, 0], (&mut [0.0; 3], Store::Add)).is_err());
    assert_eq!(y, [0.0; 2]);
}
