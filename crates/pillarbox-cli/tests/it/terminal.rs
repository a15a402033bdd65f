//! `top`, the demo and confirmations on a terminal.

#![cfg(unix)]

use std::io::{Read, Write};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::common::Place;
use portable_pty::{Child, CommandBuilder, MasterPty, PtySize, native_pty_system};

/// Terminal of 30 lines and 110 columns in which the command runs.
struct Terminal {
    screen: Arc<Mutex<vt100::Parser>>,
    keys: Option<Box<dyn Write + Send>>,
    child: Box<dyn Child + Send + Sync>,
    reader: Option<JoinHandle<()>>,
    pty: Option<Box<dyn MasterPty + Send>>,
}

/// Starts the command in a new terminal.
fn spawn(place: &Place, line: &str) -> (Box<dyn MasterPty + Send>, Box<dyn Child + Send + Sync>) {
    spawn_in(place, line, 110)
}

fn spawn_in(
    place: &Place,
    line: &str,
    columns: u16,
) -> (Box<dyn MasterPty + Send>, Box<dyn Child + Send + Sync>) {
    let size = PtySize { rows: 30, cols: columns, pixel_width: 0, pixel_height: 0 };
    let pair = native_pty_system().openpty(size).unwrap();
    let mut command = CommandBuilder::new(env!("CARGO_BIN_EXE_pillarbox"));
    command.args(line.split_whitespace());
    command.cwd(place.path());
    command.env_remove("PILLARBOX_URL");
    command.env_remove("NO_COLOR");
    command.env("TERM", "xterm-256color");
    let child = pair.slave.spawn_command(command).unwrap();
    (pair.master, child)
}

impl Terminal {
    fn start(place: &Place, line: &str) -> Self {
        Self::start_in(place, line, 110)
    }

    fn start_in(place: &Place, line: &str, columns: u16) -> Self {
        let (pty, child) = spawn_in(place, line, columns);
        let screen = Arc::new(Mutex::new(vt100::Parser::new(30, columns, 0)));
        let mut output = pty.try_clone_reader().unwrap();
        let shared = screen.clone();
        let reader = std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(number @ 1..) = output.read(&mut bytes) {
                shared.lock().unwrap().process(&bytes[..number]);
            }
        });
        let keys = pty.take_writer().unwrap();
        Self { screen, keys: Some(keys), child, reader: Some(reader), pty: Some(pty) }
    }

    fn text(&self) -> String {
        self.screen.lock().unwrap().screen().contents()
    }

    /// Waits for a condition on the screen, and returns its text.
    fn until(&self, what: &str, is_so: impl Fn(&str) -> bool) -> String {
        let end = Instant::now() + Duration::from_secs(30);
        loop {
            let text = self.text();
            if is_so(&text) {
                return text;
            }
            assert!(Instant::now() < end, "still not so: {what}\n{text}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn press(&mut self, keys: &str) {
        let terminal = self.keys.as_mut().unwrap();
        terminal.write_all(keys.as_bytes()).unwrap();
        terminal.flush().unwrap();
    }

    /// Closes the terminal, as closing its window does.
    fn close(&mut self) {
        self.keys = None;
        self.pty = None;
    }

    /// Waits for the end, and returns the exit code and whether the screen was restored.
    fn end(mut self) -> (u32, bool) {
        let code = self.child.wait().unwrap().exit_code();
        self.close();
        self.reader.take().unwrap().join().unwrap();
        let alternate = self.screen.lock().unwrap().screen().alternate_screen();
        (code, !alternate)
    }
}

impl Drop for Terminal {
    /// A failed test leaves no process running.
    fn drop(&mut self) {
        let _ = self.child.kill();
    }
}

fn row<'a>(screen: &'a str, queue: &str) -> Vec<&'a str> {
    let line = screen.lines().find(|line| line.starts_with(queue)).unwrap_or_default();
    line.split_whitespace().collect()
}

