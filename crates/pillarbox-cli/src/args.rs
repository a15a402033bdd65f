//! Command-line arguments.

mod dlq;
mod eval;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueHint};
use clap_complete::Shell;
use pillarbox::{MessageId, QueueName, Receipt};

pub(crate) use self::dlq::{
    Dlq, DlqCommand, DlqDiscard, DlqList, DlqReplay, DlqShow, DlqStats, Filters,
};
pub(crate) use self::eval::{
    Eval, EvalCollect, EvalCommand, EvalReport, EvalSubmit, Evaluator, Format, Limits,
};
pub(crate) use crate::output::file::Permissions;
use crate::output::time::parse as duration;
use crate::url::BackendUrl;

/// Returns the text after the help of the command.
fn after_help() -> String {
    let backends: Vec<_> = pillarbox::url_forms().collect();
    format!(
        "Exit codes: 0 success, 1 error, 2 usage, 3 nothing received, 130 interrupted.\n\n\
         Durations: 1500ms, 30s, 5m, 1h, 2d, 1h30m.\n\n\
         Backends: {}. To keep a URL with a password off the command line, use env:NAME for the \
         URL in an environment variable, or file:PATH for the URL in a file.",
        backends.join(", ")
    )
}

/// Durable mailboxes: send, receive, inspect, move and watch messages on any backend.
#[derive(Debug, Parser)]
#[command(name = "pillarbox", version, after_help = after_help(), max_term_width = 100)]
#[command(arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Cli {
    /// Returns the backend URLs of the arguments, to be resolved.
    pub(crate) fn urls(&mut self) -> Vec<&mut BackendUrl> {
        let target = match &mut self.command {
            Command::Move(args) => Some(&mut args.to_url),
            Command::Dlq(Dlq { command: DlqCommand::Replay(args) }) => args.to_url.as_mut(),
            _ => None,
        };
        self.global.url.iter_mut().chain(target).collect()
    }
}

/// Arguments of every command.
#[derive(Debug, Args)]
pub(crate) struct Global {
    /// URL of the backend; defaults to PILLARBOX_URL [default: sqlite:pillarbox.db].
    #[arg(long, short, global = true, env = "PILLARBOX_URL", hide_env = true)]
    pub(crate) url: Option<BackendUrl>,
    /// Write one JSON object per line, for scripts.
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Log more to stderr; repeat for even more.
    #[arg(long, short, global = true, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List the queues.
    Queues,
    /// Count the messages of queues, by state.
    Stats(Stats),
    /// Send one message, or one per line of a file.
    Send(Send),
    /// Receive messages, each with a lease; settle them with `ack`, `nack` or `extend`.
    Receive(Receive),
    /// Show messages without delivering them.
    Peek(Peek),
    /// Acknowledge deliveries, which deletes their messages.
    Ack(Ack),
    /// Return messages to the queue, to be delivered again.
    Nack(Nack),
    /// Extend the lease of a delivery, from now.
    Extend(Extend),
    /// Delete all messages of a queue.
    Purge(Purge),
    /// Write all messages of a queue as JSON lines, without removing them.
    Dump(Dump),
    /// Write all ready messages of a queue as JSON lines, and acknowledge them.
    Drain(Drain),
    /// Send messages that `dump` or `drain` has written, with the same ids.
    Load(Load),
    /// Move all messages to another queue, on this or another backend; safe to kill and run again.
    Move(Move),
    /// Manage dead letters: list, show, group, replay or discard them.
    Dlq(Dlq),
    /// Run evals: submit the samples of a dataset, collect results, report.
    Eval(Eval),
    /// Show or set the number of partitions of a queue, also while it is in use.
    Partitions(Partitions),
    /// Show or set the redrive policy of the backend for messages that were delivered too often.
    Redrive(Redrive),
    /// Watch all queues, full-screen.
    Top(Top),
    /// Benchmark the backend, on a temporary queue.
    Bench(Bench),
    /// Check the backend for problems, and show what it guarantees.
    Doctor(Doctor),
    /// Run 100 tasks on 4 workers, with failures, retries and dead letters.
    Demo(Demo),
    /// Write a completion script for a shell to stdout.
    Completions(Completions),
    /// Write the manual pages into a directory.
    Man(Man),
}

