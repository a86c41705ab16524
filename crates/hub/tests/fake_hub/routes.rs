//! The addresses of Hugging Face: commits, lists, branches, and files with the headers that clients read.

use serde_json::{Value, json};

use super::http::{Reply, Request, Server, content, decoded, query};
use super::{Access, FakeFile, FakeRepo, State, TOKEN, hex};

pub fn reply(request: &Request, state: &State) -> Reply {
    let path = request.target.split('?').next().unwrap_or_default();
    if request.server == Server::Cdn {
        return of_cdn(request, state, path.trim_start_matches('/'));
    }
    match path.strip_prefix("/api/") {
        Some(rest) => of_api(request, state, rest),
        None => of_file(request, state, path.trim_start_matches('/')),
    }
}

/// A large file by its hash.
fn of_cdn(request: &Request, state: &State, hash: &str) -> Reply {
    let repos = state.repos.lock().unwrap();
    let file =
        repos.iter().flat_map(|repo| repo.files.values()).find(|file| file.is_large && file.etag() == hash);
    match file {
        // As S3 has it: an entity tag of its own.
        Some(file) => {
            let own = format!("\"{}-1\"", &hash[..32]);
            let tag = next_tag(state).map_or(own, str::to_owned);
            content(request, state, &file.content).with("ETag", tag)
        }
        None => Reply::new(404, ""),
    }
}

/// The entity tag that a test has ordered.
fn next_tag(state: &State) -> Option<&'static str> {
    let tags = &mut state.faults.lock().unwrap().tags;
    (!tags.is_empty()).then(|| tags.remove(0))
}

fn refused(code: &str, message: &str, status: u16) -> Reply {
    let reply = Reply::new(status, json!({"error": message}).to_string());
    let reply = if code.is_empty() { reply } else { reply.with("X-Error-Code", code) };
    reply.with("X-Error-Message", message)
}

/// Whether a repository is shown.
fn access(request: &Request, repo: &FakeRepo) -> Option<Reply> {
    let shown = request.header("authorization");
    let is_good = shown == Some(&format!("Bearer {TOKEN}"));
    if shown.is_some() && !is_good {
        return Some(refused("", "Invalid credentials in Authorization header", 401));
    }
    match repo.access {
        Access::All => None,
        Access::Private if is_good => None,
        Access::Private => Some(refused("RepoNotFound", "Repository not found", 401)),
        Access::Gated => {
            Some(refused("GatedRepo", "Access to model is restricted", if is_good { 403 } else { 401 }))
        }
        Access::Disabled => Some(refused("", "Access to this resource is disabled.", 403)),
        Access::Forbidden => Some(refused("", "your token has no scope for it", 403)),
    }
}

fn of_api(request: &Request, state: &State, rest: &str) -> Reply {
    let repos = state.repos.lock().unwrap();
    let parts: Vec<&str> = rest.split('/').collect();
    let [kind, owner, name, what @ ..] = parts.as_slice() else { return refused("RepoNotFound", "", 401) };
    let id = format!("{owner}/{name}");
    if let Some(new) = repos.iter().find(|repo| repo.renamed_from.as_deref() == Some(&id)) {
        return Reply::new(307, "").with("Location", request.target.replacen(&id, &new.id, 1));
    }
    let Some(repo) = repos.iter().find(|repo| repo.kind == *kind && repo.id == id) else {
        return refused("RepoNotFound", "Repository not found", 401);
    };
    if let Some(refusal) = access(request, repo) {
        return refusal;
    }
    match what {
        ["revision", revision] if has(repo, &decoded(revision)) => {
            Reply::new(200, json!({"id": id, "sha": repo.commit, "siblings": []}).to_string())
        }
        ["revision", _] => refused("RevisionNotFound", "Invalid rev id", 404),
        ["tree", revision] if has(repo, &decoded(revision)) => tree(request, state, repo),
        ["refs"] => {
            let names = |kind: &str| {
                repo.revisions.iter().map(|name| json!({"name": name, "ref": kind})).collect::<Value>()
            };
            Reply::new(200, json!({"branches": names("refs/heads"), "tags": []}).to_string())
        }
        _ => refused("RevisionNotFound", "Invalid rev id", 404),
    }
}

fn has(repo: &FakeRepo, revision: &str) -> bool {
    revision == repo.commit || repo.revisions.iter().any(|known| known == revision)
}

