//! What can go wrong at a server, in words that say what to do.

use std::sync::Arc;
use std::time::Duration;

use pillarbox_core::{Error, QueueName};
use redis::{ErrorKind, RedisError, ServerErrorKind};

/// Why a call to the server failed for good.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum Failure {
    #[error("{place} cannot be used: {what}{}", advice(.what))]
    Server {
        place: Arc<str>,
        what: String,
        /// Whether an attempt got no answer, and may have been done.
        is_unsure: bool,
        #[source]
        cause: Arc<RedisError>,
    },
    #[error(
        "the key {key} is a {found}, not a {expected}: another program uses the same name. Choose another \
         queue name or database, or rename or remove the key"
    )]
    ForeignKey { key: String, found: String, expected: &'static str },
    #[error("{place} answered in a form that is not expected: is it Redis or Valkey?")]
    Reply { place: Arc<str> },
    #[error(
        "{place} has done it, and only {confirmed} of {wanted} replicas have confirmed that within \
         {within:?}: it is lost if the server fails now. A send can be repeated under the same id"
    )]
    Unconfirmed { place: Arc<str>, confirmed: u32, wanted: u32, within: Duration },
    #[error(
        "the key {key} does not say over how many partitions the queue is spread: another program uses it, or \
         somebody has changed it. Delete it, and `pillarbox doctor --fix` finds the partitions there are"
    )]
    Layout { key: String },
    #[error(
        "the queue is spread over partitions, and a default_ttl would delete some of them: open it without"
    )]
    Mortal,
    #[error("the backend was closed")]
    Closed,
}

/// What to do after an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Send the script along: the server does not know it.
    SendScript,
    /// Try again after a pause, on a new connection.
    Reconnect,
    /// Try again at the server that the error names: for this call, or for all of its slot.
    GoTo { for_good: bool },
    /// Try again after a pause.
    Wait,
    /// Tell the caller.
    GiveUp,
}

/// Judges an error by its code, and by its text where a script of an old server hides the code.
pub(crate) fn judge(error: &RedisError) -> Verdict {
    if let ErrorKind::Server(kind) = error.kind() {
        match kind {
            ServerErrorKind::NoScript => return Verdict::SendScript,
            ServerErrorKind::Moved => return Verdict::GoTo { for_good: true },
            ServerErrorKind::Ask => return Verdict::GoTo { for_good: false },
            ServerErrorKind::BusyLoading
            | ServerErrorKind::TryAgain
            | ServerErrorKind::ClusterDown
            | ServerErrorKind::MasterDown => return Verdict::Wait,
            // Perhaps the address belongs to another server by now.
            ServerErrorKind::ReadOnly => return Verdict::Reconnect,
            _ => {}
        }
    }
    let says = |word: &str| error.code() == Some(word) || mentions(error, word);
    if says("READONLY") {
        Verdict::Reconnect
    } else if is_moving(error)
        || says("LOADING")
        || says("BUSY")
        || says("MASTERDOWN")
        || says("NOREPLICAS")
    {
        Verdict::Wait
    } else if error.code().is_some() {
        Verdict::GiveUp
    } else {
        match error.kind() {
            ErrorKind::Io | ErrorKind::Parse => Verdict::Reconnect,
            _ if error.is_connection_dropped() || error.is_timeout() => Verdict::Reconnect,
            _ => Verdict::GiveUp,
        }
    }
}

/// Whether a script met a key that it has deleted itself, while the slot is on its way to another node: what
/// is not here is looked for there.
fn is_moving(error: &RedisError) -> bool {
    error.detail().is_some_and(|detail| detail.contains("non local key in a cluster node"))
}

fn mentions(error: &RedisError, word: &str) -> bool {
    error.detail().is_some_and(|detail| {
        detail.split(|c: char| !c.is_ascii_alphabetic()).any(|found| found == word)
    })
}

