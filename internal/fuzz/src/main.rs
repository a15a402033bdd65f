//! Runs a target on files, or on generated inputs.
//!
//! ```console
//! $ cargo run -p pillarbox-fuzz -- url target/fuzz/url/failed-0123456789abcdef
//! $ PILLARBOX_INPUTS=1000000 PILLARBOX_SEED=7 cargo run -p pillarbox-fuzz -- url
//! ```

use std::process::ExitCode;
use std::time::Instant;

use pillarbox_fuzz::driver::{Campaign, corpus};
use pillarbox_fuzz::{target, targets};

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let Some(target) = args.next().as_deref().and_then(target) else {
        let names: Vec<_> = targets::ALL.iter().map(|target| target.name).collect();
        eprintln!("usage: pillarbox-fuzz TARGET [FILE...]; targets: {}", names.join(", "));
        return ExitCode::from(2);
    };
    let files: Vec<_> = args.collect();
    let (campaign, inputs) = if files.is_empty() {
        (Campaign::of(&target), corpus(target.name))
    } else {
        (Campaign { inputs: 0, seed: 0 }, files.iter().map(std::fs::read).collect())
    };
    let inputs = match inputs {
        Ok(inputs) => inputs,
        Err(error) => {
            eprintln!("cannot read the inputs: {error}");
            return ExitCode::from(2);
        }
    };
    let start = Instant::now();
    match campaign.run(&target, &inputs) {
        Ok(done) => {
            let rate = done.tried as f64 / start.elapsed().as_secs_f64();
            println!(
                "{}: {} inputs hold, {rate:.0} a second, {} outcomes",
                target.name, done.tried, done.outcomes
            );
            ExitCode::SUCCESS
        }
        Err(failure) => {
            eprintln!("{failure}");
            ExitCode::FAILURE
        }
    }
}
