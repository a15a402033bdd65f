//! The contract, on real servers, with kills and restarts.

mod common;

use pillarbox_testing::server::Flavour;

use crate::common::subject;

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
