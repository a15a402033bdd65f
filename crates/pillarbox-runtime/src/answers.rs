//! What a batch was answered with, entry by entry.

use pillarbox_core::{Error, QueueName, Result};

/// An answer for each of so many entries: its own, or why nothing is known of any.
pub(crate) fn each<T: Clone>(
    answer: Result<Vec<Result<T>>>,
    expected: usize,
    queue: Option<&QueueName>,
    action: &'static str,
) -> Vec<Result<T>> {
    match answer {
        Ok(answers) if answers.len() == expected => answers,
        Ok(_) => {
            let cause = "it answered with a wrong number of results";
            vec![Err(Error::connection(queue, action, cause)); expected]
        }
        Err(error) => vec![Err(error); expected],
    }
}