/// What the reader can do about it.
fn advice(what: &str) -> &'static str {
    let says = |word: &str| what.contains(word);
    if says("OOM") {
        "; the server is out of memory (maxmemory): nothing was stored. Receiving and settling \
         still work and make room"
    } else if says("WRONGTYPE") {
        "; a key of ours ({queue:NAME}:... or pillarbox:queues) is of another type: another program \
         uses the same name. Choose another queue name or database, or remove the key"
    } else if says("NOAUTH") {
        "; the server wants a password: redis://:PASSWORD@HOST"
    } else if says("WRONGPASS") || says("authentication failed") || says("invalid password") {
        "; user or password are wrong"
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
    pub(crate) fn server(place: &Arc<str>, error: RedisError) -> Self {
        let what = text(&error);
        Self::Server { place: place.clone(), what, is_unsure: false, cause: Arc::new(error) }
    }

    /// The same, after an attempt that got no answer, if there was one.
    #[must_use]
    pub(crate) fn unsure(mut self, is_so: bool) -> Self {
        if let Self::Server { is_unsure, .. } = &mut self {
            *is_unsure = is_so;
        }
        self
    }

    /// Whether the call may have been done all the same.
    pub(crate) const fn may_be_done(&self) -> bool {
        matches!(self, Self::Server { is_unsure: true, .. } | Self::Reply { .. } | Self::Closed)
    }

    /// Whether the server has no memory left, and has stored nothing.
    pub(crate) fn is_out_of_memory(&self) -> bool {
        !self.may_be_done() && self.says("OOM")
    }

    /// Whether a key is of another type.
    pub(crate) fn is_wrong_type(&self) -> bool {
        self.says("WRONGTYPE")
    }

    /// Whether the server says so: by the code, or by the text where a script of an old server hides it.
    fn says(&self, code: &str) -> bool {
        matches!(self, Self::Server { cause, .. } if cause.code() == Some(code) || mentions(cause, code))
    }

    /// The same, after it was tried for so long.
    #[must_use]
    pub(crate) fn after(mut self, time: Duration) -> Self {
        if let Self::Server { place, what, .. } = &mut self {
            if place.starts_with("rediss") && what.contains("timed out") {
                what.push_str(" (does it speak TLS there?)");
            }
            what.push_str(&format!(" (tried for {time:?})"));
        }
        self
    }

    /// Whether it was tried again and may succeed later: no server could be reached that would do it.
    pub(crate) fn may_pass(&self) -> bool {
        matches!(self, Self::Server { cause, .. } if judge(cause) != Verdict::GiveUp)
    }

    /// What to assume where it may pass.
    pub(crate) fn passing<T>(self, assumed: T) -> Result<T, Self> {
        if self.may_pass() { Ok(assumed) } else { Err(self) }
    }

    /// Whether the user of the server may not do it.
    pub(crate) fn is_forbidden(&self) -> bool {
        matches!(self, Self::Server { cause, .. } if cause.code() == Some("NOPERM"))
    }

    /// The error that a caller gets.
    pub(crate) fn on(self, queue: Option<&QueueName>, action: &'static str) -> Error {
        match self {
            Self::Closed => Error::Closed { queue: queue.cloned() },
            failure => Error::connection(queue, action, failure),
        }
    }
}

/// What the server or the network said, in one line.
fn text(error: &RedisError) -> String {
    let code = error.code().filter(|code| *code != "ERR");
    let text = match (code, error.detail()) {
        (Some(code), Some(detail)) if !detail.starts_with(code) => format!("{code} {detail}"),
        (Some(code), None) => code.to_owned(),
        (_, Some(detail)) => detail.to_owned(),
        (None, None) => error.to_string(),
    };
    // What cannot be read is explained in several.
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
    fn errors_are_told_apart_on_new_servers_and_old_ones() {
        for (line, verdict) in [
            ("NOSCRIPT No matching script.", Verdict::SendScript),
            ("LOADING Redis is loading the dataset in memory", Verdict::Wait),
            ("BUSY Redis is busy running a script.", Verdict::Wait),
            ("READONLY You can't write against a read only replica.", Verdict::Reconnect),
            (
                "ERR Error running script (call to f_1): @user_script:1: -READONLY You can't",
                Verdict::Reconnect,
            ),
            ("OOM command not allowed when used memory > 'maxmemory'.", Verdict::GiveUp),
            ("WRONGTYPE Operation against a key", Verdict::GiveUp),
            ("WRONGPASS invalid username-password pair", Verdict::GiveUp),
            ("NOAUTH Authentication required.", Verdict::GiveUp),
            ("NOREPLICAS Not enough good replicas to write.", Verdict::Wait),
            ("CLUSTERDOWN Hash slot not served", Verdict::Wait),
            ("TRYAGAIN Multiple keys request during rehashing of slot", Verdict::Wait),
            (
                "ERR Script attempted to access a non local key in a cluster node script: 1, on @1.",
                Verdict::Wait,
            ),
            ("MOVED 866 127.0.0.1:7001", Verdict::GoTo { for_good: true }),
            ("ASK 866 127.0.0.1:7001", Verdict::GoTo { for_good: false }),
        ] {
            assert_eq!(judge(&server_error(line)), verdict, "{line}");
        }
        let io = RedisError::from(std::io::Error::from(std::io::ErrorKind::ConnectionReset));
        assert_eq!(judge(&io), Verdict::Reconnect);
    }

    #[test]
    fn an_answer_that_cannot_be_read_is_told_in_one_line() {
        let error = redis::parse_redis_value(b"$2\r\nabcd").unwrap_err();
        assert!(error.to_string().contains('\n'), "{error}");
        assert!(!text(&error).contains('\n'), "{}", text(&error));
    }

    #[test]
    fn a_failure_says_where_what_and_what_to_do() {
        let place: Arc<str> = "redis://h:1/0".into();
        let failure = Failure::server(&place, server_error("OOM command not allowed"));
        let text = failure.on(Some(&"q".parse().unwrap()), "send").to_string();
        for part in ["cannot send on queue 'q'", "redis://h:1/0", "OOM command", "make room"] {
            assert!(text.contains(part), "{text}");
        }
    }
}
