//! Ops with a tensor of indices: gather, scatter, sums by index, classes.

use oarlock_tensor::cpu::Isa;
use oarlock_tensor::{DType, Device, Par, Param, Result, Tape, Tensor};

use crate::common::{Env, Node, array, case, f64s, formula_case};
use crate::shapes::{coordinates, element};

/// `n` indices below `bound`, some of them more than once.
fn indices(n: usize, bound: usize) -> Vec<i32> {
    (0..n).map(|i| (i * i * 5 / 3 % bound) as i32).collect()
}

fn on(x: &Tensor, ids: &[i32], shape: &[usize]) -> Result<Tensor> {
    Tensor::from_slice(ids, shape, x.device())
}

/// Shapes of the data and of the index.
type Shapes = (&'static [usize], &'static [usize]);

/// Of equal sizes, with fewer and with more indices, and smaller in the other dims.
fn shapes(dim: usize) -> [Shapes; 4] {
    match dim {
        0 => [(&[3, 4, 2], &[3, 4, 2]), (&[5, 2], &[2, 2]), (&[2, 3], &[4, 2]), (&[4], &[7])],
        1 => [(&[3, 4, 2], &[3, 4, 2]), (&[3, 5], &[3, 2]), (&[3, 2, 3], &[2, 5, 2]), (&[2, 3], &[2, 0])],
        _ => [
            (&[2, 2, 5], &[2, 2, 5]),
            (&[2, 3, 4], &[2, 3, 9]),
            (&[3, 2, 3], &[2, 2, 2]),
            (&[0, 2, 3], &[0, 2, 2]),
        ],
    }
}

/// The place in the data of each index.
fn places((data, index): Shapes, dim: usize, ids: &[i32]) -> Vec<usize> {
    let place = |(i, &id): (usize, &i32)| {
        let mut at = coordinates(index, i);
        at[dim] = id as usize;
        element(data, &at)
    };
    ids.iter().enumerate().map(place).collect()
}

#[test]
fn elements_are_gathered_and_scattered() {
    for (dim, shapes) in (0..3).flat_map(|dim| shapes(dim).map(|shapes| (dim, shapes))) {
        let (data, index) = shapes;
        let n: usize = index.iter().product();
        let ids = indices(n, data[dim]);
        let at = places(shapes, dim, &ids);
        let (from, back) = (ids.clone(), dim as i32 - data.len() as i32);
        let gather = move |_: &Env, x: &[Tensor], _: &[Param]| x[0].gather(back, &on(&x[0], &from, index)?);
        let places = at.clone();
        let gathered = move |x: &[Node], _: &[Node]| x[0].pick(index, places.clone());
        formula_case("gather", [array(1, data)], [], gather, gathered).check();

        // The source is larger than the index.
        let source: Vec<usize> = index.iter().map(|size| size + 1).collect();
        let inputs = || [array(1, data), array(2, &source)];
        let (to, places, sizes) = (ids.clone(), at.clone(), source.clone());
        let scatter = move |x: &[Tensor]| x[0].scatter(dim, &on(&x[0], &to, index)?, &x[1]);
        let scattered = move |x: &[&[f64]]| {
            let mut y = x[0].to_vec();
            for (i, &place) in places.iter().enumerate() {
                y[place] = x[1][element(&sizes, &coordinates(index, i))];
            }
            y
        };
        case("scatter", inputs(), scatter, scattered).check();
        let (to, places, sizes) = (ids, at, source.clone());
        let add =
            move |_: &Env, x: &[Tensor], _: &[Param]| x[0].scatter_add(dim, &on(&x[0], &to, index)?, &x[1]);
        let added = move |x: &[Node], _: &[Node]| {
            let taken = (0..n).map(|i| element(&sizes, &coordinates(index, i))).collect();
            x[0].plus(&x[1].pick(index, taken).sum_by(data, places.clone()))
        };
        formula_case("scatter_add", inputs(), [], add, added).check();
    }
}

