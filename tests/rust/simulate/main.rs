//! Prints the figures of the fleet simulator, last as one line of JSON, or draws the retry storm with `--plot PATH`.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a tool for the terminal, which may stop at the unexpected"
)]

#[path = "../simulation/mod.rs"]
mod simulation;

mod plot;
mod table;

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    match (arguments.next().as_deref(), arguments.next()) {
        (None, _) => table::print(),
        (Some("--plot"), Some(path)) => match plot::write(path.as_ref()) {
            Ok(()) => println!("{path}"),
            Err(error) => {
                eprintln!("{path} could not be written: {error}");
                return ExitCode::FAILURE;
            }
        },
        _ => {
            eprintln!("usage: simulate [--plot PATH]");
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}
