//! An adapter of low rank as a GGUF file of its own, which llama.cpp and Ollama put beside the base.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use oarlock_engine::{Error, Result};
use oarlock_gguf::{Metadata, Mix, TensorPlan, TensorType};

use super::architecture;
use super::file::{self, Rows, WrittenGguf};
use super::settings::Settings;
use crate::adapters::{Adapter, settings_beside};
use crate::gguf::names::RowOrder;
use crate::model::Decoder;

/// Writes the adapter in the folder `adapter` of the model in `model` to the file `out`, its weights in `precision`: `F32`,
/// `F16` or `BF16`.
///
/// # Errors
/// What is wrong with the folders; an adapter that does more than to add updates of low rank; a layer that llama.cpp has no
/// tensor for; [`Error::Usage`] where a file is in the way that was not written here, unless `overwrite` says that it may be
/// replaced; a file that cannot be written.
pub fn write_gguf_adapter(
    model: &Path,
    adapter: &Path,
    out: &Path,
    precision: Mix,
    overwrite: bool,
) -> Result<WrittenGguf> {
    file::may_replace(out, overwrite)?;
    let precision = match precision.default_type() {
        kind @ (TensorType::F32 | TensorType::F16 | TensorType::BF16) => (kind, precision.file_type()),
        other => {
            return Err(Error::Usage(format!(
                "an adapter is written in F32, F16 or BF16, and not in {other}"
            )));
        }
    };
    let hf = settings_beside(model, &[adapter])?;
    if hf.has_grown() {
        return Err(Error::Usage(
            "the adapter brings tokens that the model does not have; write a merged model instead: `gguf`"
                .to_owned(),
        ));
    }
    let read = Adapter::open(adapter, &hf, &mut Decoder::new(hf.decoder().clone(), 1)?)?;
    let settings = Settings::read(model)?;
    let architecture = architecture::of(&settings)?;
    let updates = read.plain_updates()?;
    // One number for all layers. A scale is this number by the rank there.
    let alphas = updates.iter().map(|update| update.module.scale * update.module.rank as f32);
    // 0 would stand for a scale of 1.
    let alpha = alphas.clone().find(|alpha| *alpha != 0.0).unwrap_or(1.0);
    let mut tensors = BTreeMap::new();
    for (update, own) in updates.iter().zip(alphas) {
        let stored = hf.stored(&format!("{}.weight", update.path));
        let Some((name, rows)) = architecture::tensor(&architecture, &stored, &settings)? else {
            return Err(
                settings.refuse(format_args!("{stored} is the embedding, and has no tensor of its own"))
            );
        };
        let rank = update.module.rank;
        if !rows.fits(update.b.len() / rank) {
            return Err(settings.refuse(format_args!("the rows of {stored} are not whole heads")));
        }
        let a = Matrix { values: update.a, row: update.a.len() / rank, order: RowOrder::Same, factor: 1.0 };
        tensors.insert(format!("{name}.lora_a"), a);
        let b = Matrix { values: update.b, row: rank, order: rows, factor: own / alpha };
        tensors.insert(format!("{name}.lora_b"), b);
    }
    let tensors = Matrices(tensors);
    let mut metadata = Metadata::new();
    let unwritable = |error: oarlock_gguf::Error| Error::bad_file(out, error.to_string());
    let name = adapter.file_name().map_or_else(|| "adapter".into(), |name| name.to_string_lossy());
    metadata.set("general.architecture", architecture.name).map_err(unwritable)?;
    metadata.set("general.type", "adapter").map_err(unwritable)?;
    metadata.set("general.name", name.as_ref()).map_err(unwritable)?;
    metadata.set("adapter.type", "lora").map_err(unwritable)?;
    metadata.set("adapter.lora.alpha", alpha).map_err(unwritable)?;
    metadata.set("general.file_type", precision.1).map_err(unwritable)?;
    let file::Written { n_bytes, types } =
        file::write(out, metadata, &tensors.plans(precision.0), &tensors, None)?;
    Ok(WrittenGguf { path: out.to_owned(), n_bytes, types, notes: [hf.notes(), read.notes()].concat() })
}

/// The matrices of the updates by their names in GGUF.
struct Matrices<'a>(BTreeMap<String, Matrix<'a>>);

/// One of the two matrices of an update.
struct Matrix<'a> {
    values: &'a [f32],
    /// The elements of a row.
    row: usize,
    order: RowOrder,
    /// What its elements are multiplied with: 1 where the layer has the scale of the file.
    factor: f32,
}

impl Matrices<'_> {
    fn plans(&self, kind: TensorType) -> Vec<TensorPlan> {
        let plan = |(name, matrix): (&String, &Matrix<'_>)| {
            let dims = [matrix.row as u64, (matrix.values.len() / matrix.row) as u64];
            TensorPlan::new(name.clone(), dims, kind)
        };
        self.0.iter().map(plan).collect()
    }
}

