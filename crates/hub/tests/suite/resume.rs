//! Downloads that break off, by the network, by a server, or by a kill, and go on.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use oarlock_hub::{Environment, Error, Hub, Kind, Site};

use crate::fake_hub::{FakeFile, FakeHub, FakeRepo, Server, cache, listening, noise, repo};

const NAME: &str = "owner/large";
const FILE: &str = "model.safetensors";

fn large(n_bytes: usize) -> FakeRepo {
    repo("models", NAME, &[("config.json", b"{}"), (FILE, &noise(n_bytes))])
}

fn blobs(home: &Path) -> std::path::PathBuf {
    cache(home).join("models--owner--large/blobs")
}

/// The file is right, and nothing else is left beside it.
fn assert_complete(fake: &FakeHub, home: &Path, local: &Path) {
    let expected = fake.repos()[0].files[FILE].content.clone();
    assert!(fs::read(local).unwrap() == expected, "the content differs");
    let names: Vec<_> = fs::read_dir(blobs(home)).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names.len(), 1, "{names:?}");
}

fn requests_for_content(fake: &FakeHub) -> Vec<Option<String>> {
    let of_content = |request: &crate::fake_hub::Request| request.server == Server::Cdn;
    let range = |request: crate::fake_hub::Request| request.header("range").map(str::to_owned);
    fake.take_log().into_iter().filter(of_content).map(range).collect()
}

#[test]
fn a_body_that_breaks_off_goes_on_where_it_ended() {
    let fake = FakeHub::start(vec![large(1_000_000)]);
    // More often than there are retries: each time something comes, so the count begins anew.
    fake.faults().cut_after = Some((100_000, 8));
    let home = tempfile::tempdir().unwrap();
    let (hub, heard) = listening(fake.hub(home.path(), &[]));
    let local = hub.file(Kind::Model, NAME, None, FILE).unwrap();
    assert_complete(&fake, home.path(), &local);
    let ranges = requests_for_content(&fake);
    assert_eq!(ranges.len(), 9);
    assert_eq!(ranges[0], None);
    assert!(ranges[1..].iter().all(Option::is_some), "{ranges:?}");
    assert_eq!(fake.n_content_bytes(), 1_000_000);
    assert_eq!(heard.lock().unwrap().iter().filter(|words| words.starts_with("pause: ")).count(), 8);
}

#[test]
fn a_rest_of_another_content_is_not_put_behind_what_came() {
    let other_tag = (vec!["\"one\"", "\"two\""], Vec::new());
    let range = |range| vec![(Server::Cdn, 206, vec![("Content-Range", range)])];
    let other_total = (Vec::new(), range("bytes 200000-599999/600000"));
    let other_begin = (Vec::new(), range("bytes 0-499999/500000"));
    for (tags, answers) in [other_tag, other_total, other_begin] {
        let fake = FakeHub::start(vec![large(500_000)]);
        fake.faults().cut_after = Some((200_000, 1));
        fake.faults().tags = tags;
        fake.faults().answers_after_cut = answers;
        let home = tempfile::tempdir().unwrap();
        let (hub, heard) = listening(fake.hub(home.path(), &[]));
        let local = hub.file(Kind::Model, NAME, None, FILE).unwrap();
        assert_complete(&fake, home.path(), &local);
        let restart = format!("restart {FILE}: the server has another content now");
        assert!(heard.lock().unwrap().contains(&restart), "{heard:?}");
        let ranges: Vec<bool> = requests_for_content(&fake).iter().map(Option::is_some).collect();
        assert_eq!(ranges, [false, true, false]);
    }
}

#[test]
fn a_body_that_stands_still_is_asked_for_again() {
    let fake = FakeHub::start(vec![large(500_000)]);
    fake.faults().cut_after = Some((200_000, 2));
    fake.faults().cut_hangs = true;
    let home = tempfile::tempdir().unwrap();
    let mut environment = fake.environment(home.path(), &[]);
    environment.download_timeout = Duration::from_millis(300);
    let hub = Hub::new(environment, Site::HuggingFace).unwrap();
    let local = hub.file(Kind::Model, NAME, None, FILE).unwrap();
    assert_complete(&fake, home.path(), &local);
    assert_eq!(fake.n_content_bytes(), 500_000);
}

