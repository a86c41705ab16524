//! Rotations of pairs against f64 references.

use oarlock_kernels::rope::{Positions, RopeShape, RopeStyle, Rotation, rope};
use oarlock_kernels::{Float, bf16};

use crate::everywhere::{assert_close, cpus, f64s, same_everywhere, values};

fn check<T: Float>(style: RopeStyle, (heads, head_dim, rot_dim): (usize, usize, usize), tolerance: f64) {
    let (batch, seq, offset, n_positions) = (3, 5, 2, 9);
    let (rows, half) = (batch * seq, rot_dim / 2);
    let shape = RopeShape { heads, head_dim, rot_dim, style };
    let angles: Vec<f64> = f64s(&values::<f32>(1, n_positions * half));
    let cos: Vec<f32> = angles.iter().map(|a| a.cos() as f32).collect();
    let sin: Vec<f32> = angles.iter().map(|a| a.sin() as f32).collect();
    let x = values::<T>(2, rows * heads * head_dim);
    let counted = Positions::Counted { seq, offset };
    let positions: Vec<i32> = (0..rows).map(|r| (r % seq + offset) as i32).collect();
    let turned = same_everywhere(|cpu| {
        let (mut a, mut b) = (x.clone(), x.clone());
        rope(cpu, shape, Rotation::Forward, counted, (&cos, &sin), &mut a).unwrap();
        rope(cpu, shape, Rotation::Forward, Positions::Explicit(&positions), (&cos, &sin), &mut b).unwrap();
        assert_eq!(a, b);
        rope(cpu, shape, Rotation::Inverse, counted, (&cos, &sin), &mut b).unwrap();
        assert_close(&b, &f64s(&x), 2.0 * tolerance);
        a
    });
    let mut want = f64s(&x);
    for (i, head) in want.chunks_mut(head_dim).enumerate() {
        for j in 0..half {
            let angle = angles[positions[i / heads] as usize * half + j];
            let (p, q) = match style {
                RopeStyle::Half => (j, j + half),
                RopeStyle::Interleaved => (2 * j, 2 * j + 1),
            };
            let (a, b) = (head[p], head[q]);
            head[p] = a * angle.cos() - b * angle.sin();
            head[q] = b * angle.cos() + a * angle.sin();
        }
    }
    assert_close(&turned, &want, tolerance);
}

#[test]
fn pairs_turn_by_the_angle_and_back() {
    for style in [RopeStyle::Half, RopeStyle::Interleaved] {
        for shape in [(1, 2, 2), (2, 64, 64), (3, 96, 40), (2, 10, 6)] {
            check::<f32>(style, shape, 1e-6);
            check::<bf16>(style, shape, 0.01);
        }
    }
}

#[test]
fn positions_outside_the_table_are_errors() {
    let shape = RopeShape { heads: 1, head_dim: 2, rot_dim: 2, style: RopeStyle::Half };
    let (mut x, table) = ([0.0f32; 8], [1.0; 3]);
    let mut run = |positions| {
        let cpu = &cpus()[0];
        rope(cpu, shape, Rotation::Forward, positions, (&table, &table), &mut x).map_err(|e| e.to_string())
    };
    assert_eq!(run(Positions::Counted { seq: 2, offset: 1 }), Ok(()));
    let text = "rope: index 3 at position 1 is outside 0..3";
    assert_eq!(run(Positions::Counted { seq: 2, offset: 2 }), Err(text.into()));
    assert!(run(Positions::Counted { seq: 2, offset: usize::MAX }).is_err());
    assert_eq!(run(Positions::Explicit(&[0, 3, 1, -1])), Err(text.into()));
    assert!(run(Positions::Explicit(&[0, 2, 1, -1])).is_err());
}
