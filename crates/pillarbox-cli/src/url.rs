//! URLs that tell no password.

use std::convert::Infallible;
use std::env::VarError;
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::str::FromStr;

/// The URL of a backend. What is printed of it has no password.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct BackendUrl(String);

impl BackendUrl {
    pub(crate) const DEFAULT: &str = "sqlite:pillarbox.db";

    /// Puts a URL in the place of one that only says where it is: `env:NAME` or `file:PATH`. So a password need not
    /// be on a command line, which everybody on a machine can read.
    pub(crate) fn look_up(&mut self) -> Result<(), String> {
        let found = match self.0.split_once(':') {
            Some(("env", name)) => from_environment(name)?,
            Some(("file", path)) => from_file(path)?,
            _ => return Ok(()),
        };
        self.0 = found;
        Ok(())
    }

    /// A text in which the secrets of this URL are not to be seen.
    ///
    /// One that may be a word or a number that has nothing to do with it is a secret only where it stands as in the
    /// URL: before an `@`, or as the value of its option.
    pub(crate) fn hide_secrets_in(&self, text: &str) -> String {
        let mut forms = Vec::new();
        for place in self.secrets() {
            let (before, secret) = (&self.0[..place.start], &self.0[place.clone()]);
            if secret.is_empty() {
                continue;
            }
            let [plain, quoted] = [secret.to_owned(), escaped(secret)];
            if !may_be_a_word(secret) {
                forms.extend([plain, quoted].map(|form| (form, "***".to_owned())));
            } else if self.0[place.end..].starts_with('@') {
                forms.extend([plain, quoted].map(|form| (form + "@", "***@".to_owned())));
            } else {
                let from = before.rfind(['?', '&']).map_or(0, |sign| sign + 1);
                let name = &before[from..];
                forms.extend(
                    [plain, quoted].map(|form| (format!("{name}{form}"), format!("{name}***"))),
                );
            }
        }
        // The longest first: one may be a part of another.
        forms.sort_by_key(|(form, _)| std::cmp::Reverse(form.len()));
        let hide = |text: String, (form, shown): &(String, String)| text.replace(form, shown);
        forms.iter().fold(text.to_owned(), hide)
    }