#[test]
fn a_network_that_stays_away_is_an_error_and_what_came_is_kept() {
    let fake = FakeHub::start(vec![large(1_000_000)]);
    fake.faults().cut_after = Some((300_000, 1));
    // The first request brings a part; the server for large files then fails until nobody asks any more.
    let home = tempfile::tempdir().unwrap();
    let hub = fake.hub(home.path(), &[]);
    fake.faults().answers_after_cut = vec![(Server::Cdn, 503, Vec::new()); 6];
    let error = hub.file(Kind::Model, NAME, None, FILE).unwrap_err();
    assert!(error.is_transient() && error.to_string().contains("503"), "{error}");
    assert!(!error.to_string().contains("secretsignature"), "{error}");
    let (hub, heard) = listening(fake.hub(home.path(), &[]));
    let local = hub.file(Kind::Model, NAME, None, FILE).unwrap();
    assert_complete(&fake, home.path(), &local);
    assert!(heard.lock().unwrap().contains(&format!("begin {FILE} 300000")), "{heard:?}");
    assert_eq!(fake.n_content_bytes(), 1_000_000);
}

#[test]
fn a_server_that_ignores_ranges_is_read_from_the_beginning() {
    let fake = FakeHub::start(vec![large(1_000_000)]);
    fake.faults().cut_after = Some((400_000, 1));
    fake.faults().ignores_ranges = true;
    let home = tempfile::tempdir().unwrap();
    let (hub, heard) = listening(fake.hub(home.path(), &[]));
    let local = hub.file(Kind::Model, NAME, None, FILE).unwrap();
    assert_complete(&fake, home.path(), &local);
    let restart = format!("restart {FILE}: the server sends it from the beginning");
    assert!(heard.lock().unwrap().contains(&restart), "{heard:?}");
    assert_eq!(fake.n_content_bytes(), 1_400_000);
}

#[test]
fn content_with_another_hash_is_never_kept() {
    let fake = FakeHub::start(vec![large(200_000)]);
    fake.faults().n_wrong = 1;
    let home = tempfile::tempdir().unwrap();
    let local = fake.hub(home.path(), &[]).file(Kind::Model, NAME, None, FILE).unwrap();
    assert_complete(&fake, home.path(), &local);
    for path in [FILE, "config.json"] {
        let fake = FakeHub::start(vec![large(200_000)]);
        fake.faults().n_wrong = 100;
        let home = tempfile::tempdir().unwrap();
        let error = fake.hub(home.path(), &[]).file(Kind::Model, NAME, None, path).unwrap_err();
        assert!(matches!(error, Error::Hash { .. }), "{error}");
        assert!(error.to_string().contains("it was not kept"), "{error}");
        assert_eq!(fs::read_dir(blobs(home.path())).unwrap().count(), 0);
        assert_eq!(
            fake.n_content_bytes(),
            2 * if path == FILE { 200_000 } else { 2 },
            "asked twice, not for ever"
        );
    }
}

#[test]
fn a_damaged_rest_is_found_by_the_hash_and_comes_anew() {
    for (wrong, begins_with) in
        [(vec![7; 50_000], 50_000), (vec![7; 200_000], 200_000), (vec![7; 300_000], 0)]
    {
        let fake = FakeHub::start(vec![large(200_000)]);
        let home = tempfile::tempdir().unwrap();
        let etag = fake.repos()[0].files[FILE].etag();
        fs::create_dir_all(blobs(home.path())).unwrap();
        // Of a machine that nobody here knows, long ago.
        let rest = blobs(home.path()).join(format!("{etag}.oarlock-elsewhere-b00t-1-1.incomplete"));
        fs::write(&rest, wrong).unwrap();
        let long_ago = std::time::SystemTime::now() - Duration::from_secs(1000);
        fs::File::options().write(true).open(&rest).unwrap().set_modified(long_ago).unwrap();
        let (hub, heard) = listening(fake.hub(home.path(), &[]));
        let local = hub.file(Kind::Model, NAME, None, FILE).unwrap();
        assert_complete(&fake, home.path(), &local);
        assert!(heard.lock().unwrap().contains(&format!("begin {FILE} {begins_with}")), "{heard:?}");
    }
}

