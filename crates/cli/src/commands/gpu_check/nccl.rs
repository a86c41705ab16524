//! Each call of NCCL with one rank: what it takes and gives, in place and not, and how it ends.

use std::time::Duration;

use oarlock_cuda::driver::{DeviceMemory, Driver, Stream};
use oarlock_cuda::libraries::Libraries;
use oarlock_cuda::nccl::{Comm, Nccl, Patience, Reduction};
use oarlock_cuda::{Element, Error, Result};

use super::finding::Finding;
use super::part::Part;
use crate::console::Outcome;

/// Elements of each call: no multiple of what a block takes, and a number that NCCL has whole. It rounds the blocks of an average
/// of one rank down (2.28, `onerank.cu`), so that of 100,003 elements in f32, 25 blocks, the last 3 are left out.
const N: usize = 100_025;
/// What no call of one rank takes.
const PATIENCE: Duration = Duration::from_secs(30);
/// The types of what ranks exchange.
const ELEMENTS: [Element; 6] =
    [Element::F32, Element::BF16, Element::F16, Element::I32, Element::U8, Element::F64];
const REDUCTIONS: [(&str, Reduction); 5] = [
    ("sum", Reduction::Sum),
    ("product", Reduction::Product),
    ("max", Reduction::Max),
    ("min", Reduction::Min),
    ("average", Reduction::Average),
];

/// A rank that is alone.
struct Rank {
    nccl: Nccl,
    comm: Comm,
    stream: Stream,
}

/// Memory of a rank, with what it holds.
struct Operand {
    memory: DeviceMemory,
    bytes: Vec<u8>,
}

impl Rank {
    fn join() -> Result<Rank> {
        let libraries = Libraries::from_environment();
        let nccl = Nccl::find(&libraries)?;
        let context = Driver::find(&libraries)?.device(0)?.context()?;
        let comm = nccl.join(&context, nccl.unique_id()?, 0, 1, Patience::new(PATIENCE))?;
        let stream = context.stream()?;
        Ok(Rank { nccl, comm, stream })
    }

    /// Small whole numbers, which every type has.
    fn operand(&self, element: Element, seed: usize) -> Result<Operand> {
        let of = |i: usize| (i * 7 + seed) % 13;
        let bytes: Vec<u8> = match element {
            Element::F32 => (0..N).flat_map(|i| (of(i) as f32).to_le_bytes()).collect(),
            Element::F64 => (0..N).flat_map(|i| (of(i) as f64).to_le_bytes()).collect(),
            Element::I32 => (0..N).flat_map(|i| (of(i) as i32).to_le_bytes()).collect(),
            Element::BF16 => {
                (0..N).flat_map(|i| oarlock_tensor::bf16::from_f32(of(i) as f32).to_le_bytes()).collect()
            }
            Element::F16 => {
                (0..N).flat_map(|i| oarlock_tensor::f16::from_f32(of(i) as f32).to_le_bytes()).collect()
            }
            _ => (0..N * element.size()).map(|i| of(i) as u8).collect(),
        };
        let memory = self.comm.context().alloc(bytes.len())?;
        self.stream.write_now(&bytes, memory.all())?;
        Ok(Operand { memory, bytes })
    }

    /// What of these bytes memory does not hold when all calls are done; nothing where it has them all.
    fn wrong(&self, memory: &DeviceMemory, wanted: &[u8]) -> Result<Wrong> {
        self.comm.synchronize(&self.stream, Patience::new(PATIENCE))?;
        let mut found = vec![0; wanted.len()];
        self.stream.read_now(memory.all(), &mut found)?;
        let mut differing = (0..wanted.len()).filter(|&at| found[at] != wanted[at]);
        Ok(differing.next().map(|at| {
            let (n, len) = (1 + differing.count(), wanted.len());
            format!("{n} of {len} bytes, the first at {at}: {:#04x} for {:#04x}", found[at], wanted[at])
        }))
    }

    /// Runs a call from one operand to another and, with `in_place`, from one to itself. Of one rank each gives what it takes.
    fn gives(
        &self,
        element: Element,
        in_place: bool,
        call: impl Fn(&Comm, &DeviceMemory, &DeviceMemory, &Stream) -> Result<()>,
    ) -> Result<Wrong> {
        let (from, to) = (self.operand(element, 1)?, self.operand(element, 2)?);
        call(&self.comm, &from.memory, &to.memory, &self.stream)?;
        let wrong = self.wrong(&to.memory, &from.bytes)?;
        if wrong.is_some() || !in_place {
            return Ok(wrong);
        }
        call(&self.comm, &from.memory, &from.memory, &self.stream)?;
        Ok(self.wrong(&from.memory, &from.bytes)?.map(|wrong| format!("in place, {wrong}")))
    }
}

/// What is wrong, if anything is.
type Wrong = Option<String>;
type Call = Box<dyn FnOnce(&Rank) -> Result<Wrong>>;
type Check = (String, Call);

