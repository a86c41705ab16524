//! A transport slowed on purpose: a link of a given latency and bandwidth, for tests and experiments without a network.

use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use oarlock_tensor::DType;

use crate::call::Request;
use crate::collective::Collective;
use crate::error::{Error, Result};
use crate::ledger::RankStatus;
use crate::operation::Operation;
use crate::patience::Patience;
use crate::ready::Ready;
use crate::region::{Region, Sharing};
use crate::transport::Transport;

/// A link between ranks. A collective takes `latency + bytes / bandwidth` on it, where `bytes` are what a rank sends in a
/// ring of `n` ranks: `(n - 1) / n` of the region to gather, broadcast, exchange or reduce-scatter it, twice that to
/// all-reduce it, all of it to send it to one rank, and nothing for small values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// The time of any collective.
    pub latency: Duration,
    /// Bytes per second.
    pub bandwidth: f64,
}

/// The variable that puts the ranks of a run on such a link: a latency and a bandwidth, as in `1ms,10Gbit/s`.
const VARIABLE: &str = "OARLOCK_SLOWED_LINK";

impl Link {
    /// The link that `OARLOCK_SLOWED_LINK` asks for.
    pub(crate) fn from_env() -> Result<Option<Link>> {
        let Some(text) = std::env::var_os(VARIABLE) else { return Ok(None) };
        let text = text.to_string_lossy();
        text.parse().map(Some).map_err(|problem| Error::Join(format!("{VARIABLE}={text}: {problem}")))
    }

    /// The time of a collective of `n` ranks over `bytes` bytes of a region.
    pub fn time(&self, operation: Operation, bytes: usize, n: usize) -> Duration {
        let sent = bytes as f64 * (n as f64 - 1.0) / n as f64;
        let sent = match operation {
            Operation::AllReduce => 2.0 * sent,
            Operation::ReduceScatter | Operation::AllGather | Operation::Broadcast | Operation::AllToAll => {
                sent
            }
            Operation::SendReceive => bytes as f64,
            _ => 0.0,
        };
        self.latency + Duration::from_secs_f64(sent / self.bandwidth)
    }
}

impl FromStr for Link {
    type Err = String;

    /// Reads a latency and a bandwidth, as in `1ms,10Gbit/s` or `50us,1.2GB/s`.
    fn from_str(text: &str) -> std::result::Result<Link, String> {
        let read = || {
            let (latency, bandwidth) = text.split_once(',')?;
            let latency = latency_of(latency.trim())?;
            Some(Link { latency, bandwidth: bandwidth_of(bandwidth.trim())? })
        };
        read().ok_or_else(|| "expected a latency and a bandwidth, such as 1ms,10Gbit/s".to_owned())
    }
}

/// A time with its unit, such as `50us` or `0.5ms`.
pub fn latency_of(text: &str) -> Option<Duration> {
    let seconds = quantity(text, &[("ns", 1e-9), ("us", 1e-6), ("µs", 1e-6), ("ms", 1e-3), ("s", 1.0)])?;
    Duration::try_from_secs_f64(seconds).ok()
}

/// Bytes per second of a bandwidth with its unit, such as `10Gbit/s`, `10gbit` or `1.2GB/s`.
pub fn bandwidth_of(text: &str) -> Option<f64> {
    let text = text.strip_suffix("/s").unwrap_or(text).to_lowercase();
    let units = [("kbit", 125.0), ("mbit", 125e3), ("gbit", 125e6), ("tbit", 125e9)];
    let bytes = [
        ("kb", 1e3),
        ("mb", 1e6),
        ("gb", 1e9),
        ("kib", 1024.0),
        ("mib", 1_048_576.0),
        ("gib", 1_073_741_824.0),
    ];
    quantity(&text, &[&units[..], &bytes[..]].concat()).filter(|rate| *rate > 0.0)
}

/// A number with one of these units.
fn quantity(text: &str, units: &[(&str, f64)]) -> Option<f64> {
    let end = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let factor = units.iter().find(|(name, _)| *name == unit.trim())?.1;
    number.parse::<f64>().ok().map(|x| x * factor).filter(|x| x.is_finite())
}

