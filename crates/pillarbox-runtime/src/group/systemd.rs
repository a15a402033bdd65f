//! Notifications to systemd: the protocol of `sd_notify`, without its library.

/// The notification socket of systemd.
pub(super) use imp::Systemd;

#[cfg(unix)]
mod imp {
    use std::ffi::OsStr;
    use std::io;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::net::{SocketAddr, UnixDatagram};
    use std::time::Duration;

    #[derive(Debug)]
    pub(crate) struct Systemd {
        socket: UnixDatagram,
        ping_interval: Option<Duration>,
    }

    impl Systemd {
        /// Connects as the environment says: `NOTIFY_SOCKET`, `WATCHDOG_USEC` and `WATCHDOG_PID`. `None` if
        /// systemd expects no notifications.
        pub(crate) fn from_environment() -> Option<Self> {
            let socket = std::env::var_os("NOTIFY_SOCKET")?;
            let text = |name| std::env::var(name).ok();
            let (micros, pid) = (text("WATCHDOG_USEC"), text("WATCHDOG_PID"));
            let ping_interval =
                ping_interval(micros.as_deref(), pid.as_deref(), std::process::id());
            Self::at(&socket, ping_interval)
                .inspect_err(|error| tracing::warn!(%error, ?socket, "cannot notify systemd"))
                .ok()
        }

        fn at(socket: &OsStr, ping_interval: Option<Duration>) -> io::Result<Self> {
            let address = address(socket.as_bytes())?;
            let socket = UnixDatagram::unbound()?;
            // A send never waits for systemd.
            socket.set_nonblocking(true)?;
            socket.connect_addr(&address)?;
            Ok(Self { socket, ping_interval })
        }

        /// Returns the interval at which systemd is notified that the process is alive.
        pub(crate) const fn ping_interval(&self) -> Option<Duration> {
            self.ping_interval
        }

        /// Sends a notification. A failure is only logged.
        pub(crate) fn send(&self, state: &str) {
            if let Err(error) = self.socket.send(state.as_bytes()) {
                tracing::warn!(%error, state, "cannot notify systemd");
            }
        }
    }

    /// Parses a path, or an abstract name after an `@`.
    fn address(socket: &[u8]) -> io::Result<SocketAddr> {
        match socket {
            [b'@', name @ ..] => abstract_address(name),
            path => SocketAddr::from_pathname(OsStr::from_bytes(path)),
        }
    }

    #[cfg(target_os = "linux")]
    fn abstract_address(name: &[u8]) -> io::Result<SocketAddr> {
        use std::os::linux::net::SocketAddrExt;
        SocketAddr::from_abstract_name(name)
    }

    #[cfg(not(target_os = "linux"))]
    fn abstract_address(_: &[u8]) -> io::Result<SocketAddr> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Returns half of the time after which systemd ends the process, if it watches this process.
    fn ping_interval(micros: Option<&str>, pid: Option<&str>, own: u32) -> Option<Duration> {
        let is_own = pid.is_none_or(|pid| pid.parse() == Ok(own));
        let micros: u64 = micros?.parse().ok()?;
        (is_own && micros > 0).then(|| Duration::from_micros(micros) / 2)
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn pings_are_sent_by_the_watched_process_at_half_of_the_time() {
            let minute = Some("60000000");
            assert_eq!(ping_interval(minute, None, 7), Some(Duration::from_secs(30)));
            assert_eq!(ping_interval(minute, Some("7"), 7), Some(Duration::from_secs(30)));
            assert_eq!(ping_interval(minute, Some("8"), 7), None);
            assert_eq!(ping_interval(None, Some("7"), 7), None);
            assert_eq!(ping_interval(Some("0"), None, 7), None);
            assert_eq!(ping_interval(Some("soon"), None, 7), None);
        }

        fn received(listener: &UnixDatagram) -> String {
            let mut buffer = [0; 100];
            let count = listener.recv(&mut buffer).unwrap();
            String::from_utf8(buffer[..count].to_vec()).unwrap()
        }

        #[test]
        fn notifications_are_sent_to_a_socket_in_the_file_system() {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("notify");
            let listener = UnixDatagram::bind(&path).unwrap();
            let systemd = Systemd::at(path.as_os_str(), None).unwrap();
            systemd.send("READY=1");
            assert_eq!(received(&listener), "READY=1");
            // A send to a closed socket does not fail.
            drop(listener);
            systemd.send("STOPPING=1");
            assert!(Systemd::at(OsStr::new("/nowhere/notify"), None).is_err());
        }

        #[test]
        #[cfg(target_os = "linux")]
        fn notifications_are_sent_to_an_abstract_socket() {
            use std::os::linux::net::SocketAddrExt;
            let name = format!("pillarbox-test-{}", std::process::id());
            let address = SocketAddr::from_abstract_name(&name).unwrap();
            let listener = UnixDatagram::bind_addr(&address).unwrap();
            let systemd = Systemd::at(OsStr::new(&format!("@{name}")), None).unwrap();
            systemd.send("WATCHDOG=1");
            assert_eq!(received(&listener), "WATCHDOG=1");
        }
    }
}

#[cfg(not(unix))]
mod imp {
    use std::time::Duration;

    /// Never constructed on this platform.
    #[derive(Debug)]
    pub(crate) enum Systemd {}

    impl Systemd {
        pub(crate) const fn from_environment() -> Option<Self> {
            None
        }

        pub(crate) const fn ping_interval(&self) -> Option<Duration> {
            match *self {}
        }

        pub(crate) const fn send(&self, _: &str) {
            match *self {}
        }
    }
}
