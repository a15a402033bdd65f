//! Failures of calls, which of them are transient, and advice for each.

use std::sync::Arc;
use std::time::Duration;

use pillarbox_core::{Error, QueueName};
use redis::{ErrorKind, RedisError, ServerErrorKind};

/// Result of a call.
pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

/// Failure of a call: a permanent error, or a transient one that outlasted its retries.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum Failure {
    #[error("{endpoint} cannot be used: {text}{}", advice(.text))]
    Server {
        endpoint: Arc<str>,
        text: String,
        /// Whether a try got no answer and may have taken effect.
        effect_unknown: bool,
        #[source]
        cause: Arc<RedisError>,
    },
    #[error(
        "the key {key} is a {found}, not a {expected}: another program uses the same name. Choose another \
         queue name or database, or rename or remove the key"
    )]
    ForeignKey { key: String, found: String, expected: &'static str },
    #[error("{endpoint} gave an unexpected reply: is it Redis or Valkey?")]
    Reply { endpoint: Arc<str> },
    #[error(
        "{endpoint} has done it, but only {confirmed} of {wanted} replicas confirmed it within {within:?}: it \
         is lost if the server fails now. A send can be repeated with the same id"
    )]
    Unconfirmed { endpoint: Arc<str>, confirmed: u32, wanted: u32, within: Duration },
    #[error(
        "the key {key} does not hold the number of partitions of the queue: another program uses or has \
         changed it. Delete it, and `pillarbox doctor --fix` finds the partitions"
    )]
    Layout { key: String },
    #[error(
        "the queue has partitions, some of which a default_ttl would delete: open it without one"
    )]
    TtlWithPartitions,
    #[error("the backend was closed")]
    Closed,
}

/// Reaction to an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Recovery {
    /// Retry with the text of the script: the server does not know it.
    SendScript,
    /// Retry after a delay, on a new connection.
    Reconnect,
    /// Retry at the server that the error names: for this call, or permanently for the slot.
    Redirect { permanent: bool },
    /// Retry after a delay.
    Wait,
    /// Return the error to the caller.
    GiveUp,
}

/// Classifies an error by its code, or by its text if a script of an old server hides the code.
pub(crate) fn classify(error: &RedisError) -> Recovery {
    if let ErrorKind::Server(kind) = error.kind() {
        match kind {
            ServerErrorKind::NoScript => return Recovery::SendScript,
            ServerErrorKind::Moved => return Recovery::Redirect { permanent: true },
            ServerErrorKind::Ask => return Recovery::Redirect { permanent: false },
            ServerErrorKind::BusyLoading
            | ServerErrorKind::TryAgain
            | ServerErrorKind::ClusterDown
            | ServerErrorKind::MasterDown => return Recovery::Wait,
            // The address may belong to another server by now.
            ServerErrorKind::ReadOnly => return Recovery::Reconnect,
            _ => {}
        }
    }
    let says = |word: &str| error.code() == Some(word) || mentions(error, word);
    if says("READONLY") {
        Recovery::Reconnect
    } else if is_slot_moving(error)
        || says("LOADING")
        || says("BUSY")
        || says("MASTERDOWN")
        || says("NOREPLICAS")
    {
        Recovery::Wait
    } else if error.code().is_some() {
        Recovery::GiveUp
    } else {
        match error.kind() {
            ErrorKind::Io | ErrorKind::Parse => Recovery::Reconnect,
            _ if error.is_connection_dropped() || error.is_timeout() => Recovery::Reconnect,
            _ => Recovery::GiveUp,
        }
    }
}

/// Returns whether a script used a key that it had deleted itself while the slot is being moved: a missing key
/// is looked for at the other node.
fn is_slot_moving(error: &RedisError) -> bool {
    error.detail().is_some_and(|detail| detail.contains("non local key in a cluster node"))
}

