//! Runs the command in a temporary directory.

use std::ffi::OsStr;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use pillarbox::Timestamp;
use tempfile::TempDir;

/// Empty directory in which the command runs.
pub(crate) struct Place {
    directory: TempDir,
}

/// Output and exit code of a command.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Place {
    pub(crate) fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Returns the URL of a file in this directory.
    pub(crate) fn url(&self, file: &str) -> String {
        format!("sqlite:{}", self.path().join(file).display())
    }

    pub(crate) fn command<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pillarbox"));
        command.args(args).current_dir(self.path());
        for name in ["PILLARBOX_URL", "NO_COLOR", "COLUMNS"] {
            command.env_remove(name);
        }
        command.env("TERM", "xterm-256color");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Starts the command with arguments split at spaces.
    pub(crate) fn start(&self, line: &str) -> Child {
        self.command(line.split_whitespace()).spawn().unwrap()
    }

    /// Runs the command to its end.
    pub(crate) fn run(&self, line: &str) -> Run {
        finish(self.start(line))
    }

    pub(crate) fn run_args(&self, args: &[&str]) -> Run {
        finish(self.command(args).spawn().unwrap())
    }

    /// Runs the command with something on its standard input.
    pub(crate) fn run_with_input(&self, line: &str, input: impl AsRef<[u8]>) -> Run {
        let mut command = self.command(line.split_whitespace());
        let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let input = input.as_ref().to_vec();
        let writer = std::thread::spawn(move || drop(stdin.write_all(&input)));
        let run = finish(child);
        writer.join().unwrap();
        run
    }

    /// Runs the command, which must succeed, and returns its stdout.
    pub(crate) fn ok(&self, line: &str) -> String {
        let run = self.run(line);
        assert_eq!(run.code, 0, "{line}: {run:?}");
        run.stdout
    }

    /// The same as [`ok`](Self::ok), with something on its standard input.
    pub(crate) fn ok_with_input(&self, line: &str, input: impl AsRef<[u8]>) -> String {
        let run = self.run_with_input(line, input);
        assert_eq!(run.code, 0, "{line}: {run:?}");
        run.stdout
    }

    /// Runs a script in a shell that has `pillarbox` on its path, and fails if a part of a pipeline does.
    #[cfg(unix)]
    pub(crate) fn shell(&self, script: &str) -> Run {
        let program = Path::new(env!("CARGO_BIN_EXE_pillarbox"));
        let path = std::env::var("PATH").unwrap_or_default();
        let path = format!("{}:{path}", program.parent().unwrap().display());
        let mut shell = Command::new("bash");
        shell.args(["-o", "pipefail", "-c", script]).current_dir(self.path());
        shell.env("PATH", path).env_remove("PILLARBOX_URL").env("TERM", "dumb");
        shell.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        finish(shell.spawn().unwrap())
    }

    /// Runs commands, and returns each with its output.
    pub(crate) fn session(&self, lines: &[&str]) -> String {
        let shown = |line: &&str| {
            let run = self.run(line);
            format!("$ pillarbox {}\n{}\n", steady(line), run.shown(self))
        };
        lines.iter().map(shown).collect()
    }

    /// Adds two ready messages and a delayed one with fixed ids, ages and states to `orders`.
    pub(crate) fn with_orders(self) -> Self {
        let ago = time(-(3 * DAY + HALF_AN_HOUR));
        let until = time(2 * DAY + HALF_AN_HOUR);
        let lines = [
            format!(
                r#"{{"id":"{}","body":{{"item":"lamp", "price":1.50}},"enqueued_at":"{ago}","reply_to":"client-7","attributes":{{"tenant":"acme","trace":"a=b"}}}}"#,
                id(1)
            ),
            format!(
                r#"{{"id":"{}","body":"AP8Q","body_encoding":"base64","enqueued_at":"{ago}"}}"#,
                id(2)
            ),
            format!(
                r#"{{"id":"{}","body":"two\nlines","body_encoding":"text","enqueued_at":"{ago}","until":"{until}"}}"#,
                id(3)
            ),
        ];
        assert_eq!(self.ok_with_input("load orders", lines.join("\n")), "3 messages loaded\n");
        self
    }
}

pub(crate) const HOUR: i64 = 3_600;
pub(crate) const DAY: i64 = 86_400;
const HALF_AN_HOUR: i64 = 1800;

/// Returns the time in some seconds from now.
pub(crate) fn time(seconds: i64) -> Timestamp {
    Timestamp::from_nanos(Timestamp::now().as_nanos() + seconds * 1_000_000_000)
}

