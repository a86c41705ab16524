//! Names that users and servers give: repositories, revisions, commits, paths in a repository, entity tags.

use std::fmt;
use std::path::{Path, PathBuf};

use sha1::{Digest, Sha1};

use crate::error::Error;

/// What a repository holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A model.
    Model,
    /// A data set.
    Dataset,
}

impl Kind {
    /// As in the folders of the cache and the addresses of the API.
    pub(crate) fn plural(self) -> &'static str {
        match self {
            Kind::Model => "models",
            Kind::Dataset => "datasets",
        }
    }

    /// What stands before the name in the address of a file.
    pub(crate) fn prefix(self) -> &'static str {
        match self {
            Kind::Model => "",
            Kind::Dataset => "datasets/",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Model => "model",
            Kind::Dataset => "data set",
        })
    }
}

/// A repository at a revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repo {
    /// What it holds.
    pub kind: Kind,
    /// `owner/name`, or the name alone.
    pub id: String,
    /// A branch, a tag or a commit.
    pub revision: String,
}

impl Repo {
    /// Reads `owner/name` or `owner/name@revision`. A revision beside it must not contradict.
    ///
    /// # Errors
    /// A name that no repository has, and two different revisions.
    pub fn of(kind: Kind, name: &str, revision: Option<&str>, default: &str) -> Result<Repo, Error> {
        let wrong = |problem: &str| Error::Name { name: name.to_owned(), problem: problem.to_owned() };
        let (id, inside) = match name.split_once('@') {
            Some((id, inside)) => (id, Some(inside)),
            None => (name, None),
        };
        if let (Some(one), Some(other)) = (inside, revision)
            && one != other
        {
            return Err(wrong(&format!(
                "it asks for the revision {one:?}, and {other:?} is asked for beside it"
            )));
        }
        let revision = inside.or(revision).unwrap_or(default);
        check_id(id).map_err(wrong)?;
        check_revision(revision).map_err(|problem| wrong(&format!("the revision {revision:?} {problem}")))?;
        Ok(Repo { kind, id: id.to_owned(), revision: revision.to_owned() })
    }

    /// The folder of the repository in the cache of Hugging Face.
    pub(crate) fn folder_name(&self) -> String {
        format!("{}--{}", self.kind.plural(), self.id.replace('/', "--"))
    }
}

impl fmt::Display for Repo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.id)
    }
}

fn check_id(id: &str) -> Result<(), &'static str> {
    if id.is_empty() || id.len() > 192 {
        return Err("a name has 1 to 96 characters on each side of the slash");
    }
    if id.matches('/').count() > 1 {
        return Err("write owner/name, or the name alone; a path on this machine must exist");
    }
    if id.contains("--") || id.contains("..") {
        return Err("`--` and `..` stand in no name of a repository");
    }
    let is_sound = |part: &str| {
        let inside = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        let ends = [part.bytes().next(), part.bytes().last()];
        let edge = |byte: Option<u8>| byte.is_some_and(|byte| !matches!(byte, b'-' | b'.'));
        part.len() <= 96 && part.bytes().all(inside) && ends.into_iter().all(edge)
    };
    match id.split('/').all(is_sound) && !id.ends_with(".git") {
        true => Ok(()),
        false => Err(
            "names consist of letters, digits, `-`, `_` and `.`, and neither begin nor end with `-` or `.`",
        ),
    }
}

fn check_revision(revision: &str) -> Result<(), &'static str> {
    if revision.len() > 250 {
        return Err("is too long");
    }
    match problem_of_path(revision) {
        Some(_) => Err("is no name of a branch, a tag or a commit"),
        None => Ok(()),
    }
}

/// Whether a revision is a whole commit, which never changes.
pub(crate) fn is_commit(revision: &str) -> bool {
    revision.len() == 40 && is_lower_hex(revision)
}

fn is_lower_hex(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// A path within a repository, which leads nowhere else on any system.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RepoPath(String);

impl RepoPath {
    /// Checks a path that a server or a file names.
    ///
    /// # Errors
    /// A path that is absolute, leads upwards, or that another system reads as such.
    pub fn of(path: &str) -> Result<RepoPath, Error> {
        match problem_of_path(path) {
            Some(problem) => Err(Error::Path { path: path.to_owned(), problem }),
            None => Ok(RepoPath(path.to_owned())),
        }
    }

    /// The path, with slashes.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The last part.
    pub fn file_name(&self) -> &str {
        self.0.rsplit('/').next().unwrap_or(&self.0)
    }

    /// The path below a folder.
    pub(crate) fn below(&self, folder: &Path) -> PathBuf {
        folder.join(&self.0)
    }

    /// How many folders it is deep.
    pub(crate) fn depth(&self) -> usize {
        self.0.matches('/').count()
    }
}

impl fmt::Display for RepoPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn problem_of_path(path: &str) -> Option<&'static str> {
    let parts = || path.split('/');
    if path.is_empty() || path.len() > 4000 || parts().any(|part| part.len() > 255) {
        return Some("which is empty or too long");
    }
    if path.chars().any(char::is_control) {
        return Some("which has a control character in it");
    }
    // A backslash parts folders on other systems, which may read this cache, and a colon names a drive there.
    if path.contains('\\') {
        return Some("which has a backslash in it");
    }
    let mut begin = parts().map(|part| part.as_bytes());
    if begin.any(|part| part.len() >= 2 && part[0].is_ascii_alphabetic() && part[1] == b':') {
        return Some("which names a drive");
    }
    if path.starts_with('/') {
        return Some("which is absolute");
    }
    if parts().any(|part| matches!(part, "" | "." | "..")) {
        return Some("which leads upwards or has empty parts");
    }
    None
}