    /// Its secrets, as they are quoted, each with what is before it: alone, a short one may be any word.
    fn quoted_secrets(&self) -> Vec<(String, String)> {
        let forms = self.secrets().into_iter().flat_map(|place| {
            let before = &self.0[..place.start];
            // Not the scheme: an option may be written together with it.
            let from = before.rfind(['?', '&']).or_else(|| before.find("://")).unwrap_or_default();
            let (before, secret) = (&before[from..], &self.0[place]);
            [(before.to_owned(), secret.to_owned()), (escaped(before), escaped(secret))]
        });
        forms.collect()
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

fn from_environment(name: &str) -> Result<String, String> {
    match std::env::var(name) {
        Ok(url) if url.is_empty() => Err(format!("the environment variable {name} is empty")),
        Ok(url) => Ok(url),
        Err(VarError::NotPresent) => Err(format!("there is no environment variable {name}")),
        Err(VarError::NotUnicode(_)) => Err(format!("the environment variable {name} is no text")),
    }
}

fn from_file(path: &str) -> Result<String, String> {
    const LONGEST: u64 = 64 << 10;
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(LONGEST + 1).read_to_end(&mut bytes))
        .map_err(|error| format!("cannot read a URL from {path}: {error}"))?;
    let text = std::str::from_utf8(&bytes).ok().filter(|_| bytes.len() as u64 <= LONGEST);
    match text.map(str::trim) {
        Some("") => Err(format!("there is no URL in {path}: it is empty")),
        Some(url) if !url.contains(char::is_control) => Ok(url.to_owned()),
        _ => Err(format!(
            "{path} is not one line with a URL in it; a SQLite file is written sqlite:{path}"
        )),
    }
}

/// Whether a text is likely to be where it is for another reason than that it is a secret.
fn may_be_a_word(secret: &str) -> bool {
    /// Words of errors are shorter than most passwords.
    const LONGEST: usize = 12;
    let length = secret.chars().count();
    let is_number = || secret.bytes().all(|byte| byte.is_ascii_digit());
    let is_word = || secret.chars().all(char::is_alphabetic);
    length < 4 || length <= LONGEST && (is_word() || is_number())
}

/// What clap says of a command line, with the URLs in it as they may be printed.
pub(crate) fn without_secrets(text: String, args: impl Iterator<Item = String>) -> String {
    // An option is quoted as it is, or cut at its =.
    let urls = args.flat_map(|arg| match arg.split_once('=') {
        Some((name, value)) if arg.starts_with('-') => {
            let value = value.to_owned();
            if name.contains("://") { vec![value, arg] } else { vec![value] }
        }
        _ => vec![arg],
    });
    let mut forms = Vec::new();
    for url in urls.filter(|url| url.contains("://")).map(BackendUrl) {
        let secrets = url.quoted_secrets();
        // They are not told as they are, so what is told cannot be compared with them.
        if !secrets.is_empty() && url.0.contains(char::is_control) {
            return "error: there are control characters in a URL\n".to_owned();
        }
        forms.extend(secrets);
    }
    // All at once: the secret of one may begin as that of another.
    hide_after(&text, &forms)
}

/// A text as it is within quotes in an error.
fn escaped(text: &str) -> String {
    let quoted = format!("{text:?}");
    quoted[1..quoted.len() - 1].to_owned()
}

/// Hides what is a secret in a text, as far as it is there: it is known by what is before it. Both are given in each form that
/// they may have.
fn hide_after(text: &str, forms: &[(String, String)]) -> String {
    let (mut hidden, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(place) = forms.iter().filter_map(|(before, _)| rest.find(before)).min() {
        let here = forms.iter().filter(|(before, _)| rest[place..].starts_with(before));
        let here = here.map(|(before, secret)| {
            let from = place + before.len();
            (in_common(&rest[from..], secret), from)
        });
        // In another form, only the beginning would be hidden.
        let (same, from) = here.max().unwrap_or((0, rest.len()));
        hidden.push_str(&rest[..from]);
        hidden.push_str(if same > 0 { "***" } else { "" });
        rest = &rest[from + same..];
    }
    hidden + rest
}

/// How many bytes two texts have in common, from their beginning.
fn in_common(one: &str, other: &str) -> usize {
    let same = one.chars().zip(other.chars()).take_while(|(one, other)| one == other);
    same.map(|(c, _)| c.len_utf8()).sum()
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
    fn what_is_said_of_a_command_line_has_no_password_however_it_is_quoted() {
        let without =
            |text: &str, arg: &str| without_secrets(text.to_owned(), [arg.to_owned()].into_iter());
        let url = "redis://me:hun\"ter2@host";
        assert_eq!(without(&format!("bad '{url}'"), url), "bad 'redis://me:***@host'");
        assert_eq!(without(&format!("bad {url:?}"), url), "bad \"redis://me:***@host\"");
        assert_eq!(
            without("bad \"redis://me:hun…\"", "redis://me:hunter2@host"),
            "bad \"redis://me:***…\""
        );
        assert_eq!(
            without("bad 'redis://me:hunter2@h' for -n", "-nredis://me:hunter2@h"),
            "bad 'redis://me:***@h' for -n"
        );
        assert_eq!(without("'x://a:x://a:hunter2@'", "x://a:x://a:hunter2@"), "'x://a:***@'");
        let told = without("bad 'redis://me:hunter2@h'", "redis://me:\u{1}hunter2@h");
        assert!(!told.contains("hunter2"), "{told}");
        assert_eq!(
            without("no secret: redis://h\u{1}", "redis://h\u{1}"),
            "no secret: redis://h\u{1}"
        );
    }

    #[test]
    fn a_secret_that_is_part_of_another_leaves_nothing_of_it() {
        let url = BackendUrl("redis-sentinel://:ab12@h/s?sentinel_password=ab123".to_owned());
        assert_eq!(url.hide_secrets_in("ab12 and ab123"), "*** and ***");
        let url = BackendUrl("redis-sentinel://:ab@h/s?sentinel_password=abc".to_owned());
        let text = format!("ab and abc of {}", url.reveal());
        let shown = "ab and abc of redis-sentinel://:***@h/s?sentinel_password=***";
        assert_eq!(url.hide_secrets_in(&text), shown);
    }

    #[test]
    fn a_secret_that_is_a_word_is_hidden_where_it_is_one() {
        let url = BackendUrl("redis://queue:queue@queue/?token=1&name=1".to_owned());
        assert_eq!(
            url.hide_secrets_in("queue 1 of redis://queue:queue@queue/?token=1&name=1, //queue@"),
            "queue 1 of redis://queue:***@queue/?token=***&name=1, //***@"
        );
        let url = BackendUrl("redis://queue-17@host".to_owned());
        assert_eq!(url.hide_secrets_in("'queue-17' of queue"), "'***' of queue");
    }

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