#[test]
fn a_complete_rest_is_only_hashed_and_one_too_long_for_the_server_begins_anew() {
    let fake = FakeHub::start(vec![large(200_000)]);
    let home = tempfile::tempdir().unwrap();
    let FakeFile { content, .. } = fake.repos()[0].files[FILE].clone();
    let etag = fake.repos()[0].files[FILE].etag();
    let leave = |bytes: &[u8]| {
        fs::create_dir_all(blobs(home.path())).unwrap();
        let rest = blobs(home.path()).join(format!("{etag}.oarlock-elsewhere-b00t-1-1.incomplete"));
        fs::write(&rest, bytes).unwrap();
        let long_ago = std::time::SystemTime::now() - Duration::from_secs(1000);
        fs::File::options().write(true).open(&rest).unwrap().set_modified(long_ago).unwrap();
    };
    leave(&content);
    let local = fake.hub(home.path(), &[]).file(Kind::Model, NAME, None, FILE).unwrap();
    assert_complete(&fake, home.path(), &local);
    assert_eq!(fake.n_content_bytes(), 0);
    // Where the size is known only from the server, 416 with a rest of the full size means that it is complete.
    fake.faults().without = vec!["X-Linked-Size"];
    for (rest, n_bytes) in [(content.clone(), 0), (noise(250_000), 200_000)] {
        fs::remove_dir_all(cache(home.path())).unwrap();
        leave(&rest);
        let before = fake.n_content_bytes();
        fake.take_log();
        let local = fake.hub(home.path(), &[]).file(Kind::Model, NAME, None, FILE).unwrap();
        assert_complete(&fake, home.path(), &local);
        assert_eq!(fake.n_content_bytes() - before, n_bytes);
        assert!(requests_for_content(&fake)[0].is_some());
    }
}

#[test]
fn a_file_that_changes_between_headers_and_content_comes_as_it_is_now() {
    let new = noise(150_000);
    for path in ["config.json", FILE] {
        let fake = FakeHub::start(vec![large(100_000)]);
        fake.faults().changes_to = Some((path.to_owned(), new.clone()));
        let home = tempfile::tempdir().unwrap();
        let local = fake.hub(home.path(), &[]).file(Kind::Model, NAME, None, path).unwrap();
        assert_eq!(fs::read(&local).unwrap(), new, "{path}");
        let blob = fs::read_link(&local).unwrap();
        let name = blob.file_name().unwrap().to_str().unwrap().to_owned();
        assert_eq!(name, fake.repos()[0].files[path].etag(), "{path}");
        assert_eq!(fs::read_dir(blobs(home.path())).unwrap().count(), 1);
    }
}

#[test]
fn an_address_that_has_expired_is_asked_for_again() {
    let fake = FakeHub::start(vec![large(100_000)]);
    fake.faults().answers = vec![(Server::Cdn, 403, Vec::new())];
    let home = tempfile::tempdir().unwrap();
    let local = fake.hub(home.path(), &[]).file(Kind::Model, NAME, None, FILE).unwrap();
    assert_complete(&fake, home.path(), &local);
}

#[test]
fn two_at_once_download_a_file_once() {
    let fake = FakeHub::start(vec![large(2_000_000)]);
    fake.faults().slow = Some((100_000, Duration::from_millis(20)));
    let home = tempfile::tempdir().unwrap();
    let heard: Vec<_> = std::thread::scope(|scope| {
        let get = || {
            let (hub, heard) = listening(fake.hub(home.path(), &[]));
            let local = hub.file(Kind::Model, NAME, None, FILE).unwrap();
            (local, heard)
        };
        let both = [scope.spawn(get), scope.spawn(get)];
        both.map(|one| one.join().unwrap()).into_iter().collect()
    });
    for (local, _) in &heard {
        assert_complete(&fake, home.path(), local);
    }
    assert_eq!(fake.n_content_bytes(), 2_000_000);
    let waiting = format!("waiting {FILE}");
    assert_eq!(heard.iter().filter(|(_, heard)| heard.lock().unwrap().contains(&waiting)).count(), 1);
}

