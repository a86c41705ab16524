//! Compiles units on several threads at a time into the cache: all of them without a GPU, or those of a training run at
//! its first.

use std::cmp::Reverse;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::attention::{self, HEAD_DIMS};
use crate::cache::{Cache, Key};
use crate::element::Element;
use crate::error::Error;
use crate::nvrtc::{Compiled, Nvrtc};
use crate::source::{self, Source, Unit};
use crate::table;

/// What became of a unit.
#[derive(Debug)]
pub enum Outcome {
    /// The cache had it already.
    Cached,
    /// It was compiled, in this time, to so many bytes.
    Compiled(Duration, usize),
    /// It was not.
    Failed(Error),
}

/// What every step of a training run of a decoder runs, besides attention.
pub const TRAINING: &[Source] = &[
    source::COPY,
    source::CROSS_ENTROPY,
    source::ELEMENTWISE,
    source::EMBED,
    source::GLU,
    source::INDEXED,
    source::NORM,
    source::OPTIM,
    source::ORDER,
    source::REDUCE,
    source::ROPE,
];

/// What takes longest, with about the seconds that NVRTC 13 needs on one core; any other unit takes 3 at most.
const LONG: [(Source, u32); 4] =
    [(source::GEMM, 28), (source::GEMM_QUANTIZED, 23), (source::NORM, 12), (source::GLU, 5)];

/// The types of attention's elements.
const OF_ATTENTION: [Element; 3] = [Element::F32, Element::BF16, Element::F16];

/// Where all units are for which a run can ask on a GPU of an architecture: those of all ops, and of attention those with the usual
/// tiles. `heads` and `elements` select units of attention: for heads of these sizes, of these types.
pub fn units(arch: &str, heads: Option<&[u32]>, elements: Option<&[Element]>) -> Vec<Unit> {
    let unit_of = |head: &u32| HEAD_DIMS.iter().find(|dim| *dim >= head);
    let mut units = table::units();
    units.retain(|unit| {
        let of_head = |head: &u32| unit_of(head).map(u32::to_string);
        let value = |name: &str| unit.defines.iter().find(|define| define.0 == name).map(|define| &define.1);
        let is_chosen = |name: &str, chosen: Option<Vec<String>>| {
            value(name).is_none_or(|value| chosen.is_none_or(|chosen| chosen.contains(value)))
        };
        is_chosen("HEAD_DIM", heads.map(|heads| heads.iter().filter_map(of_head).collect()))
            && is_chosen(
                "ELEMENT",
                elements.map(|elements| elements.iter().map(Element::to_string).collect()),
            )
    });
    let dims = HEAD_DIMS
        .iter()
        .copied()
        .filter(|dim| heads.is_none_or(|heads| heads.iter().filter_map(unit_of).any(|own| own == dim)));
    for dim in dims {
        let elements = OF_ATTENTION.into_iter().filter(|of| elements.is_none_or(|all| all.contains(of)));
        units.extend(elements.flat_map(|element| of_attention(arch, element, dim)));
    }
    units.sort();
    units.dedup();
    units
}

/// The units of what attention usually launches.
fn of_attention(arch: &str, element: Element, head_dim: u32) -> Vec<Unit> {
    let instances = attention::usual_instances(arch, element, head_dim);
    let mut units: Vec<Unit> = instances.iter().map(|instance| instance.unit()).collect();
    units.sort();
    units.dedup();
    units
}

/// What is compiled together with a unit, itself among it: who needs one of them needs the others soon.
pub(crate) fn together(arch: &str, unit: &Unit) -> Vec<Unit> {
    if unit.defines.is_empty() && TRAINING.contains(&unit.source) {
        return TRAINING.iter().map(|&source| Unit { source, ..unit.clone() }).collect();
    }
    let heads = OF_ATTENTION.into_iter().flat_map(|of| HEAD_DIMS.iter().map(move |&dim| (of, dim)));
    let mut passes = heads.map(|(element, dim)| of_attention(arch, element, dim));
    passes.find(|units| units.contains(unit)).unwrap_or_else(|| vec![unit.clone()])
}

/// Compiles those of the units that the cache does not have, on so many threads, and tells of each as soon as it is there.
pub fn fill(
    nvrtc: &Nvrtc,
    cache: &Cache,
    arch: &str,
    units: Vec<Unit>,
    n_threads: usize,
    report: &(dyn Fn(&Unit, Outcome) + Sync),
) {
    let (kept, mut missing): (Vec<Unit>, Vec<Unit>) =
        units.into_iter().partition(|unit| cache.read(&Key::of(unit, arch, nvrtc.version())).is_some());
    kept.iter().for_each(|unit| report(unit, Outcome::Cached));
    let cost = |unit: &Unit| LONG.iter().find(|long| long.0 == unit.source).map_or(0, |long| long.1);
    missing.sort_by_key(|unit| Reverse(cost(unit)));
    let next = AtomicUsize::new(0);
    let compile = || {
        while let Some(unit) = missing.get(next.fetch_add(1, Ordering::Relaxed)) {
            let start = Instant::now();
            let keep = |compiled: Compiled| {
                cache.write(&Key::of(unit, arch, nvrtc.version()), &compiled.cubin);
                Outcome::Compiled(start.elapsed(), compiled.cubin.len())
            };
            report(unit, nvrtc.compile(unit, arch).map_or_else(Outcome::Failed, keep));
        }
    };
    thread::scope(|scope| {
        // This thread is one of them; where the system gives no others, it does all.
        for _ in 1..n_threads.min(missing.len()) {
            let _ = thread::Builder::new().spawn_scoped(scope, compile);
        }
        compile();
    });
}

