//! Who may join a run: the token that keeps others out, where it comes from and whether it is strong enough, and the
//! addresses at which machines may meet without one.

use std::io::Read;
use std::net::{IpAddr, Ipv6Addr};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The variable with the token of a run. Unlike an argument, other users of the machine do not see it.
pub const TOKEN: &str = "OARLOCK_RDZV_TOKEN";
/// The variable that names a file with the token.
pub const TOKEN_FILE: &str = "OARLOCK_RDZV_TOKEN_FILE";
/// The variable that lets machines meet at public addresses without a token: 1.
pub const INSECURE: &str = "OARLOCK_RDZV_INSECURE";
/// The variable that says whether ranks encrypt what they send to other machines: 1 or 0. That of rank 0 counts.
pub const ENCRYPTION: &str = "OARLOCK_LINK_ENCRYPTION";
/// The longest file with a token.
const LONGEST: u64 = 4096;
const MAKE: &str = "`oarlock token new > run.token` makes a good one";

/// How a run keeps others out.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Access {
    /// The token; without one everybody can join who knows the name of the run and reaches it.
    pub token: Option<String>,
    /// The machines may meet at public addresses without a token.
    pub insecure: bool,
    /// What the user should know about the token.
    pub warnings: Vec<String>,
}

impl std::fmt::Debug for Access {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let token = self.token.as_ref().map(|_| "…");
        f.debug_struct("Access").field("token", &token).field("insecure", &self.insecure).finish()
    }
}

/// Why a token is not taken. The text never holds it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
// In quotes, a name does not look as if its secret followed, to the filter that hides secrets.
#[error("`{what}`: {why}")]
pub struct Denied {
    /// Where it comes from.
    pub what: String,
    /// What is wrong, and what to do.
    pub why: String,
}

impl Access {
    /// Takes what the variables say.
    ///
    /// # Errors
    /// When a token is weak, its file cannot be used, or two tokens differ.
    pub fn variables(&mut self, read: &dyn Fn(&str) -> Option<String>) -> Result<(), Denied> {
        let read =
            |name: &str| read(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty());
        if let Some(token) = read(TOKEN) {
            self.take(TOKEN, &token)?;
        }
        if let Some(path) = read(TOKEN_FILE) {
            self.take_file(TOKEN_FILE, Path::new(&path))?;
        }
        match read(INSECURE).as_deref() {
            None | Some("0") => Ok(()),
            Some("1") => {
                self.insecure = true;
                Ok(())
            }
            Some(_) => Err(denied(INSECURE, "expected 1, or 0".into())),
        }
    }

    /// Takes a token that is written somewhere.
    ///
    /// # Errors
    /// When it is weak, or another than one that is known already.
    pub fn take(&mut self, what: &str, token: &str) -> Result<(), Denied> {
        if let Some(weakness) = weakness(token) {
            return Err(denied(what, format!("{weakness}; {MAKE}")));
        }
        match &self.token {
            Some(other) if other != token => {
                Err(denied(what, "another token is given as well; give one, or twice the same".into()))
            }
            _ => {
                self.token = Some(token.to_owned());
                Ok(())
            }
        }
    }

    /// Takes the token in a file.
    ///
    /// # Errors
    /// When it cannot be read, others may write it, or as [`take`](Access::take).
    pub fn take_file(&mut self, what: &str, path: &Path) -> Result<(), Denied> {
        let what = format!("{what} ({})", path.display());
        let denied = |why: String| denied(&what, why);
        let file = crate::whole_file::open_file(path)
            .map_err(|e| denied(format!("it cannot be read: {e}; {MAKE}")))?;
        let status = file.metadata().map_err(|e| denied(e.to_string()))?;
        if !status.is_file() || status.len() > LONGEST {
            return Err(denied("it is not a file with one line".into()));
        }
        if status.mode() & 0o022 != 0 {
            return Err(denied(format!("other users may write it; chmod 600 {}", path.display())));
        }
        if status.mode() & 0o044 != 0 {
            self.warnings.push(format!("other users may read {what}; chmod 600 {}", path.display()));
        }
        let mut text = String::new();
        file.take(LONGEST).read_to_string(&mut text).map_err(|e| denied(e.to_string()))?;
        self.take(&what, text.trim())
    }
}

fn denied(what: &str, why: String) -> Denied {
    Denied { what: what.to_owned(), why }
}

/// What makes a token easy to guess; `None` where at least 128 bits are plausible. Only random text has them: 32 hexadecimal
/// digits, or 22 characters of base64.
pub fn weakness(token: &str) -> Option<String> {
    let n = token.chars().count();
    let has = |kind: fn(&char) -> bool| token.chars().any(|c| kind(&c));
    let kinds = [has(char::is_ascii_digit), has(char::is_ascii_lowercase), has(char::is_ascii_uppercase)];
    let hex = token.chars().all(|c| c.is_ascii_hexdigit());
    let least = if hex { 32 } else { 22 };
    if n < least {
        return Some(format!(
            "the token is weak: it has {n} characters, and 128 bits need 32 hexadecimal digits or 22 characters of base64"
        ));
    }
    let mut distinct: Vec<char> = token.chars().collect();
    distinct.sort_unstable();
    distinct.dedup();
    let one_kind = kinds.iter().filter(|has| **has).count() < 2;
    // Words, also with numbers behind them or between them.
    let pieces: Vec<&str> =
        token.split(|c: char| !c.is_alphanumeric()).filter(|one| !one.is_empty()).collect();
    let is_word = |piece: &&str| {
        let letters = piece.trim_end_matches(|c: char| c.is_ascii_digit());
        piece.len() <= 12 && letters.chars().all(char::is_alphabetic)
    };
    let words = pieces.len() > 1 && pieces.iter().all(is_word);
    (distinct.len() < 8 || one_kind || words)
        .then(|| "the token is weak: it looks like words or a pattern, which can be guessed, and not like random text".into())
}

