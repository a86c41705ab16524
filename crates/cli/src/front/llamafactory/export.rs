//! The export of LLaMA-Factory: a base with its adapters as one model.

use oarlock::export::{self, ExportOptions, Quantized};
use oarlock_comm::available_cores;
use oarlock_tensor::cpu::Isa;
use oarlock_tensor::{Device, Par};

use crate::config::export::{ExportArgs, export as read, folder_problem};
use crate::config::{Problems, Words, written};
use crate::console::{Failure, Outcome, blocked, eprint, print};
use crate::front::fetch;

/// Exports what a file, flags and `key=value` say.
pub(crate) fn export(words: &[String]) -> Outcome {
    let layers = written::arguments(&Words::new(words))?.layers().map_err(Problems::from)?;
    let ExportArgs {
        model,
        adapters,
        quantized,
        out,
        max_shard_bytes,
        dtype,
        overwrite,
        gguf,
        chat,
        rope_scaling,
        idle,
    } = read(&layers)?;
    if !idle.is_empty() {
        eprint(&format!("note: without effect in an export: {}\n", idle.join(", ")));
    }
    let model = fetch::model(&model)?;
    let adapters = adapters.iter().map(|adapter| fetch::model(adapter)).collect::<Result<Vec<_>, _>>()?;
    let options = ExportOptions {
        model: &model,
        adapters: &adapters,
        quantized,
        out: &out,
        max_shard_bytes,
        dtype,
        overwrite,
        chat: chat.as_ref(),
        rope_scaling,
    };
    let par = Par::threads(available_cores().len()).map_err(oarlock::Error::from)?;
    let exported =
        export::export(&options, &Device::cpu(Isa::detect(), par)).map_err(|error| match error {
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
    let name = out.file_name().map_or_else(|| "model".into(), |name| name.to_string_lossy());
    let written = export::write_gguf(&out, &out.join(format!("{name}-{}.gguf", mix.name())), mix, overwrite)?;
    written.notes.iter().for_each(|note| eprint(&format!("{note}\n")));
    let types = written.types.iter().map(|(name, n)| format!("{n} {name}")).collect::<Vec<_>>().join(", ");
    print(&format!(
        "wrote {}: {:.1} MB, tensors in {types}\n",
        written.path.display(),
        written.n_bytes as f64 / 1e6
    ))
}
