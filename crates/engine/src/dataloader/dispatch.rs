//! Rank 0 reads for all: it makes the batches of all ranks and sends each rank its own.
//!
//! Who reads changes nothing about who gets what: these are the batches that the ranks would read themselves.

use std::sync::atomic::Ordering::Relaxed;

use oarlock_comm::Communicator;

use super::core::Core;
use super::prefetch::{Prefetch, RankBatch};
use crate::nn::nested::{Nested, Parcel};
use crate::{Error, Result};

pub(super) struct Dispatch<B> {
    comm: Communicator,
    /// On rank 0.
    reading: Option<Reading<B>>,
}

struct Reading<B> {
    batches: Option<Prefetch<B>>,
    ahead: Option<Result<Vec<RankBatch<B>>>>,
}

impl<B: Send + 'static> Reading<B> {
    /// The batches of all ranks of the next round.
    fn round(&mut self, world: usize) -> Option<Result<Vec<RankBatch<B>>>> {
        let batches = self.batches.as_mut()?;
        let mut round = Vec::with_capacity(world);
        while round.len() < world {
            match batches.next()? {
                Ok(made) => round.push(made),
                Err(error) => return Some(Err(error)),
            }
        }
        Some(Ok(round))
    }
}

/// What rank 0 says in a round: (whether a batch follows, whether it is the last, what was left out, an error).
type Word = (bool, bool, usize, Option<String>);

/// A batch's samples, and how many of them are not repeats, where some are.
type Counts = (usize, Option<usize>);

impl<B: Send + 'static> Dispatch<B> {
    /// On rank 0 with what it reads, or why it cannot, which all ranks are told.
    pub fn begin(comm: Communicator, batches: Option<Result<Prefetch<B>>>) -> Dispatch<B> {
        let reading = batches.map(|batches| match batches {
            Ok(batches) => {
                let mut reading = Reading { batches: Some(batches), ahead: None };
                reading.ahead = reading.round(comm.world_size());
                reading
            }
            Err(error) => Reading { batches: None, ahead: Some(Err(error)) },
        });
        Dispatch { comm, reading }
    }

    #[track_caller]
    pub fn next(&mut self, core: &Core<B>) -> Option<Result<RankBatch<B>>> {
        let codec = core.codec.as_ref()?;
        let (rank, device) = (self.comm.rank(), core.accelerator.as_ref()?.device());
        let mut parcel = Parcel::new(device);
        let mut own = None;
        if let Some(reading) = &mut self.reading {
            let now = reading.ahead.take();
            if matches!(now, Some(Ok(_))) {
                reading.ahead = reading.round(self.comm.world_size());
            }
            let sent = match now {
                Some(Ok(round)) => send(round, reading.ahead.is_none(), codec.pack, &mut parcel),
                Some(Err(error)) => Err(error),
                None => {
                    let word: Word = (false, false, core.left_out.load(Relaxed), None);
                    word.pack(&mut parcel).map(|()| None)
                }
            };
            own = Some(sent.or_else(|error| {
                parcel = Parcel::new(device);
                let word: Word = (false, false, 0, Some(error.to_string()));
                word.pack(&mut parcel)?;
                reading.batches = None;
                reading.ahead = None;
                Err(error)
            }));
        }
        let bytes = match self.comm.broadcast_bytes(0, parcel.bytes()) {
            Ok(bytes) => bytes,
            Err(error) => return Some(Err(error.into())),
        };
        match own {
            Some(own) => own.transpose(),
            None => receive(Parcel::open(bytes, device), rank, core, codec.unpack).transpose(),
        }
    }
}

/// Packs a round; what is rank 0's own stays.
fn send<B>(
    round: Vec<RankBatch<B>>,
    is_last: bool,
    pack: fn(&B, &mut Parcel) -> Result<()>,
    parcel: &mut Parcel,
) -> Result<Option<RankBatch<B>>> {
    let word: Word = (true, is_last, 0, None);
    word.pack(parcel)?;
    let mut own = None;
    for made in round {
        if made.rank == 0 {
            own = Some(RankBatch { is_last, ..made });
            continue;
        }
        (made.rows, made.real).pack(parcel)?;
        parcel.nest(|inner| pack(&made.batch, inner))?;
    }
    Ok(own)
}

fn receive<B>(
    mut parcel: Parcel,
    rank: usize,
    core: &Core<B>,
    unpack: fn(&mut Parcel) -> Result<B>,
) -> Result<Option<RankBatch<B>>> {
    let (follows, is_last, left_out, error) = Word::unpack(&mut parcel)?;
    if let Some(error) = error {
        return Err(Error::Usage(format!("rank 0, which reads the batches of all ranks: {error}")));
    }
    if !follows {
        core.left_out.store(left_out, Relaxed);
        return Ok(None);
    }
    for _ in 1..rank {
        Counts::unpack(&mut parcel)?;
        parcel.skip()?;
    }
    let (rows, real) = Counts::unpack(&mut parcel)?;
    parcel.enter()?;
    Ok(Some(RankBatch { rank, rows, real, is_last, batch: unpack(&mut parcel)? }))
}
