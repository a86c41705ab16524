//! Several agents on one machine, each a thread as a launcher would drive it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use super::meeting;
use crate::launch::agents::{Agent, AgentsError, Decision, Event, Meeting, Round};

fn never() -> bool {
    false
}

/// Each test has a minute, also where many share the machine.
fn within(test: impl FnOnce() + Send + 'static) {
    let (done, result) = mpsc::channel();
    std::thread::spawn(move || {
        test();
        done.send(())
    });
    result.recv_timeout(Duration::from_secs(60)).expect("the test hangs or panicked");
}

/// All join and are in the first round, in the order of their places.
fn first_round(meetings: &[Meeting]) -> Vec<(Agent, Round)> {
    let threads: Vec<_> = meetings
        .iter()
        .cloned()
        .map(|meeting| {
            std::thread::spawn(move || {
                let mut agent = Agent::join(&meeting, &never).unwrap();
                let round = agent.next_round(&never).unwrap();
                (agent, round)
            })
        })
        .collect();
    let mut all: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    all.sort_by_key(|(_, round)| round.node_rank);
    all
}

/// All come to the next round.
fn next_round(agents: Vec<Agent>) -> Vec<(Agent, Round)> {
    let threads: Vec<_> = agents
        .into_iter()
        .map(|mut agent| {
            std::thread::spawn(move || {
                let round = agent.next_round(&never).unwrap();
                (agent, round)
            })
        })
        .collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

/// What a launcher that looks now and then hears first.
fn news(agent: &mut Agent) -> Event {
    loop {
        match agent.poll().unwrap() {
            Event::Nothing => std::thread::sleep(Duration::from_millis(5)),
            news => return news,
        }
    }
}

fn all_done(agents: Vec<Agent>) {
    let threads: Vec<_> =
        agents.into_iter().map(|mut agent| std::thread::spawn(move || agent.done(&never).unwrap())).collect();
    for thread in threads {
        assert_eq!(thread.join().unwrap(), Event::AllDone);
    }
}

fn only_agents(all: Vec<(Agent, Round)>) -> Vec<Agent> {
    all.into_iter().map(|(agent, _)| agent).collect()
}

#[test]
fn whoever_comes_first_keeps_the_list_and_all_see_one_world() {
    within(|| {
        let ours = meeting(3..=3);
        let meetings: Vec<Meeting> =
            [1, 2, 4].map(|local_ranks| Meeting { local_ranks, ..ours.clone() }).into();
        let all = first_round(&meetings);
        assert_eq!(all.iter().filter(|(agent, _)| agent.keeps_the_list()).count(), 1);
        assert!(all[0].0.keeps_the_list());
        for (place, (_, round)) in all.iter().enumerate() {
            assert_eq!(
                (round.node_rank, round.restart, round.local_ranks.iter().sum::<usize>()),
                (place, 0, 7)
            );
            assert_eq!(round.local_ranks, all[0].1.local_ranks);
            assert_eq!((&*round.master_addr, round.master_port), ("127.0.0.1", all[0].1.master_port));
        }
        all_done(only_agents(all));
        // The place is free again, for the next run of the same name.
        all_done(only_agents(first_round(&[Meeting { nodes: 1..=1, ..ours }])));
    });
}

#[test]
fn who_is_alone_needs_no_port() {
    within(|| {
        let mut alone = Meeting { nodes: 1..=1, ..meeting(1..=1) };
        alone.endpoint.1 = 0;
        let all = first_round(std::slice::from_ref(&alone));
        assert_eq!(all[0].1.local_ranks, [1]);
        all_done(only_agents(all));
        alone.nodes = 1..=2;
        assert!(matches!(
            Agent::join(&alone, &never),
            Err(AgentsError::Setting { what: "--rdzv-endpoint", .. })
        ));
    });
}

#[test]
fn a_failure_restarts_all_until_no_restart_is_left() {
    within(|| {
        let ours = Meeting { max_restarts: 1, ..meeting(2..=2) };
        let mut agents = only_agents(first_round(&[ours.clone(), ours]));
        let decision = agents[1].failed(1, "it was ended by signal 9 (SIGKILL)", false, &never).unwrap();
        let Decision::Restart { reason } = decision else { panic!() };
        assert!(reason.ends_with("rank 1: it was ended by signal 9 (SIGKILL)"), "{reason}");
        assert_eq!(news(&mut agents[0]), Event::Restart { reason: reason.clone() });
        // Its own ranks fell over the lost one: that is not a second failure.
        assert_eq!(
            agents[0].failed(0, "rank 1 failed", false, &never).unwrap(),
            Decision::Restart { reason }
        );
        let again = next_round(agents);
        assert!(again.iter().all(|(_, round)| round.restart == 1));
        let mut agents = only_agents(again);
        let Decision::Abort { reason: Some(reason) } =
            agents[0].failed(0, "rank 1 failed", false, &never).unwrap()
        else {
            panic!()
        };
        assert!(reason.ends_with("rank 0: rank 1 failed; all 1 restarts are used"), "{reason}");
        assert_eq!(news(&mut agents[1]), Event::Abort { reason: reason.clone() });
        assert_eq!(agents[1].next_round(&never).unwrap_err(), AgentsError::Ended { reason });
    });
}

#[test]
fn a_node_that_comes_later_takes_part_from_the_next_round() {
    within(|| {
        let ours = meeting(1..=2);
        let mut first = only_agents(first_round(std::slice::from_ref(&ours)));
        let second = std::thread::spawn(move || {
            let mut agent = Agent::join(&ours, &never).unwrap();
            let round = agent.next_round(&never).unwrap();
            (agent, round)
        });
        let Event::Restart { reason } = news(&mut first[0]) else { panic!() };
        assert!(reason.ends_with(" joins"), "{reason}");
        let again = next_round(first);
        assert_eq!((again[0].1.restart, again[0].1.local_ranks.len()), (0, 2));
        let second = second.join().unwrap();
        assert_eq!((second.1.node_rank, second.1.master_port), (1, again[0].1.master_port));
        all_done(vec![only_agents(again).remove(0), second.0]);
    });
}

#[test]
fn without_a_node_that_leaves_the_others_go_on_or_say_what_is_missing() {
    within(|| {
        let ours = Meeting { join_timeout: Duration::from_secs(2), ..meeting(2..=3) };
        let mut agents = only_agents(first_round(&[ours.clone(), ours.clone(), ours]));
        drop(agents.remove(2));
        let Event::Restart { reason } = news(&mut agents[0]) else { panic!() };
        assert!(reason.ends_with(" left"), "{reason}");
        let again = next_round(agents);
        assert!(again.iter().all(|(_, round)| round.local_ranks == [1, 1] && round.restart == 0));
        let mut agents = only_agents(again);
        drop(agents.remove(1));
        assert!(matches!(news(&mut agents[0]), Event::Restart { .. }));
        let AgentsError::Ended { reason } = agents[0].next_round(&never).unwrap_err() else { panic!() };
        assert!(reason.starts_with("after 2 s 1 of at least 2 nodes are ready: "), "{reason}");
        assert!(reason.contains(" left"), "{reason}");
    });
}

#[test]
fn who_is_done_waits_and_comes_back_if_another_fails() {
    within(|| {
        let ours = Meeting { max_restarts: 1, ..meeting(2..=2) };
        let mut agents = only_agents(first_round(&[ours.clone(), ours]));
        let (mut second, mut first) = (agents.pop().unwrap(), agents.pop().unwrap());
        let waiting = std::thread::spawn(move || {
            let event = first.done(&never).unwrap();
            (first, event)
        });
        std::thread::sleep(Duration::from_millis(50));
        assert!(matches!(second.failed(1, "exit code 1", false, &never).unwrap(), Decision::Restart { .. }));
        let (first, event) = waiting.join().unwrap();
        assert!(matches!(event, Event::Restart { .. }), "{event:?}");
        all_done(only_agents(next_round(vec![first, second])));
    });
}

#[test]
fn when_the_keeper_of_the_list_goes_all_end() {
    within(|| {
        let ours = Meeting { max_restarts: 5, ..meeting(1..=2) };
        let mut agents = only_agents(first_round(&[ours.clone(), ours]));
        drop(agents.remove(0));
        let Event::Abort { reason } = news(&mut agents[0]) else { panic!() };
        assert!(reason.contains("keeps the list of nodes"), "{reason}");
    });
}

/// What agents that have lost each other do, where the network is gone for a while: a proxy that holds everything back.
#[test]
fn an_outage_keeps_the_round() {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::sync::Arc;

    fn pump(mut from: TcpStream, mut to: TcpStream, cut: Arc<AtomicBool>) {
        let mut bytes = [0; 4096];
        while let Ok(n @ 1..) = from.read(&mut bytes) {
            while cut.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(5));
            }
            if to.write_all(&bytes[..n]).is_err() {
                return;
            }
        }
        let _ = to.shutdown(std::net::Shutdown::Write);
    }

    within(|| {
        let mut ours = Meeting { place: Some(0), ..meeting(2..=2) };
        ours.keep_alive = Duration::from_secs(1);
        let store = ours.endpoint.clone();
        let door = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let mut second = Meeting { place: Some(1), ..ours.clone() };
        second.endpoint.1 = door.local_addr().unwrap().port();
        let cut = Arc::new(AtomicBool::new(false));
        let its = cut.clone();
        std::thread::spawn(move || {
            for guest in door.incoming() {
                // A guest that comes before the store listens is turned away, and comes again.
                let guest = guest.unwrap();
                let Ok(host) = TcpStream::connect(&store) else { continue };
                for (from, to) in [(&guest, &host), (&host, &guest)] {
                    let (from, to, its) = (from.try_clone().unwrap(), to.try_clone().unwrap(), its.clone());
                    std::thread::spawn(move || pump(from, to, its));
                }
            }
        });
        let mut agents = only_agents(first_round(&[ours, second]));
        cut.store(true, Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(1800));
        cut.store(false, Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(500));
        for agent in &mut agents {
            assert_eq!(agent.poll().unwrap(), Event::Nothing);
        }
        all_done(agents);
    });
}

