//! Runs the tools that own the formats. They are requirements of these tests: without them nothing would be proved.

use std::process::{Command, Output};

/// What the command printed. Where it is not installed, the test fails and says which package has it.
pub fn output(command: &mut Command, package: &str) -> Output {
    // Debian keeps sfdisk and sgdisk where a user's PATH does not lead.
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{path}:/usr/sbin:/sbin")).env("LC_ALL", "C");
    match command.output() {
        Ok(output) => output,
        Err(error) => panic!(
            "{:?} cannot be run ({error}): these tests need the Debian package {package}",
            command.get_program()
        ),
    }
}
