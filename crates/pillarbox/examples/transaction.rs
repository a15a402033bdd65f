//! Business data and messages in one transaction. An order is stored together with the message that requests its
//! invoice, and an invoice is stored together with the acknowledgement of that message, or neither is.
//!
//! `cargo run -p pillarbox --example transaction [FILE]`

use std::sync::{Arc, Mutex};

use pillarbox::BoxError;
use pillarbox::prelude::*;
use pillarbox::sqlite::rusqlite::{Connection, TransactionBehavior};
use pillarbox::sqlite::transaction;
use serde::{Deserialize, Serialize};

#[derive(Debug, Serialize, Deserialize)]
struct Invoice {
    order: i64,
}

/// Marks the order as invoiced and acknowledges the message, both or neither. If the lease has expired, the
/// acknowledgement fails, and dropping the transaction rolls it back.
async fn write(
    Invoice { order }: Invoice,
    about: Metadata,
    Context(shop): Context<Mutex<Connection>>,
) -> Result<Outcome, BoxError> {
    let mut shop = shop.lock().map_err(|_| "a handler panicked")?;
    let both = shop.transaction_with_behavior(TransactionBehavior::Immediate)?;
    both.execute("UPDATE orders SET invoiced = 1 WHERE id = ?1", [order])?;
    transaction::acknowledge(&both, &about)?;
    both.commit()?;
    println!("order {order}: invoiced, and its message acknowledged");
    Ok(Outcome::settled())
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let directory = tempfile::tempdir()?;
    let default = directory.path().join("shop.db").display().to_string();
    let file = std::env::args().nth(1).unwrap_or(default);

    // The queues and the shop's tables share the file, each with its own connection.
    let backend = pillarbox::open(&format!("sqlite:{file}")).await?;
    let invoices: Mailbox<Invoice> = backend.mailbox("invoices")?;
    let mut shop = Connection::open(&file)?;
    shop.busy_timeout(Duration::from_secs(10))?;
    shop.execute_batch(
        "PRAGMA synchronous = FULL;
         CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, item TEXT, invoiced INTEGER)",
    )?;

    for item in ["a lamp", "a chair", "a lamp that is out of stock"] {
        let both = shop.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let insert = "INSERT INTO orders (item, invoiced) VALUES (?1, 0) RETURNING id";
        let order = both.query_row(insert, [item], |row| row.get(0))?;
        transaction::send(&both, &invoices, &Invoice { order }, SendOptions::new())?;
        if item.contains("out of stock") {
            both.rollback()?;
            println!("no order of {item}, and no message: rolled back");
        } else {
            both.commit()?;
            println!("order {order}, {item}: stored together with its message");
        }
    }

    let shop = Arc::new(Mutex::new(shop));
    Worker::new(invoices.clone())
        .context_arc(shop.clone())
        .handler(write)
        .run_until_empty()
        .await?;

    let open: i64 = {
        let shop = shop.lock().map_err(|_| "a handler panicked")?;
        shop.query_row("SELECT count(*) FROM orders WHERE invoiced = 0", [], |row| row.get(0))?
    };
    let left = invoices.approximate_count().await?;
    println!("{open} orders without an invoice, {left} messages left");
    assert_eq!((open, left), (0, 0));
    backend.close().await;
    Ok(())
}
