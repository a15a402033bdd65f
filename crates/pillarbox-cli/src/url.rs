//! URLs that tell no password.

use std::convert::Infallible;
use std::fmt;
use std::str::FromStr;

/// The URL of a backend. What is printed of it has no password.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct BackendUrl(String);

impl BackendUrl {
    pub(crate) const DEFAULT: &str = "sqlite:pillarbox.db";

    /// All of it, to open the backend with.
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl Default for BackendUrl {
    fn default() -> Self {
        Self(Self::DEFAULT.to_owned())
    }
}

impl FromStr for BackendUrl {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for BackendUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (address, query) = match self.0.split_once('?') {
            Some((address, query)) => (address, Some(query)),
            None => (&*self.0, None),
        };
        match address.split_once("://").and_then(|(scheme, rest)| {
            // A password may hold anything, even an `@`.
            let (user, host) = rest.rsplit_once('@')?;
            Some((scheme, user, host))
        }) {
            Some((scheme, user, host)) => match user.split_once(':') {
                Some((name, _)) => write!(f, "{scheme}://{name}:***@{host}")?,
                None => write!(f, "{scheme}://***@{host}")?,
            },
            None => f.write_str(address)?,
        }
        for (place, pair) in query.into_iter().flat_map(|query| query.split('&')).enumerate() {
            f.write_str(if place == 0 { "?" } else { "&" })?;
            match pair.split_once('=') {
                Some((name, _)) if is_secret(name) => write!(f, "{name}=***")?,
                _ => f.write_str(pair)?,
            }
        }
        Ok(())
    }
}

fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    ["pass", "pwd", "secret", "token", "key", "auth"].iter().any(|word| name.contains(word))
}

impl fmt::Debug for BackendUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BackendUrl({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_has_no_password() {
        for (url, shown) in [
            ("sqlite:a/b.db?synchronous=normal", "sqlite:a/b.db?synchronous=normal"),
            ("redis://host:6379/1", "redis://host:6379/1"),
            ("redis://me:hunter2@host", "redis://me:***@host"),
            ("redis://:hunter2@host", "redis://:***@host"),
            ("redis://:hun@ter:2@host", "redis://:***@host"),
            ("redis://hunter2@host", "redis://***@host"),
            (
                "x://h?a=1&password=hunter2&Access_Token=t",
                "x://h?a=1&password=***&Access_Token=***",
            ),
            ("", ""),
        ] {
            let url: BackendUrl = url.parse().unwrap();
            assert_eq!(url.to_string(), shown);
            assert_eq!(format!("{url:?}"), format!("BackendUrl({shown})"));
        }
    }
}
