//! When a queue is empty.

use std::time::Duration;

use pillarbox::Capabilities;

/// Decides whether a queue is empty, by how often in a row nothing came out of it.
///
/// Once is enough where counts are exact. A backend whose counts lag may also answer with nothing
/// while there is something; it is asked several times, each time with some patience.
#[derive(Debug)]
pub(crate) struct Emptiness {
    needed: u32,
    found: u32,
}

impl Emptiness {
    const LAGGING_LOOKS: u32 = 4;

    pub(crate) fn new(capabilities: &Capabilities) -> Self {
        let needed = if capabilities.exact_counts { 1 } else { Self::LAGGING_LOOKS };
        Self { needed, found: 0 }
    }

    /// How long a receive should wait that is to tell.
    pub(crate) fn patience(&self) -> Duration {
        if self.needed == 1 { Duration::ZERO } else { Duration::from_secs(1) }
    }

    /// Notes that something came, or nothing. Says whether the queue is empty.
    pub(crate) fn saw(&mut self, nothing: bool) -> bool {
        self.found = if nothing { self.found + 1 } else { 0 };
        self.found >= self.needed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exact_counts_are_believed_at_once_and_others_when_they_insist() {
        let mut capabilities = Capabilities::full("test");
        let mut exact = Emptiness::new(&capabilities);
        assert_eq!((exact.patience(), exact.saw(true)), (Duration::ZERO, true));
        capabilities.exact_counts = false;
        let mut lagging = Emptiness::new(&capabilities);
        assert!(lagging.patience() > Duration::ZERO);
        let seen = [true, true, true, false, true, true, true].map(|nothing| lagging.saw(nothing));
        assert_eq!(seen, [false; 7]);
        assert!(lagging.saw(true));
    }
}
