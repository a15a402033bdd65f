//! The capabilities of queues on Redis.

use std::sync::LazyLock;

use pillarbox_core::Capabilities;

use crate::layout::MAX_PARTITIONS;

/// Maximum size of a body. Redis itself has a limit of 512 MiB per command.
const MAX_BODY: usize = 256 << 20;

pub(crate) static CAPABILITIES: LazyLock<Capabilities> = LazyLock::new(|| {
    let mut capabilities = Capabilities::full("redis");
    capabilities.durable = true;
    capabilities.max_body = Some(MAX_BODY);
    capabilities.reports_first_received = false;
    capabilities.max_partitions = MAX_PARTITIONS;
    capabilities.default_ttl = true;
    capabilities
});

/// Capabilities of a queue with several partitions.
pub(crate) static PARTITIONED_CAPABILITIES: LazyLock<Capabilities> = LazyLock::new(|| {
    let mut capabilities = CAPABILITIES.clone();
    capabilities.fifo = false;
    // Each partition takes its share.
    capabilities.bounded = false;
    // Partitions are not used together, and the server would delete some of them.
    capabilities.default_ttl = false;
    capabilities
});
