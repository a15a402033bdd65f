//! What can be said on the command line.

mod dlq;
mod eval;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum, ValueHint};
use clap_complete::Shell;
use pillarbox::{MessageId, QueueName, Receipt};

pub(crate) use self::dlq::{
    Dlq, DlqCommand, DlqDiscard, DlqList, DlqReplay, DlqShow, DlqStats, Filters,
};
pub(crate) use self::eval::{
    Eval, EvalCollect, EvalCommand, EvalReport, EvalSubmit, Evaluator, Format, Limits,
};
use crate::output::time;
use crate::url::BackendUrl;

/// What is good to know of every command.
fn good_to_know() -> String {
    let backends: Vec<_> = pillarbox::url_forms().collect();
    format!(
        "Exit codes: 0 done, 1 error, 2 usage, 3 nothing received, 130 interrupted.\n\n\
         Durations: 1500ms, 30s, 5m, 1h, 2d, 1h30m.\n\n\
         Backends: {}. A URL with a password can be kept off the command line: env:NAME takes \
         the one in an environment variable, file:PATH the one in a file.",
        backends.join(", ")
    )
}

/// Durable mailboxes: send, receive, look, move and watch, on any backend.
#[derive(Debug, Parser)]
#[command(name = "pillarbox", version, after_help = good_to_know(), max_term_width = 100)]
#[command(arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Cli {
    /// The URLs that were given, each of which may say where it is to be found.
    pub(crate) fn urls(&mut self) -> Vec<&mut BackendUrl> {
        let target = match &mut self.command {
            Command::Move(args) => Some(&mut args.to_url),
            Command::Dlq(Dlq { command: DlqCommand::Replay(args) }) => args.to_url.as_mut(),
            _ => None,
        };
        self.global.url.iter_mut().chain(target).collect()
    }
}

/// What can be said to every command.
#[derive(Debug, Args)]
pub(crate) struct Global {
    /// The backend; without it, that of PILLARBOX_URL [default: sqlite:pillarbox.db].
    #[arg(long, short, global = true, env = "PILLARBOX_URL", hide_env = true)]
    pub(crate) url: Option<BackendUrl>,
    /// Write one JSON object per line, for scripts.
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Say more of what happens on stderr; twice for even more.
    #[arg(long, short, global = true, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List the queues.
    Queues,
    /// Count the messages of queues, by state.
    Stats(Stats),
    /// Send one message, or one for each line of a file.
    Send(Send),
    /// Receive messages, each under a lease; settle them by `ack`, `nack` or `extend`.
    Receive(Receive),
    /// Look at messages without delivering them.
    Peek(Peek),
    /// Acknowledge deliveries: their messages are deleted.
    Ack(Ack),
    /// Give messages back, to be delivered again.
    Nack(Nack),
    /// Let the lease of a delivery run for so long from now.
    Extend(Extend),
    /// Delete all messages of a queue.
    Purge(Purge),
    /// Write all messages of a queue as lines of JSON, and leave them where they are.
    Dump(Dump),
    /// Write all ready messages of a queue as lines of JSON, and acknowledge them.
    Drain(Drain),
    /// Send what `dump` or `drain` has written, under the same ids.
    Load(Load),
    /// Move all messages to another queue, on this backend or another; may be killed and run again.
    Move(Move),
    /// Look after dead letters: list, show, group, replay or discard them.
    Dlq(Dlq),
    /// Run evals: send the samples of a dataset to workers, collect their results, report.
    Eval(Eval),
    /// Say over how many partitions a queue is spread, or spread it over so many, while it is in use.
    Partitions(Partitions),
    /// Say where the backend itself moves messages that were delivered too often, or tell it to.
    Redrive(Redrive),
    /// Watch all queues, full-screen.
    Top(Top),
    /// Measure the backend, on a queue of its own.
    Bench(Bench),
    /// Look for what may be wrong with the backend, and say what it promises.
    Doctor(Doctor),
    /// Run 100 tasks on 4 workers, with failures, retries and dead letters.
    Demo(Demo),
    /// Write a completion script for a shell to stdout.
    Completions(Completions),
    /// Write the manual pages into a directory.
    Man(Man),
}

