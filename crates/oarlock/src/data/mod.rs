//! temp
/// temp
#[derive(Clone, Debug)]
pub struct Batch { /// ids
 pub input_ids: Vec<i32>, /// labels
 pub labels: Vec<i32>, /// doc
 pub doc_start: Option<Vec<i32>>, /// rows
 pub rows: usize, /// len
 pub len: usize, /// n
 pub n_targets: usize }
