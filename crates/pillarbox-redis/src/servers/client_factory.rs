//! Clients of servers that differ only in their addresses.

use std::time::Duration;

use redis::{Client, ConnectionAddr, ConnectionInfo, RedisResult};

/// Time within which a connection must be made.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// Creates clients of servers that share user, database and certificates.
#[derive(Clone)]
pub(super) struct ClientFactory {
    /// One of the servers.
    pub(super) template: ConnectionInfo,
}

impl ClientFactory {
    pub(super) fn client(&self, host: &str, port: u16) -> RedisResult<Client> {
        let host = host.to_owned();
        let addr = match self.template.addr() {
            ConnectionAddr::TcpTls { insecure, tls_params, .. } => ConnectionAddr::TcpTls {
                host,
                port,
                insecure: *insecure,
                tls_params: tls_params.clone(),
            },
            _ => ConnectionAddr::Tcp(host, port),
        };
        Client::open(self.template.clone().set_addr(addr))
    }
}
