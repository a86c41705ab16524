//! Each instruction that the kernels are written in, by itself.

use oarlock_cuda::cache::Cache;
use oarlock_cuda::libraries::Libraries;
use oarlock_cuda::probe::{Probe, WORDS};

use super::finding::Finding;
use super::part::Part;
use crate::console::Outcome;

pub(super) fn check(part: &mut Part<'_>) -> Outcome {
    let mut probe = None;
    for word in WORDS {
        part.check(&word.name(), || {
            let probe = match &probe {
                Some(probe) => probe,
                None => {
                    probe.insert(Probe::open(&Libraries::from_environment(), 0, Cache::from_environment())?)
                }
            };
            let answer = probe.ask(word)?;
            Ok::<_, oarlock_cuda::Error>(Finding::of(answer.is_right, answer.detail))
        })?;
    }
    Ok(())
}
