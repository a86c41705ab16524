//! Whether a folder whose settings share the embedding with the output weights holds both, with different values: what a
//! merge into a tied model can leave. transformers keeps both then, whatever the settings say.

use std::path::Path;

use oarlock_engine::checkpoint::weights::{MappedFiles, elements, weight_files};

/// Elements that are compared at a time.
const CHUNK_ELEMS: usize = 1 << 16;

/// Whether the folder holds an embedding and output weights that are not equal. What cannot be read is explained when the
/// weights are opened.
pub(super) fn differ(dir: &Path, stored: &dyn Fn(&str) -> String) -> bool {
    let Ok(names) = weight_files(dir) else { return false };
    let Ok(files) = MappedFiles::open(names.iter().map(|name| dir.join(name))) else { return false };
    let find = |name: &str| files.tensors.get(&stored(name));
    let (Some(embedding), Some(output)) = (find("model.embed_tokens.weight"), find("lm_head.weight")) else {
        return false;
    };
    let (first, second) = (
        &files.files[embedding.file][embedding.bytes.clone()],
        &files.files[output.file][output.bytes.clone()],
    );
    if embedding.shape != output.shape {
        return true;
    }
    if embedding.dtype == output.dtype && first == second {
        return false;
    }
    if !elements::is_float(embedding.dtype) || !elements::is_float(output.dtype) {
        return false;
    }
    let sizes = [embedding.dtype.bitsize() / 8, output.dtype.bitsize() / 8];
    let n_elems = first.len() / sizes[0];
    let mut values = [vec![0.0; CHUNK_ELEMS], vec![0.0; CHUNK_ELEMS]];
    (0..n_elems).step_by(CHUNK_ELEMS).any(|start| {
        let end = (start + CHUNK_ELEMS).min(n_elems);
        let [a, b] = &mut values;
        let (a, b) = (&mut a[..end - start], &mut b[..end - start]);
        let read = |bytes: &[u8], size: usize, dtype, out: &mut [f32]| {
            elements::to_f32("", dtype, &bytes[start * size..end * size], out)
        };
        read(first, sizes[0], embedding.dtype, a).is_err()
            || read(second, sizes[1], output.dtype, b).is_err()
            || a != b
    })
}