/// Parses an interval of at least 100 ms.
fn interval(text: &str) -> Result<Duration, String> {
    let interval = duration(text)?;
    if interval < Duration::from_millis(100) {
        Err("must be at least 100ms".to_owned())
    } else {
        Ok(interval)
    }
}

#[derive(Debug, Args)]
pub(crate) struct Stats {
    /// Names of queues; defaults to all.
    pub(crate) queues: Vec<QueueName>,
    /// Repeat at this interval until interrupted [default: 2s].
    #[arg(long, short, value_name = "INTERVAL", value_parser = interval, num_args = 0..=1,
          require_equals = true, default_missing_value = "2s")]
    pub(crate) watch: Option<Duration>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Prints the id. Sending an id that the queue already holds succeeds and stores nothing, and a note \
    says so: a send with an unknown outcome can be repeated with --id or --key."
)]
pub(crate) struct Send {
    /// The queue.
    pub(crate) queue: QueueName,
    /// The body; `-` reads it from standard input, unchanged.
    #[arg(
        required_unless_present = "file",
        conflicts_with = "file",
        allow_negative_numbers = true
    )]
    pub(crate) body: Option<String>,
    /// Send one message per line of this file, each line being a JSON body; `-` for standard input.
    #[arg(long, value_name = "FILE.jsonl", value_hint = ValueHint::FilePath)]
    pub(crate) file: Option<PathBuf>,
    /// Delay before the message becomes ready.
    #[arg(long, value_parser = duration, allow_hyphen_values = true, default_value = "0s", hide_default_value = true)]
    pub(crate) delay: Duration,
    /// Queue for replies.
    #[arg(long, value_name = "QUEUE")]
    pub(crate) reply_to: Option<QueueName>,
    /// Attribute; can be repeated.
    #[arg(long = "attr", value_name = "NAME=VALUE", value_parser = attribute)]
    pub(crate) attributes: Vec<(String, String)>,
    /// Group: messages of a group keep their order in a partitioned queue and in SQS FIFO queues.
    #[arg(long, value_name = "TEXT")]
    pub(crate) group: Option<String>,
    /// Deduplication id for SQS FIFO queues, instead of the message id.
    #[arg(long, value_name = "TEXT")]
    pub(crate) deduplication: Option<String>,
    /// Message id, a UUID; defaults to a new one.
    #[arg(long, conflicts_with = "file")]
    pub(crate) id: Option<MessageId>,
    /// Derive the message id from this text, such as an order number.
    #[arg(long, conflicts_with_all = ["file", "id"], value_name = "TEXT")]
    pub(crate) key: Option<String>,
}

fn attribute(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("expected NAME=VALUE".to_owned()),
    }
}

#[derive(Debug, Args)]
pub(crate) struct Receive {
    /// The queue.
    pub(crate) queue: QueueName,
    /// Maximum number of messages.
    #[arg(long, short = 'n', default_value_t = 1, value_parser = at_least_one)]
    pub(crate) max: usize,
    /// Duration of the lease of each message.
    #[arg(long, value_parser = duration, allow_hyphen_values = true, default_value = "30s")]
    pub(crate) visibility: Duration,
    /// Time to wait for the first message.
    #[arg(long, short, value_parser = duration, allow_hyphen_values = true, default_value = "0s", hide_default_value = true)]
    pub(crate) wait: Duration,
    /// Acknowledge each message after printing it.
    #[arg(long)]
    pub(crate) ack: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Peek {
    /// The queue.
    pub(crate) queue: QueueName,
    /// Maximum number of messages.
    #[arg(long, short = 'n', default_value_t = 10, value_parser = at_least_one)]
    pub(crate) max: usize,
}

fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("must be at least 1".to_owned()),
        Ok(number) => Ok(number),
        Err(_) => Err("expected an integer of at least 1".to_owned()),
    }
}

#[derive(Debug, Args)]
pub(crate) struct Ack {
    /// The queue.
    pub(crate) queue: QueueName,
    /// Receipts, as `receive` prints them.
    #[arg(required = true, value_name = "RECEIPT")]
    pub(crate) receipts: Vec<Receipt>,
}

