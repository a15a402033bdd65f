//! URLs of backends with all their options, without connecting.

use pillarbox_cli::fuzzing as cli;
use pillarbox_redis::RedisOptions;
use pillarbox_sqlite::SqliteOptions;
use pillarbox_sqs::SqsOptions;

use super::{SECRET, accepted, text};
use crate::driver::record_outcome;

pub(super) const WORDS: &[&str] = &[
    "sqlite:",
    "sqlite::memory:",
    "file:",
    "redis://",
    "rediss://",
    "redis+unix://",
    "redis-sentinel://",
    "redis-cluster://",
    "rediss-sentinel://",
    "rediss-cluster://",
    "sqs://",
    "sqs+http://",
    "sqs+https://",
    "memory:",
    "user:hunter2@",
    ":hunter2@",
    "hunter2",
    "localhost",
    "127.0.0.1",
    "[::1]",
    ":6379",
    ":70000",
    "/0",
    "/service",
    "?",
    "&",
    "synchronous=normal",
    "synchronous=full",
    "create=true",
    "adopt=true",
    "retry_for=",
    "response_timeout=",
    "default_ttl=",
    "coalesce=false",
    "replicas=1",
    "replicas_timeout=",
    "partitions=",
    "1000",
    "1001",
    "sentinel_user=u",
    "sentinel_password=hunter2",
    "password=hunter2",
    "pass=hunter2",
    "ca=f",
    "cert=f",
    "key=f",
    "db=2",
    "user=me",
    "poll=20",
    "max_message=",
    "tries=1",
    "region=eu",
    "fifo=true",
    "MessageRetentionPeriod=60",
    "1e-9",
    "1e18",
    "secret=hunter2",
    "token=hunter2",
];

pub(super) fn run(input: &[u8]) {
    let Some(url) = text(input) else { return };
    let is_secret = is_only_a_password(url);
    let tells_nothing = |text: String| {
        // Errors of the library, without the redaction of the command.
        assert!(!is_secret || !text.contains(SECRET), "a secret is shown: {text}");
    };
    let tells_nothing_of = |error: &pillarbox_core::Error| tells_nothing(error.to_string());
    if is_secret {
        let (shown, _) = cli::hidden(url, url);
        assert!(!shown.contains(SECRET), "a secret is shown: {shown}");
    }
    // Like `pillarbox::open`.
    let scheme = url.split_once(':').map_or("", |(scheme, _)| scheme);
    if scheme.starts_with("redis") {
        redis(url, tells_nothing);
    } else if scheme.starts_with("sqs") {
        let options = SqsOptions::from_url(url);
        if let Some(options) = accepted(options.inspect_err(tells_nothing_of)) {
            record_outcome("sqs");
            let is_sensible = pillarbox_sqs::fuzzing::is_sensible(&options);
            assert!(is_sensible, "limits of options: {options:?}");
            tells_nothing(format!("{options:?}"));
        }
    } else if scheme == "sqlite" {
        let options = SqliteOptions::from_url(url);
        if let Some(options) = accepted(options.inspect_err(tells_nothing_of)) {
            record_outcome("sqlite");
            assert_eq!(SqliteOptions::from_url(url).ok(), Some(options));
        }
    }
}

fn redis(url: &str, tells_nothing: impl Fn(String)) {
    let options = RedisOptions::from_url(url).inspect_err(|error| tells_nothing(error.to_string()));
    let Some(options) = accepted(options) else { return };
    let (place, is_sensible) = pillarbox_redis::fuzzing::place(&options);
    record_outcome(place.split("://").next().unwrap_or_default());
    assert!(is_sensible, "limits of options: {options:?}");
    tells_nothing(format!("{options:?}"));
    // The name of a service is free text, formatted for people.
    if place.starts_with("redis://") || place.starts_with("redis-cluster://") {
        let again = RedisOptions::from_url(&place);
        let again = again.map(|again| pillarbox_redis::fuzzing::place(&again).0);
        assert_eq!(again.expect("the place is a URL"), place);
    }
}

/// Whether the secret is in the password of a URL and nowhere else. Independent of the backends' parsers.
fn is_only_a_password(url: &str) -> bool {
    let Some((scheme, rest)) = url.split_once("://") else { return false };
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '+' || c == '-';
    let plain = |text: &str| {
        text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_,:[]/".contains(&byte))
    };
    let Some((credentials, place)) = rest.split_once('@') else { return false };
    let Some((user, password)) = credentials.split_once(':') else { return false };
    let place = place.split('?').next().unwrap_or_default();
    let query = rest.split_once('?').map_or("", |(_, query)| query);
    scheme.chars().all(is_name)
        && !scheme.contains(SECRET)
        && plain(user)
        && !user.contains(SECRET)
        && plain(place)
        && !place.contains(SECRET)
        && password.bytes().all(|byte| byte.is_ascii_alphanumeric())
        && password.contains(SECRET)
        && !query.contains(SECRET)
        && !query.contains(['@', '%', '?'])
}
