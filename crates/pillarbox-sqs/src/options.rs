//! Options of the backend, and their form as a URL.

use std::collections::BTreeMap;
use std::time::Duration;

use percent_encoding::percent_decode_str;
use pillarbox_core::{Error, Result};

use crate::limits::{MAX_MESSAGE, MAX_NAME, MAX_WAIT};

/// Region or endpoint of SQS, and how it is used.
///
/// | URL | SQS |
/// |---|---|
/// | `sqs://REGION[/PREFIX]` | AWS, in this region |
/// | `sqs:///[PREFIX]` | AWS, in the region of the environment or the profile |
/// | `sqs+http://HOST[:PORT][/PREFIX]` | a local server, such as moto |
/// | `sqs+https://HOST[:PORT][/PREFIX]` | another endpoint, with the credentials of AWS |
///
/// `PREFIX` is the prefix of the names of all queues on SQS: with `sqs://eu-central-1/shop-`, the queue `shop-jobs` is
/// called `jobs`.
///
/// | option | default | meaning |
/// |---|---|---|
/// | `create=true` | `false` | creates missing queues when they are first sent to or received from |
/// | `ATTRIBUTE=VALUE` | | an attribute of created queues, with its SQS name: `MessageRetentionPeriod=1209600` |
/// | `fifo=true` | `false` | all queues are FIFO queues: `jobs` is `jobs.fifo` |
/// | `poll=SECONDS` | `20` | longest long poll: 1 to 20 |
/// | `max_message=BYTES` | `1048576` | largest message, attributes included; 262144 for servers with the former limit |
/// | `tries=N` | `5` | number of tries of a request that is throttled or fails in transit |
/// | `region=REGION` | `us-east-1` | the region, for the URLs with a host |
///
/// ```
/// use pillarbox_sqs::SqsOptions;
///
/// let options = SqsOptions::from_url("sqs://eu-central-1/shop-?poll=5")?;
/// let local = SqsOptions::from_url("sqs+http://127.0.0.1:5000?create=true")?;
/// # Ok::<(), pillarbox_core::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub struct SqsOptions {
    pub(crate) region: Option<String>,
    pub(crate) endpoint: Option<String>,
    pub(crate) usage: Usage,
}

/// The options that do not depend on the endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) prefix: String,
    pub(crate) create: bool,
    pub(crate) only_existing: bool,
    pub(crate) attributes: BTreeMap<String, String>,
    pub(crate) fifo: bool,
    pub(crate) poll: Duration,
    pub(crate) max_message: usize,
    pub(crate) tries: u32,
}

impl Default for SqsOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl SqsOptions {
    /// Creates options for AWS, in the region of the environment or the profile, without a prefix. Missing queues are not
    /// created.
    pub fn new() -> Self {
        let usage = Usage {
            prefix: String::new(),
            create: false,
            only_existing: false,
            attributes: BTreeMap::new(),
            fifo: false,
            poll: MAX_WAIT,
            max_message: MAX_MESSAGE,
            tries: 5,
        };
        Self { region: None, endpoint: None, usage }
    }

    /// Parses a URL.
    pub fn from_url(url: &str) -> Result<Self> {
        let (scheme, rest) = url.split_once("://").ok_or_else(|| invalid_url("there is no ://"))?;
        let (location, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (host, prefix) = location.split_once('/').unwrap_or((location, ""));
        // Checked first: a secret with a slash in it would be taken for a prefix, and shown in an error.
        let user = "a host has no user and no password: the credentials are those of AWS";
        if location.contains('@') {
            return Err(invalid_url(user));
        }
        // With an @, the query may be part of a password, which errors must not show.
        let may_show = !query.contains('@');
        let redact = |error, instead: &str| if may_show { error } else { invalid_url(instead) };
        let mut options = Self::new().prefix(prefix).map_err(|error| redact(error, user))?;
        match scheme {
            "sqs" if host.contains(':') => {
                return Err(invalid_url("a host with a port is written sqs+http://HOST:PORT"));
            }
            "sqs" if host.is_empty() => {}
            "sqs" => options.region = Some(host.to_owned()),
            "sqs+http" | "sqs+https" if host.is_empty() => {
                return Err(invalid_url("there is no host"));
            }
            "sqs+http" => options.endpoint = Some(format!("http://{host}")),
            "sqs+https" => options.endpoint = Some(format!("https://{host}")),
            _ => return Err(invalid_url(&format!("unknown scheme {scheme:?}"))),
        }
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = percent_decode_str(value).decode_utf8_lossy().into_owned();
            let unknown = "unknown option or value; the credentials are those of AWS";
            // No attribute of a queue has an @ in its name.
            if name.contains('@') {
                return Err(invalid_url(unknown));
            }
            options = options.set(name, value).map_err(|error| redact(error, unknown))?;
        }
        Ok(options)
    }

