//! What is in force on each leaf of what can be done in several ways, for people and programs.

use blockwork_engine::{Decision, NodeId, Snapshot};
use serde::{Deserialize, Serialize};

use super::shown;

/// A setting of a leaf: what is in force, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DecisionReport {
    /// The leaf's number.
    pub node: usize,
    /// `io`, `direct`, `linearize`, `fua` or `fixed`.
    pub setting: String,
    /// What is in force; `auto`: as was found out for each class of requests ([`ChoiceReport`](super::ChoiceReport)).
    pub value: String,
    /// Somebody has said so; else it was chosen.
    pub asked: bool,
    /// In which words, or by what it was chosen.
    pub why: String,
}

impl DecisionReport {
    /// `asked`, or `chosen`.
    pub fn by(&self) -> &'static str {
        by(self.asked)
    }

    pub(super) fn all(leaves: &[(NodeId, Vec<Decision>)]) -> Vec<DecisionReport> {
        let one = |node: NodeId, it: &Decision| DecisionReport {
            node: usize::from(node.0),
            setting: it.setting.to_owned(),
            value: it.value.to_owned(),
            asked: it.asked,
            why: it.why.clone(),
        };
        leaves.iter().flat_map(|(node, all)| all.iter().map(|it| one(*node, it))).collect()
    }
}

fn by(asked: bool) -> &'static str {
    if asked { "asked" } else { "chosen" }
}

/// All settings for people, a line each; nothing where there are none.
///
/// ```text
/// settings                                                         in force  by      why
///   disk/a.img: direct                                             on        chosen  O_DIRECT was tried, and works
/// ```
pub fn decision_table(leaves: &[(NodeId, Vec<Decision>)], nodes: &[Snapshot]) -> String {
    let line =
        |what: &str, value: &str, by: &str, why: &str| format!("{what:<66} {value:<9} {by:<7} {why}\n");
    let mut out = String::new();
    for (node, all) in leaves {
        let name = nodes.get(usize::from(node.0)).map_or_else(String::new, shown);
        for it in all {
            if out.is_empty() {
                out += &line("settings", "in force", "by", "why");
            }
            out += &line(&format!("  {name}: {}", it.setting), it.value, by(it.asked), &it.why);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_what_is_in_force_and_who_has_said_so_or_why() {
        let decision = |value, asked, why: &str| Decision { setting: "io", value, asked, why: why.into() };
        let leaves = [
            (NodeId(0), vec![decision("threads", false, "io_uring_setup: EPERM")]),
            (NodeId(1), Vec::new()),
            (NodeId(2), vec![decision("threads", true, "io=threads")]),
        ];
        let text = decision_table(&leaves, &[]);
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[1], [":", "io", "threads", "chosen", "io_uring_setup:", "EPERM"]);
        assert_eq!(lines[2], [":", "io", "threads", "asked", "io=threads"]);
        assert_eq!((lines.len(), decision_table(&leaves[1..2], &[]).as_str()), (3, ""));
        let report = DecisionReport::all(&leaves);
        assert_eq!((report[1].node, report[1].by(), report[0].by()), (2, "asked", "chosen"));
    }
}
