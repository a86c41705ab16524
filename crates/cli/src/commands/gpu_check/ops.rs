//! Ops on the GPU beside their formulas in f64: errors, equal bits in two runs, and which ops were staged.

use std::collections::BTreeSet;

use oarlock_tensor::cpu::difference::{Incomparable, largest_difference, largest_magnitude};
use oarlock_tensor::{DType, Result};

use super::case::{Case, DTYPES};
use super::cases;
use super::device;
use super::devices::Devices;
use super::finding::{Finding, number};
use super::optimizers;
use super::part::Part;
use super::place::{Place, Values};
use crate::console::Outcome;

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

/// What a run should give.
struct Wanted {
    values: Vec<f64>,
    /// The largest error relative to the largest value.
    allowed: f64,
}

pub(super) fn check(part: &mut Part<'_>, devices: &Devices, quick: bool) -> Outcome {
    check_cases(part, devices, cases::all(quick)?)?;
    for rule in optimizers::rules() {
        for dtype in DTYPES {
            let run = |place: &Place<'_>| optimizers::run(&rule, place, quick);
            let want = |place: &Place<'_>| {
                // All but the working copy, which is the last one, is f32.
                let [of_f32 @ .., copy] = &optimizers::want(&rule, place, quick)[..] else {
                    return Ok(vec![]);
                };
                let wanted = |(values, dtype): (&Vec<f64>, DType)| Wanted {
                    values: values.clone(),
                    allowed: tolerance(dtype),
                };
                Ok(of_f32.iter().map(|x| (x, DType::F32)).chain([(copy, dtype)]).map(wanted).collect())
            };
            part.check(&format!("{} {dtype}", rule.0), || compare(devices, dtype, &run, &want))?;
        }
    }
    device::record_kernels(part, devices)
}

/// Attention in 16 bits alone, by cuDNN where that computes it in this process.
pub(super) fn check_attention(part: &mut Part<'_>, devices: &Devices, quick: bool) -> Outcome {
    let mut cases = cases::attention(quick);
    let dtypes: &[DType] = if quick { &[DType::BF16] } else { &[DType::BF16, DType::F16] };
    cases.iter_mut().for_each(|case| case.dtypes = dtypes);
    check_cases(part, devices, cases)
}

fn check_cases(part: &mut Part<'_>, devices: &Devices, cases: Vec<Case>) -> Outcome {
    for case in cases {
        for &dtype in case.dtypes {
            let allowed = if case.exact { 0.0 } else { tolerance(dtype) };
            let run = |place: &Place<'_>| case.run(place);
            let want = |place: &Place<'_>| {
                let want = case.want(place, &devices.cpu)?;
                Ok(want.into_iter().map(|values| Wanted { values, allowed }).collect())
            };
            part.check(&format!("{} {dtype}", case.name), || compare(devices, dtype, &run, &want))?;
        }
    }
    Ok(())
}

/// Runs a case twice on the GPU and compares it with its formula. The second run is timed op by op, which waits for each
/// launch, so that it also shows a wrong order of launches, and says which of them were staged.
fn compare(
    devices: &Devices,
    dtype: DType,
    run: &dyn Fn(&Place<'_>) -> Result<Values>,
    want: &dyn Fn(&Place<'_>) -> Result<Vec<Wanted>>,
) -> Result<Finding> {
    let place = Place { device: &devices.gpu, dtype };
    let got = run(&place)?;
    devices.gpu.profile().enable();
    let again = run(&place);
    let names = devices.gpu.profile().take();
    let staged = names.iter().filter_map(|(name, _)| Some(name.strip_suffix(" (staged)")?.to_owned()));
    let staged: BTreeSet<String> = staged.collect();
    let finding = judge(&got, &again?, &want(&place)?);
    Ok(finding.with("staged", staged.into_iter().collect::<Vec<_>>()))
}

fn judge(got: &Values, again: &Values, want: &[Wanted]) -> Finding {
    // The one whose error is the largest part of what is allowed; any error is infinitely much where none is.
    let part = |error: f64, allowed: f64| if error == 0.0 { 0.0 } else { error / allowed };
    let mut worst = ("output", 0.0, want.first().map_or(0.0, |want| want.allowed));
    for ((what, got), want) in got.iter().zip(want) {
        let error = error(got, &want.values);
        if part(error, want.allowed) > part(worst.1, worst.2) {
            worst = (what, error, want.allowed);
        }
    }
    let (what, error, allowed) = worst;
    let differs = got.iter().zip(again).find(|(a, b)| bits(&a.1) != bits(&b.1)).map(|(a, _)| a.0.clone());
    let mut detail = match (error, allowed) {
        (0.0, 0.0) => "every number is exact".to_owned(),
        (_, 0.0) => format!("error {error:.1e} where none is allowed, {what}"),
        _ => format!("error {error:.1e} of {allowed:.1e}, {what}"),
    };
    if let Some(what) = &differs {
        detail += &format!("; a second run has other bits: {what}");
    }
    let holds = got.len() == want.len() && error <= allowed && differs.is_none();
    let numbers = Finding::of(holds, detail);
    numbers.with("error", number(error)).with("allowed", allowed).with("same_bits", differs.is_none())
}

/// The largest error relative to the largest value; infinite where a number is missing or none.
fn error(got: &[f32], want: &[f64]) -> f64 {
    let of_size = || {
        Ok::<_, Incomparable>(
            largest_difference(got, want)? / largest_magnitude(want.iter().copied())?.max(1e-3),
        )
    };
    of_size().unwrap_or(f64::INFINITY)
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
        let values = |x: f32| vec![("output".to_owned(), vec![4.0, x]), ("state".to_owned(), vec![1.0])];
        let verdict = |got, again, want, allowed| {
            let wanted = [(vec![4.0, want], allowed), (vec![1.0], 1e-5)];
            judge(&values(got), &values(again), &wanted.map(|(values, allowed)| Wanted { values, allowed }))
                .verdict
        };
        assert_eq!(verdict(1.0, 1.0, 1.03, 1e-2), Verdict::Ok);
        assert_eq!(verdict(1.0, 1.0, 1.05, 1e-2), Verdict::Failed);
        assert_eq!(verdict(1.0, 1.0001, 1.0, 1e-2), Verdict::Failed);
        assert_eq!(verdict(f32::NAN, f32::NAN, 1.0, 1e-2), Verdict::Failed);
        assert_eq!(verdict(f32::INFINITY, f32::INFINITY, f64::INFINITY, 1e-2), Verdict::Failed);
        assert_eq!(verdict(1.0, 1.0, 1.0, 0.0), Verdict::Ok);
        assert_eq!(verdict(1.0, 1.0, 1.0 + 1e-9, 0.0), Verdict::Failed);
        // Fewer values than there should be.
        let one = vec![("output".to_owned(), vec![1.0])];
        let wanted = [1.0, 2.0].map(|x| Wanted { values: vec![x], allowed: 1.0 });
        assert_eq!(judge(&one, &one, &wanted).verdict, Verdict::Failed);
    }
}
