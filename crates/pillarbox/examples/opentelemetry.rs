//! Distributed traces through a mailbox, with OpenTelemetry.
//!
//!     cargo run --example opentelemetry
//!
//! A shop sends an order within a span. The span of the first delivery is a child of it. That delivery fails, and the
//! second one starts a new trace with a link to the sender, so that a message that is retried for an hour does not
//! create a trace of an hour. Messages that a handler sends belong to the span of the handler.
//!
//! ```text
//! place_order ──► delivery of the order, attempt 1 (fails)
//!     ▲
//!     ┊ link
//! delivery of the order, attempt 2 ──► delivery of the parcel
//! ```
//!
//! The spans are collected in memory and printed. A service would use an exporter of `opentelemetry-otlp` instead.

use std::collections::HashMap;

use opentelemetry::propagation::TextMapPropagator;
use opentelemetry::trace::{SpanId, TraceContextExt, TracerProvider};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider, SpanData};
use pillarbox::Event;
use pillarbox::handler::Attempt;
use pillarbox::prelude::*;
use pillarbox::trace::{SpanRelation, TraceContext, Tracer};
use tracing::{Instrument, Span};
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Connects the spans of the runtime with those of OpenTelemetry.
#[derive(Debug, Default)]
struct OpenTelemetry {
    propagator: TraceContextPropagator,
}

impl Tracer for OpenTelemetry {
    fn join(&self, span: &Span, relation: SpanRelation<'_>) {
        let (SpanRelation::Child(sender) | SpanRelation::Link(sender)) = relation;
        let mut carrier = HashMap::from([("traceparent".into(), sender.traceparent().to_owned())]);
        carrier.extend(sender.tracestate().map(|state| ("tracestate".into(), state.to_owned())));
        let sender = self.propagator.extract(&carrier);
        match relation {
            // Fails only if OpenTelemetry does not record the span.
            SpanRelation::Child(_) => drop(span.set_parent(sender)),
            SpanRelation::Link(_) => span.add_link(sender.span().span_context().clone()),
        }
    }

    fn context(&self, span: &Span) -> Option<TraceContext> {
        let mut carrier = HashMap::new();
        self.propagator.inject_context(&span.context(), &mut carrier);
        let context: TraceContext = carrier.get("traceparent")?.parse().ok()?;
        Some(context.with_state(carrier.get("tracestate").map_or("", String::as_str)))
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let exporter = InMemorySpanExporter::default();
    let provider = SdkTracerProvider::builder().with_simple_exporter(exporter.clone()).build();
    tracing_subscriber::registry()
        .with(tracing_opentelemetry::layer().with_tracer(provider.tracer("shop")))
        .with(LevelFilter::INFO)
        .init();

    let backend = pillarbox::open("memory:").await?;
    let orders: Mailbox<String> = backend.mailbox("orders")?;
    let parcels: Mailbox<String> = backend.mailbox("parcels")?;
    place_order(&orders).instrument(tracing::info_span!("place_order")).await?;

    let shipping = parcels.clone();
    let pack = move |item: String, Attempt(attempt): Attempt, producer: ProducerHandle<String>| {
        let shipping = shipping.clone();
        async move {
            if attempt == 1 {
                return Err("no box available".into());
            }
            producer.send_to(&shipping, &format!("{item}, packed"), SendOptions::new()).await?;
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
        }
    };
    let worker = Worker::new(orders)
        .handler(pack)
        .retry(Backoff::constant(Duration::from_millis(50)))
        .tracer(OpenTelemetry::default())
        .and(Worker::new(parcels).handler(|parcel: String| async move { println!("{parcel}") }));
    let mut events = worker.control().events();
    let shipped = async move {
        let is_shipped = |event: &Event| match event {
            Event::Succeeded { about, .. } => about.queue.as_str() == "parcels",
            _ => false,
        };
        events.wait_for(is_shipped).await;
    };
    worker.run_until(shipped).await?;

    provider.force_flush()?;
    let spans = exporter.get_finished_spans()?;
    print(&spans);
    check(&spans);
    provider.shutdown()?;
    Ok(())
}

/// Sends a message with the context of the current span.
async fn place_order(orders: &Mailbox<String>) -> pillarbox::Result<MessageId> {
    let options = match OpenTelemetry::default().context(&Span::current()) {
        Some(context) => context.attach(SendOptions::new()),
        None => SendOptions::new(),
    };
    orders.send_with(&"a lamp".to_owned(), options).await
}

fn print(spans: &[SpanData]) {
    for span in spans {
        let name = match (attribute(span, "queue"), attribute(span, "attempt")) {
            (Some(queue), Some(attempt)) => format!("{} {queue} {attempt}", span.name),
            _ => span.name.to_string(),
        };
        let (trace, id) = (span.span_context.trace_id(), span.span_context.span_id());
        print!("{name:<18}  trace {trace}  span {id}");
        if span.parent_span_id != SpanId::INVALID {
            print!("  child of {}", span.parent_span_id);
        }
        for link in span.links.iter() {
            print!("  link to {}", link.span_context.span_id());
        }
        println!();
    }
}

fn check(spans: &[SpanData]) {
    let delivery = |queue: &str, attempt: &str| {
        let is_it = |span: &&SpanData| {
            attribute(span, "queue").as_deref() == Some(queue)
                && attribute(span, "attempt").as_deref() == Some(attempt)
        };
        spans.iter().find(is_it).expect("a delivery has a span")
    };
    let sender =
        spans.iter().find(|span| span.name == "place_order").expect("the sender has a span");
    let (first, second) = (delivery("orders", "1"), delivery("orders", "2"));
    let parcel = delivery("parcels", "1");
    let trace = |span: &SpanData| span.span_context.trace_id();
    let id = |span: &SpanData| span.span_context.span_id();

    assert_eq!((trace(first), first.parent_span_id), (trace(sender), id(sender)));
    assert_eq!(first.links.len(), 0);
    assert_eq!(second.parent_span_id, SpanId::INVALID);
    assert_ne!(trace(second), trace(sender));
    assert_eq!(second.links.len(), 1);
    assert_eq!(second.links[0].span_context.span_id(), id(sender));
    assert_eq!((trace(parcel), parcel.parent_span_id), (trace(second), id(second)));
    println!("first delivery: child of the sender; second: link; its message: child of the second");
}

fn attribute(span: &SpanData, name: &str) -> Option<String> {
    let found = span.attributes.iter().find(|attribute| attribute.key.as_str() == name);
    found.map(|attribute| attribute.value.to_string())
}