fn tree(request: &Request, state: &State, repo: &FakeRepo) -> Reply {
    let entry = |(path, file): (&String, &FakeFile)| {
        let mut entry = json!({"type": "file", "path": path, "size": file.content.len(), "oid": super::git_hash(&file.content)});
        if file.is_large {
            entry["lfs"] = json!({"oid": file.etag(), "size": file.content.len(), "pointerSize": 134});
            entry["xetHash"] = hex(&[7; 32]).into();
        }
        entry
    };
    let mut entries: Vec<Value> = vec![json!({"type": "directory", "path": "folder", "oid": "0", "size": 0})];
    entries.extend(repo.files.iter().map(entry));
    let nothing =
        |path: &String| json!({"type": "file", "path": path, "size": 1, "oid": super::git_hash(b"x")});
    entries.extend(repo.listed.iter().map(nothing));
    let Some(page) = state.faults.lock().unwrap().page else {
        return Reply::new(200, Value::from(entries).to_string());
    };
    let cursor = query(&request.target)
        .iter()
        .find(|(name, _)| name == "cursor")
        .map_or(0, |(_, n)| n.parse().unwrap());
    let end = (cursor + page).min(entries.len());
    let reply = Reply::new(200, Value::from(entries[cursor..end].to_vec()).to_string());
    match end < entries.len() {
        // As a mirror answers: with the address of the hub itself.
        true => {
            let path = format!("/api/{}/{}/tree/{}", repo.kind, repo.id, repo.commit);
            reply.with(
                "Link",
                format!("<https://huggingface.co{path}?recursive=true&cursor={end}>; rel=\"next\""),
            )
        }
        false => reply,
    }
}

fn of_file(request: &Request, state: &State, path: &str) -> Reply {
    let (kind, path) = match path.strip_prefix("datasets/") {
        Some(rest) => ("datasets", rest),
        None => ("models", path),
    };
    let mut parts = path.splitn(5, '/');
    let mut part = || parts.next().unwrap_or_default();
    let (owner, name, _resolve, revision, file) = (part(), part(), part(), decoded(part()), part());
    let id = format!("{owner}/{name}");
    let mut repos = state.repos.lock().unwrap();
    if let Some(new) = repos.iter().find(|repo| repo.renamed_from.as_deref() == Some(&id)) {
        let prefix = if kind == "datasets" { "/datasets/" } else { "/" };
        return Reply::new(307, "Moved")
            .with("Location", format!("{prefix}{}/resolve/{revision}/{file}", new.id));
    }
    let Some(repo) = repos.iter_mut().find(|repo| repo.kind == kind && repo.id == id) else {
        return refused("RepoNotFound", "Repository not found", 401);
    };
    if let Some(refusal) = access(request, repo) {
        return refusal;
    }
    if !has(repo, &revision) {
        return refused("RevisionNotFound", "Invalid rev id", 404);
    }
    let file_name = decoded(file);
    let Some(found) = repo.files.get(&file_name).cloned() else {
        return refused("EntryNotFound", "Entry not found", 404).with("X-Repo-Commit", &repo.commit);
    };
    let mut faults = state.faults.lock().unwrap();
    if request.method == "HEAD"
        && let Some((_, content)) = faults.changes_to.take_if(|(path, _)| *path == file_name)
        && let Some(file) = repo.files.get_mut(&file_name)
    {
        file.content = content;
    }
    let weak = if faults.is_weak { "W/" } else { "" };
    let etag = format!("{weak}\"{}\"", found.etag());
    drop(faults);
    let commit = repo.commit.clone();
    if found.is_large {
        return Reply::new(302, "Found. Redirecting")
            .with("X-Repo-Commit", commit)
            .with("X-Linked-Etag", format!("\"{}\"", found.etag()))
            .with("X-Linked-Size", found.content.len().to_string())
            .with("X-Xet-Hash", hex(&[7; 32]))
            .with("Location", format!("{}/{}?Signature=secretsignature", state.cdn, found.etag()));
    }
    if request.header("accept-encoding").is_some_and(|accepted| accepted.contains("gzip")) {
        let reply = Reply::new(200, packed(&found.content)).with("Content-Encoding", "gzip");
        return reply.with("X-Repo-Commit", commit).with("ETag", etag);
    }
    content(request, state, &found.content).with("X-Repo-Commit", commit).with("ETag", etag)
}

/// A text as gzip, in which it stands as it is.
fn packed(text: &[u8]) -> Vec<u8> {
    let mut out = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff];
    let length = u16::try_from(text.len()).unwrap();
    out.push(1);
    out.extend(length.to_le_bytes());
    out.extend((!length).to_le_bytes());
    out.extend(text);
    let shifted = |crc: u32| (crc >> 1) ^ (0xedb8_8320 * (crc & 1));
    let crc = text.iter().fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), |crc, _| shifted(crc)));
    out.extend((!crc).to_le_bytes());
    out.extend(u32::from(length).to_le_bytes());
    out
}
