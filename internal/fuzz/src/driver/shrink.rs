//! Shrinks an input that fails.

use super::trial::{self, Trial};
use crate::Target;

/// Largest number of inputs to try.
const MOST: u64 = 20_000;

/// Returns the smallest input found that fails at the same location, and the number of inputs tried.
pub(super) fn shrink(target: &Target, input: &[u8], place: &str) -> Vec<u8> {
    let mut shrinking = Shrinking { target, place, best: input.to_vec(), tried: 0 };
    loop {
        let before = shrinking.best.clone();
        shrinking.take_out();
        shrinking.make_plain();
        if shrinking.best == before || shrinking.tried >= MOST {
            return shrinking.best;
        }
    }
}

struct Shrinking<'a> {
    target: &'a Target,
    place: &'a str,
    best: Vec<u8>,
    tried: u64,
}

impl Shrinking<'_> {
    /// Keeps an input if it fails as well.
    fn keep(&mut self, input: Vec<u8>) -> bool {
        if self.tried >= MOST {
            return false;
        }
        self.tried += 1;
        let fails = matches!(trial::run(self.target, &input), Trial::Failed { place, .. } if place == self.place);
        if fails {
            self.best = input;
        }
        fails
    }

    /// Removes pieces, large ones first.
    fn take_out(&mut self) {
        let mut size = self.best.len();
        while size > 0 {
            let mut start = 0;
            while start < self.best.len() {
                let end = (start + size).min(self.best.len());
                let mut without = self.best.clone();
                without.drain(start..end);
                if !self.keep(without) {
                    start += size;
                }
            }
            size /= 2;
        }
    }

    /// Replaces characters by plain letters.
    fn make_plain(&mut self) {
        for place in 0..self.best.len() {
            for plain in *b"a0" {
                if self.best[place] == plain {
                    break;
                }
                let mut plainer = self.best.clone();
                plainer[place] = plain;
                if self.keep(plainer) {
                    break;
                }
            }
        }
    }
}
