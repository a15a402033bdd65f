//! Arguments of `pillarbox dlq`.

use std::num::NonZeroU32;
use std::str::FromStr;
use std::time::Duration;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Subcommand};
use pillarbox::FailureKind;
use pillarbox::{MessageId, QueueName};

use super::{at_least_one, duration};
use crate::json_path::JsonPath;
use crate::url::BackendUrl;

/// Help for `--json-path`.
const JSON_PATHS: &str = "\
--json-path EXPR selects one value of a JSON body, and optionally compares it:
  $.customer.id=42    a number
  $.tenant!=acme      a string; \"42\" in quotes is a string too
  $.items[0].sku=\"A\"  the first item of an array
  $[\"odd name\"]       exists, with any value
  $.amount>100        also >= < <=, for two numbers or two strings
A missing value matches none of them. Quote it for the shell: --json-path '$.amount>100'.";

#[derive(Debug, Args)]
pub(crate) struct Dlq {
    #[command(subcommand)]
    pub(crate) command: DlqCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum DlqCommand {
    /// List dead letters, with time, number of deliveries and error.
    List(DlqList),
    /// Show one dead letter in full.
    Show(DlqShow),
    /// Group dead letters by error; defaults to all dead-letter queues.
    Stats(DlqStats),
    /// Send messages back to their queues; safe to kill and run again.
    Replay(DlqReplay),
    /// Delete dead letters.
    Discard(DlqDiscard),
}

/// Filters for dead letters, all of which must match.
#[derive(Debug, Clone, Default, PartialEq, Args)]
#[command(next_help_heading = "Filters (all must match)")]
pub(crate) struct Filters {
    /// Type of the error contains this text, such as OutOfStock.
    #[arg(long, value_name = "TEXT", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) error_type: Option<String>,
    /// Kind of failure.
    #[arg(long, value_name = "KIND", value_parser = kinds())]
    pub(crate) kind: Option<FailureKind>,
    /// Source queue of the message.
    #[arg(long, value_name = "QUEUE")]
    pub(crate) source: Option<QueueName>,
    /// At least this old, since it became a dead letter.
    #[arg(long, value_name = "DURATION", value_parser = duration, allow_hyphen_values = true)]
    pub(crate) older: Option<Duration>,
    /// Less than this old, since it became a dead letter.
    #[arg(long, value_name = "DURATION", value_parser = duration, allow_hyphen_values = true)]
    pub(crate) newer: Option<Duration>,
    /// Text in the error, in one of its causes, or in the body; ignores case.
    #[arg(long, value_name = "TEXT", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) text: Option<String>,
    /// Id of the message or of the dead letter; can be repeated.
    #[arg(long = "id", value_name = "ID")]
    pub(crate) ids: Vec<MessageId>,
    /// Condition on a JSON body, see below; can be repeated.
    #[arg(long = "json-path", value_name = "EXPR")]
    pub(crate) json_paths: Vec<JsonPath>,
    /// Replayed before.
    #[arg(long, conflicts_with = "not_replayed")]
    pub(crate) replayed: bool,
    /// Never replayed.
    #[arg(long)]
    pub(crate) not_replayed: bool,
}

#[derive(Debug, Args)]
#[command(after_help = JSON_PATHS)]
pub(crate) struct DlqList {
    /// Dead-letter queue.
    pub(crate) queue: QueueName,
    /// Maximum number of dead letters.
    #[arg(long, short = 'n', default_value_t = 20, value_parser = at_least_one)]
    pub(crate) max: usize,
    #[command(flatten)]
    pub(crate) filters: Filters,
}

#[derive(Debug, Args)]
pub(crate) struct DlqShow {
    /// Dead-letter queue.
    pub(crate) queue: QueueName,
    /// Id of the message or of the dead letter.
    pub(crate) id: MessageId,
    /// Write only the body of the message, unchanged.
    #[arg(long, conflicts_with = "json")]
    pub(crate) body: bool,
}

#[derive(Debug, Args)]
#[command(after_help = JSON_PATHS)]
pub(crate) struct DlqStats {
    /// Dead-letter queues; defaults to an overview of all queues with a default name, such as `orders-dlq`.
    pub(crate) queues: Vec<QueueName>,
    /// Maximum number of errors per queue.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = at_least_one)]
    pub(crate) top: usize,
    /// Exit with code 1 if a queue has more dead letters than this.
    #[arg(long, value_name = "N")]
    pub(crate) fail_over: Option<u64>,
    /// Exit with code 1 if a queue has dead letters that are at least this old.
    #[arg(long, value_name = "DURATION", value_parser = duration, allow_hyphen_values = true)]
    pub(crate) fail_older: Option<Duration>,
    #[command(flatten)]
    pub(crate) filters: Filters,
}

#[derive(Debug, Args)]
#[command(after_help = format!(
    "A message is sent with its body, attributes, reply address and send time, and then its dead letter is \
    deleted. Each replay has a new id; the attribute pillarbox.original_id has the first one. If it is killed \
    and run again, nothing is lost: a message that was sent just before is sent again with the same id, \
    which has no effect while the queue still holds it. Dead letters that do not match stay, in their \
    order.\n\nWithout a filter or --max it asks for confirmation, unless --yes is given.\n\n{JSON_PATHS}"
))]
pub(crate) struct DlqReplay {
    /// Dead-letter queue.
    pub(crate) queue: QueueName,
    /// Maximum number of messages; defaults to all.
    #[arg(long, short = 'n', value_parser = at_least_one)]
    pub(crate) max: Option<usize>,
    /// Maximum rate, evenly spread: 50/s, 3000/m or 100/h.
    #[arg(long)]
    pub(crate) rate: Option<Rate>,
    /// Wait for delayed dead letters that become ready within this time, such as those that a consumer
    /// keeps or has failed on. Defaults to 1h if no time is given.
    #[arg(long, value_name = "DURATION", value_parser = duration, num_args = 0..=1,
          require_equals = true, default_missing_value = "1h")]
    pub(crate) delayed: Option<Duration>,
    /// Show what would be replayed, without changing anything.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Skip messages that were replayed this many times.
    #[arg(long, value_name = "N", default_value_t = 3,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_replays: u32,
    /// Replay to this queue instead of the source queues.
    #[arg(long, value_name = "QUEUE")]
    pub(crate) to: Option<QueueName>,
    /// Replay to this backend instead of that of the dead letters; needed if they came from another.
    #[arg(long, value_name = "URL")]
    pub(crate) to_url: Option<BackendUrl>,
    /// Do not ask for confirmation.
    #[arg(long, short)]
    pub(crate) yes: bool,
    #[command(flatten)]
    pub(crate) filters: Filters,
}

