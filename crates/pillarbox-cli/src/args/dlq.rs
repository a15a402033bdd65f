//! What can be said to `pillarbox dlq`.

use std::num::NonZeroU32;
use std::str::FromStr;
use std::time::Duration;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Subcommand};
use pillarbox::runtime::FailureKind;
use pillarbox::{MessageId, QueueName};

use super::{at_least_one, duration};
use crate::json_path::JsonPath;
use crate::url::BackendUrl;

/// How `--json-path` is written.
const JSON_PATHS: &str = "\
--json-path EXPR is a path to one value of a JSON body, and perhaps what that should be:
  $.customer.id=42    a number
  $.tenant!=acme      text; \"42\" in quotes is text too
  $.items[0].sku=\"A\"  the first item of a list
  $[\"odd name\"]       is there, whatever it is
  $.amount>100        also >= < <=, between two numbers or two texts
What is not there fulfils none of them. Quote it for the shell: --json-path '$.amount>100'.";

#[derive(Debug, Args)]
pub(crate) struct Dlq {
    #[command(subcommand)]
    pub(crate) command: DlqCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum DlqCommand {
    /// List dead letters: what failed, when, how often, and why.
    List(DlqList),
    /// Show one dead letter in full.
    Show(DlqShow),
    /// Group dead letters by what went wrong; all queues that end in `-dlq` if none is named.
    Stats(DlqStats),
    /// Send messages back to where they came from; may be killed and run again.
    Replay(DlqReplay),
    /// Delete dead letters.
    Discard(DlqDiscard),
}

/// Which dead letters are meant. Several must all agree.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Filters, which must all agree")]
pub(crate) struct Filters {
    /// Errors whose type has this in its name, such as OutOfStock.
    #[arg(long, value_name = "TEXT", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) error_type: Option<String>,
    /// Failures of this kind.
    #[arg(long, value_name = "KIND", value_parser = kinds())]
    pub(crate) kind: Option<FailureKind>,
    /// Messages that came from this queue.
    #[arg(long, value_name = "QUEUE")]
    pub(crate) source: Option<QueueName>,
    /// Dead letters for so long, or longer.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) older: Option<Duration>,
    /// Dead letters for less than this.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) newer: Option<Duration>,
    /// This text in the error, in what it was caused by, or in the body; in capitals or not.
    #[arg(long, value_name = "TEXT", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) text: Option<String>,
    /// The message of this id, or the dead letter of this id; may be given several times.
    #[arg(long = "id", value_name = "ID")]
    pub(crate) ids: Vec<MessageId>,
    /// A value in a JSON body, see below; may be given several times.
    #[arg(long = "json-path", value_name = "EXPR")]
    pub(crate) json_paths: Vec<JsonPath>,
    /// Messages that were replayed before.
    #[arg(long, conflicts_with = "not_replayed")]
    pub(crate) replayed: bool,
    /// Messages that were never replayed.
    #[arg(long)]
    pub(crate) not_replayed: bool,
}

#[derive(Debug, Args)]
#[command(after_help = JSON_PATHS)]
pub(crate) struct DlqList {
    /// The queue of dead letters.
    pub(crate) queue: QueueName,
    /// The most to show.
    #[arg(long, short = 'n', default_value_t = 20, value_parser = at_least_one)]
    pub(crate) max: usize,
    #[command(flatten)]
    pub(crate) filters: Filters,
}

#[derive(Debug, Args)]
pub(crate) struct DlqShow {
    /// The queue of dead letters.
    pub(crate) queue: QueueName,
    /// The id of the message, or that of the dead letter itself.
    pub(crate) id: MessageId,
    /// Write the body of the message, and nothing else, to the byte.
    #[arg(long, conflicts_with = "json")]
    pub(crate) body: bool,
}

#[derive(Debug, Args)]
#[command(after_help = JSON_PATHS)]
pub(crate) struct DlqStats {
    /// Queues of dead letters; a line for each queue that ends in `-dlq` if none is named.
    pub(crate) queues: Vec<QueueName>,
    /// The most errors to show of a queue.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = at_least_one)]
    pub(crate) top: usize,
    /// End with exit code 1 if a queue holds more dead letters than this.
    #[arg(long, value_name = "N")]
    pub(crate) fail_over: Option<u64>,
    /// End with exit code 1 if a queue holds dead letters that have been one for longer than this.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) fail_older: Option<Duration>,
    #[command(flatten)]
    pub(crate) filters: Filters,
}

#[derive(Debug, Args)]
#[command(after_help = format!(
    "A message goes back with its body, attributes, reply address and time of sending, and its dead \
    letter is deleted then. Each replay has an id of its own; the attribute pillarbox.original_id has the \
    first one. Killed at any moment and run again, it loses nothing; what was sent just before is sent \
    again under the id that this replay had, which changes nothing while its queue still holds it. Dead letters that are not meant stay, in their order.\n\nWithout a filter or --max it asks; --yes \
    does not.\n\n{JSON_PATHS}"
))]
pub(crate) struct DlqReplay {
    /// The queue of dead letters.
    pub(crate) queue: QueueName,
    /// The most messages to replay; all if not given.
    #[arg(long, short = 'n', value_parser = at_least_one)]
    pub(crate) max: Option<usize>,
    /// No more than so many in a time, evenly: 50/s, 3000/m or 100/h.
    #[arg(long)]
    pub(crate) rate: Option<Rate>,
    /// Wait for dead letters that are delayed, if they become ready within this time: those that a consumer
    /// keeps, or has failed on. Defaults to 1h if no time is given.
    #[arg(long, value_name = "DURATION", value_parser = duration, num_args = 0..=1,
          require_equals = true, default_missing_value = "1h")]
    pub(crate) delayed: Option<Duration>,
    /// Only say what would be replayed, and change nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Leave messages that were replayed so often before.
    #[arg(long, value_name = "N", default_value_t = 3,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_replays: u32,
    /// Replay to this queue, rather than to where the messages came from.
    #[arg(long, value_name = "QUEUE")]
    pub(crate) to: Option<QueueName>,
    /// Replay to this backend, rather than to that of the dead letters; needed if they came from another.
    #[arg(long, value_name = "URL")]
    pub(crate) to_url: Option<BackendUrl>,
    /// Do not ask.
    #[arg(long, short)]
    pub(crate) yes: bool,
    #[command(flatten)]
    pub(crate) filters: Filters,
}

