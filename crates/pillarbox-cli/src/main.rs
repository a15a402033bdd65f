//! The `pillarbox` command; see the library of this crate.

use std::process::ExitCode;

fn main() -> ExitCode {
    pillarbox_cli::main()
}
