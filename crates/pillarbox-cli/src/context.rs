//! Backend and output of a command.

use pillarbox::{Mailboxes, QueueName};

use crate::args::{Global, ToFile};
use crate::failure::{Failure, Result};
use crate::output::Out;
use crate::url::BackendUrl;

/// Backend and output of a command.
#[derive(Debug)]
pub(crate) struct Context {
    /// `None`: the default.
    url: Option<BackendUrl>,
    pub(crate) out: Out,
}

impl Context {
    pub(crate) fn new(global: &Global) -> Self {
        // An empty variable counts as unset.
        let url = global.url.clone().filter(|url| !url.reveal().is_empty());
        Self { url, out: Out::new(global.json) }
    }

    pub(crate) fn url(&self) -> BackendUrl {
        self.url.clone().unwrap_or_default()
    }

    /// Returns the URL from the command line or the environment.
    pub(crate) fn given_url(&self) -> Option<&BackendUrl> {
        self.url.as_ref()
    }

    /// Opens the backend, creating it if it does not exist: for commands that send.
    pub(crate) async fn open(&self) -> Result<Mailboxes> {
        self.explain(pillarbox::open(self.url().reveal()).await)
    }

    /// Opens the backend if it exists.
    pub(crate) async fn open_existing(&self) -> Result<Mailboxes> {
        let opened = self.explain(pillarbox::open_existing(self.url().reveal()).await);
        opened.map_err(|failure| match failure {
            Failure::Other(text) if self.url.is_none() => {
                Failure::Other(format!("{text} `pillarbox send QUEUE BODY` creates it."))
            }
            other => other,
        })
    }

    /// Opens the backend to send messages, and warns if it is not durable.
    pub(crate) async fn open_to_send(&self) -> Result<Mailboxes> {
        let backend = self.open().await?;
        if !backend.capabilities().durable {
            self.out
                .note(&format!("messages sent to {} are lost when this command ends", self.url()));
        }
        Ok(backend)
    }

    /// Redirects results to a file, if one was given.
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

    /// Notes on stderr that a queue that seems empty does not exist, since its name may be mistyped. Not an error: an
    /// empty queue need not exist.
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
            names => format!("`pillarbox queues` lists all {}", names.len()),
        };
        self.out.note(&format!("{url} has no queue '{queue}'; {others}"));
        Ok(())
    }
}
