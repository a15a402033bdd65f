//! `pillarbox dlq discard`

use pillarbox::Timestamp;
use pillarbox::dead_letters::Dlq;

use super::bulk_action::{Action, BulkAction};
use super::filter::Filter;
use crate::args;
use crate::commands::{require_terminal, with_backend};
use crate::context::Context;
use crate::failure::Result;
use crate::interrupt::Interrupt;

pub(super) async fn run(context: &mut Context, args: args::DlqDiscard) -> Result<()> {
    let args::DlqDiscard { queue, max, delayed, dry_run, yes, filters } = args;
    let must_confirm = !yes && !dry_run;
    if must_confirm {
        require_terminal("add --yes to discard")?;
    }
    let filter = Filter::new(filters, Timestamp::now());
    let max = max.map(|max| max as u64);
    let bulk = BulkAction { queue, filter, max, delayed, action: Action::Discard };
    with_backend(context.open_existing().await?, async |backend| {
        let dlq = Dlq::open(backend, &bulk.queue)?;
        if dry_run {
            return bulk.dry_run(context, backend, &dlq).await;
        }
        if must_confirm {
            bulk.confirm(context, backend, &dlq).await?;
        }
        bulk.run(context, backend, &dlq, dlq.discard(), &Interrupt::listen()?).await
    })
    .await
}
