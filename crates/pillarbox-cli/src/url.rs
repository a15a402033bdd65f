//! Backend URLs, printed without secrets.

use std::convert::Infallible;
use std::env::VarError;
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::str::FromStr;

/// URL of a backend. `Display` and `Debug` hide its secrets.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct BackendUrl(String);

impl BackendUrl {
    pub(crate) const DEFAULT: &str = "sqlite:pillarbox.db";

    /// Replaces `env:NAME` and `file:PATH` by the URL they refer to, so that a password need not be on the command line,
    /// which every user of the machine can read.
    pub(crate) fn resolve(&mut self) -> Result<(), String> {
        let found = match self.0.split_once(':') {
            Some(("env", name)) => from_environment(name)?,
            Some(("file", path)) => from_file(path)?,
            _ => return Ok(()),
        };
        self.0 = found;
        Ok(())
    }

    /// Returns a text without the secrets of this URL.
    ///
    /// A secret that could be an ordinary word or number is hidden only in the context it has in the URL: before an `@`,
    /// or as the value of its option.
    pub(crate) fn hide_secrets_in(&self, text: &str) -> String {
        let mut forms = Vec::new();
        for range in self.secrets() {
            let (before, secret) = (&self.0[..range.start], &self.0[range.clone()]);
            if secret.is_empty() {
                continue;
            }
            let [plain, quoted] = [secret.to_owned(), escaped(secret)];
            if !may_be_a_word(secret) {
                forms.extend([plain, quoted].map(|form| (form, "***".to_owned())));
            } else if self.0[range.end..].starts_with('@') {
                forms.extend([plain, quoted].map(|form| (form + "@", "***@".to_owned())));
            } else {
                let from = before.rfind(['?', '&']).map_or(0, |sign| sign + 1);
                let name = &before[from..];
                forms.extend(
                    [plain, quoted].map(|form| (format!("{name}{form}"), format!("{name}***"))),
                );
            }
        }
        // The longest first, since one may be a part of another.
        forms.sort_by_key(|(form, _)| std::cmp::Reverse(form.len()));
        let hide = |text: String, (form, shown): &(String, String)| text.replace(form, shown);
        forms.iter().fold(text.to_owned(), hide)
    }

    /// Returns the secrets as they may be quoted, each with the text before it, since a short secret alone could be any
    /// word.
    fn quoted_secrets(&self) -> Vec<(String, String)> {
        let forms = self.secrets().into_iter().flat_map(|range| {
            let before = &self.0[..range.start];
            // Not the scheme: a short option may be written together with it.
            let from = before.rfind(['?', '&']).or_else(|| before.find("://")).unwrap_or_default();
            let (before, secret) = (&before[from..], &self.0[range]);
            [(before.to_owned(), secret.to_owned()), (escaped(before), escaped(secret))]
        });
        forms.collect()
    }