/// A transport over a slow link: each rank has its own copy of every region, as between machines, and each collective ends
/// no sooner than the link allows.
pub(crate) struct Slowed {
    inner: Arc<dyn Transport>,
    link: Link,
}

impl Slowed {
    pub(crate) fn new(inner: Arc<dyn Transport>, link: Link) -> Slowed {
        Slowed { inner, link }
    }

    fn sleep(&self, request: &Request) {
        let bytes = request.elements * request.dtype.map_or(0, DType::size);
        std::thread::sleep(self.link.time(request.operation, bytes, self.world_size()));
    }
}

impl Transport for Slowed {
    fn rank(&self) -> usize {
        self.inner.rank()
    }

    fn world_size(&self) -> usize {
        self.inner.world_size()
    }

    fn shares_memory(&self) -> bool {
        false
    }

    fn describe(&self) -> String {
        format!("{} over a slow link", self.inner.describe())
    }

    fn sharing_cores(&self) -> (usize, usize) {
        self.inner.sharing_cores()
    }

    fn machines(&self) -> Vec<usize> {
        self.inner.machines()
    }

    fn allocate(&self, request: &Request, _sharing: Sharing) -> Result<Region> {
        self.inner.allocate(request, Sharing::PerRank)
    }

    fn barrier(&self, request: &Request) -> Result<()> {
        self.sleep(request);
        self.inner.barrier(request)
    }

    fn run(&self, request: &Request, collective: &Collective, after: Ready) -> Result<Ready> {
        self.sleep(request);
        self.inner.run(request, collective, after)
    }

    fn all_gather_bytes(&self, request: &Request, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.sleep(request);
        self.inner.all_gather_bytes(request, bytes)
    }

    fn split(&self, request: &Request, group: &[usize]) -> Result<Arc<dyn Transport>> {
        Ok(Arc::new(Slowed::new(self.inner.split(request, group)?, self.link)))
    }

    fn patience(&self) -> &Patience {
        self.inner.patience()
    }

    fn set_phase(&self, note: &str) {
        self.inner.set_phase(note);
    }

    fn statuses(&self) -> Vec<RankStatus> {
        self.inner.statuses()
    }

    fn failure(&self) -> Option<Error> {
        self.inner.failure()
    }

    fn abort(&self, cause: &str) {
        self.inner.abort(cause);
    }

    fn finish(&self) {
        self.inner.finish();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_collective_takes_latency_and_what_is_sent() {
        let link = Link { latency: Duration::from_millis(1), bandwidth: 1e6 };
        let ms = |operation, bytes, n| link.time(operation, bytes, n).as_secs_f64() * 1e3;
        assert_eq!(ms(Operation::Barrier, 0, 4), 1.0);
        assert_eq!(ms(Operation::AllGather, 8000, 4), 7.0);
        assert_eq!(ms(Operation::ReduceScatter, 8000, 2), 5.0);
        assert_eq!(ms(Operation::AllReduce, 8000, 2), 9.0);
    }

    #[test]
    fn a_link_is_a_latency_and_a_bandwidth() {
        let link = |text: &str| text.parse::<Link>();
        let ms = Duration::from_millis;
        assert_eq!(link("1ms,10Gbit/s"), Ok(Link { latency: ms(1), bandwidth: 1.25e9 }));
        assert_eq!(link("0s, 1.5 GB/s"), Ok(Link { latency: ms(0), bandwidth: 1.5e9 }));
        assert_eq!(
            link("500us,100mbit"),
            Ok(Link { latency: Duration::from_micros(500), bandwidth: 12.5e6 })
        );
        for wrong in
            ["", "1ms", "1ms,", "fast,10Gbit/s", "1ms,10", "1ms,0Gbit/s", "1ms,-1Gbit/s", "1e30s,1GB/s"]
        {
            assert!(link(wrong).unwrap_err().contains("1ms,10Gbit/s"), "{wrong}");
        }
    }
}