#[test]
fn indices_and_data_spread_over_each_other() {
    let ids = [2i32, 0];
    let op = move |x: &[Tensor]| x[0].take_along_dim(&on(&x[0], &ids, &[1, 2, 1])?, 1);
    let reference = move |x: &[&[f64]]| {
        (0..12).map(|i| x[0][element(&[2, 3, 3], &[i / 6, ids[i / 3 % 2] as usize, i % 3])]).collect()
    };
    case("take_along_dim", [array(1, &[2, 3, 3])], op, reference).check();
    let op = move |x: &[Tensor]| x[0].take_along_dim(&on(&x[0], &[0, 2, 1, 1], &[2, 2])?, -1);
    let reference = move |x: &[&[f64]]| [0, 2, 1, 1].map(|i| x[0][i]).to_vec();
    case("take_along_dim", [array(1, &[1, 3])], op, reference).check();
}

#[test]
fn rows_are_selected_and_added() {
    let shape: &[usize] = &[3, 4, 2];
    for dim in 0..3 {
        let ids = indices(5, shape[dim]);
        let mut rows = shape.to_vec();
        rows[dim] = 5;
        let all = rows.iter().product();
        let source = {
            let (rows, ids) = (rows.clone(), ids.clone());
            move |i: usize| {
                let mut at = coordinates(&rows, i);
                at[dim] = ids[at[dim]] as usize;
                element(shape, &at)
            }
        };
        let (from, place) = (ids.clone(), source.clone());
        let select = move |x: &[Tensor]| x[0].index_select(dim as i64 - 3, &on(&x[0], &from, &[5])?);
        let selected = move |x: &[&[f64]]| (0..all).map(|i| x[0][place(i)]).collect();
        case("index_select", [array(1, shape)], select, selected).check();
        let add = move |x: &[Tensor]| x[0].index_add(dim, &on(&x[0], &ids, &[5])?, &x[1]);
        let added = move |x: &[&[f64]]| {
            let mut y = x[0].to_vec();
            (0..all).for_each(|i| y[source(i)] += x[1][i]);
            y
        };
        case("index_add", [array(1, shape), array(2, &rows)], add, added).check();
    }
    let one = |x: &[Tensor]| x[0].index_select(1, &on(&x[0], &[2], &[])?);
    case("index_select", [array(1, &[2, 3])], one, |x| vec![x[0][2], x[0][5]]).check();
}

#[test]
fn integers_are_counted_and_classes_marked() {
    let device = Device::cpu(Isa::detect(), Par::threads(2).unwrap());
    let of = |data: &[i32], shape: &[usize]| Tensor::from_slice(data, shape, &device).unwrap();
    let (ids, ones) = (of(&[1, 3, 1, 1], &[4]), of(&[1; 4], &[4]));
    let zeros = of(&[0; 5], &[5]);
    assert_eq!(f64s(&zeros.scatter_add(0, &ids, &ones).unwrap()), [0.0, 3.0, 0.0, 1.0, 0.0]);
    assert_eq!(f64s(&zeros.index_add(0, &ids, &ones).unwrap()), [0.0, 3.0, 0.0, 1.0, 0.0]);
    assert_eq!(f64s(&zeros.scatter(0, &ids, &of(&[5, 6, 7, 8], &[4])).unwrap()), [0.0, 8.0, 0.0, 6.0, 0.0]);
    let marked = of(&[2, 0], &[2, 1]).one_hot(3).unwrap();
    assert_eq!((marked.sizes(), f64s(&marked)), (&[2, 1, 3][..], vec![0.0, 0.0, 1.0, 1.0, 0.0, 0.0]));
    assert_eq!(of(&[], &[0]).one_hot(3).unwrap().sizes(), [0, 3]);
}

#[test]
fn what_is_not_zero_is_found() {
    for device in [Device::default(), Device::strict(Isa::detect(), Par::solo())] {
        let ints = Tensor::from_slice(&[0, 7, 0, -1, 0, 2], [2, 3], &device).unwrap();
        let found = ints.nonzero().unwrap();
        assert_eq!((found.sizes(), found.to_vec::<i32>().unwrap()), (&[3, 2][..], vec![0, 1, 1, 0, 1, 2]));
        let floats = Tensor::from_slice(&[0.0, -0.0, f32::NAN, 1e-30], [4], &device).unwrap();
        assert_eq!(floats.nonzero().unwrap().to_vec::<i32>().unwrap(), [2, 3]);
        assert_eq!(Tensor::zeros([2, 0, 3], DType::F32, &device).unwrap().nonzero().unwrap().sizes(), [0, 3]);
        assert_eq!(Tensor::from_slice(&[5], [], &device).unwrap().nonzero().unwrap().sizes(), [1, 0]);
    }
}

