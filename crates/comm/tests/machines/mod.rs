//! Network namespaces that stand for machines: each with a host name and an address of its own, on one bridge.

use std::process::{Command, Stdio};

/// Machines that end with the value.
pub struct Machines {
    pub names: Vec<String>,
    addresses: Vec<String>,
    bridge: String,
}

fn ip(words: &str) -> bool {
    let mut command = Command::new("ip");
    command.args(words.split_whitespace()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

impl Machines {
    /// `count` machines; `None`, said aloud, where this user may not make them.
    pub fn new(count: usize) -> Option<Machines> {
        use std::sync::atomic::{AtomicUsize, Ordering};
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = std::process::id() as usize * 8 + NEXT.fetch_add(1, Ordering::Relaxed);
        // Names of interfaces have at most 15 letters.
        let names: Vec<String> = (0..count).map(|i| format!("o{number}m{i}")).collect();
        let (a, b) = (number / 250 % 250, number % 250);
        let addresses = (1..=count).map(|i| format!("10.{a}.{b}.{i}")).collect();
        let machines = Machines { names, addresses, bridge: format!("o{number}b") };
        let bridge = &machines.bridge;
        let mut made = ip(&format!("link add {bridge} type bridge")) && ip(&format!("link set {bridge} up"));
        for (name, address) in machines.names.iter().zip(&machines.addresses) {
            made = made
                && ip(&format!("netns add {name}"))
                && ip(&format!("link add {name} type veth peer name eth0 netns {name}"))
                && ip(&format!("link set {name} master {bridge} up"))
                && ip(&format!("-n {name} link set lo up"))
                && ip(&format!("-n {name} addr add {address}/24 dev eth0"))
                && ip(&format!("-n {name} link set eth0 up"));
        }
        if !made {
            eprintln!(
                "network namespaces cannot be made here (as root, with iproute2): nothing is tested over several machines"
            );
        }
        made.then_some(machines)
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
    // The tests of trainings lose no network.
    #[allow(dead_code)]
    pub fn cut_off(&self, machine: usize) {
        assert!(ip(&format!("link set {} down", self.names[machine])));
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        for name in &self.names {
            // What was not made cannot be removed.
            ip(&format!("link del {name}"));
            ip(&format!("netns del {name}"));
        }
        ip(&format!("link del {}", self.bridge));
    }
}
