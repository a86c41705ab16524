//! How long to wait before another try: twice as long each time, or as long as the hub says.

use std::time::Duration;

/// How often a request is repeated before its error counts.
pub(crate) const N_RETRIES: u32 = 5;

/// The longest pause that a hub may ask for; a longer one is reported instead of waited for.
pub(crate) const LONGEST: Duration = Duration::from_secs(600);

/// The pause before the given retry, counted from zero: 1, 2, 4, 8, 8 times the first.
pub(crate) fn before(retry: u32, first: Duration) -> Duration {
    first.saturating_mul(1 << retry.min(3))
}

/// A rate limit as the hub describes it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RateLimit {
    pub(crate) resource: String,
    pub(crate) remaining: u64,
    pub(crate) seconds: u64,
    /// Requests, and the seconds in which so many are allowed.
    pub(crate) quota: Option<(u64, u64)>,
}

impl RateLimit {
    /// Reads `RateLimit: "api";r=0;t=55` and `RateLimit-Policy: "fixed window";"api";q=500;w=300`.
    pub(crate) fn of(limit: Option<&str>, policy: Option<&str>) -> Option<RateLimit> {
        let limit = limit?;
        let resource = limit.split('"').nth(1)?.to_owned();
        let quota = policy.and_then(|policy| Some((number(policy, "q")?, number(policy, "w")?)));
        Some(RateLimit { resource, remaining: number(limit, "r")?, seconds: number(limit, "t")?, quota })
    }
}

/// How long a reply with 429 asks to wait. Dates in `Retry-After` say nothing: clocks differ.
pub(crate) fn asked_for(limit: Option<&RateLimit>, retry_after: Option<&str>) -> Option<Duration> {
    let seconds = match limit.filter(|limit| limit.remaining == 0) {
        Some(limit) => limit.seconds,
        None => retry_after?.trim().parse().ok()?,
    };
    // One more, because the hub counts whole seconds.
    Some(Duration::from_secs(seconds.saturating_add(1)))
}

/// The number behind a name, as in `r=0`.
fn number(text: &str, name: &str) -> Option<u64> {
    let value = |part: &str| {
        let (found, value) = part.split_once('=')?;
        (found.trim() == name).then(|| value.trim().parse().ok())?
    };
    text.split(';').find_map(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_eight() {
        let seconds: Vec<u64> = (0..6).map(|retry| before(retry, Duration::from_secs(1)).as_secs()).collect();
        assert_eq!(seconds, [1, 2, 4, 8, 8, 8]);
    }

    #[test]
    fn limits_are_read_as_the_hub_writes_them() {
        let limit =
            RateLimit::of(Some(r#""api";r=0;t=55"#), Some(r#""fixed window";"api";q=500;w=300"#)).unwrap();
        let expected =
            RateLimit { resource: "api".to_owned(), remaining: 0, seconds: 55, quota: Some((500, 300)) };
        assert_eq!(limit, expected);
        assert_eq!(asked_for(Some(&limit), Some("7")), Some(Duration::from_secs(56)));
        let open = RateLimit::of(Some(r#""api";r=3;t=55"#), None).unwrap();
        assert_eq!(asked_for(Some(&open), Some("7")), Some(Duration::from_secs(8)));
        assert_eq!(asked_for(Some(&open), Some("Wed, 21 Oct 2015 07:28:00 GMT")), None);
        assert_eq!(asked_for(None, Some("99999999999")), Some(Duration::from_secs(100_000_000_000)));
        assert_eq!(RateLimit::of(Some("nonsense"), None), None);
        assert_eq!(RateLimit::of(None, None), None);
    }
}