    fn set(self, name: &str, value: String) -> Result<Self> {
        let refuse = |allowed: &str| {
            Error::invalid(None, "option of an SQS URL", format!("{name}={value}"), allowed)
        };
        let truth = || match value.as_str() {
            "true" => Ok(true),
            "false" => Ok(false),
            _ => Err(refuse("true or false")),
        };
        let number = |allowed| value.parse::<u32>().map_err(|_| refuse(allowed));
        match name {
            "create" => Ok(self.create(truth()?)),
            "fifo" => Ok(self.fifo(truth()?)),
            "poll" => self.poll(Duration::from_secs(number("1 to 20, in seconds")?.into())),
            "max_message" => self.max_message(number("a number of bytes")? as usize),
            "tries" => self.tries(number("at least 1")?),
            "region" => Ok(self.region(value)),
            _ if name.starts_with(|c: char| c.is_ascii_uppercase()) => {
                Ok(self.queue_attribute(name, value))
            }
            // Only the name is shown: the value may be a secret.
            _ => Err(Error::invalid(
                None,
                "option of an SQS URL",
                format!("{name:?}"),
                "create, fifo, poll, max_message, tries, region, or an attribute of a queue with its SQS \
                 name, such as MessageRetentionPeriod",
            )),
        }
    }

    /// Sets the region. Defaults to that of the environment or the profile.
    pub fn region(mut self, region: impl Into<String>) -> Self {
        self.region = Some(region.into());
        self
    }

    /// Sets the endpoint, such as `http://127.0.0.1:5000`. Defaults to that of AWS for the region.
    pub fn endpoint(mut self, url: impl Into<String>) -> Self {
        self.endpoint = Some(url.into());
        self
    }

    /// Sets the prefix of the names of all queues on SQS. Defaults to none.
    pub fn prefix(mut self, prefix: &str) -> Result<Self> {
        if !prefix.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'))
            || prefix.len() >= MAX_NAME
        {
            let allowed = "fewer than 80 of the characters A-Z a-z 0-9 _ -";
            return Err(Error::invalid(None, "prefix of queues", format!("{prefix:?}"), allowed));
        }
        self.usage.prefix = prefix.to_owned();
        Ok(self)
    }

    /// Sets whether missing queues are created when they are first sent to or received from. Defaults to `false`.
    pub fn create(mut self, create: bool) -> Self {
        self.usage.create = create;
        self
    }

    /// Sets whether no queue is created even if [`create`](Self::create) is set: for tools that inspect the queues of
    /// other programs. With both, a receive waits for a queue that does not exist yet, and every other operation on
    /// it fails. Defaults to `false`.
    pub fn only_existing(mut self, only_existing: bool) -> Self {
        self.usage.only_existing = only_existing;
        self
    }

    /// Adds an attribute of created queues, with its SQS name, such as `MessageRetentionPeriod`.
    pub fn queue_attribute(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.usage.attributes.insert(name.into(), value.into());
        self
    }

    /// Sets whether all queues are FIFO queues, whose names on SQS end with `.fifo`. Defaults to `false`.
    pub fn fifo(mut self, fifo: bool) -> Self {
        self.usage.fifo = fifo;
        self
    }

    /// Sets the longest long poll, in whole seconds: 1 to 20. Defaults to 20 s. A receive that waits longer makes several
    /// polls. Since a poll cannot be cancelled, closing the backend can take as long.
    pub fn poll(mut self, poll: Duration) -> Result<Self> {
        if poll.subsec_nanos() != 0 || poll.is_zero() || poll > MAX_WAIT {
            return Err(Error::invalid(None, "poll", format!("{poll:?}"), "1 to 20 whole seconds"));
        }
        self.usage.poll = poll;
        Ok(self)
    }

