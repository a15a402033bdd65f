//! A client and a main loop, as users have them.

use std::sync::Arc;

use pillarbox_runtime::loops::{Client, MainLoop, MainLoopRequest};
use pillarbox_runtime::{Runnable, Running};

use super::{Caller, Ends, PATIENCE, Requests};
use crate::measure::{Result, expect_eq};

#[derive(Clone)]
pub(super) struct Ours {
    client: Client<String, String>,
    running: Arc<Running>,
}

impl Ours {
    pub(super) async fn open(ends: Ends) -> Result<Self> {
        let asked: Requests = ends.loops.mailbox("requests")?;
        let main_loop = MainLoop::new(asked, |text: String| async move { text });
        let running = main_loop.workers(ends.callers).start();
        let client = Client::new(&ends.clients.mailbox("requests")?)?;
        Ok(Self { client, running: Arc::new(running) })
    }
}

impl Caller for Ours {
    async fn call(&self, request: MainLoopRequest<String>) -> Result<String> {
        Ok(self.client.call(&request, PATIENCE).await?)
    }

    async fn close(self) -> Result<()> {
        self.client.close().await;
        let running = Arc::into_inner(self.running).ok_or("a caller is still running")?;
        let stats = running.stop().await?;
        expect_eq("requests that failed", stats.failed, 0)
    }
}
