//! The flags of the commands that ask a model something, and the model that they name.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{ArgAction, Args};
use oarlock::Result;
use oarlock::adapters::{
    load_quantized_for_inference_as, load_with_adapters_as, settings_beside, tokenizer_folder,
};
use oarlock::config::{GgufWeights, RopeArgs, RopeKind};
use oarlock::data::Tokenizer;
use oarlock::generate::Generator;
use oarlock::model::load_in_blocks;
use oarlock_comm::available_cores;
use oarlock_lm::gguf::is_gguf;
use oarlock_tensor::cpu::Isa;
use oarlock_tensor::cpu::quantized::{Code, Format};
use oarlock_tensor::{Automatic, DType, Device, DeviceKind, GpuInfo, Par};

use super::dtypes::dtypes;
use crate::console::eprint;
use crate::front::fetch;

/// Which model, and how it computes.
#[derive(Args)]
pub(super) struct LoadArgs {
    /// The model's folder, its GGUF file, or OWNER/NAME on a hub
    #[arg(long, required_unless_present = "place")]
    model: Option<PathBuf>,
    /// The same as --model
    #[arg(value_name = "MODEL", conflicts_with = "model")]
    place: Option<PathBuf>,
    /// Where that and its adapters are, once they were looked for.
    #[arg(skip)]
    found: OnceLock<(PathBuf, Vec<PathBuf>)>,
    /// Adapters that are merged into it, in order: folders, or OWNER/NAME on a hub
    #[arg(long, value_delimiter = ',')]
    adapter: Vec<PathBuf>,
    #[command(flatten)]
    how: HowArgs,
}

/// How a model is read and computed.
#[derive(Args)]
pub(super) struct HowArgs {
    /// Keep the weights in 4 or 8 bits, and an adapter beside them instead of merged into them
    #[arg(long, value_parser = ["4", "8"])]
    quantization_bit: Option<String>,
    /// The values of 4 bits
    #[arg(long, value_parser = ["nf4", "fp4"], default_value = "nf4", requires = "quantization_bit")]
    quantization_type: String,
    /// Quantize the scales of 4 bits, too
    #[arg(long, action = ArgAction::Set, default_value_t = true, requires = "quantization_bit")]
    double_quantization: bool,
    /// Of a GGUF file with quantized weights: blocks multiplies by them as they are, dequantized makes numbers of them first;
    /// auto: blocks, but where an adapter is merged into them or a GPU computes
    #[arg(long, default_value = "auto",
          value_parser = PossibleValuesParser::new(GgufWeights::WORDS).map(|word| GgufWeights::named(&word)))]
    gguf_weights: GgufWeights,
    /// Twice as many positions as the model was made for, by this scaling of its rotary embedding
    #[arg(long, value_parser = RopeKind::NAMES.map(|(name, _)| name))]
    rope_scaling: Option<String>,
    /// The dtype of the arithmetic
    #[arg(long, value_parser = dtypes(["f32", "bf16"]), default_value = "f32")]
    dtype: DType,
    /// Where it computes; auto: on the first NVIDIA GPU that can be used (experimental), else on the CPU
    #[arg(long, value_parser = ["auto", "cpu", "cuda"], default_value = "auto")]
    device: String,
    /// Threads; by default all cores
    #[arg(long)]
    threads: Option<usize>,
}

impl LoadArgs {
    /// The folder with the tokenizer and the template.
    pub fn tokenizer_folder(&self) -> &Path {
        match self.found.get() {
            Some((model, adapters)) => tokenizer_folder(model, adapters),
            None => tokenizer_folder(self.named(), &self.adapter),
        }
    }

    /// The model as the command names it, by its flag or without.
    fn named(&self) -> &Path {
        // clap has required one of both.
        self.model.as_deref().or(self.place.as_deref()).unwrap_or(Path::new(""))
    }

    /// The model and its tokenizer.
    pub fn load(&self) -> Result<(Generator, Tokenizer)> {
        let found =
            |path: &Path| fetch::model(path).map_err(|error| oarlock::Error::Usage(error.to_string()));
        let model = found(self.named())?;
        let adapters: Vec<PathBuf> =
            self.adapter.iter().map(|adapter| found(adapter)).collect::<Result<_>>()?;
        let (model, adapters) = self.found.get_or_init(|| (model, adapters));
        self.how.load(model, adapters)
    }
}