/// A duration on the command line.
fn duration(text: &str) -> Result<Duration, String> {
    time::parse(text)
}

/// How often something is done on the command line.
fn interval(text: &str) -> Result<Duration, String> {
    let interval = duration(text)?;
    if interval < Duration::from_millis(100) {
        Err("at least 100ms".to_owned())
    } else {
        Ok(interval)
    }
}

#[derive(Debug, Args)]
pub(crate) struct Stats {
    /// Which queues; all of them if none is named.
    pub(crate) queues: Vec<QueueName>,
    /// Count again every so often, until interrupted [default: 2s].
    #[arg(long, short, value_name = "EVERY", value_parser = interval, num_args = 0..=1,
          require_equals = true, default_missing_value = "2s")]
    pub(crate) watch: Option<Duration>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "The id is printed. Sending an id that the queue holds stores nothing and succeeds, so \
    that a send whose fate is unknown can be repeated with --id or --key."
)]
pub(crate) struct Send {
    /// The queue.
    pub(crate) queue: QueueName,
    /// The body; `-` takes all of standard input, as it is.
    #[arg(
        required_unless_present = "file",
        conflicts_with = "file",
        allow_negative_numbers = true
    )]
    pub(crate) body: Option<String>,
    /// Send one message for each line of this file, which is its body as JSON; `-` for standard input.
    #[arg(long, value_name = "FILE.jsonl", value_hint = ValueHint::FilePath)]
    pub(crate) file: Option<PathBuf>,
    /// Keep it invisible for so long.
    #[arg(long, value_parser = duration, default_value = "0s", hide_default_value = true)]
    pub(crate) delay: Duration,
    /// Where an answer should go: the name of a queue.
    #[arg(long, value_name = "QUEUE")]
    pub(crate) reply_to: Option<String>,
    /// An attribute; may be given several times.
    #[arg(long = "attr", value_name = "NAME=VALUE", value_parser = attribute)]
    pub(crate) attributes: Vec<(String, String)>,
    /// The group: messages of one group keep their order in a queue that is spread over partitions, and on
    /// FIFO queues of SQS.
    #[arg(long, value_name = "TEXT")]
    pub(crate) group: Option<String>,
    /// What it is known by if it is sent again, in place of its id: on FIFO queues of SQS.
    #[arg(long, value_name = "TEXT")]
    pub(crate) deduplication: Option<String>,
    /// The id, a UUID; a new one if it is not given.
    #[arg(long, conflicts_with = "file")]
    pub(crate) id: Option<MessageId>,
    /// The id that belongs to this text, always the same: one message per order number, say.
    #[arg(long, conflicts_with_all = ["file", "id"], value_name = "TEXT")]
    pub(crate) key: Option<String>,
}

fn attribute(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("write it as NAME=VALUE".to_owned()),
    }
}

#[derive(Debug, Args)]
pub(crate) struct Receive {
    /// The queue.
    pub(crate) queue: QueueName,
    /// The most messages to receive.
    #[arg(long, short = 'n', default_value_t = 1, value_parser = at_least_one)]
    pub(crate) max: usize,
    /// How long the lease on each message runs.
    #[arg(long, value_parser = duration, default_value = "30s")]
    pub(crate) visibility: Duration,
    /// How long to wait for a first message.
    #[arg(long, short, value_parser = duration, default_value = "0s", hide_default_value = true)]
    pub(crate) wait: Duration,
    /// Acknowledge each message once it is printed.
    #[arg(long)]
    pub(crate) ack: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Peek {
    /// The queue.
    pub(crate) queue: QueueName,
    /// The most messages to show.
    #[arg(long, short = 'n', default_value_t = 10, value_parser = at_least_one)]
    pub(crate) max: usize,
}

fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("at least 1".to_owned()),
        Ok(number) => Ok(number),
        Err(_) => Err("a whole number, at least 1".to_owned()),
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
    /// How long the messages stay invisible.
    #[arg(long, value_parser = duration, default_value = "0s", hide_default_value = true)]
    pub(crate) delay: Duration,
}

