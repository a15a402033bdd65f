//! The table of docs/backends.md matches the capabilities of the backends.

use std::time::Duration;

use pillarbox::prelude::*;
use pillarbox::{Capabilities, Result};
use pillarbox_testing::server::RedisServer;

/// A row of the table: its first cell, and the value of a capability.
type Row = (&'static str, fn(&Capabilities) -> String);

const ROWS: &[Row] = &[
    ("Messages outlive the process (`durable`)", |can| yes(can.durable)),
    ("Stale receipts are refused (`strict_receipts`)", |can| yes(can.strict_receipts)),
    ("Sending an id that is stored stores nothing (`idempotent_send`)", |can| {
        yes(can.idempotent_send)
    }),
    ("How long the id of a deleted message is remembered (`deduplication`)", |can| {
        or("not at all", can.deduplication)
    }),
    ("Delivery in the order of becoming ready (`fifo`)", |can| yes(can.fifo)),
    ("Exact counts (`exact_counts`)", |can| yes(can.exact_counts)),
    ("Peek: read messages without receiving them (`peek`)", |can| yes(can.peek)),
    ("A send reports duplicates (`reports_duplicates`)", |can| yes(can.reports_duplicates)),
    ("Counts unsettled and uncounted deliveries (`counts_unsettled`)", |can| {
        yes(can.counts_unsettled)
    }),
    ("Reports the time of the first delivery (`reports_first_received`)", |can| {
        yes(can.reports_first_received)
    }),
    ("`max_size` is exact (`bounded`)", |can| yes(can.bounded)),
    ("Entries per send or settle call (`max_batch`)", |can| thousands(can.max_batch)),
    ("Concurrent calls are coalesced (`coalesces`)", |can| yes(can.coalesces)),
    ("Messages per receive call (`max_receive`)", |can| thousands(can.max_receive)),
    ("Longest wait of a receive (`max_wait`)", |can| or("no limit", can.max_wait)),
    ("Longest delay of a send (`max_delay`)", |can| or("no limit", can.max_delay)),
    ("Longest delay of a nack (`max_nack_delay`)", |can| or("no limit", can.max_nack_delay)),
    ("Longest delivery, with all extensions (`max_delivery`)", |can| {
        or("no limit", can.max_delivery)
    }),
    ("Fractions of a second (`sub_second`)", |can| yes(can.sub_second)),
    ("Largest body (`max_body`)", |can| can.max_body.map_or_else(|| "no limit".to_owned(), size)),
    ("Bodies are stored as raw bytes (`binary_bodies`)", |can| yes(can.binary_bodies)),
    ("Attributes of your own per message (`max_attributes`)", |can| {
        can.max_attributes.map_or_else(|| "no limit".to_owned(), thousands)
    }),
    ("Queue names with `.` (`dotted_names`)", |can| yes(can.dotted_names)),
    ("Queue names with `:` and `/` (`extended_names`)", |can| yes(can.extended_names)),
    ("Partitions per queue (`max_partitions`)", |can| thousands(can.max_partitions as usize)),
    ("Deletes unused queues (`default_ttl`)", |can| yes(can.default_ttl)),
    ("Sends and settles in your own transaction (`transactions`)", |can| yes(can.transactions)),
    ("Shortest interval between purges (`purge_cooldown`)", |can| or("none", can.purge_cooldown)),
    ("Native redrive (`redrive`)", |can| yes(can.redrive)),
];

fn yes(is_so: bool) -> String {
    if is_so { "yes" } else { "**no**" }.to_owned()
}

fn or(none: &str, limit: Option<Duration>) -> String {
    limit.map_or_else(|| none.to_owned(), time)
}

fn time(time: Duration) -> String {
    match time.as_secs() {
        0 => "none".to_owned(),
        seconds if seconds.is_multiple_of(3600) => format!("{} h", seconds / 3600),
        seconds if seconds > 60 && seconds.is_multiple_of(60) => format!("{} min", seconds / 60),
        seconds => format!("{seconds} s"),
    }
}

fn thousands(number: usize) -> String {
    match number {
        0..1000 => number.to_string(),
        _ => format!("{},{:03}", number / 1000, number % 1000),
    }
}

/// Rounds up to the next tenth: limits are slightly below their nominal value.
fn size(bytes: usize) -> String {
    const MIB: usize = 1 << 20;
    match bytes {
        _ if bytes.is_multiple_of(1_000_000) => format!("{} MB", bytes / 1_000_000),
        _ if bytes.is_multiple_of(MIB) => format!("{} MiB", bytes / MIB),
        _ if bytes.next_multiple_of(1024).is_multiple_of(MIB) => {
            format!("just under {} MiB", bytes.div_ceil(MIB))
        }
        _ => format!("{bytes} B"),
    }
}

fn cells(mailbox: Result<Mailbox<String>>) -> Vec<String> {
    let mailbox = mailbox.unwrap();
    ROWS.iter().map(|(_, value)| value(mailbox.capabilities())).collect()
}

/// Returns the expected table.
async fn table() -> String {
    let server = RedisServer::start();
    let file = tempfile::tempdir().unwrap();
    let open = async |url: &str| pillarbox::open(url).await.unwrap();
    let sqlite = open(&format!("sqlite:{}", file.path().join("q.db").display())).await;
    let redis = open(&server.url()).await;
    // No server is needed: the capabilities of SQS are constant.
    let sqs = open("sqs+http://127.0.0.1:9/").await;
    let columns = [
        ("memory", cells(open("memory:").await.mailbox("q"))),
        ("SQLite", cells(sqlite.mailbox("q"))),
        ("Redis", cells(redis.mailbox("q"))),
        ("Redis, partitioned", cells(redis.builder("spread").partitions(12).open())),
        ("SQS standard", cells(sqs.mailbox("q"))),
        ("SQS FIFO", cells(sqs.mailbox("q.fifo"))),
    ];
    let names = columns.each_ref().map(|(name, _)| *name).join(" | ");
    let mut table = format!("| | {names} |\n|{}\n", "---|".repeat(columns.len() + 1));
    for (row, (label, _)) in ROWS.iter().enumerate() {
        let values: Vec<_> = columns.iter().map(|(_, cells)| cells[row].as_str()).collect();
        table += &format!("| {label} | {} |\n", values.join(" | "));
    }
    table
}

#[tokio::test]
async fn the_table_of_backends_is_what_they_say_of_themselves() {
    let page = include_str!("../../../../docs/backends.md");
    let table = table().await;
    assert!(page.contains(&table), "docs/backends.md should have:\n\n{table}");
}

/// Every capability is in the table.
#[test]
fn every_capability_is_in_the_table() {
    let fields = format!("{:?}", Capabilities::full("some"));
    let (_, fields) = fields.split_once('{').unwrap();
    let names = fields.split(", ").filter_map(|field| Some(field.split_once(':')?.0.trim()));
    let names: Vec<_> = names.filter(|name| *name != "backend").collect();
    assert!(names.len() > 20, "{names:?}");
    for name in names {
        let named = ROWS.iter().filter(|(row, _)| row.contains(&format!("(`{name}`)"))).count();
        assert_eq!(named, 1, "{name}");
    }
}
