//! Rows and elements by index.

use crate::number::Number;

/// Rows of a table `[.., dim]`.
pub fn rows<T: Copy>(table: &[T], dim: usize, ids: &[i32]) -> Vec<T> {
    ids.iter().flat_map(|&id| table[id as usize * dim..][..dim].to_vec()).collect()
}

/// What is added to the rows of a table: the sum of all rows with its id.
pub fn add_rows<T: Number>(table: &mut [f64], dim: usize, ids: &[i32], rows: &[T]) {
    for (row, &id) in rows.chunks(dim.max(1)).zip(ids) {
        row.iter().zip(&mut table[id as usize * dim..]).for_each(|(x, to)| *to += x.f64());
    }
}

/// Rows by their ids: the rows, where those of each id begin, the ids.
pub fn by_id(ids: &[i32]) -> [Vec<i32>; 3] {
    let mut order: Vec<i32> = (0..ids.len() as i32).collect();
    order.sort_by_key(|&row| ids[row as usize]);
    let (mut starts, mut unique) = (vec![], vec![]);
    for (at, &row) in order.iter().enumerate() {
        if unique.last() != Some(&ids[row as usize]) {
            unique.push(ids[row as usize]);
            starts.push(at as i32);
        }
    }
    starts.push(order.len() as i32);
    [order, starts, unique]
}

/// As above, with an entry for each row: those behind the last id have none.
pub fn padded_by_id(ids: &[i32]) -> [Vec<i32>; 3] {
    let [order, mut starts, mut unique] = by_id(ids);
    starts.resize(ids.len() + 1, ids.len() as i32);
    unique.resize(ids.len(), -1);
    [order, starts, unique]
}
