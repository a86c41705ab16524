//! The port of rank 0: chooses a free one, or reports that it is taken before the ranks start.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener};

use crate::{Error, Result};

/// Whether something listens at a port of this machine.
pub fn is_busy(port: u16) -> bool {
    let taken = |listener: std::io::Result<TcpListener>| {
        listener.is_err_and(|error| error.kind() == ErrorKind::AddrInUse)
    };
    taken(TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)))
        || taken(TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)))
}

/// A port of this machine at which nothing listens now.
///
/// # Errors
/// If there is none.
pub fn free() -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).and_then(|listener| listener.local_addr());
    Ok(listener.map_err(Error::io("find", "a free port"))?.port())
}

/// The port of a round. One machine chooses another port if this one is 0 or taken, with a note; several machines must
/// all use the same port.
///
/// # Errors
/// If several machines cannot meet at it.
pub fn choose(port: u16, machines: usize, this: usize) -> Result<(u16, Option<String>)> {
    match (port, machines) {
        (0, 1) => Ok((free()?, None)),
        (0, _) => Err(Error::Usage(format!(
            "port 0 stands for any free port, but {machines} machines must know which; give all of them the same one"
        ))),
        // Asked once: the question binds the port for a moment, and another launcher may ask at the same time.
        (_, 1) => match is_busy(port) {
            true => {
                let other = free()?;
                Ok((
                    other,
                    Some(format!("port {port} is taken by another program; the ranks meet at {other}")),
                ))
            }
            false => Ok((port, None)),
        },
        _ if this == 0 && is_busy(port) => Err(Error::Usage(format!(
            "port {port} of this machine, at which the ranks are to meet, is taken by another program; give all \
             machines another one"
        ))),
        _ => Ok((port, None)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_taken_port_is_left_aside_on_one_machine_and_refused_on_several() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(is_busy(port));
        let (other, note) = choose(port, 1, 0).unwrap();
        assert!(other != port && other != 0);
        assert!(note.unwrap().contains(&format!("port {port} is taken")));
        assert!(choose(port, 2, 0).unwrap_err().to_string().contains(&format!("port {port}")));
        // It is a port of another machine.
        assert_eq!(choose(port, 2, 1).unwrap(), (port, None));
        assert!(choose(0, 2, 0).is_err());
        assert_ne!(choose(0, 1, 0).unwrap().0, 0);
    }
    #[test]
    fn launchers_that_ask_at_the_same_time_all_get_a_port() {
        let port = free().unwrap();
        let ask = || (0..500).for_each(|_| assert_ne!(choose(port, 1, 0).unwrap().0, 0));
        std::thread::scope(|scope| (0..8).for_each(|_| drop(scope.spawn(ask))));
    }
}
