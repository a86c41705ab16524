//! What is not an agent of the run: it neither joins nor stops those who are.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use oarlock_comm::wire::{Arrival, Broken, Channel, Entrance, MAX_FRAME, Purpose, Secret};
use proptest::prelude::*;

use super::meeting;
use crate::launch::agents::{Agent, AgentsError, Meeting};

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

/// A secret, and what lets those in who know it.
fn entrance() -> (Entrance, SocketAddr, Secret) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let (at, secret) = (listener.local_addr().unwrap(), Secret::new(Purpose::Agents, "t", "r"));
    (Entrance::new(listener, secret.clone(), false).unwrap(), at, secret)
}

/// The next who proves to know the secret; `None` if nobody does who connects within `limit`.
fn proved(entrance: &mut Entrance, limit: Duration) -> Option<Channel> {
    let deadline = Instant::now() + limit;
    while Instant::now() < deadline {
        for arrival in entrance.wait(Duration::from_millis(10), false) {
            if let Arrival::Proved(channel, _) = arrival {
                return Some(channel);
            }
        }
    }
    None
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
        assert!(said.len() <= 40 + 32 + 1 && said.starts_with(b"oarlock\x02"), "{said:?}");
        assert!(said.len() <= 72 || said[72] == 0, "{said:?}");
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
        let _channel = Channel::open(stream, &meeting.secret()).unwrap();
        raw.write_all(head).unwrap();
        raw.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(rest(raw), b"");
    }
    // A right proof of words that make no sense, and of a frame that came before.
    for bytes in [&b"{}"[..], b"\"ready\"", &[0xff; 1000]] {
        let mut channel = Channel::open(connect(&meeting), &meeting.secret()).unwrap();
        channel.send(bytes).unwrap();
        let end = channel.receive(Instant::now() + Duration::from_secs(20), &|| true);
        assert!(matches!(end, Err(Broken::Closed(_))), "{end:?}");
    }
    joins(keeper, &meeting);
}

/// Passes bytes on from one connection to another, and what the agent sends behind its proof twice.
#[test]
fn a_frame_that_is_sent_again_is_refused() {
    let (mut entrance, store_at, secret) = entrance();
    let to_middle = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let middle_at = to_middle.local_addr().unwrap();
    let agent = std::thread::spawn(move || {
        let mut channel = Channel::open(TcpStream::connect(middle_at).unwrap(), &secret).unwrap();
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
        pass(&mut agent, &mut store, 32, 1);
        pass(&mut store, &mut agent, 32, 1);
        pass(&mut agent, &mut store, 32, 1);
        pass(&mut store, &mut agent, 1, 1);
        pass(&mut agent, &mut store, 4 + 16 + 3, 2);
        store
    });
    let mut channel = proved(&mut entrance, Duration::from_secs(20)).unwrap();
    let _open = middle.join().unwrap();
    agent.join().unwrap();
    let soon = Instant::now() + Duration::from_secs(20);
    assert_eq!(channel.receive(soon, &|| true).unwrap(), b"one");
    assert_eq!(channel.receive(soon, &|| true), Err(Broken::Garbage("a frame has a wrong proof")));
}

/// How long it takes a second agent to come while `hostile` connections say nothing, or half of a message, and come again
/// whenever they are closed.
fn joins_among(hostile: usize) -> Duration {
    let mut meeting = meeting(2..=2);
    meeting.access.token = Some("9b0f2cc1d66e4af0a6e1b1f7f5d2c3e8".into());
    let keeper = keeper(&meeting);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let mut held: Vec<TcpStream> = (0..hostile).map(|_| connect(&meeting)).collect();
        let (over, its) = (&over, &meeting);
        scope.spawn(move || {
            while !over.load(Ordering::Relaxed) {
                for stream in &mut held {
                    stream.set_nonblocking(true).unwrap();
                    let closed = match stream.read(&mut [0; 64]) {
                        Ok(n) => n == 0,
                        Err(e) => e.kind() != std::io::ErrorKind::WouldBlock,
                    };
                    if closed && let Ok(again) = TcpStream::connect(("127.0.0.1", its.endpoint.1)) {
                        *stream = again;
                        // Some begin what they never end.
                        let _ = stream.write(&[7; 9][..stream.local_addr().unwrap().port() as usize % 9]);
                    }
                }
            }
        });
        std::thread::sleep(Duration::from_millis(300));
        let began = Instant::now();
        joins(keeper, &meeting);
        over.store(true, Ordering::Relaxed);
        began.elapsed()
    })
}

