use pillarbox::prelude::*;

async fn count(job: u32) -> u32 {
    job + 1
}

fn main() {
    let jobs: Mailbox<u32> = unimplemented!();
    let _ = Worker::new(jobs).handler(count);
}
