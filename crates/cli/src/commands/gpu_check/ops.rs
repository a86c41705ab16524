//! Ops on the GPU beside the same ops on the CPU in f32: errors, equal bits in two runs, and which ops were staged.

use std::collections::BTreeSet;

use oarlock_tensor::{DType, Result};

use super::Devices;
use super::cases;
use super::device;
use super::finding::{Finding, number};
use super::optimizers;
use super::part::Part;
use super::place::{Place, Values};
use crate::console::Outcome;

pub(super) const DTYPES: [DType; 3] = [DType::F32, DType::BF16, DType::F16];

/// The largest error that a dtype may cause, relative to the largest value of a tensor: its unit roundoff (2^-24, 2^-9,
/// 2^-12) times a number of roundings. In f32 those of sums of hundreds of terms in another order, in the short dtypes
/// those of the few tensors that are stored on the way (sums are f32 there).
fn tolerance(dtype: DType) -> f64 {
    let (bits, roundings) = match dtype {
        DType::BF16 => (9, 8.0),
        DType::F16 => (12, 8.0),
        DType::F32 | DType::I32 => (24, 512.0),
    };
    roundings * 0.5f64.powi(bits)
}

pub(super) fn check(part: &mut Part<'_>, devices: &Devices, quick: bool) -> Outcome {
    for case in cases::all(quick) {
        for dtype in DTYPES {
            let run = |place: &Place<'_>| case.run(place);
            part.check(&format!("{} {dtype}", case.name), || compare(devices, dtype, &run))?;
        }
    }
    for (name, rule) in optimizers::rules() {
        for dtype in DTYPES {
            let run = |place: &Place<'_>| optimizers::run(&rule, place, quick);
            part.check(&format!("{name} {dtype}"), || compare(devices, dtype, &run))?;
        }
    }
    device::tell_kernels(part, devices)
}

/// Runs a case twice on the GPU and once on the CPU. The second run is timed op by op, which waits for each launch, so
/// that it also shows a wrong order of launches, and says which of them were staged.
fn compare(devices: &Devices, dtype: DType, run: &dyn Fn(&Place<'_>) -> Result<Values>) -> Result<Finding> {
    let on_gpu = Place { device: &devices.gpu, dtype, rounded: dtype };
    let got = run(&on_gpu)?;
    devices.gpu.profile().enable();
    let again = run(&on_gpu);
    let names = devices.gpu.profile().take();
    let staged = names.iter().filter_map(|(name, _)| Some(name.strip_suffix(" (staged)")?.to_owned()));
    let staged: BTreeSet<String> = staged.collect();
    let want = run(&Place { device: &devices.cpu, dtype: DType::F32, rounded: dtype })?;
    let finding = judge(&got, &again?, &want, tolerance(dtype));
    Ok(finding.with("staged", staged.into_iter().collect::<Vec<_>>()))
}

fn judge(got: &Values, again: &Values, want: &Values, allowed: f64) -> Finding {
    let errors = got.iter().zip(want).map(|((what, got), (_, want))| (what.as_str(), error(got, want)));
    let (what, worst) =
        errors.fold(("output", 0.0), |worst, this| if this.1 > worst.1 { this } else { worst });
    let differs = got.iter().zip(again).find(|(a, b)| bits(&a.1) != bits(&b.1)).map(|(a, _)| a.0.clone());
    let mut detail = format!("error {worst:.1e} of {allowed:.1e}, {what}");
    if let Some(what) = &differs {
        detail += &format!("; a second run has other bits: {what}");
    }
    let numbers = Finding::of(worst <= allowed && differs.is_none(), detail);
    numbers.with("error", number(worst)).with("allowed", allowed).with("same_bits", differs.is_none())
}

/// The largest error relative to the largest value; infinite where a number is missing or none.
fn error(got: &[f32], want: &[f32]) -> f64 {
    let largest = want.iter().fold(0f64, |largest, x| largest.max(f64::from(x.abs())));
    if got.len() != want.len() || got.iter().chain(want).any(|x| !x.is_finite()) {
        return f64::INFINITY;
    }
    let error = |(got, want): (&f32, &f32)| f64::from((got - want).abs()) / largest.max(1e-3);
    got.iter().zip(want).map(error).fold(0.0, f64::max)
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::gpu_check::finding::Verdict;

    #[test]
    fn errors_beyond_the_tolerance_other_bits_and_missing_numbers_fail() {
        let values = |x: f32| vec![("output".to_owned(), vec![4.0, x])];
        let verdict = |got, again, want| judge(&values(got), &values(again), &values(want), 1e-2).verdict;
        assert_eq!(verdict(1.0, 1.0, 1.03), Verdict::Ok);
        assert_eq!(verdict(1.0, 1.0, 1.05), Verdict::Failed);
        assert_eq!(verdict(1.0, 1.0001, 1.0), Verdict::Failed);
        assert_eq!(verdict(f32::NAN, f32::NAN, 1.0), Verdict::Failed);
        assert_eq!(verdict(f32::INFINITY, f32::INFINITY, f32::INFINITY), Verdict::Failed);
    }
}