/// The port of the meeting, for an agent that is a process.
const PORT: &str = "OARLOCK_TEST_AGENT_PORT";

fn of_processes(port: u16) -> Meeting {
    let mut meeting = Meeting { max_restarts: 5, ..meeting(1..=2) };
    meeting.endpoint.1 = port;
    meeting.keep_alive = Duration::from_secs(1);
    meeting
}

/// A process's way in; as a test of its own it has nothing to do.
#[test]
fn child() {
    let Some(port) = std::env::var(PORT).ok().and_then(|port| port.parse().ok()) else { return };
    let mut agent = Agent::join(&of_processes(port), &never).unwrap();
    let _ = agent.next_round(&never).unwrap();
    println!("works");
    loop {
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// Invariant 7.
#[test]
fn a_node_that_is_killed_or_stopped_is_lost() {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    use rustix::process::{Pid, Signal, kill_process};

    within(|| {
        for (signal, message) in
            [(Signal::KILL, " was lost: "), (Signal::STOP, " gave no sign of life for 3 s")]
        {
            let ours = of_processes(meeting(1..=2).endpoint.1);
            let mut keeper = Agent::join(&ours, &never).unwrap();
            let mut child = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "launch::agents::tests::meetings::child", "--nocapture"])
                .env(PORT, ours.endpoint.1.to_string())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let pid = child.id();
            while keeper.next_round(&never).unwrap().local_ranks.len() < 2 {
                assert!(matches!(news(&mut keeper), Event::Restart { .. }));
            }
            let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
            assert!(lines.any(|line| line.unwrap().contains("works")));
            kill_process(Pid::from_raw(pid as i32).unwrap(), signal).unwrap();
            let Event::Restart { reason } = news(&mut keeper) else { panic!() };
            assert!(reason.contains(&format!("(process {pid})")) && reason.contains(message), "{reason}");
            assert_eq!(keeper.next_round(&never).unwrap().local_ranks, [1]);
            child.kill().unwrap();
            child.wait().unwrap();
        }
    });
}

