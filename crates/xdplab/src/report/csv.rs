//! Figures as CSV (RFC 4180): a line for each row of each table, a column for each key that any of them has.

use serde_json::Value;

use super::table::{Cell, Column};
use super::view::{Finding, Kind, RecordView, Report};

/// What stands before the figures.
const WHERE: [&str; 5] = ["record", "started", "kind", "title", "failed_guards"];

pub(super) fn report(report: &Report) -> String {
    let mut keys: Vec<String> = WHERE.map(str::to_owned).to_vec();
    let mut rows: Vec<Vec<(String, String)>> = Vec::new();
    let findings =
        report.records.iter().flat_map(|record| record.findings.iter().map(move |finding| (record, finding)));
    // The cases of a scenario tell all that its overview does.
    for (record, finding) in findings.filter(|(_, finding)| finding.kind != Kind::Scenario) {
        let table = &finding.table;
        for (index, column) in table.columns.iter().enumerate() {
            let of_column = table.rows.iter().flat_map(|row| fields(column, &row[index]));
            for (key, _) in of_column {
                if !keys.contains(&key) {
                    keys.push(key);
                }
            }
        }
        for row in &table.rows {
            let cells = table.columns.iter().zip(row).flat_map(|(column, cell)| fields(column, cell));
            rows.push(place(record, finding).into_iter().chain(cells).collect());
        }
    }
    let field = |row: &[(String, String)], key: &String| {
        row.iter().find(|(of, _)| of == key).map_or(String::new(), |(_, value)| quoted(value))
    };
    let lines = rows.iter().map(|row| keys.iter().map(|key| field(row, key)).collect::<Vec<_>>().join(","));
    std::iter::once(keys.join(",")).chain(lines).map(|line| line + "\r\n").collect()
}

fn place(record: &RecordView, finding: &Finding) -> [(String, String); 5] {
    let failed = finding.guards_that(crate::guard::Outcome::Fail).map(|guard| guard.id.as_str());
    let failed = failed.collect::<Vec<_>>().join(" ");
    let values = [record.file.as_str(), &record.started, finding.kind.name(), &finding.title, &failed];
    std::array::from_fn(|index| (WHERE[index].to_owned(), values[index].to_owned()))
}

/// A cell's fields: an interval has two.
fn fields(column: &Column, cell: &Cell) -> Vec<(String, String)> {
    let key = column.key;
    match (cell, cell.value()) {
        (Cell::Interval { low, high, .. }, _) => {
            vec![(format!("{key}_low"), low.to_string()), (format!("{key}_high"), high.to_string())]
        }
        (_, Some(Value::String(text))) => vec![(key.to_owned(), text)],
        (_, Some(other)) => vec![(key.to_owned(), other.to_string())],
        (_, None) => Vec::new(),
    }
}

fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\r', '\n']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_with_a_comma_or_a_quote_is_quoted() {
        assert_eq!(quoted("a,\"b\""), r#""a,""b""""#);
        assert_eq!(quoted("drop:no-touch"), "drop:no-touch");
    }
}