#[derive(Debug, Args)]
pub(crate) struct Nack {
    /// The queue.
    pub(crate) queue: QueueName,
    /// Receipts, as `receive` prints them.
    #[arg(required = true, value_name = "RECEIPT")]
    pub(crate) receipts: Vec<Receipt>,
    /// Delay before the messages become ready again.
    #[arg(long, value_parser = duration, allow_hyphen_values = true, default_value = "0s", hide_default_value = true)]
    pub(crate) delay: Duration,
}

#[derive(Debug, Args)]
pub(crate) struct Extend {
    /// The queue.
    pub(crate) queue: QueueName,
    /// A receipt, as `receive` prints it.
    pub(crate) receipt: Receipt,
    /// Duration of the lease, from now.
    #[arg(value_parser = duration)]
    pub(crate) duration: Duration,
}

#[derive(Debug, Args)]
pub(crate) struct Purge {
    /// The queue.
    pub(crate) queue: QueueName,
    /// Do not ask for confirmation.
    #[arg(long, short)]
    pub(crate) yes: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Messages are not moved. With more partitions, new messages are sent to all of them; with \
    fewer, the removed partitions are received from until they are empty. Programs that use the queue \
    pick up the change within seconds."
)]
pub(crate) struct Partitions {
    /// The queue.
    pub(crate) queue: QueueName,
    /// New number of partitions; without it, show the current number.
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) number: Option<u32>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "SQS only. Messages that the backend moves arrive unchanged, without an error. Dead letters of a \
    worker's own policy have the error, and need no redrive policy."
)]
pub(crate) struct Redrive {
    /// The queue.
    pub(crate) queue: QueueName,
    /// Queue that messages are moved to: its name, or the ARN of a queue of another account or region.
    #[arg(long, value_name = "QUEUE", requires = "after")]
    pub(crate) to: Option<String>,
    /// Number of deliveries after which a message is moved.
    #[arg(long, value_name = "DELIVERIES", requires = "to",
        value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) after: Option<u32>,
    /// Remove the redrive policy.
    #[arg(long, conflicts_with = "to")]
    pub(crate) off: bool,
}

/// Output file of a command.
#[derive(Debug, Args)]
pub(crate) struct ToFile {
    /// Write to this file instead of stdout; it must not exist.
    #[arg(long, short, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) output: Option<PathBuf>,
    /// Permissions of the new file.
    #[arg(long, value_name = "WHO", default_value = "private")]
    pub(crate) permissions: Permissions,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Includes messages in every state. Bodies are preserved exactly, so that `load` restores \
    them. Messages that are sent or settled while it runs may or may not be included."
)]
pub(crate) struct Dump {
    /// The queue.
    pub(crate) queue: QueueName,
    #[command(flatten)]
    pub(crate) file: ToFile,
}

