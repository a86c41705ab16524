//! Where a machine is found: the addresses of its interfaces, what a name that all machines use means on this one, and listening
//! where others look.

use std::ffi::CStr;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, TcpListener, ToSocketAddrs};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

/// Connections that the system keeps until they are accepted.
const BACKLOG: i32 = 1024;

/// What a host means on this machine, with its addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// Addresses of this machine, by which others reach it.
    Here(Vec<SocketAddr>),
    /// This machine, by a name or an address that means something else on every other: `localhost`, a name that its table of hosts
    /// maps to a loopback address, its own name, `0.0.0.0`.
    Itself(Vec<SocketAddr>),
    /// Addresses that no interface of this machine has: another machine, or what leads here from outside, such as a Service of
    /// Kubernetes or the outer side of NAT.
    Elsewhere(Vec<SocketAddr>),
    /// No address, and why.
    Unknown(String),
}

impl Place {
    /// What `host` means, with this port.
    pub fn of(host: &str, port: u16) -> Place {
        let is_own_name =
            || std::fs::read_to_string("/proc/sys/kernel/hostname").is_ok_and(|own| own.trim() == host);
        match (host, port).to_socket_addrs() {
            Err(_) if is_own_name() => Place::Itself(vec![SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port)]),
            Err(error) => Place::Unknown(error.to_string()),
            Ok(found) => match Place::among(found.collect(), &own_addresses()) {
                Place::Elsewhere(found) if is_own_name() => Place::Itself(found),
                place => place,
            },
        }
    }

    /// The same, given the addresses of the host and of this machine.
    fn among(found: Vec<SocketAddr>, own: &[(String, IpAddr)]) -> Place {
        let canonical = |address: &SocketAddr| address.ip().to_canonical();
        let is_inner =
            |address: &SocketAddr| canonical(address).is_loopback() || canonical(address).is_unspecified();
        let is_own = |address: &SocketAddr| own.iter().any(|(_, ip)| *ip == canonical(address));
        let here: Vec<SocketAddr> =
            found.iter().filter(|address| !is_inner(address) && is_own(address)).copied().collect();
        match () {
            () if !here.is_empty() => Place::Here(here),
            () if found.iter().any(is_inner) => Place::Itself(found),
            () if found.is_empty() => Place::Unknown("it has no address".into()),
            () => Place::Elsewhere(found),
        }
    }

    /// Its addresses, as far as they are known.
    pub fn addresses(&self) -> &[SocketAddr] {
        match self {
            Place::Here(found) | Place::Itself(found) | Place::Elsewhere(found) => found,
            Place::Unknown(_) => &[],
        }
    }
}

/// A host as it is looked up: an address of IPv6 may have brackets around it, as before a port.
pub fn bare(host: &str) -> &str {
    let inner = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    inner.filter(|inner| inner.contains(':')).unwrap_or(host)
}

/// The interfaces of this machine that have an address, with each of their addresses; none where the system does not say.
pub fn own_addresses() -> Vec<(String, IpAddr)> {
    let mut all = std::ptr::null_mut();
    let mut found = Vec::new();
    // SAFETY: a place for one pointer.
    if unsafe { libc::getifaddrs(&raw mut all) } != 0 {
        return found;
    }
    let mut next = all;
    while !next.is_null() {
        // SAFETY: an entry of the list, which lives until it is freed.
        let one = unsafe { &*next };
        next = one.ifa_next;
        if one.ifa_addr.is_null() {
            continue;
        }
        // SAFETY: an address that begins with its family, whose type it has then; it need not be aligned for that.
        let ip = unsafe {
            match i32::from((*one.ifa_addr).sa_family) {
                libc::AF_INET => {
                    let address = one.ifa_addr.cast::<libc::sockaddr_in>().read_unaligned();
                    Some(IpAddr::V4(Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr))))
                }
                libc::AF_INET6 => {
                    let address = one.ifa_addr.cast::<libc::sockaddr_in6>().read_unaligned();
                    Some(IpAddr::V6(Ipv6Addr::from(address.sin6_addr.s6_addr)))
                }
                _ => None,
            }
        };
        // SAFETY: the name of an entry is a string that ends with zero.
        let name = unsafe { CStr::from_ptr(one.ifa_name) }.to_string_lossy().into_owned();
        found.extend(ip.map(|ip| (name, ip)));
    }
    // SAFETY: the list that the system gave, once; nothing of it is used any more.
    unsafe { libc::freeifaddrs(all) };
    found
}

/// The addresses at which others may reach this machine, as text.
pub fn outer_addresses() -> String {
    let is_outer = |ip: &IpAddr| match ip {
        IpAddr::V4(ip) => !ip.is_loopback(),
        // Those of a link mean nothing without the interface.
        IpAddr::V6(ip) => !ip.is_loopback() && ip.segments()[0] & 0xffc0 != 0xfe80,
    };
    let outer: Vec<String> =
        own_addresses().iter().filter(|(_, ip)| is_outer(ip)).map(|(_, ip)| ip.to_string()).collect();
    if outer.is_empty() { "it has none but loopback".into() } else { outer.join(", ") }
}

