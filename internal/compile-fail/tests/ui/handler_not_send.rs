#![allow(dead_code)]

use std::rc::Rc;

use pillarbox::prelude::*;

async fn hold(job: u32) {
    let held = Rc::new(job);
    tokio::task::yield_now().await;
    drop(held);
}

fn main() {}

fn build(jobs: Mailbox<u32>) {
    let _ = Worker::new(jobs).handler(hold);
}