#[test]
fn a_wait_can_be_stopped() {
    within(|| {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let ours = meeting(2..=2);
            let stopped = || stop.load(Ordering::Relaxed);
            let waits = scope.spawn(move || {
                let mut agent = Agent::join(&ours, &stopped).unwrap();
                agent.next_round(&stopped)
            });
            std::thread::sleep(Duration::from_millis(50));
            stop.store(true, Ordering::Relaxed);
            let waiting = "waiting for the other nodes";
            assert_eq!(waits.join().unwrap(), Err(AgentsError::Stopped { waiting }));
        });
        let mut nobody = meeting(2..=2);
        nobody.endpoint.0 = "no-such-host.invalid".into();
        assert!(matches!(Agent::join(&nobody, &|| true), Err(AgentsError::Stopped { .. })));
    });
}

/// The ranks of a round have a token that is the same on all machines, new in every round, and no word of the secret.
#[test]
fn every_round_has_a_token_of_its_own() {
    within(|| {
        let mut ours = meeting(2..=2);
        ours.access.token = Some("sesame".into());
        ours.max_restarts = 1;
        let numbered = [1, 0].map(|place| Meeting { place: Some(place), ..ours.clone() });
        let all = first_round(&numbered);
        let first = all[0].1.token.clone();
        assert_eq!([all[1].1.number, all[1].1.node_rank as u64], [1, 1]);
        assert!(all[0].0.keeps_the_list() && all[1].1.token == first && first.len() == 64, "{first}");
        assert!(!first.contains("sesame"));
        let mut agents = only_agents(all);
        agents[1].failed(1, "it fell", false, &never).unwrap();
        while !matches!(news(&mut agents[0]), Event::Restart { .. }) {}
        let all = next_round(agents);
        assert!(all[0].1.token == all[1].1.token && all[0].1.token != first);
        assert_eq!(all[0].1.number, 2);
        all_done(only_agents(all));
    });
}

