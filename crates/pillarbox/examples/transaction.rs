//! Business data and messages in one transaction: an order and the message that asks for its
//! invoice are both there, or neither is.
//!
//! `cargo run -p pillarbox --example transaction [FILE]`

use std::error::Error;

use pillarbox::prelude::*;
use pillarbox::sqlite::rusqlite::{Connection, TransactionBehavior};
use pillarbox::sqlite::transaction;
use serde::{Deserialize, Serialize};

#[derive(Debug, Serialize, Deserialize)]
struct Invoice {
    order: i64,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let directory = tempfile::tempdir()?;
    let default = directory.path().join("shop.db").display().to_string();
    let file = std::env::args().nth(1).unwrap_or(default);

    // The queues and the shop's own tables share the file; each has a connection of its own.
    let backend = pillarbox::open(&format!("sqlite:{file}")).await?;
    let invoices: Mailbox<Invoice> = backend.mailbox("invoices")?;
    let mut shop = Connection::open(&file)?;
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
            println!("no order of {item}, and no message");
        } else {
            both.commit()?;
            println!("order {order}, {item}: stored together with its message");
        }
    }

    // The worker marks the order and acknowledges the message, both or neither. Should its lease
    // have ended, the acknowledgement fails, and dropping the transaction rolls it back.
    for message in invoices.receive(Receive::up_to(10)).await? {
        let order = message.body().order;
        let both = shop.transaction_with_behavior(TransactionBehavior::Immediate)?;
        both.execute("UPDATE orders SET invoiced = 1 WHERE id = ?1", [order])?;
        transaction::acknowledge(&both, &message)?;
        both.commit()?;
        println!("order {order}: invoiced, and its message is gone");
    }

    let open = "SELECT count(*) FROM orders WHERE invoiced = 0";
    let open: i64 = shop.query_row(open, [], |row| row.get(0))?;
    println!(
        "{open} orders without an invoice, {} messages left",
        invoices.approximate_count().await?
    );
    assert_eq!((open, invoices.approximate_count().await?), (0, 0));
    backend.close().await;
    Ok(())
}
