//! The results of a batch call, entry by entry.

use pillarbox_core::{Error, QueueName, Result};

/// Returns one result per entry of a batch call: its own, or the error of the whole call.
pub(crate) fn per_entry<T: Clone>(
    result: Result<Vec<Result<T>>>,
    entries: usize,
    queue: Option<&QueueName>,
    action: &'static str,
) -> Vec<Result<T>> {
    match result {
        Ok(results) if results.len() == entries => results,
        Ok(_) => {
            let cause = "it answered with a wrong number of results";
            vec![Err(Error::connection(queue, action, cause)); entries]
        }
        Err(error) => vec![Err(error); entries],
    }
}
