//! `blockwork completion`: what a shell needs to complete our command line, out of the definition that the parser has.

use anyhow::Result;
use clap::{Args, CommandFactory, ValueEnum};
use clap_complete::{Shell, generate};

use crate::args::Cli;
use crate::out;

#[derive(Debug, Args)]
pub(crate) struct CompletionArgs {
    /// The shell that is to read it.
    #[arg(value_name = "SHELL", value_enum)]
    shell: Kind,
}

/// Shells for which it is tested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    Bash,
    Zsh,
    Fish,
}

/// Behind what clap makes for bash, which answers an empty word with options alone, so that bash never gets to its own completion, of
/// files. Here options wait for their dash, and an empty word is answered with verbs, or else with files.
const BASH_FILES: &str = r#"
_blockwork_or_files() {
    _blockwork "$@"
    [[ -z "$2" ]] || return 0
    local word words=("${COMPREPLY[@]}")
    COMPREPLY=()
    for word in "${words[@]}"; do
        [[ "$word" == -* ]] || COMPREPLY+=("$word")
    done
}
complete -F _blockwork_or_files -o bashdefault -o default blockwork
"#;

pub(crate) fn run(args: &CompletionArgs) -> Result<()> {
    out::print(&script(args.shell))
}

fn script(shell: Kind) -> String {
    let (shell, more) = match shell {
        Kind::Bash => (Shell::Bash, BASH_FILES),
        Kind::Zsh => (Shell::Zsh, ""),
        Kind::Fish => (Shell::Fish, ""),
    };
    let mut script = Vec::new();
    generate(shell, &mut Cli::command(), "blockwork", &mut script);
    String::from_utf8_lossy(&script).into_owned() + more
}
