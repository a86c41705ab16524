//! Reads in how many bits the weights of a frozen base are kept.

use oarlock_config::settings::keys::Row;
use oarlock_config::settings::problem::Problems;
use oarlock_config::settings::resolve::Settings;
use oarlock_tensor::cpu::quantized::{Code, Format};

use super::table as keys;

/// The format of the weights, if they are quantized; what is wrong with it goes to `problems`.
pub fn quantization(settings: &Settings, problems: &mut Problems) -> Option<Format> {
    let bits = settings.get(keys::QUANTIZATION_BIT)?;
    let mut report = |message: &str, keys: &[&'static Row], help: &str| {
        settings.report(problems, message, keys, help);
    };
    let method = method(settings);
    let possible: &[usize] = match method {
        "hqq" => &[1, 2, 3, 4, 5, 6, 8],
        "eetq" => &[8],
        _ => &[4, 8],
    };
    if !possible.contains(&bits) {
        let listed: Vec<String> = possible.iter().map(usize::to_string).collect();
        let name = if method == "bnb" { "bitsandbytes" } else { method };
        report(
            &format!("`quantization_bit: {bits}` is none of what {name} takes: {}", listed.join(", ")),
            &[keys::QUANTIZATION_BIT.row],
            if possible.contains(&4) { "write `quantization_bit: 4`" } else { "write `quantization_bit: 8`" },
        );
    }
    if settings.get(keys::DO_TRAIN) && settings.setting(keys::QUANTIZATION_DEVICE_MAP).is_written() {
        report(
            "`quantization_device_map` does not go with training",
            &[keys::QUANTIZATION_DEVICE_MAP.row],
            "remove it; a training run chooses where weights are by its placement",
        );
    }
    let is_there = method == "bnb" && [4, 8].contains(&bits);
    is_there
        .then(|| format(bits, settings.get(keys::QUANTIZATION_TYPE), settings.get(keys::DOUBLE_QUANTIZATION)))
}

/// The method, under the newer of its names.
pub fn method(settings: &Settings) -> &str {
    match settings.get(keys::QUANTIZATION_METHOD) {
        "bitsandbytes" => "bnb",
        method => method,
    }
}

/// The format of weights of 4 or 8 bits; those of 8 bits have neither a type nor double quantization.
pub fn format(bits: usize, kind: &str, nested: bool) -> Format {
    match bits {
        8 => Format::Int8,
        _ => Format::FourBit { code: if kind == "fp4" { Code::Fp4 } else { Code::Nf4 }, nested },
    }
}