fn mentions(error: &RedisError, word: &str) -> bool {
    error.detail().is_some_and(|detail| {
        detail.split(|c: char| !c.is_ascii_alphabetic()).any(|found| found == word)
    })
}

/// Returns what the reader can do about an error.
fn advice(text: &str) -> &'static str {
    let says = |word: &str| text.contains(word);
    if says("OOM") {
        "; the server is out of memory (maxmemory): nothing was stored. Receiving and settling \
         still work and make room"
    } else if says("WRONGTYPE") {
        "; a key ({queue:NAME}:... or pillarbox:queues) has another type: another program \
         uses the same name. Choose another queue name or database, or remove the key"
    } else if says("NOAUTH") {
        "; the server requires a password: redis://:PASSWORD@HOST"
    } else if says("WRONGPASS") || says("authentication failed") || says("invalid password") {
        "; the user or password is wrong"
    } else if says("NOPERM") {
        "; the user needs the commands of the scripts, keys {queue:* and pillarbox:*, and channels \
         {queue:*"
    } else if says("READONLY") {
        "; it is a replica: connect to the primary"
    } else if says("LOADING") {
        "; it is still loading its data"
    } else if says("MOVED") {
        "; it is one node of a cluster: use redis-cluster://HOST:PORT,..."
    } else if says("cluster support disabled") {
        "; it is not a cluster: use redis://HOST:PORT"
    } else if says("CLUSTERDOWN") {
        "; some of the cluster's slots have no primary"
    } else if says("TRYAGAIN") || says("non local key") {
        "; the queue's slot is being moved to another node"
    } else if says("MISCONF") {
        "; it refuses writes because it cannot save to its disk"
    } else if says("NOREPLICAS") {
        "; too few of its replicas are connected (min-replicas-to-write)"
    } else if says("refused") {
        "; is it running there?"
    } else {
        ""
    }
}

impl Failure {
    pub(crate) fn server(endpoint: &Arc<str>, error: RedisError) -> Self {
        let text = text(&error);
        let (endpoint, cause) = (endpoint.clone(), Arc::new(error));
        Self::Server { endpoint, text, effect_unknown: false, cause }
    }

    /// Sets whether a try got no answer and may have taken effect.
    #[must_use]
    pub(crate) fn with_effect_unknown(mut self, is_unknown: bool) -> Self {
        if let Self::Server { effect_unknown, .. } = &mut self {
            *effect_unknown = is_unknown;
        }
        self
    }

    /// Returns whether the call may have taken effect nevertheless.
    pub(crate) const fn may_have_taken_effect(&self) -> bool {
        matches!(
            self,
            Self::Server { effect_unknown: true, .. } | Self::Reply { .. } | Self::Closed
        )
    }

    /// Returns whether the server has no memory left and has stored nothing.
    pub(crate) fn is_out_of_memory(&self) -> bool {
        !self.may_have_taken_effect() && self.says("OOM")
    }

    /// Returns whether a key has another type.
    pub(crate) fn is_wrong_type(&self) -> bool {
        self.says("WRONGTYPE")
    }

    /// Returns whether the server answered with this code, also if a script of an old server hides it in a text.
    fn says(&self, code: &str) -> bool {
        matches!(self, Self::Server { cause, .. } if cause.code() == Some(code) || mentions(cause, code))
    }

    /// Adds the time for which the call was tried.
    #[must_use]
    pub(crate) fn after(mut self, time: Duration) -> Self {
        if let Self::Server { endpoint, text, .. } = &mut self {
            if endpoint.starts_with("rediss") && text.contains("timed out") {
                text.push_str(" (does it use TLS there?)");
            }
            text.push_str(&format!(" (tried for {time:?})"));
        }
        self
    }

    /// Returns whether the call was retried and may succeed later: no suitable server was reachable.
    pub(crate) fn is_transient(&self) -> bool {
        matches!(self, Self::Server { cause, .. } if classify(cause) != Recovery::GiveUp)
    }

