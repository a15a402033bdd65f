//! URLs that tell no password.

use std::convert::Infallible;
use std::fmt;
use std::ops::Range;
use std::str::FromStr;

/// The URL of a backend. What is printed of it has no password.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct BackendUrl(String);

impl BackendUrl {
    pub(crate) const DEFAULT: &str = "sqlite:pillarbox.db";

    /// A text in which the secrets of this URL are not to be seen.
    pub(crate) fn hide_secrets_in(&self, text: &str) -> String {
        let secrets = self.secrets().into_iter().map(|place| &self.0[place]);
        secrets
            .filter(|secret| !secret.is_empty())
            .fold(text.to_owned(), |text, secret| text.replace(secret, "***"))
    }

    /// Where in the text of the URL its secrets are, in order.
    fn secrets(&self) -> Vec<Range<usize>> {
        let mut secrets = Vec::new();
        let mut rest = 0;
        // A password may hold anything, even an `@` or a `?`.
        if let Some((scheme, after)) = self.0.split_once("://")
            && let Some((user, _)) = after.rsplit_once('@')
        {
            let start = scheme.len() + "://".len();
            let password = user.find(':').map_or(start, |colon| start + colon + 1);
            rest = start + user.len();
            secrets.push(password..rest);
        }
        if let Some(query) = self.0[rest..].find('?') {
            let mut start = rest + query + 1;
            for pair in self.0[start..].split('&') {
                let end = start + pair.len();
                if let Some((name, _)) = pair.split_once('=').filter(|(name, _)| is_secret(name)) {
                    secrets.push(start + name.len() + 1..end);
                }
                start = end + 1;
            }
        }
        secrets
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
        let mut shown = 0;
        for secret in self.secrets() {
            write!(f, "{}***", &self.0[shown..secret.start])?;
            shown = secret.end;
        }
        f.write_str(&self.0[shown..])
    }
}

fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    // A letter may be written as a number.
    ["%", "pass", "pwd", "secret", "token", "key", "auth"].iter().any(|word| name.contains(word))
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
            ("redis+unix:///s?p%61ss=hunter2&db=1", "redis+unix:///s?p%61ss=***&db=1"),
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
