//! Named labs as text for a terminal.

use super::text::aligned;
use crate::topology::{Listed, Status};

/// A line for each lab.
#[must_use]
pub fn labs_text(listed: &[Listed]) -> String {
    if listed.is_empty() {
        return "no labs\n".into();
    }
    let row = |Listed { lab, status }: &Listed| {
        let status = match status {
            Status::Up => "up".to_owned(),
            Status::Changing => "being made or taken down".into(),
            Status::Stale(why) => format!("stale: {why}"),
        };
        let namespaces: Vec<&str> = lab.namespaces.iter().map(|namespace| namespace.netns.as_str()).collect();
        vec![lab.name.clone(), status, lab.started.clone(), namespaces.join(" "), lab.about.clone()]
    };
    aligned(&["lab", "status", "since", "namespaces", ""], &[0, 1, 2, 3, 4], listed.iter().map(row).collect())
}
