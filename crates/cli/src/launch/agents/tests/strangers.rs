//! What is no agent of the run: it neither joins nor stops those who are.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::meeting;
use crate::launch::agents::{Agent, AgentsError, Meeting};
use oarlock_comm::wire::{Broken, Channel, MAX_FRAME, Secret};

fn never() -> bool {
    false
}

/// The agent that keeps the list of nodes.
fn keeper(meeting: &Meeting) -> Agent {
    let agent = Agent::join(meeting, &never).unwrap();
    assert!(agent.keeps_the_list());
    agent
}

fn connect(meeting: &Meeting) -> TcpStream {
    TcpStream::connect((meeting.endpoint.0.as_str(), meeting.endpoint.1)).unwrap()
}

fn secret(meeting: &Meeting) -> Secret {
    Secret::new(meeting.secret(), &meeting.run_id)
}

/// Another agent still joins, and both work.
fn joins(mut keeper: Agent, meeting: &Meeting) {
    let mut second = Agent::join(meeting, &never).unwrap();
    std::thread::scope(|scope| {
        let first = scope.spawn(|| keeper.next_round(&never).unwrap());
        assert_eq!(second.next_round(&never).unwrap().node_rank, 1);
        assert_eq!(first.join().unwrap().local_ranks, [1, 1]);
    });
}

/// What the other end says until it closes.
fn rest(mut stream: TcpStream) -> Vec<u8> {
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut bytes = Vec::new();
    // A reset is an end as well.
    let _ = stream.read_to_end(&mut bytes);
    bytes
}

/// Invariant 1: nothing is parsed before the proof is right.
#[test]
fn garbage_before_the_proof_is_answered_with_a_refusal_at_most() {
    let meeting = meeting(2..=2);
    let keeper = keeper(&meeting);
    let texts: [&[u8]; 5] = [
        b"",
        b"GET / HTTP/1.1\r\n\r\n",
        &[0xff; 64],
        &[0; 5000],
        br#"{"hello":{"host":"h","pid":1,"local_ranks":1,"same":{}}}"#,
    ];
    for text in texts {
        let mut stream = connect(&meeting);
        // It may close while we write.
        let _ = stream.write_all(text);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let said = rest(stream);
        assert!(said.len() <= 40 + 33 && said.starts_with(b"oarlock\x01"), "{said:?}");
        assert!(said.len() == 40 || said[40] == 0, "{said:?}");
    }
    joins(keeper, &meeting);
}

/// Invariant 2: a frame is as long as it may be, and what its sender wrote.
#[test]
fn garbage_behind_the_proof_ends_the_connection_alone() {
    let meeting = meeting(2..=2);
    let keeper = keeper(&meeting);
    let heads: [&[u8]; 4] =
        [&[0xff; 20], &((MAX_FRAME + 1) as u32).to_le_bytes(), &[0; 20], &[5, 0, 0, 0, 1, 2, 3]];
    for head in heads {
        let stream = connect(&meeting);
        let mut raw = stream.try_clone().unwrap();
        let _channel = Channel::open(stream, &secret(&meeting)).unwrap();
        raw.write_all(head).unwrap();
        raw.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(rest(raw), b"");
    }
    // A right proof of words that make no sense, and of a frame that came before.
    for bytes in [&b"{}"[..], b"\"ready\"", &[0xff; 1000]] {
        let mut channel = Channel::open(connect(&meeting), &secret(&meeting)).unwrap();
        channel.send(bytes).unwrap();
        let end = channel.receive(Instant::now() + Duration::from_secs(20), &|| true);
        assert!(matches!(end, Err(Broken::Closed(_))), "{end:?}");
    }
    joins(keeper, &meeting);
}

/// Passes bytes on from one connection to another, and what the agent sends behind its proof twice.
#[test]
fn a_frame_that_is_sent_again_is_refused() {
    let secret = Secret::new("t", "r");
    let listen = || TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let (to_store, to_middle) = (listen(), listen());
    let (store_at, middle_at) = (to_store.local_addr().unwrap(), to_middle.local_addr().unwrap());
    let its = secret.clone();
    let agent = std::thread::spawn(move || {
        let mut channel = Channel::open(TcpStream::connect(middle_at).unwrap(), &its).unwrap();
        channel.send(b"one").unwrap();
    });
    let middle = std::thread::spawn(move || {
        let (mut agent, mut store) = (to_middle.accept().unwrap().0, TcpStream::connect(store_at).unwrap());
        let pass = |from: &mut TcpStream, to: &mut TcpStream, n: usize, times: usize| {
            let mut bytes = vec![0; n];
            from.read_exact(&mut bytes).unwrap();
            (0..times).for_each(|_| to.write_all(&bytes).unwrap());
        };
        pass(&mut store, &mut agent, 40, 1);
        pass(&mut agent, &mut store, 64, 1);
        pass(&mut store, &mut agent, 33, 1);
        pass(&mut agent, &mut store, 4 + 16 + 3, 2);
        store
    });
    let mut channel = Channel::accept(to_store.accept().unwrap().0, &secret, false, &|| true).unwrap();
    let _open = middle.join().unwrap();
    agent.join().unwrap();
    let soon = Instant::now() + Duration::from_secs(20);
    assert_eq!(channel.receive(soon, &|| true).unwrap(), b"one");
    assert_eq!(channel.receive(soon, &|| true), Err(Broken::Garbage("a frame has a wrong proof")));
}

