use std::rc::Rc;

use pillarbox::prelude::*;

async fn hold(job: u32) {
    let held = Rc::new(job);
    tokio::task::yield_now().await;
    drop(held);
}

fn main() {
    let jobs: Mailbox<u32> = unimplemented!();
    let _ = Worker::new(jobs).handler(hold);
}
