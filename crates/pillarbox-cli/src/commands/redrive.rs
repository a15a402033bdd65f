//! `pillarbox redrive`

use pillarbox::{QueueName, Redrive};
use serde::Serialize;

use super::with_backend;
use crate::args;
use crate::context::Context;
use crate::failure::Result;

#[derive(Serialize)]
struct RedriveJson<'a> {
    queue: &'a QueueName,
    to: Option<&'a str>,
    max_deliveries: Option<u32>,
}

pub(crate) async fn run(context: &mut Context, args: args::Redrive) -> Result<()> {
    with_backend(context.open_existing().await?, async |backend| {
        let queue = &args.queue;
        match (&args.to, args.after) {
            (Some(to), Some(after)) => {
                let redrive = Redrive::new(to.as_str(), after);
                backend.set_redrive(queue, Some(redrive)).await?;
            }
            _ if args.off => backend.set_redrive(queue, None).await?,
            _ => {}
        }
        // Shows the policy that the backend has now.
        let redrive = backend.redrive(queue).await?;
        if context.out.is_json() {
            let to = redrive.as_ref().map(|redrive| &*redrive.to);
            let max_deliveries = redrive.as_ref().map(|redrive| redrive.max_deliveries);
            return context.out.json(&RedriveJson { queue, to, max_deliveries });
        }
        context.out.line(&match redrive {
            Some(Redrive { to, max_deliveries, .. }) => {
                let deliveries = if max_deliveries == 1 { "delivery" } else { "deliveries" };
                format!("to '{to}' after {max_deliveries} {deliveries}")
            }
            None => "none: messages stay in the queue however often they are delivered".to_owned(),
        })
    })
    .await
}