/// Invariant 3: who is slow or silent takes a place for a few seconds, and no other's.
#[test]
fn silent_and_slow_connections_delay_nobody_for_long() {
    let meeting = meeting(2..=2);
    let keeper = keeper(&meeting);
    let mut silent: Vec<TcpStream> = (0..200).map(|_| connect(&meeting)).collect();
    for stream in &mut silent {
        // Those beyond the limit are closed already.
        let _ = stream.write_all(b"x");
    }
    joins(keeper, &meeting);
}

#[test]
fn another_token_or_run_is_refused_by_name() {
    let right = meeting(2..=2);
    let _keeper = keeper(&right);
    let mut other = right.clone();
    other.token = Some("guess".into());
    let error = Agent::join(&other, &never).err().unwrap();
    assert_eq!(error, AgentsError::WrongToken { endpoint: right.name() });
    other = right.clone();
    other.run_id = "run 8".into();
    assert!(matches!(Agent::join(&other, &never).err(), Some(AgentsError::WrongToken { .. })));
    // The same token does not open another run either.
    (other.run_id, other.token) = ("run 8".into(), Some("run 7".into()));
    assert!(matches!(Agent::join(&other, &never).err(), Some(AgentsError::WrongToken { .. })));
}

#[test]
fn what_differs_is_told_by_name() {
    let mut ours = meeting(1..=2);
    ours.same.insert("train.yaml".into(), "aaaa".into());
    let _first = Agent::join(&ours, &never).unwrap();
    let mut other = ours.clone();
    other.same.insert("train.yaml".into(), "bbbb".into());
    other.max_restarts = 3;
    let error = Agent::join(&other, &never).err().unwrap().to_string();
    assert!(error.contains("--max-restarts is `3` here and `0` there"), "{error}");
    assert!(error.contains("train.yaml is `bbbb` here and `aaaa` there"), "{error}");
}

#[test]
fn a_port_of_another_program_is_named() {
    let mut meeting = meeting(1..=1);
    let listener = TcpListener::bind(("127.0.0.1", meeting.endpoint.1)).unwrap();
    let server = std::thread::spawn(move || {
        let mut stream = listener.accept().unwrap().0;
        stream.write_all(b"SSH-2.0-OpenSSH_9.6 and so on, up to forty bytes\r\n").unwrap();
        rest(stream)
    });
    let error = Agent::join(&meeting, &never).err().unwrap();
    assert!(error.to_string().contains("it greets like another kind of program"), "{error}");
    server.join().unwrap();
    // And nobody at all: every address is named with its reason.
    meeting.join_timeout = Duration::from_millis(300);
    meeting.endpoint.0 = "192.0.2.1".into();
    let AgentsError::Unreachable { tried, .. } = Agent::join(&meeting, &never).err().unwrap() else {
        panic!()
    };
    assert!(tried.starts_with(&format!("192.0.2.1:{}: ", meeting.endpoint.1)), "{tried}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn random_bytes_end_one_connection(
        proves in any::<bool>(), bytes in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let secret = Secret::new("t", "r");
        let its = secret.clone();
        let agent = std::thread::spawn(move || {
            let stream = TcpStream::connect(address).unwrap();
            let mut raw = stream.try_clone().unwrap();
            let channel = proves.then(|| Channel::open(stream, &its));
            // It may close while we write.
            let _ = raw.write_all(&bytes);
            let _ = raw.shutdown(std::net::Shutdown::Write);
            (rest(raw), channel.is_some_and(|channel| channel.is_ok()))
        });
        let accepted = Channel::accept(listener.accept().unwrap().0, &secret, false, &|| true);
        prop_assert_eq!(accepted.is_ok(), proves);
        if let Ok(mut channel) = accepted {
            let end = channel.receive(Instant::now() + Duration::from_secs(20), &|| true);
            prop_assert!(end.is_err(), "{:?}", end);
        }
        prop_assert_eq!(agent.join().unwrap().1, proves);
    }
}
