#![allow(dead_code)]

use pillarbox::prelude::*;

async fn count(job: u32) -> u32 {
    job + 1
}

fn main() {}

fn build(jobs: Mailbox<u32>) {
    let _ = Worker::new(jobs).handler(count);
}