/// An architecture as [`Device::arch`](crate::driver::Device::arch) names it, with which the names of files are made.
///
/// # Errors
/// What is wrong with another name.
pub fn arch(name: &str) -> std::result::Result<String, String> {
    let number = name.strip_prefix("sm_").unwrap_or(name);
    let is_one = |number: &str| number.len() >= 2 && number.bytes().all(|byte| byte.is_ascii_digit());
    match number {
        // The kernels of an H100 are compiled for the variant with its own instructions.
        "90" | "90a" => Ok("sm_90a".to_owned()),
        number if !is_one(number) => {
            Err("an architecture is called such as sm_80, sm_90a or sm_120".to_owned())
        }
        number if number.parse().is_ok_and(|number: u32| number >= 80) => Ok(format!("sm_{number}")),
        _ => Err("the kernels need sm_80 or newer".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_brings_those_that_a_training_needs_with_it() {
        let unit = |source| Unit { source, defines: vec![] };
        let together = |unit: &Unit| super::together("sm_80", unit);
        assert_eq!(together(&unit(source::NORM)).len(), TRAINING.len());
        assert!(together(&unit(source::COPY)).contains(&unit(source::NORM)));
        assert_eq!(together(&unit(source::GEMM)), [unit(source::GEMM)]);
        let defines = vec![("ELEMENT", "bf16".to_owned()), ("HEAD_DIM", "64".to_owned())];
        let of_attention = |source| Unit { source, defines: defines.clone() };
        let both = [source::ATTENTION_BACKWARD, source::ATTENTION_FORWARD].map(of_attention);
        assert_eq!(together(&both[1]), both);
        let decode = of_attention(source::ATTENTION_DECODE);
        assert_eq!(together(&decode), [decode]);
        // Warpgroups have a tile for each pass; the inner products of outputs and their gradients have none.
        let units = super::together("sm_90a", &both[0]);
        let tiles: Vec<String> = units.iter().map(Unit::to_string).collect();
        assert_eq!(
            tiles,
            [
                "attention_backward.cu ELEMENT=bf16 HEAD_DIM=64",
                "attention_backward.cu ELEMENT=bf16 HEAD_DIM=64 OF_ROWS=64 OF_WALKED=128 WGMMA=1",
                "attention_backward.cu ELEMENT=bf16 HEAD_DIM=64 OF_ROWS=64 OF_WALKED=64 WGMMA=1",
                "attention_forward.cu ELEMENT=bf16 HEAD_DIM=64 OF_ROWS=64 OF_WALKED=64 WGMMA=1",
            ]
        );
        assert!(units.iter().all(|unit| super::together("sm_90a", unit) == units));
        // All of them are units of the table.
        let all = table::units();
        assert!(TRAINING.iter().all(|&source| all.contains(&unit(source))));
    }

    #[test]
    fn heads_and_types_select_units_of_attention() {
        let count =
            |heads: Option<&[u32]>, elements: Option<&[Element]>| units("sm_80", heads, elements).len();
        let of_attention = 3 * HEAD_DIMS.len() * 3;
        let others = count(None, None) - of_attention;
        assert_eq!(count(None, None), table::units().len());
        // 40 elements take the unit of 64.
        assert_eq!(count(Some(&[40, 64]), None), others + 3 * 3);
        assert_eq!(count(Some(&[128]), Some(&[Element::BF16])), others + 3);
        assert_eq!(count(Some(&[]), None), others);
        // Of each type of 16 bits the forward pass and two backward ones with other tiles.
        let of_warpgroups = |head: u32| units("sm_90a", Some(&[head]), None).len() - others - 3 * 3;
        assert_eq!([64, 128, 256].map(of_warpgroups), [2 * 3; 3]);
    }

    #[test]
    fn architectures_are_those_that_a_gpu_asks_for() {
        assert_eq!(
            ["sm_80", "90", "sm_90a", "120"].map(|name| arch(name).unwrap()),
            ["sm_80", "sm_90a", "sm_90a", "sm_120"]
        );
        for (name, says) in [
            ("sm_75", "sm_80 or newer"),
            ("hopper", "is called such as"),
            ("", "is called"),
            ("sm_8", "is called"),
        ] {
            assert!(arch(name).unwrap_err().contains(says), "{name}");
        }
    }
}
