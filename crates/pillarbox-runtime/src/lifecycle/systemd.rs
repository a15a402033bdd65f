//! Telling systemd how a process is: `sd_notify`, without its library.

/// Where systemd wants to be told how this process is.
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
        ping_every: Option<Duration>,
    }

    impl Systemd {
        /// As the environment says: `NOTIFY_SOCKET`, `WATCHDOG_USEC` and `WATCHDOG_PID`. `None` where
        /// systemd does not want to be told.
        pub(crate) fn from_environment() -> Option<Self> {
            let socket = std::env::var_os("NOTIFY_SOCKET")?;
            let text = |name| std::env::var(name).ok();
            let (micros, pid) = (text("WATCHDOG_USEC"), text("WATCHDOG_PID"));
            let ping_every = ping_every(micros.as_deref(), pid.as_deref(), std::process::id());
            Self::at(&socket, ping_every)
                .inspect_err(|error| tracing::warn!(%error, ?socket, "cannot notify systemd"))
                .ok()
        }

        fn at(socket: &OsStr, ping_every: Option<Duration>) -> io::Result<Self> {
            let address = address(socket.as_bytes())?;
            let socket = UnixDatagram::unbound()?;
            // Nobody here waits for systemd.
            socket.set_nonblocking(true)?;
            socket.connect_addr(&address)?;
            Ok(Self { socket, ping_every })
        }

        /// How often it wants to hear that the process is alive.
        pub(crate) const fn ping_every(&self) -> Option<Duration> {
            self.ping_every
        }

        /// Tells it something.
        pub(crate) fn send(&self, state: &str) {
            if let Err(error) = self.socket.send(state.as_bytes()) {
                tracing::warn!(%error, state, "cannot notify systemd");
            }
        }
    }

    /// A path, or after an `@` a name that is in no file system.
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

    /// Half of the time after which systemd takes the process for dead, if it is this one that it means.
    fn ping_every(micros: Option<&str>, pid: Option<&str>, own: u32) -> Option<Duration> {
        let is_meant = pid.is_none_or(|pid| pid.parse() == Ok(own));
        let micros: u64 = micros?.parse().ok()?;
        (is_meant && micros > 0).then(|| Duration::from_micros(micros) / 2)
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn pings_are_for_the_process_that_is_meant_at_half_of_the_time() {
            let minute = Some("60000000");
            assert_eq!(ping_every(minute, None, 7), Some(Duration::from_secs(30)));
            assert_eq!(ping_every(minute, Some("7"), 7), Some(Duration::from_secs(30)));
            assert_eq!(ping_every(minute, Some("8"), 7), None);
            assert_eq!(ping_every(None, Some("7"), 7), None);
            assert_eq!(ping_every(Some("0"), None, 7), None);
            assert_eq!(ping_every(Some("soon"), None, 7), None);
        }

        fn hears(listener: &UnixDatagram) -> String {
            let mut heard = [0; 100];
            let count = listener.recv(&mut heard).unwrap();
            String::from_utf8(heard[..count].to_vec()).unwrap()
        }

        #[test]
        fn it_is_told_by_a_socket_in_the_file_system() {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("notify");
            let listener = UnixDatagram::bind(&path).unwrap();
            let systemd = Systemd::at(path.as_os_str(), None).unwrap();
            systemd.send("READY=1");
            assert_eq!(hears(&listener), "READY=1");
            // A systemd that is gone is nothing to fail by.
            drop(listener);
            systemd.send("STOPPING=1");
            assert!(Systemd::at(OsStr::new("/nowhere/notify"), None).is_err());
        }

        #[test]
        #[cfg(target_os = "linux")]
        fn it_is_told_by_a_socket_that_has_only_a_name() {
            use std::os::linux::net::SocketAddrExt;
            let name = format!("pillarbox-test-{}", std::process::id());
            let address = SocketAddr::from_abstract_name(&name).unwrap();
            let listener = UnixDatagram::bind_addr(&address).unwrap();
            let systemd = Systemd::at(OsStr::new(&format!("@{name}")), None).unwrap();
            systemd.send("WATCHDOG=1");
            assert_eq!(hears(&listener), "WATCHDOG=1");
        }
    }
}

#[cfg(not(unix))]
mod imp {
    use std::time::Duration;

    /// There is no systemd here.
    #[derive(Debug)]
    pub(crate) enum Systemd {}

    impl Systemd {
        pub(crate) const fn from_environment() -> Option<Self> {
            None
        }

        pub(crate) const fn ping_every(&self) -> Option<Duration> {
            match *self {}
        }

        pub(crate) const fn send(&self, _: &str) {
            match *self {}
        }
    }
}
