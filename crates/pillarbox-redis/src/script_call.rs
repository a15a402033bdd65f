//! One call of a script. The client makes a command of it for each try.

use std::time::Duration;

use redis::Cmd;

use crate::caller::Caller;
use crate::scripts::Script;

/// Initial capacity of a command: a batch of ten small messages fits.
const ARGUMENTS: usize = 48;
const BYTES: usize = 4096;

/// A call of a script.
pub(crate) struct ScriptCall<'a, A> {
    script: &'a Script,
    keys: &'a [&'a str],
    common: Option<CommonArguments<'a>>,
    /// Adds the arguments after the common ones.
    arguments: A,
}

/// The first arguments of every script on the keys of a partition, see `header.lua`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CommonArguments<'a> {
    pub(crate) caller: &'a Caller,
    /// Time for which the answer is remembered.
    pub(crate) record_ttl: Duration,
    /// Milliseconds after which an unused queue is deleted, or 0.
    pub(crate) ttl: u64,
}

impl<'a, A: Fn(&mut Cmd)> ScriptCall<'a, A> {
    /// Creates a call of a script on the keys of a partition.
    pub(crate) fn of_partition(
        script: &'a Script,
        keys: &'a [&'a str; 4],
        common: CommonArguments<'a>,
        arguments: A,
    ) -> Self {
        Self { script, keys, common: Some(common), arguments }
    }

    /// Creates a call of a script that names its keys itself.
    pub(crate) fn with_own_keys(script: &'a Script, keys: &'a [&'a str], arguments: A) -> Self {
        Self { script, keys, common: None, arguments }
    }

    /// Returns whether an earlier call of the caller may still be on its way to the server.
    pub(crate) fn follows_unanswered(&self) -> bool {
        self.common.is_some_and(|common| common.caller.has_unanswered)
    }

    /// Returns the command of one try. It has the text of the script if `with_script`, or else its hash. `again`
    /// is whether this call, or an earlier one of the caller, may still be on its way to the server.
    pub(crate) fn command(&self, with_script: bool, again: bool) -> Cmd {
        let Self { script, keys, common, arguments } = self;
        let mut command = Cmd::with_capacity(ARGUMENTS, BYTES);
        command.arg(if with_script { "EVAL" } else { "EVALSHA" });
        command.arg(if with_script { &script.code } else { &script.hash });
        match common {
            None => {
                command.arg(keys.len()).arg(keys);
            }
            Some(CommonArguments { caller, record_ttl, ttl }) => {
                // The key of the caller, and once more to say `again`.
                let caller_keys = &[&caller.key, &caller.key][..if again { 2 } else { 1 }];
                command.arg(keys.len() + caller_keys.len()).arg(keys).arg(caller_keys);
                command.arg(format!("{:012}", caller.number));
                command.arg(record_ttl.as_millis() as u64).arg(ttl);
            }
        }
        arguments(&mut command);
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scripts;

    /// Returns the words of a command after the script.
    fn words(command: &Cmd) -> Vec<String> {
        let words = command.args_iter().skip(2).map(|word| match word {
            redis::Arg::Simple(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            _ => panic!("a cursor"),
        });
        words.collect()
    }

    #[test]
    fn a_call_that_may_be_on_its_way_names_its_caller_twice() {
        let caller = Caller { key: "c".into(), number: 7, has_unanswered: true };
        let common =
            CommonArguments { caller: &caller, record_ttl: Duration::from_secs(2), ttl: 0 };
        let keys = ["p", "i", "d", "m"];
        let add = |command: &mut Cmd| {
            command.arg("x");
        };
        let call = ScriptCall::of_partition(&scripts::LOOK, &keys, common, add);
        assert!(call.follows_unanswered());
        let common = ["000000000007", "2000", "0", "x"];
        let first = [&["5", "p", "i", "d", "m", "c"][..], &common].concat();
        assert_eq!(words(&call.command(false, false)), first);
        let again = [&["6", "p", "i", "d", "m", "c", "c"][..], &common].concat();
        assert_eq!(words(&call.command(true, true)), again);
    }

    #[test]
    fn a_call_with_own_keys_has_no_caller() {
        let call = ScriptCall::with_own_keys(&scripts::ENLISTED, &["m"], |_| ());
        assert!(!call.follows_unanswered());
        assert_eq!(words(&call.command(false, true)), ["1", "m"]);
    }
}
