//! Pages about what the figures mean: `xdplab help TOPIC` prints them as they stand in `help/`.

/// A page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page {
    /// The topic.
    pub name: &'static str,
    /// The page, in Markdown.
    pub text: &'static str,
}

/// Every page.
pub const PAGES: [Page; 6] = [
    Page { name: "method", text: include_str!("../help/method.md") },
    Page { name: "verdicts", text: include_str!("../help/verdicts.md") },
    Page { name: "guards", text: include_str!("../help/guards.md") },
    Page { name: "placement", text: include_str!("../help/placement.md") },
    Page { name: "variants", text: include_str!("../help/variants.md") },
    Page { name: "records", text: include_str!("../help/records.md") },
];
