use pillarbox::prelude::*;

struct Shop;

async fn sell(job: u32, Context(shop): Context<Shop>) {}

fn main() {
    let jobs: Mailbox<u32> = unimplemented!();
    let _ = Worker::new(jobs).handler(sell);
}
