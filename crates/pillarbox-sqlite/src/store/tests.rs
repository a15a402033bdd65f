use std::cell::RefCell;

use pillarbox_core::{Cursor, MessageId, Receive};
use rusqlite::Row;

use super::*;

const LEASE: Duration = Receive::DEFAULT_VISIBILITY;
const ACK: SettleAction = SettleAction::Acknowledge;

fn file() -> Connection {
    let mut connection = Connection::open_in_memory().unwrap();
    crate::schema::migrate(&mut connection).unwrap();
    connection
}

fn queue() -> QueueName {
    "q".parse().unwrap()
}

/// Flushes, and begins a transaction at a given second.
fn at(store: &mut Store<'_>, second: i64) {
    store.flush().unwrap();
    store.begin(Timestamp::from_secs(second)).unwrap();
}

fn send(store: &mut Store<'_>, body: &'static str) -> MessageId {
    let message = Outgoing::new(body);
    let id = message.id;
    assert_eq!(try_send(store, &message).unwrap(), [Ok(true)]);
    id
}

fn try_send(store: &mut Store<'_>, message: &Outgoing) -> Result<Vec<Result<bool, Full>>, Failure> {
    store.send(&queue(), std::iter::once((message, None)))
}

fn bodies(deliveries: &[Delivery]) -> Vec<&str> {
    deliveries.iter().map(|d| std::str::from_utf8(&d.message.body).unwrap()).collect()
}

fn count(connection: &Connection, table: &str) -> u64 {
    connection.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0)).unwrap()
}

#[test]
fn a_released_delivery_is_undone() {
    let connection = file();
    let mut store = Store::new(&connection);
    at(&mut store, 1);
    for body in ["a", "b", "c"] {
        send(&mut store, body);
    }
    let taken = store.receive(&queue(), 2, LEASE).unwrap();
    for delivery in &taken {
        store.release(&queue(), &delivery.receipt).unwrap();
        // The second time it does nothing.
        store.release(&queue(), &delivery.receipt).unwrap();
    }
    let again = store.receive(&queue(), 3, LEASE).unwrap();
    assert_eq!(bodies(&again), ["a", "b", "c"]);
    assert!(again.iter().all(|delivery| delivery.message.delivery_count == 1));
    assert_eq!(store.settle(&queue(), &taken[0].receipt, ACK).unwrap(), Err(Stale));
}

/// Receives and starts the next message. Returns its number of deliveries and of unsettled ones.
fn receive_and_start(store: &mut Store<'_>, lease: Duration) -> (u32, u32) {
    let Delivery { message, receipt, .. } = store.receive(&queue(), 1, lease).unwrap().remove(0);
    let start = SettleAction::Start { timeout: lease };
    store.settle(&queue(), &receipt, start).unwrap().unwrap();
    (message.delivery_count, message.unsettled)
}

#[test]
fn a_released_delivery_keeps_those_before_it_unsettled() {
    let connection = file();
    let mut store = Store::new(&connection);
    at(&mut store, 1);
    send(&mut store, "x");
    assert_eq!(receive_and_start(&mut store, Duration::from_secs(1)), (1, 0));
    for second in [5, 6] {
        at(&mut store, second);
        let delivery = store.receive(&queue(), 1, LEASE).unwrap().remove(0);
        assert_eq!((delivery.message.delivery_count, delivery.message.unsettled), (2, 1));
        // Whether or not the lease is cached.
        store.flush().unwrap();
        if second == 6 {
            store.clear();
            at(&mut store, second);
        }
        store.release(&queue(), &delivery.receipt).unwrap();
    }
    assert_eq!(receive_and_start(&mut store, LEASE), (2, 1));
}