#[derive(Debug, Args)]
#[command(after_help = format!(
    "Messages that are not valid dead letters are never discarded; `peek` shows them, and `purge` deletes \
    everything. Dead letters in flight stay, and so do delayed ones unless --delayed is given.\n\n{JSON_PATHS}"
))]
pub(crate) struct DlqDiscard {
    /// Dead-letter queue.
    pub(crate) queue: QueueName,
    /// Maximum number of dead letters; defaults to all.
    #[arg(long, short = 'n', value_parser = at_least_one)]
    pub(crate) max: Option<usize>,
    /// Wait for delayed dead letters that become ready within this time, such as those that a consumer
    /// keeps or has failed on. Defaults to 1h if no time is given.
    #[arg(long, value_name = "DURATION", value_parser = duration, num_args = 0..=1,
          require_equals = true, default_missing_value = "1h")]
    pub(crate) delayed: Option<Duration>,
    /// Show what would be discarded, without changing anything.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Do not ask for confirmation.
    #[arg(long, short)]
    pub(crate) yes: bool,
    #[command(flatten)]
    pub(crate) filters: Filters,
}

/// Parses the name of a kind of failure.
fn kinds() -> impl clap::builder::TypedValueParser<Value = FailureKind> {
    use clap::builder::{PossibleValuesParser, TypedValueParser};
    PossibleValuesParser::new(FailureKind::all().map(FailureKind::as_str))
        .try_map(|name| FailureKind::named(&name).ok_or("no such kind"))
}

/// Number of messages per time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rate {
    pub(crate) number: NonZeroU32,
    pub(crate) per: Duration,
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "expected a rate such as 50/s, 3000/m or 100/h".to_owned();
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
            Ok(None) => Err("must be at least 1".to_owned()),
            Err(_) => Err("too large; leave it out for no limit".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_a_number_per_time() {
        let rate = |text: &str| {
            let rate: Result<Rate, String> = text.parse();
            rate.map(|rate| (rate.number.get(), rate.per.as_secs()))
        };
        assert_eq!(rate("50/s"), Ok((50, 1)));
        assert_eq!([rate("3000/m"), rate("100/h")], [Ok((3000, 60)), Ok((100, 3600))]);
        let wrong = "expected a rate such as 50/s, 3000/m or 100/h";
        for text in ["50", "50/", "/s", "50/d", "50/sec", "5.5/s", "-5/s", "+5/s", "a/s", ""] {
            assert_eq!(rate(text), Err(wrong.to_owned()), "{text}");
        }
        assert!(rate("0/s").is_err() && rate("99999999999/s").is_err());
    }
}
