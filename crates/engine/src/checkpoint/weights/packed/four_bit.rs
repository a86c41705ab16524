//! Weights of 4 bits as bitsandbytes stores them: codes, scales, and what the codes mean.

use oarlock_comm::MappedFile;
use oarlock_config::json;
use oarlock_tensor::cpu::quantized::{BLOCK, Code, Format, Layout, NESTED_BLOCK, dynamic_map};
use safetensors::Dtype;
use serde_json::Value;

use super::parts::{Parts, Problem, f32s, words_of};
use crate::checkpoint::weights::located::{Located, Packed};

/// How far the stored values of a code may be from ours: torch's own depend on the CPU in the last bit.
const LAST_BITS: f32 = 2.5e-7;

/// A matrix of 4 bits.
#[derive(Clone, Debug)]
pub(super) struct FourBit {
    layout: Layout,
    codes: Located,
    absmax: Located,
    /// The scales of the scales, and what those lie around.
    nested: Option<(Located, f32)>,
}

impl FourBit {
    pub(super) fn take(parts: &mut Parts<'_>, mark: &str) -> Result<FourBit, Problem> {
        let state = parts.take(mark)?;
        let state: Value = json::from_slice(parts.bytes(&state))
            .map_err(|error| parts.wrong(&format!("whose state is not JSON: {error}")))?;
        let count = |name: &str| state[name].as_u64().and_then(|n| usize::try_from(n).ok());
        let shape: Option<Vec<usize>> = state["shape"].as_array().and_then(|sizes| {
            sizes.iter().map(|n| n.as_u64().and_then(|n| usize::try_from(n).ok())).collect()
        });
        let &[rows, cols] = shape.as_deref().unwrap_or(&[]) else {
            return Err(parts.wrong(&format!("of the shape {}; expected two sizes", state["shape"])));
        };
        if rows.checked_mul(cols).is_none_or(|n| n == 0) {
            return Err(parts.wrong(&format!("of the shape {}", state["shape"])));
        }
        let code = match state["quant_type"].as_str() {
            Some("nf4") => Code::Nf4,
            Some("fp4") => Code::Fp4,
            _ => {
                return Err(
                    parts.wrong(&format!("of the type {}; supported are nf4 and fp4", state["quant_type"]))
                );
            }
        };
        if count("blocksize") != Some(BLOCK) {
            let message =
                format!("in blocks of {}; only blocks of {BLOCK} are supported", state["blocksize"]);
            return Err(parts.wrong(&message));
        }
        let nested = state.get("nested_blocksize").is_some();
        if nested && count("nested_blocksize") != Some(NESTED_BLOCK) {
            let message = format!(
                "whose scales are in blocks of {}; only of {NESTED_BLOCK}",
                state["nested_blocksize"]
            );
            return Err(parts.wrong(&message));
        }
        let layout = Layout { rows, cols, format: Format::FourBit { code, nested } };
        let (n_bytes, blocks) = (layout.n_elems().div_ceil(2), layout.n_blocks());
        let codes = parts.take("")?;
        if codes.bytes.len() != n_bytes {
            let message = format!("of {} bytes; {rows} x {cols} elements have {n_bytes}", codes.bytes.len());
            return Err(parts.wrong(&message));
        }
        let map = parts.take_as(".quant_map", &[Dtype::F32], 16)?;
        check_map(parts, &map, code.values())?;
        let absmax = match nested {
            true => parts.take_as(".absmax", &[Dtype::U8], blocks)?,
            false => parts.take_as(".absmax", &[Dtype::F32], blocks)?,
        };
        let nested = match nested {
            false => None,
            true => {
                let map = parts.take_as(".nested_quant_map", &[Dtype::F32], 256)?;
                check_map(parts, &map, dynamic_map())?;
                let scales = parts.take_as(".nested_absmax", &[Dtype::F32], blocks.div_ceil(NESTED_BLOCK))?;
                let offset =
                    state["nested_offset"].as_f64().ok_or_else(|| parts.wrong("without a nested_offset"))?;
                Some((scales, offset as f32))
            }
        };
        Ok(FourBit { layout, codes, absmax, nested })
    }
}

impl Packed for FourBit {
    fn shape(&self) -> Vec<usize> {
        [self.layout.rows, self.layout.cols].to_vec()
    }

    fn layout(&self) -> Option<Layout> {
        Some(self.layout)
    }

    fn words(&self, files: &[MappedFile]) -> Option<Vec<i32>> {
        let of = |part: &Located| &files[part.file][part.bytes.clone()];
        let mut parts = vec![of(&self.codes), of(&self.absmax)];
        let offset;
        if let Some((scales, mean)) = &self.nested {
            offset = mean.to_le_bytes();
            parts.extend([of(scales), &offset]);
        }
        Some(words_of(&parts))
    }

    fn four_bit_storage(&self) -> Option<Dtype> {
        Some(self.codes.dtype)
    }
}

fn check_map(parts: &Parts<'_>, stored: &Located, ours: &[f32]) -> Result<(), Problem> {
    let is_near = |(stored, ours): (f32, &f32)| (stored - ours).abs() <= LAST_BITS * ours.abs().max(1e-6);
    match f32s(parts.bytes(stored)).zip(ours).all(is_near) {
        true => Ok(()),
        false => Err(parts.wrong("whose codes mean other numbers than those of bitsandbytes")),
    }
}
