//! What a hub refuses, in words that say what to do, without the token.

use std::time::Instant;

use oarlock_hub::{Error, Hub, Kind};

use crate::fake_hub::{Access, FakeHub, Server, TOKEN, listening, model, repo};

fn refusal(access: Access, variables: &[(&str, &str)]) -> (Error, String) {
    let mut hidden = model();
    hidden.access = access;
    let fake = FakeHub::start(vec![hidden]);
    let home = tempfile::tempdir().unwrap();
    let hub = fake.hub(home.path(), variables);
    let error = hub.model("owner/tiny.model", None).unwrap_err();
    let of_file = hub.file(Kind::Model, "owner/tiny.model", None, "model.safetensors").unwrap_err();
    let same = std::mem::discriminant(&of_file) == std::mem::discriminant(&error);
    assert!(same, "the file says {of_file}, and the list {error}");
    let said = error.to_string().replace(&fake.endpoint, "E");
    for (_, value) in variables {
        assert!(!format!("{said} {error:?}").contains(value), "{error:?}");
    }
    (error, said)
}

#[test]
fn refusals_say_which_token_was_shown_and_what_to_do() {
    let (error, said) = refusal(Access::Private, &[]);
    assert!(matches!(error, Error::RepositoryNotFound { .. }));
    let expected = "E shows no model owner/tiny.model to no token: either the name is wrong, or it is private or gated and \
                    asks for a token that may read it; look at E/owner/tiny.model, then set HF_TOKEN or run `hf auth login`";
    assert_eq!(said, expected);
    let (error, said) = refusal(Access::Gated, &[]);
    assert!(
        matches!(error, Error::Gated { .. }) && said.contains("Cannot access gated repo with no token"),
        "{said}"
    );
    let (error, said) = refusal(Access::Gated, &[("HF_TOKEN", TOKEN)]);
    assert!(
        matches!(error, Error::Gated { .. }) && said.contains("with the token of HF_TOKEN: ask for access"),
        "{said}"
    );
    let (error, said) = refusal(Access::All, &[("HF_TOKEN", "hf_revokedmarker")]);
    assert!(
        matches!(error, Error::Token { .. }) && said.contains("does not accept the token of HF_TOKEN"),
        "{said}"
    );
    let (error, said) = refusal(Access::Disabled, &[]);
    assert!(
        matches!(error, Error::Disabled { .. }) && said.contains("Access to this resource is disabled"),
        "{said}"
    );
    let (error, said) = refusal(Access::Forbidden, &[("HUGGING_FACE_HUB_TOKEN", TOKEN)]);
    assert!(matches!(error, Error::Forbidden { .. }), "{error}");
    assert!(said.starts_with("403 Forbidden: your token has no scope for it"), "{said}");
    assert!(
        said.contains("Make sure that the token of HUGGING_FACE_HUB_TOKEN has the correct permissions"),
        "{said}"
    );
}

#[test]
fn what_is_cached_serves_although_the_hub_refuses_now() {
    let fake = FakeHub::start(vec![model()]);
    let home = tempfile::tempdir().unwrap();
    fake.hub(home.path(), &[]).model("owner/tiny.model", None).unwrap();
    fake.repos()[0].access = Access::Gated;
    let (hub, heard) = listening(fake.hub(home.path(), &[]));
    hub.model("owner/tiny.model", None).unwrap();
    assert!(heard.lock().unwrap()[0].contains("since Cannot access gated repo"), "{heard:?}");
}

#[test]
fn names_that_are_close_are_proposed() {
    let fake = FakeHub::start(vec![model(), repo("models", "owner/pickled", &[("pytorch_model.bin", b"x")])]);
    let home = tempfile::tempdir().unwrap();
    let hub = fake.hub(home.path(), &[]);
    for said in [
        hub.model("owner/tiny.model@v1.O", None).unwrap_err().to_string(),
        hub.file(Kind::Model, "owner/tiny.model", Some("v1.O"), "config.json").unwrap_err().to_string(),
    ] {
        assert_eq!(said, "the model owner/tiny.model has no revision \"v1.O\"; did you mean \"v1.0\"?");
    }
    let said = hub.model("owner/pickled", None).unwrap_err().to_string();
    assert!(said.contains("pytorch_model.bin is a pickle"), "{said}");
    let said = hub.model("./folder", None).unwrap_err().to_string();
    assert!(said.contains("names no repository on a hub"), "{said}");
    let said = hub.model("a/b/c", None).unwrap_err().to_string();
    assert!(said.contains("a path on this machine must exist"), "{said}");
}

