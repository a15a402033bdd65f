use pillarbox::prelude::*;

fn main() {
    let jobs: Mailbox<u32> = unimplemented!();
    let _ = Worker::new(jobs).handler(|job: String| async move { println!("{job}") });
}