#[test]
fn top_shows_queues_and_messages_and_purges() {
    let place = Place::new().with_orders();
    place.ok("receive orders --visibility 12h");
    place.ok("send mail hello");
    let mut top = Terminal::start(&place, "top --interval 100ms");

    let screen = top.until("counts", |text| text.contains("orders") && text.contains("OUT/S"));
    let header = "sqlite:pillarbox.db   2 queues, 4 messages   every 100ms";
    assert!(screen.starts_with(header), "{screen}");
    assert_eq!(row(&screen, "orders")[..5], ["orders", "1", "1", "1", "3d"], "{screen}");
    let footer = "Enter messages   p purge   s sort   ? help   q quit";
    assert!(screen.trim_end().ends_with(footer), "{screen}");

    // It follows changes, and shows a rate and a rising sparkline.
    place.ok("send orders x");
    top.until("a rate", |text| row(text, "orders")[1] == "2" && text.contains('▆'));

    top.press("s");
    top.until("another order", |text| text.contains("READY ▾"));
    top.press("?");
    top.until("help", |text| text.contains("show messages"));
    top.press("x");

    // Opens the queue with most ready messages, now first, and selects its second message.
    top.until("no help", |text| !text.contains("show messages"));
    top.press("g\r");
    let screen =
        top.until("messages", |text| text.contains("client-7") || text.contains("00 ff 10"));
    assert!(screen.contains("in flight, 11h59m left"), "{screen}");
    top.press("jj");
    top.until("the message", |text| {
        text.contains("reply to  client-7") && text.contains("tenant=acme")
    });

    // A purge asks for confirmation.
    top.press("\x1b");
    top.until("back", |text| text.contains("Enter messages"));
    top.press("p");
    top.until("the question", |text| text.contains("Delete 4 messages of 'orders'?"));
    top.press("n");
    top.until("no question", |text| !text.contains("Delete 4"));
    assert!(place.ok("stats orders --json").contains("\"ready\":2,\"in_flight\":1,\"delayed\":1"));
    top.press("p");
    top.until("the question", |text| text.contains("Delete 4 messages of 'orders'?"));
    top.press("y");
    top.until("the answer", |text| text.contains("4 messages of 'orders' deleted"));
    top.until("none", |text| row(text, "orders")[1..4] == ["0", "0", "0"]);
    assert_eq!(place.ok("dump orders"), "");

    top.press("q");
    assert_eq!(top.end(), (0, true));
}

#[test]
fn top_shows_errors_and_continues() {
    let place = Place::new().with_orders();
    let mut top = Terminal::start(&place, "top --interval 100ms");
    top.until("counts", |text| text.contains("orders"));
    let (file, away) = (place.path().join("pillarbox.db"), place.path().join("away.db"));
    std::fs::rename(&file, &away).unwrap();
    top.until("the error", |text| text.contains("moved, deleted or replaced"));
    std::fs::rename(&away, &file).unwrap();
    top.until("all well", |text| text.contains("Enter messages"));
    top.press("\x03");
    assert_eq!(top.end(), (0, true));
}

#[test]
fn top_restores_the_terminal_after_a_signal() {
    let place = Place::new().with_orders();
    let top = Terminal::start(&place, "top");
    top.until("counts", |text| text.contains("orders"));
    let line = format!("kill -TERM {}", top.child.process_id().unwrap());
    let kill = std::process::Command::new("bash").args(["-c", &line]).status();
    assert!(kill.unwrap().success());
    assert_eq!(top.end(), (130, true));
}