#[test]
fn a_network_that_is_not_there_is_said_with_what_is_missing() {
    let fake = FakeHub::start(vec![model()]);
    let home = tempfile::tempdir().unwrap();
    let said = fake.hub(home.path(), &[("HF_HUB_OFFLINE", "1")]).model("owner/tiny.model", None).unwrap_err();
    assert!(matches!(said, Error::Offline { .. }));
    let said = said.to_string();
    let begin = "Cannot find the requested files in the disk cache and outgoing traffic has been disabled";
    assert!(said.starts_with(begin) && said.contains("unset HF_HUB_OFFLINE"), "{said}");
    assert_eq!(fake.take_log().len(), 0);
    let hub = fake.hub(home.path(), &[("HF_ENDPOINT", "http://127.0.0.1:1")]);
    for error in [
        hub.model("owner/tiny.model", None).unwrap_err(),
        hub.file(Kind::Model, "owner/tiny.model", None, "config.json").unwrap_err(),
    ] {
        let said = error.to_string();
        assert!(matches!(error, Error::Unreachable { .. }), "{said}");
        assert!(said.contains("127.0.0.1:1") && said.contains("check the network"), "{said}");
    }
    let hub = fake.hub(home.path(), &[("HF_DATASETS_OFFLINE", "1")]);
    let error = hub.dataset("owner/rows", &Default::default()).unwrap_err();
    assert!(matches!(error, Error::Offline { .. }), "{error}");
}

#[test]
fn a_busy_hub_is_asked_again_after_the_time_that_it_names() {
    let limit = ("RateLimit", "\"api\";r=0;t=0");
    let policy = ("RateLimit-Policy", "\"fixed window\";\"api\";q=500;w=300");
    for headers in [vec![limit, policy], vec![("Retry-After", "0")]] {
        let fake = FakeHub::start(vec![model()]);
        fake.faults().answers = vec![(Server::Hub, 429, headers)];
        let home = tempfile::tempdir().unwrap();
        let (hub, heard) = listening(fake.hub(home.path(), &[]));
        let begin = Instant::now();
        hub.model("owner/tiny.model", None).unwrap();
        let elapsed = begin.elapsed().as_millis();
        // It says zero seconds, to which one is added.
        assert!(elapsed >= 1000, "{elapsed} ms: {heard:?}");
    }
    let fake = FakeHub::start(vec![model()]);
    let long = vec![("RateLimit", "\"api\";r=0;t=5555"), policy];
    fake.faults().answers = (0..2).map(|_| (Server::Hub, 429, long.clone())).collect();
    let home = tempfile::tempdir().unwrap();
    let said = fake.hub(home.path(), &[]).model("owner/tiny.model", None).unwrap_err().to_string();
    assert!(said.contains("the limit of \"api\" is reached for 5555 s (500 in 300 s)"), "{said}");
}

#[test]
fn passing_failures_are_retried_and_lasting_ones_are_not() {
    let fake = FakeHub::start(vec![model()]);
    fake.faults().answers =
        [500, 502, 503, 504, 408].map(|status| (Server::Hub, status, Vec::new())).to_vec();
    let home = tempfile::tempdir().unwrap();
    fake.hub(home.path(), &[]).model("owner/tiny.model", None).unwrap();
    let fake = FakeHub::start(vec![model()]);
    fake.faults().answers = vec![(Server::Hub, 400, vec![("X-Error-Message", "bad request")])];
    let home = tempfile::tempdir().unwrap();
    let said = fake.hub(home.path(), &[]).model("owner/tiny.model", None).unwrap_err().to_string();
    assert!(said.ends_with("answered 400: bad request"), "{said}");
    let fake = FakeHub::start(vec![model()]);
    fake.faults().answers = vec![(Server::Hub, 500, Vec::new()); 20];
    let home = tempfile::tempdir().unwrap();
    let error = fake.hub(home.path(), &[]).model("owner/tiny.model", None).unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
    assert_eq!(fake.take_log().len(), 6, "once, and five times again");
}

#[test]
fn certificates_that_are_none_are_named() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("certificates.pem");
    std::fs::write(&file, "nothing").unwrap();
    let fake = FakeHub::start(vec![]);
    for path in [file.as_path(), home.path(), std::path::Path::new("/nowhere")] {
        let environment = fake.environment(home.path(), &[("SSL_CERT_FILE", path.to_str().unwrap())]);
        let error = Hub::new(environment, oarlock_hub::Site::HuggingFace).err().unwrap();
        assert!(
            matches!(error, Error::Certificates { .. }) && error.to_string().contains("SSL_CERT_FILE"),
            "{error}"
        );
    }
}