impl Rows for Matrices<'_> {
    fn read(&self, name: &str, rows: Range<usize>, out: &mut [f32]) -> Result<()> {
        let Some(matrix) = self.0.get(name) else {
            return Err(Error::Usage(format!("there is no tensor {name}")));
        };
        let n_rows = matrix.values.len() / matrix.row;
        for (at, out) in rows.zip(out.chunks_mut(matrix.row)) {
            let from = matrix.order.stored(at, n_rows);
            let row = &matrix.values[from * matrix.row..(from + 1) * matrix.row];
            out.iter_mut().zip(row).for_each(|(out, value)| *out = value * matrix.factor);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use oarlock_comm::MappedFile;
    use oarlock_gguf::Gguf;
    use oarlock_tensor::cpu::Isa;
    use oarlock_tensor::cpu::difference::largest_difference;
    use oarlock_tensor::{DType, Device, Par};

    use super::super::write_gguf;
    use super::*;
    use crate::export::{ExportOptions, export};

    fn golden(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../oarlock/tests/golden").join(name)
    }

    fn values(gguf: &Gguf<&[u8]>, name: &str) -> Vec<f32> {
        gguf.tensor(name).unwrap().to_f32().unwrap()
    }

    /// The adapter's file added to the base's file is the merged model's file, rows in llama.cpp's order.
    #[test]
    fn a_base_with_the_file_beside_it_is_the_merged_model() {
        let folder = tempfile::tempdir().unwrap();
        let base = golden("train-llama");
        let device = Device::cpu(Isa::detect(), Par::threads(1).unwrap());
        let plain = folder.path().join("base.gguf");
        write_gguf(&base, &plain, Mix::F32, None, false).unwrap();
        for name in ["lora", "rslora"] {
            let adapter = golden("adapters").join(name);
            let (merged, file) = (folder.path().join(name), folder.path().join(format!("{name}.gguf")));
            let options = ExportOptions {
                model: &base,
                adapters: std::slice::from_ref(&adapter),
                quantized: None,
                out: &merged,
                max_shard_bytes: 1 << 30,
                dtype: Some(DType::F32),
                dequantizes: false,
                overwrite: false,
                chat: None,
                rope_scaling: None,
            };
            export(&options, &device).unwrap();
            let whole = folder.path().join(format!("{name}-merged.gguf"));
            write_gguf(&merged, &whole, Mix::F32, None, false).unwrap();
            let written = write_gguf_adapter(&base, &adapter, &file, Mix::F32, false).unwrap();
            let maps = [&plain, &whole, &file].map(|path| MappedFile::open(path).unwrap());
            let [plain, whole, file] = [0, 1, 2].map(|i| Gguf::new(&maps[i][..]).unwrap());
            assert_eq!(file.require::<&str>("general.type").unwrap(), "adapter");
            assert_eq!(file.require::<&str>("general.architecture").unwrap(), "llama");
            assert_eq!(written.types, [("F32".to_owned(), file.n_tensors())]);
            let alpha = file.require::<f32>("adapter.lora.alpha").unwrap();
            let mut n_updated = 0;
            for tensor in plain.tensors() {
                let (mut sum, name) = (tensor.to_f32().unwrap(), tensor.name());
                if let Ok(a) = file.tensor(&format!("{name}.lora_a")) {
                    let (rank, n_in) = (a.n_rows() as usize, a.row_elems() as usize);
                    let (a, b) = (a.to_f32().unwrap(), values(&file, &format!("{name}.lora_b")));
                    for (row, b) in sum.chunks_mut(n_in).zip(b.chunks(rank)) {
                        for (x, column) in row.iter_mut().zip(0..) {
                            let update: f32 = (0..rank).map(|r| b[r] * a[r * n_in + column]).sum();
                            *x += alpha / rank as f32 * update;
                        }
                    }
                    n_updated += 1;
                }
                let found = values(&whole, name);
                let far = largest_difference(&sum, &found).unwrap();
                assert!(far < 1e-6, "{name}: {far}");
            }
            assert_eq!(2 * n_updated, file.n_tensors(), "every update has a tensor of the base");
            assert!(n_updated > 0);
        }
    }

    #[test]
    fn what_is_more_than_an_update_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("adapter.gguf");
        let write = |name: &str, mix| {
            write_gguf_adapter(&golden("train-llama"), &golden("adapters").join(name), &out, mix, false)
        };
        for (name, part) in [("dora", "DoRA"), ("oft", "OFT"), ("pissa", "PiSSA")] {
            let error = write(name, Mix::F16).unwrap_err().to_string();
            assert!(error.contains(part) && error.contains("write a merged model instead"), "{error}");
        }
        assert!(write("lora", Mix::Q8_0).unwrap_err().to_string().contains("and not in Q8_0"));
        assert!(!out.exists());
        fs::write(&out, "mine").unwrap();
        assert!(write("lora", Mix::F16).unwrap_err().to_string().contains("was not written by an export"));
    }
}