#[derive(Debug, Args)]
pub(crate) struct Extend {
    /// The queue.
    pub(crate) queue: QueueName,
    /// A receipt, as `receive` prints it.
    pub(crate) receipt: Receipt,
    /// How long the lease runs, from now.
    #[arg(value_parser = duration)]
    pub(crate) duration: Duration,
}

#[derive(Debug, Args)]
pub(crate) struct Purge {
    /// The queue.
    pub(crate) queue: QueueName,
    /// Do not ask.
    #[arg(long, short)]
    pub(crate) yes: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Messages stay where they are. With more partitions, new messages go to all of them; with \
    fewer, those that are no longer sent to are received from until they are empty. All programs that \
    use the queue learn of it by themselves, within seconds."
)]
pub(crate) struct Partitions {
    /// The queue.
    pub(crate) queue: QueueName,
    /// How many there shall be; without it, only says how many there are.
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) number: Option<u32>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "On SQS only. What the backend moves arrives as it was sent, without an error: dead letters of a \
    worker's own policy say more, and need no redrive."
)]
pub(crate) struct Redrive {
    /// The queue.
    pub(crate) queue: QueueName,
    /// The queue that messages are moved to: by its name or, elsewhere, its ARN.
    #[arg(long, value_name = "QUEUE", requires = "after")]
    pub(crate) to: Option<String>,
    /// How often a message is delivered before.
    #[arg(long, value_name = "DELIVERIES", requires = "to",
        value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) after: Option<u32>,
    /// Leaves messages where they are from now on.
    #[arg(long, conflicts_with = "to")]
    pub(crate) off: bool,
}

/// Who may read files that a command makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Permissions {
    /// Their owner alone.
    Private,
    /// Whoever the umask lets.
    Umask,
}

/// Where results go, if not to stdout.
#[derive(Debug, Args)]
pub(crate) struct ToFile {
    /// Write to this file, which must not be there yet, rather than to stdout.
    #[arg(long, short, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) output: Option<PathBuf>,
    /// Who may read the new file.
    #[arg(long, value_name = "WHOM", default_value = "private")]
    pub(crate) permissions: Permissions,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Shows messages in every state. Bodies are kept to the byte, so that `load` restores \
    them; what is sent or settled while it runs may be missed or shown."
)]
pub(crate) struct Dump {
    /// The queue.
    pub(crate) queue: QueueName,
    #[command(flatten)]
    pub(crate) file: ToFile,
}

#[derive(Debug, Args)]
#[command(
    after_help = "A message is acknowledged once its line is written, and if that goes to a file, once it is \
    on the disk: killed at any moment, `drain` may write a message twice when run again, and \
    loses none. Messages that are in flight or delayed stay."
)]
pub(crate) struct Drain {
    /// The queue.
    pub(crate) queue: QueueName,
    /// The most messages to take; all if not given.
    #[arg(long, short = 'n', value_parser = at_least_one)]
    pub(crate) max: Option<usize>,
    /// How long the lease on a message runs while it is written.
    #[arg(long, value_parser = duration, default_value = "5m")]
    pub(crate) visibility: Duration,
    #[command(flatten)]
    pub(crate) file: ToFile,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Each line is an object: `body` (and `body_encoding`: json, text or base64; json if it is \
    not given), and perhaps `id`, `attributes`, `reply_to`, `enqueued_at`, and `until`, \
    before which the message stays invisible. A file is checked as a whole before anything \
    is sent. A line whose id the queue holds is not stored again, so a load that was cut \
    short can be run again."
)]
pub(crate) struct Load {
    /// The queue.
    pub(crate) queue: QueueName,
    /// The file; standard input if it is `-` or not given.
    #[arg(value_hint = ValueHint::FilePath)]
    pub(crate) file: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Each message is received, sent to the destination under its id, with its attributes, \
    reply address and time of sending, and acknowledged then. Killed at any moment and run \
    again, it loses nothing, and makes no message twice: what the destination holds already \
    is not stored again. (A message that was already consumed there would be; keep consumers \
    off the destination until the move is done, or let them bear a duplicate.) Delivery \
    counts start again.

It ends when the queue is empty. Messages that are in flight or delayed are waited for; \
    --no-wait leaves them."
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
    /// The most messages to move; all if not given.
    #[arg(long, short = 'n', value_parser = at_least_one)]
    pub(crate) max: Option<usize>,
    /// End when no message is ready, rather than wait for those in flight or delayed.
    #[arg(long, conflicts_with = "follow")]
    pub(crate) no_wait: bool,
    /// Go on for ever: move what comes, until interrupted.
    #[arg(long)]
    pub(crate) follow: bool,
    /// How long the lease on a message runs while it is copied.
    #[arg(long, value_parser = duration, default_value = "30s")]
    pub(crate) visibility: Duration,
}

