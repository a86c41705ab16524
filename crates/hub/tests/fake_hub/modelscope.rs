//! The addresses of ModelScope: lists that are cut or have pages, and files that lie on another server.

use serde_json::{Value, json};

use super::http::{Reply, Request, content, query};
use super::{FakeFile, State};

/// Where lists of models are cut.
const CUT: usize = 3000;

pub fn reply(request: &Request, state: &State) -> Reply {
    let path = request.target.split('?').next().unwrap_or_default();
    let parts: Vec<&str> = path.trim_start_matches("/api/v1/").split('/').collect();
    let query = query(&request.target);
    let value =
        |name: &str| query.iter().find(|(known, _)| known == name).map_or("", |(_, value)| value.as_str());
    let [kind, owner, name, "repo", what @ ..] = parts.as_slice() else { return Reply::new(404, "{}") };
    let repos = state.repos.lock().unwrap();
    let Some(repo) = repos.iter().find(|repo| repo.kind == *kind && repo.id == format!("{owner}/{name}"))
    else {
        return Reply::new(
            404,
            json!({"Code": 10010205001_u64, "Success": false, "Message": "not found"}).to_string(),
        );
    };
    if what.is_empty() {
        let Some(file) = repo.files.get(value("FilePath")) else { return Reply::new(404, "") };
        return match file.is_large {
            true => Reply::new(302, "")
                .with("Location", format!("{}/{}?OSSAccessKeyId=1", state.cdn, file.etag())),
            false => content(request, state, &file.content),
        };
    }
    let root = value("Root");
    let is_flat = value("Recursive") == "False";
    let below = |path: &str| match root {
        "" => Some(path.to_owned()),
        root => path.strip_prefix(&format!("{root}/")).map(str::to_owned),
    };
    let mut entries: Vec<Value> = Vec::new();
    let mut folders = std::collections::BTreeSet::new();
    for (path, file) in &repo.files {
        let Some(inside) = below(path) else { continue };
        if let (true, Some((folder, _))) = (is_flat, inside.split_once('/')) {
            folders.insert(if root.is_empty() { folder.to_owned() } else { format!("{root}/{folder}") });
        } else {
            entries.push(entry(path, file));
        }
    }
    entries.extend(folders.iter().map(|folder| json!({"Path": folder, "Type": "tree", "Size": 0})));
    if what == ["tree"] {
        let number = |name: &str, default: usize| value(name).parse().unwrap_or(default);
        let (page, size) = (number("PageNumber", 1), number("PageSize", 100));
        entries = entries.into_iter().skip((page - 1) * size).take(size).collect();
    } else {
        entries.truncate(CUT);
    }
    Reply::new(200, json!({"Code": 200, "Success": true, "Data": {"Files": entries}}).to_string())
}

fn entry(path: &str, file: &FakeFile) -> Value {
    let large = FakeFile { is_large: true, ..file.clone() };
    let name = path.rsplit('/').next().unwrap_or_default();
    json!({"Path": path, "Name": name, "Type": "blob", "Size": file.content.len(), "Sha256": large.etag()})
}