/// Invariant 3: one process without the secret, however many connections it has, keeps nobody out.
#[test]
fn hundreds_of_hostile_connections_keep_nobody_out() {
    let alone = joins_among(0);
    for hostile in [300, 800] {
        let took = joins_among(hostile);
        assert!(took < alone + Duration::from_secs(2), "{hostile}: {took:?}, alone {alone:?}");
    }
}

#[test]
fn another_token_or_run_is_refused_by_name() {
    let right = meeting(2..=2);
    let _keeper = keeper(&right);
    let mut other = right.clone();
    other.access.token = Some("guess".into());
    let error = Agent::join(&other, &never).err().unwrap();
    assert_eq!(error, AgentsError::WrongToken { endpoint: right.name() });
    other = right.clone();
    other.run_id = "run 8".into();
    assert!(matches!(Agent::join(&other, &never).err(), Some(AgentsError::WrongToken { .. })));
    // The same token does not open another run either.
    (other.run_id, other.access.token) = ("run 8".into(), Some("run 7".into()));
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

static TOLD: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// The machine that keeps the list hears who was refused and why: each once, and with nothing that a terminal obeys.
#[test]
fn the_keeper_is_told_once_who_was_refused() {
    let mut ours = meeting(2..=2);
    ours.join_timeout = Duration::from_secs(2);
    // It is told how others find it, too.
    ours.report = |text| {
        if text.contains("refused") {
            TOLD.lock().unwrap().push(text.to_owned());
        }
    };
    let mut keeper = keeper(&ours);
    let mut other = ours.clone();
    other.access.token = Some("guess".into());
    for _ in 0..3 {
        assert!(Agent::join(&other, &never).is_err());
    }
    other = ours.clone();
    other.same.insert("train.yaml".into(), "\u{1b}[31mb".into());
    assert!(Agent::join(&other, &never).is_err());
    let deadline = Instant::now() + Duration::from_secs(20);
    while TOLD.lock().unwrap().len() < 2 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    let message = TOLD.lock().unwrap().clone();
    assert_eq!(message.len(), 2, "{message:?}");
    assert_eq!(message[0], "127.0.0.1 was refused: it has another token or run id");
    assert!(message[1].contains("train.yaml is `�[31mb` on it and `not known` here"), "{message:?}");
    // And the reason for the end names them.
    let end = keeper.next_round(&never).unwrap_err().to_string();
    assert!(
        end.contains("1 of at least 2 nodes") && message.iter().all(|message| end.contains(message)),
        "{end}"
    );
}

/// A store is no more trusted with the terminal than an agent: whatever it says is printable.
#[test]
fn what_a_store_says_moves_no_cursor() {
    let meeting = meeting(2..=2);
    let listener = TcpListener::bind(("127.0.0.1", meeting.endpoint.1)).unwrap();
    let mut entrance = Entrance::new(listener, meeting.secret(), true).unwrap();
    let its = meeting.clone();
    let agent = std::thread::spawn(move || Agent::join(&its, &never).err().unwrap().to_string());
    let mut channel = proved(&mut entrance, Duration::from_secs(20)).unwrap();
    let soon = Instant::now() + Duration::from_secs(20);
    channel.receive(soon, &|| true).unwrap();
    channel.send(br#"{"refused":"\u001b]0;owned\u0007\u001b[31mrun this\u202e"}"#).unwrap();
    let said = agent.join().unwrap();
    assert!(
        said.contains("]0;owned") && !said.contains(|c: char| c.is_control() || c == '\u{202e}'),
        "{said:?}"
    );
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
    meeting.nodes = 2..=2;
    let error = Agent::join(&meeting, &never).err().unwrap();
    assert!(matches!(&error, AgentsError::Public { address, .. } if address == "192.0.2.1"), "{error}");
    meeting.access.insecure = true;
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
        let (mut entrance, address, secret) = entrance();
        let its = secret.clone();
        let stream = TcpStream::connect(address).unwrap();
        let agent = std::thread::spawn(move || {
            let mut raw = stream.try_clone().unwrap();
            let channel = proves.then(|| Channel::open(stream, &its));
            // It may close while we write.
            let _ = raw.write_all(&bytes);
            let _ = raw.shutdown(std::net::Shutdown::Write);
            (rest(raw), channel.is_some_and(|channel| channel.is_ok()))
        });
        // Who does not prove itself is closed in half a second.
        let limit = Duration::from_millis(if proves { 20_000 } else { 10 });
        let accepted = proved(&mut entrance, limit);
        drop(entrance);
        prop_assert_eq!(accepted.is_some(), proves);
        if let Some(mut channel) = accepted {
            let end = channel.receive(Instant::now() + Duration::from_secs(20), &|| true);
            prop_assert!(end.is_err(), "{:?}", end);
        }
        prop_assert_eq!(agent.join().unwrap().1, proves);
    }
}