#[test]
fn machine_0_must_have_its_port() {
    within(|| {
        let mut ours = meeting(2..=2);
        ours.place = Some(0);
        let _taken = std::net::TcpListener::bind(("127.0.0.1", ours.endpoint.1)).unwrap();
        let error = Agent::join(&ours, &never).err().unwrap();
        assert!(matches!(error, AgentsError::NotHere { .. }), "{error}");
    });
}

/// Who keeps the list follows from the numbers of nodes, from `is_host`, or from the endpoint, in this order.
#[test]
fn who_keeps_the_list_is_said_or_follows_from_the_endpoint() {
    within(|| {
        let mut ours = meeting(2..=2);
        let join = |meeting: &Meeting| Agent::join(meeting, &never);
        // An address of no interface, as that of a Service: the one that is told to keeps the list all the same.
        ours.endpoint.0 = "10.255.255.1".into();
        for (place, is_host) in [(Some(0), Some(false)), (None, Some(true))] {
            let keeper = join(&Meeting { place, is_host, ..ours.clone() }).unwrap();
            assert!(keeper.keeps_the_list());
            let other = Meeting { place: place.map(|_| 1), is_host: is_host.map(|_| false), ..ours.clone() };
            let other = Meeting { endpoint: ("127.0.0.1".into(), ours.endpoint.1), ..other };
            assert!(!join(&other).unwrap().keeps_the_list());
        }
        // Nobody keeps it, and it is reported at once.
        static TOLD: std::sync::Mutex<Vec<String>> = std::sync::Mutex::new(Vec::new());
        ours.report = |text| TOLD.lock().unwrap().push(text.into());
        ours.join_timeout = Duration::from_secs(1);
        ours.endpoint.0 = "no-such-host.invalid".into();
        let error = join(&ours).map(drop).unwrap_err();
        assert!(matches!(error, AgentsError::Unreachable { .. }));
        // No firewall keeps a name from being known.
        let said = error.to_string();
        assert!(said.contains("is this the name of the machine") && !said.contains("firewall"), "{said}");
        ours.endpoint.0 = "localhost".into();
        ours.place = Some(1);
        assert!(matches!(join(&ours), Err(AgentsError::Unreachable { .. })));
        let message = TOLD.lock().unwrap().clone();
        assert!(message.len() == 2 && message[0].contains("its name has no address"), "{message:?}");
        assert!(message[1].contains("which is this machine itself"), "{message:?}");
    });
}