#[derive(Debug, Args)]
#[command(after_help = format!(
    "What cannot be read as a dead letter is never deleted by it; `peek` shows such messages, and `purge` \
    deletes all there are. Dead letters that are in flight stay, and so do those that are delayed, unless --delayed waits for them.\n\n{JSON_PATHS}"
))]
pub(crate) struct DlqDiscard {
    /// The queue of dead letters.
    pub(crate) queue: QueueName,
    /// The most to delete; all if not given.
    #[arg(long, short = 'n', value_parser = at_least_one)]
    pub(crate) max: Option<usize>,
    /// Wait for dead letters that are delayed, if they become ready within this time: those that a consumer
    /// keeps, or has failed on. Defaults to 1h if no time is given.
    #[arg(long, value_name = "DURATION", value_parser = duration, num_args = 0..=1,
          require_equals = true, default_missing_value = "1h")]
    pub(crate) delayed: Option<Duration>,
    /// Only say what would be deleted, and change nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Do not ask.
    #[arg(long, short)]
    pub(crate) yes: bool,
    #[command(flatten)]
    pub(crate) filters: Filters,
}

/// The names of the kinds of failures.
fn kinds() -> impl clap::builder::TypedValueParser<Value = FailureKind> {
    use clap::builder::{PossibleValuesParser, TypedValueParser};
    PossibleValuesParser::new(FailureKind::all().map(FailureKind::as_str))
        .try_map(|name| FailureKind::named(&name).ok_or("no such kind"))
}

/// How many in which time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rate {
    pub(crate) number: NonZeroU32,
    pub(crate) per: Duration,
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "write it as 50/s, 3000/m or 100/h".to_owned();
        let (number, unit) = text.split_once('/').ok_or_else(wrong)?;
        let per = match unit {
            "s" => 1,
            "m" => 60,
            "h" => 3600,
            _ => return Err(wrong()),
        };
        if !number.bytes().all(|byte| byte.is_ascii_digit()) || number.is_empty() {
            return Err(wrong());
        }
        match number.parse::<u32>().map(NonZeroU32::new) {
            Ok(Some(number)) => Ok(Self { number, per: Duration::from_secs(per) }),
            Ok(None) => Err("nothing would ever be replayed; at least 1".to_owned()),
            Err(_) => Err("that is as good as no limit; leave it out".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_a_number_in_a_time() {
        let rate = |text: &str| {
            let rate: Result<Rate, String> = text.parse();
            rate.map(|rate| (rate.number.get(), rate.per.as_secs()))
        };
        assert_eq!(rate("50/s"), Ok((50, 1)));
        assert_eq!([rate("3000/m"), rate("100/h")], [Ok((3000, 60)), Ok((100, 3600))]);
        for text in ["50", "50/", "/s", "50/d", "50/sec", "5.5/s", "-5/s", "+5/s", "a/s", ""] {
            assert_eq!(rate(text), Err("write it as 50/s, 3000/m or 100/h".to_owned()), "{text}");
        }
        assert!(rate("0/s").is_err() && rate("99999999999/s").is_err());
    }
}