#[test]
fn the_view_shows_an_unsettled_delivery_before_any_sweep() {
    let connection = file();
    let mut store = Store::new(&connection);
    let shown = || {
        let sql = "SELECT state, delivery_count, unsettled, uncounted FROM pillarbox";
        let read = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?));
        connection.query_row::<(String, u32, u32, u32), _, _>(sql, [], read).unwrap()
    };
    // The view uses the time of the machine, with a resolution of 1 ms.
    let now = Timestamp::from_nanos(Timestamp::now().as_nanos() - 1_000_000_000);
    store.begin(now).unwrap();
    send(&mut store, "x");
    store.flush().unwrap();
    assert_eq!(shown(), ("ready".to_owned(), 0, 0, 0));
    store.receive(&queue(), 1, Duration::ZERO).unwrap();
    store.flush().unwrap();
    assert_eq!(count(&connection, "pillarbox_timer"), 1, "the expired lease is still there");
    assert_eq!(shown(), ("ready".to_owned(), 1, 0, 1));
    let started = store.receive(&queue(), 1, LEASE).unwrap().remove(0);
    let start = SettleAction::Start { timeout: Duration::ZERO };
    store.settle(&queue(), &started.receipt, start).unwrap().unwrap();
    store.flush().unwrap();
    assert_eq!(shown(), ("ready".to_owned(), 2, 1, 1));
    let delivery = store.receive(&queue(), 1, LEASE).unwrap().remove(0);
    store.flush().unwrap();
    assert_eq!(shown(), ("in flight".to_owned(), 3, 1, 1));
    let nack = SettleAction::Nack { delay: Duration::from_secs(60) };
    store.settle(&queue(), &delivery.receipt, nack).unwrap().unwrap();
    store.flush().unwrap();
    assert_eq!(shown(), ("delayed".to_owned(), 3, 1, 1));
    store.begin(now + Duration::from_secs(60)).unwrap();
    assert_eq!(store.ready(&queue()).unwrap(), 1);
    store.flush().unwrap();
    assert_eq!(shown(), ("ready".to_owned(), 3, 1, 1), "the end of a delay is no expired lease");
}

#[test]
fn a_purge_deletes_the_rows_a_few_at_a_time() {
    let connection = file();
    let mut store = Store::new(&connection);
    at(&mut store, 1);
    for _ in 0..RECLAIM_ROWS + 10 {
        send(&mut store, "old");
    }
    store.receive(&queue(), 5, LEASE).unwrap();
    store.flush().unwrap();
    assert_eq!(store.purge(&queue()).unwrap(), RECLAIM_ROWS as u64 + 10);
    let kept = send(&mut store, "new");
    store.flush().unwrap();
    assert!(count(&connection, "pillarbox_message") > 2000, "nothing is deleted yet");
    assert_eq!(count(&connection, "pillarbox"), 1, "and none is shown");

    let mut steps = 0;
    while store.has_garbage().unwrap() {
        store.reclaim().unwrap();
        steps += 1;
    }
    assert!((3..=5).contains(&steps), "{steps}");
    assert_eq!(count(&connection, "pillarbox_message"), 1);
    assert_eq!(count(&connection, "pillarbox_timer"), 0);
    assert_eq!(count(&connection, "pillarbox_expiry"), 0);
    assert_eq!(count(&connection, "pillarbox_queue"), 1);
    assert_eq!(store.receive(&queue(), 9, LEASE).unwrap()[0].message.id, kept);
}

#[test]
fn an_empty_queue_without_free_places_restarts() {
    let connection = file();
    let mut store = Store::new(&connection);
    at(&mut store, 1);
    send(&mut store, "first");
    store.flush().unwrap();
    let last = MAX_PLACE - RESERVED_PLACES;
    connection.execute("UPDATE pillarbox_queue SET next_place = ?1", [last]).unwrap();
    store.clear();
    at(&mut store, 2);
    let refused = try_send(&mut store, &Outgoing::new("late"));
    assert!(matches!(refused, Err(Failure::PlacesExhausted)), "{refused:?}");

    let first = store.receive(&queue(), 1, LEASE).unwrap().remove(0);
    store.settle(&queue(), &first.receipt, ACK).unwrap().unwrap();
    send(&mut store, "again");
    assert_eq!(bodies(&store.receive(&queue(), 9, LEASE).unwrap()), ["again"]);
    assert_eq!(store.counts(&queue()).unwrap().sent, Some(2));
}

#[test]
fn a_purge_needs_no_free_number() {
    let connection = file();
    let mut store = Store::new(&connection);
    at(&mut store, 1);
    send(&mut store, "x");
    store.flush().unwrap();
    let fill = "WITH RECURSIVE other(number) AS (
            SELECT 2 UNION ALL SELECT number + 1 FROM other WHERE number < ?1)
        INSERT INTO pillarbox_queue
        SELECT number, 'q' || number, 1, 0, 1, 0, 0, 0, 0, 0 FROM other";
    connection.execute(fill, [MAX_QUEUE]).unwrap();
    assert_eq!(store.purge(&queue()).unwrap(), 1);
    assert_eq!(store.counts(&queue()).unwrap().total(), 0);
    let refused = try_send(&mut store, &Outgoing::new("too early"));
    assert!(matches!(refused, Err(Failure::TooManyQueues)), "{refused:?}");
    while store.has_garbage().unwrap() {
        store.reclaim().unwrap();
    }
    send(&mut store, "y");
}

