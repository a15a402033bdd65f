//! The `pillarbox` command. All of it is in the library beside this.

use std::process::ExitCode;

fn main() -> ExitCode {
    pillarbox_cli::main()
}
