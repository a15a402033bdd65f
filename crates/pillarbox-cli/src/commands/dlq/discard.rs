//! `pillarbox dlq discard`

use pillarbox::Timestamp;
use pillarbox::runtime::Dlq;

use super::filter::Filter;
use super::round::{Deed, Round};
use crate::args;
use crate::commands::{must_be_there, using, want};
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupt;

pub(super) async fn run(context: &mut Context, args: args::DlqDiscard) -> Result<()> {
    let args::DlqDiscard { queue, max, delayed, dry_run, yes, filters } = args;
    let asks = !yes && !dry_run;
    if asks {
        must_be_there("discard; say --yes")?;
    }
    let filter = Filter::new(filters, Timestamp::now());
    let max = max.map(|max| max as u64);
    let round = Round { queue, filter, max, delayed, deed: Deed::Discard };
    using(context.open_existing().await?, async |backend| {
        let dlq = Dlq::open(backend, &round.queue)?;
        if dry_run {
            return round.rehearse(context, backend, &dlq).await;
        }
        if asks {
            let number = round.expected(backend, &dlq).await?;
            let question = round.question(number, context);
            if number > 0 && !want(&question)? {
                return Err(Failure::Other("nothing was discarded".to_owned()));
            }
        }
        round.perform(context, backend, &dlq, dlq.discard(), &Interrupt::listen()?).await
    })
    .await
}
