//! Splitting batches by partition and by size.

use std::collections::BTreeMap;

use pillarbox_core::Outgoing;

use crate::batcher::MAX_SENT_BYTES;
use crate::failure::Result;
use crate::format;
use crate::partition_layout::PartitionNumber;

/// Outcome of each entry of a batch.
pub(crate) type Outcomes<T> = Vec<Result<T>>;

/// Returns the answers of entries that shared a call, or its failure for each of them.
pub(super) fn outcome_of_each<T>(answers: Result<Vec<T>>, entries: usize) -> Outcomes<T> {
    match answers {
        Ok(answers) => answers.into_iter().map(Ok).collect(),
        Err(failure) => std::iter::repeat_n(failure, entries).map(Err).collect(),
    }
}

/// The entries of a batch that go to one partition.
pub(super) type Part<E> = (PartitionNumber, Vec<E>);

/// Splits a batch by partition. [`Order::restore`] puts the outcomes of the parts into the order of the batch.
pub(super) fn split<E>(batch: Vec<E>, numbers: &[PartitionNumber]) -> (Vec<Part<E>>, Order) {
    if let Some(first) = numbers.first()
        && numbers.iter().all(|number| number == first)
    {
        return (vec![(*first, batch)], Order(None));
    }
    let mut parts: BTreeMap<PartitionNumber, (Vec<usize>, Vec<E>)> = BTreeMap::new();
    for (index, (entry, number)) in batch.into_iter().zip(numbers).enumerate() {
        let (indices, entries) = parts.entry(*number).or_default();
        indices.push(index);
        entries.push(entry);
    }
    let (indices, parts): (Vec<_>, Vec<_>) =
        parts.into_iter().map(|(number, (indices, part))| (indices, (number, part))).unzip();
    (parts, Order(Some(indices.concat())))
}

/// Index of each entry in the batch, part after part. `None` if there is one part, in the order of the batch.
pub(super) struct Order(Option<Vec<usize>>);

impl Order {
    /// Returns the outcomes of all parts in the order of the batch.
    pub(super) fn restore<T>(self, outcomes: Vec<Outcomes<T>>) -> Outcomes<T> {
        let outcomes = outcomes.into_iter().flatten();
        let Some(indices) = self.0 else { return outcomes.collect() };
        let mut in_order: Vec<_> = indices.into_iter().zip(outcomes).collect();
        in_order.sort_unstable_by_key(|(index, _)| *index);
        in_order.into_iter().map(|(_, outcome)| outcome).collect()
    }
}

/// Splits a batch into chunks of at most [`MAX_SENT_BYTES`], or of a single message. Most often there is only one.
pub(super) fn chunks(mut batch: Vec<Outgoing>) -> Vec<Vec<Outgoing>> {
    let mut chunks = Vec::new();
    loop {
        let mut bytes = 0;
        let mut fits = |message: &Outgoing| {
            bytes += format::size_of(message);
            bytes <= MAX_SENT_BYTES
        };
        // A single message may be larger.
        let end = batch.iter().take_while(|message| fits(message)).count().max(1);
        if end >= batch.len() {
            chunks.push(batch);
            return chunks;
        }
        let rest = batch.split_off(end);
        chunks.push(std::mem::replace(&mut batch, rest));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Failure;

    #[test]
    fn a_batch_too_large_for_one_call_is_split() {
        let of = |sizes: &[usize]| {
            let body = bytes::Bytes::from(vec![0; 2000 << 10]);
            let batch = sizes.iter().map(|size| Outgoing::new(body.slice(..size << 10))).collect();
            chunks(batch).iter().map(Vec::len).collect::<Vec<_>>()
        };
        assert_eq!(of(&[]), [0]);
        assert_eq!(of(&[1, 2, 3]), [3]);
        assert_eq!(of(&[1000, 24, 1, 2000, 2000, 2]), [2, 1, 1, 1, 1]);
    }

    #[test]
    fn outcomes_come_back_in_the_order_of_their_entries() {
        let batch: Vec<_> = (0..100_u32).collect();
        let numbers: Vec<_> = batch.iter().map(|n| (n * n % 7) as PartitionNumber).collect();
        let (parts, order) = split(batch, &numbers);
        let outcomes = parts.into_iter().map(|(number, entries)| {
            assert!(entries.iter().all(|n| n * n % 7 == u32::from(number)));
            let count = entries.len();
            outcome_of_each(if number == 4 { Err(Failure::Closed) } else { Ok(entries) }, count)
        });
        let outcomes = order.restore(outcomes.collect());
        assert_eq!(outcomes.len(), 100);
        for (n, outcome) in outcomes.into_iter().enumerate() {
            match outcome {
                Ok(entry) => assert_eq!(entry as usize, n),
                Err(_) => assert_eq!(n * n % 7, 4),
            }
        }
    }
}