/// Nothing reads the terminal here: a reader would keep it open.
#[test]
fn top_ends_when_its_terminal_is_closed() {
    let place = Place::new().with_orders();
    let (pty, mut child) = spawn(&place, "top --interval 5s");
    let pid = child.process_id().unwrap();
    crate::common::until_process_listens(pid);
    // Time to take over the terminal; it ends in either case.
    std::thread::sleep(Duration::from_millis(300));
    drop(pty);
    let end = Instant::now() + Duration::from_secs(20);
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > end {
            child.kill().unwrap();
            panic!("it still runs");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn top_without_queues_and_without_a_file() {
    let place = Place::new().with_orders();
    place.ok("purge orders --yes");
    let mut top = Terminal::start(&place, "top");
    top.until("nothing", |text| text.contains("no queues yet"));
    top.press("p\rjk?q");
    assert_eq!(top.end(), (0, true));
    let top = Terminal::start(&place, "top --url sqlite:nothing.db");
    top.until("the error", |text| text.contains("there is no file"));
    assert_eq!(top.end(), (1, true));
}

#[test]
fn the_demo_is_live_on_a_terminal() {
    let place = Place::new();
    let demo = Terminal::start(&place, "demo --fast --tasks 60 --url sqlite:demo.db");
    let live = demo.until("workers at work", |text| {
        text.contains("worker 1") && text.contains("worker 4") && text.contains("of 60 tasks")
    });
    assert!(live.contains('█') || live.contains('░'), "{live}");
    let screen = demo.until("the summary", |text| text.contains("Inspect it:"));
    assert!(screen.contains("60 of 60 tasks") && screen.contains("processed"), "{screen}");
    assert!(screen.contains("dead letter after attempt 3"), "{screen}");
    assert!(!screen.contains("running"), "the workers' lines are gone: {screen}");
    assert_eq!(demo.end().0, 0);
}

#[test]
fn a_purge_asks_for_confirmation() {
    let place = Place::new().with_orders();
    let mut purge = Terminal::start(&place, "purge orders");
    purge.until("the question", |text| {
        text.contains("Delete 3 messages of 'orders' at sqlite:pillarbox.db? [y/N]")
    });
    purge.press("\r");
    purge.until("the answer", |text| text.contains("nothing was deleted"));
    assert_eq!(purge.end().0, 1);
    assert_eq!(place.ok("dump orders").lines().count(), 3);
    let mut purge = Terminal::start(&place, "purge orders");
    purge.until("the question", |text| text.contains("[y/N]"));
    purge.press("yes\r");
    assert_eq!(purge.end().0, 0);
    assert_eq!(place.ok("dump orders"), "");
}

/// Adds dead letters to `orders-dlq`.
fn add_dead_letters(place: &Place, number: u32) {
    let lines: String = (0..number)
        .map(|n| {
            let (id, at) = (crate::common::id(n), crate::common::time(-60));
            format!(
                "{{\"body\":{{\"message_id\":\"{id}\",\"source_mailbox\":\"orders\",\"body\":{n},\
                 \"last_error\":\"no\",\"dead_lettered_at\":\"{at}\",\"first_received_at\":\"{at}\"}}}}\n"
            )
        })
        .collect();
    place.ok_with_input("load orders-dlq", lines);
}

#[test]
fn replay_of_everything_and_discard_ask_for_confirmation() {
    let place = Place::new();
    add_dead_letters(&place, 3);
    for (line, question, answer) in [
        (
            "dlq replay orders-dlq",
            "Replay 3 messages of 'orders-dlq' at sqlite:pillarbox.db to their queues? [y/N]",
            "nothing was replayed",
        ),
        (
            "dlq discard orders-dlq --newer 1h -n 2",
            "Delete 2 dead letters of 'orders-dlq' at sqlite:pillarbox.db? [y/N]",
            "nothing was discarded",
        ),
    ] {
        let mut asking = Terminal::start(&place, line);
        asking.until("the question", |text| text.contains(question));
        asking.press("\r");
        asking.until("the answer", |text| text.contains(answer));
        assert_eq!(asking.end().0, 1, "{line}");
        assert_eq!(place.ok("dump orders-dlq").lines().count(), 3);
    }
    let mut discard = Terminal::start(&place, "dlq discard orders-dlq -n 2");
    discard.until("the question", |text| text.contains("[y/N]"));
    discard.press("y\r");
    discard
        .until("the result", |text| text.contains("2 dead letters discarded; stopped at --max 2"));
    assert_eq!(discard.end().0, 0);
    let mut replay = Terminal::start(&place, "dlq replay orders-dlq");
    replay.until("the question", |text| text.contains("Replay 1 message of"));
    replay.press("yes\r");
    replay.until("the result", |text| text.contains("1 message replayed to its queue"));
    assert_eq!(replay.end().0, 0);
    // With a filter, or with nothing to do, there is no question.
    add_dead_letters(&place, 1);
    let replay = Terminal::start(&place, "dlq replay orders-dlq --newer 1h");
    assert_eq!(replay.end().0, 0);
    let replay = Terminal::start(&place, "dlq replay orders-dlq");
    assert_eq!(replay.end().0, 0);
}

#[test]
fn a_replay_shows_a_progress_bar() {
    let place = Place::new();
    add_dead_letters(&place, 40);
    let replay = Terminal::start(&place, "dlq replay orders-dlq --yes --rate 20/s");
    replay.until("the bar", |text| text.contains("of 40 messages") && text.contains(" replayed"));
    let screen =
        replay.until("the end", |text| text.contains("40 messages replayed to their queues"));
    assert!(!screen.contains("of 40 messages"), "the bar is gone: {screen}");
    assert_eq!(replay.end().0, 0);
}

#[test]
fn long_commands_show_a_progress_bar() {
    let place = Place::new();
    place.ok("send jobs 1");
    place.ok("send jobs 2 --delay 6s");
    let moving = Terminal::start(&place, "move jobs sqlite:other.db jobs --json");
    moving.until("the bar", |text| {
        text.contains("1 of 2 messages") && text.contains("waiting for 0 in flight, 1 delayed")
    });
    let screen = moving.until("the end", |text| text.contains("\"moved\":2"));
    assert!(!screen.contains("of 2 messages"), "the bar is gone: {screen}");
    assert_eq!(moving.end().0, 0);
}

#[test]
fn colours_are_for_terminals() {
    let place = Place::new().with_orders();
    let stats = Terminal::start(&place, "stats");
    stats.until("the table", |text| text.contains("orders"));
    let bold = {
        let parser = stats.screen.lock().unwrap();
        parser.screen().cell(0, 0).unwrap().bold()
    };
    assert!(bold);
    assert_eq!(stats.end().0, 0);
    assert!(!place.ok("stats").contains('\x1b'));
    assert!(!place.run("stats --url sqlite:nothing.db").stderr.contains('\x1b'));
}

#[test]
fn a_command_prints_nothing_else_on_the_terminal() {
    let place = Place::new().with_orders();
    for (line, first) in [
        ("queues", "orders"),
        ("stats", "QUEUE   READY"),
        ("send mail x --id 0197b3a2-5f3c-7c1e-9d53-000000000001", "0197b3a2-5f3c-7c1e"),
        ("receive nothing", "note: nothing received"),
        ("-v queues", "INFO opened"),
    ] {
        let terminal = Terminal::start(&place, line);
        let screen = terminal.until("what it says", |text| text.contains(first));
        assert!(screen.trim_start().starts_with(first), "{line}: {screen}");
        terminal.end();
    }
}

/// With colours it would print a warning if the feature is not built in.
#[test]
fn the_log_has_no_colours() {
    let place = Place::new().with_orders();
    let terminal = Terminal::start(&place, "-v queues");
    terminal.until("the log", |text| text.contains("INFO opened"));
    {
        let parser = terminal.screen.lock().unwrap();
        let cell = (0..10).map(|column| parser.screen().cell(0, column).unwrap().clone());
        let coloured = cell.filter(|cell| cell.fgcolor() != vt100::Color::Default || cell.dim());
        assert_eq!(coloured.count(), 0, "{}", parser.screen().contents());
    }
    assert_eq!(terminal.end().0, 0);
}

#[test]
fn a_message_cannot_control_the_terminal() {
    let place = Place::new();
    // JSON allows it: one character that starts a control sequence.
    place.run_with_input("send orders -", "\"\u{9b}2J\u{7f}\u{202e}\"");
    let terminal = Terminal::start(&place, "peek orders --json");
    let screen = terminal.until("the body", |text| text.contains("\"body\":"));
    assert!(screen.replace('\n', "").contains(r#""body":"\u009b2J\u007f\u202e"}"#), "{screen}");
    assert_eq!(terminal.end().0, 0);
    // In a pipe it is unchanged.
    assert!(place.ok("peek orders --json").contains("\"body\":\"\u{9b}2J\u{7f}\u{202e}\""));
}

#[test]
fn top_shows_whole_columns_and_counts_first_in_a_narrow_terminal() {
    let place = Place::new().with_orders();
    place.ok("receive orders --visibility 12h");
    for (columns, headings) in [
        (80, "QUEUE ▾ READY IN FLIGHT DELAYED OLDEST IN/S OUT/S DEPTH"),
        (66, "QUEUE ▾ READY IN FLIGHT DELAYED OLDEST IN/S OUT/S"),
        (40, "QUEUE ▾ READY IN FLIGHT DELAYED"),
        (20, "QUEUE ▾ READY"),
    ] {
        let mut top = Terminal::start_in(&place, "top --interval 100ms", columns);
        let screen = top.until("counts", |text| text.contains("orders"));
        let heading = screen.lines().nth(1).unwrap().split_whitespace().collect::<Vec<_>>();
        assert_eq!(heading.join(" "), headings, "{columns}: {screen}");
        let counts =
            if columns == 20 { vec!["orders", "1"] } else { vec!["orders", "1", "1", "1"] };
        assert_eq!(row(&screen, "orders")[..counts.len()], counts, "{columns}: {screen}");
        top.press("\r");
        let screen = top.until("messages", |text| text.contains("STATE"));
        let heading = screen.lines().nth(2).unwrap();
        let headings: Vec<_> = heading.trim_matches(['│', ' ']).split_whitespace().collect();
        let whole = ["STATE", "ID", "DELIVERIES", "SENT", "SIZE", "BODY"];
        assert!(headings.iter().all(|word| whole.contains(word)), "{columns}: {heading}");
        assert!(columns < 40 || headings.contains(&"BODY"), "{columns}: {heading}");
        top.press("q");
        assert_eq!(top.end(), (0, true));
    }
}

#[test]
fn watched_stats_have_a_heading() {
    let place = Place::new().with_orders();
    let mut stats = Terminal::start(&place, "stats --watch=100ms");
    let screen = stats.until("counts", |text| text.contains("orders"));
    let lines: Vec<_> = screen.lines().map(str::trim_end).collect();
    assert_eq!(lines[..2], ["sqlite:pillarbox.db, every 100ms", ""], "{screen}");
    assert!(lines[2].starts_with("QUEUE"), "{screen}");
    stats.press("\x03");
    assert_eq!(stats.end().0, 130);
}
