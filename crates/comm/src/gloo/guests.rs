//! What the other ranks tell rank 0: who they are, where they are reached, and whether they are connected.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::time::Timespec;

use crate::error::Error;
use crate::program::build;
use crate::wire::{Broken, Channel, PROMPT, printable};

/// The longest text of another rank that is shown.
pub(super) const TEXT: usize = 2048;

/// What the other ranks report to rank 0 of their connections.
pub(super) struct Reports {
    pub(super) guests: Vec<Channel>,
    is_connected: Vec<bool>,
}

impl Reports {
    /// Of ranks 1 and so on, none of which has reported anything.
    pub(super) fn of(guests: Vec<Channel>) -> Reports {
        Reports { is_connected: vec![false; guests.len()], guests }
    }

    /// The first rank that has reported nothing yet.
    pub(super) fn missing(&self) -> Option<usize> {
        self.is_connected.iter().position(|is_connected| !is_connected).map(|index| index + 1)
    }

    /// Takes the reports that come within this time; the first that tells of a failure.
    pub(super) fn hear(&mut self, limit: Duration) -> Option<String> {
        let waits: Vec<usize> = (0..self.guests.len()).filter(|index| !self.is_connected[*index]).collect();
        let file = |index: &usize| PollFd::new(self.guests[*index].stream(), PollFlags::IN);
        let mut files: Vec<PollFd<'_>> = waits.iter().map(file).collect();
        let limit = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: i64::from(limit.subsec_nanos()) };
        // An interrupted wait is one in which nothing has come.
        rustix::event::poll(&mut files, Some(&limit)).ok()?;
        let ready: Vec<bool> = files.iter().map(|file| !file.revents().is_empty()).collect();
        for (index, _) in waits.into_iter().zip(ready).filter(|(_, is_ready)| *is_ready) {
            match self.guests[index].receive(Instant::now() + PROMPT, &|| true) {
                Ok(said) if said == b"connected" => self.is_connected[index] = true,
                Ok(said) => return Some(printable(&String::from_utf8_lossy(&said), TEXT)),
                Err(broken) => return Some(plain(&lost(index + 1, &broken))),
            }
        }
        None
    }
}

/// Where each rank is reached by all others. One that listens at all addresses of its machine is known by the address from which it
/// has come to rank 0; on the machine of rank 0, by the address at which others have reached that.
pub(super) fn addresses(own: SocketAddr, guests: &[Option<(Channel, SocketAddr)>]) -> Vec<SocketAddr> {
    let ip = |end: std::io::Result<SocketAddr>| end.ok().map(|end| end.ip().to_canonical());
    let outer = |ip: &IpAddr| !ip.is_loopback();
    let here =
        guests.iter().flatten().find_map(|(channel, _)| ip(channel.stream().local_addr()).filter(outer));
    let here = here.unwrap_or(Ipv4Addr::LOCALHOST.into());
    let known = |address: SocketAddr, ip: IpAddr| match address.ip().is_unspecified() {
        true => SocketAddr::new(ip, address.port()),
        false => address,
    };
    let of_guest = |(channel, address): &(Channel, SocketAddr)| {
        known(*address, ip(channel.stream().peer_addr()).filter(outer).unwrap_or(here))
    };
    std::iter::once(known(own, here)).chain(guests.iter().flatten().map(of_guest)).collect()
}

/// Which rank is reached from its own machine alone.
pub(super) fn inner(addresses: &[SocketAddr]) -> Option<String> {
    let rank = addresses.iter().position(|address| address.ip().is_loopback())?;
    Some(format!(
        "rank {rank} waits for other ranks at the loopback address {}, which other machines do not reach; GLOO_SOCKET_IFNAME \
         of its machine must name another network interface, or not be set",
        addresses[rank].ip()
    ))
}

/// A rank as it introduces itself.
pub(super) struct Hello {
    pub(super) rank: usize,
    pub(super) size: usize,
    /// Where other ranks reach it.
    pub(super) address: SocketAddr,
}

impl Hello {
    pub(super) fn write(&self) -> Vec<u8> {
        format!("{} {} {} {}", build(), self.rank, self.size, self.address).into_bytes()
    }

    pub(super) fn read(bytes: &[u8]) -> Option<HelloRead> {
        let text = std::str::from_utf8(bytes).ok()?;
        let [build, rank, size, address] = text.split(' ').collect::<Vec<_>>().try_into().ok()?;
        let (rank, size, address) = (rank.parse().ok()?, size.parse().ok()?, address.parse().ok()?);
        Some(HelloRead { build: printable(build, 64), rank, size, address })
    }
}

/// The same, as another process said it.
pub(super) struct HelloRead {
    pub(super) build: String,
    pub(super) rank: usize,
    pub(super) size: usize,
    pub(super) address: SocketAddr,
}

impl HelloRead {
    /// Why it cannot be a rank of a world of `size`.
    pub(super) fn obstacle(&self, size: usize) -> Option<String> {
        let HelloRead { build: its_build, rank, size: its, .. } = self;
        let ours = build();
        match () {
            () if its_build != ours => Some(format!(
                "rank {rank} is build {its_build} of this program, and rank 0 is build {ours}; start one build on all \
                 machines"
            )),
            () if *its != size => Some(format!(
                "rank {rank} was told that there are {its} ranks, and rank 0 that there are {size}; WORLD_SIZE must be the \
                 same on all"
            )),
            () if !(1..size).contains(rank) => {
                Some(format!("rank {rank} of {size} is none that can join rank 0"))
            }
            () => None,
        }
    }
}

pub(super) fn lost(rank: usize, broken: &Broken) -> Error {
    Error::Join(format!("rank {rank} was lost while the ranks met: {broken}"))
}

/// The text of a failure without what a failure to join begins with.
pub(super) fn plain(error: &Error) -> String {
    match error {
        Error::Join(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_that_only_its_own_machine_reaches_is_named() {
        let at = |all: &[&str]| inner(&all.iter().map(|one| one.parse().unwrap()).collect::<Vec<_>>());
        assert_eq!(at(&["10.0.0.1:1", "10.0.0.2:2"]), None);
        assert!(at(&["10.0.0.1:1", "127.0.0.1:2"]).unwrap().starts_with("rank 1 waits"));
        assert!(at(&["[::1]:1", "10.0.0.2:2"]).unwrap().contains("GLOO_SOCKET_IFNAME"));
    }
}
