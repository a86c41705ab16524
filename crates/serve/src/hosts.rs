//! By which names a server may be addressed. A page that makes its own name point at this machine is refused by the name
//! that its requests carry.

use std::net::{IpAddr, SocketAddr};

/// The names and addresses that belong to a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hosts {
    names: Vec<String>,
    /// Where the server listens. An address is no name, and so points nowhere else.
    address: IpAddr,
}

impl Hosts {
    /// Those of a server that listens at an address, and further names.
    pub(crate) fn new(address: SocketAddr, further: &[String]) -> Hosts {
        let names = further.iter().map(|name| name.to_ascii_lowercase()).collect();
        Hosts { names, address: address.ip() }
    }

    /// Whether the `Host` of a request is one of them, with whatever port: ports are forwarded.
    pub(crate) fn has(&self, host: &str) -> bool {
        let Some(name) = without_port(host) else { return false };
        let name = name.to_ascii_lowercase();
        if name == "localhost" || self.names.contains(&name) {
            return true;
        }
        let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(&name);
        let is_own = |address: IpAddr| {
            address.is_loopback() || address == self.address || self.address.is_unspecified()
        };
        address.parse().is_ok_and(is_own)
    }

    /// Whether a page of this origin (`http://localhost:3000`) is on one of them.
    pub(crate) fn has_origin(&self, origin: &str) -> bool {
        let host = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
        host.is_some_and(|host| self.has(host))
    }
}

/// The name in `name:port`.
fn without_port(host: &str) -> Option<&str> {
    let end = match host.strip_prefix('[') {
        Some(rest) => rest.find(']')? + 2,
        None => host.find(':').unwrap_or(host.len()),
    };
    let port = match &host[end..] {
        "" => return Some(&host[..end]),
        rest => rest.strip_prefix(':')?,
    };
    port.bytes().all(|byte| byte.is_ascii_digit()).then(|| &host[..end])
}

#[cfg(test)]
mod tests {
    use super::Hosts;

    #[test]
    fn names_of_others_are_none() {
        let local = Hosts::new("127.0.0.1:8000".parse().unwrap(), &["Box.example".to_owned()]);
        for host in
            ["localhost", "LOCALHOST:8000", "127.0.0.1:8000", "[::1]:8000", "box.example:80", "127.0.0.2"]
        {
            assert!(local.has(host), "{host}");
        }
        let others = [
            "evil.example",
            "localhost.evil.example",
            "",
            ":80",
            "192.168.1.2",
            "[::1",
            "localhost:80x",
            "a@localhost",
        ];
        for host in others {
            assert!(!local.has(host), "{host}");
        }
        let all = Hosts::new("0.0.0.0:8000".parse().unwrap(), &[]);
        assert!(all.has("192.168.1.2:8000") && !all.has("evil.example:8000"));
        let one = Hosts::new("192.168.1.2:8000".parse().unwrap(), &[]);
        assert!(one.has("192.168.1.2") && !one.has("192.168.1.3"));
        assert!(local.has_origin("http://localhost:3000"));
        for origin in ["null", "https://evil.example", "file://localhost"] {
            assert!(!local.has_origin(origin), "{origin}");
        }
    }
}