/// The address of a network interface; of IPv4 first, as addresses of IPv6 may be of one link only.
pub fn address_of(interface: &str) -> Option<IpAddr> {
    let own = own_addresses();
    let mut of_it = own.iter().filter(|(name, _)| name == interface).map(|(_, ip)| *ip);
    let first = of_it.next()?;
    Some(std::iter::once(first).chain(of_it).find(IpAddr::is_ipv4).unwrap_or(first))
}

/// Listens at all addresses of this machine, of IPv4 and of IPv6 where it has both.
///
/// # Errors
/// When the system refuses, for one because the port is taken.
pub fn listen_everywhere(port: u16) -> std::io::Result<TcpListener> {
    let both = || -> rustix::io::Result<TcpListener> {
        let socket =
            rustix::net::socket_with(AddressFamily::INET6, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        sockopt::set_ipv6_v6only(&socket, false)?;
        // As the standard library does, so that what is left of the last run does not keep the port.
        sockopt::set_socket_reuseaddr(&socket, true)?;
        rustix::net::bind(&socket, &SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, port, 0, 0))?;
        rustix::net::listen(&socket, BACKLOG)?;
        Ok(socket.into())
    };
    match both() {
        // This machine has no IPv6.
        Err(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL | Errno::NOPROTOOPT) => {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))
        }
        other => Ok(other?),
    }
}

/// Listens at the first of these addresses that can be had; `None` where none can: all are taken, or not of this machine.
///
/// # Errors
/// What else the system says.
pub fn listen_at(addresses: &[SocketAddr]) -> std::io::Result<Option<TcpListener>> {
    for address in addresses {
        match TcpListener::bind(address) {
            Ok(listener) => return Ok(Some(listener)),
            Err(e) if matches!(e.kind(), ErrorKind::AddrInUse | ErrorKind::AddrNotAvailable) => {}
            // No such family of addresses on this machine.
            Err(e) if Errno::from_io_error(&e) == Some(Errno::AFNOSUPPORT) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use super::*;

    fn own() -> Vec<(String, IpAddr)> {
        ["127.0.0.1", "10.0.0.5", "fd00::5"].map(|ip| ("eth0".into(), ip.parse().unwrap())).into()
    }

    #[test]
    fn what_a_host_means_here_follows_from_its_addresses() {
        let among = |found: &[&str]| {
            Place::among(found.iter().map(|ip| SocketAddr::new(ip.parse().unwrap(), 5)).collect(), &own())
        };
        let at = |ip: &str| vec![SocketAddr::new(ip.parse().unwrap(), 5)];
        assert_eq!(among(&["10.0.0.5"]), Place::Here(at("10.0.0.5")));
        assert_eq!(among(&["fd00::5"]), Place::Here(at("fd00::5")));
        // A table of hosts with a loopback address beside what others use.
        assert_eq!(among(&["127.0.1.1", "10.0.0.5", "10.0.0.6"]), Place::Here(at("10.0.0.5")));
        for inner in ["127.0.0.1", "127.0.1.1", "::1", "0.0.0.0", "::", "::ffff:127.0.0.1"] {
            assert_eq!(among(&[inner]), Place::Itself(at(inner)), "{inner}");
        }
        assert_eq!(among(&["10.96.0.7"]), Place::Elsewhere(at("10.96.0.7")));
        assert!(matches!(among(&[]), Place::Unknown(_)));
        assert!(matches!(Place::of("no-such-host.invalid", 5), Place::Unknown(_)));
        assert!(matches!(Place::of("localhost", 5), Place::Itself(_)));
        let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        assert!(matches!(Place::of(name.trim(), 5), Place::Here(_) | Place::Itself(_)));
    }

    #[test]
    fn brackets_of_an_address_are_no_part_of_it() {
        assert_eq!(
            ["[fd00::1]", "fd00::1", "worker-0", "[x]"].map(bare),
            ["fd00::1", "fd00::1", "worker-0", "[x]"]
        );
    }

    #[test]
    fn interfaces_have_addresses() {
        assert!(address_of("lo").is_none_or(|address| address.is_loopback()));
        assert_eq!(address_of("no such interface"), None);
        assert_eq!(address_of("a\0b"), None);
        assert!(!outer_addresses().contains("127.0.0.1"));
    }

    #[test]
    fn a_port_is_listened_to_at_all_addresses_and_not_twice() {
        let listener = listen_everywhere(0).unwrap();
        let port = listener.local_addr().unwrap().port();
        for ip in ["127.0.0.1", "127.0.1.1"] {
            TcpStream::connect((ip, port)).unwrap();
        }
        assert_eq!(listen_everywhere(port).unwrap_err().kind(), ErrorKind::AddrInUse);
        let here = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port);
        assert!(listen_at(&[here]).unwrap().is_none());
        assert!(listen_at(&["192.0.2.1:0".parse().unwrap()]).unwrap().is_none());
        drop(listener);
        assert!(listen_at(&[here]).unwrap().is_some());
    }
}