pub(super) fn check(part: &mut Part<'_>) -> Outcome {
    let mut rank = None;
    for (name, check) in checks() {
        part.check(&name, || {
            let rank = match &rank {
                Some(rank) => rank,
                None => match Rank::join() {
                    Err(error @ Error::NoLibrary { .. }) => return Ok(Finding::skipped(error.to_string())),
                    joined => rank.insert(joined?),
                },
            };
            let version = rank.nccl.version()?;
            let wrong = check(rank)?;
            let is_right = wrong.is_none();
            let detail =
                wrong.map_or_else(|| format!("right, by NCCL {version}"), |wrong| format!("wrong: {wrong}"));
            Ok::<_, Error>(Finding::of(is_right, detail))
        })?;
    }
    part.check("finalize", || {
        // Of one that has done nothing, and of one that has.
        let ended = [Some(Rank::join()), rank.map(Ok)]
            .into_iter()
            .flatten()
            .try_for_each(|rank| rank?.comm.finalize());
        match ended {
            Err(error @ Error::NoLibrary { .. }) => Ok(Finding::skipped(error.to_string())),
            ended => ended.map(|()| Finding::ok("ended")),
        }
    })
}

/// This is wrong, unless it is right.
fn unless(is_right: bool, wrong: &str) -> Wrong {
    (!is_right).then(|| wrong.to_owned())
}

fn checks() -> Vec<Check> {
    let mut checks: Vec<Check> = Vec::new();
    let mut add = |name: String, check: Call| checks.push((name, check));
    add(
        "join".to_owned(),
        Box::new(|rank| Ok(unless((rank.comm.rank(), rank.comm.world()) == (0, 1), "not rank 0 of 1"))),
    );
    for element in ELEMENTS {
        add(
            format!("all_reduce {element}"),
            Box::new(move |rank| {
                for (name, by) in REDUCTIONS {
                    let wrong = rank.gives(element, true, |comm, from, to, stream| {
                        comm.all_reduce(from.all(), to.all(), element, by, stream)
                    })?;
                    if let Some(wrong) = wrong {
                        return Ok(Some(format!("{name}: {wrong}")));
                    }
                }
                Ok(None)
            }),
        );
        add(
            format!("reduce_scatter {element}"),
            Box::new(move |rank| {
                rank.gives(element, true, |comm, from, to, stream| {
                    comm.reduce_scatter(from.all(), to.all(), element, Reduction::Sum, stream)
                })
            }),
        );
        add(
            format!("all_gather {element}"),
            Box::new(move |rank| {
                rank.gives(element, true, |comm, from, to, stream| {
                    comm.all_gather(from.all(), to.all(), element, stream)
                })
            }),
        );
        add(
            format!("reduce {element}"),
            Box::new(move |rank| {
                rank.gives(element, true, |comm, from, to, stream| {
                    comm.reduce(from.all(), to.all(), element, (Reduction::Sum, 0), stream)
                })
            }),
        );
        add(
            format!("broadcast {element}"),
            Box::new(move |rank| {
                let all = rank.operand(element, 3)?;
                rank.comm.broadcast(all.memory.all(), element, 0, &rank.stream)?;
                rank.wrong(&all.memory, &all.bytes)
            }),
        );
        add(
            format!("send and recv {element}"),
            Box::new(move |rank| {
                rank.gives(element, false, |comm, from, to, stream| {
                    comm.group(stream, |group| {
                        group.send(from.all(), element, 0)?;
                        group.recv(to.all(), element, 0)
                    })
                })
            }),
        );
    }
    add(
        "a group of calls".to_owned(),
        Box::new(|rank| {
            let [a, b, c] = [1, 2, 3].map(|seed| rank.operand(Element::F32, seed));
            let (a, b, c) = (a?, b?, c?);
            rank.comm.group(&rank.stream, |group| {
                group.all_reduce(a.memory.all(), a.memory.all(), Element::F32, Reduction::Sum)?;
                group.all_gather(b.memory.all(), c.memory.all(), Element::F32)
            })?;
            Ok(rank.wrong(&a.memory, &a.bytes)?.or(rank.wrong(&c.memory, &b.bytes)?))
        }),
    );
    add(
        "split, and its end".to_owned(),
        Box::new(|rank| {
            let Some(comm) = rank.comm.split(Some(1), 0)? else {
                return Ok(Some("no communicator".to_owned()));
            };
            let x = rank.operand(Element::F32, 1)?;
            comm.all_reduce(x.memory.all(), x.memory.all(), Element::F32, Reduction::Sum, &rank.stream)?;
            comm.synchronize(&rank.stream, Patience::new(PATIENCE))?;
            let wrong = rank.wrong(&x.memory, &x.bytes)?;
            comm.finalize()?;
            let none = rank.comm.split(None, 0)?.is_none();
            Ok(wrong.or(unless(none, "a communicator for who has no color")))
        }),
    );
    add(
        "abort of one with work".to_owned(),
        Box::new(|rank| {
            // One of its own: the others go on.
            let Rank { comm, stream, .. } = Rank::join()?;
            let x = rank.operand(Element::F32, 1)?;
            comm.all_reduce(x.memory.all(), x.memory.all(), Element::F32, Reduction::Sum, &stream)?;
            comm.abort()?;
            stream.synchronize()?;
            let after =
                comm.all_reduce(x.memory.all(), x.memory.all(), Element::F32, Reduction::Sum, &stream);
            Ok(unless(matches!(after, Err(Error::Aborted { .. })), "it takes calls after it was aborted"))
        }),
    );
    checks
}
