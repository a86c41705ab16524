//! Agents on two machines, as far as two network namespaces are two machines. Where the system does not allow them, the
//! test says that it was left out.

use std::process::{Command, Output};
use std::time::Duration;

use crate::launch::agents::{Agent, Event, Meeting};

/// Tells a child of this test its part.
const PART: &str = "OARLOCK_TEST_AGENT";
const KEEPER: &str = "10.77.0.1";
const PORT: u16 = 29400;

/// The children's way in; as a test of its own it has nothing to do.
#[test]
fn child() {
    let Ok(part) = std::env::var(PART) else { return };
    let mut meeting = Meeting::new((KEEPER.into(), PORT), "two machines".into(), 2..=2);
    meeting.join_timeout = Duration::from_secs(20);
    if part == "closed" {
        meeting.join_timeout = Duration::from_secs(1);
        println!("error {}", Agent::join(&meeting, &|| false).err().unwrap());
        return;
    }
    let mut agent = Agent::join(&meeting, &|| false).unwrap();
    let round = agent.next_round(&|| false).unwrap();
    println!(
        "{part}: keeps {} node {} of {} at {}",
        agent.keeps_the_list(),
        round.node_rank,
        round.local_ranks.len(),
        round.master_addr
    );
    assert_eq!(agent.done(&|| false).unwrap(), Event::AllDone);
}

/// Runs a script in namespaces of its own: of users, so that it may; of networks, so that it is alone.
fn alone(script: &str) -> Option<Output> {
    let may = Command::new("unshare").args(["-rnm", "ip", "link"]).output();
    let may = may.is_ok_and(|output| output.status.success());
    if !oarlock_must::have("netns", may, "a namespace of users with a network needs unshare, nsenter and ip")
    {
        return None;
    }
    let program = std::env::current_exe().unwrap();
    Some(Command::new("unshare").args(["-rnm", "sh", "-ec", script]).arg(program).output().unwrap())
}

#[test]
fn agents_of_two_machines_meet() {
    // The second machine is the namespace of a process that sleeps; a pair of ends is the cable.
    let script = "
        run() { OARLOCK_TEST_AGENT=$1 \"$0\" --exact launch::agents::tests::namespaces::child --nocapture; }
        unshare -n sleep 60 & other=$!
        trap 'kill $other' EXIT
        until [ \"$(readlink /proc/$other/ns/net)\" != \"$(readlink /proc/self/ns/net)\" ]; do sleep 0.05; done
        ip link set lo up
        ip link add near type veth peer name far netns $other
        ip addr add 10.77.0.1/24 dev near
        ip link set near up
        there() { nsenter -n -t $other \"$@\"; }
        there ip addr add 10.77.0.2/24 dev far
        there ip link set far up
        there ip link set lo up
        export OARLOCK_TEST_AGENT=closed
        there \"$0\" --exact launch::agents::tests::namespaces::child --nocapture
        export OARLOCK_TEST_AGENT=far
        there \"$0\" --exact launch::agents::tests::namespaces::child --nocapture & far=$!
        sleep 0.3
        run near
        wait $far
    ";
    let Some(output) = alone(script) else { return };
    let said = String::from_utf8_lossy(&output.stdout);
    let wrong = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said} {wrong}");
    assert!(said.contains("error no agent answered at 10.77.0.1:29400 for 1 s: 10.77.0.1:29400: "), "{said}");
    assert!(said.contains("Connection refused"), "{said}");
    assert!(said.contains("near: keeps true node 0 of 2 at 10.77.0.1"), "{said} {wrong}");
    assert!(said.contains("far: keeps false node 1 of 2 at 10.77.0.1"), "{said} {wrong}");
}
