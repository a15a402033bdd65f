//! Queue names.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// The name of a queue: 1 to 80 characters out of `A-Z a-z 0-9 _ . - : /`.
///
/// A name is checked when it is made, so that no backend ever builds a broken key, path or URL
/// from one. `:` and `/` are not portable: a backend that cannot hold them says so in
/// [`Capabilities::extended_names`](crate::Capabilities::extended_names) and refuses to open
/// such a queue.
///
/// ```
/// use pillarbox_core::QueueName;
///
/// let name: QueueName = "orders.eu-west:v2".parse()?;
/// assert_eq!(name.as_str(), "orders.eu-west:v2");
/// assert!("no spaces".parse::<QueueName>().is_err());
/// # Ok::<(), pillarbox_core::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct QueueName(Arc<str>);

impl QueueName {
    /// The longest name allowed, in characters.
    pub const MAX_LEN: usize = 80;

    /// Checks `name` and makes a queue name of it.
    pub fn new(name: &str) -> Result<Self> {
        let problem = if name.is_empty() {
            "is empty".to_owned()
        } else if let Some(bad) = name.chars().find(|c| !is_allowed(*c)) {
            format!("contains {bad:?}")
        } else if name.len() > Self::MAX_LEN {
            format!("has {} characters", name.len())
        } else {
            return Ok(Self(name.into()));
        };
        Err(Error::invalid(
            None,
            "queue name",
            format!("{:?} {problem}", shorten(name)),
            "1 to 80 characters out of A-Z a-z 0-9 _ . - : /",
        ))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether the name uses `:` or `/`, which not every backend can hold.
    pub fn is_extended(&self) -> bool {
        self.0.contains([':', '/'])
    }
}

fn is_allowed(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-' | ':' | '/')
}

/// Keeps an error text readable when somebody passes a whole document as a name.
fn shorten(name: &str) -> String {
    match name.char_indices().nth(QueueName::MAX_LEN) {
        Some((end, _)) => format!("{}…", &name[..end]),
        None => name.to_owned(),
    }
}

impl fmt::Display for QueueName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for QueueName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QueueName({})", self.0)
    }
}

impl FromStr for QueueName {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Self::new(name)
    }
}

impl TryFrom<&str> for QueueName {
    type Error = Error;

    fn try_from(name: &str) -> Result<Self> {
        Self::new(name)
    }
}

impl TryFrom<String> for QueueName {
    type Error = Error;

    fn try_from(name: String) -> Result<Self> {
        Self::new(&name)
    }
}

impl TryFrom<&String> for QueueName {
    type Error = Error;

    fn try_from(name: &String) -> Result<Self> {
        Self::new(name)
    }
}

impl From<&QueueName> for QueueName {
    fn from(name: &QueueName) -> Self {
        name.clone()
    }
}

impl From<QueueName> for String {
    fn from(name: QueueName) -> Self {
        name.0.as_ref().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allowed_characters_and_lengths_make_a_name() {
        for good in ["a", "A.b_c-9", "tenant:acme/orders", &"x".repeat(80)] {
            assert_eq!(QueueName::new(good).unwrap().as_str(), good);
        }
    }

    #[test]
    fn anything_else_is_an_invalid_parameter_that_says_what_is_wrong() {
        for (bad, says) in [
            ("", "is empty"),
            ("a b", "contains ' '"),
            ("{tag}", "contains '{'"),
            ("naïve", "contains 'ï'"),
            ("a\0b", "contains '\\0'"),
            (&"x".repeat(81), "has 81 characters"),
        ] {
            let error = QueueName::new(bad).unwrap_err();
            assert!(matches!(error, Error::InvalidParameter { .. }), "{bad:?}");
            assert!(error.to_string().contains(says), "{error}");
        }
    }

    #[test]
    fn a_huge_bad_name_is_shortened_in_the_error() {
        let error = QueueName::new(&"é".repeat(100_000)).unwrap_err();
        assert!(error.to_string().len() < 400, "{error}");
    }
}