#[derive(Debug, Args)]
#[command(
    after_help = "A message is acknowledged after its line is written, and, for a file, is on disk: if `drain` is \
    killed and run again, it may write a message twice, but loses none. Messages in flight or \
    delayed stay."
)]
pub(crate) struct Drain {
    /// The queue.
    pub(crate) queue: QueueName,
    /// Maximum number of messages; defaults to all.
    #[arg(long, short = 'n', value_parser = at_least_one)]
    pub(crate) max: Option<usize>,
    /// Duration of the lease of a message while it is written.
    #[arg(long, value_parser = duration, allow_hyphen_values = true, default_value = "5m")]
    pub(crate) visibility: Duration,
    #[command(flatten)]
    pub(crate) file: ToFile,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Each line is an object with `body`, and optionally `body_encoding` (json, text or base64; \
    defaults to json), `id`, `attributes`, `reply_to`, `enqueued_at`, and `until`, the time at which \
    the message becomes ready. A file is checked as a whole before anything is sent. A line whose \
    id the queue already holds is not stored again, so an interrupted load can be run again."
)]
pub(crate) struct Load {
    /// The queue.
    pub(crate) queue: QueueName,
    /// The file; defaults to standard input, as does `-`.
    #[arg(value_hint = ValueHint::FilePath)]
    pub(crate) file: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Each message is received, sent to the destination with its id, attributes, reply address and \
    send time, and then acknowledged. If it is killed and run again, no message is lost or \
    duplicated: a message that the destination still holds is not stored again. (One that was \
    consumed there in the meantime would be; stop consumers of the destination until the move is \
    done, or make them idempotent.) Delivery counts start again.

It ends when the queue is empty. It waits for messages in flight or delayed, unless --no-wait is \
    given."
)]
pub(crate) struct Move {
    /// The queue.
    pub(crate) queue: QueueName,
    /// The backend to move to.
    #[arg(value_name = "DEST-URL")]
    pub(crate) to_url: BackendUrl,
    /// The queue to move to.
    #[arg(value_name = "DEST-QUEUE")]
    pub(crate) to_queue: QueueName,
    /// Maximum number of messages; defaults to all.
    #[arg(long, short = 'n', value_parser = at_least_one)]
    pub(crate) max: Option<usize>,
    /// End when no message is ready, instead of waiting for messages in flight or delayed.
    #[arg(long, conflicts_with = "follow")]
    pub(crate) no_wait: bool,
    /// Keep moving new messages until interrupted.
    #[arg(long)]
    pub(crate) follow: bool,
    /// Duration of the lease of a message while it is copied.
    #[arg(long, value_parser = duration, allow_hyphen_values = true, default_value = "30s")]
    pub(crate) visibility: Duration,
}

#[derive(Debug, Args)]
pub(crate) struct Top {
    /// Names of queues; defaults to all.
    pub(crate) queues: Vec<QueueName>,
    /// Interval between counts.
    #[arg(long, short, value_parser = duration, allow_hyphen_values = true, default_value = "1s")]
    pub(crate) interval: Duration,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Uses a temporary queue and purges it at the end. Measures the whole path of a message: send, \
    receive and acknowledge, each with a separate call. Run it alongside your load to see the \
    remaining capacity, or alone to see the total."
)]
pub(crate) struct Bench {
    /// Number of concurrent callers.
    #[arg(long, short, default_value_t = 16, value_parser = at_least_one)]
    pub(crate) callers: usize,
    /// Number of messages per call.
    #[arg(long, short, default_value_t = 1, value_parser = at_least_one)]
    pub(crate) batch: usize,
    /// Size of a body, in bytes.
    #[arg(long, short, default_value_t = 256)]
    pub(crate) size: usize,
    /// Duration of the benchmark.
    #[arg(long, short, value_parser = duration, allow_hyphen_values = true, default_value = "5s")]
    pub(crate) duration: Duration,
}

#[derive(Debug, Args)]
pub(crate) struct Doctor {
    /// Repair problems where possible. No message is deleted.
    #[arg(long)]
    pub(crate) fix: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Without --url it creates a SQLite file in the temporary directory, and keeps it for inspection. \
    The queues are `demo` and `demo-dlq`; they must be empty."
)]
pub(crate) struct Demo {
    /// Number of tasks.
    #[arg(long, default_value_t = 100, value_parser = at_least_one)]
    pub(crate) tasks: usize,
    /// Number of workers.
    #[arg(long, default_value_t = 4, value_parser = at_least_one)]
    pub(crate) workers: usize,
    /// Number of deliveries after which a task that fails becomes a dead letter.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_deliveries: u32,
    /// Seed that determines which tasks fail.
    #[arg(long, default_value_t = 7)]
    pub(crate) seed: u64,
    /// Run ten times as fast.
    #[arg(long)]
    pub(crate) fast: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Completions {
    /// The shell.
    pub(crate) shell: Shell,
}

#[derive(Debug, Args)]
pub(crate) struct Man {
    /// The directory; created if needed.
    #[arg(value_hint = ValueHint::DirPath)]
    pub(crate) directory: PathBuf,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    /// The README and all pages of docs/.
    fn pages() -> Vec<(String, String)> {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let docs = std::fs::read_dir(root.join("docs")).unwrap();
        let mut paths: Vec<_> = docs.map(|entry| entry.unwrap().path()).collect();
        paths.retain(|path| path.extension().is_some_and(|end| end == "md"));
        paths.push(root.join("README.md"));
        let name = |path: &PathBuf| path.file_name().unwrap().display().to_string();
        paths.iter().map(|path| (name(path), std::fs::read_to_string(path).unwrap())).collect()
    }