    /// Returns the ranges of the secrets in the URL, in order.
    fn secrets(&self) -> Vec<Range<usize>> {
        let mut secrets = Vec::new();
        let mut rest = 0;
        // A password may contain an `@` or a `?`.
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

    /// Returns the whole URL, to open the backend.
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

fn from_environment(name: &str) -> Result<String, String> {
    if name.is_empty() {
        return Err("env: lacks the name of an environment variable: use env:NAME".to_owned());
    }
    match std::env::var(name) {
        Ok(url) if url.is_empty() => Err(format!("the environment variable {name} is empty")),
        Ok(url) => Ok(url),
        Err(VarError::NotPresent) => Err(format!("the environment variable {name} is not set")),
        Err(VarError::NotUnicode(_)) => {
            Err(format!("the environment variable {name} is not valid UTF-8"))
        }
    }
}

fn from_file(path: &str) -> Result<String, String> {
    const MAX_BYTES: u64 = 64 << 10;
    if path.is_empty() {
        return Err("file: lacks the path of a file with a URL: use file:PATH".to_owned());
    }
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(MAX_BYTES + 1).read_to_end(&mut bytes))
        .map_err(|error| format!("cannot read a URL from {path}: {error}"))?;
    let text = std::str::from_utf8(&bytes).ok().filter(|_| bytes.len() as u64 <= MAX_BYTES);
    match text.map(str::trim) {
        Some("") => Err(format!("{path} has no URL: it is empty")),
        Some(url) if !url.contains(char::is_control) => Ok(url.to_owned()),
        _ => Err(format!(
            "{path} is not a file with a URL on one line; the URL of a SQLite file is sqlite:{path}"
        )),
    }
}

/// Returns whether a secret could occur in a text for another reason.
fn may_be_a_word(secret: &str) -> bool {
    /// Words of error texts are shorter than most passwords.
    const MAX_WORD: usize = 12;
    let length = secret.chars().count();
    let is_number = || secret.bytes().all(|byte| byte.is_ascii_digit());
    let is_word = || secret.chars().all(char::is_alphabetic);
    length < 4 || length <= MAX_WORD && (is_word() || is_number())
}

/// Returns an error text of clap without the secrets of URLs in the arguments.
pub(crate) fn without_secrets(text: String, args: impl Iterator<Item = String>) -> String {
    // clap quotes an option as it is, or the part after its `=`.
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
        // clap escapes control characters, so the secrets could not be found in the text.
        if !secrets.is_empty() && url.0.contains(char::is_control) {
            return "error: a URL contains control characters\n".to_owned();
        }
        forms.extend(secrets);
    }
    // All at once, since one secret may be a prefix of another.
    hide_after(&text, &forms)
}

/// Returns a text as it is within quotes in an error.
fn escaped(text: &str) -> String {
    let quoted = format!("{text:?}");
    quoted[1..quoted.len() - 1].to_owned()
}

/// Hides secrets in a text, each after the text before it. A secret may be cut off in the text.
fn hide_after(text: &str, forms: &[(String, String)]) -> String {
    let (mut hidden, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(start) = forms.iter().filter_map(|(before, _)| rest.find(before)).min() {
        let here = forms.iter().filter(|(before, _)| rest[start..].starts_with(before));
        let here = here.map(|(before, secret)| {
            let from = start + before.len();
            (common_prefix(&rest[from..], secret), from)
        });
        // The longest match: another form would hide only the beginning.
        let (same, from) = here.max().unwrap_or((0, rest.len()));
        hidden.push_str(&rest[..from]);
        hidden.push_str(if same > 0 { "***" } else { "" });
        rest = &rest[from + same..];
    }
    hidden + rest
}

/// Returns the length of the common prefix, in bytes.
fn common_prefix(one: &str, other: &str) -> usize {
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
    // `%` may encode a letter.
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
    fn errors_of_the_command_line_contain_no_password_however_it_is_quoted() {
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
        let shown = without("bad 'redis://me:hunter2@h'", "redis://me:\u{1}hunter2@h");
        assert!(!shown.contains("hunter2"), "{shown}");
        assert_eq!(
            without("no secret: redis://h\u{1}", "redis://h\u{1}"),
            "no secret: redis://h\u{1}"
        );
    }

    #[test]
    fn a_secret_that_is_part_of_another_is_hidden_completely() {
        let url = BackendUrl("redis-sentinel://:ab12@h/s?sentinel_password=ab123".to_owned());
        assert_eq!(url.hide_secrets_in("ab12 and ab123"), "*** and ***");
        let url = BackendUrl("redis-sentinel://:ab@h/s?sentinel_password=abc".to_owned());
        let text = format!("ab and abc of {}", url.reveal());
        let shown = "ab and abc of redis-sentinel://:***@h/s?sentinel_password=***";
        assert_eq!(url.hide_secrets_in(&text), shown);
    }

    #[test]
    fn a_secret_that_is_a_word_is_hidden_only_in_its_context() {
        let url = BackendUrl("redis://queue:queue@queue/?token=1&name=1".to_owned());
        assert_eq!(
            url.hide_secrets_in("queue 1 of redis://queue:queue@queue/?token=1&name=1, //queue@"),
            "queue 1 of redis://queue:***@queue/?token=***&name=1, //***@"
        );
        let url = BackendUrl("redis://queue-17@host".to_owned());
        assert_eq!(url.hide_secrets_in("'queue-17' of queue"), "'***' of queue");
    }

    #[test]
    fn a_printed_url_has_no_password() {
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
