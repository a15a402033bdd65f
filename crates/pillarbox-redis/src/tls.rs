//! Clients, with TLS if the feature is enabled.

use pillarbox_core::{Error, Result};
use redis::{Client, ConnectionInfo};

use crate::options::TlsFiles;

/// Creates a client of a server. It does not connect yet.
pub(crate) fn client(server: ConnectionInfo, files: &TlsFiles) -> Result<Client> {
    let client = if is_tls(&server) { secure(server, files)? } else { Client::open(server) };
    client.map_err(|error| Error::connection(None, "open", error))
}

fn is_tls(server: &ConnectionInfo) -> bool {
    matches!(server.addr(), redis::ConnectionAddr::TcpTls { .. })
}

#[cfg(feature = "tls")]
fn secure(server: ConnectionInfo, files: &TlsFiles) -> Result<redis::RedisResult<Client>> {
    use std::path::Path;

    use redis::{ClientTlsConfig, TlsCertificates};

    // Fails if the program has installed another provider, which is used then.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let read = |path: &Path| {
        std::fs::read(path).map_err(|error| {
            let problem = format!("cannot read {}: {error}", path.display());
            Error::invalid(None, "file for TLS", problem, "readable files in PEM format")
        })
    };
    let root_cert = files.ca.as_deref().map(read).transpose()?;
    let client_tls = match (&files.certificate, &files.key) {
        (Some(certificate), Some(key)) => {
            Some(ClientTlsConfig { client_cert: read(certificate)?, client_key: read(key)? })
        }
        _ => None,
    };
    Ok(Client::build_with_tls(server, TlsCertificates { client_tls, root_cert }))
}

#[cfg(not(feature = "tls"))]
fn secure(_: ConnectionInfo, _: &TlsFiles) -> Result<redis::RedisResult<Client>> {
    let allowed = "a program that was built with the cargo feature for TLS";
    Err(Error::invalid(None, "backend URL", "rediss:", allowed))
}
