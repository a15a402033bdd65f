//! What the log writes.
//!
//! A batch is a header and records. The header is the length of the records in bytes, 0 where the
//! log ends, and their checksum. A record is a letter for what happened, the id of the message, and
//! what more there is to know.

use pillarbox_core::{MessageId, Nonce};

/// Bytes before the records of a batch.
const HEADER: usize = 12;

/// The records of one batch, in one piece that is used again for the next.
#[derive(Debug)]
pub(super) struct Batch {
    bytes: Vec<u8>,
}

impl Batch {
    pub(super) fn new() -> Self {
        Self { bytes: vec![0; HEADER] }
    }

    pub(super) fn send(&mut self, id: MessageId, body: &[u8]) {
        self.record(b'S', id);
        self.bytes.extend_from_slice(&(body.len() as u32).to_le_bytes());
        self.bytes.extend_from_slice(body);
    }

    pub(super) fn receive(&mut self, id: MessageId, nonce: Nonce, deadline: u64) {
        self.record(b'R', id);
        self.bytes.extend_from_slice(nonce.as_bytes());
        self.bytes.extend_from_slice(&deadline.to_le_bytes());
    }

    pub(super) fn acknowledge(&mut self, id: MessageId) {
        self.record(b'A', id);
    }

    /// A message that was received by nobody.
    pub(super) fn release(&mut self, id: MessageId) {
        self.record(b'L', id);
    }

    fn record(&mut self, kind: u8, id: MessageId) {
        self.bytes.push(kind);
        self.bytes.extend_from_slice(id.as_bytes());
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bytes.len() == HEADER
    }

    /// The whole batch with its header, ready to be written.
    pub(super) fn seal(&mut self) -> &[u8] {
        let (header, records) = self.bytes.split_at_mut(HEADER);
        header[..4].copy_from_slice(&(records.len() as u32).to_le_bytes());
        header[4..].copy_from_slice(&checksum(records).to_le_bytes());
        &self.bytes
    }

    /// Begins the next batch.
    pub(super) fn clear(&mut self) {
        self.bytes.truncate(HEADER);
    }
}

/// Tells a batch that was written whole from one that was not. No more than that, and quick.
fn checksum(bytes: &[u8]) -> u64 {
    let mix = |sum: u64, word: u64| (sum.rotate_left(5) ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let (words, rest) = bytes.as_chunks::<8>();
    let sum = words.iter().fold(1, |sum, word| mix(sum, u64::from_le_bytes(*word)));
    rest.iter().fold(sum, |sum, byte| mix(sum, u64::from(*byte)))
}

/// Reads a log back, as far as it is whole. Says what happened in order, and with which body.
#[cfg(test)]
pub(super) fn read(log: &[u8]) -> Vec<(char, [u8; 16], Vec<u8>)> {
    fn take<'a>(from: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = from.split_at_checked(length)?;
        *from = rest;
        Some(taken)
    }
    fn number(from: &mut &[u8]) -> Option<usize> {
        Some(u32::from_le_bytes(take(from, 4)?.try_into().unwrap()) as usize)
    }
    fn batch<'a>(from: &mut &'a [u8]) -> Option<&'a [u8]> {
        let length = number(from).filter(|length| *length > 0)?;
        let sum = take(from, 8)?;
        take(from, length).filter(|records| checksum(records).to_le_bytes() == sum)
    }
    fn record(from: &mut &[u8]) -> Option<(char, [u8; 16], Vec<u8>)> {
        let kind = take(from, 1)?[0];
        let id = take(from, 16)?.try_into().unwrap();
        let length = match kind {
            b'S' => number(from)?,
            b'R' => 20,
            _ => 0,
        };
        let rest = take(from, length)?.to_vec();
        Some((kind.into(), id, rest))
    }
    let mut log = log;
    let mut records = Vec::new();
    while let Some(mut batch) = batch(&mut log) {
        records.extend(std::iter::from_fn(|| record(&mut batch)));
    }
    records
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_reads_as_it_was_written_and_a_torn_one_not_at_all() {
        let [first, second] = ["1", "2"].map(MessageId::from_key);
        let mut batch = Batch::new();
        batch.send(first, b"body");
        batch.acknowledge(first);
        let mut log = batch.seal().to_vec();
        batch.clear();
        assert!(batch.is_empty());
        batch.send(second, b"");
        log.extend_from_slice(batch.seal());

        let [first, second] = [first, second].map(|id| *id.as_bytes());
        let all = [('S', first, b"body".to_vec()), ('A', first, vec![]), ('S', second, vec![])];
        assert_eq!(read(&log), all);
        *log.last_mut().unwrap() ^= 1;
        assert_eq!(read(&log), all[..2]);
        assert_eq!(read(&[0; 100]), []);
    }
}
