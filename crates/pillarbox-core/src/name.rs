//! Queue names.

use std::fmt;
use std::sync::Arc;

/// Name of a queue: 1 to 80 characters out of `A-Z a-z 0-9 _ . - : /`.
///
/// A name is checked when it is created, so that no backend builds a broken key, path or URL from it. `:` and
/// `/` are not portable: a backend that does not support them reports so in
/// [`Capabilities::extended_names`](crate::Capabilities::extended_names) and refuses to open such a queue.
///
/// ```
/// use pillarbox_core::QueueName;
///
/// let name: QueueName = "orders.eu-west:v2".parse()?;
/// assert_eq!(name.as_str(), "orders.eu-west:v2");
/// assert!("no spaces".parse::<QueueName>().is_err());
/// # Ok::<(), pillarbox_core::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueName(Arc<str>);

impl QueueName {
    /// Maximum length of a name, in characters.
    pub const MAX_LEN: usize = 80;

    /// Checks a name; the error describes what is wrong with it.
    pub(crate) fn check(name: &str) -> Result<Self, String> {
        if name.is_empty() {
            Err("is empty".to_owned())
        } else if let Some(bad) = name.chars().find(|c| !is_allowed(*c)) {
            Err(format!("contains {bad:?}"))
        } else if name.len() > Self::MAX_LEN {
            Err(format!("has {} characters", name.len()))
        } else {
            Ok(Self(name.into()))
        }
    }

    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns whether the name contains `:` or `/`, which not every backend supports.
    pub fn is_extended(&self) -> bool {
        self.0.contains([':', '/'])
    }
}

fn is_allowed(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-' | ':' | '/')
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
    use crate::Error;

    #[test]
    fn allowed_characters_and_lengths_are_accepted() {
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
