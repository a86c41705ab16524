//! Quantized weights in files: tensors of several parts that together stand for one matrix.

mod eight_bit;
mod four_bit;
mod grouped;
mod parts;
mod stored;

use std::collections::BTreeMap;
use std::sync::Arc;

use oarlock_comm::MappedFile;

use self::eight_bit::EightBit;
use self::four_bit::FourBit;
use self::grouped::{Grouped, Order};
use self::parts::{Parts, Problem};
pub use self::stored::StoredQuantization;
use super::located::{Located, Packed};

/// Puts the matrices that parts stand for in the place of these parts.
pub(super) fn gather(
    quantization: StoredQuantization,
    found: &mut BTreeMap<String, Located>,
    files: &[MappedFile],
) -> Result<(), Problem> {
    let marks: &[&str] = match quantization {
        StoredQuantization::FourBit => &[".quant_state.bitsandbytes__nf4", ".quant_state.bitsandbytes__fp4"],
        StoredQuantization::EightBit => &[".SCB"],
        StoredQuantization::Gptq { .. } | StoredQuantization::Awq { .. } => &[".qweight"],
    };
    let marked: Vec<(String, &str)> = found
        .keys()
        .filter_map(|name| marks.iter().find_map(|mark| Some((name.strip_suffix(mark)?.to_owned(), *mark))))
        .collect();
    for (path, mark) in marked {
        let mut parts = Parts { found, files, path: &path };
        let (name, packed): (_, Arc<dyn Packed>) = match quantization {
            StoredQuantization::FourBit => (path.clone(), Arc::new(FourBit::take(&mut parts, mark)?)),
            StoredQuantization::EightBit => (format!("{path}.weight"), Arc::new(EightBit::take(&mut parts)?)),
            StoredQuantization::Gptq { bits, group_size, zeros_less_one } => {
                let order = Order::Gptq { bits, zeros_less_one };
                (format!("{path}.weight"), Arc::new(Grouped::take(&mut parts, order, group_size)?))
            }
            StoredQuantization::Awq { group_size } => {
                (format!("{path}.weight"), Arc::new(Grouped::take(&mut parts, Order::Awq, group_size)?))
            }
        };
        found.insert(name, Located::packed(packed));
    }
    Ok(())
}
