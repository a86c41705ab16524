//! Messages between the stages of a pipeline: each pair of neighbors is a group of two ranks, which come to their messages in the
//! order of their schedules.

use std::collections::BTreeMap;
use std::time::Instant;

use half::{bf16, f16};
use oarlock_comm::{Communicator, Ready, Region, Sharing};
use oarlock_tensor::ops::transfer;
use oarlock_tensor::{DType, Device, Tensor};

use crate::{Error, Result};

/// The links of a stage.
pub(super) struct Links {
    device: Device,
    /// By the other stage.
    links: BTreeMap<usize, Link>,
}

/// What two stages share.
struct Link {
    comm: Communicator,
    /// Through which elements go; grows with the largest message.
    region: Option<Region>,
}

/// What comes before the elements of a tensor: its dtype and its sizes.
type Header = (u8, Vec<u64>);

const DTYPES: [DType; 4] = [DType::F32, DType::BF16, DType::F16, DType::I32];

impl Links {
    /// Links each stage of `pipe` with the next, and with `wraps` the last with the first. All stages call it.
    pub fn new(pipe: &Communicator, device: &Device, wraps: bool) -> Result<Links> {
        let (n, own) = (pipe.world_size(), pipe.rank());
        let even = (0..n).step_by(2).filter(|&stage| stage + 1 < n).map(|stage| vec![stage, stage + 1]);
        let odd = (1..n).step_by(2).filter(|&stage| stage + 1 < n).map(|stage| vec![stage, stage + 1]);
        let wrap = (wraps && n > 2).then(|| vec![n - 1, 0]);
        let rounds = [even.collect::<Vec<_>>(), odd.collect(), wrap.into_iter().collect()];
        let mut links = BTreeMap::new();
        for mut groups in rounds.into_iter().filter(|groups| !groups.is_empty()) {
            let other = groups.iter().find(|pair| pair.contains(&own));
            let other = other.and_then(|pair| pair.iter().copied().find(|&stage| stage != own));
            let listed: Vec<usize> = groups.iter().flatten().copied().collect();
            groups.extend((0..n).filter(|stage| !listed.contains(stage)).map(|stage| vec![stage]));
            let comm = pipe.split(&groups)?;
            if let Some(other) = other {
                links.insert(other, Link { comm, region: None });
            }
        }
        Ok(Links { device: device.clone(), links })
    }

    /// Gives a tensor to another stage, which calls [`Links::receive`].
    pub fn send(&mut self, to: usize, tensor: &Tensor) -> Result<()> {
        let code = DTYPES.iter().position(|dtype| *dtype == tensor.dtype()).unwrap_or(0) as u8;
        let header: Header = (code, tensor.sizes().iter().map(|&size| size as u64).collect());
        let header = rmp_serde::to_vec(&header).map_err(unreadable)?;
        let link = self.link(to)?;
        let own = link.comm.rank();
        link.comm.broadcast_bytes(own, &header)?;
        let n_bytes = tensor.n_elems() * tensor.dtype().size();
        let region = link.region(n_bytes)?;
        let bytes = tensor.to_bytes()?;
        transfer::write_with::<u8, _>(&region.flat(), 0..n_bytes, |out| out.copy_from_slice(&bytes))?;
        let all = 0..tensor.n_elems();
        let sent = link.comm.send_receive(&region, tensor.dtype(), all, [own, 1 - own], Ready::now())?;
        sent.precede_launches()?;
        Ok(())
    }

    /// Takes what another stage sends.
    pub fn receive(&mut self, from: usize) -> Result<Tensor> {
        let device = self.device.clone();
        let link = self.link(from)?;
        let sender = 1 - link.comm.rank();
        let header = link.comm.broadcast_bytes(sender, &[])?;
        let (code, sizes): Header = rmp_serde::from_slice(&header).map_err(unreadable)?;
        let dtype = DTYPES.get(usize::from(code)).copied().unwrap_or(DType::F32);
        let sizes: Vec<usize> = sizes.into_iter().map(|size| size as usize).collect();
        let n_elems = sizes.iter().product::<usize>();
        let region = link.region(n_elems * dtype.size())?;
        let sent = link.comm.send_receive(&region, dtype, 0..n_elems, [sender, 1 - sender], Ready::now())?;
        sent.precede_launches()?;
        let flat = region.flat();
        let all = 0..n_elems;
        let tensor = match dtype {
            DType::F32 => {
                let values = transfer::read_with::<f32, _>(&flat, all, <[f32]>::to_vec)?;
                Tensor::from_slice(&values, &sizes[..], &device)
            }
            DType::BF16 => {
                let values = transfer::read_with::<bf16, _>(&flat, all, <[bf16]>::to_vec)?;
                Tensor::from_slice(&values, &sizes[..], &device)
            }
            DType::F16 => {
                let values = transfer::read_with::<f16, _>(&flat, all, <[f16]>::to_vec)?;
                Tensor::from_slice(&values, &sizes[..], &device)
            }
            DType::I32 => {
                let values = transfer::read_with::<i32, _>(&flat, all, <[i32]>::to_vec)?;
                Tensor::from_slice(&values, &sizes[..], &device)
            }
        };
        Ok(tensor?)
    }

    fn link(&mut self, other: usize) -> Result<&mut Link> {
        self.links.get_mut(&other).ok_or_else(|| {
            Error::Usage(format!("no link to stage {other}, which is not a neighbor of this one"))
        })
    }
}

/// The median time of a tensor of so many f32 elements from each rank of a pair to the other, both ranks of which call it.
pub fn message_seconds(pair: &Communicator, device: &Device, n_elems: usize, n: usize) -> Result<f64> {
    let mut links = Links::new(pair, device, false)?;
    let (own, other) = (pair.rank(), 1 - pair.rank());
    let tensor = Tensor::zeros([n_elems], DType::F32, device)?;
    let mut times = Vec::new();
    // The first message makes buffers.
    for _ in 0..=n {
        let begin = Instant::now();
        for from in 0..2 {
            match from == own {
                true => links.send(other, &tensor)?,
                false => drop(links.receive(other)?),
            }
        }
        times.push(begin.elapsed().as_secs_f64() / 2.0);
    }
    let mut times = times.split_off(1);
    times.sort_by(f64::total_cmp);
    Ok(times.get(times.len() / 2).copied().unwrap_or(0.0))
}

impl Link {
    /// The region, for a message of so many bytes that both ends know.
    fn region(&mut self, n_bytes: usize) -> Result<Region> {
        match &self.region {
            Some(region) if region.bytes() >= n_bytes => Ok(region.clone()),
            _ => {
                let region = self.comm.allocate("messages between stages", n_bytes, Sharing::PerRank)?;
                Ok(self.region.insert(region).clone())
            }
        }
    }
}

fn unreadable(error: impl std::fmt::Display) -> Error {
    Error::Usage(format!("the header of a message between stages: {error}"))
}