/// A process of its own that downloads the file, to be killed.
fn download_in_a_process(fake: &FakeHub, home: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "resume::child_downloads", "--ignored", "--nocapture"])
        .env("HOME", home)
        .env("HF_ENDPOINT", &fake.endpoint)
        .env_remove("HF_HOME")
        .env_remove("HF_HUB_CACHE")
        .env_remove("XDG_CACHE_HOME")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
#[ignore = "child"]
fn child_downloads() {
    let mut environment = Environment::read();
    environment.first_pause = Duration::from_millis(5);
    let hub = Hub::new(environment, Site::HuggingFace).unwrap();
    hub.file(Kind::Model, NAME, None, FILE).unwrap();
}

/// Kills a download some times, in the middle of it, and counts what the server has sent in all.
fn kill_and_count(n_bytes: usize, n_kills: usize) {
    let fake = FakeHub::start(vec![large(n_bytes)]);
    // What is on its way at a kill is lost. Slower than any machine, it is little.
    fake.faults().slow = Some((16 << 10, Duration::from_millis(3)));
    let home = tempfile::tempdir().unwrap();
    for kill in 1..=n_kills {
        let mut child = download_in_a_process(&fake, home.path());
        let until = (n_bytes / (n_kills + 1) * kill) as u64;
        let begin = Instant::now();
        while fake.n_content_bytes() < until {
            assert!(begin.elapsed() < Duration::from_secs(120), "{} bytes", fake.n_content_bytes());
            std::thread::sleep(Duration::from_millis(1));
        }
        // SIGKILL: nothing can be cleaned up or written down.
        child.kill().unwrap();
        child.wait().unwrap();
    }
    assert!(download_in_a_process(&fake, home.path()).wait().unwrap().success());
    let local = fake.hub(home.path(), &[]).file(Kind::Model, NAME, None, FILE).unwrap();
    assert_complete(&fake, home.path(), &local);
    let (sent, size) = (fake.n_content_bytes(), n_bytes as u64);
    println!(
        "{sent} bytes were sent for {size}: {:.4} times, with {n_kills} kills",
        sent as f64 / size as f64
    );
    assert!(sent * 100 <= size * 102, "{sent} bytes were sent for {size}");
}

#[test]
fn a_download_that_is_killed_costs_hardly_more_bytes() {
    kill_and_count(24 << 20, 2);
}

#[test]
#[ignore = "heavy"]
fn a_download_that_is_killed_again_and_again_costs_hardly_more_bytes() {
    kill_and_count(96 << 20, 10);
}

#[test]
#[ignore = "four minutes"]
fn a_gigabyte_that_is_killed_twenty_times_by_hand() {
    kill_and_count(1 << 30, 20);
}

#[test]
fn two_processes_at_once_leave_one_right_file() {
    let fake = FakeHub::start(vec![large(8 << 20)]);
    fake.faults().slow = Some((64 << 10, Duration::from_millis(2)));
    let home = tempfile::tempdir().unwrap();
    let children: Vec<Child> = (0..2).map(|_| download_in_a_process(&fake, home.path())).collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    let local = fake.hub(home.path(), &[]).file(Kind::Model, NAME, None, FILE).unwrap();
    assert_complete(&fake, home.path(), &local);
    assert_eq!(fake.n_content_bytes(), 8 << 20);
}

#[test]
fn a_download_that_does_not_fit_is_refused_before_it_begins() {
    let fake = FakeHub::start(vec![large(1000)]);
    let home = tempfile::tempdir().unwrap();
    let etag = format!("\"{}\"", fake.repos()[0].files[FILE].etag());
    let (etag, location): (&str, &str) = (etag.leak(), format!("{}/x", fake.cdn).leak());
    let commit: &str = fake.repos()[0].commit.clone().leak();
    let size = ("X-Linked-Size", "9000000000000000000");
    let headers = vec![("X-Linked-Etag", etag), ("X-Repo-Commit", commit), size, ("Location", location)];
    fake.faults().answers = vec![(Server::Hub, 302, headers)];
    let error = fake.hub(home.path(), &[]).file(Kind::Model, NAME, None, FILE).unwrap_err();
    assert!(matches!(error, Error::Space { .. }), "{error}");
    assert!(error.to_string().starts_with("the download needs 9000000000.0 GB, "), "{error}");
    assert!(requests_for_content(&fake).is_empty());
}
