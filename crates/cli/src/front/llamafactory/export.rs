//! The export of LLaMA-Factory: a base with its adapters as one model.

use std::path::Path;

use oarlock::export::{self, Calibration, ExportOptions, ImportanceMatrix, Quantized, WrittenGguf};
use oarlock_comm::available_cores;
use oarlock_tensor::cpu::Isa;
use oarlock_tensor::{Device, Par};

use crate::config::export::{ExportArgs, ImportanceArgs, export as read, folder_problem};
use crate::config::{Problems, Words, written};
use crate::console::{Failure, Outcome, blocked, eprint, print};
use crate::front::{fetch, llama_cpp};

/// Exports what a file, flags and `key=value` say.
pub(crate) fn export(words: &[String]) -> Outcome {
    let layers = written::arguments(&Words::new(words))?.layers().map_err(Problems::from)?;
    let ExportArgs {
        model,
        adapters,
        quantized,
        dequantizes,
        out,
        max_shard_bytes,
        dtype,
        overwrite,
        gguf,
        importance,
        gguf_adapter,
        chat,
        rope_scaling,
        idle,
    } = read(&layers)?;
    if !idle.is_empty() {
        eprint(&format!("note: without effect in an export: {}\n", idle.join(", ")));
    }
    let model = fetch::model(&model)?;
    let adapters = adapters.iter().map(|adapter| fetch::model(adapter)).collect::<Result<Vec<_>, _>>()?;
    let name = out.file_name().map_or_else(|| "model".into(), |name| name.to_string_lossy());
    if let (Some(kind), [adapter]) = (gguf_adapter, &adapters[..]) {
        std::fs::create_dir_all(&out).map_err(oarlock::Error::io("create", &out))?;
        // As llama.cpp names such files.
        let path = out.join(format!("{name}-{}-LoRA.gguf", kind.name()));
        return told(&export::write_gguf_adapter(&model, adapter, &path, kind, overwrite)?);
    }
    let options = ExportOptions {
        model: &model,
        adapters: &adapters,
        quantized,
        dequantizes,
        out: &out,
        max_shard_bytes,
        dtype,
        overwrite,
        chat: chat.as_ref(),
        rope_scaling,
    };
    let par = Par::threads(available_cores().len()).map_err(oarlock::Error::from)?;
    let device = Device::cpu(Isa::detect(), par);
    let matrix = match &importance {
        // Before anything is written.
        Some(ImportanceArgs::File(path)) => Some(read_matrix(path)?),
        _ => None,
    };
    let exported = export::export(&options, &device).map_err(|error| match error {
        oarlock::Error::Occupied(message) => {
            let blocked = blocked(&message, "`overwrite_output_dir: true`");
            let help = blocked.advice().unwrap_or_default().to_owned();
            Problems::from(folder_problem(&layers, blocked.to_string(), help)).into()
        }
        error => Failure::from(error),
    })?;
    exported.notes.iter().for_each(|note| eprint(&format!("{note}\n")));
    let compared = exported.compared;
    let merged = match adapters.len() {
        0 => String::new(),
        1 => " with one adapter merged".to_owned(),
        n => format!(" with {n} adapters merged"),
    };
    let every_weight = if matches!(quantized, Some(Quantized::Packed(_))) { "" } else { "every weight, " };
    let bits = match quantized {
        None if dequantizes => ", what the blocks of the file stand for,".to_owned(),
        None => String::new(),
        Some(Quantized::Dequantized(format)) => {
            format!(", what their {} bits ({format}) stand for,", format.bits())
        }
        Some(Quantized::Packed(format)) => {
            format!(", the linear layers in {} bits ({format}) and the others", format.bits())
        }
    };
    print(&format!(
        "wrote {:.2} M parameters of {}{bits}{merged} in {} to {}: {}\n\
         read back: {every_weight}the tokens of {} texts and the chat template are those that were meant\n\
         compared with what was read, on {} tokens: the largest difference of a logit is {:.2e} (the largest logit {:.2}); \
         the likeliest token is the same at {} of {} places\n",
        exported.n_elems as f64 / 1e6,
        model.display(),
        exported.dtype,
        out.display(),
        exported.files.join(", "),
        export::N_LINES,
        compared.positions,
        compared.difference,
        compared.largest,
        compared.same,
        compared.positions,
    ))?;
    let Some(mix) = gguf else { return Ok(()) };
    let matrix = match &importance {
        Some(ImportanceArgs::Collected { dataset, dataset_dir, n_rows, row_tokens }) => {
            let (n_rows, row_tokens, chat) = (*n_rows, *row_tokens, chat.as_ref());
            let calibration = Calibration { dataset, dataset_dir, n_rows, row_tokens, chat };
            let matrix = export::collect_importance(&out, &calibration, &device)?;
            write_matrix(&matrix, &out.join("imatrix.gguf"), overwrite)?;
            Some(matrix)
        }
        _ => matrix,
    };
    let path = out.join(format!("{name}-{}.gguf", mix.name()));
    told(&export::write_gguf(&out, &path, mix, matrix.as_ref(), overwrite)?)?;
    llama_cpp::compare(&path, &device)
}

/// Says what a GGUF file is.
fn told(written: &WrittenGguf) -> Outcome {
    written.notes.iter().for_each(|note| eprint(&format!("{note}\n")));
    let types = written.types.iter().map(|(name, n)| format!("{n} {name}")).collect::<Vec<_>>().join(", ");
    print(&format!(
        "wrote {}: {:.1} MB, tensors in {types}\n",
        written.path.display(),
        written.n_bytes as f64 / 1e6
    ))
}

/// An importance matrix in either form.
fn read_matrix(path: &Path) -> oarlock::Result<ImportanceMatrix> {
    let map = oarlock_comm::MappedFile::open(path).map_err(oarlock::Error::io("read", path))?;
    let matrix = ImportanceMatrix::read(&map).map_err(|e| oarlock::Error::bad_file(path, e.to_string()))?;
    map.check().map_err(oarlock::Error::io("read", path))?;
    Ok(matrix)
}

/// Writes an importance matrix where no other file lies, for llama-quantize and other mixes.
fn write_matrix(matrix: &ImportanceMatrix, path: &Path, overwrite: bool) -> Outcome {
    if !overwrite && path.exists() && read_matrix(path).is_err() {
        return Err(oarlock::Error::Usage(format!(
            "{} is no importance matrix; move it, or write `overwrite_output_dir: true` to replace it",
            path.display()
        ))
        .into());
    }
    let mut bytes = Vec::new();
    matrix.write(&mut bytes).map_err(|e| oarlock::Error::bad_file(path, e.to_string()))?;
    oarlock_files::replace(path, bytes).map_err(oarlock::Error::io("write", path))?;
    print(&format!(
        "wrote {}: what {} weights met in {} rows of up to {} tokens\n",
        path.display(),
        matrix.entries.len(),
        matrix.n_chunks,
        matrix.chunk_tokens
    ))
}