/// Sums of many terms for few places.
#[test]
fn large_sums_have_the_same_bits_on_any_number_of_threads() {
    let (rows, columns, n) = (37, 65, 5000);
    let run = |par: Par| {
        let device = Device::cpu(Isa::detect(), par);
        let x: Vec<f32> = (0..rows * columns).map(|i| (i as f32).sin()).collect();
        let source: Vec<f32> = (0..n * columns).map(|i| (i as f32).cos()).collect();
        let tape = Tape::new();
        let x = tape.leaf(&Tensor::from_slice(&x, [rows, columns], &device).unwrap());
        let source = tape.leaf(&Tensor::from_slice(&source, [n, columns], &device).unwrap());
        let ids = Tensor::from_slice(&indices(n, rows), [n], &device).unwrap();
        let spread = ids.unsqueeze(1).unwrap().expand((-1, columns)).unwrap();
        let sums = [x.index_add(0, &ids, &source).unwrap(), x.scatter_add(0, &spread, &source).unwrap()];
        let y = sums[0].gather(0, &spread).unwrap().mul(&sums[1].index_select(0, &ids).unwrap()).unwrap();
        let gradients = tape.backward(&y, 1.0).unwrap();
        [&sums[0], &sums[1], gradients.of(&x).unwrap(), gradients.of(&source).unwrap()].map(f64s)
    };
    let solo = run(Par::solo());
    assert_eq!(solo[0], solo[1]);
    for n_threads in [2, 7] {
        assert!(run(Par::threads(n_threads).unwrap()) == solo, "{n_threads} threads");
    }
}

#[test]
fn misuse_is_named() {
    let device = Device::cpu(Isa::detect(), Par::solo());
    let x = Tensor::from_slice(&[1f32; 6], [2, 3], &device).unwrap();
    let of = |data: &[i32], shape: &[usize]| Tensor::from_slice(data, shape, &device).unwrap();
    let (ids, far) = (of(&[0, 1, 1, 0], &[2, 2]), of(&[0, 1, 3, 0], &[2, 2]));
    let (row, off) = (of(&[0, 1], &[2]), of(&[0, -1], &[2]));
    let texts = [
        (x.gather(1, &far), "gather: index 3 at position 2 is outside 0..3"),
        (x.take_along_dim(&far, 1), "take_along_dim: index 3 at position 2 is outside 0..3"),
        (x.scatter(1, &far, &x), "scatter: index 3 at position 2 is outside 0..3"),
        (x.scatter_add(1, &far, &x), "scatter_add: index 3 at position 2 is outside 0..3"),
        (x.index_select(1, &off), "index_select: index -1 at position 1 is outside 0..3"),
        (x.index_add(0, &off, &x), "index_add: index -1 at position 1 is outside 0..2"),
        (far.one_hot(2), "one_hot: index 3 at position 2 is outside 0..2"),
        (x.gather(0, &x), "gather: expected i32 indices, got f32"),
        (
            x.gather(0, &row),
            "gather: expected an index with the dims of [2, 3], none larger but dim 0, got [2]",
        ),
        (
            x.gather(1, &of(&[0; 6], &[3, 2])),
            "gather: expected an index with the dims of [2, 3], none larger but dim 1, got [3, 2]",
        ),
        (x.take_along_dim(&row, 1), "take_along_dim: expected an index with the dims of [2, 3], got [2]"),
        (
            x.scatter(1, &ids, &x.narrow(1, 0..1).unwrap()),
            "scatter: expected a source of at least [2, 2], as the index, got [2, 1]",
        ),
        (x.scatter_add(1, &ids, &ids), "scatter_add: expected f32, as the other input, got i32"),
        (x.index_add(1, &row, &x), "index_add: expected a source of shape [2, 2], got [2, 3]"),
        (x.one_hot(3), "one_hot: expected i32 indices, got f32"),
    ];
    for (result, want) in texts {
        assert_eq!(result.unwrap_err().to_string(), want);
    }
}
