//! Rotations of pairs against f64 references.

use oarlock_kernels::bf16;
use oarlock_kernels::rope::{Positions, RopeShape, RopeStyle, Rotation, rope};
use oarlock_reference::compare::tolerance;
use oarlock_reference::rope::{Pairs, SHAPES, of_rows};

use crate::everywhere::{Element, assert_close, cpus, f64s, same_everywhere, values};

fn check<T: Element>(style: RopeStyle, (heads, head_dim, rot_dim): (usize, usize, usize)) {
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
        assert_close("its inverse", &b, &f64s(&x), tolerance::<T>(2e-6, 2.0));
        a
    });
    let pairs = if style == RopeStyle::Half { Pairs::Halves } else { Pairs::Neighbors };
    let want = of_rows(f64s(&x), [heads, head_dim], (pairs, half), &angles, |row| row % seq + offset);
    assert_close("rope", &turned, &want, tolerance::<T>(1e-6, 1.0));
}

#[test]
fn pairs_turn_by_the_angle_and_back() {
    for style in [RopeStyle::Half, RopeStyle::Interleaved] {
        for (i, [head_dim, half]) in SHAPES.into_iter().enumerate() {
            let shape = (1 + i % 3, head_dim, 2 * half);
            check::<f32>(style, shape);
            check::<bf16>(style, shape);
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
