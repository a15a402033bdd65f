//! Policies for dead letters: which failures, after how many attempts, and to which queue.
//!
//!     cargo run --features anyhow --example dead_letter_policies
//!
//! A worker charges customers. Permanent errors of the bank become dead letters at once, rate limits are retried
//! without a limit, fraud goes to its own queue on another backend, and other failures have three attempts. Handlers
//! return `anyhow::Result`, and the policy still sees the types of their errors.

use anyhow::Context as _;
use pillarbox::FailureKind;
use pillarbox::dead_letters::{Classify, Decision, ErrorClass, FailedDelivery};
use pillarbox::prelude::*;
use serde::{Deserialize, Serialize};

#[derive(Debug, Serialize, Deserialize)]
struct Charge {
    customer: String,
    cents: u32,
}

#[derive(Debug)]
enum BankError {
    NoSuchAccount,
    Busy,
    Fraud,
}

impl std::fmt::Display for BankError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::NoSuchAccount => "the account does not exist",
            Self::Busy => "the bank is busy",
            Self::Fraud => "this looks like fraud",
        })
    }
}

impl std::error::Error for BankError {}

impl Classify for BankError {
    fn class(&self) -> ErrorClass {
        match self {
            Self::NoSuchAccount | Self::Fraud => ErrorClass::Permanent,
            Self::Busy => ErrorClass::RateLimited { retry_after: Some(Duration::from_millis(2)) },
        }
    }
}

async fn charge(charge: Charge, Attempt(attempt): Attempt) -> anyhow::Result<()> {
    let answer = match &*charge.customer {
        "nobody" => Err(BankError::NoSuchAccount),
        "mallory" => Err(BankError::Fraud),
        "busy" if attempt < 8 => Err(BankError::Busy),
        "trouble" | "trial" => anyhow::bail!("the payment service is down"),
        _ => Ok(()),
    };
    answer.with_context(|| format!("cannot charge {} cents", charge.cents))
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let backend = pillarbox::open("memory:").await?;
    let police = pillarbox::open("memory:").await?;
    let charges: Mailbox<Charge> = backend.mailbox("charges")?;
    let fraud: Mailbox<DeadLetter<Charge>> = police.mailbox("fraud")?;
    for customer in ["ada", "nobody", "mallory", "busy", "trouble", "trial"] {
        charges.send(&Charge { customer: customer.to_owned(), cents: 995 }).await?;
    }

    let policy = DlqPolicy::new() // to `charges-dlq`
        .classify::<BankError>()
        .include_permanent()
        .exclude_retriable() // including timeouts and failed connections
        .include_kind(FailureKind::Panic)
        .route_if(is_fraud, &fraud)
        // For conditions that the rules above cannot express: trial customers have one attempt.
        .decide(|failed: &FailedDelivery<'_>| match failed.json::<Charge>() {
            Some(charge) if charge.customer == "trial" => Decision::DeadLetter,
            _ => Decision::Default,
        });
    let stats = Worker::new(charges)
        .retry(Backoff::constant(Duration::from_millis(1)))
        .max_deliveries(3)
        .dead_letters(policy)
        .handler(charge)
        .run_until_empty()
        .await?;
    println!("succeeded {}, dead-lettered {}", stats.succeeded, stats.dead_lettered);

    let dead: Mailbox<DeadLetter<Charge>> = backend.mailbox("charges-dlq")?;
    for mailbox in [&dead, &fraud] {
        println!("in {}:", mailbox.name());
        for dead_letter in mailbox.peek(10).await? {
            let DeadLetter { body, info, .. } = dead_letter.body?;
            let (deliveries, error, chain) =
                (info.delivery_count, info.last_error, info.error_chain);
            println!("  {:8} after {deliveries}: {error}, {chain:?}", body.customer);
            println!("           {}", info.last_error_type);
        }
    }
    // "ada" and "busy" were charged, the latter at its eighth attempt.
    assert_eq!((stats.succeeded, stats.dead_lettered), (2, 4));
    assert_eq!((dead.approximate_count().await?, fraud.approximate_count().await?), (3, 1));
    Ok(())
}

fn is_fraud(failure: &pillarbox::Failure) -> bool {
    matches!(failure.downcast_ref(), Some(BankError::Fraud))
}
