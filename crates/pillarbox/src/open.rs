//! Opening of a backend by a URL.

use pillarbox_core::{Error, Mailboxes, MemoryBackend, Result};

/// A URL scheme, and the cargo feature that enables it.
struct Scheme {
    name: &'static str,
    form: &'static str,
    feature: Option<&'static str>,
    is_enabled: bool,
}

const SCHEMES: &[Scheme] = &[
    Scheme::of("sqlite", "sqlite:PATH", "sqlite", cfg!(feature = "sqlite")),
    Scheme::of("redis", "redis://HOST", "redis", REDIS),
    Scheme::of("redis+unix", "redis+unix:///PATH", "redis", REDIS),
    Scheme::of("redis-sentinel", "redis-sentinel://HOST,.../SERVICE", "redis", REDIS),
    Scheme::of("redis-cluster", "redis-cluster://HOST,...", "redis", REDIS),
    Scheme::of("rediss", "rediss://HOST", "redis-tls", REDIS_TLS),
    Scheme::of("rediss-sentinel", "rediss-sentinel://HOST,.../SERVICE", "redis-tls", REDIS_TLS),
    Scheme::of("rediss-cluster", "rediss-cluster://HOST,...", "redis-tls", REDIS_TLS),
    Scheme::of("sqs", "sqs://REGION/PREFIX", "sqs", SQS),
    Scheme::of("sqs+http", "sqs+http://HOST/PREFIX", "sqs", SQS),
    Scheme::of("sqs+https", "sqs+https://HOST/PREFIX", "sqs", SQS),
    Scheme { name: "memory", form: "memory:", feature: None, is_enabled: true },
];

const REDIS: bool = cfg!(feature = "redis");
const REDIS_TLS: bool = cfg!(feature = "redis-tls");
const SQS: bool = cfg!(feature = "sqs");

impl Scheme {
    const fn of(
        name: &'static str,
        form: &'static str,
        feature: &'static str,
        is_enabled: bool,
    ) -> Self {
        Self { name, form, feature: Some(feature), is_enabled }
    }
}

/// Returns the forms of URL that this program can open, for people: `sqlite:PATH`, ...
pub fn url_forms() -> impl Iterator<Item = &'static str> {
    SCHEMES.iter().filter(|scheme| scheme.is_enabled).map(|scheme| scheme.form)
}

/// Opens the backend at a URL. See the [crate](crate#backends) for the forms of URL.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> pillarbox::Result<()> {
/// let backend = pillarbox::open("memory:").await?;
/// assert_eq!(backend.capabilities().backend, "memory");
///
/// let error = pillarbox::open("smtp://localhost").await.unwrap_err();
/// assert!(error.to_string().contains("memory:"));
/// # Ok(()) }
/// ```
pub async fn open(url: &str) -> Result<Mailboxes> {
    open_as(url, Missing::Create).await
}

/// Opens the backend at a URL without creating anything: fails if a file would have to be created. For tools that
/// inspect existing queues.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let error = pillarbox::open_existing("sqlite:no-such-file.db").await.unwrap_err();
/// assert!(error.to_string().contains("there is no file"), "{error}");
/// # }
/// ```
pub async fn open_existing(url: &str) -> Result<Mailboxes> {
    open_as(url, Missing::Fail).await
}

/// Reaction to storage that does not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Missing {
    Create,
    Fail,
}

async fn open_as(url: &str, missing: Missing) -> Result<Mailboxes> {
    match url.split_once(':') {
        Some(("memory", "")) => Ok(Mailboxes::new(MemoryBackend::new())),
        Some(("memory", name)) if name.starts_with('/') || name.contains('?') => {
            let allowed = "memory: or memory:NAME, without slashes and options";
            let name = name.split('?').next().unwrap_or_default();
            Err(Error::invalid(None, "backend URL", format!("\"memory:{name}...\""), allowed))
        }
        Some(("memory", name)) => Ok(Mailboxes::new(MemoryBackend::named(name))),
        Some(("sqlite", _)) => open_sqlite(url, missing).await,
        Some((scheme, _)) if is_redis(scheme) => open_redis(url).await,
        Some(("sqs" | "sqs+http" | "sqs+https", _)) => open_sqs(url, missing).await,
        Some((scheme, _)) => Err(unknown(&format!("unknown scheme {scheme:?}"))),
        None => Err(unknown("there is no scheme; the URL of a file is sqlite:PATH")),
    }
}

/// Returns whether a scheme is one of the Redis family.
fn is_redis(scheme: &str) -> bool {
    scheme.starts_with("redis") && SCHEMES.iter().any(|known| known.name == scheme)
}