impl HowArgs {
    /// A model with adapters and its tokenizer.
    pub fn load(&self, dir: &Path, adapters: &[PathBuf]) -> Result<(Generator, Tokenizer)> {
        let (generator, tokenizer, _) = self.load_with(dir, adapters, &[])?;
        Ok((generator, tokenizer))
    }

    /// As [`HowArgs::load`], with further adapters beside the weights: the number of each, or none for one that can only be
    /// merged.
    pub fn load_with(
        &self,
        dir: &Path,
        adapters: &[PathBuf],
        beside: &[PathBuf],
    ) -> Result<(Generator, Tokenizer, Vec<Option<usize>>)> {
        let par = Par::threads(self.threads.unwrap_or_else(|| available_cores().len()))?;
        let device = self.device(par)?;
        let tokenizer = Tokenizer::open(tokenizer_folder(dir, adapters))?;
        let settings = settings_beside(dir, adapters)?;
        let settings = match self.rope_scaling.as_deref().and_then(RopeKind::named) {
            Some(kind) => settings.with_rope_scaling(RopeArgs { kind, max_len: None })?,
            None => settings,
        };
        let (dtype, all) = (self.dtype, usize::MAX);
        let is_plain = adapters.is_empty() && beside.is_empty() && self.quantization_bit.is_none();
        let in_blocks = match self.multiplies_blocks(is_plain, &device)? && is_gguf(dir) {
            true => load_in_blocks(settings.clone(), dir, &device, dtype, all)?,
            false => None,
        };
        if in_blocks.is_none() && self.gguf_weights == GgufWeights::Blocks {
            return Err(oarlock::Error::Usage(format!(
                "--gguf-weights blocks: {} has no quantized weights in GGUF that can be multiplied as they are; write auto",
                dir.display()
            )));
        }
        let (model, numbers) = match (in_blocks, self.format()) {
            (Some(model), _) => (model, Vec::new()),
            (None, None) => load_with_adapters_as(settings, dir, adapters, beside, &device, dtype, all)?,
            (None, Some(format)) => {
                let model =
                    load_quantized_for_inference_as(settings, dir, adapters, format, &device, dtype, all)?;
                (model, vec![None; beside.len()])
            }
        };
        model.config.notes().iter().for_each(|note| eprint(&format!("{note}\n")));
        Ok((Generator::new(model), tokenizer, numbers))
    }

    /// Whether weights in the blocks of a GGUF file are multiplied as they are.
    fn multiplies_blocks(&self, is_plain: bool, device: &Device) -> Result<bool> {
        match self.gguf_weights {
            GgufWeights::Auto => Ok(is_plain && !device.is_gpu()),
            GgufWeights::Blocks if !is_plain || device.is_gpu() => Err(oarlock::Error::Usage(
                "--gguf-weights blocks: adapters, --quantization-bit and GPUs need dequantized weights; write auto"
                    .to_owned(),
            )),
            GgufWeights::Blocks => Ok(true),
            GgufWeights::Dequantized => Ok(false),
        }
    }

    /// Where the model computes. By itself that is a GPU only if it opens; a line says so, or why it is the CPU.
    fn device(&self, par: Par) -> Result<Device> {
        let open = |kind| Device::open(kind, Isa::detect(), par.clone());
        let why = match (self.device.as_str(), Device::automatic()) {
            ("cuda", _) => return Ok(open(DeviceKind::Cuda(0))?),
            ("cpu", _) | (_, Automatic::Cpu) => return Ok(open(DeviceKind::Cpu)?),
            (_, Automatic::Lacks(why)) => why.clone(),
            (_, Automatic::Gpus(_)) => match open(DeviceKind::Auto) {
                Ok(device) => {
                    let on = device.describe();
                    eprint(&format!("note: {on}; {} (--device cpu: on the CPU)\n", GpuInfo::TRUST));
                    return Ok(device);
                }
                Err(error) if oarlock_tensor::is_refused_by_driver(&error) => {
                    format!("this machine has a GPU that cannot be used ({error})")
                }
                Err(error) => return Err(error.into()),
            },
        };
        eprint(&format!("note: {why}; the CPU is used until then\n"));
        Ok(open(DeviceKind::Cpu)?)
    }

    /// The format of quantized weights, where they are asked for.
    fn format(&self) -> Option<Format> {
        let code = if self.quantization_type == "fp4" { Code::Fp4 } else { Code::Nf4 };
        Some(match self.quantization_bit.as_deref()? {
            "8" => Format::Int8,
            _ => Format::FourBit { code, nested: self.double_quantization },
        })
    }
}
