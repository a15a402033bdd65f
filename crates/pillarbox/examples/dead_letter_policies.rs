//! Which failures become dead letters, when, and where they go.
//!
//!     cargo run --features anyhow --example dead_letter_policies
//!
//! A till that charges customers: errors of the bank say themselves whether they can ever succeed. Those that
//! cannot are given up at once, those that pass by themselves are tried for as long as it takes, fraud goes to a
//! queue of its own on another backend, and the rest has three attempts. Handlers return `anyhow::Result`, and the types of their errors are known all the same.

use anyhow::Context as _;
use pillarbox::prelude::*;
use pillarbox::runtime::{Classify, Decision, ErrorClass, FailedDelivery, FailureKind};
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
            Self::NoSuchAccount => "there is no such account",
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
        "patience" if attempt < 8 => Err(BankError::Busy),
        "trouble" | "trial" => anyhow::bail!("the till is on fire"),
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
    for customer in ["ada", "nobody", "mallory", "patience", "trouble", "trial"] {
        charges.send(&Charge { customer: customer.to_owned(), cents: 995 }).await?;
    }

    let policy = DlqPolicy::new() // to `charges-dlq`
        .classify::<BankError>()
        .include_permanent()
        .exclude_retriable() // and so are timeouts, and connections that fail
        .include_kind(FailureKind::Panic)
        .route_if(is_fraud, &fraud)
        // Anything the rules above cannot say: a trial customer is not worth a second attempt.
        .decide(|failed: &FailedDelivery<'_>| match failed.json::<Charge>() {
            Some(charge) if charge.customer == "trial" => Decision::DeadLetter,
            _ => Decision::Usual,
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
        for letter in mailbox.peek(10).await? {
            let DeadLetter { body, info, .. } = letter.body?;
            let (deliveries, error, chain) =
                (info.delivery_count, info.last_error, info.error_chain);
            println!("  {:8} after {deliveries}: {error}, {chain:?}", body.customer);
            println!("           {}", info.last_error_type);
        }
    }
    // Ada was charged, and so was patience, at the eighth attempt.
    assert_eq!((stats.succeeded, stats.dead_lettered), (2, 4));
    assert_eq!((dead.approximate_count().await?, fraud.approximate_count().await?), (3, 1));
    Ok(())
}

fn is_fraud(failure: &pillarbox::runtime::Failure) -> bool {
    matches!(failure.downcast_ref(), Some(BankError::Fraud))
}