#[cfg(feature = "sqlite")]
async fn open_sqlite(url: &str, missing: Missing) -> Result<Mailboxes> {
    use pillarbox_sqlite::{SqliteBackend, SqliteOptions};
    let mut options = SqliteOptions::from_url(url)?;
    if missing == Missing::Fail {
        options = options.create(false);
    }
    Ok(Mailboxes::new(SqliteBackend::open(options).await?))
}

#[cfg(not(feature = "sqlite"))]
async fn open_sqlite(_: &str, _: Missing) -> Result<Mailboxes> {
    Err(built_without("sqlite"))
}

/// Queues of a server need not be created, so a missing one is no error.
#[cfg(feature = "redis")]
async fn open_redis(url: &str) -> Result<Mailboxes> {
    use pillarbox_redis::{RedisBackend, RedisOptions};
    Ok(Mailboxes::new(RedisBackend::open(RedisOptions::from_url(url)?).await?))
}

#[cfg(not(feature = "redis"))]
async fn open_redis(_: &str) -> Result<Mailboxes> {
    Err(built_without("redis"))
}

/// Queues are created when they are first used, if at all.
#[cfg(feature = "sqs")]
async fn open_sqs(url: &str, missing: Missing) -> Result<Mailboxes> {
    use pillarbox_sqs::{SqsBackend, SqsOptions};
    let options = SqsOptions::from_url(url)?.only_existing(missing == Missing::Fail);
    Ok(Mailboxes::new(SqsBackend::open(options).await?))
}

#[cfg(not(feature = "sqs"))]
async fn open_sqs(_: &str, _: Missing) -> Result<Mailboxes> {
    Err(built_without("sqs"))
}

#[cfg(not(all(feature = "sqlite", feature = "redis", feature = "sqs")))]
fn built_without(feature: &str) -> Error {
    unknown(&format!(
        "this program was built without the cargo feature `{feature}`; build it with `--features {feature}`"
    ))
}

/// Creates the error of a bad URL. It must not contain more of the URL than its scheme, which may contain a password.
fn unknown(problem: &str) -> Error {
    let known: Vec<_> = SCHEMES
        .iter()
        .map(|scheme| match scheme.feature {
            None => format!("{}:", scheme.name),
            Some(feature) => format!("{}: (cargo feature `{feature}`)", scheme.name),
        })
        .collect();
    Error::invalid(None, "backend URL", problem, known.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_memory_backend_without_a_name_is_private() {
        let one = open("memory:").await.unwrap();
        let other = open("memory:").await.unwrap();
        let _open = one.mailbox::<u32, ()>("q").unwrap();
        assert!(other.queues().await.unwrap().is_empty());
    }

    #[tokio::test]
    async fn a_memory_backend_with_a_name_is_shared() {
        let one = open("memory:open-test").await.unwrap();
        let other = open("memory:open-test").await.unwrap();
        one.mailbox::<u32, ()>("q").unwrap().send(&7).await.unwrap();
        let same = other.mailbox::<u32, ()>("q").unwrap();
        assert_eq!(same.approximate_count().await.unwrap(), 1);
    }

    #[tokio::test]
    async fn a_memory_url_with_slashes_or_options_is_refused() {
        for url in ["memory://jobs", "memory:?default_ttl=60", "memory:jobs?default_ttl=60"] {
            let error = open(url).await.unwrap_err().to_string();
            assert!(error.contains("without slashes and options"), "{error}");
        }
    }

    #[cfg(not(feature = "sqs"))]
    #[tokio::test]
    async fn the_error_of_a_disabled_backend_names_its_feature() {
        for url in ["sqs://eu-west-1", "sqs+http://127.0.0.1:5000"] {
            let error = open(url).await.unwrap_err().to_string();
            assert!(error.contains("build it with `--features sqs`"), "{error}");
        }
    }

    #[cfg(feature = "sqs")]
    #[tokio::test]
    async fn opening_an_sqs_url_does_no_io() {
        let backend = open("sqs+http://127.0.0.1:9/shop-").await.unwrap();
        assert_eq!(backend.capabilities().backend, "sqs");
        assert!(open("sqs://eu-west-1/a.b").await.is_err());
    }

    #[tokio::test]
    async fn the_error_of_an_unknown_url_lists_the_schemes_and_no_password() {
        for url in ["", "memory", "memoryx:", "kafka://user:hunter2@host"] {
            let error = open(url).await.unwrap_err();
            assert!(matches!(error, Error::InvalidParameter { .. }), "{url}: {error}");
            let text = error.to_string();
            assert!(text.contains("sqlite: (cargo feature `sqlite`), redis:"), "{text}");
            assert!(!text.contains("hunter2"), "{text}");
        }
    }
}
