//! W3C trace context, carried in the attributes of a message.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use pillarbox_core::{Attributes, SendOptions};

const TRACEPARENT: &str = "traceparent";
const TRACESTATE: &str = "tracestate";

/// The trace context of a message, by the [W3C recommendation](https://www.w3.org/TR/trace-context/): the attributes
/// `traceparent` and `tracestate`.
///
/// The span of a first attempt is a child of the span that sent the message. That of a later attempt is a trace of
/// its own with a link to it, so that a message that is retried for an hour does not make a trace of an hour. A
/// [`Tracer`] gets this as a [`SpanRelation`].
///
/// ```
/// use pillarbox_core::SendOptions;
/// use pillarbox_runtime::trace::TraceContext;
///
/// let context: TraceContext = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".parse().unwrap();
/// assert_eq!(context.trace_id(), "0af7651916cd43dd8448eb211c80319c");
/// assert!(context.is_sampled());
/// let options = context.attach(SendOptions::new());
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TraceContext {
    /// Validated: 55 ASCII characters.
    traceparent: Arc<str>,
    tracestate: Option<Arc<str>>,
}

impl TraceContext {
    /// Returns the context in the attributes of a message. `None` if there is none or it is invalid: a failure of
    /// tracing never keeps a message from being handled.
    pub fn of(attributes: &Attributes) -> Option<Self> {
        if attributes.is_empty() {
            return None;
        }
        let context: Self = attributes.get(TRACEPARENT)?.parse().ok()?;
        Some(Self { tracestate: attributes.get(TRACESTATE).map(Arc::from), ..context })
    }

    /// Sets the `tracestate`, which tracing systems add for themselves.
    #[must_use]
    pub fn with_state(mut self, tracestate: &str) -> Self {
        self.tracestate = (!tracestate.is_empty()).then(|| tracestate.into());
        self
    }

    /// Returns the trace id, in 32 hexadecimal digits.
    pub fn trace_id(&self) -> &str {
        &self.traceparent[3..35]
    }

    /// Returns the id of the span that sent the message, in 16 hexadecimal digits.
    pub fn span_id(&self) -> &str {
        &self.traceparent[36..52]
    }

    /// Returns whether the sender recorded its part of the trace.
    pub fn is_sampled(&self) -> bool {
        u8::from_str_radix(&self.traceparent[53..55], 16).is_ok_and(|flags| flags & 1 != 0)
    }

    /// Returns the value of `traceparent`.
    pub fn traceparent(&self) -> &str {
        &self.traceparent
    }

    /// Returns the value of `tracestate`.
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

    /// Adds the context to the options of a send.
    pub fn attach(&self, options: SendOptions) -> SendOptions {
        let options = options.attribute(TRACEPARENT, &*self.traceparent);
        match &self.tracestate {
            Some(state) => options.attribute(TRACESTATE, &**state),
            None => options,
        }
    }
}

/// The error of parsing an invalid `traceparent`.
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
        let is_zero = |part: &str| part.bytes().all(|b| b == b'0');
        let parts: Vec<_> = text.split('-').collect();
        // Later versions may have more parts after the first four.
        let [version, trace, span, flags, rest @ ..] = &parts[..] else {
            return Err(InvalidTraceparent);
        };
        let right_lengths = [version.len(), trace.len(), span.len(), flags.len()] == [2, 32, 16, 2];
        let right_digits = [version, trace, span, flags].iter().all(|part| is_hex(part));
        let right_version = *version != "ff" && (*version != "00" || rest.is_empty());
        if !right_lengths || !right_digits || !right_version || is_zero(trace) || is_zero(span) {
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

/// The relation of the span of a delivery to the span of its sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpanRelation<'a> {
    /// A child, for the first attempt.
    Child(&'a TraceContext),
    /// A trace of its own with a link, for later attempts.
    Link(&'a TraceContext),
}

/// Connects the spans of this process to those of others, by a tracing system. See the example `opentelemetry`.
pub trait Tracer: Send + Sync + 'static {
    /// Sets the relation of the span of a delivery, before it is entered.
    fn join(&self, span: &tracing::Span, relation: SpanRelation<'_>);

    /// Returns the context of a message sent within `span`. `None` for that of the message being handled.
    fn context(&self, span: &tracing::Span) -> Option<TraceContext>;
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALID: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";

    #[test]
    fn a_context_survives_a_round_trip_through_attributes() {
        let context: TraceContext = VALID.parse().unwrap();
        let context = context.with_state("vendor=1");
        assert!(!context.is_sampled());
        assert_eq!(context.span_id(), "b7ad6b7169203331");
        assert_eq!(context.tracestate(), Some("vendor=1"));
        let sent: Attributes =
            [(TRACEPARENT, context.traceparent()), (TRACESTATE, "vendor=1")].into_iter().collect();
        assert_eq!(TraceContext::of(&sent), Some(context));
    }

    #[test]
    fn an_invalid_traceparent_is_ignored() {
        let of = |text: &str| TraceContext::of(&[(TRACEPARENT, text)].into_iter().collect());
        assert!(of(VALID).is_some());
        // A later version may have more parts, which are ignored.
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
