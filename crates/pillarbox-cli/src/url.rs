//! URLs that tell no password.

use std::convert::Infallible;
use std::fmt;
use std::str::FromStr;

/// The URL of a backend. What is printed of it has no password.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct BackendUrl(String);

impl BackendUrl {
    pub(crate) const DEFAULT: &str = "sqlite:pillarbox.db";

    /// A text in which the secrets of this URL are not to be seen.
    pub(crate) fn hide_secrets_in(&self, text: &str) -> String {
        let user = self.0.split_once("://").and_then(|(_, rest)| rest.rsplit_once('@'));
        let user =
            user.map(|(user, _)| user.split_once(':').map_or(user, |(_, password)| password));
        let query = self.0.rsplit_once('?').map_or("", |(_, query)| query).split('&');
        let query =
            query.filter_map(|pair| pair.split_once('=')).filter(|(name, _)| is_secret(name));
        let secrets = user.into_iter().chain(query.map(|(_, value)| value));
        secrets
            .filter(|secret| !secret.is_empty())
            .fold(text.to_owned(), |text, secret| text.replace(secret, "***"))
    }

    /// All of it, to open the backend with.
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

/// What clap says of a command line, with the URLs in it as they may be printed.
pub(crate) fn without_secrets(text: String, args: impl Iterator<Item = String>) -> String {
    let urls = args.map(|arg| match arg.split_once('=') {
        Some((_, value)) if arg.starts_with('-') => value.to_owned(),
        _ => arg,
    });
    urls.filter(|url| url.contains("://")).fold(text, |text, url| {
        let shown = BackendUrl(url.clone()).to_string();
        text.replace(&url, &shown)
    })
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
        // A password may hold anything, even an `@` or a `?`.
        let user = self.0.split_once("://").and_then(|(scheme, rest)| {
            let (user, rest) = rest.rsplit_once('@')?;
            Some((scheme, user, rest))
        });
        let rest = match user {
            Some((scheme, user, rest)) => {
                match user.split_once(':') {
                    Some((name, _)) => write!(f, "{scheme}://{name}:***@")?,
                    None => write!(f, "{scheme}://***@")?,
                }
                rest
            }
            None => &self.0,
        };
        let (address, query) = match rest.split_once('?') {
            Some((address, query)) => (address, Some(query)),
            None => (rest, None),
        };
        f.write_str(address)?;
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
            ("redis://:hun?ter2@host?a=1", "redis://:***@host?a=1"),
            (
                "x://h?a=1&password=hunter2&Access_Token=t",
                "x://h?a=1&password=***&Access_Token=***",
            ),
            ("", ""),
        ] {
            let url: BackendUrl = url.parse().unwrap();
            assert_eq!(url.to_string(), shown);
            assert_eq!(format!("{url:?}"), format!("BackendUrl({shown})"));
            let error = url.hide_secrets_in(&format!("cannot open {}: refused", url.reveal()));
            assert!(!error.contains("hunter2") && error.contains("refused"), "{error}");
        }
    }
}