#[derive(Debug, Args)]
pub(crate) struct Top {
    /// Which queues; all of them if none is named.
    pub(crate) queues: Vec<QueueName>,
    /// How often to count.
    #[arg(long, short, value_parser = duration, default_value = "1s")]
    pub(crate) interval: Duration,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Uses a queue of its own and removes what is left in it. What is measured is the whole \
    way of a message: sent, received, acknowledged, each by a call of its own. Run it beside \
    your load to see what is left, or alone to see what there is."
)]
pub(crate) struct Bench {
    /// How many callers work at a time.
    #[arg(long, short, default_value_t = 16, value_parser = at_least_one)]
    pub(crate) callers: usize,
    /// How many messages a call carries.
    #[arg(long, short, default_value_t = 1, value_parser = at_least_one)]
    pub(crate) batch: usize,
    /// How long a body is, in bytes.
    #[arg(long, short, default_value_t = 256)]
    pub(crate) size: usize,
    /// How long to measure.
    #[arg(long, short, value_parser = duration, default_value = "5s")]
    pub(crate) duration: Duration,
}

#[derive(Debug, Args)]
pub(crate) struct Doctor {
    /// Repair what can be repaired. No message is deleted.
    #[arg(long)]
    pub(crate) fix: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Without --url it makes a file for temporary data, which stays, to look into. The queues \
    are `demo` and `demo-dlq`; they must be empty."
)]
pub(crate) struct Demo {
    /// How many tasks to send.
    #[arg(long, default_value_t = 100, value_parser = at_least_one)]
    pub(crate) tasks: usize,
    /// How many workers to run.
    #[arg(long, default_value_t = 4, value_parser = at_least_one)]
    pub(crate) workers: usize,
    /// Number of deliveries after which a task that fails becomes a dead letter.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_deliveries: u32,
    /// Chooses which tasks fail: the same number, the same failures.
    #[arg(long, default_value_t = 7)]
    pub(crate) seed: u64,
    /// Work ten times as fast.
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
    /// The directory, which is made if it is not there.
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

    /// The commands of a page: those in blocks, and those in the text, which may be a beginning only.
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

    /// What clap says of a command, up to where a shell would see its end.
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
    fn every_command_in_the_documentation_can_be_said() {
        use clap::error::ErrorKind as Kind;
        let cli = Cli::command();
        let (mut said, mut wrong) = (0, Vec::new());
        for (page, text) in pages() {
            let (blocks, inline) = commands(&text);
            let inline = inline.iter().map(|line| (line, true));
            for (line, in_text) in blocks.iter().map(|line| (line, false)).chain(inline) {
                said += 1;
                let Err(error) = parse(&cli, line) else { continue };
                let is_placeholder = |word: &str| {
                    let is_name = word.len() > 1 && word.chars().all(|c| c.is_ascii_uppercase());
                    word.contains('…') || is_name
                };
                let allowed = match error.kind() {
                    Kind::DisplayHelp => true,
                    // A command is named, not given.
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
        assert!(said > 100, "{said} commands");
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
