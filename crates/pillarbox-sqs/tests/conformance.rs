//! The contract, on every server that is here.

mod common;

use pillarbox_testing::server::SqsFlavour;

use crate::common::{start, subject};

/// Which must be here: what is not tested does not pass.
mod moto {
    use super::*;

    pillarbox_testing::conformance!(on start(SqsFlavour::Moto), |server| subject(server).await);
}
