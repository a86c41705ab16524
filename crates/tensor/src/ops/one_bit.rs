//! What 1-bit optimizers do between their exchanges: passes over flat buffers, and signs of elements as bits.

use oarlock_kernels::compressed::sign_bits;
use oarlock_kernels::optim::one_bit::{self, MAX_SLICES};
use oarlock_kernels::{Error, Result};

use crate::device::Device;
use crate::flat::{FlatBuffer, Lease, WriteLease};
use crate::launch::{Mode, View, ViewMut};
use crate::ops::optimizer::Part;
use crate::ops::update::NORM_BLOCK;

pub use oarlock_kernels::optim::one_bit::Pass;

/// Runs a pass over f32 elements; `parts` are its slices in their order, all of one length and those that are written in
/// buffers of their own. Returns its results, of each the numbers of all blocks. On a GPU it runs on the host.
///
/// # Errors
/// Parts that do not fit the pass or their buffers, or that are in use elsewhere.
pub fn pass(device: &Device, pass: Pass, parts: &[Part<'_>]) -> Result<Vec<Vec<f64>>> {
    let (n_slices, n_written) = pass.slices();
    let n = parts.first().map_or(0, |part| part.range.len());
    if parts.len() != n_slices || parts.iter().any(|part| part.range.len() != n) {
        let got = format!("{:?}", parts.iter().map(|part| part.range.clone()).collect::<Vec<_>>());
        let expected = format!("{n_slices} parts of one length");
        return Err(Error::Shape { op: "one_bit::pass", expected, got });
    }
    let n_blocks = n.div_ceil(NORM_BLOCK);
    let n_results = pass.results();
    let results = match n_results * n_blocks {
        0 => None,
        n => Some(FlatBuffer::borrowed(device, 8 * n, "results of a pass")?),
    };
    let mut launch = device.launch("one_bit", 0, (4 * n * (n_slices + n_written)) as u64);
    let mut leases: [Option<WriteLease>; MAX_SLICES] = [const { None }; MAX_SLICES];
    let mut written: [Option<ViewMut<f32>>; MAX_SLICES] = [const { None }; MAX_SLICES];
    for ((lease, view), part) in leases.iter_mut().zip(&mut written).zip(&parts[..n_written]) {
        let lease = lease.insert(part.flat.write()?);
        *view = Some(launch.write_flat(lease, &part.range, Mode::Update)?);
    }
    let mut read_leases: [Option<Lease>; MAX_SLICES] = [const { None }; MAX_SLICES];
    let mut read: [Option<View<f32>>; MAX_SLICES] = [const { None }; MAX_SLICES];
    for ((lease, view), part) in read_leases.iter_mut().zip(&mut read).zip(&parts[n_written..]) {
        let lease = lease.insert(part.flat.read()?);
        *view = Some(launch.read_flat(lease, &part.range)?);
    }
    let mut results_lease = results.as_ref().map(FlatBuffer::write).transpose()?;
    let out = match &mut results_lease {
        Some(lease) => Some(launch.write_flat::<f64>(lease, &(0..n_results * n_blocks), Mode::Write)?),
        None => None,
    };
    launch.run(move |cpu| {
        let none = || -> &mut [f32] { &mut [] };
        one_bit::run(
            cpu,
            pass,
            written.map(|view| view.map_or_else(none, |view| view.slice(cpu))),
            read.map(|view| view.map_or(&[][..], |view| view.slice(cpu))),
            out.map_or(&mut [][..], |view| view.slice(cpu)),
        );
    })?;
    drop((leases, results_lease));
    let Some(flat) = results else { return Ok(vec![Vec::new(); n_results]) };
    super::transfer::read_with::<f64, _>(&flat, 0..n_results * n_blocks, |all| {
        all.chunks(n_blocks).map(<[f64]>::to_vec).collect()
    })
}

/// Packs the signs of f32 elements into bytes (`bits` counts bytes) and takes `scale` times each sign away from its element.
///
/// # Errors
/// Parts that do not fit each other or their buffers, or that are in use elsewhere.
pub fn pack_signs(device: &Device, x: &Part<'_>, scale: f32, bits: &Part<'_>) -> Result<()> {
    check("pack_signs", x, bits.range.len())?;
    let mut launch = device.launch("pack signs", 0, 8 * x.range.len() as u64);
    let mut lease = x.flat.write()?;
    let x = launch.write_flat::<f32>(&mut lease, &x.range, Mode::Update)?;
    let mut bits_lease = bits.flat.write()?;
    let bits = launch.write_flat::<u8>(&mut bits_lease, &bits.range, Mode::Write)?;
    launch.run(move |cpu| sign_bits::pack(cpu, x.slice(cpu), scale, bits.slice(cpu)))
}

/// Fills f32 elements with `scale` times the signs in `bits` from bit `first` on.
///
/// # Errors
/// As [`pack_signs`].
pub fn unpack_signs(
    device: &Device,
    bits: &Part<'_>,
    first: usize,
    scale: f32,
    out: &Part<'_>,
) -> Result<()> {
    if first + out.range.len() > 8 * bits.range.len() {
        let (expected, got) = (format!("the bits {first}.. of {:?}", out.range), format!("{:?}", bits.range));
        return Err(Error::Shape { op: "unpack_signs", expected, got });
    }
    let mut launch = device.launch("unpack signs", 0, 4 * out.range.len() as u64);
    let bits_lease = bits.flat.read()?;
    let bits = launch.read_flat::<u8>(&bits_lease, &bits.range)?;
    let mut out_lease = out.flat.write()?;
    let out = launch.write_flat::<f32>(&mut out_lease, &out.range, Mode::Write)?;
    launch.run(move |cpu| sign_bits::unpack(cpu, bits.slice(cpu), first, scale, out.slice(cpu)))
}

/// Fills f32 elements with the sum over ranks of their scaled signs. The bytes of rank `r` begin `r * stride` behind the
/// first of `bits`.
///
/// # Errors
/// As [`pack_signs`].
pub fn sum_signs(
    device: &Device,
    bits: &Part<'_>,
    stride: usize,
    scales: &[f32],
    out: &Part<'_>,
) -> Result<()> {
    let n = out.range.len() / 8;
    check("sum_signs", out, n)?;
    let needed = scales.len().saturating_sub(1) * stride + n;
    if n > stride || bits.range.len() < needed {
        let (expected, got) = (format!("{needed} bytes of signs"), format!("{:?}", bits.range));
        return Err(Error::Shape { op: "sum_signs", expected, got });
    }
    let mut launch = device.launch("sum signs", 0, 4 * out.range.len() as u64);
    let bits_lease = bits.flat.read()?;
    let bits = launch.read_flat::<u8>(&bits_lease, &bits.range)?;
    let mut out_lease = out.flat.write()?;
    let out = launch.write_flat::<f32>(&mut out_lease, &out.range, Mode::Write)?;
    let scales = scales.to_vec();
    launch.run(move |cpu| sign_bits::sum(cpu, bits.slice(cpu), stride, &scales, out.slice(cpu)))
}

fn check(op: &'static str, x: &Part<'_>, n_bytes: usize) -> Result<()> {
    match x.range.len() == 8 * n_bytes {
        true => Ok(()),
        false => Err(Error::Shape {
            op,
            expected: format!("the {} elements of {n_bytes} bytes", 8 * n_bytes),
            got: format!("{:?}", x.range),
        }),
    }
}
