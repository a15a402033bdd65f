//! The contract, on real servers, with kills and restarts.

use pillarbox_testing::Subject;
use pillarbox_testing::server::{Flavour, RedisServer};

use crate::common::{cluster_subject, open, subject};

mod redis {
    use super::*;

    pillarbox_testing::conformance!({
        let Some(subject) = subject(Flavour::Redis).await else { return };
        subject
    });
}

mod redis_6_2 {
    use super::*;

    pillarbox_testing::conformance!({
        let Some(subject) = subject(Flavour::Redis62).await else { return };
        subject
    });
}

mod valkey {
    use super::*;

    pillarbox_testing::conformance!({
        let Some(subject) = subject(Flavour::Valkey).await else { return };
        subject
    });
}

/// Every operation in a call of its own.
mod not_coalesced {
    use super::*;

    pillarbox_testing::conformance!({
        let server = RedisServer::start();
        let backend = open(&format!("{}?coalesce=false", server.url())).await;
        Subject::new(backend).keeping(server)
    });
}

/// Three primaries, each with a replica.
mod cluster {
    use super::*;

    pillarbox_testing::conformance!({
        let Some(subject) = cluster_subject(Flavour::Redis, "").await else { return };
        subject
    });
}

/// Every queue has partitions on all nodes.
mod partitions {
    use super::*;

    pillarbox_testing::conformance!({
        let Some(subject) = cluster_subject(Flavour::Redis, "?partitions=5").await else { return };
        subject
    });
}
