//! `oarlock merge-weights`: the model in a checkpoint, whatever ranks wrote it, in Hugging Face form.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use oarlock_tensor::DType;

use crate::checkpoint::{MergeOptions, merge_weights};
use crate::console::{Outcome, say};

/// What a weight is written as.
#[derive(Clone, Copy, ValueEnum)]
enum Precision {
    F32,
    Bf16,
    F16,
}

#[derive(Args)]
pub(super) struct MergeArgs {
    /// A checkpoint, or a folder of checkpoints: the one that its file `latest` names, or the newest
    checkpoint: PathBuf,
    /// The folder to write to
    out: PathBuf,
    /// The dtype of the weights; by default that in which the model was trained
    #[arg(long)]
    dtype: Option<Precision>,
    /// The most that one file of weights holds, such as 500MB or 4GiB
    #[arg(long, default_value = "5GB", value_parser = bytes, alias = "max_shard_size")]
    max_shard_size: u64,
    /// The tag of the checkpoint in the folder
    #[arg(short, long)]
    tag: Option<String>,
}

pub(super) fn run(args: &MergeArgs) -> Outcome {
    let dtype = args.dtype.map(|precision| match precision {
        Precision::F32 => DType::F32,
        Precision::Bf16 => DType::BF16,
        Precision::F16 => DType::F16,
    });
    let options = MergeOptions { tag: args.tag.as_deref(), dtype, max_shard_bytes: args.max_shard_size };
    let merged = merge_weights(&args.checkpoint, &args.out, &options)?;
    say(&format!(
        "wrote {:.2} M parameters of {} in {} to {}: {}\n",
        merged.n_elems as f64 / 1e6,
        merged.checkpoint.display(),
        merged.dtype,
        args.out.display(),
        merged.files.join(", "),
    ))
}

/// A size as transformers writes it: 5GB, 500MB, 4GiB, or a number of bytes.
fn bytes(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is no size; expected one such as 5GB, 500MB, 4GiB or 1000000");
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit: u64 = match text[digits.len()..].to_ascii_uppercase().as_str() {
        "" | "B" => 1,
        "KB" => 1000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "TB" => 1_000_000_000_000,
        "KIB" => 1 << 10,
        "MIB" => 1 << 20,
        "GIB" => 1 << 30,
        "TIB" => 1 << 40,
        _ => return Err(wrong()),
    };
    let number: u64 = digits.trim().parse().map_err(|_| wrong())?;
    number.checked_mul(unit).filter(|bytes| *bytes > 0).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::bytes;

    #[test]
    fn sizes() {
        for (text, expected) in [("5GB", 5_000_000_000), ("500mb", 500_000_000), ("2KiB", 2048), ("7", 7)] {
            assert_eq!(bytes(text), Ok(expected), "{text}");
        }
        for text in ["", "GB", "0", "-1", "5 GB x", "1.5GB", "99999999999TB"] {
            assert!(bytes(text).unwrap_err().contains("is no size"), "{text}");
        }
    }
}