    /// Returns the commands of a page: those in code blocks, and those in the text, which may be incomplete.
    fn commands(text: &str) -> (Vec<String>, Vec<String>) {
        let (mut blocks, mut inline) = (String::new(), Vec::new());
        let mut inside = None;
        for line in text.lines() {
            match (inside, line.trim_start().strip_prefix("```")) {
                (Some(_), Some(_)) => inside = None,
                (None, Some(language)) => inside = Some(language),
                (Some("console" | "sh" | "text"), None) => {
                    blocks += line.strip_prefix("$ ").unwrap_or(line);
                    blocks.push('\n');
                }
                (Some(_), None) => {}
                (None, None) => inline.extend(line.split('`').skip(1).step_by(2)),
            }
        }
        let blocks = blocks.replace("\\\n", " ");
        let is_one = |line: &&str| line.starts_with("pillarbox ") && !line.contains(" = ");
        let blocks = blocks.lines().filter(is_one).map(str::to_owned).collect();
        (blocks, inline.into_iter().filter(is_one).map(str::to_owned).collect())
    }

    /// Parses a command up to where a shell would see its end.
    fn parse(cli: &clap::Command, line: &str) -> Result<(), clap::Error> {
        let words = shlex::split(line).unwrap_or_else(|| panic!("no words: {line}"));
        let words =
            words.into_iter().take_while(|word| !matches!(&word[..], "|" | ">" | "<" | "&&"));
        let mut words: Vec<_> = words.collect();
        // A `;` is at the end of its word.
        if let Some(end) = words.iter().position(|word| word.ends_with(';')) {
            words.truncate(end + 1);
            words[end].pop();
        }
        cli.clone().try_get_matches_from(words).map(drop)
    }

    #[test]
    fn every_command_in_the_documentation_is_valid() {
        use clap::error::ErrorKind as Kind;
        let cli = Cli::command();
        let (mut checked, mut wrong) = (0, Vec::new());
        for (page, text) in pages() {
            let (blocks, inline) = commands(&text);
            let inline = inline.iter().map(|line| (line, true));
            for (line, in_text) in blocks.iter().map(|line| (line, false)).chain(inline) {
                checked += 1;
                let Err(error) = parse(&cli, line) else { continue };
                let is_placeholder = |word: &str| {
                    let is_name = word.len() > 1 && word.chars().all(|c| c.is_ascii_uppercase());
                    word.contains('…') || is_name
                };
                let allowed = match error.kind() {
                    Kind::DisplayHelp => true,
                    // The text names a command without its arguments.
                    Kind::MissingRequiredArgument
                    | Kind::MissingSubcommand
                    | Kind::DisplayHelpOnMissingArgumentOrSubcommand => in_text,
                    Kind::ValueValidation | Kind::InvalidSubcommand => {
                        line.split(' ').any(is_placeholder)
                    }
                    _ => false,
                };
                if !allowed {
                    wrong.push(format!("{page}: {line}\n{error}"));
                }
            }
        }
        assert!(checked > 100, "{checked} commands");
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    #[test]
    fn every_command_and_argument_has_help() {
        fn check(command: &clap::Command) {
            for command in command.get_subcommands() {
                assert!(command.get_about().is_some(), "{}", command.get_name());
                for argument in command.get_arguments() {
                    assert!(argument.get_help().is_some(), "{} {argument}", command.get_name());
                }
                check(command);
            }
        }
        check(&Cli::command());
    }

    #[test]
    fn attributes_are_names_and_values() {
        assert_eq!(attribute("a=b=c"), Ok(("a".to_owned(), "b=c".to_owned())));
        assert_eq!(attribute("a="), Ok(("a".to_owned(), String::new())));
        assert!(attribute("=b").is_err() && attribute("ab").is_err());
    }
}