/// Whether an address is one of this machine, of a link, or of a private network: those of RFC 1918, 4193 and 6598. An
/// address that stands for all of a machine counts as one, as each connection is looked at.
pub fn is_private(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => {
            let [a, b, ..] = ip.octets();
            let shared = a == 100 && (64..128).contains(&b);
            ip.is_private() || ip.is_loopback() || ip.is_link_local() || ip.is_unspecified() || shared
        }
        IpAddr::V6(ip) => match ip.to_ipv4_mapped() {
            Some(ip) => is_private(IpAddr::V4(ip)),
            None => {
                let first = ip.segments()[0];
                ip.is_loopback()
                    || ip.is_unspecified()
                    || first & 0xfe00 == 0xfc00
                    || first & 0xffc0 == 0xfe80
            }
        },
    }
}

/// What counts as one address where connections are counted: that of IPv4, or the network of 64 bits of one of IPv6.
pub(super) fn origin(ip: IpAddr) -> u128 {
    let mapped = |ip: Ipv6Addr| ip.to_ipv4_mapped().map(|ip| u128::from(u32::from(ip)));
    match ip {
        IpAddr::V4(ip) => u128::from(u32::from(ip)),
        IpAddr::V6(ip) => mapped(ip).unwrap_or(u128::from(ip) >> 64 << 64),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn only_random_text_is_a_token() {
        for weak in [
            "",
            "hunter2",
            "none",
            "00112233445566778899aabbccddee",
            "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa1",
            "correct horse battery staple",
            "Correct-Horse-Battery-Staple-7",
            "averyveryverylongpassphrase",
            "12345678901234567890123456789012345",
            "llama3_pretrain_run_2026_11_26",
        ] {
            assert!(weakness(weak).is_some(), "{weak}");
        }
        for strong in [
            "9b0f2cc1d66e4af0a6e1b1f7f5d2c3e8",
            "q83vEjRWeJASNFZ4kKvN7w",
            "3q2+7/8AESIzRFVmd4iZqrs=",
            &super::super::hex(&super::super::nonce().unwrap()),
        ] {
            assert_eq!(weakness(strong), None, "{strong}");
        }
    }

    #[test]
    fn private_addresses_are_those_of_the_standards() {
        for yes in [
            "10.1.2.3",
            "172.16.0.1",
            "172.31.9.9",
            "192.168.0.1",
            "127.0.0.2",
            "169.254.1.1",
            "100.64.0.1",
            "100.127.255.255",
            "::1",
            "fd12::1",
            "fe80::1",
            "::ffff:10.0.0.1",
            "0.0.0.0",
            "::",
        ] {
            assert!(is_private(yes.parse().unwrap()), "{yes}");
        }
        for no in [
            "8.8.8.8",
            "172.32.0.1",
            "192.169.0.1",
            "100.63.0.1",
            "100.128.0.1",
            "192.0.2.1",
            "2001:db8::1",
            "::ffff:8.8.8.8",
            "fec0::1",
            "ff02::1",
            "224.0.0.1",
        ] {
            assert!(!is_private(no.parse().unwrap()), "{no}");
        }
        let at = |text: &str| origin(text.parse().unwrap());
        assert_eq!(at("2001:db8::1"), at("2001:db8::ffff:2"));
        assert_ne!(at("2001:db8::1"), at("2001:db8:0:1::1"));
        assert_eq!(at("::ffff:10.0.0.1"), at("10.0.0.1"));
    }

    #[test]
    fn a_file_with_a_token_is_one_that_others_cannot_write() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.token");
        let token = super::super::hex(&super::super::nonce().unwrap());
        let mode = |mode| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        let take = || {
            let mut access = Access::default();
            access.take_file("token_file", &path).map(|()| access)
        };
        assert!(take().unwrap_err().to_string().contains("cannot be read"));
        std::fs::write(&path, format!("{token}\n")).unwrap();
        mode(0o600);
        let access = take().unwrap();
        assert_eq!((access.token.as_deref(), access.warnings.len()), (Some(token.as_str()), 0));
        assert!(!format!("{access:?}").contains(&token));
        mode(0o644);
        assert!(take().unwrap().warnings[0].contains("chmod 600"));
        mode(0o666);
        assert!(take().unwrap_err().to_string().contains("other users may write it"));
        mode(0o600);
        std::fs::write(&path, "hunter2").unwrap();
        let error = take().unwrap_err().to_string();
        assert!(error.contains("oarlock token new") && !error.contains("hunter2"), "{error}");
        let mut access = Access::default();
        assert!(access.take_file("token_file", folder.path()).is_err());
        let both = |name: &str| {
            (name == TOKEN || name == TOKEN_FILE).then(|| match name {
                TOKEN => token.clone(),
                _ => path.display().to_string(),
            })
        };
        std::fs::write(&path, &token).unwrap();
        access.variables(&both).unwrap();
        std::fs::write(&path, token.replace('0', "1").replace('2', "3")).unwrap();
        let other = access.variables(&both);
        assert!(other.is_err_and(|error| error.to_string().contains("another token")));
    }
}
