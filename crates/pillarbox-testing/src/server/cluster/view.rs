//! Views that the nodes of a cluster have of each other.

use super::SLOTS;

/// A node's view of all nodes.
#[derive(Debug)]
pub(super) struct View {
    pub(super) of: usize,
    pub(super) lines: Vec<Line>,
    pub(super) text: String,
}

impl View {
    pub(super) fn line(&self, node: usize) -> Option<&Line> {
        self.lines.iter().find(|line| line.node == node)
    }

    pub(super) fn owners(&self) -> Vec<Option<usize>> {
        owners([self])
    }
}

/// Returns the primary of each slot. If views differ, the newest epoch is right.
pub(super) fn owners<'a>(views: impl IntoIterator<Item = &'a View>) -> Vec<Option<usize>> {
    let mut owners: Vec<Option<(u64, usize)>> = vec![None; usize::from(SLOTS)];
    for line in views.into_iter().flat_map(|view| &view.lines) {
        for (first, last) in &line.slots {
            for owner in &mut owners[usize::from(*first)..=usize::from(*last)] {
                *owner = (*owner).max(Some((line.epoch, line.node)));
            }
        }
    }
    owners.into_iter().map(|owner| owner.map(|(_, node)| node)).collect()
}

/// A node's view of another, or of itself.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) node: usize,
    /// Whether it counts as up.
    pub(super) well: bool,
    pub(super) connected: bool,
    /// Id of its primary, if it is a replica.
    pub(super) primary: Option<usize>,
    pub(super) epoch: u64,
    /// First and last slot of each of its ranges.
    pub(super) slots: Vec<(u16, u16)>,
    /// Slots that are being moved away from it, with their destination. Only in its own view.
    pub(super) leaving: Vec<(u16, usize)>,
}

impl Line {
    /// Parses a line of `CLUSTER NODES`. `None` if the node's id is not known: during the handshake, it has
    /// another.
    pub(super) fn read(line: &str, ids: &[String]) -> Option<Self> {
        let number = |id: &str| ids.iter().position(|known| known == id);
        let words: Vec<&str> = line.split_whitespace().collect();
        let [id, _address, flags, primary, _ping, _pong, epoch, link, rest @ ..] = &words[..]
        else {
            return None;
        };
        let flagged = |name| flags.split(',').any(|flag| flag == name);
        if flagged("handshake") {
            return None;
        }
        let range = |word: &&str| {
            let (first, last) = word.split_once('-').unwrap_or((word, word));
            Some((first.parse().ok()?, last.parse().ok()?))
        };
        // A slot that is being moved is listed again, in brackets.
        let leaving = |word: &&str| {
            let (slot, to) = word.strip_prefix('[')?.strip_suffix(']')?.split_once("->-")?;
            Some((slot.parse().ok()?, number(to)?))
        };
        Some(Self {
            node: number(id)?,
            well: !["fail", "fail?", "noaddr"].into_iter().any(flagged),
            connected: *link == "connected",
            primary: number(primary),
            epoch: epoch.parse().ok()?,
            slots: rest.iter().filter_map(range).collect(),
            leaving: rest.iter().filter_map(leaving).collect(),
        })
    }
}
