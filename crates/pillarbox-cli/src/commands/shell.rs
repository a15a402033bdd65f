//! `pillarbox completions` and `man`

use std::fs;
use std::path::Path;

use clap::CommandFactory;

use crate::args::{self, Cli};
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::output::text;

pub(crate) fn completions(context: &mut Context, args: &args::Completions) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "pillarbox", &mut script);
    context.out.bytes(&script)
}

pub(crate) fn man(context: &mut Context, args: &args::Man) -> Result<()> {
    let directory = &args.directory;
    let written = write_pages(directory).map_err(|error| {
        Failure::Other(format!("cannot write manual pages to {}: {error}", directory.display()))
    })?;
    let pages = text::count(written, "page");
    let shown = directory.join("pillarbox.1");
    context.out.line(&format!("{pages} written; try `man -l {}`", shown.display()))
}

fn write_pages(directory: &Path) -> std::io::Result<u64> {
    fs::create_dir_all(directory)?;
    clap_mangen::generate_to(Cli::command(), directory)?;
    let pages = fs::read_dir(directory)?
        .filter_map(Result::ok)
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("pillarbox"));
    Ok(pages.count() as u64)
}
