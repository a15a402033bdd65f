//! W3C trace context, carried in the attributes of a message.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use pillarbox_core::{Attributes, SendOptions};

/// The attribute that holds the context, and the one beside it that tracing systems own.
const TRACEPARENT: &str = "traceparent";
const TRACESTATE: &str = "tracestate";

/// Which trace a message belongs to, by the [W3C recommendation](https://www.w3.org/TR/trace-context/):
/// the attributes `traceparent` and `tracestate`.
///
/// The span of a first delivery is a child of the span that sent the message; that of a later delivery
/// is a trace of its own with a link to it, so that a message that is retried for an hour does not make
/// a trace of an hour. Which it is, a [`Tracer`] is told.
///
/// ```
/// use pillarbox_core::SendOptions;
/// use pillarbox_runtime::TraceContext;
///
/// let context: TraceContext = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".parse().unwrap();
/// assert_eq!(context.trace_id(), "0af7651916cd43dd8448eb211c80319c");
/// assert!(context.is_sampled());
/// let options = context.attach(SendOptions::new());
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TraceContext {
    /// Checked: 55 characters of the right form.
    traceparent: Arc<str>,
    tracestate: Option<Arc<str>>,
}

impl TraceContext {
    /// The context in the attributes of a message. `None` where there is none, or none that is valid:
    /// tracing never keeps a message from being handled.
    pub fn of(attributes: &Attributes) -> Option<Self> {
        if attributes.is_empty() {
            return None;
        }
        let context: Self = attributes.get(TRACEPARENT)?.parse().ok()?;
        Some(Self { tracestate: attributes.get(TRACESTATE).map(Arc::from), ..context })
    }

    /// The same context with what tracing systems add for themselves.
    #[must_use]
    pub fn with_state(mut self, tracestate: &str) -> Self {
        self.tracestate = (!tracestate.is_empty()).then(|| tracestate.into());
        self
    }

    /// The trace, in 32 hexadecimal digits.
    pub fn trace_id(&self) -> &str {
        &self.traceparent[3..35]
    }

    /// The span that sent the message, in 16 hexadecimal digits.
    pub fn span_id(&self) -> &str {
        &self.traceparent[36..52]
    }

    /// Whether the sender recorded its part of the trace.
    pub fn is_sampled(&self) -> bool {
        u8::from_str_radix(&self.traceparent[53..55], 16).is_ok_and(|flags| flags & 1 != 0)
    }

    /// The value of `traceparent`.
    pub fn traceparent(&self) -> &str {
        &self.traceparent
    }

    /// The value of `tracestate`.
    pub fn tracestate(&self) -> Option<&str> {
        self.tracestate.as_deref()
    }

    /// Adds the context to the attributes of a message that has none.
    pub(crate) fn add_to(&self, attributes: &mut Attributes) {
        if attributes.get(TRACEPARENT).is_none() {
            attributes.insert(TRACEPARENT, &*self.traceparent);
            if let Some(state) = &self.tracestate {
                attributes.insert(TRACESTATE, &**state);
            }
        }
    }

    /// Makes a message part of the trace.
    pub fn attach(&self, options: SendOptions) -> SendOptions {
        let options = options.attribute(TRACEPARENT, &*self.traceparent);
        match &self.tracestate {
            Some(state) => options.attribute(TRACESTATE, &**state),
            None => options,
        }
    }
}

/// The text is no `traceparent`.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "a traceparent is VERSION-TRACE-SPAN-FLAGS in 2, 32, 16 and 2 lower-case hexadecimal digits"
)]
pub struct InvalidTraceparent;

pillarbox_core::__error_debug!(
    struct InvalidTraceparent {}
);

impl FromStr for TraceContext {
    type Err = InvalidTraceparent;

    fn from_str(text: &str) -> Result<Self, InvalidTraceparent> {
        let is_hex = |part: &str| part.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        let is_nought = |part: &str| part.bytes().all(|b| b == b'0');
        let parts: Vec<_> = text.split('-').collect();
        // Later versions may have more parts; the first four stay what they are.
        let [version, trace, span, flags, rest @ ..] = &parts[..] else {
            return Err(InvalidTraceparent);
        };
        let right_lengths = [version.len(), trace.len(), span.len(), flags.len()] == [2, 32, 16, 2];
        let right_digits = [version, trace, span, flags].iter().all(|part| is_hex(part));
        let right_version = *version != "ff" && (*version != "00" || rest.is_empty());
        if !right_lengths || !right_digits || !right_version || is_nought(trace) || is_nought(span)
        {
            return Err(InvalidTraceparent);
        }
        Ok(Self { traceparent: format!("00-{trace}-{span}-{flags}").into(), tracestate: None })
    }
}

impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.traceparent)
    }
}

/// How the span of a delivery belongs to that of its sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kinship<'a> {
    /// The first delivery: a child.
    Child(&'a TraceContext),
    /// A later delivery: a trace of its own, with a link.
    Link(&'a TraceContext),
}

/// Joins the spans of this process to those of others: the place to put a tracing system in. See the
/// example `opentelemetry`.
pub trait Tracer: Send + Sync + 'static {
    /// The span of a delivery was made: says to it where it belongs.
    fn join(&self, span: &tracing::Span, kinship: Kinship<'_>);

    /// The context that a message sent within `span` is to carry. `None`: that of the message which is
    /// being handled, as it came.
    fn context(&self, span: &tracing::Span) -> Option<TraceContext>;
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALID: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";

    #[test]
    fn a_context_survives_the_way_through_attributes() {
        let context: TraceContext = VALID.parse().unwrap();
        let context = context.with_state("vendor=1");
        assert!(!context.is_sampled());
        assert_eq!(
            (context.span_id(), context.tracestate()),
            ("b7ad6b7169203331", Some("vendor=1"))
        );
        let sent: Attributes =
            [(TRACEPARENT, context.traceparent()), (TRACESTATE, "vendor=1")].into_iter().collect();
        assert_eq!(TraceContext::of(&sent), Some(context));
    }

    #[test]
    fn what_is_no_traceparent_is_none() {
        let of = |text: &str| TraceContext::of(&[(TRACEPARENT, text)].into_iter().collect());
        assert!(of(VALID).is_some());
        // A later version may say more, and is taken for what we know of it.
        assert_eq!(of(&VALID.replacen("00", "cc", 1)).unwrap().traceparent(), VALID);
        assert!(of(&format!("{}-more", VALID.replacen("00", "cc", 1))).is_some());
        for wrong in [
            "",
            "00",
            &VALID.to_uppercase(),
            &format!("{VALID}-more"),
            &VALID.replacen("00", "ff", 1),
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b716920333ü-1",
        ] {
            assert_eq!(of(wrong), None, "{wrong:?}");
        }
        assert_eq!(TraceContext::of(&Attributes::new()), None);
    }
}
