//! Limits on the connections of the health server: their number and their duration.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::time::Timeout;

/// Maximum number of open connections. One more closes the oldest, so that silent clients cannot block others.
const MAX_CONNECTIONS: usize = 64;
/// Maximum duration of a connection.
const MAX_DURATION: Duration = Duration::from_secs(10);

/// A listener that limits its connections.
#[derive(Debug)]
pub(super) struct Connections {
    listener: TcpListener,
    /// Connections that may be open, the oldest first. Dropping a sender closes its connection.
    open: VecDeque<oneshot::Sender<()>>,
}

impl Connections {
    pub(super) const fn new(listener: TcpListener) -> Self {
        Self { listener, open: VecDeque::new() }
    }
}

impl Listener for Connections {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        let (stream, address) = Listener::accept(&mut self.listener).await;
        self.open.retain(|one| !one.is_closed());
        if self.open.len() >= MAX_CONNECTIONS {
            self.open.pop_front();
        }
        let (open, closed) = oneshot::channel();
        self.open.push_back(open);
        let end = Some(Box::pin(tokio::time::timeout(MAX_DURATION, closed)));
        (Connection { stream, end }, address)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection that fails once it is closed or has lasted too long.
#[derive(Debug)]
pub(super) struct Connection {
    stream: TcpStream,
    /// `None` once the connection has ended.
    end: Option<Pin<Box<Timeout<oneshot::Receiver<()>>>>>,
}

impl Connection {
    /// Returns the stream unless the connection has ended. Wakes the task when it ends.
    fn stream(&mut self, context: &mut Context<'_>) -> io::Result<Pin<&mut TcpStream>> {
        if let Some(end) = &mut self.end
            && end.as_mut().poll(context).is_ready()
        {
            self.end = None;
        }
        match self.end {
            Some(_) => Ok(Pin::new(&mut self.stream)),
            None => Err(io::ErrorKind::TimedOut.into()),
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.stream(context)?.poll_read(context, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.stream(context)?.poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream(context)?.poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use tokio::time::Instant;

    use super::*;

    async fn listening() -> (Connections, SocketAddr) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        (Connections::new(listener), address)
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_connection_is_closed_in_time() {
        let (mut connections, address) = listening().await;
        let _silent = std::net::TcpStream::connect(address).unwrap();
        let (mut connection, _) = connections.accept().await;
        let start = Instant::now();
        for _ in 0..2 {
            let mut buffer = [0; 1];
            let mut buffer = ReadBuf::new(&mut buffer);
            let read = std::future::poll_fn(|context| {
                Pin::new(&mut connection).poll_read(context, &mut buffer)
            });
            let ended = read.await.unwrap_err();
            assert_eq!((ended.kind(), start.elapsed()), (io::ErrorKind::TimedOut, MAX_DURATION));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_connection_too_many_closes_the_oldest() {
        let (mut connections, address) = listening().await;
        let start = Instant::now();
        let mut open = VecDeque::new();
        let mut accept = async || {
            let client = std::net::TcpStream::connect(address).unwrap();
            (client, connections.accept().await.0)
        };
        for _ in 0..MAX_CONNECTIONS {
            open.push_back(accept().await);
        }
        // In place of one that has ended.
        open.pop_back();
        open.push_back(accept().await);
        assert!(open.iter_mut().all(|(_, one)| is_open(one)));
        open.push_back(accept().await);
        let (_, mut oldest) = open.pop_front().unwrap();
        assert!(!is_open(&mut oldest) && open.iter_mut().all(|(_, one)| is_open(one)));
        assert_eq!(start.elapsed(), Duration::ZERO);
    }

    fn is_open(connection: &mut Connection) -> bool {
        connection.stream(&mut Context::from_waker(std::task::Waker::noop())).is_ok()
    }
}