    /// Returns `assumed` if the failure is transient.
    pub(crate) fn or_if_transient<T>(self, assumed: T) -> Result<T, Self> {
        if self.is_transient() { Ok(assumed) } else { Err(self) }
    }

    /// Returns whether the user lacks a permission.
    pub(crate) fn is_forbidden(&self) -> bool {
        matches!(self, Self::Server { cause, .. } if cause.code() == Some("NOPERM"))
    }

    /// Converts into the error of the public API.
    pub(crate) fn into_error(self, queue: Option<&QueueName>, action: &'static str) -> Error {
        match self {
            Self::Closed => Error::Closed { queue: queue.cloned() },
            failure => Error::connection(queue, action, failure),
        }
    }
}

/// Returns the text of the server or the network, in one line.
fn text(error: &RedisError) -> String {
    let code = error.code().filter(|code| *code != "ERR");
    let text = match (code, error.detail()) {
        (Some(code), Some(detail)) if !detail.starts_with(code) => format!("{code} {detail}"),
        (Some(code), None) => code.to_owned(),
        (_, Some(detail)) => detail.to_owned(),
        (None, None) => error.to_string(),
    };
    // Parse errors have several lines.
    text.trim_end().replace('\n', ", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server_error(line: &str) -> RedisError {
        let reply = format!("-{line}\r\n");
        let value = redis::parse_redis_value(reply.as_bytes()).unwrap();
        value.extract_error().unwrap_err()
    }

    #[test]
    fn errors_are_distinguished_on_new_and_old_servers() {
        for (line, recovery) in [
            ("NOSCRIPT No matching script.", Recovery::SendScript),
            ("LOADING Redis is loading the dataset in memory", Recovery::Wait),
            ("BUSY Redis is busy running a script.", Recovery::Wait),
            ("READONLY You can't write against a read only replica.", Recovery::Reconnect),
            (
                "ERR Error running script (call to f_1): @user_script:1: -READONLY You can't",
                Recovery::Reconnect,
            ),
            ("OOM command not allowed when used memory > 'maxmemory'.", Recovery::GiveUp),
            ("WRONGTYPE Operation against a key", Recovery::GiveUp),
            ("WRONGPASS invalid username-password pair", Recovery::GiveUp),
            ("NOAUTH Authentication required.", Recovery::GiveUp),
            ("NOREPLICAS Not enough good replicas to write.", Recovery::Wait),
            ("CLUSTERDOWN Hash slot not served", Recovery::Wait),
            ("TRYAGAIN Multiple keys request during rehashing of slot", Recovery::Wait),
            (
                "ERR Script attempted to access a non local key in a cluster node script: 1, on @1.",
                Recovery::Wait,
            ),
            ("MOVED 866 127.0.0.1:7001", Recovery::Redirect { permanent: true }),
            ("ASK 866 127.0.0.1:7001", Recovery::Redirect { permanent: false }),
        ] {
            assert_eq!(classify(&server_error(line)), recovery, "{line}");
        }
        let io = RedisError::from(std::io::Error::from(std::io::ErrorKind::ConnectionReset));
        assert_eq!(classify(&io), Recovery::Reconnect);
    }

    #[test]
    fn an_unreadable_answer_is_reported_in_one_line() {
        let error = redis::parse_redis_value(b"$2\r\nabcd").unwrap_err();
        assert!(error.to_string().contains('\n'), "{error}");
        assert!(!text(&error).contains('\n'), "{}", text(&error));
    }

    #[test]
    fn a_failure_names_the_server_the_cause_and_the_remedy() {
        let endpoint: Arc<str> = "redis://h:1/0".into();
        let failure = Failure::server(&endpoint, server_error("OOM command not allowed"));
        let text = failure.into_error(Some(&"q".parse().unwrap()), "send").to_string();
        for part in ["cannot send on queue 'q'", "redis://h:1/0", "OOM command", "make room"] {
            assert!(text.contains(part), "{text}");
        }
    }
}
