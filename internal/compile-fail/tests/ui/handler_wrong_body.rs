#![allow(dead_code)]

use pillarbox::prelude::*;

fn main() {}

fn build(jobs: Mailbox<u32>) {
    let _ = Worker::new(jobs).handler(|job: String| async move { println!("{job}") });
}