#[test]
fn numbers_of_queues_are_reused() {
    let connection = file();
    let mut store = Store::new(&connection);
    let insert = "INSERT INTO pillarbox_queue VALUES (?1, ?2, 1, 0, 1, 0, 0, 0, 0, 0)";
    for (number, name) in [(1, "a"), (2, "b"), (MAX_QUEUE, "z")] {
        connection.execute(insert, params![number, name]).unwrap();
    }
    at(&mut store, 1);
    send(&mut store, "x");
    store.flush().unwrap();
    let sql = "SELECT queue FROM pillarbox_queue WHERE name = 'q'";
    assert_eq!(connection.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap(), 3);
}

#[test]
fn of_two_messages_with_one_id_the_first_is_stored() {
    let connection = file();
    let mut store = Store::new(&connection);
    at(&mut store, 1);
    let first = Outgoing::with_id(MessageId::from_key("k"), "first");
    let mut second = Outgoing::with_id(MessageId::from_key("k"), "second");
    second.delay = Duration::from_secs(5);
    let both = [(&first, None), (&second, None)];
    assert_eq!(store.send(&queue(), both.into_iter()).unwrap(), [Ok(true), Ok(false)]);
    let counts = store.counts(&queue()).unwrap();
    assert_eq!((counts.ready, counts.delayed), (1, 0));
    assert_eq!(bodies(&store.receive(&queue(), 9, LEASE).unwrap()), ["first"]);
}

#[test]
fn a_clock_that_is_set_back_strands_nothing() {
    let connection = file();
    let mut store = Store::new(&connection);
    at(&mut store, 100);
    send(&mut store, "x");
    let first = store.receive(&queue(), 1, Duration::from_secs(10)).unwrap().remove(0);
    at(&mut store, 200);
    let second = store.receive(&queue(), 1, Duration::from_secs(10)).unwrap().remove(0);
    at(&mut store, 100);
    assert_eq!(store.settle(&queue(), &first.receipt, ACK).unwrap(), Err(Stale));
    let extend = SettleAction::Extend { timeout: Duration::from_secs(10) };
    store.settle(&queue(), &second.receipt, extend).unwrap().unwrap();
    at(&mut store, 110);
    assert_eq!(store.receive(&queue(), 1, LEASE).unwrap()[0].message.delivery_count, 3);
}

#[test]
fn a_store_without_its_cache_behaves_the_same() {
    let connection = file();
    let store = RefCell::new(Store::new(&connection));
    let evict = || {
        let mut store = store.borrow_mut();
        store.flush().unwrap();
        store.clear();
        store.begin(Timestamp::from_secs(50)).unwrap();
    };
    evict();
    send(&mut store.borrow_mut(), "a");
    evict();
    let mut delayed = Outgoing::new("later");
    delayed.delay = Duration::from_secs(5);
    try_send(&mut store.borrow_mut(), &delayed).unwrap();
    evict();
    let held = store.borrow_mut().receive(&queue(), 9, LEASE).unwrap();
    evict();
    let counts = store.borrow_mut().counts(&queue()).unwrap();
    assert_eq!((counts.ready, counts.in_flight, counts.delayed), (0, 1, 1));
    let settled = store.borrow_mut().settle(&queue(), &held[0].receipt, ACK);
    settled.unwrap().unwrap();
    evict();
    at(&mut store.borrow_mut(), 55);
    assert_eq!(bodies(&store.borrow_mut().receive(&queue(), 9, LEASE).unwrap()), ["later"]);
}

#[test]
fn a_cursor_is_parsed_as_it_was_formatted() {
    for from in [PeekFrom::Place(7), PeekFrom::Timer(-3, 9), PeekFrom::Salvage(5)] {
        assert_eq!(PeekFrom::of_cursor(&from.to_cursor()), Some(from));
    }
    for bad in ["", "7", "ready.", "ready.-1", "timer.1", "other.1"] {
        assert_eq!(PeekFrom::of_cursor(&Cursor::new(bad)), None);
    }
}
