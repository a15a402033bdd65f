//! Runs one input and detects panics, excessive memory and endless loops.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, Once, PoisonError};
use std::time::{Duration, Instant};

use peak_alloc::PeakAlloc;

use super::corpus;
use crate::Target;

#[global_allocator]
static ALLOCATED: PeakAlloc = PeakAlloc;

/// Bytes that any input may allocate: the fixed cost of readers, such as a parser of command lines.
const ALLOWED: usize = 16 << 20;
/// Bytes that an input may allocate for each of its bytes.
const ALLOWED_EACH: usize = 4096;
/// An input that takes longer than this counts as endless.
const ENDLESS: Duration = Duration::from_secs(60);

/// Result of an input.
#[derive(Debug)]
pub(super) enum Trial {
    /// No check failed. Outcomes that the target has recorded.
    Passed { outcomes: Vec<u64> },
    /// The failed check, and its location.
    Failed { reason: String, place: String },
}

thread_local! {
    static OUTCOMES: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
    /// Location of the last panic.
    static PANICKED: RefCell<String> = const { RefCell::new(String::new()) };
    static IS_QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Records an outcome of an input: the name of a case, the text of an error. Only the first words of a text count,
/// without quoted parts and numbers, which come from the input.
pub fn record_outcome(outcome: &str) {
    const ENOUGH: usize = 60;
    const QUOTES: [char; 2] = ['"', '\''];
    let mut hasher = DefaultHasher::new();
    let before = outcome.split(QUOTES).next().unwrap_or_default();
    let after = outcome[before.len()..].rsplit(QUOTES).next().unwrap_or_default();
    for text in [before, after] {
        let letters = text.bytes().filter(u8::is_ascii_alphabetic).take(ENOUGH);
        letters.for_each(|letter| letter.hash(&mut hasher));
    }
    OUTCOMES.with_borrow_mut(|outcomes| outcomes.push(hasher.finish()));
}

/// Silences the panic messages of targets, which their failures report.
pub(super) fn keep_panics_quiet() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let place = info.location().map(ToString::to_string).unwrap_or_default();
            PANICKED.replace(place);
            if !IS_QUIET.get() {
                usual(info);
            }
        }));
    });
}

/// Runs a target on an input.
pub(super) fn run(target: &Target, input: &[u8]) -> Trial {
    keep_panics_quiet();
    OUTCOMES.take();
    let before = ALLOCATED.current_usage();
    ALLOCATED.reset_peak_usage();
    let watch = Watch::begin(target.name, input);
    IS_QUIET.set(true);
    let result = catch_unwind(AssertUnwindSafe(|| (target.run)(input)));
    IS_QUIET.set(false);
    drop(watch);
    if let Err(panic) = result {
        let place = PANICKED.take();
        return Trial::Failed { reason: format!("{}, at {place}", text(&*panic)), place };
    }
    let allocated = ALLOCATED.peak_usage().saturating_sub(before);
    let allowed = ALLOWED + input.len() * ALLOWED_EACH;
    if allocated > allowed {
        let reason = format!(
            "{} bytes of input took {allocated} of memory, and no more than {allowed} are allowed",
            input.len()
        );
        return Trial::Failed { reason, place: "memory".to_owned() };
    }
    Trial::Passed { outcomes: OUTCOMES.take() }
}

fn text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("it panicked")
}

/// The current input, and when it started.
static TRIED: Mutex<Option<(Instant, &'static str, Vec<u8>)>> = Mutex::new(None);

/// Guard of the current input. One that never ends is saved, and ends the process.
struct Watch;

impl Watch {
    fn begin(target: &'static str, input: &[u8]) -> Self {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| drop(std::thread::Builder::new().name("watch".into()).spawn(watch)));
        *TRIED.lock().unwrap_or_else(PoisonError::into_inner) =
            Some((Instant::now(), target, input.to_vec()));
        if std::env::var_os("PILLARBOX_KEEP_EACH").is_some() {
            // For inputs that abort the process, such as by a stack overflow.
            drop(corpus::keep_as(target, "last", input));
        }
        Self
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        *TRIED.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

fn watch() {
    loop {
        std::thread::sleep(Duration::from_secs(1));
        let tried = TRIED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((since, target, input)) = &*tried
            && since.elapsed() > ENDLESS
        {
            let kept = corpus::keep(target, input).map(|path| path.display().to_string());
            let kept = kept.unwrap_or_else(|error| format!("nowhere: {error}"));
            eprintln!("{target} does not terminate on \"{}\"", input.escape_ascii());
            eprintln!("  rerun    cargo run -p pillarbox-fuzz -- {target} {kept}");
            std::process::exit(1);
        }
    }
}
