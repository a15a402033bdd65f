//! The metrics recorder for Prometheus.

use std::sync::Mutex;

use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};
use pillarbox_core::internal::lock;

/// Histogram buckets for durations, from a millisecond to ten minutes.
const SECONDS: [f64; 16] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0,
    600.0,
];
/// Histogram buckets for ages, from a minute to a month.
const AGES: [f64; 8] = [60.0, 600.0, 3600.0, 21_600.0, 86_400.0, 259_200.0, 604_800.0, 2_592_000.0];

/// Handle of the recorder that a group has installed. A process has at most one recorder.
static INSTALLED: Mutex<Option<PrometheusHandle>> = Mutex::new(None);

/// Installs a recorder, unless a group has done so before, and returns its handle. `None` if the program has
/// installed its own.
pub(super) fn install() -> Option<PrometheusHandle> {
    let mut installed = lock(&INSTALLED);
    if installed.is_none() {
        let recorder = builder()
            .inspect_err(|error| tracing::error!(%error, "cannot record metrics"))
            .ok()?
            .build_recorder();
        let handle = recorder.handle();
        metrics::set_global_recorder(recorder).ok()?;
        *installed = Some(handle);
    }
    installed.clone()
}

fn builder() -> Result<PrometheusBuilder, BuildError> {
    let millis = SECONDS.map(|seconds| seconds * 1e3);
    PrometheusBuilder::new()
        // Counters end in `_total`.
        .with_recommended_naming(true)
        .set_buckets_for_metric(Matcher::Suffix("_age_seconds".to_owned()), &AGES)?
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &SECONDS)?
        .set_buckets_for_metric(Matcher::Suffix("_ms".to_owned()), &millis)
}
