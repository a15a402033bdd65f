//! Diagnoses the queues of a backend.

use std::sync::Arc;
use std::time::Duration;

use aws_sdk_sqs::types::QueueAttributeName as Attribute;
use pillarbox_core::{
    Capabilities, Diagnosis, Finding, QueueName, Redrive, Repair, Result, Severity,
};

use crate::redrive;
use crate::service::{IfMissing, Service};

/// Number of queues that are checked. Each takes a request.
const MAX_CHECKED: usize = 100;
/// Retention period below which a warning is given.
const SHORT_RETENTION: Duration = Duration::from_secs(24 * 3600);

pub(crate) async fn diagnose(
    service: &Arc<Service>,
    capabilities: &Capabilities,
    queues: &[QueueName],
) -> Result<Diagnosis> {
    let mut diagnosis = Diagnosis::new(
        "messages are stored on several machines of the region, until they are acknowledged or the \
         queue's retention period ends",
    )
    .with_fact("backend", capabilities.backend)
    .with_fact("endpoint", service.endpoint.clone())
    .with_fact("queues", queues.len().to_string());
    if !service.usage.prefix.is_empty() {
        diagnosis = diagnosis.with_fact("prefix", service.usage.prefix.clone());
    }
    let names = [Attribute::RedrivePolicy, Attribute::MessageRetentionPeriod];
    for queue in queues.iter().take(MAX_CHECKED) {
        let target = service.target(queue)?;
        // Deleted since it was listed, or not accessible.
        let found = service.attributes(&target, IfMissing::Fail, &names).await;
        let Ok((found, _)) = found else { continue };
        let policy = found.get(&Attribute::RedrivePolicy);
        let redrive = policy.and_then(|text| redrive::read(text, |name| service.name_of(name)));
        if let Some(Redrive { to, max_deliveries, .. }) = redrive {
            let value = format!("{queue} → {to} after {max_deliveries} deliveries");
            diagnosis = diagnosis.with_fact("redrive", value);
        }
        let retention = found.get(&Attribute::MessageRetentionPeriod);
        let retention = retention.and_then(|text| text.parse().ok()).map(Duration::from_secs);
        if let Some(retention) = retention.filter(|retention| *retention < SHORT_RETENTION) {
            diagnosis.findings.push(Finding {
                severity: Severity::Warning,
                text: format!(
                    "messages of '{queue}' are deleted {} s after they were sent, received or not",
                    retention.as_secs()
                ),
                advice: "raise the queue's MessageRetentionPeriod, to at most 14 days".to_owned(),
                repair: Repair::Manual,
            });
        }
    }
    Ok(diagnosis)
}
