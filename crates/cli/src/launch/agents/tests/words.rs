//! Settings and messages from text, whatever it is.

use std::time::Duration;

use oarlock_config::settings::secret::masked;
use proptest::prelude::*;

use super::meeting;
use crate::launch::agents::message::{self, Reply, Request, View};
use crate::launch::agents::{AgentsError, Meeting, endpoint, nodes};

#[test]
fn endpoints_and_numbers_of_nodes() {
    let at = |text: &str| endpoint(text).unwrap();
    assert_eq!(at("worker-0"), ("worker-0".into(), 29400));
    assert_eq!(at("10.0.0.1:29500"), ("10.0.0.1".into(), 29500));
    assert_eq!(at("[::1]:80"), ("::1".into(), 80));
    assert_eq!(at("[fe80::1%eth0]"), ("fe80::1%eth0".into(), 29400));
    assert_eq!(at("::1"), ("::1".into(), 29400));
    for wrong in
        ["", ":29400", "host:", "host:0", "host:70000", "host:http", "[::1", "[::1]x", "a b", "h/x:1"]
    {
        let error = endpoint(wrong).unwrap_err().to_string();
        assert!(error.starts_with(&format!("--rdzv-endpoint is `{wrong}`; expected host")), "{error}");
    }
    assert_eq!((nodes("3").unwrap(), nodes("1:4").unwrap()), (3..=3, 1..=4));
    for wrong in ["", "0", "0:2", "3:2", "a", "1:2:3", "1:", "5000", "-1"] {
        let error = nodes(wrong).unwrap_err().to_string();
        assert!(error.contains(&format!("--nnodes is `{wrong}`; expected N or MIN:MAX")), "{error}");
    }
}

const ONE: &str = "q83vEjRWeJASNFZ4kKvN7w==";
const OTHER: &str = "9b0f2cc1d66e4af0a6e1b1f7f5d2c3e8";

#[test]
fn settings_of_the_rendezvous() {
    let mut ours = meeting(1..=2);
    let warnings = ours.warnings();
    assert!(warnings.len() == 1 && warnings[0].contains("oarlock token new > run.token"), "{warnings:?}");
    assert!(ours.only_private());
    let conf =
        format!(" join_timeout=60, last_call_timeout=2,keep_alive_interval=1,is_host=true,token={ONE},");
    ours.configure(&conf, &|_| None).unwrap();
    assert_eq!(ours.join_timeout, Duration::from_secs(60));
    assert_eq!(ours.is_host, Some(true));
    ours.configure("local_addr=[fd00::1]", &|_| None).unwrap();
    assert_eq!(ours.local_addr.as_deref(), Some("fd00::1"));
    assert_eq!((ours.last_call, ours.keep_alive), (Duration::from_secs(2), Duration::from_secs(1)));
    assert_eq!((ours.access.token.as_deref(), ours.warnings().len()), (Some(ONE), 0));
    assert!(!ours.only_private());
    for wrong in [
        "join_timeout",
        "join_timeout=soon",
        "join_timeout=0",
        "jion_timeout=5",
        "insecure=maybe",
        "is_host=perhaps",
        "local_addr=a b",
        "encryption=x",
    ] {
        let error = ours.configure(wrong, &|_| None).unwrap_err().to_string();
        assert!(error.starts_with(&format!("--rdzv-conf is `{wrong}`; expected")), "{error}");
    }
    let weak = ours.configure("token=hunter2", &|_| None).unwrap_err().to_string();
    assert!(
        weak.contains("weak") && weak.contains("oarlock token new") && !weak.contains("hunter2"),
        "{weak}"
    );
    assert_eq!(meeting(1..=1).warnings(), Vec::<String>::new());
    // And whom it waits for, which may take long.
    assert_eq!(meeting(1..=1).waits(), None);
    assert!(meeting(1..=4).waits().unwrap().starts_with("1 to 4 nodes meet at "));
    assert!(meeting(2..=2).waits().unwrap().starts_with("2 nodes meet at "));
    let variable =
        |token: &'static str| move |name: &str| (name == "OARLOCK_RDZV_TOKEN").then(|| token.into());
    let error = ours.configure("", &variable(OTHER)).unwrap_err().to_string();
    assert!(error.starts_with("`OARLOCK_RDZV_TOKEN`: another token is given as well"), "{error}");
    let weak_variable = ours.configure("", &variable("hunter2")).unwrap_err().to_string();
    let no_file = ours.configure("token_file=/nowhere/run.token", &|_| None).unwrap_err().to_string();
    // The filter of secrets leaves every word of them.
    for reported in [error, weak, weak_variable, no_file] {
        assert_eq!(masked(&reported), reported);
        assert!(!reported.contains("hunter2"), "{reported}");
    }
    ours.configure("", &variable(ONE)).unwrap();
    ours.access.token = None;
    ours.configure("", &variable(OTHER)).unwrap();
    assert_eq!(ours.access.token.as_deref(), Some(OTHER));
    ours.access.token = None;
    ours.configure("insecure=1", &|_| None).unwrap();
    assert!(!ours.only_private());
    ours.run_id.clear();
    assert!(matches!(ours.check(), Err(AgentsError::Setting { what: "--rdzv-id", .. })));
}

#[test]
fn messages_come_back_as_they_were() {
    for request in
        [Request::Ready { after: 3 }, Request::Look { wait_ms: 5 }, Request::Done { round: u64::MAX }]
    {
        assert_eq!(message::read(&message::write(&request)), Some(request));
    }
    let reply = |reason: &str| Reply::View(View::Aborted { reason: reason.into() });
    assert_eq!(message::read(&message::write(&reply("\"ü"))), Some(reply("\"ü")));
    // What a terminal would obey does not.
    assert_eq!(message::read(&message::write(&reply("\u{1b}[2J\u{202e}"))), Some(reply("�[2J�")));
    for wrong in
        ["", "{}", "\"hello\"", "{\"look\":{}}", "{\"look\":{\"wait_ms\":-1}}", "\"ready\" x", "[[[["]
    {
        assert_eq!(message::read::<Request>(wrong.as_bytes()), None, "{wrong}");
    }
    let deep = "[".repeat(60_000);
    assert_eq!(message::read::<Request>(deep.as_bytes()), None);
}

proptest! {
    #[test]
    fn no_text_panics(text in "\\PC{0,40}", bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut meeting = Meeting::new(("h".into(), 1), "r".into(), 1..=1);
        let _ = (endpoint(&text), nodes(&text), meeting.configure(&text, &|_| Some(text.clone())));
        let _ = message::read::<Request>(&bytes);
        let _ = message::read::<Reply>(&bytes);
    }
}
