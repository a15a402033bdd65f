#![allow(dead_code)]

use pillarbox::prelude::*;

struct Shop;

async fn sell(_job: u32, Context(_shop): Context<Shop>) {}

fn main() {}

fn build(jobs: Mailbox<u32>) {
    let _ = Worker::new(jobs).handler(sell);
}
