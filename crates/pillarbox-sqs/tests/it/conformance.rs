//! The contract, on every installed server.

use pillarbox_testing::server::SqsFlavour;

use crate::common::{start, start_if_installed, subject};

/// Required; the others are skipped if they are not installed.
mod moto {
    use super::*;

    pillarbox_testing::conformance!(on start(SqsFlavour::Moto), |server| subject(server).await);
}

mod ministack {
    use super::*;

    pillarbox_testing::conformance!(
        on {
            let Some(server) = start_if_installed(SqsFlavour::Ministack) else { return };
            server
        },
        |server| subject(server).await
    );
}

mod fauxqs {
    use super::*;

    pillarbox_testing::conformance!(
        on {
            let Some(server) = start_if_installed(SqsFlavour::Fauxqs) else { return };
            server
        },
        |server| subject(server).await
    );
}
