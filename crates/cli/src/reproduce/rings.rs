//! Tables of what guests get through rings: a row for each number of reads in flight, a group of columns for each ring.

use blockwork_insight::reproduce::RingRate;

/// A table for each client and path, in their order; nothing where there are none.
pub(super) fn text(rates: &[RingRate]) -> String {
    let tables: Vec<String> = rates
        .chunk_by(|a, b| (&a.client, &a.path) == (&b.client, &b.path))
        .map(|table| format!("{}; {}\n{}", table[0].client, table[0].path, of(table)))
        .collect();
    tables.join("\n")
}

fn of(table: &[RingRate]) -> String {
    let columns: Vec<&[RingRate]> = table
        .chunk_by(|a, b| (a.ring_pages, a.is_merged_at_leaf) == (b.ring_pages, b.is_merged_at_leaf))
        .collect();
    // Now and then two random reads are neighbours.
    let merges = table.iter().any(|rate| rate.reads_per_request > 1.05);
    let mut rows = vec![vec!["IN FLIGHT".to_owned()]];
    rows.extend(columns[0].iter().map(|rate| vec![rate.in_flight.to_string()]));
    for column in columns {
        column_of(column, merges, &mut rows);
    }
    aligned(&rows)
}

fn column_of(column: &[RingRate], merges: bool, rows: &mut [Vec<String>]) {
    let pages = column[0].ring_pages;
    let ring = if pages == 1 { "1 PAGE".to_owned() } else { format!("{pages} PAGES") };
    let ring = if column[0].is_merged_at_leaf { format!("{ring}, MERGED") } else { ring };
    let mut put = |title: &str, cell: &dyn Fn(&RingRate) -> String| {
        let (head, rest) = rows.split_first_mut().expect("the titles");
        head.push(title.to_owned());
        rest.iter_mut().zip(column).for_each(|(row, rate)| row.push(cell(rate)));
    };
    if column.iter().any(|rate| rate.report_iops.is_some()) {
        put("REPORT", &|rate| rate.report_iops.map(thousands).unwrap_or_default());
    }
    put(&ring, &|rate| format!("{}{}", thousands(rate.iops), if rate.is_calibration { "*" } else { " " }));
    if merges {
        put("READS/REQUEST", &|rate| format!("{:.1}", rate.reads_per_request));
    }
    put("TIME FULL", &|rate| format!("{:.0} %", rate.ring_full * 100.0));
}

fn thousands(iops: f64) -> String {
    format!("{:.0} K", iops / 1e3)
}

/// All columns to the right, two spaces between them.
fn aligned(rows: &[Vec<String>]) -> String {
    let width = |n: usize| rows.iter().map(|row| row[n].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..rows[0].len()).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells: Vec<String> =
            row.iter().zip(&widths).map(|(cell, width)| format!("{cell:>width$}")).collect();
        format!("{}\n", cells.join("  ").trim_end())
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(in_flight: u32, ring_pages: u32, report: Option<f64>, iops: f64) -> RingRate {
        RingRate {
            client: "reads".into(),
            path: "free".into(),
            in_flight,
            ring_pages,
            is_merged_at_leaf: false,
            report_iops: report,
            iops,
            is_calibration: in_flight == 4,
            reads_per_request: 1.0,
            ring_size: 32 * ring_pages,
            ring_high_water: in_flight,
            ring_full: if in_flight > 32 * ring_pages { 1.0 } else { 0.0 },
            device: Default::default(),
        }
    }

    #[test]
    fn rings_stand_side_by_side() {
        let rates = [
            rate(4, 1, Some(19e3), 19_100.0),
            rate(64, 1, Some(131e3), 149e3),
            rate(4, 8, Some(19e3), 19_100.0),
            rate(64, 8, Some(198e3), 298_700.0),
        ];
        let table = "reads; free\n\
                     IN FLIGHT  REPORT  1 PAGE  TIME FULL  REPORT  8 PAGES  TIME FULL\n\
                     \x20       4    19 K   19 K*        0 %    19 K    19 K*        0 %\n\
                     \x20      64   131 K  149 K       100 %   198 K   299 K         0 %\n";
        assert_eq!(text(&rates), table);
        assert_eq!(text(&[]), "");
    }
}