pub(crate) fn id(number: u32) -> String {
    format!("0197b3a2-5f3c-7c1e-9d53-{number:012x}")
}

/// Parses lines of JSON.
pub(crate) fn lines(text: &str) -> Vec<serde_json::Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

pub(crate) fn finish(child: Child) -> Run {
    let output = child.wait_with_output().unwrap();
    Run {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// Waits for a condition. Fails after 30 seconds.
pub(crate) fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(30);
    while !is_so() {
        assert!(Instant::now() < end, "still not so: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until a command handles signals: before that, one would just end it.
pub(crate) fn until_it_listens(child: &Child) {
    until_process_listens(child.id());
}

pub(crate) fn until_process_listens(pid: u32) {
    let status = format!("/proc/{pid}/status");
    eventually("signals are noticed", || {
        let status = std::fs::read_to_string(&status).unwrap_or_default();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
        // Bit 0 of the mask is signal 1; SIGINT is 2.
        caught.is_some_and(|mask| mask & 0b10 != 0)
    });
}

/// Sends a signal to a process that the test has started.
pub(crate) fn signal(child: &Child, name: &str) {
    // The builtin of the shell: a small system has no `kill` program.
    let line = format!("kill -{name} {}", child.id());
    let kill = Command::new("bash").args(["-c", &line]).status();
    assert!(kill.unwrap().success());
}

impl Run {
    /// Returns the whole output, without what changes from run to run.
    pub(crate) fn shown(&self, place: &Place) -> String {
        let mut shown = self.stdout.clone();
        if !self.stderr.is_empty() {
            shown.push_str("--- stderr ---\n");
            shown.push_str(&self.stderr);
        }
        if self.code != 0 {
            shown.push_str(&format!("--- exit code {} ---\n", self.code));
        }
        steady(&shown.replace(place.path().to_str().unwrap(), "<dir>"))
    }
}

/// Replaces receipts, new ids, times and measurements by placeholders.
pub(crate) fn steady(text: &str) -> String {
    text.split_inclusive('\n').map(steady_line).collect()
}

fn steady_line(line: &str) -> String {
    let mut out = String::new();
    let mut rest = line;
    while let Some(c) = rest.chars().next() {
        let replaced = receipt(rest).or_else(|| uuid(rest)).or_else(|| timestamp(rest));
        let replaced = replaced.or_else(|| age(rest));
        let (length, name) = replaced.unwrap_or((c.len_utf8(), &rest[..c.len_utf8()]));
        out.push_str(name);
        rest = &rest[length..];
    }
    out
}

fn receipt(text: &str) -> Option<(usize, &'static str)> {
    let nonce = text.get(37..53)?;
    let fits = nonce.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
    (is_uuid(text) && text.as_bytes()[36] == b'.' && fits).then_some((53, "<receipt>"))
}

/// Matches ids that the tests have not chosen.
fn uuid(text: &str) -> Option<(usize, &'static str)> {
    (is_uuid(text) && !text.starts_with("0197b3a2-5f3c-7c1e-9d53-")).then_some((36, "<id>"))
}

fn is_uuid(text: &str) -> bool {
    text.get(..36).is_some_and(|id| {
        id.bytes().enumerate().all(|(place, b)| match place {
            8 | 13 | 18 | 23 => b == b'-',
            _ => b.is_ascii_hexdigit(),
        })
    })
}

/// `2026-11-16T06:31:24.17437299Z`
fn timestamp(text: &str) -> Option<(usize, &'static str)> {
    let end = text.find('Z')? + 1;
    let shape = text.get(..20)?;
    let shaped = shape.bytes().enumerate().all(|(place, b)| match place {
        4 | 7 => b == b'-',
        10 => b == b'T',
        13 | 16 => b == b':',
        19 => b == b'.' || b == b'Z',
        _ => b.is_ascii_digit(),
    });
    (shaped && end <= 30).then_some((end, "<time>"))
}

/// Matches `61ms ago`, of messages that the test has sent.
fn age(text: &str) -> Option<(usize, &'static str)> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let unit = ["ms ago", "s ago"].into_iter().find(|unit| text[digits..].starts_with(unit))?;
    (digits > 0).then_some((digits + unit.len(), "<age> ago"))
}

/// Replaces all numbers, for output with measurements.
pub(crate) fn without_numbers(text: &str) -> String {
    let mut out = String::new();
    let mut in_number = false;
    for c in text.chars() {
        let part = c.is_ascii_digit() || (in_number && c == '.');
        if part && !in_number {
            out.push('N');
        }
        if !part {
            out.push(c);
        }
        in_number = part;
    }
    out
}
