//! The contract, on every server that is here.

use pillarbox_testing::server::SqsFlavour;

use crate::common::{start, start_if_here, subject};

/// Which must be here: what is not tested does not pass.
mod moto {
    use super::*;

    pillarbox_testing::conformance!(on start(SqsFlavour::Moto), |server| subject(server).await);
}

mod ministack {
    use super::*;

    pillarbox_testing::conformance!(
        on {
            let Some(server) = start_if_here(SqsFlavour::Ministack) else { return };
            server
        },
        |server| subject(server).await
    );
}

mod fauxqs {
    use super::*;

    pillarbox_testing::conformance!(
        on {
            let Some(server) = start_if_here(SqsFlavour::Fauxqs) else { return };
            server
        },
        |server| subject(server).await
    );
}
