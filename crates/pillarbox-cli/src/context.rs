//! What every command is given.

use pillarbox::{Mailboxes, QueueName};

use crate::args::{Global, ToFile};
use crate::failure::{Failure, Result};
use crate::output::Out;
use crate::url::BackendUrl;

/// Where to look, and where to write.
#[derive(Debug)]
pub(crate) struct Context {
    /// `None`: the default, since nothing was said.
    url: Option<BackendUrl>,
    pub(crate) out: Out,
}

impl Context {
    pub(crate) fn new(global: &Global) -> Self {
        // An empty variable is as good as none.
        let url = global.url.clone().filter(|url| !url.reveal().is_empty());
        Self { url, out: Out::new(global.json) }
    }

    pub(crate) fn url(&self) -> BackendUrl {
        self.url.clone().unwrap_or_default()
    }

    /// The URL that was given, if one was.
    pub(crate) fn given_url(&self) -> Option<&BackendUrl> {
        self.url.as_ref()
    }

    /// Opens the backend, and makes it where it can be made: for commands that put something in.
    pub(crate) async fn open(&self) -> Result<Mailboxes> {
        self.explain(pillarbox::open(self.url().reveal()).await)
    }

    /// Opens the backend only if it is there.
    pub(crate) async fn open_existing(&self) -> Result<Mailboxes> {
        let opened = self.explain(pillarbox::open_existing(self.url().reveal()).await);
        opened.map_err(|failure| match failure {
            Failure::Other(text) if self.url.is_none() => {
                Failure::Other(format!("{text} `pillarbox send QUEUE BODY` makes it."))
            }
            other => other,
        })
    }

    /// Opens the backend to put messages in, and says so if they will not stay.
    pub(crate) async fn open_to_send(&self) -> Result<Mailboxes> {
        let backend = self.open().await?;
        if !backend.capabilities().durable {
            self.out
                .note(&format!("what is sent to {} is gone when this command ends", self.url()));
        }
        Ok(backend)
    }

    /// Has results written to a file, if one was named.
    pub(crate) fn write_to(&mut self, to: &ToFile) -> Result<()> {
        to.output.as_ref().map_or(Ok(()), |path| self.out.write_to(path, to.permissions))
    }

    fn explain(&self, opened: pillarbox::Result<Mailboxes>) -> Result<Mailboxes> {
        if let Ok(backend) = &opened {
            tracing::info!(url = %self.url(), capabilities = ?backend.capabilities(), "opened");
        }
        opened.map_err(|error| match (&error, &self.url) {
            (pillarbox::Error::Connection { .. }, None) => Failure::Other(format!(
                "{error}\nNo --url was given and PILLARBOX_URL is not set, so {} was tried.",
                BackendUrl::DEFAULT
            )),
            (_, Some(url)) => Failure::Pillarbox(error).without_secrets_of(url),
            (_, None) => Failure::Pillarbox(error),
        })
    }

    /// Says on stderr that a queue that was found empty is not even known, for that may be a
    /// slip of the pen. Not an error: a queue that is empty may be unknown.
    pub(crate) async fn note_if_unknown(
        &self,
        backend: &Mailboxes,
        queue: &QueueName,
    ) -> Result<()> {
        let known = backend.queues().await?;
        if known.contains(queue) {
            return Ok(());
        }
        let url = self.url();
        let others = match known.as_slice() {
            [] => "it has no queues".to_owned(),
            names if names.len() <= 10 => {
                let names: Vec<_> = names.iter().map(QueueName::as_str).collect();
                format!("it has: {}", names.join(", "))
            }
            names => format!("`pillarbox queues` lists its {}", names.len()),
        };
        self.out.note(&format!("{url} knows no queue '{queue}'; {others}"));
        Ok(())
    }
}
