//! Network namespaces that stand for machines: each with a host name and an address of its own, on one bridge.

use std::process::Command;

/// Machines that end with the value.
pub struct Machines {
    pub names: Vec<String>,
    addresses: Vec<String>,
    bridge: String,
}

/// Runs `ip` with these words; what it says if it fails.
fn ip(words: &str) -> Result<(), String> {
    let output = Command::new("ip").args(words.split_whitespace()).output();
    let output = output.map_err(|error| format!("ip {words}: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("ip {words}: {}", String::from_utf8_lossy(&output.stderr))),
    }
}

impl Machines {
    /// `count` machines; `None`, said aloud, where this user may make none.
    pub fn new(count: usize) -> Option<Machines> {
        if !oarlock_must::have_machines() {
            return None;
        }
        use std::sync::atomic::{AtomicUsize, Ordering};
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = std::process::id() as usize * 8 + NEXT.fetch_add(1, Ordering::Relaxed);
        // Names of interfaces have at most 15 letters.
        let names: Vec<String> = (0..count).map(|i| format!("o{number}m{i}")).collect();
        let (a, b) = (number / 250 % 250, number % 250);
        let addresses = (1..=count).map(|i| format!("10.{a}.{b}.{i}")).collect();
        let machines = Machines { names, addresses, bridge: format!("o{number}b") };
        let bridge = &machines.bridge;
        let mut words = vec![format!("link add {bridge} type bridge"), format!("link set {bridge} up")];
        for (name, address) in machines.names.iter().zip(&machines.addresses) {
            words.extend([
                format!("netns add {name}"),
                format!("link add {name} type veth peer name eth0 netns {name}"),
                format!("link set {name} master {bridge} up"),
                format!("-n {name} link set lo up"),
                format!("-n {name} addr add {address}/24 dev eth0"),
                format!("-n {name} link set eth0 up"),
            ]);
        }
        // There can be machines here, so that one which cannot be made is a failure.
        words.iter().for_each(|words| ip(words).unwrap_or_else(|problem| panic!("{problem}")));
        Some(machines)
    }

    pub fn address(&self, machine: usize) -> &str {
        &self.addresses[machine]
    }

    /// A command on a machine; what follows are its words.
    pub fn command(&self, machine: usize) -> Command {
        let mut command = Command::new("ip");
        let name = &self.names[machine];
        command.args(["netns", "exec", name, "unshare", "--uts", "sh", "-c"]);
        command.args(["hostname \"$0\" && exec \"$@\"", name]);
        command
    }

    /// Takes a machine off the network.
    // The tests of training runs lose no network.
    #[allow(dead_code)]
    pub fn cut_off(&self, machine: usize) {
        ip(&format!("link set {} down", self.names[machine])).unwrap();
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        for name in &self.names {
            // What was not made cannot be removed.
            drop(ip(&format!("link del {name}")));
            drop(ip(&format!("netns del {name}")));
        }
        drop(ip(&format!("link del {}", self.bridge)));
    }
}
