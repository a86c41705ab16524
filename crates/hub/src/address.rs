//! Addresses: their parts, how paths are written in them, where a redirect leads, and which of them may see the token.

/// Scheme, host and port: what must be equal for two addresses to be the same server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    scheme: String,
    pub(crate) host: String,
    port: u16,
}

impl Origin {
    /// The origin of an absolute address with `http` or `https`.
    pub(crate) fn of(address: &str) -> Option<Origin> {
        let (scheme, rest) = address.split_once("://")?;
        let scheme = scheme.to_ascii_lowercase();
        let default_port = match scheme.as_str() {
            "https" => 443,
            "http" => 80,
            _ => return None,
        };
        let authority = rest.split(['/', '?', '#', '\\']).next().unwrap_or_default();
        let place = authority.rsplit('@').next().unwrap_or_default();
        // The colons of an IPv6 address stand in brackets.
        let (host, port) = match place.rfind(':').filter(|at| !place[*at..].contains(']')) {
            Some(at) => (&place[..at], place[at + 1..].parse().ok()?),
            None => (place, default_port),
        };
        (!host.is_empty()).then(|| Origin { scheme, host: host.to_ascii_lowercase(), port })
    }

    pub(crate) fn is_https(&self) -> bool {
        self.scheme == "https"
    }
}

/// Writes a text into an address: all but letters, digits and `-_.~` as `%` and two digits. A path keeps its slashes.
pub(crate) fn encoded(text: &str, keeps_slashes: bool) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => out.push(char::from(byte)),
            b'/' if keeps_slashes => out.push('/'),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

/// Whether a `Location` names no server of its own.
pub(crate) fn is_relative(location: &str) -> bool {
    !location.starts_with("//") && Origin::of(location).is_none() && !location.contains("://")
}

/// Where a redirect from an address leads. `None` if it leads to nothing that is an address.
pub(crate) fn joined(base: &str, location: &str) -> Option<String> {
    let (scheme, rest) = base.split_once("://")?;
    let authority_end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(authority_end);
    if let Some(network) = location.strip_prefix("//") {
        let absolute = format!("{scheme}://{network}");
        return Origin::of(&absolute).map(|_| absolute);
    }
    if !is_relative(location) {
        return Origin::of(location).map(|_| location.to_owned());
    }
    if location.starts_with('/') {
        return Some(format!("{scheme}://{authority}{location}"));
    }
    let path = path.split(['?', '#']).next().unwrap_or_default();
    let folder = path.rfind('/').map_or("/", |at| &path[..=at]);
    Some(format!("{scheme}://{authority}{folder}{location}"))
}

/// An address as messages show it: without the query, which may hold a signature, and without a user's name and password.
pub(crate) fn shown(address: &str) -> String {
    let plain = address.split(['?', '#']).next().unwrap_or_default();
    let Some((scheme, rest)) = plain.split_once("://") else { return plain.to_owned() };
    let end = rest.find('/').unwrap_or(rest.len());
    let place = rest[..end].rsplit('@').next().unwrap_or_default();
    format!("{scheme}://{place}{}", &rest[end..])
}

/// The address behind `rel="next"` in a `Link` header.
pub(crate) fn next_page(link: &str) -> Option<&str> {
    let is_next = |part: &&str| part.split(';').skip(1).any(|one| one.trim().replace('"', "") == "rel=next");
    // A comma may stand within an address too, but none of the hub's has one.
    let part = link.split(',').find(is_next)?;
    part.split_once('<')?.1.split_once('>').map(|(address, _)| address)
}

/// Whether a host is reached without a proxy.
pub(crate) fn is_without_proxy(host: &str, no_proxy: &[String]) -> bool {
    no_proxy.iter().any(|name| {
        let name = name.trim_start_matches('.');
        name == "*" || host == name || host.strip_suffix(name).is_some_and(|before| before.ends_with('.'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_compare_scheme_host_and_port() {
        let of = |address| Origin::of(address).unwrap();
        assert_eq!(of("https://HF.co/x"), of("https://hf.co:443"));
        for other in [
            "http://hf.co",
            "https://hf.co:8443",
            "https://hf.co.evil.example",
            "https://hf.co@evil.example/",
        ] {
            assert_ne!(of("https://hf.co"), of(other), "{other}");
        }
        assert_eq!(of("http://[::1]:80/x"), of("http://[::1]"));
        for none in ["ftp://x", "x", "/x", "https://", "https://a:b/"] {
            assert!(Origin::of(none).is_none(), "{none}");
        }
    }

    #[test]
    fn redirects_lead_where_browsers_go() {
        let base = "https://hf.co/a/resolve/main/x?y";
        for (location, to) in [
            ("/b/x", "https://hf.co/b/x"),
            ("z", "https://hf.co/a/resolve/main/z"),
            ("//cdn.example/q", "https://cdn.example/q"),
            ("http://cdn.example/q?s=1", "http://cdn.example/q?s=1"),
        ] {
            assert_eq!(joined(base, location).as_deref(), Some(to));
        }
        assert!(is_relative("/b") && !is_relative("//c/b") && !is_relative("https://c/b"));
        assert_eq!(joined(base, "ftp://x/y"), None);
        assert_eq!(joined(base, "javascript://x"), None);
    }

    #[test]
    fn paths_and_messages() {
        assert_eq!(encoded("a b/#1%/\u{e9}", true), "a%20b/%231%25/%C3%A9");
        assert_eq!(encoded("refs/pr/1", false), "refs%2Fpr%2F1");
        assert_eq!(shown("https://u:p@cdn.example/x?Signature=s"), "https://cdn.example/x");
        assert_eq!(next_page("<https://a/p?c=1>; rel=\"next\""), Some("https://a/p?c=1"));
        assert_eq!(
            next_page("<https://a/p>; rel=\"prev\", <https://a/n>; rel=\"next\""),
            Some("https://a/n")
        );
        assert_eq!(next_page("<https://a/p>; rel=\"prev\""), None);
        let list = ["a.com".to_owned(), ".b.com".to_owned()];
        assert!(is_without_proxy("x.a.com", &list) && is_without_proxy("b.com", &list));
        assert!(!is_without_proxy("xa.com", &list));
    }
}