/// What names the content of a file: the sha256 of large files, the hash that Git gives to small ones, or something else
/// that a mirror made up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Etag(String);

impl Etag {
    /// Reads the header of a reply, or the hash in a listing. What is no name of a file is none.
    pub(crate) fn of(header: &str) -> Option<Etag> {
        let text = header.trim();
        let text = text.strip_prefix("W/").unwrap_or(text).trim_matches('"');
        let inside = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'=');
        let is_sound = (1..=128).contains(&text.len()) && text.bytes().all(inside) && !text.starts_with('.');
        is_sound.then(|| Etag(text.to_owned()))
    }

    /// What stands for the hash of a file of which a list has none: such a download never goes on where another ended.
    pub(crate) fn unchecked(path: &RepoPath, size: u64) -> Etag {
        let hash: String =
            Sha1::digest(path.as_str()).iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        Etag(format!("unchecked-{hash}-{size}"))
    }

    /// The text, which names the blob in the cache.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it is the sha256 of the content.
    pub(crate) fn is_sha256(&self) -> bool {
        self.0.len() == 64 && is_lower_hex(&self.0)
    }

    /// Whether it is the hash that Git gives to the content.
    pub(crate) fn is_git_hash(&self) -> bool {
        is_commit(&self.0)
    }
}

impl fmt::Display for Etag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_and_without_revisions() {
        let of = |name, revision| Repo::of(Kind::Model, name, revision, "main");
        let repo = of("Qwen/Qwen2.5-0.5B", None).unwrap();
        assert_eq!((repo.id.as_str(), repo.revision.as_str()), ("Qwen/Qwen2.5-0.5B", "main"));
        assert_eq!(repo.folder_name(), "models--Qwen--Qwen2.5-0.5B");
        assert_eq!(of("gpt2@refs/pr/1", None).unwrap().revision, "refs/pr/1");
        assert_eq!(of("gpt2@v1", Some("v1")).unwrap().revision, "v1");
        assert!(of("gpt2@v1", Some("v2")).unwrap_err().to_string().contains("v2"));
        for wrong in [
            "", "a/b/c", "../b", "a--b/c", "-a/b", "a/b.", "a b", "a/b.git", "a/b@../x", "a/b@", "a//b",
            "a/b@/x",
        ] {
            assert!(of(wrong, None).is_err(), "{wrong}");
        }
    }

    #[test]
    fn hostile_paths_are_refused_and_odd_ones_are_not() {
        for hostile in [
            "/etc/passwd",
            "../x",
            "a/../../x",
            "a/..",
            "..",
            ".",
            "a//b",
            "a/",
            "C:/x",
            "D:foo",
            "x:y",
            "a/C:x",
            "\\\\h\\s",
            "a\\..\\b",
            "a\0b",
            "a\nb",
            "",
            "a/./b",
        ] {
            let error = RepoPath::of(hostile).unwrap_err().to_string();
            assert!(error.contains("refused"), "{hostile}: {error}");
        }
        for odd in ["a b#c%20.json", "\u{6570}\u{636e}/\u{e9}.txt", "...", "a..b", ".hidden", "a/b/c.txt"] {
            assert_eq!(RepoPath::of(odd).unwrap().as_str(), odd);
        }
    }

    #[test]
    fn entity_tags_are_names_of_files_or_nothing() {
        let sha1 = "a".repeat(40);
        assert_eq!(Etag::of(&format!("W/\"{sha1}\"")).unwrap().as_str(), sha1);
        assert!(Etag::of(&format!("\"{sha1}\"")).unwrap().is_git_hash());
        assert!(Etag::of(&"0".repeat(64)).unwrap().is_sha256());
        for hostile in ["\"../../x\"", "\"\"", "..", "a/b", "a b", &"a".repeat(200)] {
            assert!(Etag::of(hostile).is_none(), "{hostile}");
        }
    }
}