    /// Sets the largest size of a message in bytes, attributes included. Defaults to 1 MiB.
    pub fn max_message(mut self, bytes: usize) -> Result<Self> {
        if !(1024..=MAX_MESSAGE).contains(&bytes) {
            let allowed = format!("1024 to {MAX_MESSAGE} bytes");
            return Err(Error::invalid(None, "max_message", bytes.to_string(), allowed));
        }
        self.usage.max_message = bytes;
        Ok(self)
    }

    /// Sets the number of tries of a request that is throttled or fails in transit. Defaults to 5.
    pub fn tries(mut self, tries: u32) -> Result<Self> {
        if tries == 0 {
            return Err(Error::invalid(None, "tries", "0", "at least 1"));
        }
        self.usage.tries = tries;
        Ok(self)
    }
}

fn invalid_url(problem: &str) -> Error {
    let allowed = "sqs://REGION[/PREFIX], sqs+http://HOST[:PORT][/PREFIX] or sqs+https://...";
    Error::invalid(None, "SQS URL", problem, allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str) -> SqsOptions {
        SqsOptions::from_url(url).unwrap_or_else(|error| panic!("{url}: {error}"))
    }

    #[test]
    fn a_url_names_the_region_or_endpoint() {
        let options = read("sqs://eu-central-1/shop-");
        assert_eq!(options.region.as_deref(), Some("eu-central-1"));
        assert_eq!((options.endpoint, options.usage.prefix.as_str()), (None, "shop-"));
        assert_eq!(read("sqs://eu-central-1").usage.prefix, "");
        assert_eq!(read("sqs:///shop-").region, None);
        let local = read("sqs+http://127.0.0.1:5000/a_b?region=eu-west-3");
        assert_eq!(local.endpoint.as_deref(), Some("http://127.0.0.1:5000"));
        assert_eq!(local.region.as_deref(), Some("eu-west-3"));
        assert_eq!(read("sqs+https://vpce.example").endpoint.unwrap(), "https://vpce.example");
    }

    #[test]
    fn a_url_can_set_every_option() {
        let url = "sqs://r?create=true&fifo=true&poll=3&max_message=262144&tries=2\
                   &MessageRetentionPeriod=60&Policy=%7B%22a%22%3A1%7D";
        let usage = read(url).usage;
        assert!(usage.create && usage.fifo);
        assert_eq!((usage.poll.as_secs(), usage.max_message, usage.tries), (3, 262_144, 2));
        let attributes: Vec<_> = usage.attributes.into_iter().collect();
        let attribute = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let expected =
            [attribute("MessageRetentionPeriod", "60"), attribute("Policy", "{\"a\":1}")];
        assert_eq!(attributes, expected);
        assert!(!read("sqs://r").usage.create, "nothing is created by default");
    }

    #[test]
    fn no_error_shows_a_secret() {
        for url in [
            "sqs://AKIA:hun/ter2@eu-west-1",
            "sqs://AKIA:hun?ter2@eu-west-1",
            "sqs+https://AKIA:hun?Ter2@host",
            "sqs://AKIA:hun?ter2=1@eu-west-1",
            "sqs://r?secret=hunter%32",
        ] {
            let error = SqsOptions::from_url(url).unwrap_err().to_string();
            assert!(!error.to_lowercase().contains("ter2"), "{url}: {error}");
        }
        let policy = SqsOptions::from_url("sqs://r?Policy=me@here").unwrap();
        assert_eq!(policy.usage.attributes["Policy"], "me@here");
    }

    #[test]
    fn the_error_of_an_invalid_url_says_what_is_valid() {
        let invalid = [
            ("sqs:jobs", "sqs://REGION"),
            ("sqs://localhost:5000", "sqs+http://HOST:PORT"),
            ("sqs+http:///jobs", "no host"),
            ("sqs+smtp://x", "unknown scheme"),
            ("sqs://r/a/b", "prefix"),
            ("sqs://r/a.b", "prefix"),
            ("sqs://r?poll=21", "1 to 20"),
            ("sqs://r?poll=0", "1 to 20"),
            ("sqs://r?create=yes", "true or false"),
            ("sqs://r?max_message=10", "1024 to"),
            ("sqs://r?tries=0", "at least 1"),
            ("sqs://r?colour=red", "create, fifo"),
        ];
        for (url, valid) in invalid {
            let error = SqsOptions::from_url(url).unwrap_err().to_string();
            assert!(error.contains(valid), "{url}: {error}");
        }
    }
}
