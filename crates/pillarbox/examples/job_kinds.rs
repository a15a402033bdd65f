//! Several kinds of job in one mailbox, in two ways.
//!
//!     cargo run --example job_kinds
//!
//! * A [`Router`]: the sender sets the kind as an attribute, and each kind has its own type and handler. A message of
//!   an unknown kind is parked: it stays in the mailbox for a worker that knows it, such as a newer version of the
//!   program.
//! * An enum: the kind is part of the body, and one handler matches on it. The compiler checks that no kind is
//!   forgotten, but a kind that is not in the enum cannot be decoded and becomes a dead letter.

use pillarbox::prelude::*;
use pillarbox::stats::StatsSnapshot;
use pillarbox::{Event, Events};
use serde::{Deserialize, Serialize};

#[derive(Debug, Serialize, Deserialize)]
struct Email {
    to: String,
}

#[derive(Debug, Serialize, Deserialize)]
struct Resize {
    image: String,
    width: u32,
}

#[derive(Debug, Serialize, Deserialize)]
struct Fax {
    number: String,
}

async fn send_email(Email { to }: Email) {
    println!("  an email to {to}");
}

async fn resize(Resize { image, width }: Resize, about: Metadata) -> Result<Outcome, &'static str> {
    println!("  {image}, to be {width} pixels wide, delivery {}", about.delivery_count());
    if width == 0 { Ok(Outcome::reject("an image has a width")) } else { Ok(Outcome::done()) }
}

async fn send_fax(Fax { number }: Fax) {
    println!("  a fax to {number}");
}

#[tokio::main]
async fn main() -> pillarbox::Result<()> {
    let backend = pillarbox::open("memory:").await?;
    by_router(&backend).await?;
    by_enum(&backend).await?;
    backend.close().await;
    Ok(())
}

async fn by_router(backend: &Mailboxes) -> pillarbox::Result<()> {
    println!("A router:");
    // One mailbox for each type of body, all on the same queue.
    let emails: Mailbox<Email> = backend.mailbox("jobs")?;
    let images: Mailbox<Resize> = backend.mailbox("jobs")?;
    let faxes: Mailbox<Fax> = backend.mailbox("jobs")?;

    let kind = |kind: &str| SendOptions::new().kind(kind);
    emails.send_with(&Email { to: "ada@example.org".to_owned() }, kind("email")).await?;
    let (cat, dog) = ("cat.png".to_owned(), "dog.png".to_owned());
    images.send_with(&Resize { image: cat, width: 640 }, kind("resize")).await?;
    images.send_with(&Resize { image: dog, width: 0 }, kind("resize")).await?;
    faxes.send_with(&Fax { number: "555-0123".to_owned() }, kind("fax")).await?;

    let this_version = Router::new().on("email", send_email).on("resize", resize);
    let worker = Worker::new(emails.clone())
        .router(this_version.clone())
        .park_for(Duration::from_millis(500))
        .dead_letters(DlqPolicy::new());
    let all_four = count(worker.control().events(), 4);
    let stats = worker.run_until(all_four).await?;
    report(&stats);
    assert_eq!((stats.succeeded, stats.dead_lettered, stats.parked), (2, 1, 1));
    assert_eq!(emails.counts().await?.total(), 1, "the fax is still there");

    println!("The next version of the program:");
    let next_version = this_version.on("fax", send_fax);
    println!("  knows {}", next_version.kinds().collect::<Vec<_>>().join(", "));
    let worker = Worker::new(emails.clone()).router(next_version);
    let the_fax = count(worker.control().events(), 1);
    let stats = worker.run_until(the_fax).await?;
    report(&stats);
    assert_eq!((stats.succeeded, emails.counts().await?.total()), (1, 0));
    Ok(())
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum Job {
    Email(Email),
    Resize(Resize),
}

/// Jobs that a newer version sends.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum NewerJob {
    Fax(Fax),
}

async fn by_enum(backend: &Mailboxes) -> pillarbox::Result<()> {
    println!("An enum:");
    let jobs: Mailbox<Job> = backend.mailbox("tagged")?;
    let newer: Mailbox<NewerJob> = backend.mailbox("tagged")?;
    let dead: Mailbox<DeadLetter<NewerJob>> = backend.mailbox("tagged-dlq")?;
    jobs.send(&Job::Email(Email { to: "alan@example.org".to_owned() })).await?;
    jobs.send(&Job::Resize(Resize { image: "owl.png".to_owned(), width: 320 })).await?;
    newer.send(&NewerJob::Fax(Fax { number: "555-0199".to_owned() })).await?;

    let worker = Worker::new(jobs)
        .handler(|job: Job, about: Metadata| async move {
            match job {
                Job::Email(email) => {
                    send_email(email).await;
                    Ok(Outcome::done())
                }
                Job::Resize(image) => resize(image, about).await,
            }
        })
        .dead_letters(DlqPolicy::new());
    let all_three = count(worker.control().events(), 3);
    let stats = worker.run_until(all_three).await?;
    report(&stats);
    assert_eq!((stats.succeeded, stats.dead_lettered, stats.parked), (2, 1, 0));

    for dead_letter in dead.receive(Receive::one()).await? {
        let DeadLetter { body, info, .. } = dead_letter.body();
        println!("  dead letter: {body:?}: {}", info.last_error);
        assert!(matches!(body, NewerJob::Fax(_)) && info.last_error.contains("fax"), "{info:?}");
        dead_letter.acknowledge().await?;
    }
    Ok(())
}

/// Waits until this number of deliveries has ended, in any way.
async fn count(mut events: Events, mut deliveries: u32) {
    while deliveries > 0 {
        let is_end = |event: &Event| {
            matches!(
                event,
                Event::Succeeded { .. } | Event::Parked { .. } | Event::DeadLettered { .. }
            )
        };
        events.wait_for(is_end).await;
        deliveries -= 1;
    }
}

fn report(stats: &StatsSnapshot) {
    let StatsSnapshot { succeeded, dead_lettered, parked, .. } = stats;
    println!("  succeeded {succeeded}, dead-lettered {dead_lettered}, parked {parked}");
}
